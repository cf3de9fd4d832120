"""Untrained twins of a model, whose logits are multiplied so that their token probabilities vary as much.

An untrained model predicts nearly the same everywhere, and −log α is then linear in the output embeddings by
construction (see `interp.analyses.encoding.theory`). Multiplied by t, its logits become as decided as those of a
trained model, and only then do the two have the same chance to be linear.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor

from interp.analyses.encoding.regression import Fit
from interp.instruments.divergences import Distribution
from interp.instruments.logits import LogitsObserver, at_head
from interp.instruments.regression import least_squares, minus_log, raw_head, taking_part
from interp.instruments.validation import cross_validated
from interp.models import untrained
from interp.models.shapes import Shape
from interp.models.sites import Model
from interp.passes.budget import Pass
from interp.passes.reading import observe

__all__ = ["MOST_PASSES", "SEEDS", "ScaledPredictions", "twin_rows", "why_no_twin"]

SEEDS = (0, 1, 2)
MOST_PASSES = 6
"""The largest number of passes over the text in which the scale of one twin's logits is searched for."""
_ELEMENTS_AT_ONCE = 2**21
_CLOSE, _ENOUGH = 0.01, 0.05  # differences of the logarithm of the spread


class ScaledPredictions(LogitsObserver):
    """The mean predicted distribution with all logits multiplied by `scale`. The softmax is in float64, because
    multiplied logits may give probabilities too small for float32."""

    axes: ClassVar = {"probability": "d_vocab"}

    def __init__(self, model: Model, scale: float) -> None:
        super().__init__(model, at_once=_ELEMENTS_AT_ONCE, scale=scale)
        self.scale = scale
        self.add_states(model.cfg, d_vocab=model.W_U.shape[1])

    @classmethod
    def cost(cls, size: Shape, step: int) -> Pass:
        """Estimate the cost of a pass of an untrained model, from its shape, in addition to the trained one."""
        return at_head(
            size, what="an untrained model", step=step, sums=cls.n_bytes(size), copies=4 * size.parameters,
            per_logit=8 * 3, at_once=_ELEMENTS_AT_ONCE,
        )  # fmt: skip

    def read(self, logits: Float[Tensor, "pos d_vocab"], targets: Int[Tensor, " pos"]) -> None:
        wide = logits.to(self.state["probability"])
        self.add("probability", (self.scale * wide).softmax(1).sum(0))

    @property
    def distribution(self) -> Distribution:
        return self.mean_of("probability")


def why_no_twin(model: Model) -> str | None:
    """Why a model has no untrained twin, or None if it has one."""
    parameters = [parameter for parameter in model.parameters() if not parameter.is_floating_point()]
    stored = {str(parameter.dtype).removeprefix("torch.") for parameter in parameters}
    if stored:
        return f"its weights are stored as {', '.join(sorted(stored))}, of which none can be drawn at random"
    return None


def twin_rows(model: Model, fit: Fit, *, seeds: Sequence[int] = SEEDS, progress: bool = True) -> pd.DataFrame:
    """The rows of the table `regression` for untrained twins at the spread of a fit, one for each seed.

    The spread is the SD over types of log α. It is matched to 1 % by the secant method in log t, in at most six passes
    over the text of the fit. R² is NaN for a twin whose spread stays more than 5 % away.

    Raises ValueError for a fit of another model, and where there is no twin.
    """
    fit.require(model)
    if reason := why_no_twin(model):
        raise ValueError(f"this model has no untrained twin: {reason}")
    spread = float(minus_log(fit.alpha[fit.used]).std())
    return pd.DataFrame([_row(untrained(model, seed=seed), seed, fit, spread, progress) for seed in seeds])


def _row(twin: Model, seed: int, fit: Fit, spread: float, progress: bool) -> dict[str, object]:
    head = raw_head(twin)
    real = head.real.cpu().numpy()
    tried: list[tuple[float, float]] = []
    log_scale = 0.0
    for number in range(MOST_PASSES):
        scaled = ScaledPredictions(twin, math.exp(log_scale))
        observe(twin, fit.batches, scaled, what=f"untrained model {seed}, pass {number + 1}", progress=progress)
        alpha = scaled.distribution
        used = taking_part(head.embeddings, alpha, real)
        y = minus_log(alpha[used])
        tried.append((log_scale, math.log(y.std() / spread)))
        if abs(tried[-1][1]) < _CLOSE or number == MOST_PASSES - 1:
            break
        log_scale -= tried[-1][1] / _steepness(tried)
    embeddings = head.embeddings.of(used)
    decomposition, (fitted,) = least_squares(embeddings, y)
    unseen = cross_validated(embeddings, decomposition, y[:, None]).iloc[0]
    numbers = dict(r2=fitted.r2, adj_r2=fitted.adj_r2, **unseen)
    if abs(tried[-1][1]) > _ENOUGH:
        numbers = dict.fromkeys(numbers, np.nan)
    return dict(
        target="untrained", **numbers, n_types=fitted.n_types, n_dims=fitted.n_dims, rank=fitted.rank,
        n_not_tokens=int((~real).sum()), n_never_predicted=int((real & ~used).sum()),
        seed=seed, logit_scale=scaled.scale, spread=float(y.std()),
    )  # fmt: skip


def _steepness(tried: Sequence[tuple[float, float]]) -> float:
    """By how much the logarithm of the spread grows with that of the scale; 1 while log p varies little."""
    if len(tried) < 2:
        return 1.0
    (scale_before, spread_before), (scale, spread) = tried[-2:]
    return min(3.0, max(0.5, (spread - spread_before) / (scale - scale_before)))
