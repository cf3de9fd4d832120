"""The regression of −log probability on the output embeddings, for many distributions at once."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from interp.instruments.decomposition import Decomposition, decompose
from interp.instruments.divergences import Distribution
from interp.models.embeddings import Embeddings
from interp.models.head import PredictionHead, prediction_head
from interp.models.sites import Model

__all__ = ["Regression", "fit_arrays", "least_squares", "minus_log", "raw_head", "regressions", "taking_part"]
__dir__ = __all__.copy


def raw_head(model: Model) -> PredictionHead:
    """Return the prediction head. Raises ValueError if it is folded, because its W_U is then not the output
    embeddings."""
    head = prediction_head(model)
    if head.folded or head.norm == "folded rms":
        raise ValueError("the final norm of this model is folded into W_U; load it raw (interp.load)")
    return head


@dataclass(frozen=True, eq=False)
class Regression:
    """`−log α_w ≈ A·E_w + B` by ordinary least squares over token types, in float64.

    It has the `slope` A, `[d_model]` (of least norm if the embeddings do not determine it), the `intercept` B in nats,
    `r2`, `adj_r2 = 1 − (1 − R²)(n − 1)/(n − r − 1)`, the number of types n and of dimensions d, and the rank r of the
    centred embeddings, which is d unless some dimension depends linearly on others.
    """

    slope: Float[np.ndarray, " d_model"]
    intercept: float
    r2: float
    adj_r2: float
    n_types: int
    n_dims: int
    rank: int


def fit_arrays(
    W_U: Float[np.ndarray, "d_model d_vocab"] | Float[Tensor, "d_model d_vocab"],
    alpha: Distribution,
    *,
    use: Bool[np.ndarray, " d_vocab"] | None = None,
) -> Regression:
    """Regress the negative log of the mean output probability on the output embeddings (the columns of `W_U`).

    W_U is read in blocks of types, in its own dtype and on its own device.

    Args:
        alpha: the mean output probability of each type over a corpus.
        use: which types to use. Default: all types with a probability above 0.

    Raises:
        ValueError: there are no more types than independent dimensions, so that the fit would be exact and meaningless;
            α is negative, not finite or the same for every type; embeddings are not finite, all equal, or too small
            for a slope in float64; or `use` does not have one bool per type.

    Examples:
        >>> W_U, alpha = np.array([[0.0, 1.0, 2.0, 3.0]]), np.exp([-1.0, -3.0, -5.0, -7.0])
        >>> round(fit_arrays(W_U, alpha).slope.item(), 6)
        2.0
    """
    return regressions(Embeddings(W_U), [alpha], use=use)[0]


def regressions(
    embeddings: Embeddings, alphas: Sequence[Distribution], *, use: Bool[np.ndarray, " d_vocab"] | None = None
) -> list[Regression]:
    """Apply `fit_arrays` to several α. Those that use the same types share one decomposition."""
    masks = [taking_part(embeddings, alpha, use) for alpha in alphas]
    same_types: dict[bytes, list[int]] = defaultdict(list)
    for i, mask in enumerate(masks):
        same_types[mask.tobytes()].append(i)
    fitted: dict[int, Regression] = {}
    for members in same_types.values():
        mask = masks[members[0]]
        targets = [minus_log(alphas[i][mask]) for i in members]
        _, of_members = least_squares(embeddings.of(mask), *targets)
        fitted.update(zip(members, of_members, strict=True))
    return [fitted[i] for i in range(len(alphas))]


def taking_part(
    embeddings: Embeddings, alpha: Distribution, use: Bool[np.ndarray, " d_vocab"] | None
) -> Bool[np.ndarray, " d_vocab"]:
    """Mark the types to use. Raises the errors of `fit_arrays`."""
    if not np.isfinite(alpha).all() or (alpha < 0).any():
        raise ValueError("alpha must hold probabilities; found negative, infinite or NaN values")
    if len(embeddings) != len(alpha) or not np.isfinite(embeddings.largest):
        problem = "has NaN or infinite values" if len(embeddings) == len(alpha) else f"is over {len(embeddings)} types"
        raise ValueError(f"W_U {problem}; expected finite embeddings of the {len(alpha)} types of alpha")
    use = np.ones(len(alpha), dtype=bool) if use is None else np.asarray(use)
    if use.dtype != bool or use.shape != alpha.shape:
        raise ValueError(f"use must be a bool for each of the {len(alpha)} types, found {use.dtype} {use.shape}")
    return use & (alpha > 0)


def minus_log(alpha: Float[np.ndarray, " types"]) -> Float[np.ndarray, " types"]:
    return -np.log(alpha.astype(np.float64))


def least_squares(
    embeddings: Embeddings, *targets: Float[np.ndarray, " types"], n_real: int | None = None
) -> tuple[Decomposition, list[Regression]]:
    """Compute the regressions of all targets on the embeddings and a constant, from one decomposition of the centred
    embeddings. `n_real` is how many types of the vocabulary are tokens, by default all."""
    n = len(embeddings)
    if n < 2:
        raise ValueError(f"{n} usable types; a regression needs more types than dimensions")
    decomposition = decompose(embeddings, np.column_stack(targets))
    if n <= decomposition.rank + 1:
        remedy = "give text with more types"
        if n == (n_real or embeddings.W_U.shape[1]):
            remedy = (
                "the vocabulary has no others, so this regression needs a model with more types or fewer dimensions"
            )
        raise ValueError(
            f"{n} usable types can be fitted exactly by {decomposition.rank} independent dimensions; {remedy}"
        )
    if not all(np.ptp(target) > 0 for target in targets):
        raise ValueError("alpha is the same for every type; there is nothing for the embeddings to explain")
    if not decomposition.rank:
        raise ValueError("the output embeddings of all types are the same; expected embeddings that differ")
    intercepts = decomposition.level - decomposition.mean @ decomposition.slopes
    with np.errstate(over="ignore"):
        slopes = np.ldexp(decomposition.slopes, -decomposition.exponent)
    if not np.isfinite(slopes).all():
        largest = embeddings.largest
        raise ValueError(f"the output embeddings are at most {largest:.0e}, too small for a slope in float64")
    adjusted = 1 - (1 - decomposition.r2) * (n - 1) / (n - decomposition.rank - 1)
    numbers = zip(slopes.T, intercepts.tolist(), decomposition.r2.tolist(), adjusted.tolist(), strict=True)
    return decomposition, [
        Regression(*estimates, n_types=n, n_dims=embeddings.d_model, rank=decomposition.rank) for estimates in numbers
    ]
