"""Cosines of directions, overlaps of subspaces, and their distributions when one of the two is rotated at random.

A uniformly drawn rotation R (by Haar measure) takes a direction anywhere on the sphere, so

    cos²(a, R b) ~ Beta(½, (d − 1)/2).

The overlap of two subspaces is the mean squared cosine of their principal angles,

    overlap(U, V) = ‖P_U P_V‖² / min(k, m) = Σ cos² θ_i / min(k, m),

1 where one lies in the other, and max(k, m)/d on average over rotations. Its other quantiles are simulated.
"""

import numpy as np
from jaxtyping import Float
from scipy import stats

__all__ = ["cosines", "large_cosine", "overlaps", "p_of_cosine", "p_of_overlap", "random_overlaps"]
__dir__ = __all__.copy

_LEVEL = 0.95


def cosines(a: Float[np.ndarray, "#n d_model"], b: Float[np.ndarray, "#n d_model"]) -> Float[np.ndarray, " n"]:
    """The cosine of each row of one array with the same row of the other, or with its only row.

    Examples:
        >>> cosines(np.array([[1.0, 0.0], [2.0, 2.0]]), np.array([[0.0, 3.0]])).round(3).tolist()
        [0.0, 0.707]
    """
    a = a / np.linalg.norm(a, axis=1, keepdims=True)
    b = b / np.linalg.norm(b, axis=1, keepdims=True)
    cosine: Float[np.ndarray, " n"] = (a * b).sum(1).clip(-1, 1)
    return cosine


def overlaps(a: Float[np.ndarray, "#n k d_model"], b: Float[np.ndarray, "#n m d_model"]) -> Float[np.ndarray, " n"]:
    """The overlap of the spans of k and of m vectors, row by row, or with the only row of the other array.

    Vectors must be linearly independent.

    Examples:
        >>> plane, line = np.array([[[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]]), np.array([[[0.0, 1.0, 1.0]]])
        >>> overlaps(plane, line).round(6).tolist()
        [0.5]
    """
    basis_a, _ = np.linalg.qr(a.swapaxes(1, 2))
    basis_b, _ = np.linalg.qr(b.swapaxes(1, 2))
    shared = basis_a.swapaxes(1, 2) @ basis_b
    overlap: Float[np.ndarray, " n"] = (shared**2).sum((1, 2)) / min(shared.shape[1:])
    return overlap.clip(0, 1)


def large_cosine(d_model: int) -> float:
    """The |cosine| that a random direction exceeds, with a given one, in 5 of 100 draws.

    Examples:
        >>> round(large_cosine(768), 3)
        0.071
    """
    return float(np.sqrt(stats.beta.ppf(_LEVEL, 0.5, (d_model - 1) / 2)))


def p_of_cosine(cosine: float, d_model: int) -> float:
    """The probability that a random direction has at least this |cosine| with a given one, in closed form.

    Examples:
        >>> round(p_of_cosine(-0.07075, 768), 2)
        0.05
    """
    return float(stats.beta.sf(cosine**2, 0.5, (d_model - 1) / 2))


def random_overlaps(
    d_model: int, largest: int, *, draws: int = 999, seed: int = 0
) -> Float[np.ndarray, "draws largest largest"]:
    """Products of the first dimensions with randomly rotated ones. They give the random overlaps of subspaces of up to
    `largest` dimensions: for k and m dimensions these are `(found[:, :k, :m]²).sum((1, 2)) / min(k, m)`.

    Examples:
        >>> found = random_overlaps(64, 8)
        >>> round(float((found[:, :8, :4] ** 2).sum((1, 2)).mean() / 4), 2)  # 8/64
        0.12
    """
    rng = np.random.default_rng(seed)
    drawn = (rng.standard_normal((d_model, largest)) for _ in range(draws))
    return np.stack([np.linalg.qr(frame)[0][:largest] for frame in drawn])


def p_of_overlap(overlap: float, by_chance: Float[np.ndarray, " draws"]) -> float:
    """`(1 + #{draws with as large an overlap}) / (1 + draws)`.

    Examples:
        >>> p_of_overlap(0.5, np.array([0.1, 0.2, 0.6]))
        0.5
    """
    return float((1 + (by_chance >= overlap).sum()) / (1 + len(by_chance)))
