"""The whole of question 4, for one model and one table of minimal pairs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pandas as pd

from interp.analyses.probing.accuracy import LEAST_ACCURACY, ablation_effect
from interp.analyses.probing.claims import by_depth, gates_by_t, quarter
from interp.analyses.probing.contexts import NEURON_TOKENS, neuron_tokens
from interp.analyses.probing.findings import above_untrained, answer, beyond, concentrated, held, needed, some_general
from interp.analyses.probing.judgements import by_task, check_judged, judged, judged_cost, over_tasks, unjudged
from interp.analyses.probing.options import KS, ROTATIONS, ProbingOptions, Scaling, Score
from interp.analyses.probing.probes import pair_scores, probe
from interp.analyses.probing.rotations import rotations
from interp.analyses.probing.shared import GENERAL, TRANSFER, general, overlap, transfer, transfer_of_words
from interp.analyses.probing.states import States, collect, collect_cost, stored_type
from interp.analyses.probing.sweeps import Sweep, checked_options, shown_l0_strength, sweep
from interp.analyses.probing.untrained import BY_STATE, TWINS, beside, by_chance, largest_k, of_twins
from interp.corpora import pairs as minimal_pairs
from interp.corpora.pairs import PairTable, sentences_of
from interp.corpora.sentences import sentence_rows
from interp.corpora.splits import split_tasks
from interp.instruments.over_tasks import Units
from interp.models import untrained
from interp.models.shapes import shape_with
from interp.models.sites import Model, check_model
from interp.passes.budget import Cost, setup
from interp.passes.execution import Passes, asks
from interp.results.findings import Answer, Finding
from interp.results.result import provenance
from interp.support.checks import check_choice, warn, whole_number
from interp.support.choices import Several, listed

__all__ = ["ProbingStudy", "changes", "check_asked", "dry_run", "study"]

_ABLATED = 100  # the most test pairs per task
_TRAIN = 0.6  # of the sentences, as a dry run estimates
_VIEWED = 3  # the number of tasks whose tokens are shown


@dataclass(frozen=True, eq=False)
class ProbingStudy(Sweep):
    """The result of `study`: the tables of `sweep`, and tables for one state.

    - `tasks` (task, field, linguistics_term, n_pairs, bag_of_words, model_accuracy, n_judged, model_accuracy_test,
      n_judged_test): one row per task.
    - `judgements` (task, score, accuracy, low, high, n_pairs, difference±, p, p_adjusted): one row per task and score,
      with its difference from the score `sum`; see `minimal_pair_accuracy`.
    - `judgement_means` (score, accuracy, low, high, difference±, above, below, n_tasks): one row per score: means over
      tasks, with intervals as in `means`.
    - `means` (state, probe, accuracy, low, high, sd): one row per state and column of `hits`: its mean. The interval is
      Student's t: over phenomena if every task has a linguistics_term, with a mean over the tasks of each first,
      otherwise over tasks; there is none for fewer than five. That of a single task is over its test pairs.
    - `differences` (state, probe, against, difference, low, high, above, below, n_tasks): one row per state and two
      probes: the difference of their means.
    - `comparisons` (task, state, probe, against, difference, low, high, p, p_adjusted): the same for each task; see
      `interp.instruments.uncertainty.compared`.
    - `untrained` (task, state, probe, control, draw, accuracy): one row per task, probe and model: the model itself
      (control `none`) and three untrained ones, by draw.
    - `rotations` (task, state, control, draw, k, accuracy): one row per task, draw and number of dimensions.
    - `transfer` (train_task, test_task, state, method, l0_strength, accuracy, pair_accuracy): one row per two tasks and
      probe, with a bag of words too, which reads no state.
    - `general` (task, field, linguistics_term, state, trained_on, n_tasks, method, l0_strength, accuracy,
      pair_accuracy, n_open): one row per task and set of other tasks; see `interp.probing.shared.general`.
    - `overlap` (task_a, task_b, state, jaccard, expected, cosine): one row per two tasks.
    - `ablation` (task, state, mode, set, draw, n_neurons, magnitude, accuracy_before, accuracy_after, margin_before,
      margin_after, log_probability_before, log_probability_after, n_pairs): one row per task, mode, set of dimensions
      and draw; see `ablation_effect`.
    - `views` (task, state, sentence, position, token, score): one row per token of the first test pair of each of the
      three tasks on which the probes with `provenance["l0_strength"]` are most accurate.
    - `contexts` (dim, state, rank, activation, before, token, after, task, pair, sentence, position): one row per
      dimension that a sparse probe reads and token of the sentences: the 20 at which its magnitude is largest.
    - `hits` (dense_untrained, l0_untrained, topk_untrained): these columns too. In `probes`, the control `untrained` is
      the same architecture with random weights.
    - `equivalence` (untrained_accuracy): this column too. There is no ratio if `top_low` is not above it.

    `untrained` and all from `rotations` to `contexts` are at `provenance["state"]`.
    """

    analysis: ClassVar[str] = "probing"
    page: ClassVar[str | None] = "interp.analyses.probing.page"

    tasks: pd.DataFrame
    judgements: pd.DataFrame
    judgement_means: pd.DataFrame
    means: pd.DataFrame
    differences: pd.DataFrame
    untrained: pd.DataFrame
    rotations: pd.DataFrame
    comparisons: pd.DataFrame
    transfer: pd.DataFrame
    general: pd.DataFrame
    overlap: pd.DataFrame
    ablation: pd.DataFrame
    views: pd.DataFrame
    contexts: pd.DataFrame

    @property
    def answer(self) -> Answer | None:
        over = self.averaged_over.said if len(self.tasks) > 1 else "1 task"
        state = self.provenance["state"]
        n_dims = self.neurons["dim"].nunique()
        return answer(self.means, self.by_state, self.neurons_read, state, n_dims, over)

    @property
    def averaged_over(self) -> Units:
        """What the means of the study are over."""
        return Units.of(self.tasks["task"].tolist(), self.phenomenon_of)

    @property
    def findings(self) -> tuple[Finding, ...]:
        phenomena = self.phenomenon_of
        state, l0_strength = self.provenance["state"], self.provenance["l0_strength"]
        differences = self.differences[self.differences["state"] == state]
        agreement = self.agreement[(self.agreement["state"] == state) & (self.agreement["l0_strength"] == l0_strength)]
        findings = [*beyond(differences, phenomena), *above_untrained(self.untrained, differences, phenomena)]
        findings += concentrated(self.rotations, phenomena)
        findings += [*quarter(self.probes, phenomena), *by_depth(self.probes, l0_strength, phenomena)]
        findings += gates_by_t(agreement, self.neurons[self.neurons["state"] == state], phenomena)
        if not self.transfer.empty:
            across = self.transfer, l0_strength, phenomena
            findings += [*held(*across), *some_general(*across)]
        findings += needed(changes(self.ablation), phenomena)
        return tuple(findings)

    @property
    def phenomenon_of(self) -> dict[str, str]:
        """The phenomenon of each task, an empty string where it has none."""
        return dict(self.tasks.set_index("task")["linguistics_term"].fillna(""))

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        tables = {"by_state": (f"accuracy of probes by state, mean over tasks: {self.where}", self.by_state)}
        if not self.general.empty:
            tables["never_seen"] = (f"probes on tasks they have not seen: {self.where}", self.never_seen)
        removed = f"neurons removed at state {self.provenance['state']}: {self.where}"
        return tables | {"ablation": (removed, self.ablated)}

    @property
    def largest_k(self) -> float:
        """The largest k of the top-k probes; NaN if there are none."""
        return largest_k(self.probes)

    @property
    def by_state(self) -> pd.DataFrame:
        """Mean accuracies over tasks for each state: dense, sparse and largest-k probes, the controls, and words
        alone."""
        probes = self.probes
        sparse = self.provenance["l0_strength"]
        k = self.largest_k
        rows = probes[probes["l0_strength"].fillna(sparse).eq(sparse) & (probes["k"].isna() | probes["k"].eq(k))]
        means = rows.groupby(["method", "control", "state"])[["accuracy", "open_fraction"]].mean()
        columns: dict[str, Any] = {}
        for name, kind in BY_STATE.items():
            if kind in means.index:
                columns[name] = means.loc[kind, "accuracy"]
                if name.startswith("l0"):
                    columns[f"{name}_open"] = means.loc[kind, "open_fraction"]
        columns["bag_of_words"] = probes[probes["control"] == "none"].groupby("state")["bag_of_words"].mean()
        return pd.DataFrame(columns).rename_axis("state").reset_index()

    @property
    def ablated(self) -> pd.DataFrame:
        """Mean changes over tasks by mode and set, and the number of tasks in which the found neurons cost more than
        every matched set."""
        table = changes(self.ablation)
        out = _means(table, ["mode", "set"], ["n_neurons", "magnitude", "accuracy", "margin"]).rename(
            columns={"accuracy": "change"}
        )
        least = table.groupby(["mode", "task", "set"])["accuracy"].min().unstack().reindex(columns=["found", "matched"])
        worst = (least["found"] < least["matched"]).groupby("mode").sum()
        out["below_every_match"] = out["mode"].map(worst).where(out["set"] == "found")
        return out

    @property
    def neurons_read(self) -> pd.DataFrame:
        """The neurons that sparse probes read at the study's state, those read for the most tasks first: the number of
        tasks, and t, p and weight for the task in which the neuron separates good and bad sentences most."""
        read = self.neurons[(self.neurons["state"] == self.provenance["state"]) & (self.neurons["gate"] > 0)]
        read = read.dropna(subset="t")
        strongest = read.loc[
            read.groupby("dim")["t"].agg(lambda t: t.abs().idxmax()), ["dim", "task", "t", "p_adjusted", "weight"]
        ]
        strongest.insert(1, "read_by", strongest["dim"].map(read["dim"].value_counts()))
        return strongest.sort_values(["read_by", "dim"], ascending=[False, True], ignore_index=True)

    @property
    def never_seen(self) -> pd.DataFrame:
        """The accuracy of probes on tasks that they have not seen, as means over tasks by what they were trained on."""
        return _means(self.general, ["method", "trained_on"], ["accuracy", "pair_accuracy", "n_open"])


def _means(table: pd.DataFrame, by: list[str], measures: list[str]) -> pd.DataFrame:
    """Means over tasks by group, preceded by the number of tasks."""
    groups = table.groupby(by, sort=False)
    means = groups[measures].mean()
    means.insert(0, "n_tasks", groups["task"].nunique())
    return means.reset_index()


def changes(ablation: pd.DataFrame) -> pd.DataFrame:
    """The table `ablation` with the changes of accuracy and margin."""
    measures = ("accuracy", "margin")
    return ablation.assign(**{name: ablation[f"{name}_after"] - ablation[f"{name}_before"] for name in measures})


@asks(ProbingOptions)
def study(
    model: Model, pairs: pd.DataFrame | str | os.PathLike[str] | PairTable, options: ProbingOptions
) -> Passes[ProbingStudy]:
    """Collect states, fit probes with controls, and at one state study what tasks share and what ablation does.

    `pairs` is a table from `interp.corpora.pairs`, or anything `interp.corpora.pairs.load` reads. Pairs that the model
    cannot tell apart, or that are repeated, are left out; see `interp.corpora.splits.used_pairs`. The best state is the
    one at which the dense probes (or else all probes) are most accurate on the validation pairs, averaged over tasks.

    For everything else see `collect` and `sweep`. Transfer, general probe, overlap and ablation use λ = .2 (or the
    nearest of `l0_strengths`) and the first seed. They are left out if `l0` is not among the methods, and the first
    three also for a single task. Ablation uses at most 100 test pairs of each task. A task is used if the model itself
    gets at least .6 of its pairs right, and if its probe opens at least one gate and at most half of them.

    Raises the errors of the functions it uses, and ValueError for a state that is not among the states.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=20)
        >>> found = study(model, pairs, states=[6], methods=["dense"], controls=["none"], bos=True, progress=False)
        >>> found.probes["control"].tolist()  # beside the model stands one of the same kind with random weights
        ['none', 'untrained']
    """
    yield []  # its forward passes are its own
    check_asked(options)
    check_model(model)
    source = minimal_pairs.read(pairs, tasks=options.tasks, limit=options.limit, **options.columns)
    table = source.table
    for caveat in source.caveats:
        warn(caveat)
    phenomena = table.groupby("UID")["linguistics_term"].first().to_dict()
    splits = split_tasks(table, rows=sentence_rows(model, sentences_of(table), bos=options.bos))
    ks = [k for k in KS if k <= model.cfg.d_model] if options.ks is None else listed(options.ks)
    chosen = checked_options(model.cfg.d_model, ks=ks, **_swept(options))
    sparse = "l0" in chosen["methods"]
    l0_strength = shown_l0_strength(chosen["l0_strengths"])
    numbers = range(model.cfg.n_layers + 1) if options.states is None else listed(options.states)
    if options.state != "best" and options.state not in numbers:
        raise ValueError(f"state {options.state} is not among the states {', '.join(map(str, numbers))}")
    scoring: dict[str, Any] = {"whole_words": options.whole_words, "bos": options.bos}
    scores = get_args(Score)
    can_judge = check_judged(model, table, scores=scores, **scoring)
    reading = {"bos": options.bos, "progress": options.progress, "position": options.position}
    fitting: dict[str, Any] = {"scaling": options.scaling, "steps": int(options.steps)}
    probed = partial(_probed, table, options, reading | {"largest": False}, fitting)
    states, swept = _probed(table, options, reading | {"largest": sparse}, fitting, model, "", options.states, chosen)
    of_untrained = by_chance(chosen, l0_strength, states.width)
    twins = [probed(untrained(model), "untrained-", options.states, of_untrained)[1]]
    both = beside(swept, twins[0], phenomena)
    best = _best(swept.probes) if options.state == "best" else options.state
    for seed in range(1, TWINS):
        twins.append(probed(untrained(model, seed=seed), f"untrained-{seed}-", [best], of_untrained)[1])
    right = (yield from judged(model, table, scores=scores, **scoring)) if can_judge else unjudged(scores)
    tested = np.concatenate([split.test for split in splits.values()])
    tasks = _tasks(table, swept, right.assign(right=right["sum"], test=right["pair"].isin(tested)))
    able = tasks["task"][tasks["model_accuracy_test"] >= LEAST_ACCURACY].tolist() if sparse else []
    sparse_probes = [probe(swept, task, best) for task in able]
    removed = [candidate for candidate in sparse_probes if 1 <= len(candidate.dims) <= states.width // 2]
    viewed = [probe(swept, task, best) for task in _most_accurate(swept.probes, best, l0_strength)]
    details = swept.provenance | {"state": best, "l0_strength": l0_strength, "whole_words": options.whole_words}
    unused = list(source.unused)
    ablating: dict[str, Any] = {"limit": _ABLATED, "by_perplexity": options.by_perplexity, "progress": options.progress}
    draws = ROTATIONS if "rotation" in chosen["controls"] else 0
    return ProbingStudy(
        provenance=provenance(model, states.settings, corpus=source.name, unused_columns=unused, **details),
        **(swept.tables | both | _across_tasks(states, swept, best, l0_strength, fitting)),
        tasks=tasks,
        untrained=of_twins(swept, twins, best),
        rotations=rotations(states, best, draws=draws, progress=options.progress),
        judgements=by_task(right),
        judgement_means=over_tasks(right, phenomena),
        ablation=ablation_effect(model, table, removed, **ablating, **scoring),
        views=pair_scores(model, table.iloc[tested], viewed, bos=options.bos),
        contexts=_contexts(states, swept.neurons, best),
    )


def _probed(
    pairs: pd.DataFrame,
    options: ProbingOptions,
    reading: dict[str, Any],
    fitting: dict[str, Any],
    model: Model,
    name: str,
    numbers: Several[int] | None,
    sweep_options: dict[str, Any],
) -> tuple[States, Sweep]:
    """The states of a model and their probes, stored under a name if the study has a directory."""
    root = None if options.directory is None else Path(options.directory)
    states = collect(model, pairs, states=numbers, directory=root and root / f"{name}states", **reading)
    stored = root and root / f"{name}sweeps"
    return states, sweep(states, **sweep_options, **fitting, directory=stored, progress=options.progress)


def check_asked(options: ProbingOptions) -> None:
    """Raise ValueError or TypeError for options that are impossible for every model."""
    chosen = checked_options(ks=options.ks or (), **_swept(options))
    if "none" not in chosen["controls"] or not {"l0", "dense", "topk"} & set(chosen["methods"]):
        raise ValueError("a study needs control 'none' and one of the methods l0, topk, dense; without them use sweep")
    check_choice("scaling", options.scaling, get_args(Scaling))
    whole_number(options.steps, "steps", least=1)


def _swept(options: ProbingOptions) -> dict[str, Any]:
    """The options that `sweep` has too, but for ks, whose default depends on the model."""
    names = ("methods", "controls", "l0_strengths", "seeds")
    return {name: getattr(options, name) for name in names}


def _contexts(states: States, neurons: pd.DataFrame, state: int) -> pd.DataFrame:
    """The tokens at which neurons are largest, for the neurons that some sparse probe of a state reads."""
    if states.tokens is None:
        return pd.DataFrame(columns=NEURON_TOKENS)
    read = neurons.loc[(neurons["state"] == state) & (neurons["gate"] > 0), "dim"]
    return neuron_tokens(states, ((dim, state) for dim in sorted(read.unique())))


def _across_tasks(
    states: States, swept: Sweep, state: int, l0_strength: float, fitting: dict[str, Any]
) -> dict[str, pd.DataFrame]:
    """What tasks share at a state. The tables are empty for a single task, or without sparse probes."""
    neurons = swept.neurons[swept.neurons["state"] == state]
    tables = {"overlap": overlap(neurons)}
    if neurons["task"].nunique() < 2:
        return tables | {"transfer": pd.DataFrame(columns=TRANSFER), "general": pd.DataFrame(columns=GENERAL)}
    arguments = {"seed": swept.provenance["seeds"][0], **fitting}
    of_probes = transfer(states, state, l0_strengths=sorted({l0_strength, 1.0}), **arguments)
    of_words = transfer_of_words(states).assign(state=state)
    tables["transfer"] = pd.concat([of_probes, of_words], ignore_index=True)
    return tables | {"general": general(states, state, l0_strength=l0_strength, **arguments)}


def _best(probes: pd.DataFrame) -> int:
    plain = probes.query("control == 'none'")
    dense = plain.query("method == 'dense'")
    by_state = (plain if dense.empty else dense).groupby("state")["validation_accuracy"].mean()
    return int(str(by_state.idxmax()))


def _most_accurate(probes: pd.DataFrame, state: int, l0_strength: float) -> list[str]:
    """The tasks on which sparse probes that read at least one neuron are most accurate."""
    sparse = "method == 'l0' and control == 'none' and l0_strength == @l0_strength and state == @state and n_open > 0"
    ordered = probes.query(sparse).sort_values("accuracy", ascending=False, kind="stable")
    return ordered["task"].drop_duplicates().head(_VIEWED).tolist()


def _tasks(pairs: pd.DataFrame, swept: Sweep, judged: pd.DataFrame) -> pd.DataFrame:
    """The table `tasks`, from what is `right` among the pairs that were judged, and which of them are for `test`."""
    by_task = pairs.groupby("UID", sort=False)
    table = by_task[["field", "linguistics_term"]].first().assign(n_pairs=by_task.size())
    table["bag_of_words"] = swept.probes.groupby("task")["bag_of_words"].first()
    for name, part in {"": judged, "_test": judged[judged["test"]]}.items():
        right = part.groupby("task")["right"]
        table[f"model_accuracy{name}"] = right.mean()
        table[f"n_judged{name}"] = right.size()
    return table.rename_axis("task").reset_index()


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `study` with these options, without a model. Work at a single state (transfer, general
    probes, rotations, ablation) and dense probes are not counted. The number of tokens is estimated as 4/3 of the
    words, plus one that is appended.

    Raises ValueError without pairs, and the errors of `interp.corpora.pairs.load` and `interp.models.shapes.shape`.
    """
    if data is None:
        raise ValueError("--pairs is missing; expected minimal pairs, which say how many sentences there are")
    chosen = ProbingOptions.of(options)
    table = minimal_pairs.read(data, tasks=chosen.tasks, limit=chosen.limit, **chosen.columns).table
    size = shape_with(name, options)
    lengths = [round(len(sentence.split()) * 4 / 3) + 1 for sentence in sentences_of(table)]
    n_states = size.n_layers + 1 if chosen.states is None else len(listed(chosen.states))
    n_tasks = table["UID"].nunique()
    n_seeds = len(listed(chosen.seeds)) * ("l0" in listed(chosen.methods))
    controls = set(listed(chosen.controls))
    of_task = n_seeds * (len(listed(chosen.l0_strengths)) * len(controls - {"flip"}) + ("flip" in controls) + 1)
    one_state = 4 * len(lengths) * size.d_model
    twice = setup(name, options).copied
    stored = stored_type(size.dtype(options.get("dtype")), chosen.position)
    passes = collect_cost(size, lengths, n_states, stored=stored, twin=twice)
    disk = 2 * n_states * len(lengths) * size.d_model * stored.itemsize
    numbers = {
        "n_states": n_states, "n_tasks": n_tasks, "n_sentences": len(lengths), "n_tokens": sum(lengths),
        "columns": n_tasks * of_task, "states_bytes": disk,
    }  # fmt: skip
    lines = [
        f"{n_states} states of {size.d_model}; {n_tasks} task{'s' * (n_tasks > 1)}, {len(lengths):,} sentences, "
        f"about {sum(lengths):,} tokens, read by the model and {TWINS} untrained ones",
        f"L0 probes: {n_tasks * of_task:,} for each state, of {chosen.steps:,} steps",
    ]
    if size.why_no_head:
        lines.append(f"the model's own judgements: {size.why_no_head}")
    else:
        passes += judged_cost(size, max(lengths))
    # a state as collected, in parts, and rotated; weights, gates and moments of each column; dense probes in float64
    fitted = 4 * one_state + 4 * 12 * n_tasks * of_task * size.d_model + 8 * round(_TRAIN * one_state)
    return Cost(passes=tuple(passes), between=twice + fitted, disk=disk, numbers=numbers, lines=lines)
