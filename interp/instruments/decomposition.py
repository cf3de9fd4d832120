"""The singular value decomposition of output embeddings, computed in blocks of types.

With `X` the centred embeddings `[types, d_model]` and `Y` centred targets `[types, targets]`, least squares and
principal components need only the triangle R of `[X Y] = Q R`, which can be updated with one block of rows at a time:

    [R₀; block] = Q' R₁,    R = [R_X C; 0 R_Y],    R_X = U S Vᵀ,    X = (Q_X U) S Vᵀ.

Nothing is squared, so no digits are lost for badly conditioned embeddings, as would happen with `XᵀX`.

Source: Demmel, Grigori, Hoemmen and Langou, "Communication-optimal parallel and sequential QR and LU factorizations",
SIAM Journal on Scientific Computing 34, 2012 (TSQR); LAPACK's dtpqrt.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg.lapack import dtpqrt
from sklearn.utils.extmath import svd_flip

from interp.models.embeddings import Embeddings

__all__ = ["Decomposition", "decompose"]
__dir__ = __all__.copy

_PANEL = 32  # columns that dtpqrt transforms together


@dataclass(frozen=True, eq=False)
class Decomposition:
    """`X = U S Vᵀ` for the centred embeddings of n types, times `2^-exponent`, and the targets in these terms.

    `mean` is the mean of the embeddings, `sizes` the norms of the columns of X, and `singular` is S in decreasing
    order. `components` is Vᵀ: its rows are principal axes, with a positive largest coordinate as in scikit-learn.
    `level` has the means of the targets, `along` is Uᵀ Y, and `beyond` is the part of the targets' squares outside of
    the embeddings' span.
    """

    n_types: int
    exponent: int
    mean: Float[np.ndarray, " d_model"]
    sizes: Float[np.ndarray, " d_model"]
    singular: Float[np.ndarray, " d_model"]
    components: Float[np.ndarray, "d_model d_model"]
    level: Float[np.ndarray, " targets"]
    along: Float[np.ndarray, "d_model targets"]
    beyond: Float[np.ndarray, " targets"]

    @property
    def rank(self) -> int:
        """The number of singular values above `ε max(n, d)` times the largest, with ε of float64, as in
        `np.linalg.lstsq`."""
        cutoff = np.finfo(np.float64).eps * max(self.n_types, len(self.singular)) * self.singular[0]
        return int((self.singular > cutoff).sum())

    @property
    def slopes(self) -> Float[np.ndarray, "d_model targets"]:
        """The slopes of least norm of each target on the (scaled) embeddings that minimise the squares."""
        return self.components[: self.rank].T @ (self.along[: self.rank] / self.singular[: self.rank, None])

    @property
    def r2(self) -> Float[np.ndarray, " targets"]:
        """The share of each target's sum of squares that the embeddings explain."""
        unexplained = self.beyond + (self.along[self.rank :] ** 2).sum(0)
        return 1 - unexplained / (self.beyond + (self.along**2).sum(0))


def decompose(embeddings: Embeddings, targets: Float[np.ndarray, "types targets"]) -> Decomposition:
    """Decompose the centred embeddings of two or more types, with targets over the same types.

    Embeddings are first divided by a power of two, so that no scale of them overflows.

    Examples:
        >>> found = decompose(Embeddings(torch.tensor([[0.0, 3.0, 6.0], [0.0, 0.0, 0.0]])), np.array([[1.0], [2], [3]]))
        >>> found.rank, found.components[0].tolist(), found.r2.round(12).tolist()
        (1, [1.0, 0.0], [1.0])
    """
    d = embeddings.d_model
    level = targets.mean(0)
    _, exponent = math.frexp(embeddings.largest)
    mean = np.zeros(d)
    for _, block in embeddings.blocks():
        mean += np.ldexp(block.cpu().numpy(), -exponent).sum(0) / len(embeddings)
    R = np.zeros((d + targets.shape[1],) * 2, order="F")
    for where, block in embeddings.blocks():
        columns = torch.empty(len(R), len(block), dtype=torch.float64)
        columns[:d] = block.mT
        rows = columns.numpy().T
        np.ldexp(rows[:, :d], -exponent, out=rows[:, :d])
        rows[:, :d] -= mean
        rows[:, d:] = targets[where] - level
        R, *_ = dtpqrt(0, min(_PANEL, len(R)), R, rows, overwrite_a=True, overwrite_b=True)
    R_X, C, R_Y = R[:d, :d], R[:d, d:], R[d:, d:]
    U, S, Vt = np.linalg.svd(R_X)
    U, Vt = svd_flip(U, Vt, u_based_decision=False)
    sizes = np.linalg.norm(R_X, axis=0)
    beyond = (R_Y**2).sum(0)
    return Decomposition(len(embeddings), exponent, mean, sizes, S, Vt, level, U.T @ C, beyond)
