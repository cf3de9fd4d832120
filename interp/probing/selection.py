"""Scores of single dimensions: how well does each alone tell two classes apart?"""

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats
from sklearn.feature_selection import f_classif, mutual_info_classif

Selector = Literal["welch", "paired", "difference", "f", "mutual_information"]
SELECTORS: tuple[Selector, ...] = ("welch", "paired", "difference", "f", "mutual_information")


def welch(
    good: Float[np.ndarray, "good d"], bad: Float[np.ndarray, "bad d"]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Welch's t and two-sided p of every dimension, in float64 from two-pass variances (ddof 1).

    A dimension without variance has t = 0 and p = 1.
    """
    good, bad = good.astype(np.float64), bad.astype(np.float64)
    varies = (np.ptp(good, axis=0) > 0) | (np.ptp(bad, axis=0) > 0)
    t, p = np.zeros(len(varies)), np.ones(len(varies))
    if varies.any():
        result = stats.ttest_ind(good[:, varies], bad[:, varies], equal_var=False)
        t[varies], p[varies] = result.statistic, result.pvalue
    return t, p


def scores(
    good: Float[np.ndarray, "good d"], bad: Float[np.ndarray, "bad d"], selector: Selector, *, seed: int = 0
) -> Float[np.ndarray, " d"]:
    """How strongly each dimension tells good from bad, larger is more; 0 without variance.

    | selector | score |
    |---|---|
    | `welch`, `paired` | the size of Welch's t, and of the t of the differences within pairs |
    | `difference` | the size of the difference of means |
    | `f` | the ANOVA F |
    | `mutual_information` | scikit-learn's nearest-neighbour estimate |
    """
    if selector == "welch":
        return np.abs(welch(good, bad)[0])
    if selector == "difference":
        return np.abs(good.mean(0, dtype=np.float64) - bad.mean(0, dtype=np.float64))
    if selector == "paired":
        difference = good.astype(np.float64) - bad
        spread = difference.std(0, ddof=1)
        t = np.abs(difference.mean(0)) * np.sqrt(len(difference))
        return np.divide(t, spread, out=np.zeros_like(t), where=spread > 0)
    X = np.concatenate([good, bad]).astype(np.float64)
    y = np.repeat([1, 0], [len(good), len(bad)])
    if selector == "f":
        f, varies = np.zeros(X.shape[1]), np.ptp(X, axis=0) > 0
        f[varies] = f_classif(X[:, varies], y)[0]
        return f
    return mutual_info_classif(X, y, random_state=seed)


def top(values: Float[np.ndarray, " d"], k: int) -> Bool[np.ndarray, " d"]:
    """The k largest, the first of equals. Raises ValueError for k outside 1 … d."""
    if not 1 <= k <= len(values):
        raise ValueError(f"k must be 1 … {len(values)} dimensions, found {k}")
    chosen = np.zeros(len(values), dtype=bool)
    chosen[np.argsort(-values, kind="stable")[:k]] = True
    return chosen


def adjusted_p(p: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """Benjamini and Hochberg's adjusted p-values: the false discovery rate at which each dimension counts."""
    return stats.false_discovery_control(p, method="bh")
