"""Sparse probes: gates of Louizos et al. 2018, Welch's t, and what probes and tasks share."""

import itertools
import math

import numpy as np
import torch

BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1
"""Temperature and stretch of the hard-concrete distribution."""


def sampled_gate(a: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """z = clip(s̄, 0, 1), s̄ = s (ζ − γ) + γ, s = σ((log u − log(1 − u) + a) / β), u uniform (eqs. 10 and 11)."""
    s = torch.sigmoid((u.log() - (1 - u).log() + a) / BETA)
    return (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def final_gate(a: torch.Tensor) -> torch.Tensor:
    """ẑ = clip(σ(a) (ζ − γ) + γ, 0, 1), without β (eq. 13)."""
    return (torch.sigmoid(a) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def open_probability(a: torch.Tensor) -> torch.Tensor:
    """P(z ≠ 0) = σ(a − β log(−γ / ζ)) (eq. 12)."""
    return torch.sigmoid(a - BETA * math.log(-GAMMA / ZETA))


def cross_entropy(
    z: torch.Tensor, w: torch.Tensor, X: torch.Tensor, y: torch.Tensor, share: torch.Tensor
) -> torch.Tensor:
    """−Σ share (y log p + (1 − y) log(1 − p)), p = σ(X (w ⊙ z)), over sentences whose shares sum to 1."""
    p = torch.sigmoid(X @ (w * z))
    return -(share * (y * p.log() + (1 - y) * (1 - p).log())).sum()


def objective(bce: torch.Tensor, a: torch.Tensor, strength: float) -> torch.Tensor:
    """λ BCE + (1 − λ) R, where R is the mean over dimensions of P(z ≠ 0)."""
    return strength * bce + (1 - strength) * open_probability(a).mean()


def welch_t(x: np.ndarray, y: np.ndarray) -> float:
    """t = (x̄ − ȳ) / √(s²_x / n_x + s²_y / n_y), with variances around each mean (two passes, n − 1)."""
    return (x.mean() - y.mean()) / math.sqrt(x.var(ddof=1) / len(x) + y.var(ddof=1) / len(y))


def largest_spearman(ranked: np.ndarray) -> float:
    """√(1 − Σ (t³ − t) / (n³ − n)) over groups of t ties: the largest Spearman's ρ with a variable without ties."""
    _, ties = np.unique(ranked, return_counts=True)
    n = len(ranked)
    return math.sqrt(1 - (ties**3 - ties).sum() / (n**3 - n))


def jaccard(A: set[int], B: set[int]) -> float:
    """|A ∩ B| / |A ∪ B|."""
    return len(A & B) / len(A | B)


def jaccard_by_chance(n_a: int, n_b: int, d: int, rng: np.random.Generator) -> tuple[float, float]:
    """The mean Jaccard index of random sets of n_a and n_b of d dimensions, and its error, over 100,000 draws."""
    draws = 100_000
    order = rng.random((draws, d), dtype=np.float32).argsort(1)
    shared = (order[:, :n_a] < n_b).sum(1)  # without loss of generality, the second set is the first n_b
    index = shared / (n_a + n_b - shared)
    return float(index.mean()), float(index.std() / np.sqrt(draws))


def top(t: np.ndarray) -> set[int]:
    """The top 1 % of units by |t|, at least one, without units whose t is 0."""
    order = np.argsort(-np.abs(t), kind="stable")[: max(1, len(t) // 100)]
    return {int(i) for i in order if t[i] != 0}


def mean_over_pairs(matrix: np.ndarray, groups: list[str]) -> tuple[float, float]:
    """The mean over ordered pairs of different groups of a matrix [task, task], and its jackknife error.

    It is a U-statistic: a group leaves as training and as test group, √((n − 1)/n Σ (θ₋ᵢ − θ̄)²).
    """
    names = sorted(set(groups))
    blocks = {}
    for p, q in itertools.permutations(names, 2):
        rows, columns = ([i for i, name in enumerate(groups) if name == kind] for kind in (p, q))
        blocks[p, q] = np.mean([matrix[i, j] for i in rows for j in columns])
    without = [np.mean([value for pair, value in blocks.items() if name not in pair]) for name in names]
    n = len(names)
    error = math.sqrt((n - 1) / n * np.sum((np.array(without) - np.mean(without)) ** 2))
    return float(np.mean(list(blocks.values()))), error


def generality(matrix: np.ndarray, groups: list[str]) -> list[float]:
    """How well each task's probe does on other tasks: the mean over other groups of its mean over their tasks."""
    means = []
    for row, own in zip(matrix, groups, strict=True):
        others = {name for name in groups if name != own}
        means.append(float(np.mean([row[[name == other for name in groups]].mean() for other in others])))
    return means
