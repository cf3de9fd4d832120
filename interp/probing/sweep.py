"""All probes of a set of states: methods × tasks × strengths × seeds × controls, layer by layer."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor
from tqdm.auto import tqdm

from interp.probing.fitting import STEPS, fit_dense, fit_sparse
from interp.probing.selection import SELECTORS, Selector, adjusted_p, scores, top, welch
from interp.probing.split import Split, bag_of_words, of_equal_size, split_tasks
from interp.probing.states import States
from interp.results import Result, replacing_directory

Method = Literal["l0", "topk", "random", "dense"]
Control = Literal["none", "flip"]
METHODS: tuple[Method, ...] = ("l0", "topk", "random", "dense")
STRENGTHS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
KS = (1, 2, 5, 10, 20, 40)
_TOP_SHARE = 0.01
_DRAWS = 10
_SHOWN_STRENGTH = 0.2  # whose gates the table of neurons holds


@dataclass(frozen=True, eq=False)
class Sweep(Result):
    """What `sweep` found.

    - `probes` (task, state, method, strength, seed, control, accuracy, pair_accuracy, bag_of_words, n_open,
      open_fraction, expected_open, n_test): strength is λ of `l0`, k of `topk:selector`, C of `dense`.
    - `neurons` (task, state, dim, t, p_adjusted, gate, weight): Welch's t on the training pairs, Benjamini–Hochberg
      over the dimensions of a task and state, and the `l0` probe of the first seed and λ = .2 (or the λ nearest).
    - `random_k` (task, state, k, draw, accuracy): k dimensions drawn from outside the top 1 %.
    - `equivalence` (task, state, ratio, low, high, censored): the least k whose random-k accuracy reaches that of the
      top 1 %, over their number; 95 % interval over draws; where none reaches it the largest k tried, a lower bound.
    - `agreement` (task, state, strength, spearman, spearman_max, auroc): of |t| and the gates.
    """

    analysis: ClassVar[str] = "probing"

    probes: pd.DataFrame
    neurons: pd.DataFrame
    random_k: pd.DataFrame
    equivalence: pd.DataFrame
    agreement: pd.DataFrame


_COLUMNS = {
    "probes": ["task", "state", "method", "strength", "seed", "control", "accuracy", "pair_accuracy", "bag_of_words",
               "n_open", "open_fraction", "expected_open", "n_test"],
    "neurons": ["task", "state", "dim", "t", "p_adjusted", "gate", "weight"],
    "random_k": ["task", "state", "k", "draw", "accuracy"],
    "equivalence": ["task", "state", "ratio", "low", "high", "censored"],
    "agreement": ["task", "state", "strength", "spearman", "spearman_max", "auroc"],
}  # fmt: skip


def sweep(
    states: States,
    *,
    tasks: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    methods: Sequence[Method] = METHODS,
    selectors: Sequence[Selector] = ("welch",),
    strengths: Sequence[float | int] = STRENGTHS,
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
    are standardised with the training mean and SD unless `raw`. The control `flip` swaps the labels within half of the
    pairs: there is nothing to learn but the sentences themselves. `bag_of_words` is the accuracy of an L2 logistic
    regression on word counts with the same split.

    Args:
        tasks, layers: which; all by default.
        strengths: λ of `l0`.
        ks: of `topk`; those above the width are refused. `random` doubles from the size of the top 1 %.
        controls: of `l0` and `dense`.
        seeds: of gates, weights and noise.
        raw: as the paper does; then a probe without intercept uses a dimension with a large mean for one.
        directory: keep each finished state here, and go on from there.

    Raises ValueError for a task of fewer than 10 pairs, k above the width, λ outside (0, 1], no method or control, or
    unknown names.
    """
    for name, given, known in (
        ("methods", methods, METHODS), ("controls", controls, get_args(Control)), ("selectors", selectors, SELECTORS),
    ):  # fmt: skip
        if not given or not set(given) <= set(known):
            raise ValueError(f"expected {name} of {', '.join(known)}, found {list(given)}")
    splits = split_tasks(states.pairs, tasks)
    if "topk" in methods and not all(1 <= k <= states.width for k in ks):
        raise ValueError(f"ks must be 1 … {states.width} dimensions, found {list(ks)}")
    numbers = list(states.states if layers is None else layers)
    settings = {
        "states": states.settings, "tasks": list(splits), "methods": list(methods), "selectors": list(selectors),
        "strengths": [float(s) for s in strengths], "ks": list(ks), "seeds": list(seeds), "controls": list(controls),
        "raw": raw, "steps": steps,
    }  # fmt: skip
    words = {task: bag_of_words(states.pairs, split) for task, split in splits.items()}
    work = steps if "l0" in methods else 1
    parts: list[dict[str, pd.DataFrame]] = []
    with tqdm(total=len(numbers) * work, unit="step", disable=None if progress else True) as bar:
        for state in numbers:
            bar.set_description(f"state {state}")
            kept = None if directory is None else Path(directory) / f"sweep-{state}"
            tables = None if kept is None else _read_kept(kept, settings)
            if tables is None:
                tables = _tables(states, state, splits, words, settings, torch.device(device or "cpu"), bar.update)
                if kept is not None:
                    _keep(kept, settings, tables)
            parts.append(tables)
            bar.n = len(parts) * work
            bar.refresh()
    merged = {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in _COLUMNS}
    return Sweep(provenance={key: value for key, value in settings.items() if key != "states"}, **merged)


def _read_kept(kept: Path, settings: dict[str, Any]) -> dict[str, pd.DataFrame] | None:
    """The tables of a finished state. Raises ValueError where they belong to another sweep."""
    path = kept / "settings.json"
    if not path.is_file():
        return None
    known = json.loads(path.read_text(encoding="utf-8"))
    different = [key for key, value in json.loads(json.dumps(settings)).items() if known.get(key) != value]
    if different:
        raise ValueError(f"{kept} belongs to another sweep ({', '.join(different)} differ); choose another directory")
    return {name: pd.read_parquet(kept / f"{name}.parquet") for name in Sweep.table_names()}


def _keep(kept: Path, settings: dict[str, Any], tables: dict[str, pd.DataFrame]) -> None:
    with replacing_directory(kept) as temporary:
        for name, table in tables.items():
            table.to_parquet(temporary / f"{name}.parquet", index=False)
        (temporary / "settings.json").write_text(json.dumps(settings), encoding="utf-8")


def _tables(
    states: States,
    state: int,
    splits: dict[str, Split],
    words: dict[str, float],
    settings: dict[str, Any],
    device: torch.device,
    tick: Callable[[], object],
) -> dict[str, pd.DataFrame]:
    """All tables of one state; tasks of the same size are fitted together."""
    vectors = states.load(state)
    rows: dict[str, list[pd.DataFrame]] = {name: [] for name in _COLUMNS}
    for number, some in enumerate(of_equal_size(splits)):
        group = Group(vectors, some, settings, device)
        for name, table in group.tables(tick if number == 0 else lambda: None).items():
            rows[name].append(table)
    tables = {
        name: pd.concat(parts, ignore_index=True).assign(state=state) if parts else pd.DataFrame({"task": []})
        for name, parts in rows.items()
    }
    tables["probes"]["bag_of_words"] = tables["probes"]["task"].map(words)
    return {
        name: table.reindex(columns=columns)
        for (name, columns), table in zip(_COLUMNS.items(), tables.values(), strict=True)
    }


class Group:
    """Tasks of one state with equally many pairs, side by side: `[tasks, samples, d]`, good samples before bad."""

    def __init__(
        self,
        vectors: Float[np.ndarray, "pairs 2 d"],
        splits: dict[str, Split],
        settings: dict[str, Any],
        device: torch.device,
    ) -> None:
        self.tasks, self.settings = list(splits), settings
        train = np.stack([vectors[split.train] for split in splits.values()])  # [tasks, pairs, 2, d]
        test = np.stack([vectors[split.test] for split in splits.values()])
        mean = train.mean((1, 2), dtype=np.float64)[:, None, None]
        spread = train.std((1, 2), dtype=np.float64)[:, None, None]
        self.d = train.shape[3]
        self.good, self.bad = train[:, :, 0], train[:, :, 1]
        if settings["raw"]:
            mean, spread = np.zeros_like(mean), np.ones_like(spread)
        else:
            spread = np.where(spread > 1e-6 * np.abs(mean) + 1e-12, spread, np.inf)
            train, test = (((part - mean) / spread).astype(np.float32) for part in (train, test))
        self.mean, self.spread = mean[:, 0, 0], spread[:, 0, 0]
        self.X, self.X_test = (torch.from_numpy(_samples(part)).to(device) for part in (train, test))
        self.n, self.n_test = train.shape[1], test.shape[1]
        self.t, self.p = (np.stack(v) for v in zip(*map(welch, self.good, self.bad), strict=True))
        self.rows: list[pd.DataFrame] = []

    def tables(self, tick: Callable[[], object]) -> dict[str, pd.DataFrame]:
        methods, controls = self.settings["methods"], self.settings["controls"]
        found: dict[str, pd.DataFrame] = {}
        if "l0" in methods:
            found["neurons"], found["agreement"] = self._sparse(tick)
        if "dense" in methods:
            y = torch.stack([self._labels(self.n, control, 0) for control in controls], 1)
            weight = fit_dense(self.X, self._columns(y))
            for column, control in enumerate(controls):
                self._note("dense", 1.0, 0, control, weight[:, column], None)
        if "topk" in methods:
            for selector in self.settings["selectors"]:
                for k in self.settings["ks"]:
                    weight, _ = self._on(self._chosen(selector, k))
                    self._note(f"topk:{selector}", float(k), 0, "none", weight, None)
        if "random" in methods:
            found["random_k"], found["equivalence"] = self._random()
        return found | ({"probes": pd.concat(self.rows, ignore_index=True)} if self.rows else {})

    def _labels(self, n: int, control: Control, seed: int) -> Float[Tensor, " samples"]:
        """1 for good, 0 for bad; swapped within half of the pairs for `flip`."""
        swap = np.zeros(n, dtype=bool) if control == "none" else np.random.default_rng([seed, n]).random(n) < 0.5
        return torch.from_numpy(np.concatenate([~swap, swap]).astype(np.float32)).to(self.X)

    def _columns(self, y: Float[Tensor, "samples columns"]) -> Float[Tensor, "tasks samples columns"]:
        return y.expand(len(self.tasks), -1, -1)

    def _sparse(self, tick: Callable[[], object]) -> tuple[pd.DataFrame, pd.DataFrame]:
        given = self.settings
        columns = [(c, s, seed) for c in given["controls"] for s in given["strengths"] for seed in given["seeds"]]
        y = torch.stack([self._labels(self.n, control, seed) for control, _, seed in columns], 1)
        strengths, seeds = [s for _, s, _ in columns], [seed for _, _, seed in columns]
        found = fit_sparse(self.X, self._columns(y), strengths=strengths, seeds=seeds, steps=given["steps"], tick=tick)
        for number, (control, strength, seed) in enumerate(columns):
            expected = found.expected_open[:, number].mean(1).cpu().numpy()
            self._note("l0", strength, seed, control, found.coefficients[:, number], expected, found.gate[:, number])
        plain = {
            s: columns.index(("none", s, seeds[0])) for s in given["strengths"] if ("none", s, seeds[0]) in columns
        }
        if not plain:
            return pd.DataFrame({"task": []}), pd.DataFrame({"task": []})
        shown = plain[min(plain, key=lambda strength: abs(strength - _SHOWN_STRENGTH))]
        gates, weights = (part[:, shown].cpu().numpy() for part in (found.gate, found.weight))
        neurons = [
            pd.DataFrame(
                {"task": task, "dim": np.arange(self.d), "t": self.t[i], "p_adjusted": adjusted_p(self.p[i])}
                | {"gate": gates[i], "weight": weights[i]}
            )
            for i, task in enumerate(self.tasks)
        ]
        agreement = [
            {"task": task, "strength": strength} | _agreement(np.abs(self.t[i]), found.gate[i, number].cpu().numpy())
            for strength, number in plain.items()
            for i, task in enumerate(self.tasks)
        ]
        return pd.concat(neurons, ignore_index=True), pd.DataFrame(agreement)

    def _chosen(self, selector: Selector, k: int) -> Int[np.ndarray, "tasks k"]:
        masks = [top(scores(good, bad, selector), k) for good, bad in zip(self.good, self.bad, strict=True)]
        return np.stack([np.flatnonzero(mask) for mask in masks])

    def _on(self, dims: Int[np.ndarray, "tasks k"]) -> tuple[Tensor, Float[np.ndarray, " tasks"]]:
        """Dense probes on some dimensions of each task: weights over all, and test accuracies."""
        index = torch.from_numpy(dims).to(self.X.device)
        part = self.X.gather(2, index[:, None].expand(-1, self.X.shape[1], -1))
        y = self._columns(self._labels(self.n, "none", 0)[:, None])
        weight = torch.zeros(len(self.tasks), self.d, dtype=torch.float64, device=self.X.device)
        weight.scatter_(1, index, fit_dense(part, y)[:, 0])
        return weight, self._accuracy(weight, "none", 0)[0]

    def _accuracy(
        self, weight: Float[Tensor, "tasks d"], control: Control, seed: int
    ) -> tuple[Float[np.ndarray, " tasks"], Float[np.ndarray, " tasks"]]:
        """Of single sentences, and of pairs."""
        score = (self.X_test.double() @ weight.double()[..., None])[..., 0]
        good = self._labels(self.n_test, control, seed).bool()
        right = ((score > 0) == good).double().mean(1)
        margin = (score[:, : self.n_test] - score[:, self.n_test :]) * torch.where(good[: self.n_test], 1.0, -1.0)
        above = (margin > 0).double() + 0.5 * (margin == 0).double()
        return right.cpu().numpy(), above.mean(1).cpu().numpy()

    def _note(
        self,
        method: str,
        strength: float,
        seed: int,
        control: Control,
        weight: Float[Tensor, "tasks d"],
        expected: Float[np.ndarray, " tasks"] | None,
        gate: Float[Tensor, "tasks d"] | None = None,
    ) -> None:
        accuracy, pair_accuracy = self._accuracy(weight, control, seed)
        n_open = ((weight if gate is None else gate) != 0).sum(1).cpu().numpy()
        columns = {"task": self.tasks, "method": method, "strength": strength, "seed": seed, "control": control}
        columns |= {"accuracy": accuracy, "pair_accuracy": pair_accuracy, "n_open": n_open}
        columns |= {"open_fraction": n_open / self.d, "n_test": 2 * self.n_test}
        columns["expected_open"] = np.nan if expected is None else expected
        self.rows.append(pd.DataFrame(columns))

    def _random(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        n_top = max(1, round(_TOP_SHARE * self.d))
        best = self._chosen("welch", n_top)
        _, reached = self._on(best)
        rest = np.stack([np.setdiff1d(np.arange(self.d), dims) for dims in best])
        ks = [n_top * 2**i for i in range(12) if n_top * 2**i <= rest.shape[1]]
        accuracy = np.zeros((len(ks), _DRAWS, len(self.tasks)))
        rows = []
        for draw in range(_DRAWS):
            order = np.random.default_rng(draw).permuted(rest, axis=1)
            for i, k in enumerate(ks):
                _, accuracy[i, draw] = self._on(np.sort(order[:, :k], axis=1))
                rows.append(pd.DataFrame({"task": self.tasks, "k": k, "draw": draw, "accuracy": accuracy[i, draw]}))
        equivalence = []
        for number, task in enumerate(self.tasks):
            ratios, never = zip(
                *(_first(column, ks, reached[number], n_top) for column in accuracy[:, :, number].T), strict=True
            )
            middle, censored = _first(accuracy[:, :, number].mean(1), ks, reached[number], n_top)
            low, high = np.quantile(ratios, [0.025, 0.975])
            equivalence.append((task, middle, low, high, censored or any(never)))
        columns = ["task", "ratio", "low", "high", "censored"]
        return pd.concat(rows, ignore_index=True), pd.DataFrame(equivalence, columns=columns)


def _samples(part: Float[np.ndarray, "tasks pairs 2 d"]) -> Float[np.ndarray, "tasks samples d"]:
    return np.concatenate([part[:, :, 0], part[:, :, 1]], axis=1)


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
    varies = np.ptp(gate) > 0 and np.ptp(t) > 0
    auroc = roc_auc_score(is_open, t) if 0 < is_open.sum() < n else np.nan
    spearman = stats.spearmanr(t, gate).statistic if varies else np.nan
    return {"spearman": float(spearman), "spearman_max": float(most), "auroc": float(auroc)}
