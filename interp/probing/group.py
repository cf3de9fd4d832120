"""Tasks side by side: their states, split and standardised, their labels, and how well a probe reads them."""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.probing.options import Control
from interp.probing.selection import welch
from interp.probing.split import Split

_RESAMPLES = 1_000
_INTERVAL = (0.025, 0.975)


class Group:
    """Tasks of one state with equally many pairs, side by side: `[tasks, samples, d]`, good samples before bad.

    `X` are the training samples, standardised with their mean and SD unless `raw`, and `good` and `bad` the same by
    pairs; `t` and `p` are Welch's, of the training states as they were.

    Args:
        rotation: an orthogonal matrix `[d, d]` that the standardised states are multiplied by.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "pairs 2 d"],
        splits: dict[str, Split],
        *,
        raw: bool,
        device: torch.device,
        rotation: Float[np.ndarray, "d d"] | None = None,
    ) -> None:
        self.tasks = list(splits)
        parts = [
            np.stack([vectors[rows] for rows in which])
            for which in zip(*((split.train, split.validation, split.test) for split in splits.values()), strict=True)
        ]
        train = parts[0]  # [tasks, pairs, 2, d]
        self.d = train.shape[3]
        mean = train.mean((1, 2), dtype=np.float64)
        spread = train.std((1, 2), dtype=np.float64)
        self.mean = np.zeros_like(mean) if raw else mean
        self.spread = np.ones_like(spread) if raw else np.where(spread > 1e-6 * np.abs(mean) + 1e-12, spread, np.inf)
        self.t, self.p = (np.stack(values) for values in zip(*(welch(x[:, 0], x[:, 1]) for x in train), strict=True))
        if not raw:
            parts = [
                np.stack([((x - m) / s).astype(np.float32) for x, m, s in zip(v, self.mean, self.spread, strict=True)])
                for v in parts
            ]
        if rotation is not None:
            parts = [(part @ rotation).astype(np.float32) for part in parts]
        self.good, self.bad = parts[0][:, :, 0], parts[0][:, :, 1]
        self.X, self.X_validation, self.X_test = (torch.from_numpy(_samples(part)).to(device) for part in parts)
        self.n, self.n_test = train.shape[1], self.X_test.shape[1] // 2
        draws = np.random.default_rng(0).multinomial(self.n_test, [1 / self.n_test] * self.n_test, size=_RESAMPLES)
        self._resamples = draws / self.n_test

    def labels(self, n: int, control: Control = "none", seed: int = 0) -> Float[Tensor, " samples"]:
        """1 for good, 0 for bad; swapped within half of the pairs for `flip`."""
        swap = np.random.default_rng([seed, n]).random(n) < 0.5 if control == "flip" else np.zeros(n, dtype=bool)
        return torch.from_numpy(np.concatenate([~swap, swap]).astype(np.float32)).to(self.X)

    def columns(self, y: Float[Tensor, "samples columns"]) -> Float[Tensor, "tasks samples columns"]:
        return y.expand(len(self.tasks), -1, -1)

    def accuracy(self, weight: Float[Tensor, "tasks d"]) -> Float[np.ndarray, " tasks"]:
        """Of the test sentences."""
        return self._hits(self.X_test, weight, "none", 0)[0].mean(1)

    def measured(
        self, weight: Float[Tensor, "tasks d"], control: Control = "none", seed: int = 0
    ) -> dict[str, Float[np.ndarray, " tasks"]]:
        """Accuracy of test sentences and pairs, each with a 95 % interval over pairs (percentile bootstrap of 1,000
        resamples), and of validation sentences."""
        single, pair = self._hits(self.X_test, weight, control, seed)
        found = {"accuracy": single.mean(1), "pair_accuracy": pair.mean(1)}
        for name, hits in (("accuracy", single), ("pair_accuracy", pair)):
            low, high = np.quantile(self._resamples @ hits.T, _INTERVAL, axis=0)
            found |= {f"{name}_low": low, f"{name}_high": high}
        return found | {"validation_accuracy": self._hits(self.X_validation, weight, control, seed)[0].mean(1)}

    def _hits(
        self, X: Float[Tensor, "tasks samples d"], weight: Float[Tensor, "tasks d"], control: Control, seed: int
    ) -> tuple[Float[np.ndarray, "tasks pairs"], Float[np.ndarray, "tasks pairs"]]:
        n = X.shape[1] // 2
        score = (X.double() @ weight.double()[..., None])[..., 0].cpu().numpy()
        good = self.labels(n, control, seed)[:n].bool().cpu().numpy()
        first, second = score[:, :n], score[:, n:]
        return hits(np.where(good, first, second), np.where(good, second, first))

    def table(self, **columns: object) -> pd.DataFrame:
        """A row a task."""
        return pd.DataFrame({"task": self.tasks} | columns)


def hits(
    good: Float[np.ndarray, "*dims"], bad: Float[np.ndarray, "*dims"]
) -> tuple[Float[np.ndarray, "*dims"], Float[np.ndarray, "*dims"]]:
    """Of the scores of pairs: the share of sentences on the right side of 0, and whether good is above bad (ties ½)."""
    return ((good > 0).astype(float) + (bad <= 0)) / 2, (good > bad) + 0.5 * (good == bad)


def _samples(part: Float[np.ndarray, "tasks pairs 2 d"]) -> Float[np.ndarray, "tasks samples d"]:
    return np.concatenate([part[:, :, 0], part[:, :, 1]], axis=1)
