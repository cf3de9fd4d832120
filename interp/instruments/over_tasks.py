"""Means over tasks and over pairs of tasks, with their intervals, and what they are compared with.

Tasks of one phenomenon (BLiMP's `linguistics_term`) are kin. So if every task has one, values are averaged over the
tasks of each phenomenon first, and a mean and its interval are over phenomena; otherwise they are over tasks.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from interp.results.findings import Finding
from interp.results.verdicts import judged
from interp.support.words import count

__all__ = ["FEWEST_PAIRED", "FEWEST_TASKS", "Mean", "Units", "apart", "judged_over", "left_out", "mean_over"]
__all__ += ["most_general", "off_diagonal", "random_signs"]
__dir__ = __all__.copy

FEWEST_TASKS = 5
"""With fewer tasks (or phenomena), a mean over them has no interval."""
FEWEST_PAIRED = 8
"""With fewer tasks (or phenomena), a mean over pairs of them has no interval."""
_DRAWS = 999
_END = 0.975
_ALIKE = 1e-12  # values that differ by less are equal but for rounding


class Units(NamedTuple):
    """What a mean is over: the phenomena of the tasks, or the tasks themselves.

    Examples:
        >>> units = Units.of(["a", "b", "c"], {"a": "agreement", "b": "agreement", "c": "islands"})
        >>> units.said, units.means(np.array([1.0, 3.0, 5.0])).tolist()
        ('2 phenomena', [2.0, 5.0])
        >>> Units.of(["a", "b", "c"], {"a": "agreement", "b": "agreement"}).said
        '3 tasks'
    """

    number: Int[np.ndarray, " tasks"]
    name: Literal["phenomenon", "task"]

    @classmethod
    def of(cls, tasks: Sequence[Any], phenomena: Mapping[Any, Any]) -> "Units":
        """Those of some tasks, from the phenomenon of each task; a task without one has an empty string or nothing."""
        labels = [phenomena.get(task) or "" for task in tasks]
        if not all(labels):
            return cls(np.arange(len(tasks)), "task")
        return cls(np.unique(labels, return_inverse=True)[1], "phenomenon")

    @property
    def n(self) -> int:
        return len(set(self.number.tolist()))

    @property
    def said(self) -> str:
        """Their number, in words."""
        return count(self.n, self.name)

    def means(self, values: Float[np.ndarray, "tasks *more"]) -> Float[np.ndarray, "units *more"]:
        """The mean of each unit."""
        return np.stack([values[self.number == unit].mean(0) for unit in range(self.n)])


class Mean(NamedTuple):
    """A mean over n units with the ends of its 95 % interval, which are NaN for fewer units than `fewest`, and if the
    units do not differ: then they say nothing about how much others would."""

    value: float
    low: float
    high: float
    n: int
    unit: str
    fewest: int = FEWEST_TASKS

    @property
    def no_interval(self) -> str:
        """Why there is no interval; empty if there is one."""
        if self.n < self.fewest:
            return "a single task" if self.n == 1 and self.unit == "task" else f"fewer than {self._fewest}"
        return "" if np.isfinite(self.low) else f"the {count(2, self.unit).split()[1]} do not differ"

    @property
    def because(self) -> str:
        """How many units would be the fewest; empty if there are as many."""
        return f"{self._fewest} are the fewest that can decide it" if self.n < self.fewest else ""

    @property
    def _fewest(self) -> str:
        return count(self.fewest, self.unit)


def judged_over(mean: Mean, **options: Any) -> Finding:
    """A finding about a mean over tasks, by the rule of `interp.results.verdicts`; see `judged` for the rest."""
    options.setdefault("no_interval", mean.no_interval)
    if mean.because:
        options["because"] = mean.because
    return judged(value=mean.value, low=mean.low, high=mean.high, sample=(mean.n, mean.unit), **options)


def mean_over(values: Float[np.ndarray, " tasks"], units: Units) -> Mean:
    """The mean over units, with an interval by Student's t.

    Examples:
        >>> mean = mean_over(np.array([0.1, 0.2, 0.3, 0.4, 0.5]), Units(np.arange(5), "task"))
        >>> round(mean.value, 3), round(mean.low, 3), round(mean.high, 3)
        (0.3, 0.104, 0.496)
        >>> mean_over(np.array([0.1, 0.2]), Units(np.arange(2), "task")).because
        '5 tasks are the fewest that can decide it'
    """
    unit_means = units.means(values) if units.n else np.full(1, np.nan)
    reach = np.nan
    if units.n >= FEWEST_TASKS and np.ptp(unit_means) > _ALIKE:
        reach = float(stats.sem(unit_means) * stats.t.ppf(_END, units.n - 1))
    value = float(unit_means.mean())
    return Mean(value, value - reach, value + reach, units.n, units.name)


def left_out(values: Float[np.ndarray, " units"]) -> float:
    """Half the width of the 95 % interval of a value, from what it is without each unit: the delete-one jackknife with
    Student's t. NaN for fewer units than `FEWEST_PAIRED`, and if they do not differ."""
    n = len(values)
    if n < FEWEST_PAIRED or not np.ptp(values) > _ALIKE:
        return np.nan
    error = np.sqrt((n - 1) / n * ((values - values.mean()) ** 2).sum())
    return float(error * stats.t.ppf(_END, n - 1))


def off_diagonal(matrix: Float[np.ndarray, "tasks tasks"], units: Units) -> Mean:
    """The mean over pairs of different units, with an interval by `left_out`: a unit is left out with its row and its
    column. With phenomena, pairs of tasks of the same one do not count.

    The mean is a U-statistic. Arvesen, "Jackknifing U-statistics", Annals of Mathematical Statistics 40, 1969.
    """
    n = units.n
    between = _between(matrix, units)
    if n < 2:
        return Mean(np.nan, np.nan, np.nan, n, units.name, FEWEST_PAIRED)
    total = between.sum()
    of_unit = between.sum(0) + between.sum(1)
    value = float(total / (n * (n - 1)))
    reach = left_out((total - of_unit) / ((n - 1) * (n - 2))) if n > 2 else np.nan
    return Mean(value, value - reach, value + reach, n, units.name, FEWEST_PAIRED)


def random_signs(matrix: Float[np.ndarray, "tasks tasks"], units: Units) -> Float[np.ndarray, " draws"]:
    """The mean of `off_diagonal` in 999 draws, in each of which every unit has a random sign, for its row and its
    column: what is expected of cosines if the sentences of a unit's pairs were swapped or not by chance."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (_DRAWS, units.n))
    n_pairs = max(1, units.n * (units.n - 1))
    return np.asarray(((signs @ _between(matrix, units)) * signs).sum(1) / n_pairs)


def _between(matrix: Float[np.ndarray, "tasks tasks"], units: Units) -> Float[np.ndarray, "units units"]:
    """The mean of each block of tasks of two units, with zeros on the diagonal."""
    blocks = units.means(units.means(np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)).T).T
    np.fill_diagonal(blocks, 0.0)
    return blocks


def apart(
    values: Float[np.ndarray, " tasks"], controls: Float[np.ndarray, "draws tasks"], units: Units
) -> tuple[Mean, Float[np.ndarray, " draws"]]:
    """How far values lie above those of controls on the same tasks: the mean difference from the mean control, and for
    each draw of the control its own. What tasks have in common with their controls is not part of the interval."""
    middle = controls.mean(0)
    return mean_over(values - middle, units), units.means((controls - middle).T).mean(0)


def most_general(
    matrix: Float[np.ndarray, "tasks tasks"], units: Units
) -> tuple[int, Mean, Float[np.ndarray, " draws"]]:
    """Which task (row) has the largest mean over other units (columns), this mean, and the same for 999 random draws,
    in each of which every unit's columns have one random sign, common to all rows. So the largest of many is compared
    with the largest of as many, and rows may be as similar as they like.

    Args:
        matrix: the row's probe on the column's pairs, minus what it would be by chance: swapping the two sentences of
            all pairs turns its sign.
    """
    columns = units.means(matrix.T).T
    other = units.number[:, None] != np.arange(units.n)
    weighted = np.where(other, columns, 0.0) / np.maximum(other.sum(1, keepdims=True), 1)
    best = int(weighted.sum(1).argmax())
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (_DRAWS, units.n))
    elsewhere = columns[best, other[best]]
    return best, mean_over(elsewhere, Units(np.arange(len(elsewhere)), units.name)), (signs @ weighted.T).max(1)
