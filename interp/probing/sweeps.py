"""All probes of a set of states: methods × tasks × λ or k × seeds × controls, layer by layer."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor
from tqdm.auto import tqdm

from interp.checks import check_seed, check_table, whole_number
from interp.models import find_device
from interp.probing.fitting import Sparse, fit_dense, fit_sparse
from interp.probing.group import Group
from interp.probing.options import KS, L0_STRENGTHS, STEPS, Control, Method, Selector
from interp.probing.selection import SELECTORS, adjusted_p, scores, top
from interp.probing.split import Split, bag_of_words, of_equal_size, split_tasks
from interp.probing.states import States
from interp.results import Result
from interp.run.checkpoint import Checkpoint, is_finished, kept_each

_Column = tuple[Control, float, int]
METHODS: tuple[Method, ...] = get_args(Method)
_TOP_SHARE = 0.01
_DRAWS = 10
SHOWN_L0_STRENGTH = 0.2  # λ whose gates the table of neurons holds


@dataclass(frozen=True, eq=False)
class Sweep(Result):
    """What `sweep` found.

    - `probes` (task, state, method, l0_strength, k, C, seed, control, accuracy, accuracy_low, accuracy_high,
      pair_accuracy, pair_accuracy_low, pair_accuracy_high, validation_accuracy, bag_of_words, n_open, open_fraction,
      expected_open, n_test): l0_strength is λ of `l0`, k belongs to `topk:selector` and C to `dense`, each missing for
      the other methods; low and high are 95 % bootstrap intervals over pairs.
    - `neurons` (task, state, dim, t, p_adjusted, gate, weight, mean, scale): Welch's t on the training pairs,
      Benjamini–Hochberg over the dimensions of a task and state, the `l0` probe of the first seed and λ = .2 (or the λ
      nearest), and the training mean and SD that it standardises with (SD ∞ for a constant dimension).
    - `random_k` (task, state, k, draw, accuracy): k dimensions drawn from outside the top 1 %.
    - `equivalence` (task, state, ratio, low, high, censored, n_top, top_accuracy): the least k whose random-k accuracy
      reaches that of the top 1 %, over their number, for the mean over draws; 95 % interval over draws. Where it is
      never reached the largest k tried stands; `censored` says that this befell the mean or a draw, so that ratio or
      high is a lower bound.
    - `agreement` (task, state, l0_strength, spearman, spearman_max, auroc): of |t| and the gates at each λ.
    """

    analysis: ClassVar[str] = "sweep"

    probes: pd.DataFrame
    neurons: pd.DataFrame
    random_k: pd.DataFrame
    equivalence: pd.DataFrame
    agreement: pd.DataFrame


_COLUMNS = {
    "probes": ["task", "state", "method", "l0_strength", "k", "C", "seed", "control", "accuracy", "accuracy_low",
               "accuracy_high", "pair_accuracy", "pair_accuracy_low", "pair_accuracy_high", "validation_accuracy",
               "bag_of_words", "n_open", "open_fraction", "expected_open", "n_test"],
    "neurons": ["task", "state", "dim", "t", "p_adjusted", "gate", "weight", "mean", "scale"],
    "random_k": ["task", "state", "k", "draw", "accuracy"],
    "equivalence": ["task", "state", "ratio", "low", "high", "censored", "n_top", "top_accuracy"],
    "agreement": ["task", "state", "l0_strength", "spearman", "spearman_max", "auroc"],
}  # fmt: skip


def sweep(
    collected: States,
    *,
    tasks: Sequence[str] | None = None,
    states: Sequence[int] | None = None,
    methods: Sequence[Method] = METHODS,
    selectors: Sequence[Selector] = ("welch",),
    l0_strengths: Sequence[float | int] = L0_STRENGTHS,
    ks: Sequence[int] = KS,
    seeds: Sequence[int] = (0,),
    controls: Sequence[Control] = ("none", "flip"),
    raw: bool = False,
    steps: int = STEPS,
    device: str | None = None,
    directory: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Sweep:
    """Fit every probe of every task and state; all of a state as one batched problem.

    Pairs are split 60 : 20 : 20 into training, validation and test, pair by pair, by a seed of their own; the test
    pairs give `accuracy` (score above 0 or not) and `pair_accuracy` (good above bad, equal scores count half). States
    are standardised with the training mean and SD unless `raw`. `bag_of_words` is the accuracy of an L2 logistic
    regression on word counts with the same split. Controls: `flip` swaps the labels within half of the pairs, so that
    there is nothing to learn but the sentences themselves; `rotation` fits `l0` and `topk` in a random orthogonal
    basis of the standardised states: a probe that needs as many dimensions there reads a subspace, no neurons (a
    dense probe is the same in every basis).

    Args:
        tasks, states: which; all by default.
        l0_strengths: λ of `l0`.
        ks: of `topk`; those above the width are refused. `random` doubles from the size of the top 1 %.
        controls: `"none"` is no control; `flip` is of `l0` and `dense`, `rotation` of `l0` and `topk`.
        seeds: of gates, weights and noise.
        raw: as the paper does; then a probe without intercept uses a dimension with a large mean for one.
        directory: keep each finished state here, and go on from there.

    Raises ValueError for a task of fewer than 10 pairs, k above the width, λ outside (0, 1], no method or control,
    unknown names, fewer steps than one, or a seed outside 0 … 2**63 − 1; TypeError for k, seeds or steps that are no
    whole numbers.
    """
    options = checked_options(collected.width, methods, controls, selectors, l0_strengths, ks, seeds)
    steps = whole_number(steps, "steps", least=1)
    splits = split_tasks(collected.pairs, tasks)
    numbers = list(collected.states) if states is None else [whole_number(state, "state") for state in states]
    if not numbers:
        raise ValueError("states is empty; name a state or more, or leave it out for all of them")
    settings = {
        "states": collected.settings, "tasks": list(splits), **options, "raw": raw, "steps": steps,
        "bag_of_words": {task: bag_of_words(collected.pairs, split) for task, split in splits.items()},
    }  # fmt: skip
    work = steps if "l0" in options["methods"] else 1
    kept = {state: Checkpoint.within(directory, f"sweep-{state}", settings) for state in numbers}
    left = sum(one is None or not is_finished(one.path) for one in kept.values())
    with tqdm(total=left * work, unit="step", desc="fitting probes", disable=None if progress else True) as bar:
        parts = kept_each(
            [
                (one, partial(_tables, collected, state, splits, settings, find_device(device), bar.update))
                for state, one in kept.items()
            ]
        )
    merged = {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in _COLUMNS}
    about = {key: collected.settings.get(key) for key in ("weight_hash", "of", "position")}
    return Sweep(
        provenance={key: value for key, value in settings.items() if key not in ("states", "bag_of_words")} | about,
        **merged,
    )


def checked_options(
    width: int,
    methods: Iterable[str],
    controls: Iterable[str],
    selectors: Iterable[str],
    l0_strengths: Iterable[float | int],
    ks: Iterable[int],
    seeds: Iterable[int],
) -> dict[str, Any]:
    """The options of `sweep` as lists, by name.

    Raises ValueError for what it cannot do on states of this width, TypeError for k or seeds that are not whole.
    """
    options: dict[str, list[Any]] = {"methods": list(methods), "selectors": list(selectors)}
    options |= {"l0_strengths": list(l0_strengths), "ks": [whole_number(k, "k") for k in ks]}
    options |= {"seeds": [check_seed(seed) for seed in seeds], "controls": list(controls)}
    for name, known in (("methods", METHODS), ("controls", get_args(Control)), ("selectors", SELECTORS)):
        if not options[name] or not set(options[name]) <= set(known):
            raise ValueError(f"expected {name} of {', '.join(known)}, found {options[name]}")
    if not options["l0_strengths"] or not all(0 < l0_strength <= 1 for l0_strength in options["l0_strengths"]):
        raise ValueError(f"l0_strengths (λ) must lie in (0, 1], at least one, found {options['l0_strengths']}")
    if not options["seeds"]:
        raise ValueError("seeds is empty; give at least one")
    if "topk" in options["methods"] and not all(1 <= k <= width for k in options["ks"]):
        raise ValueError(f"ks must be 1 … {width} dimensions, found {options['ks']}")
    return options | {"l0_strengths": [float(l0_strength) for l0_strength in options["l0_strengths"]]}


def check_neurons(neurons: pd.DataFrame) -> None:
    """Raise ValueError for a table `neurons` in which a task and state has not each dimension once, 0 … d − 1."""
    check_table(neurons, "neurons", ["task", "state", "dim", "gate", "weight"], ["task", "state", "dim"])
    width = neurons["dim"].max() + 1
    for (task, state), dims in neurons.groupby(["task", "state"], sort=False)["dim"]:
        if len(dims) != width:
            raise ValueError(
                f"neurons has {len(dims)} of the {width} dimensions of task {task!r} at state {state}; give the whole "
                "table, as the sweep made it"
            )


def _tables(
    states: States,
    state: int,
    splits: dict[str, Split],
    settings: dict[str, Any],
    device: torch.device,
    tick: Callable[[], object],
) -> dict[str, pd.DataFrame]:
    """All tables of one state; tasks of the same size are fitted together."""
    vectors = states.load(state)
    rows: dict[str, list[pd.DataFrame]] = {name: [] for name in _COLUMNS}
    quiet: Callable[[], object] = lambda: None  # noqa: E731
    for number, some in enumerate(of_equal_size(splits)):
        group = Group(vectors, some, raw=settings["raw"], device=device)
        found = _fitted(
            group, settings, [c for c in settings["controls"] if c != "rotation"], quiet if number else tick
        )
        if "rotation" in settings["controls"]:
            turned = Group(vectors, some, raw=settings["raw"], device=device, rotation=_rotation(states.width))
            found["probes"] += _rotated(turned, settings)
        for name, tables in found.items():
            rows[name] += tables
    nothing = pd.DataFrame({"task": pd.Series(dtype="str")})
    merged = {
        name: (pd.concat(parts, ignore_index=True) if parts else nothing).assign(state=state)
        for name, parts in rows.items()
    }
    merged["probes"]["bag_of_words"] = merged["probes"]["task"].map(settings["bag_of_words"])
    whole = {name: merged[name].reindex(columns=columns) for name, columns in _COLUMNS.items()}
    return whole | {"probes": whole["probes"].astype({"k": "Int64"})}


@cache
def _rotation(d: int) -> Float[np.ndarray, "d d"]:
    """A random orthogonal matrix, the same for every state and task."""
    return np.asarray(stats.ortho_group.rvs(d, random_state=0)) if d > 1 else np.ones((1, 1))


def _fitted(
    group: Group, settings: dict[str, Any], controls: Sequence[Control], tick: Callable[[], object]
) -> dict[str, list[pd.DataFrame]]:
    methods = settings["methods"]
    found: dict[str, list[pd.DataFrame]] = {"probes": []}
    if "l0" in methods and controls:
        columns = [(c, s, seed) for c in controls for s in settings["l0_strengths"] for seed in settings["seeds"]]
        probes = _sparse(group, columns, settings["steps"], tick)
        found["probes"] += _noted(group, columns, probes)
        if "none" in controls:
            plain = {s: columns.index(("none", s, settings["seeds"][0])) for s in settings["l0_strengths"]}
            found["neurons"] = [_neurons(group, probes, plain[min(plain, key=lambda s: abs(s - SHOWN_L0_STRENGTH))])]
            found["agreement"] = [_agreements(group, probes, plain)]
    if "dense" in methods and controls:
        y = torch.stack([group.labels(group.n, control) for control in controls], 1)
        weight = fit_dense(group.X, group.columns(y))
        for column, control in enumerate(controls):
            found["probes"].append(_note(group, "dense", control, weight[:, column], C=1.0))
    if "topk" in methods and "none" in controls:
        found["probes"] += _topk(group, settings, "none")
    if "random" in methods:
        found["random_k"], found["equivalence"] = ([table] for table in _random(group))
    return found


def _rotated(group: Group, settings: dict[str, Any]) -> list[pd.DataFrame]:
    """The sparse probes in a random basis; a dense probe is the same in every basis."""
    tables = []
    if "l0" in settings["methods"]:
        columns: list[_Column] = [("rotation", s, seed) for s in settings["l0_strengths"] for seed in settings["seeds"]]
        tables += _noted(group, columns, _sparse(group, columns, settings["steps"], lambda: None))
    return tables + (_topk(group, settings, "rotation") if "topk" in settings["methods"] else [])


def _sparse(group: Group, columns: Sequence[_Column], steps: int, tick: Callable[[], object]) -> Sparse:
    y = torch.stack([group.labels(group.n, control, seed) for control, _, seed in columns], 1)
    l0_strengths, seeds = [s for _, s, _ in columns], [seed for _, _, seed in columns]
    return fit_sparse(group.X, group.columns(y), l0_strengths=l0_strengths, seeds=seeds, steps=steps, tick=tick)


def _noted(group: Group, columns: Sequence[_Column], found: Sparse) -> list[pd.DataFrame]:
    return [
        _note(group, "l0", control, found.coefficients[:, i], found.gate[:, i], l0_strength=s, seed=seed).assign(
            expected_open=found.expected_open[:, i].mean(1).double().cpu().numpy()
        )
        for i, (control, s, seed) in enumerate(columns)
    ]


def _note(
    group: Group,
    method: str,
    control: Control,
    weight: Float[Tensor, "tasks d"],
    gate: Float[Tensor, "tasks d"] | None = None,
    *,
    l0_strength: float = np.nan,
    k: float | int = np.nan,
    C: float = np.nan,
    seed: int = 0,
) -> pd.DataFrame:
    n_open = ((weight if gate is None else gate) != 0).sum(1).cpu().numpy()
    return group.table(
        method=method, l0_strength=l0_strength, k=k, C=C, seed=seed, control=control, n_open=n_open,
        open_fraction=n_open / group.d, expected_open=np.nan, n_test=2 * group.n_test,
        **group.measured(weight, control, seed),
    )  # fmt: skip


def _neurons(group: Group, found: Sparse, column: int) -> pd.DataFrame:
    gates, weights = (part[:, column].cpu().numpy() for part in (found.gate, found.weight))
    tables = [
        pd.DataFrame(
            {"task": task, "dim": np.arange(group.d), "t": group.t[i], "p_adjusted": adjusted_p(group.p[i])}
            | {"gate": gates[i], "weight": weights[i], "mean": group.mean[i], "scale": group.spread[i]}
        )
        for i, task in enumerate(group.tasks)
    ]
    return pd.concat(tables, ignore_index=True)


def _agreements(group: Group, found: Sparse, columns: dict[float, int]) -> pd.DataFrame:
    return pd.DataFrame(
        {"task": task, "l0_strength": l0_strength} | _agreement(np.abs(group.t[i]), found.gate[i, column].cpu().numpy())
        for l0_strength, column in columns.items()
        for i, task in enumerate(group.tasks)
    )


def _topk(group: Group, settings: dict[str, Any], control: Control) -> list[pd.DataFrame]:
    tables = []
    for selector in settings["selectors"]:
        for k, dims in zip(settings["ks"], _chosen(group, selector, settings["ks"]), strict=True):
            tables.append(_note(group, f"topk:{selector}", control, _on(group, dims), k=k))
    return tables


def _chosen(group: Group, selector: Selector, ks: Sequence[int]) -> list[Int[np.ndarray, "tasks k"]]:
    """For each k, the dimensions that score highest in each task."""
    values = [scores(good, bad, selector) for good, bad in zip(group.good, group.bad, strict=True)]
    return [np.stack([np.flatnonzero(top(one, k)) for one in values]) for k in ks]


def _on(group: Group, dims: Int[np.ndarray, "tasks k"]) -> Float[Tensor, "tasks d"]:
    """Dense probes on some dimensions of each task."""
    index = torch.from_numpy(dims).to(group.X.device)
    part = group.X.gather(2, index[:, None].expand(-1, group.X.shape[1], -1))
    y = group.columns(group.labels(group.n)[:, None])
    weight = torch.zeros(len(group.tasks), group.d, dtype=torch.float64, device=group.X.device)
    return weight.scatter_(1, index, fit_dense(part, y)[:, 0])


def _random(group: Group) -> tuple[pd.DataFrame, pd.DataFrame]:
    n_top = max(1, round(_TOP_SHARE * group.d))
    (best,) = _chosen(group, "welch", [n_top])
    reached = group.accuracy(_on(group, best))
    rest = np.stack([np.setdiff1d(np.arange(group.d), dims) for dims in best])
    ks = [n_top * 2**i for i in range(12) if n_top * 2**i <= rest.shape[1]]
    accuracy = np.zeros((len(ks), _DRAWS, len(group.tasks)))
    rows = []
    for draw in range(_DRAWS):
        order = np.random.default_rng(draw).permuted(rest, axis=1)
        for i, k in enumerate(ks):
            accuracy[i, draw] = group.accuracy(_on(group, np.sort(order[:, :k], axis=1)))
            rows.append(group.table(k=k, draw=draw, accuracy=accuracy[i, draw]))
    equivalence = []
    for number, task in enumerate(group.tasks):
        ratios, never = zip(
            *(_first(column, ks, reached[number], n_top) for column in accuracy[:, :, number].T), strict=True
        )
        middle, censored = _first(accuracy[:, :, number].mean(1), ks, reached[number], n_top)
        low, high = np.quantile(ratios, [0.025, 0.975])
        equivalence.append((task, middle, low, high, censored or any(never), n_top, reached[number]))
    columns = ["task", "ratio", "low", "high", "censored", "n_top", "top_accuracy"]
    return pd.concat(rows, ignore_index=True), pd.DataFrame(equivalence, columns=columns)


def _first(accuracy: Float[np.ndarray, " ks"], ks: Sequence[int], wanted: float, n_top: int) -> tuple[float, bool]:
    """The least k that reaches the wanted accuracy over the number at the top; whether none did."""
    reached = np.flatnonzero(accuracy >= wanted)
    return (ks[-1] if not len(reached) else ks[reached[0]]) / n_top, not len(reached)


def _agreement(t: Float[np.ndarray, " d"], gate: Float[np.ndarray, " d"]) -> dict[str, float]:
    """Spearman of |t| and the gates, its largest value under the gates' ties, and the AUROC of |t| for open gates."""
    _, counts = np.unique(gate, return_counts=True)
    n = float(len(gate))
    most = np.sqrt(max(0.0, 1 - ((counts**3.0) - counts).sum() / (n**3 - n)))
    is_open = gate > 0
    rank = stats.rankdata(t)  # of t itself, which may be infinite
    auroc = roc_auc_score(is_open, rank) if 0 < is_open.sum() < n else np.nan
    spearman = stats.spearmanr(rank, gate).statistic if np.ptp(gate) > 0 and np.ptp(rank) > 0 else np.nan
    return {"spearman": float(spearman), "spearman_max": float(most), "auroc": float(auroc)}
