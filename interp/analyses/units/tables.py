"""Which units of a model tell good sentences from bad in each task, and which of them tasks share."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import pandas as pd

from interp.analyses.units.columns import IN_PAPER, KINDS, MEANINGS
from interp.analyses.units.findings import answer, unit_findings
from interp.analyses.units.options import UnitOptions
from interp.analyses.units.overlaps import unit_tables
from interp.analyses.units.reading import LEVEL, unit_cost, unit_passes, why_too_few
from interp.analyses.units.sums import places
from interp.corpora import pairs as minimal_pairs
from interp.corpora.controls import Swap, controls_of
from interp.corpora.pairs import PairTable, bundled_tasks, sentences_of
from interp.models.shapes import shape_with
from interp.models.sites import Model, check_model, view
from interp.passes.budget import Cost
from interp.passes.execution import Passes, asks
from interp.results.findings import Answer, Finding
from interp.results.result import Result, provenance
from interp.support.checks import check_choice, warn, whole_number
from interp.support.choices import Position

__all__ = ["UnitStudy", "check_asked", "dry_run", "lacks", "study", "why_unsuited"]


@dataclass(frozen=True, eq=False)
class UnitStudy(Result):
    """The result of `study`.

    A unit belongs to a place (`at`). Units are dimensions of the `residual` stream at a hidden state, MLP `neurons` of
    a block after the activation, or outputs z of a block's attention `heads`, with the dimensions of all heads side by
    side (`of`). The top units are the 1 % of each kind, over all places, with the largest |t| of the differences within
    pairs. `control` is `none` for a task, and `words` or `numbers` for its control that is not grammatical.

    - `consistency` (task, control, of, overlap, expected, null, null_high, p, p_adjusted, n_units, n_top, n_pairs): one
      row per task, control and kind: the share of the top units by the pairs of one fold that are also in the top by
      all other pairs, as a mean over folds. p is (1 + flips that reach the overlap) / (1 + flips).
    - `units` (task, control, of, at, unit, t, auc, auc_error, parts): one row per top unit by t on all pairs, largest
      first. `auc` is as in `separability`, but on the pairs that chose the unit.
    - `shared_units` (of, task_a, control_a, task_b, control_b, overlap, expected, null, null_high, p): one row per two
      tasks and kind: the same overlap, where the top of one task by a fold is compared with the top of the other by all
      other folds.
    - `phenomena` (of, by, within, between, difference, low, high, p, n_tasks, n_groups): one row per kind and grouping
      of tasks. The interval of the difference is by a jackknife that leaves out one task at a time, from eight tasks
      on, and p by permuting the groups of tasks.
    - `separability` (task, control, of, at, unit, auc, low, high, error, pair_share, pair_low, pair_high, n_pairs): one
      row per task, control and kind: the single best unit, chosen on all folds but one and measured on that one (`at`
      and `unit` are those on all pairs). `auc` is computed from histograms, at most `error` away from that of the
      values; its interval is DeLong's, without `error`. `pair_share` is turned round if the unit is smaller for good
      sentences in the other folds, and has Wilson's interval.
    - `similarity` (at, task_a, control_a, task_b, control_b, cosine, null_high): one row per hidden state and two
      tasks: the cosine between their mean differences (good minus bad) in the residual stream; for a task and itself,
      between folds and their complements.
    - `tasks` (task, field, linguistics_term, n_pairs): one row per task.
    """

    analysis: ClassVar[str] = "units"
    page: ClassVar[str | None] = "interp.analyses.units.page"
    columns: ClassVar = MEANINGS
    in_paper: ClassVar = IN_PAPER

    consistency: pd.DataFrame
    units: pd.DataFrame
    shared_units: pd.DataFrame
    phenomena: pd.DataFrame
    separability: pd.DataFrame
    similarity: pd.DataFrame
    tasks: pd.DataFrame

    @property
    def found_again(self) -> pd.DataFrame:
        """Means over tasks of `consistency`, and the number of tasks on which it is above its null at a p of .05."""
        consistency = self.consistency.assign(above=self.consistency["p"] <= LEVEL, n_tasks=1)
        groups = consistency.groupby(["of", "control"], sort=False)
        means = groups[["overlap", "expected", "null"]].mean()
        return means.join(groups[["above", "n_tasks"]].sum()).reset_index()

    @property
    def answer(self) -> Answer | None:
        return answer(self.found_again, self.separability)

    @property
    def findings(self) -> tuple[Finding, ...]:
        phenomena = self.tasks.set_index("task")["linguistics_term"].fillna("")
        return unit_findings(self.tables, phenomena.to_dict())

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        title = f"top units found again by other pairs, mean over tasks: {self.where}"
        return {"found_again": (title, self.found_again)}


def check_asked(options: UnitOptions) -> None:
    """Raise ValueError or TypeError for options that are impossible for every model."""
    if options.position is not None:
        check_choice("position", options.position, get_args(Position))
    whole_number(options.folds, "folds", least=2)


def why_unsuited(model: Model, pairs: PairTable, position: Position | None = None, folds: int = 2) -> str | None:
    """Return why the pairs of a task are too few for a model, or None if they are enough."""
    return why_too_few(model, pairs.table, position, folds)


def lacks(model: Model) -> dict[str, str]:
    """Say which kinds of units of a model cannot be read, and why."""
    reasons = {"neurons": view(model).refused("mlp_post"), "heads": view(model).refused("z")}
    return {KINDS[kind]: reason for kind, reason in reasons.items() if reason is not None}


@asks(UnitOptions)
def study(
    model: Model, pairs: pd.DataFrame | str | os.PathLike[str] | PairTable, options: UnitOptions
) -> Passes[UnitStudy]:
    """Find which residual dimensions, MLP neurons and outputs of heads tell good from bad, and whether tasks share
    them.

    Every sentence is read once (one in 32 twice, to scale the histograms). Sums are kept in float64 for each task, fold
    and unit, and no state is kept. The method follows Kryvosheieva et al. 2025 (arXiv 2512.03676): the top 1 % of units
    by |t|, and their overlap over cross-validation splits and between phenomena.

    `pairs` is a table from `interp.corpora.pairs`, or anything `interp.corpora.pairs.load` reads. So are
    control pairs, which have the task that they belong to as UID; `interp.corpora.controls.swapped` makes them for
    bundled tasks. A single table is taken for swapped words, and `{}` leaves them out.

    Raises ValueError for a task with fewer than six pairs per fold, which a permutation test at .05 needs; for a task
    without control pairs of each kind; if no unit differs between the two sentences of any pair, for example because
    they are read before they differ; and for values that are not finite. Raises the errors of
    `interp.corpora.pairs.load` and of `interp.probing.collect`.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=40)
        >>> found = study(model, pairs, control_pairs={}, bos=True, progress=False)
        >>> found.consistency["n_units"].tolist()
        [1344, 4608, 1152]
    """
    check_asked(options)
    check_model(model)
    source = minimal_pairs.read(pairs, tasks=options.tasks, limit=options.limit, **options.columns)
    for caveat in source.caveats:
        warn(caveat)
    control_pairs = _made_controls(source.table) if options.control_pairs is None else options.control_pairs
    reading: dict[str, Any] = {"position": options.position, "folds": options.folds, "bos": options.bos}
    units, settings = yield from unit_passes(model, source.table, control_pairs, **reading)
    metadata = provenance(model, settings, corpus=source.name, unused_columns=list(source.unused))
    return UnitStudy(provenance=metadata, **unit_tables(units, places(model), source.table))


def _made_controls(pairs: pd.DataFrame) -> dict[Swap, pd.DataFrame]:
    """The control pairs of bundled tasks. Warns if some task is not bundled."""
    controls = controls_of(pairs)
    if not controls:
        other = next(iter(set(pairs["UID"]) - set(bundled_tasks(pairs))))
        problem = f"these pairs have no control pairs, because the sentences of task {other!r} are not those of a "
        problem += "bundled task, so units of grammar cannot be told from units of any difference"
        warn(f"{problem}; for that, read bundled pairs, or give control_pairs to interp.units.study")
    return controls


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `study` with these options, without a model. The number of tokens is estimated as 4/3 of the
    words, plus one that is appended.

    Raises ValueError without pairs, and the errors of `interp.corpora.pairs.load` and `interp.models.shapes.shape`.
    """
    if data is None:
        raise ValueError("--pairs is missing; expected minimal pairs, which say how many sentences there are")
    chosen = UnitOptions.of(options)
    table = minimal_pairs.read(data, tasks=chosen.tasks, limit=chosen.limit, **chosen.columns).table
    n_tasks = table["UID"].nunique()
    if chosen.control_pairs is None:
        n_controls = len(get_args(Swap)) * (len(bundled_tasks(table)) == n_tasks)
    else:
        n_controls = len(chosen.control_pairs) if isinstance(chosen.control_pairs, Mapping) else 1
    n_mapped = n_tasks * (1 + n_controls)
    longest = max(round(len(sentence.split()) * 4 / 3) + 1 for sentence in sentences_of(table))
    read, disk = unit_cost(shape_with(name, options), n_mapped, longest, chosen.folds)
    lines = [f"units: {n_mapped:,} tasks and controls"]
    return Cost(passes=(read,), disk=disk, numbers={"n_mapped": n_mapped}, lines=lines)
