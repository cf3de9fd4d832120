"""How many random neurons are worth the top ones: the accuracy of random sets by size, and the size at which it reaches
that of the dimensions with the largest |t|."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from einops import rearrange
from jaxtyping import Float, Int
from scipy.optimize import isotonic_regression

from interp.analyses.probing.group import Group, dense_on, ranked
from interp.instruments.uncertainty import ENDS, resampled, share_interval

__all__ = ["above_chance", "grid", "n_top", "random_sets", "reach"]

_FACTOR = 1.25
_DRAWS = 20
_AT_ONCE = 2**22  # numbers in the training states of one fit
_DOUBLINGS = 6  # sizes fitted for every task: 1, 2, 4 … 32 times as many as the top
_ENOUGH = 0.99  # larger sets are not needed if random ones reach the top in this share of resamples
_LEVEL = 0.98  # of the two-sided interval; its lower end is a one-sided bound at 99 %
CHANCE = 0.5
_ROUNDING = 1e-12


def n_top(d: int) -> int:
    """The number of the top 1 % of d dimensions, at least one: 40 of 4,096, 7 of 768, 1 of 192."""
    return max(1, d // 100)


def grid(first: int, last: int) -> list[int]:
    """Whole numbers from the first to the last, including every doubling of the first. Each is at most 1.25 times the
    one before it, or one more."""
    ks = [first] if first <= last else []
    while ks and ks[-1] < last:
        doubled = first * 2 ** (math.floor(math.log2(ks[-1] / first)) + 1)
        ks.append(min(max(ks[-1] + 1, math.floor(ks[-1] * _FACTOR)), doubled, last))
    return ks


def above_chance(right: Float[np.ndarray, "tasks pairs"]) -> Float[np.ndarray, " tasks"]:
    """The one-sided 99 % lower bound of each accuracy."""
    return share_interval(right, confidence=_LEVEL)[0]


def random_sets(group: Group) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables `random_k` and `equivalence` of some tasks; see `Sweep`.

    Random sets are drawn from the dimensions outside the top, 20 per task, and each larger set contains the smaller
    ones. Sizes of 1, 2, 4 … 32 times the top are fitted for every task. For tasks whose top is above chance, all sizes
    are fitted until the random sets reach it in 99 % of the resamples.
    """
    top = n_top(group.d)
    n_tasks = len(group.tasks)
    best, remainder = np.split(ranked(group), [top], axis=1)
    reached = group.right(dense_on(group, best))
    low = above_chance(reached)
    orders = [np.random.default_rng(draw).permuted(np.sort(remainder, axis=1), axis=1) for draw in range(_DRAWS)]
    n = group.n_test
    pairs = np.vstack([np.full(n, 1 / n), resampled(n)])  # the estimate first
    draws = np.vstack([np.full(_DRAWS, 1 / _DRAWS), resampled(_DRAWS)])
    levels = pairs @ reached.T
    unfinished = set(np.flatnonzero(low > CHANCE).tolist())
    doublings = {top * 2**i for i in range(_DOUBLINGS)}
    rows = []
    curves: list[dict[int, Float[np.ndarray, " resample"]]] = [{} for _ in range(n_tasks)]
    for k in grid(top, remainder.shape[1]):
        tested = list(range(n_tasks)) if k in doublings else sorted(unfinished)
        if not tested:
            continue
        right = _right(group, tested, [order[tested, :k] for order in orders])
        for task, task_right in zip(tested, right, strict=True):
            for draw, share in enumerate(task_right.mean(1)):
                rows.append((group.tasks[task], k, draw, share))
            if task in unfinished:
                curves[task][k] = ((pairs @ task_right.T) * draws).sum(1)
                enough = curves[task][k] >= levels[:, task] - _ROUNDING
                unfinished -= {task} if enough[0] and enough.mean() >= _ENOUGH else set()
    worth = [_worth(curves[task], levels[:, task], top) for task in range(n_tasks)]
    table = pd.DataFrame(worth, columns=["ratio", "low", "high", "censored"])
    columns = {"task": group.tasks, "n_top": top, "top_accuracy": reached.mean(1), "top_low": low}
    return pd.DataFrame(rows, columns=["task", "k", "draw", "accuracy"]), table.assign(**columns)


def _right(
    group: Group, tasks: list[int], sets: Sequence[Int[np.ndarray, "tasks k"]]
) -> Float[np.ndarray, "tasks sets groups"]:
    """What dense probes on each of these sets of dimensions get right, with several sets side by side in one fit."""
    at_once = max(1, _AT_ONCE // (len(tasks) * group.X[0].numel()))
    right: list[Float[np.ndarray, "sets_tasks groups"]] = []
    for start in range(0, len(sets), at_once):
        batch = sets[start : start + at_once]
        side_by_side = group.part(tasks * len(batch))
        right.append(side_by_side.right(dense_on(side_by_side, np.concatenate(batch))))
    return rearrange(np.concatenate(right), "(sets tasks) groups -> tasks sets groups", sets=len(sets))


def reach(ks: Sequence[int], accuracy: Float[np.ndarray, " k"], level: float) -> float:
    """The size at which an isotonic fit of the accuracies reaches a level, linear in log k between two sizes; ∞ if it
    does not."""
    fitted = isotonic_regression(accuracy).x
    above = np.flatnonzero(fitted >= level - _ROUNDING)
    if not len(above):
        return math.inf
    after = int(above[0])
    if after == 0:
        return float(ks[0])
    before = after - 1
    step = min(1.0, (level - fitted[before]) / (fitted[after] - fitted[before]))
    return float(ks[before] * (ks[after] / ks[before]) ** step)


def _worth(
    curves: dict[int, Float[np.ndarray, " resample"]], levels: Float[np.ndarray, " resample"], top: int
) -> tuple[float, float, float, bool]:
    """The ratio, its interval, and whether the sizes end before the ratio or its upper end; NaN without a curve."""
    if not curves:
        return math.nan, math.nan, math.nan, False
    ks = list(curves)
    last = max(curves) / top
    accuracy = np.stack(list(curves.values()), axis=1)
    ratios = np.array([reach(ks, *curve) for curve in zip(accuracy, levels, strict=True)]) / top
    low, high = np.quantile(ratios[1:].clip(max=last), ENDS)
    never = np.isinf(ratios)
    censored = never[0] or never[1:].mean() > 1 - ENDS[1]
    point = min(float(ratios[0]), last)
    return point, min(float(low), point), max(float(high), point), bool(censored)
