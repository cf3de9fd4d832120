"""How sure a perplexity is: the losses of the rows of a text, with b_LN scaled."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from interp.corpora.batching import Batch
from interp.frequency.distributions import LogitsObserver, perplexity
from interp.hooks import jointly
from interp.models.sites import Model, Recipe, hook_name

__all__ = ["RowLosses"]

_ELEMENTS_AT_ONCE = 2**22


class RowLosses(LogitsObserver):
    """Sums over rows of their losses `s_i = Σ −log p(target)` and lengths `n_i`, for each scale λ of b_LN.

    The mean loss is `μ = Σ s_i / Σ n_i`, a ratio of sums over rows, of variance

        R/(R − 1) Σ (s_i − μ n_i)² / (Σ n_i)²

    with R rows drawn independently (Cochran 1977, §6): tokens of one row may depend on each other, rows may not. Where
    long texts are cut into many rows the interval is too narrow.

    After `observe`: `table` (scale, perplexity, perplexity_low, perplexity_high), perplexity `exp μ` with the 95 %
    interval of Student's t with R − 1 degrees of freedom; NaN for one row.
    """

    def __init__(self, model: Model, scales: Sequence[float]) -> None:
        super().__init__(model, scales=list(scales))
        self.scales = list(scales)
        effect = self.head.effect("ln").double()
        self.shifts = torch.stack([(scale - 1) * effect for scale in self.scales])
        for name in ("losses", "squares", "products"):
            self.add_state(name, (len(self.scales),))
        for name in ("squared_lengths", "rows"):
            self.add_state(name, ())

    def hooks(self, batch: Batch) -> Recipe:
        targets = batch.read_targets
        scored = targets >= 0
        rows = batch.read.nonzero()[:, 0][scored]

        def read(unembedded: Tensor) -> None:
            losses = self._losses(batch.select(unembedded)[scored], targets[scored])
            sums = losses.new_zeros(len(self.scales), len(batch.tokens)).index_add_(1, rows, losses)
            lengths = torch.bincount(rows, minlength=len(batch.tokens)).to(sums)
            self.add("n", batch.n_read)
            self.add("n_scored", scored.sum())
            self.add("losses", sums.sum(1))
            self.add("squares", (sums**2).sum(1))
            self.add("products", sums @ lengths)
            self.add("squared_lengths", lengths @ lengths)
            self.add("rows", (lengths > 0).sum())

        return jointly([hook_name(self.model, "logits")], read)

    def _losses(self, unembedded: Tensor, targets: Tensor) -> Tensor:
        """`−log p(target)` for each scale, `[scales, positions]`, in float64."""
        found = torch.empty(len(self.scales), len(targets), dtype=torch.float64, device=self.device)
        step = max(1, _ELEMENTS_AT_ONCE // unembedded.shape[1])
        for start in range(0, len(targets), step):
            part = slice(start, start + step)
            logits = self.predicted(unembedded[part])
            for i, shift in enumerate(self.shifts):
                shifted = logits + shift.to(logits)
                found[i, part] = torch.nn.functional.cross_entropy(shifted, targets[part], reduction="none").to(found)
        return found

    @property
    def table(self) -> pd.DataFrame:
        state = {name: value.cpu().numpy() for name, value in self.state.items()}
        n, rows = float(state["n_scored"]), float(state["rows"])
        mean = state["losses"] / n
        squares = state["squares"] - 2 * mean * state["products"] + mean**2 * state["squared_lengths"]
        reach = np.full_like(mean, np.nan)
        if rows > 1:
            reach = stats.t.ppf(0.975, rows - 1) * np.sqrt(rows / (rows - 1) * np.maximum(squares, 0)) / n
        ends = {"perplexity": mean, "perplexity_low": mean - reach, "perplexity_high": mean + reach}
        return pd.DataFrame({"scale": self.scales} | {name: list(map(perplexity, one)) for name, one in ends.items()})
