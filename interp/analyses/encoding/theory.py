"""Token probability without a fit: what −log α would be if the predictions at all positions were nearly the same.

With p the prediction at a position and α its mean over positions,

    −log α = −log E[exp(log p)] = −E[log p] − ½ Var(log p) − …

and the first term, `−E[h]·E_w + E[log Z]`, is linear in the output embedding E_w whatever the model has learnt, because
logits are. So where Var(log p) is small, as before training, −log α is linear by construction, with slope −E[h]. What
a fit explains beyond these two terms is not.
"""

from typing import ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from scipy.stats import norm
from torch import Tensor

from interp.instruments.predictions import MeanPredictions, Variant
from interp.models.sites import Model
from interp.models.softmax import over_positions
from interp.results.intervals import jackknife, summed_others

__all__ = ["LogProbabilities", "theory_table"]

_PREDICTORS = ("fit", "first order", "second order")


class LogProbabilities(MeanPredictions):
    """The mean predictions of a model, by group of texts, with `Σ log p` and `Σ (log p)²` by type."""

    axes: ClassVar = {"log_p": "groups 2 d_vocab"}

    def __init__(self, model: Model) -> None:
        super().__init__(model, [Variant()], grouped=True)

    def look_unedited(self, logits: Tensor, log_Z: Tensor, groups: list[int], lengths: list[int]) -> None:
        parts = zip(groups, logits.split(lengths), log_Z.split(lengths), strict=True)
        for group, part, part_log_Z in parts:
            log_p = part - part_log_Z[:, None].to(part)
            sums = log_p.new_zeros(2, log_p.shape[1], dtype=self._weights.dtype)
            weights = log_p.new_ones(1, len(log_p))
            over_positions(log_p, weights, out=sums[:1])
            over_positions(log_p.square_(), weights, out=sums[1:])
            self.add("log_p", sums, group=group)

    def moments(
        self, used: Bool[np.ndarray, " d_vocab"], *, grouped: bool
    ) -> tuple[Float[np.ndarray, "draws types"], Float[np.ndarray, "draws types"]]:
        """E[log p] and Var(log p) of some types, over all positions, and with `grouped` also without each group of
        texts."""
        sums = self.state["log_p"][self._groups].cpu().numpy()[..., used]
        n = self.sizes
        totals = sums.sum(0, keepdims=True)
        n_total = n.sum(keepdims=True)
        if grouped:
            totals = np.concatenate([totals, summed_others(sums)])
            n_total = np.concatenate([n_total, summed_others(n)])
        mean, square = (totals / n_total[:, None, None]).swapaxes(0, 1)
        return mean, square - mean**2


def theory_table(
    predictions: LogProbabilities,
    used: Bool[np.ndarray, " d_vocab"],
    targets: Float[np.ndarray, "draws types"],
    errors: Float[np.ndarray, "draws types"],
) -> pd.DataFrame:
    """The table `theory` of a fit: how well −log α is predicted by the fit and without it.

    Args:
        targets: −log α over all positions, and then without each group of texts (if there are enough for intervals).
        errors: what the fit on other types misses it by (`interp.instruments.validation.errors_on_unseen`).
    """
    mean, variance = predictions.moments(used, grouped=len(targets) > 1)
    misses = np.stack([errors, targets + mean, targets + mean + variance / 2])
    total = ((targets - targets.mean(1, keepdims=True)) ** 2).sum(1)
    r2 = 1 - (misses**2).sum(2) / total
    y = targets[0]
    rows = []
    for name, miss, values in zip(_PREDICTORS, misses, r2, strict=True):
        predicted = y - miss[0]
        ends = _interval(predictions, values, _influence(miss[0] ** 2, y))
        difference = _interval(predictions, r2[0] - values, _influence(misses[0, 0] ** 2 - miss[0] ** 2, y))
        centred = predicted - predicted.mean()
        covariance = centred @ y
        slope = covariance / (centred @ centred)
        rows.append(
            (name, *ends, slope * covariance / total[0], slope, *(difference if name != "fit" else [np.nan] * 4))
        )
    ends_of = lambda name: [name, f"{name}_corrected", f"{name}_low", f"{name}_high"]  # noqa: E731
    columns = ["predictor", *ends_of("r2"), "corr2", "slope", *ends_of("beyond")]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(median_variance=float(np.median(variance[0])))


def _influence(squares: Float[np.ndarray, " types"], y: Float[np.ndarray, " types"]) -> float:
    """Half the width of the 95 % interval of `Σ squares / Σ (y − ȳ)²` if types were drawn independently."""
    around_mean = (y - y.mean()) ** 2
    ratio = squares.sum() / around_mean.sum()
    spread = (squares - ratio * around_mean).std(ddof=1) / around_mean.mean()
    return float(norm.ppf(0.975) * spread / np.sqrt(len(y)))


def _interval(
    predictions: LogProbabilities, values: Float[np.ndarray, " draws"], over_types: float
) -> tuple[float, float, float, float]:
    """A value, the value corrected for the error of mean predictions of finitely many positions, and the interval over
    texts and types around that."""
    if len(values) == 1:
        return float(values[0]), np.nan, np.nan, np.nan
    over_texts = jackknife(values[0], values[1:], predictions.sizes, predictions.stretches_per_group)
    half = np.hypot(over_texts.half, over_types)
    corrected = float(over_texts.corrected)
    return float(values[0]), corrected, float(corrected - half), float(corrected + half)
