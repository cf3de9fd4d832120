"""R² on types that the regression has not seen, by ten-fold cross-validation from Gram matrices.

With the embeddings' decomposition `X = U S Vᵀ` (see `interp.instruments.decomposition`), the columns of `Z = [U 1/√n]`
are orthonormal, so leaving out the rows `Z_f` of a fold gives the coefficients

    (I − Z_fᵀ Z_f)⁻¹ (Zᵀ y − Z_fᵀ y_f)

of least squares on the other rows. Each fold costs one Gram matrix of its types, computed in blocks.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.linalg.blas import dsyrk
from scipy.stats import norm

from interp.instruments.decomposition import Decomposition
from interp.models.embeddings import Embeddings

__all__ = ["cross_validated", "errors_on_unseen", "folds", "r2_on_unseen"]
__dir__ = __all__.copy

_FOLDS = 10
_OPEN = 1e-5  # the smallest pivot at which the types outside a fold determine the slope


def folds(n_types: int) -> Int[np.ndarray, " types"]:
    """Return the fold of each type, 0 … 9. It depends only on the number of types; folds are as even as possible, and
    mixed.

    Examples:
        >>> np.bincount(folds(25)).tolist()
        [3, 3, 3, 3, 3, 2, 2, 2, 2, 2]
    """
    return np.random.default_rng(0).permutation(n_types) % _FOLDS


def cross_validated(
    embeddings: Embeddings, decomposition: Decomposition, targets: Float[np.ndarray, "types targets"]
) -> pd.DataFrame:
    """Compute R² of each target when it is predicted by the regression on the types of the other nine folds.

    `cv_r2 = 1 − Σ (y − ŷ)² / Σ (y − ȳ)²`, with both sums over all types. Its 95 % interval (`cv_r2_low`, `cv_r2_high`)
    uses the delta method for the logarithm of the ratio, as if types were drawn independently. It is NaN if the types
    outside of some fold do not determine the slope.

    Args:
        decomposition: the decomposition of the embeddings with these targets.

    Examples:
        >>> from interp.instruments.decomposition import decompose
        >>> rng = np.random.default_rng(0)
        >>> E, noise = Embeddings(rng.normal(size=(3, 400))), rng.normal(size=(400, 1))
        >>> y = E.W_U.T @ np.ones((3, 1)) + noise  # so that 3/4 of its variance is explained
        >>> cross_validated(E, decompose(E, y), y).round(2).to_dict("records")
        [{'cv_r2': 0.76, 'cv_r2_low': 0.71, 'cv_r2_high': 0.79}]
    """
    return r2_on_unseen(targets, errors_on_unseen(embeddings, decomposition, targets))


def r2_on_unseen(
    targets: Float[np.ndarray, "types targets"], errors: Float[np.ndarray, "types targets"]
) -> pd.DataFrame:
    """Make the table of `cross_validated` from the errors on types that the regression has not seen."""
    squares, around_mean = errors**2, (targets - targets.mean(0)) ** 2
    ratio = squares.sum(0) / around_mean.sum(0)
    with np.errstate(invalid="ignore"):  # all errors are 0
        spread = (squares / squares.mean(0) - around_mean / around_mean.mean(0)).std(0, ddof=1)
    reach = norm.ppf(0.975) * spread / np.sqrt(len(targets))
    return pd.DataFrame(
        {"cv_r2": 1 - ratio, "cv_r2_low": 1 - ratio * np.exp(reach), "cv_r2_high": 1 - ratio * np.exp(-reach)}
    )


def errors_on_unseen(
    embeddings: Embeddings, decomposition: Decomposition, targets: Float[np.ndarray, "types targets"]
) -> Float[np.ndarray, "types targets"]:
    """Compute each target minus its prediction by the regression on the types of the other nine folds; NaN if these
    types do not determine the slope.

    Args:
        decomposition: the decomposition of the embeddings with these targets.
    """
    n = decomposition.n_types
    fold = folds(decomposition.n_types)
    whitening = (decomposition.components[: decomposition.rank] / decomposition.singular[: decomposition.rank, None]).T
    along = np.vstack([decomposition.along[: decomposition.rank], np.sqrt(n) * decomposition.level])
    errors = np.full_like(targets, np.nan)
    for number in range(min(n, _FOLDS)):
        held_out = np.flatnonzero(fold == number)
        y = targets[held_out]
        gram = np.eye(len(along), order="F")
        right_side = along.copy()
        for where, block in _centred(embeddings, held_out, decomposition):
            rows = np.column_stack([block @ whitening, np.full(len(block), 1 / np.sqrt(n))])
            gram = dsyrk(-1, rows, beta=1, c=gram, trans=1, lower=1, overwrite_c=1)
            right_side -= rows.T @ y[where]
        slopes = _solved(gram, right_side)
        along_axes, intercepts = whitening @ slopes[:-1], slopes[-1] / np.sqrt(n)
        for where, block in _centred(embeddings, held_out, decomposition):
            errors[held_out[where]] = y[where] - block @ along_axes - intercepts
    return errors


def _centred(
    embeddings: Embeddings, chosen: Int[np.ndarray, " types"], decomposition: Decomposition
) -> Iterator[tuple[slice, Float[np.ndarray, "types d_model"]]]:
    """The embeddings of some types as in the decomposition: scaled, minus the mean of all types."""
    used = np.arange(embeddings.W_U.shape[1]) if embeddings.use is None else np.flatnonzero(embeddings.use)
    mask = np.zeros(embeddings.W_U.shape[1], dtype=bool)
    mask[used[chosen]] = True
    for where, block in embeddings.of(mask).blocks():
        yield where, np.ldexp(block.cpu().numpy(), -decomposition.exponent) - decomposition.mean


def _solved(gram: Float[np.ndarray, "d d"], along: Float[np.ndarray, "d targets"]) -> Float[np.ndarray, "d targets"]:
    """`gram⁻¹ along` for a positive definite matrix (given by its lower triangle); NaN if it is singular."""
    try:
        factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return np.full_like(along, np.nan)
    return cho_solve(factor, along) if np.diag(factor[0]).min() > _OPEN else np.full_like(along, np.nan)
