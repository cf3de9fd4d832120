"""Intervals from groups of texts (Student's t, and the jackknife of Busing et al. 1999), and p of many tests."""

import numpy as np
from scipy import stats


def degrees(values: np.ndarray) -> np.ndarray:
    """Degrees of freedom of G values [G, ...]: 2 / (2 / (G − 1) + max(k, 0) / G), k their excess kurtosis.

    2 / (G − 1) + k / G is the relative variance of a sample variance, so this is Satterthwaite's number: G − 1 for a
    normal distribution, and fewer for heavy tails.
    """
    n_groups = len(values)
    excess = np.nan_to_num(np.maximum(stats.kurtosis(values), 0))
    return 2 / (2 / (n_groups - 1) + excess / n_groups)


def half_width(values: np.ndarray) -> np.ndarray:
    """Half the 95 % interval of the mean of G equal groups' values [G, ...], or of their pseudo-values."""
    return stats.t.ppf(0.975, degrees(values)) * stats.sem(values)


def pseudo_values(whole: np.ndarray, others: np.ndarray) -> np.ndarray:
    """G θ − (G − 1) θ₋ᵢ from a statistic of all groups and of all but each of the G groups [G, ...]."""
    n_groups = len(others)
    return n_groups * whole - (n_groups - 1) * np.asarray(others)


def jackknife(whole: np.ndarray, others: np.ndarray, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The statistic corrected for bias, G θ − Σᵢ (1 − mᵢ / n) θ₋ᵢ, and half its 95 % interval.

    θ₋ᵢ is the statistic without group i, of mᵢ of the n values; the variance is (G − 1) Var(θ₋ᵢ).
    """
    n_groups, n = len(sizes), sum(sizes)
    corrected = n_groups * whole - sum((1 - m / n) * other for m, other in zip(sizes, others, strict=True))
    variance = (n_groups - 1) * np.var(others, axis=0)
    return corrected, stats.t.ppf(0.975, degrees(np.asarray(others))) * np.sqrt(variance)


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """p adjusted for the false discovery rate: of the i-th smallest of n, min over j ≥ i of n p₍ⱼ₎ / j, at most 1."""
    n, order = len(p), np.argsort(p)
    adjusted = np.empty(n)
    for i in range(n):
        adjusted[order[i]] = min([1.0, *(n * p[order[j]] / (j + 1) for j in range(i, n))])
    return adjusted
