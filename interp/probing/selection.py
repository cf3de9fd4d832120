"""Scores of single dimensions: how well does each alone tell two classes apart?"""

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats
from sklearn.feature_selection import mutual_info_classif

from interp.probing.options import Selector

__all__ = ["scores", "top", "welch"]


def welch(
    good: Float[np.ndarray, "good d"], bad: Float[np.ndarray, "bad d"], *, pooled: bool = False
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Welch's t and two-sided p of every dimension, in float64 from two-pass variances (ddof 1); Student's if `pooled`.

    A dimension that is constant within each class has t = ±∞ and p = 0 where the two constants differ, else t = 0 and
    p = 1.
    """
    good, bad = good.astype(np.float64), bad.astype(np.float64)
    varies = (np.ptp(good, axis=0) > 0) | (np.ptp(bad, axis=0) > 0)
    difference = good[0] - bad[0]
    t = np.where(difference == 0, 0.0, np.copysign(np.inf, difference))
    p = np.where(difference == 0, 1.0, 0.0)
    if varies.any():
        result = stats.ttest_ind(good[:, varies], bad[:, varies], equal_var=pooled)
        t[varies], p[varies] = result.statistic, result.pvalue
    return t, p


def scores(
    good: Float[np.ndarray, "good d"], bad: Float[np.ndarray, "bad d"], selector: Selector, *, seed: int = 0
) -> Float[np.ndarray, " d"]:
    """How strongly each dimension tells good from bad, larger is more; 0 where it is constant, ∞ where it is constant
    within each class but not the same (`difference` and `mutual_information` stay finite).

    | selector | score |
    |---|---|
    | `welch`, `paired` | the size of Welch's t, and of the t of the differences within pairs |
    | `difference` | the size of the difference of means |
    | `f` | the ANOVA F, for two classes the square of Student's t |
    | `mutual_information` | scikit-learn's nearest-neighbour estimate |
    """
    good, bad = good.astype(np.float64), bad.astype(np.float64)
    if selector == "difference":
        return np.abs(good.mean(0) - bad.mean(0))
    if selector == "mutual_information":
        labels = np.repeat([1, 0], [len(good), len(bad)])
        return np.asarray(mutual_info_classif(np.concatenate([good, bad]), labels, random_state=seed), dtype=np.float64)
    if selector == "paired":
        good, bad = good - bad, np.zeros_like(bad)
    t = np.abs(welch(good, bad, pooled=selector == "f")[0])
    return t**2 if selector == "f" else t


def top(values: Float[np.ndarray, " d"], k: int) -> Bool[np.ndarray, " d"]:
    """The k largest, the first of equals. Raises ValueError for k outside 1 … d."""
    if not 1 <= k <= len(values):
        raise ValueError(f"k must be 1 … {len(values)} dimensions, found {k}")
    chosen = np.zeros(len(values), dtype=bool)
    chosen[np.argsort(-values, kind="stable")[:k]] = True
    return chosen
