"""Attention scores by dimension (Maruta and Matsuzaki), sinks (Gu et al. 2025), massive activations (Sun et al. 2024).

Row vectors; m is a query, n a key, j a dimension, d' the size of a head.
"""

from collections.abc import Callable

import numpy as np
from scipy import stats


def angles(position: int, rotary_dim: int, base: float) -> np.ndarray:
    """By how much RoPE turns each pair of coordinates i: position / base^(2i / rotary_dim)."""
    return np.array([position / base ** (2 * i / rotary_dim) for i in range(rotary_dim // 2)])


def rotation(cos: np.ndarray, sin: np.ndarray, d_head: int, *, adjacent: bool) -> np.ndarray:
    """R [d', d'] of RoPE, in R k for a column k, from the cosines and sines of the angles of the pairs.

    Pair i is (2i, 2i + 1) if pairs are adjacent, else (i, i + number of pairs). Other coordinates do not turn.
    """
    R = np.eye(d_head)
    for i in range(len(cos)):
        a, b = (2 * i, 2 * i + 1) if adjacent else (i, i + len(cos))
        R[a, a], R[a, b], R[b, a], R[b, b] = cos[i], -sin[i], sin[i], cos[i]
    return R


def contributions(
    x: np.ndarray, q: np.ndarray, W_K: np.ndarray, R: list[np.ndarray], sees: Callable[[int, int], bool]
) -> np.ndarray:
    """C [head, m, n, j] = [W_K Rₙᵀ (Rₘ qₘ)]_j xₙ_j (Maruta and Matsuzaki, eq. 6); NaN where query m does not see key n.

    x [pos, d] is the input of the keys, or the part of it that counts, q [head, pos, d'], W_K [key head, d, d']. Head h
    reads key head h // (heads / key heads). Without RoPE, R = 1 and Σ_j C_j + qₘ·b_K is the score before ÷ √d'.
    """
    n_heads, length, _ = q.shape
    C = np.full((n_heads, length, length, x.shape[1]), np.nan)
    for m in range(length):
        for n in range(length):
            for h in range(n_heads if sees(m, n) else 0):
                key_head = h // (n_heads // len(W_K))
                C[h, m, n] = (W_K[key_head] @ R[n].T @ (R[m] @ q[h, m])) * x[n]
    return C


def key_bias(q: np.ndarray, b_K: np.ndarray, R: list[np.ndarray], sees: Callable[[int, int], bool]) -> np.ndarray:
    """The part (Rₘ qₘ)·(Rₙ b_K) of the score [head, m, n], which is no dimension's; NaN where m does not see n."""
    n_heads, length, _ = q.shape
    part = np.full((n_heads, length, length), np.nan)
    for m in range(length):
        for n in range(length):
            for h in range(n_heads if sees(m, n) else 0):
                part[h, m, n] = (R[m] @ q[h, m]) @ (R[n] @ b_K[h // (n_heads // len(b_K))])
    return part


def fewest(shares: np.ndarray, whole: float) -> int:
    """The smallest number of shares, largest first, that make up 90 % of the whole."""
    total = 0.0
    for count, share in enumerate(sorted(shares, reverse=True), 1):
        total += share
        if total >= 0.9 * whole - 1e-12:
            return count
    raise AssertionError(f"all shares make up {total} of {whole}")


def by_class(
    alpha: np.ndarray, v: np.ndarray, of_key: np.ndarray, name: str, *, causal: bool
) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Attention to the keys of a class, summed over queries (Clark et al. 2019; Kobayashi et al. 2020).

    alpha [head, m, n], the values v [head, n, d] after W_O, and the class of each key [n]. Returns Σ_m Σ_n α and
    Σ_m Σ_n ‖α v‖ by head, what uniform attention would give, and the number of pairs.
    """
    received, weighted, uniform, n_pairs = np.zeros(len(alpha)), np.zeros(len(alpha)), 0.0, 0
    for m in range(len(of_key)):
        visible = of_key[: m + 1] if causal else of_key
        keys = np.flatnonzero(visible == name)
        received += alpha[:, m, keys].sum(-1)
        weighted += np.linalg.norm(alpha[:, m, keys, None] * v[:, keys], axis=-1).sum(-1)
        uniform += len(keys) / len(visible)
        n_pairs += len(keys)
    return received, weighted, uniform, n_pairs


def sink(
    n: int, alpha: np.ndarray, scores: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, viewers: np.ndarray
) -> dict[str, list[float]]:
    """Key n of a head as a sink: α_n = mean_m A_mn over the queries that view it, and its scores q·k = |q| |k| cos.

    alpha and scores q·k are [m, n], q, k and v [pos, d']. A list has one value per text, or one per query.
    """
    sizes, key_norm = np.linalg.norm(q[viewers], axis=1), float(np.linalg.norm(k[n]))
    return {
        "attention": [float(alpha[viewers, n].mean())],
        "score": scores[viewers, n].tolist(),
        "cosine": (scores[viewers, n] / sizes / key_norm).tolist(),
        "query_norm": sizes.tolist(),
        "key_norm": [key_norm] * len(viewers),
        "value_norm": [float(np.linalg.norm(v[n]))],
    }


def massive(x: np.ndarray) -> tuple[list[tuple[int, int]], float]:
    """(position, dimension) where |x| > 100 and > 1,000 times the median |x| of this state [pos, d], and that median.

    The median is the lower of two in the middle.
    """
    size = np.abs(x)
    median = float(np.sort(size, axis=None)[(size.size - 1) // 2])
    return [(p, j) for p, j in np.argwhere((size > 100) & (size > 1000 * median)).tolist()], median


def peak(states: np.ndarray, position: int, dim: int) -> int:
    """The state [state, pos, d] in which a massive activation of this position and dimension is largest."""
    heights = [abs(x[position, dim]) if (position, dim) in massive(x)[0] else 0.0 for x in states]
    return int(np.argmax(heights))


def z(x: np.ndarray) -> np.ndarray:
    """(x − μ) / σ of the means of d dimensions; an outlier has |z| > k."""
    return (x - x.mean()) / x.std()


def robust_z(x: np.ndarray) -> np.ndarray:
    """(x − median) / (1.4826 MAD), MAD = median |x − median|."""
    apart = x - np.median(x)
    return apart / (1.4826 * np.median(np.abs(apart)))


def in_noise(d: int, k: float) -> float:
    """How many of d draws from N(0, 1) lie beyond ±k on average."""
    return float(2 * d * stats.norm.sf(k))
