"""All probes of a set of states: methods × tasks × λ or k × seeds × controls, one state at a time."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats
from tqdm.auto import tqdm

from interp.analyses.probing.columns import IN_PAPER, MEANINGS
from interp.analyses.probing.equivalence import random_sets
from interp.analyses.probing.fitting import Tick, check_l0_strengths, fit_dense, fit_sparse
from interp.analyses.probing.group import Group, dense_on, ranked, words_right
from interp.analyses.probing.options import KS, L0_STRENGTHS, METHODS, SEEDS, STEPS, Control, Method, Scaling
from interp.analyses.probing.rotations import haar
from interp.analyses.probing.states import States
from interp.corpora.splits import Split, of_equal_size, split_tasks, used_pairs
from interp.passes.checkpoint import Checkpoint, is_finished, kept_each
from interp.results.result import Result
from interp.support.checks import check_choice, check_choices, check_seed, check_table, warn, whole_number
from interp.support.choices import Several, listed

__all__ = ["SHOWN", "SHOWN_L0_STRENGTH", "Sweep", "check_neurons", "checked_options", "shown_l0_strength", "sweep"]
__dir__ = __all__.copy

_Parts: TypeAlias = Iterator[tuple[str, pd.DataFrame]]
SHOWN_L0_STRENGTH = 0.2  # the λ whose gates are in the table of neurons
SHOWN = {
    ("dense", "none"): "dense", ("l0", "none"): "l0", ("topk:welch", "none"): "topk",
    ("dense", "flip"): "dense_flipped", ("l0", "rotation"): "l0_rotated", ("topk:welch", "rotation"): "topk_rotated",
}  # fmt: skip
"""What each method with each control is called in `hits`."""


@dataclass(frozen=True, eq=False)
class Sweep(Result):
    """The result of `sweep`.

    - `probes` (task, state, method, l0_strength, k, seed, control, accuracy±, pair_accuracy±, validation_accuracy,
      bag_of_words, n_open, open_fraction, n_test, rms): one row per probe. Intervals are Wilson's
      (`interp.instruments.uncertainty.share_interval`).
    - `neurons` (task, state, dim, t, p_adjusted, gate, weight, mean, scale): one row per dimension: its t on the
      training pairs, and the `l0` probe with the first seed and λ = .2, or the nearest λ.
    - `random_k` (task, state, k, draw, accuracy): one row per draw of k dimensions from outside the top 1 %. k is 1, 2,
      4 … 32 times the number of the top for every task, with sizes in between if `equivalence` has a ratio for the
      task.
    - `equivalence` (task, state, ratio, low, high, censored, n_top, top_accuracy, top_low): one row per task and state:
      how many times as many random dimensions reach the accuracy of the top 1 % (⌊d/100⌋, at least one), according to
      an isotonic fit of the mean over 20 draws, on sizes that grow by factors of at most 1.25. It is 1 if equally many
      already do. The interval is from a joint bootstrap of test pairs and draws. The ratio is NaN if `top_low` is not
      above chance; where `censored`, it or `high` is only a lower bound.
    - `hits` (task, state, pair, dense, l0, topk, dense_flipped, l0_rotated, topk_rotated, bag_of_words): one row per
      test pair: the share of its two sentences that each probe gets right. Pairs that share a sentence are one
      observation: the first of them, with their mean. `l0` is at λ = .2 or the nearest, as a mean over seeds, and
      `topk` at the largest k. Values of probes that were not fitted are NaN.
    - `agreement` (task, state, l0_strength, spearman, spearman_max, auroc): one row per λ: the agreement of |t| with
      the gates.
    """

    analysis: ClassVar[str] = "sweep"
    columns: ClassVar = MEANINGS
    in_paper: ClassVar = IN_PAPER

    probes: pd.DataFrame
    neurons: pd.DataFrame
    random_k: pd.DataFrame
    equivalence: pd.DataFrame
    agreement: pd.DataFrame
    hits: pd.DataFrame


_COLUMNS = {
    "probes": ["task", "state", "method", "l0_strength", "k", "seed", "control", "accuracy", "accuracy_low",
               "accuracy_high", "pair_accuracy", "pair_accuracy_low", "pair_accuracy_high", "validation_accuracy",
               "bag_of_words", "n_open", "open_fraction", "n_test", "rms"],
    "neurons": ["task", "state", "dim", "t", "p_adjusted", "gate", "weight", "mean", "scale"],
    "random_k": ["task", "state", "k", "draw", "accuracy"],
    "equivalence": ["task", "state", "ratio", "low", "high", "censored", "n_top", "top_accuracy", "top_low"],
    "agreement": ["task", "state", "l0_strength", "spearman", "spearman_max", "auroc"],
    "hits": ["task", "state", "pair", *SHOWN.values(), "bag_of_words"],
}  # fmt: skip


def sweep(
    collected: States,
    *,
    tasks: Several[str] | None = None,
    states: Several[int] | None = None,
    methods: Several[Method] = METHODS,
    l0_strengths: Several[float | int] = L0_STRENGTHS,
    ks: Several[int] = KS,
    seeds: Several[int] = SEEDS,
    controls: Several[Control] = ("none", "flip"),
    scaling: Scaling = "standard",
    steps: int = STEPS,
    directory: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Sweep:
    """Fit every probe of every task and state, with all probes of a state as one batched problem.

    Pairs are split 60 : 20 : 20 into training, validation and test by a separate seed. Pairs that share a sentence stay
    together, and pairs that the model cannot tell apart, or that are repeated, are left out; see
    `interp.corpora.splits`. The test pairs give `accuracy` (whether the score is above 0) and `pair_accuracy` (whether
    good is above bad; equal scores count half). `bag_of_words` is the accuracy of an L2 logistic regression on word
    counts with the same split. There are two controls. `flip` swaps labels within half of the pairs, so that nothing
    can be learned except the sentences themselves. `rotation` fits `l0` and `topk` in a random orthogonal basis of the
    standardised states: a probe that needs equally many dimensions there reads a subspace and not particular neurons.
    (A dense probe is the same in every basis.)

    Args:
        tasks, states: the tasks and states to use. Default: all.
        l0_strengths: λ of `l0`.
        ks: k of `topk`. Values above the width are refused.
        controls: `"none"` (no control), `flip` (for `dense`, and for `l0` at λ = .2 or the nearest) and `rotation` (for
            `l0` and `topk`).
        seeds: the seeds for gates, weights and noise of `l0`. Each seed is a separate fit, side by side with others.
        scaling: `"standard"` subtracts the training mean and divides by the training SD. `"rms"` only divides, by one
            number per task and state: the root mean square of its training states over sentences and dimensions, so
            that λ and C mean the same at every depth. `"none"` leaves states as they are, as in the paper; the result
            then depends on the unit of the residual stream, and there is a warning. Without a mean of 0, a probe
            without intercept uses a dimension with a large mean as an intercept.
        directory: a directory that stores each finished state, to resume from.

    Warns if, on states that are not standardised, no gate opens for any task at some λ and state.

    Raises ValueError for a task with fewer than 10 groups of pairs that share no sentence, k above the width, λ outside
    (0, 1], missing methods or controls, unknown names, fewer steps than one, and a seed outside 0 … 2**63 − 1. Raises
    TypeError for k, seeds or steps that are not whole numbers.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=60)
        >>> states = interp.probing.collect(model, pairs, states=[6], bos=True, progress=False)
        >>> found = sweep(states, methods=["dense"], controls=["none"], progress=False)
        >>> found.probes["method"].unique().tolist()
        ['dense']
    """
    options = checked_options(
        collected.width, methods=methods, l0_strengths=l0_strengths, ks=ks, seeds=seeds, controls=controls
    )
    check_scaling(scaling)
    splits = split_tasks(collected.pairs, tasks, collected.rows)
    numbers = [whole_number(state, "state") for state in (collected.states if states is None else listed(states))]
    if not numbers:
        raise ValueError("states is empty; name at least one state, or leave it out for all of them")
    steps = whole_number(steps, "steps", least=1)
    parameters = dict(tasks=list(splits), **options, scaling=scaling, steps=steps)
    words = {task: words_right(collected.pairs, split) for task, split in splits.items()}
    bag_of_words = {task: float(right.mean()) for task, right in words.items()}
    settings = dict(states=collected.settings, **parameters, bag_of_words=bag_of_words)
    checkpoints = {state: Checkpoint.within(directory, f"sweep-{state}", settings) for state in numbers}
    unfinished = sum(checkpoint is None or not is_finished(checkpoint.path) for checkpoint in checkpoints.values())
    bases = {control == "rotation" for control in options["controls"]}
    work = unfinished * len(of_equal_size(splits)) * len(bases) * steps if "l0" in options["methods"] else 0
    with tqdm(total=work, unit="step", desc="fitting probes", disable=None if progress and work else True) as bar:
        make = partial(_tables, collected, splits, words, settings, bar.update)
        parts = kept_each([(checkpoint, partial(make, state)) for state, checkpoint in checkpoints.items()])
    merged = {}
    for name in _COLUMNS:
        merged[name] = pd.concat([part[name] for part in parts], ignore_index=True)
    if scaling != "standard":
        _warn_of_closed_gates(merged["probes"], merged["neurons"])
    for name in ("weight_hash", "position", "begins_with", "read_at"):
        parameters[name] = collected.settings.get(name)
    parameters["pair_counts"] = used_pairs(collected.pairs, collected.rows).counts
    return Sweep(provenance=parameters, **merged)


def checked_options(width: float = math.inf, **lists: Any) -> dict[str, Any]:
    """The lists among the options of `sweep`, by name.

    Raises ValueError for options that are impossible with states of this width (by default, of any width), and
    TypeError for k or seeds that are not whole numbers.
    """
    options = {name: listed(values) for name, values in lists.items()}
    check_choices("methods", options["methods"], get_args(Method))
    check_choices("controls", options["controls"], get_args(Control))
    for name in ("l0_strengths", "seeds"):
        if not options[name]:
            raise ValueError(f"{name} is empty; give at least one")
    seeds = [check_seed(seed) for seed in options["seeds"]]
    ks = [whole_number(k, "k") for k in options["ks"]]
    if "topk" in options["methods"] and not all(1 <= k <= width for k in ks):
        raise ValueError(f"ks must be {'1 or more' if width == math.inf else f'1 … {width}'} dimensions, found {ks}")
    options.update(l0_strengths=check_l0_strengths(options["l0_strengths"]), ks=ks, seeds=seeds)
    return options


def check_scaling(scaling: str) -> None:
    """Raise ValueError for an unknown scaling, and warn if the result depends on the unit of the residual stream."""
    check_choice("scaling", scaling, get_args(Scaling))
    if scaling == "none":
        problem = "states are neither standardised nor divided by their root mean square"
        depends = "which gates open, and the accuracy, depend on the unit of the residual stream"
        warn(f"{problem}: {depends}; scaling='rms' keeps the basis and removes that dependence")


def _warn_of_closed_gates(probes: pd.DataFrame, neurons: pd.DataFrame) -> None:
    """Warn if all gates of all tasks are closed although the state is not constant."""
    varies = neurons.groupby("state")["t"].agg(lambda t: t.abs().max() > 0)
    plain = probes[(probes["method"] == "l0") & (probes["control"] == "none")]
    maxima = plain.groupby(["l0_strength", "state"])["n_open"].max().reset_index()
    closed = maxima[(maxima["n_open"] == 0) & maxima["state"].map(varies)]
    if not closed.empty:
        cells = zip(closed["l0_strength"], closed["state"], strict=True)
        where = "; ".join(f"λ = {l0_strength:g} at state {state}" for l0_strength, state in cells)
        warn(f"no gate opens for {where}: these probes read nothing and are at chance; a larger λ opens more gates")


def shown_l0_strength(l0_strengths: Iterable[float]) -> float:
    """The λ whose gates are in the table of neurons: .2, or the nearest."""
    return min(l0_strengths, key=lambda l0_strength: abs(l0_strength - SHOWN_L0_STRENGTH))


def check_neurons(neurons: pd.DataFrame) -> None:
    """Raise ValueError for a table `neurons` in which a task and state does not have each dimension 0 … d − 1 once."""
    check_table(neurons, "neurons", ["task", "state", "dim", "gate", "weight"], ["task", "state", "dim"])
    width = neurons["dim"].max() + 1
    sizes = neurons.groupby(["task", "state"], sort=False).size()
    for (task, state), size in sizes[sizes != width].items():
        missing = f"{size} of the {width} dimensions of task {task!r} at state {state}"
        raise ValueError(f"neurons has {missing}; give the unmodified table of the sweep")


def _tables(
    states: States,
    splits: dict[str, Split],
    words: dict[str, Float[np.ndarray, " groups"]],
    settings: dict[str, Any],
    tick: Tick,
    state: int,
) -> dict[str, pd.DataFrame]:
    """All tables of one state. Tasks of the same size are fitted together."""
    vectors = states.load(state)
    controls = settings["controls"]
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in _COLUMNS}
    for subset, rotated in product(of_equal_size(splits), sorted({False, "rotation" in controls})):
        rotation = haar(states.width, 0) if rotated else None
        in_basis = [control for control in controls if (control == "rotation") == rotated]
        group = Group(vectors, subset, scaling=settings["scaling"], device=states.device, rotation=rotation)
        if not rotated:
            parts["hits"] += [_right(group, "bag_of_words", np.stack([words[task] for task in subset]))]
        for name, table in _fitted(group, in_basis, settings, tick):
            parts[name].append(table)
    nothing = pd.DataFrame({"task": pd.Series(dtype="str")})
    merged = {name: pd.concat(part or [nothing], ignore_index=True) for name, part in parts.items()}
    once = merged["hits"].drop_duplicates(["task", "pair", "kind"])
    wide = once.pivot(index=["task", "pair"], columns="kind", values="right").reset_index().rename_axis(columns=None)
    merged["hits"] = wide.sort_values("pair", ignore_index=True)
    merged["probes"]["bag_of_words"] = merged["probes"]["task"].map(settings["bag_of_words"])
    tables = {name: merged[name].assign(state=state).reindex(columns=columns) for name, columns in _COLUMNS.items()}
    tables["probes"] = tables["probes"].astype({"k": "Int64"})
    return tables


def _right(group: Group, kind: str, right: Float[np.ndarray, "tasks groups"]) -> pd.DataFrame:
    """One row per task and group of test pairs."""
    tasks = np.repeat(group.tasks, group.n_test)
    return pd.DataFrame({"task": tasks, "pair": group.test.ravel(), "kind": kind, "right": right.ravel()})


def _fitted(group: Group, controls: Sequence[Control], settings: dict[str, Any], tick: Tick) -> _Parts:
    """Tables of some controls in one basis, each with the name of the table that it is part of."""
    methods = settings["methods"]
    rotated = "rotation" in controls  # dense probes are the same in every basis
    if "l0" in methods and controls:
        yield from _sparse(group, controls, settings, tick)
    if "dense" in methods and controls and not rotated:
        weight = fit_dense(group.X, group.targets([(control, 0) for control in controls]))
        for i, control in enumerate(controls):
            yield "probes", group.rows(weight[:, i], control, method="dense")
            yield "hits", _right(group, SHOWN["dense", control], group.right(weight[:, i], control))
    if "topk" in methods:
        for basis in controls:
            if basis == "flip":
                continue
            order = ranked(group)
            for k in settings["ks"]:
                weight = dense_on(group, order[:, :k])
                yield "probes", group.rows(weight, basis, method="topk:welch", k=k)
                if k == max(settings["ks"]):
                    yield "hits", _right(group, SHOWN["topk:welch", basis], group.right(weight))
    if "random" in methods and not rotated:
        yield from zip(("random_k", "equivalence"), random_sets(group), strict=True)


def _sparse(group: Group, controls: Sequence[Control], settings: dict[str, Any], tick: Tick) -> _Parts:
    shown_strength = shown_l0_strength(settings["l0_strengths"])
    columns: list[tuple[Control, float, int]] = []
    for control in controls:
        strengths = [shown_strength] if control == "flip" else settings["l0_strengths"]
        columns += product([control], strengths, settings["seeds"])
    _, l0_strengths, seeds = zip(*columns, strict=True)
    y = group.targets([(control, seed) for control, _, seed in columns])
    fitted = fit_sparse(group.X, y, l0_strengths=l0_strengths, seeds=seeds, steps=settings["steps"], tick=tick)
    for i, (control, l0_strength, seed) in enumerate(columns):
        yield "probes", group.rows(fitted.coefficients[:, i], control, seed, method="l0", l0_strength=l0_strength)
    for control in controls:
        if control == "flip":
            continue
        mine = [i for i, column in enumerate(columns) if column[:2] == (control, shown_strength)]
        right = np.mean([group.right(fitted.coefficients[:, i]) for i in mine], axis=0)
        yield "hits", _right(group, SHOWN["l0", control], right)
    if "none" in controls:
        plain = {s: columns.index(("none", s, settings["seeds"][0])) for s in settings["l0_strengths"]}
        gates, weights = fitted.gate.cpu().numpy(), fitted.weight.cpu().numpy()
        p_adjusted = stats.false_discovery_control(group.p, axis=-1, method="bh")
        values = {
            "t": group.t, "p_adjusted": p_adjusted, "gate": gates[:, plain[shown_strength]],
            "weight": weights[:, plain[shown_strength]], "mean": group.mean, "scale": group.spread,
        }  # fmt: skip
        where = pd.MultiIndex.from_product([group.tasks, range(group.d)], names=["task", "dim"])
        flat = {name: part.ravel() for name, part in values.items()}
        yield "neurons", pd.DataFrame(flat, index=where).reset_index()
        ranks = stats.rankdata(np.abs(group.t), axis=1)  # |t| itself may be infinite
        tables = []
        for l0_strength, column in plain.items():
            measures = _agreement(ranks, gates[:, column])
            tables.append(pd.DataFrame(dict(task=group.tasks, l0_strength=l0_strength, **measures)))
        yield "agreement", pd.concat(tables, ignore_index=True)


def _agreement(
    ranks: Float[np.ndarray, "tasks d"], gate: Float[np.ndarray, "tasks d"]
) -> dict[str, Float[np.ndarray, " tasks"]]:
    """Spearman's correlation of |t|, given by its ranks, and the gates, its largest value given the gates' ties, and
    the AUROC of |t| for open gates."""
    d = gate.shape[1]
    is_open = gate > 0
    n_open = is_open.sum(1)
    above = (ranks * is_open).sum(1) - n_open * (n_open + 1) / 2  # Mann and Whitney's U
    x = ranks - (d + 1) / 2
    y = stats.rankdata(gate, axis=1) - (d + 1) / 2
    xx, yy = (x**2).sum(1), (y**2).sum(1)
    with np.errstate(invalid="ignore"):  # NaN where all values are equal
        spearman = (x * y).sum(1) / np.sqrt(xx * yy)
        auroc = above / (n_open * (d - n_open))
        spearman_max = np.sqrt(12 * yy / (d**3 - d))
    return {"spearman": spearman, "spearman_max": spearman_max, "auroc": auroc}
