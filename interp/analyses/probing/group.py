"""Tasks side by side: their states, their labels, and the accuracy of probes."""

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import pandas as pd
import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from interp.analyses.probing.fitting import fit_dense, welch
from interp.analyses.probing.options import Control, Scaling
from interp.corpora.splits import Split
from interp.instruments.uncertainty import share_interval

__all__ = ["Group", "by_group", "dense_on", "hits", "ranked", "words_right"]


def words_right(pairs: pd.DataFrame, split: Split) -> Float[np.ndarray, " groups"]:
    """For each group of test pairs, the share of sentences that an L2 logistic regression (C = 1) on word counts gets
    right; a probe must beat this to be informative.
    """
    sentences = pairs[["sentence_good", "sentence_bad"]]
    train = sentences.iloc[split.train].to_numpy().ravel(order="F")
    test = sentences.iloc[split.test].to_numpy().ravel(order="F")
    words = CountVectorizer(token_pattern=r"\S+")
    fitted = LogisticRegression(max_iter=1_000).fit(words.fit_transform(train), np.repeat([1, 0], len(train) // 2))
    right = fitted.predict(words.transform(test)) == np.repeat([1, 0], len(test) // 2)
    return by_group(reduce(right.astype(np.float64), "(side pair) -> 1 pair", "mean", side=2), [split])[0]


class Group:
    """Tasks of one state with equally many pairs, side by side.

    `X`, `X_validation` and `X_test` are `[tasks, samples, d]`, with good samples before bad ones, standardised with the
    mean and SD of the training samples, or scaled otherwise. `t` and `p` are Welch's for the training states as
    collected, and `rms` is their root mean square over samples and dimensions. `test` has the number of the first pair
    of each group of test pairs, and `n_test` is the number of these groups. What is measured on test pairs is averaged
    over each group, because pairs that share a sentence are not independent.

    Args:
        scaling: see `sweep`.
        rotation: an orthogonal matrix `[d, d]` that the standardised states are multiplied by.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "pairs 2 d"],
        splits: dict[str, Split],
        *,
        scaling: Scaling,
        device: str,
        rotation: Float[np.ndarray, "d d"] | None = None,
    ) -> None:
        train = np.stack([vectors[split.train] for split in splits.values()])  # [tasks, pairs, 2, d]
        self.mean = train.mean((1, 2), dtype=np.float64)
        spread = train.std((1, 2), dtype=np.float64)
        self.rms = np.sqrt((self.mean**2 + spread**2).mean(1))
        self.spread = np.where(spread > 1e-6 * np.abs(self.mean) + 1e-12, spread, np.inf)
        if scaling != "standard":
            scale = np.where(self.rms > 0, self.rms, 1.0) if scaling == "rms" else np.ones_like(self.rms)
            self.mean = np.zeros_like(spread)
            self.spread = np.tile(scale[:, None], spread.shape[1])
        self.t, self.p = np.stack([welch(x[:, 0], x[:, 1]) for x in train], axis=1)

        def samples(rows_by_task: Sequence[Int[np.ndarray, " pairs"]]) -> Float[Tensor, "tasks samples d"]:
            scaling = zip(rows_by_task, self.mean, self.spread, strict=True)
            part = np.stack([((vectors[rows] - m) / s).astype(np.float32) for rows, m, s in scaling])
            part = part if rotation is None else (part @ rotation).astype(np.float32)
            return rearrange(torch.from_numpy(part), "task pair side d -> task (side pair) d").to(device)

        trained, validated, tested, _ = zip(*splits.values(), strict=True)
        self.X, self.X_validation, self.X_test = map(samples, (trained, validated, tested))
        self.tasks = list(splits)
        self.n = train.shape[1]
        self.d = train.shape[3]
        self.splits = list(splits.values())
        self.test = np.stack([split.test[split.starts] for split in self.splits])
        self.n_test = self.test.shape[1]

    def part(self, numbers: Sequence[int]) -> "Group":
        """Some of the tasks, given by number, to fit and test other probes on."""
        part = copy(self)
        part.tasks = [self.tasks[task] for task in numbers]
        part.splits = [self.splits[task] for task in numbers]
        part.X = self.X[list(numbers)]
        part.X_test = self.X_test[list(numbers)]
        return part

    def labels(self, n: int, control: Control = "none", seed: int = 0) -> Float[Tensor, " samples"]:
        """The labels of n pairs, 1 for good and 0 for bad; for `flip`, they are swapped within half of the pairs."""
        swap = np.random.default_rng([seed, n]).random(n) < 0.5 if control == "flip" else np.zeros(n, dtype=bool)
        return torch.from_numpy(np.concatenate([~swap, swap]).astype(np.float32)).to(self.X)

    def targets(
        self, columns: Sequence[tuple[Control, int]] = (("none", 0),)
    ) -> Float[Tensor, "tasks samples columns"]:
        """The training labels of each column, which has a control and a seed."""
        labels = [self.labels(self.n, control, seed) for control, seed in columns]
        return torch.stack(labels, 1).expand(len(self.tasks), -1, -1)

    def unscaled(
        self, coefficients: Float[Tensor, "tasks columns d"]
    ) -> tuple[Float[np.ndarray, "tasks columns d"], Float[np.ndarray, "tasks columns"]]:
        """Directions and offsets on the states' own scale, for probes of standardised states."""
        directions = coefficients.double().cpu().numpy() / self.spread[:, None]
        return directions, -(directions * self.mean[:, None]).sum(2)

    def right(
        self, weight: Float[Tensor, "tasks d"], control: Control = "none", seed: int = 0
    ) -> Float[np.ndarray, "tasks groups"]:
        """For each group of test pairs, the share of their sentences on the right side."""
        return by_group(self._hits(self.X_test, weight, control, seed)[0], self.splits)

    def rows(
        self, weight: Float[Tensor, "tasks d"], control: Control = "none", seed: int = 0, **columns: Any
    ) -> pd.DataFrame:
        """One row per task: the accuracies on test sentences and on pairs, each with a 95 % interval
        (`share_interval`), and on validation sentences."""
        n_open = (weight != 0).sum(1).cpu().numpy()
        columns.update(task=self.tasks, seed=seed, control=control, n_test=2 * self.n_test, n_open=n_open)
        columns.update(open_fraction=n_open / self.d, rms=self.rms)
        columns["validation_accuracy"] = self._hits(self.X_validation, weight, control, seed)[0].mean(1)
        tested = self._hits(self.X_test, weight, control, seed)
        for name, of_pairs, sentences in zip(("accuracy", "pair_accuracy"), tested, (2, 1), strict=True):
            values = by_group(of_pairs, self.splits)
            low, high = share_interval(values, sentences=sentences)
            columns[name] = values.mean(1)
            columns[f"{name}_low"] = low
            columns[f"{name}_high"] = high
        return pd.DataFrame(columns)

    def _hits(
        self, X: Float[Tensor, "tasks samples d"], weight: Float[Tensor, "tasks d"], control: Control, seed: int
    ) -> tuple[Float[np.ndarray, "tasks pairs"], Float[np.ndarray, "tasks pairs"]]:
        n = X.shape[1] // 2
        score = (X.double() @ weight.double()[..., None])[..., 0].cpu().numpy()
        good = self.labels(n, control, seed)[:n].bool().cpu().numpy()
        first, second = score[:, :n], score[:, n:]
        return hits(np.where(good, first, second), np.where(good, second, first))


def hits(
    good: Float[np.ndarray, "*dims"], bad: Float[np.ndarray, "*dims"]
) -> tuple[Float[np.ndarray, "*dims"], Float[np.ndarray, "*dims"]]:
    """For the scores of pairs, the share of sentences on the right side of 0, and whether good is above bad (ties:
    ½)."""
    return ((good > 0).astype(float) + (bad <= 0)) / 2, (good > bad) + 0.5 * (good == bad)


def by_group(
    values: Float[np.ndarray, "tasks pairs *more"], splits: Sequence[Split]
) -> Float[np.ndarray, "tasks groups *more"]:
    """The means of values of test pairs over each group of pairs that share sentences."""
    means = []
    for of_task, split in zip(values, splits, strict=True):
        means.append((np.add.reduceat(of_task, split.starts).T / split.sizes).T)
    return np.stack(means)


def ranked(group: Group) -> Int[np.ndarray, "tasks d"]:
    """The dimensions of each task in order of decreasing |Welch t|."""
    t = [welch(x[: group.n], x[group.n :])[0] for x in group.X.cpu().numpy()]
    return np.argsort(-np.abs(np.stack(t)), axis=1, kind="stable")


def dense_on(group: Group, dims: Int[np.ndarray, "tasks k"]) -> Float[Tensor, "tasks d"]:
    """Dense probes on some dimensions of each task."""
    index = torch.from_numpy(np.sort(dims, axis=1)).to(group.X.device)
    part = group.X.gather(2, index[:, None].expand(-1, group.X.shape[1], -1))
    weight = torch.zeros(len(group.tasks), group.d, dtype=torch.float64, device=group.X.device)
    return weight.scatter_(1, index, fit_dense(part, group.targets())[:, 0])
