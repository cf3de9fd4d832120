"""Uncertainty of accuracies on minimal pairs: intervals and exact tests, and the tables of means over tasks."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from interp.instruments.over_tasks import Units, mean_over

__all__ = ["ALPHA", "ENDS", "averaged", "compared", "counted", "difference_interval", "mcnemar", "resampled"]
__all__ += ["share_interval", "wilson"]
__dir__ = __all__.copy

RESAMPLES = 1_000
ENDS = (0.025, 0.975)
ALPHA = 0.05  # the level for adjusted p-values


def wilson(
    share: Float[np.ndarray, "*dims"], n: Float[np.ndarray, "*#dims"] | float | int, confidence: float = 0.95
) -> tuple[Float[np.ndarray, "*dims"], Float[np.ndarray, "*dims"]]:
    """Wilson's interval of a proportion, `(p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)`, as in
    `scipy.stats.binomtest(…).proportion_ci(method="wilson")`, for many at once and any n > 0 (Wilson 1927)."""
    z = float(stats.norm.ppf((1 + confidence) / 2))
    middle = share + z**2 / (2 * n)
    reach = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    return np.asarray((middle - reach) / scale), np.asarray((middle + reach) / scale)


def share_interval(
    right: Float[np.ndarray, "*dims pairs"], *, sentences: int = 2, confidence: float = 0.95
) -> tuple[Float[np.ndarray, "*dims"], Float[np.ndarray, "*dims"]]:
    """Wilson's interval of an accuracy, from the share of each pair that is right.

    The two sentences of a pair are not independent observations. So n is `p(1 − p)` divided by the estimated variance
    of the mean over pairs, but at least the number of pairs and at most that of sentences (the effective sample size of
    a clustered survey). With `sentences=1`, n is the number of pairs, and the interval equals scipy's.
    """
    n = right.shape[-1]
    share = np.asarray(right.mean(-1))
    variance = np.asarray(right.var(-1) / n)
    spread = share * (1 - share)
    effective = np.divide(spread, variance, out=np.full_like(share, n), where=variance > 0)
    effective[(variance == 0) & (spread > 0)] = sentences * n
    return wilson(share, effective.clip(n, sentences * n), confidence)


def difference_interval(
    difference: Float[np.ndarray, "*dims pairs"],
) -> tuple[Float[np.ndarray, "*dims"], Float[np.ndarray, "*dims"]]:
    """95 % interval of a difference of two accuracies on the same pairs, from the difference on each pair. It is the
    normal interval for these pairs and two more: one on which the first is half a pair better, and one on which the
    second is.

    This follows Bonett and Price, "Adjusted Wald Confidence Interval for a Difference of Binomial Proportions Based on
    Paired Data", Journal of Educational and Behavioral Statistics 37, 2012, who add one to each count of pairs that
    differ; here it is a half, for one sentence. A bootstrap of few pairs is too narrow, and has no width if no pair
    differs.

    Examples:
        >>> low, high = difference_interval(np.zeros(20))
        >>> float(low.round(3)), float(high.round(3))
        (-0.063, 0.063)
    """
    n = difference.shape[-1] + 2
    mean = difference.sum(-1) / n
    variance = ((difference**2).sum(-1) + 2 * 0.5**2) / n - mean**2
    error = np.sqrt(variance / n)
    low = mean + float(stats.norm.ppf(ENDS[0])) * error
    high = mean + float(stats.norm.ppf(ENDS[1])) * error
    return np.asarray(low.clip(-1, 1)), np.asarray(high.clip(-1, 1))


def mcnemar(a: Float[np.ndarray, "*dims pairs"], b: Float[np.ndarray, "*dims pairs"]) -> Float[np.ndarray, "*dims"]:
    """McNemar's exact two-sided test: on the pairs on which a and b differ, is one of them right more often?

    p is `min(1, 2 P(X ≤ min(n_a, n_b)))`, where X is binomial with n_a + n_b trials of ½ (McNemar 1947), and 1 if they
    never differ. If sentences are scored, a pair counts for the one that gets more of its two sentences right, so that
    trials are independent.
    """
    above, below = (a > b).sum(-1), (a < b).sum(-1)
    p = 2 * stats.binom.cdf(np.minimum(above, below), above + below, 0.5)
    return np.asarray(np.minimum(1.0, p))


@lru_cache(maxsize=4)  # tasks and comparisons use the same weights, and drawing them takes longest
def resampled(n: int, seed: int = 0) -> Float[np.ndarray, "resample n"]:
    """Weights of 1,000 bootstrap resamples of n observations. Each row has sum 1. The array is read-only."""
    draws = np.random.default_rng([seed, n]).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    weights = np.asarray(draws / n, dtype=np.float64)
    weights.flags.writeable = False
    return weights


def averaged(
    hits: pd.DataFrame, pairs: Sequence[tuple[str, str]], phenomena: Mapping[Any, Any]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Means over tasks of each column of `hits`, and of differences of two columns, by state: (state, probe, accuracy,
    low, high) and (state, probe, against, difference, low, high).

    They are over phenomena, with 95 % intervals by `interp.instruments.over_tasks.mean_over`. The accuracies of a
    single task have intervals over its pairs, by `share_interval`.

    Args:
        phenomena: the phenomenon of each task, if it has one.
    """
    means, differences = [], []
    for state, part in hits.groupby("state", sort=False):
        shares = part.drop(columns=["state", "pair"]).dropna(axis=1)
        by_task = shares.groupby("task", sort=False).mean()
        units = Units.of(by_task.index.tolist(), phenomena)
        names = list(by_task)
        values = {name: by_task[name].to_numpy(dtype=np.float64) for name in names}
        if len(by_task) == 1:
            right = shares[names].to_numpy(dtype=np.float64).T
            ends = zip(names, right.mean(1), *share_interval(right), strict=True) if names else ()
            means += [(state, *row) for row in ends]
        else:
            means += [(state, name, *mean_over(values[name], units)[:3]) for name in names]
        for probe, against in pairs:
            if {probe, against} <= set(names):
                difference = mean_over(values[probe] - values[against], units)
                differences.append((state, probe, against, *difference[:3]))
    return (
        pd.DataFrame(means, columns=["state", "probe", "accuracy", "low", "high"]),
        pd.DataFrame(differences, columns=["state", "probe", "against", "difference", "low", "high"]),
    )


def compared(hits: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """For each task and state, the accuracy by one column of `hits` minus that by another.

    Intervals are by `difference_interval` over test pairs. p is by `mcnemar`, adjusted over the tasks of a state and
    comparison (Benjamini and Hochberg 1995). Returns the table `comparisons` of an `interp.probing.ProbingStudy`.
    """
    columns = ["task", "state", "probe", "against", "difference", "low", "high", "p"]
    rows = []
    for state, of_state in hits.groupby("state", sort=False):
        for probe, against in pairs:
            if probe not in hits or against not in hits:
                continue
            for task, part in of_state.dropna(subset=[probe, against]).groupby("task", sort=False):
                a = part[probe].to_numpy(dtype=np.float64)
                b = part[against].to_numpy(dtype=np.float64)
                low, high = difference_interval(a - b)
                rows.append(
                    (task, state, probe, against, (a - b).mean(), float(low), float(high), float(mcnemar(a, b)))
                )
    table = pd.DataFrame(rows, columns=columns)
    of_tasks = table.groupby(["state", "probe", "against"], sort=False)["p"]
    return table.assign(p_adjusted=of_tasks.transform(stats.false_discovery_control) if rows else [])


def counted(comparisons: pd.DataFrame) -> pd.DataFrame:
    """The number of tasks on which one column is above or below another according to `compared`, at an adjusted p of
    .05: (above, below, n_tasks) by state, probe and against."""
    by = ["state", "probe", "against"]
    significant = comparisons[comparisons["p_adjusted"] < ALPHA]
    counts = comparisons.groupby(by).size().rename("n_tasks").to_frame()
    for name, side in (("above", significant["difference"] > 0), ("below", significant["difference"] < 0)):
        counts[name] = significant[side].groupby(by).size().reindex(counts.index, fill_value=0)
    return counts[["above", "below", "n_tasks"]]
