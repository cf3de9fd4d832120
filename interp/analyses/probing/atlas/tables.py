"""The atlas of a model: which units tell good sentences from bad in each task, and which of them tasks share."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy import sparse, stats

from interp.analyses.probing.atlas.findings import atlas_findings
from interp.analyses.probing.atlas.reading import FOLDS, LEVEL, Controls, TaskKey, unit_passes
from interp.analyses.probing.atlas.sums import Of, Place, places
from interp.analyses.probing.atlas.units import TaskUnits, kinds, shared
from interp.analyses.probing.columns import MEANINGS
from interp.analyses.probing.equivalence import n_top
from interp.corpora.pairs import COLUMNS, check_pairs, name_of
from interp.instruments.over_tasks import left_out
from interp.models.sites import Model, check_model
from interp.passes.execution import Passes, runs
from interp.results.findings import Finding
from interp.results.result import Result, provenance
from interp.support.choices import Bos, Position

__all__ = ["Atlas", "atlas_tables", "map_units", "phenomena"]

_PERMUTATIONS = 1_000

_CONSISTENCY = ["task", "control", "of", "overlap", "expected", "null", "null_high", "p", "p_adjusted"]
_CONSISTENCY += ["n_units", "n_top", "n_pairs"]
_UNITS = ["task", "control", "of", "at", "unit", "t", "auc", "auc_error", "parts"]
_SHARED = ["of", "task_a", "control_a", "task_b", "control_b", "overlap", "expected", "null", "null_high", "p"]
_PHENOMENA = ["of", "by", "within", "between", "difference", "low", "high", "p", "n_tasks", "n_groups"]
_SEPARABILITY = ["task", "control", "of", "at", "unit", "auc", "low", "high", "error", "pair_share", "pair_low"]
_SEPARABILITY += ["pair_high", "n_pairs"]
_SIMILARITY = ["at", "task_a", "control_a", "task_b", "control_b", "cosine", "null_high"]

Found: TypeAlias = Mapping[TaskKey, TaskUnits]


@dataclass(frozen=True, eq=False)
class Atlas(Result):
    """The result of `map_units`.

    A unit belongs to a place (`at`). Units are dimensions of the `residual` stream at a hidden state, MLP `neurons` of
    a block after the activation, or outputs z of a block's attention `heads`, with the dimensions of all heads side by
    side (`of`). The top units are the 1 % of each kind, over all places, with the largest |t| of the differences within
    pairs. `control` is `none` for
    a task, and `words` or `numbers` for its control that is not grammatical.

    - `consistency` (task, control, of, overlap, expected, null, null_high, p, p_adjusted, n_units, n_top,
      n_pairs): the share of the top units by the pairs of one fold that are also in the top by all other pairs, as a
      mean over folds. `expected` is n_top /
      n_units, for random sets. `null` is the mean with labels flipped at random within pairs, and `null_high` the 95th
      percentile. p is (1 + flips that reach the overlap) / (1 + flips), adjusted over tasks (Benjamini and Hochberg).
    - `units` (task, control, of, at, unit, t, auc, auc_error, parts): the top units by t on all pairs,
      largest first. `auc` is as in `separability`, but on the pairs that chose the unit. `parts` is the share of folds,
      and of their complements, whose top contains the unit.
    - `shared_units` (of, task_a, control_a, task_b, control_b, overlap, expected, null, null_high, p): the same overlap
      between two tasks, where the top of one task by a fold is compared with the top of the other by all other folds.
    - `phenomena` (of, by, within, between, difference, low, high, p, n_tasks, n_groups): the mean overlap of two tasks
      of the same group (`by` field or linguistics_term) and of different groups. The 95 % interval of the difference is
      by a jackknife that leaves out one task at a time, from eight tasks on, and p by permuting the groups of tasks.
    - `separability` (task, control, of, at, unit, auc, low, high, error, pair_share, pair_low, pair_high, n_pairs): for
      the single best unit, chosen on all folds but one and measured on that one (`at` and `unit` are those on all
      pairs). `auc` is P(good > bad) over all sentences. It is computed from histograms, is at most `error` away from
      that of the values, and has DeLong's 95 % interval, which does not include `error`. `pair_share` is the share of
      pairs in which the unit is larger for the good sentence (or smaller, if it is so in the other folds), with
      Wilson's interval.
    - `similarity` (at, task_a, control_a, task_b, control_b, cosine, null_high): the cosine between the mean
      differences (good minus bad) of two tasks in the residual stream at a hidden state; for a task and itself, between
      folds and their complements. `null_high` is the 95th percentile of |cosine| with labels flipped.
    """

    analysis: ClassVar[str] = "atlas"
    columns: ClassVar = MEANINGS

    consistency: pd.DataFrame
    units: pd.DataFrame
    shared_units: pd.DataFrame
    phenomena: pd.DataFrame
    separability: pd.DataFrame
    similarity: pd.DataFrame

    @property
    def found_again(self) -> pd.DataFrame:
        """Means over tasks of `consistency`, and the number of tasks on which it is above its null at a p of .05."""
        consistency = self.consistency.assign(above=self.consistency["p"] <= LEVEL, n_tasks=1)
        groups = consistency.groupby(["of", "control"], sort=False)
        means = groups[["overlap", "expected", "null"]].mean()
        return means.join(groups[["above", "n_tasks"]].sum()).reset_index()

    @property
    def findings(self) -> tuple[Finding, ...]:
        return atlas_findings(self, {})


@runs
def map_units(
    model: Model,
    pairs: pd.DataFrame,
    *,
    controls: Controls | None = None,
    position: Position | None = None,
    folds: int = FOLDS,
    bos: Bos = "auto",
    progress: bool = True,
    directory: str | os.PathLike[str] | None = None,
) -> Passes[Atlas]:
    """Find which residual dimensions, MLP neurons and outputs of heads tell good from bad, and whether tasks share
    them.

    Every sentence is read once (one in 32 twice, to scale the histograms). Sums are kept in float64 for each task, fold
    and unit, and no state is kept. The method follows Kryvosheieva et al. 2025 (arXiv 2512.03676): the top 1 % of units
    by |t|, and their overlap over cross-validation splits and between phenomena.

    Args:
        pairs: a table from `interp.corpora.pairs`.
        controls: pairs whose difference is not grammatical, with the task that they belong to as UID
            (`interp.corpora.controls.swapped` makes them for the bundled tasks); or several kinds, by what is swapped:
            `{"words": table, "numbers": table}`.
        position: where a sentence is read; see `collect`.
        folds: the number of folds of each task's pairs.
        bos: see `collect`.

    Raises ValueError for a task with fewer than six pairs per fold, which a permutation test at .05 needs; for a task
    without controls of each kind; if no unit differs between the two sentences of any pair, for example because they
    are read before they differ; and for values that are not finite. Raises the errors of `collect`.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=40)
        >>> found = map_units(model, pairs, bos=True, progress=False)
        >>> found.consistency["n_units"].tolist()
        [1344, 4608, 1152]
    """
    check_model(model)
    check_pairs(pairs)
    units, settings = yield from unit_passes(model, pairs, controls, position=position, folds=folds, bos=bos)
    metadata = provenance(model, settings, corpus=name_of(pairs))
    return Atlas(provenance=metadata, **atlas_tables(units, places(model), pairs))


def atlas_tables(
    units: Found | None, where: Sequence[Place] = (), pairs: pd.DataFrame | None = None
) -> dict[str, pd.DataFrame]:
    """The tables of `Atlas`, which are empty if nothing was read."""
    names = {
        "consistency": _CONSISTENCY, "units": _UNITS, "shared_units": _SHARED, "phenomena": _PHENOMENA,
        "separability": _SEPARABILITY, "similarity": _SIMILARITY,
    }  # fmt: skip
    if units is None or pairs is None:
        return {name: pd.DataFrame(columns=columns) for name, columns in names.items()}
    sizes = {kind.of: len(kind.at) for kind in kinds(list(where))}
    shared_units = _shared_units(units, sizes)
    groups = pairs.groupby("UID", sort=False)[list(COLUMNS[4:])].first()
    top_units: list[pd.DataFrame] = []
    separability: list[dict[str, object]] = []
    for key, summary in units.items():
        top_units += [table.assign(**key._asdict()) for table in summary.units]
        separability += [key._asdict() | row for row in summary.separability]
    tables = {
        "consistency": _consistency(units, sizes),
        "units": pd.concat(top_units),
        "shared_units": shared_units,
        "phenomena": phenomena(shared_units, groups),
        "separability": pd.DataFrame(separability),
        "similarity": _similarity(units),
    }
    return {name: tables[name].reindex(columns=columns).reset_index(drop=True) for name, columns in names.items()}


def _beside_null(draws: Float[np.ndarray, " draws"]) -> dict[str, float]:
    """The null of a value, which comes first, from the same with flipped labels: mean, 95th percentile, and p."""
    value, null = draws[0], draws[1:]
    p = (1 + (null >= value).sum()) / (1 + len(null))
    return {"overlap": value, "null": null.mean(), "null_high": np.quantile(null, 1 - LEVEL), "p": p}


def _consistency(units: Found, sizes: Mapping[Of, int]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for key, summary in units.items():
        n_pairs = {str(row["of"]): row["n_pairs"] for row in summary.separability}
        for kind, size in sizes.items():
            sets = summary.sets[kind]
            draws = shared(sets[:, 0], sets[:, 1]).mean(0)
            n = n_top(size)
            labels = {"of": kind, "n_units": size, "n_top": n, "expected": n / size}
            rows.append(key._asdict() | labels | _beside_null(draws) | {"n_pairs": n_pairs[kind]})
    table = pd.DataFrame(rows)
    return table.assign(p_adjusted=table.groupby(["control", "of"])["p"].transform(_adjusted))


def _adjusted(p: pd.Series) -> Any:
    return stats.false_discovery_control(p, method="bh")


def _shared_units(units: Found, sizes: Mapping[Of, int]) -> pd.DataFrame:
    keys = list(units)
    tables = []
    a, b = np.triu_indices(len(keys), 1)
    names = {"task_a": [keys[i].task for i in a], "control_a": [keys[i].control for i in a]}
    names |= {"task_b": [keys[i].task for i in b], "control_b": [keys[i].control for i in b]}
    for kind, size in sizes.items():
        sets = np.stack([summary.sets[kind] for summary in units.values()])  # [task, fold, part, draw, top]
        draws = np.stack([_overlaps(sets[:, :, :, draw], size)[a, b] for draw in range(sets.shape[3])], 1)
        if len(a):
            measured = pd.DataFrame([_beside_null(row) for row in draws])
            tables.append(pd.DataFrame(names).assign(of=kind, expected=n_top(size) / size, **measured))
    if not tables:
        return pd.DataFrame(columns=_SHARED)
    return pd.concat(tables, ignore_index=True)


def _overlaps(sets: Int[np.ndarray, "task fold 2 top"], size: int) -> Float[np.ndarray, "task task"]:
    """The share that the top of one task by a fold has in common with the top of another task by all other folds, as a
    mean over folds and both directions."""
    total = np.zeros((len(sets), len(sets)))
    for first, second in ((sets[:, fold, 0], sets[:, fold, 1]) for fold in range(sets.shape[1])):
        total += (_indicators(first, size) @ _indicators(second, size).T).toarray()
    return (total + total.T) / (2 * sets.shape[1] * sets.shape[3])


def _indicators(sets: Int[np.ndarray, "task top"], size: int) -> Any:
    task, place = np.nonzero(sets >= 0)
    return sparse.csr_array((np.ones(len(task)), (task, sets[task, place])), shape=(len(sets), size))


def phenomena(shared_units: pd.DataFrame, groups: pd.DataFrame) -> pd.DataFrame:
    """Do tasks of one group share more units than tasks of different groups? The table `phenomena`, see `Atlas`.

    Args:
        shared_units: the table of that name; controls are left out.
        groups: a table with field and linguistics_term, one row per task, indexed by its name.

    Examples:
        >>> shared_units = pd.DataFrame({"of": "heads", "task_a": ["a", "a", "b"], "task_b": ["b", "c", "c"]})
        >>> shared_units = shared_units.assign(control_a="none", control_b="none", overlap=[0.5, 0.1, 0.2])
        >>> groups = pd.DataFrame({"field": ["syntax", "syntax", "semantics"]}, index=["a", "b", "c"])
        >>> phenomena(shared_units, groups)[["within", "between"]].round(2).to_dict("records")
        [{'within': 0.5, 'between': 0.15}]
    """
    grammar = shared_units[(shared_units["control_a"] == "none") & (shared_units["control_b"] == "none")]
    rows: list[dict[str, Any]] = []
    for kind, part in grammar.groupby("of", sort=False):
        wide = part.pivot(index="task_a", columns="task_b", values="overlap").reindex(groups.index, axis=0)
        once = wide.reindex(groups.index, axis=1).to_numpy(dtype=np.float64)
        matrix = np.where(np.isnan(once), once.T, once)
        for by in groups:
            rows += _contrast(matrix, groups[by].fillna("").to_numpy(), {"of": kind, "by": by})
    return pd.DataFrame(rows, columns=_PHENOMENA)


def _contrast(
    matrix: Float[np.ndarray, "task task"], labels: np.ndarray, keys: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    """The row of one grouping, or none if no two tasks are in the same group, or all are."""
    labelled = labels != ""
    codes = pd.factorize(labels[labelled])[0]
    matrix = np.nan_to_num(matrix[np.ix_(labelled, labelled)])
    n = len(codes)
    same_group = codes[:, None] == codes
    groups = [same_group & ~np.eye(n, dtype=bool), ~same_group]
    if not all(cells.any() for cells in groups):
        return
    within, between = (float(matrix[cells].mean()) for cells in groups)
    distinct = ~np.eye(n, dtype=bool)
    without = [_weighted(matrix, cells, distinct.astype(np.float64)) for cells in groups]
    reach = left_out(without[0] - without[1])
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(n), (_PERMUTATIONS, 1)), axis=1)
    permuted = matrix[orders[:, :, None], orders[:, None]]
    gaps = permuted[:, groups[0]].mean(1) - permuted[:, groups[1]].mean(1)
    p = (1 + (gaps >= within - between - 1e-12).sum()) / (1 + _PERMUTATIONS)
    yield keys | {
        "within": within, "between": between, "difference": within - between, "low": within - between - reach,
        "high": within - between + reach, "p": p,
        "n_tasks": n, "n_groups": int(codes.max()) + 1,
    }  # fmt: skip


def _weighted(
    matrix: Float[np.ndarray, "task task"],
    cells: Bool[np.ndarray, "task task"],
    weights: Float[np.ndarray, "draw task"],
) -> Float[np.ndarray, " draw"]:
    """The mean of some cells, weighted by the weights of their row and column; NaN if they are all 0."""
    sums, times = (((weights @ values) * weights).sum(1) for values in (np.where(cells, matrix, 0.0), cells * 1.0))
    return np.divide(sums, times, out=np.full(len(weights), np.nan), where=times > 0)


def _similarity(units: Found) -> pd.DataFrame:
    keys = list(units)
    rows = []
    for state in next(iter(units.values())).difference:
        differences = [summary.difference[state] for summary in units.values()]
        vectors = np.stack(differences, axis=1).astype(np.float64)  # [draw, task, d]
        cosines = _cosines(vectors, vectors)
        high = np.quantile(np.abs(cosines[1:]), 1 - LEVEL, axis=0)  # NaN where no difference is left
        by_task = [summary.parts[state] for summary in units.values()]
        parts = np.stack(by_task, axis=1).astype(np.float64)  # [fold, task, part, d]
        by_fold = [np.diagonal(_cosines(fold[:, 0][None], fold[:, 1][None])[0]) for fold in parts]
        itself = np.mean(by_fold, axis=0)
        for i, j in combinations_with_replacement(range(len(keys)), 2):
            cosine, null = (itself[i], np.nan) if i == j else (cosines[0, i, j], high[i, j])
            rows.append((state, *keys[i], *keys[j], cosine, null))
    return pd.DataFrame(rows, columns=_SIMILARITY)


def _cosines(
    a: Float[np.ndarray, "draw task d"], b: Float[np.ndarray, "draw task d"]
) -> Float[np.ndarray, "draw task task"]:
    """Cosines of all pairs; NaN for a vector of zeros."""
    with np.errstate(invalid="ignore"):
        a, b = (values / np.linalg.norm(values, axis=2, keepdims=True) for values in (a, b))
    return np.asarray(a @ b.transpose(0, 2, 1))
