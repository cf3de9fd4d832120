"""Uncertainty of values computed from sums over groups of texts: the delete-one-group jackknife.

Texts are drawn independently of one another, but the tokens of a text are not. So groups of texts
(`interp.passes.groups`) are left out one at a time.

Sources: Busing, Meijer and van der Leeden, "Delete-m Jackknife for Unequal m", Statistics and Computing 9, 1999;
MacKinnon, Nielsen and Webb, "Fast and Reliable Jackknife and Bootstrap Methods for Cluster-Robust Inference", Journal
of Applied Econometrics 38, 2023.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy import stats

from interp.support.words import count

__all__ = ["FEWEST_TEXTS", "Jackknife", "about", "from_sums", "jackknife", "summed_others", "texts_read"]
__dir__ = __all__.copy

FEWEST_TEXTS = 20
"""With fewer texts (or pieces of longer texts) an interval is NaN, because it would contain the true value too rarely
(see docs/intervals.md)."""

_FEWEST_GROUPS = 10
_LEVEL = 0.95

Numbers: TypeAlias = Float[np.ndarray, "*shape"]


class Jackknife(NamedTuple):
    """A value, the value corrected for bias, half the width of its 95 % interval, and the least and the most that such
    a value can be.

    Examples:
        >>> share = Jackknife(np.array(0.95), np.array(1.02), np.array(0.1), least=0, most=1)
        >>> float(share.low.round(2)), float(share.high), float(share.centred.value)
        (0.85, 1.0, 1.0)
    """

    value: Numbers
    corrected: Numbers
    half: Numbers
    least: float | int = -math.inf
    most: float | int = math.inf

    @property
    def low(self) -> Numbers:
        """The lower end of the interval around the value."""
        return np.asarray(np.clip(self.value - self.half, self.least, self.most))

    @property
    def high(self) -> Numbers:
        """The upper end of the interval around the value."""
        return np.asarray(np.clip(self.value + self.half, self.least, self.most))

    @property
    def centred(self) -> "Jackknife":
        """The corrected value, with the interval around it."""
        return self._replace(value=np.asarray(np.clip(self.corrected, self.least, self.most)))


def jackknife(
    value: Numbers | float,
    without: Float[np.ndarray, "groups *shape"],
    sizes: Float[np.ndarray, " groups"],
    texts_per_group: int,
) -> Jackknife:
    """Correct a value for bias and compute half the width of its 95 % interval, from its values without each group.

    With G groups, where group g has m_g of the n positions,

        corrected = G θ − Σ (1 − m_g/n) θ₋g
        variance = (G − 1)/G Σ (θ₋g − θ̄₋)²,    θ̄₋ the mean of the θ₋g

    The correction is that of Busing et al. (1999) for groups of unequal sizes. Their variance assumes independent
    positions, but positions of one text are alike, so a long text carries less information than its length suggests.
    The variance here is that of the jackknife over clusters (MacKinnon, Nielsen and Webb 2023); the two agree if all
    groups have the same size. Half the width is t(.975, ν) standard errors, `ν = 2 / (2/(G − 1) + κ/G)`, where κ is the
    excess kurtosis of the θ₋g if that is above 0, else 0: the variance of a few heavy-tailed values is less certain
    (Satterthwaite).

    Args:
        value: θ, the value (or values) for the whole corpus.
        without: θ₋g, the same without each group.
        sizes: the number of positions in each group, none of them 0.
        texts_per_group: how many texts, or pieces of longer texts, make up a group.

    Half the width is NaN if there are fewer than `FEWEST_TEXTS` texts, or fewer than 10 groups.

    Examples:
        >>> x = np.arange(20.0)  # of a mean, with groups of one: the interval of Student's t
        >>> found = jackknife(x.mean(), (x.sum() - x) / 19, np.ones(20), 1)
        >>> float(found.corrected), float(found.half.round(3))
        (9.5, 2.769)
    """
    groups = len(sizes)
    value = np.asarray(value, dtype=np.float64)
    if _too_few(groups, texts_per_group):
        return Jackknife(value, np.full(value.shape, np.nan), np.full(value.shape, np.nan))
    share = (sizes / sizes.sum()).reshape(-1, *[1] * value.ndim)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):  # values may be infinite, constant or enormous
        corrected = groups * value - ((1 - share) * without).sum(0)
        errors = (without - without.mean(0)) * np.sqrt(groups - 1)
        largest = np.abs(errors).max(0)
        scaled = errors / largest
        centred = scaled - scaled.mean(0)
        excess = np.nan_to_num((centred**4).mean(0) / (centred**2).mean(0) ** 2 - 3).clip(0)
        error = np.where(largest > 0, largest * np.sqrt((scaled**2).mean(0)), largest)
    degrees = 2 / (2 / (groups - 1) + excess / groups)
    half = stats.t.ppf((1 + _LEVEL) / 2, degrees) * error
    return Jackknife(value, np.asarray(corrected), np.asarray(half))


def from_sums(
    measure: Callable[..., Numbers],
    sums: Sequence[Float[np.ndarray, "groups ..."]],
    sizes: Float[np.ndarray, " groups"],
    texts_per_group: int,
) -> Jackknife:
    """Apply `jackknife` to a value that is a function of sums over texts.

    Args:
        measure: computes the value (or values) from the sums over some groups of texts.
        sums: the arguments of `measure`, by group.
        sizes, texts_per_group: see `jackknife`.

    Examples:
        >>> x, n = np.arange(20.0), np.ones(20)  # of a mean, with groups of one: the interval of Student's t
        >>> found = from_sums(lambda x, n: x / n, [x, n], n, 1)
        >>> float(found.value), float(found.half.round(3))
        (9.5, 2.769)
    """
    with np.errstate(invalid="ignore", divide="ignore"):  # only one group may have anything
        value = measure(*(part.sum(0) for part in sums))
        without = np.stack([measure(*sums_without) for sums_without in zip(*map(summed_others, sums), strict=True)])
        return jackknife(value, without, sizes, texts_per_group)


def summed_others(sums: Float[np.ndarray, "groups *shape"]) -> Float[np.ndarray, "groups *shape"]:
    """Sum all other groups for each group, without subtracting from the total.

    Examples:
        >>> summed_others(np.array([1.0, 10.0, 100.0])).tolist()
        [110.0, 101.0, 11.0]
    """
    before = sums.cumsum(0)
    after = sums[::-1].cumsum(0)[::-1]
    nothing = np.zeros_like(sums[:1])
    return np.concatenate([nothing, before[:-1]]) + np.concatenate([after[1:], nothing])


def about(groups: int, texts_per_group: int) -> dict[str, Any]:
    """Return what a result records about its intervals: method, level and groups, or the reason why there are none.

    Args:
        groups: how many groups of texts were read.
        texts_per_group: how many consecutive texts, or pieces of longer texts, make up a group.

    Examples:
        >>> about(12, 1)["none"].partition(";")[0]
        'what was read is 12 different texts, or pieces of longer ones'
    """
    description: dict[str, Any] = {"method": "delete-one-group jackknife", "level": _LEVEL, "groups": groups}
    description["texts_per_group"] = texts_per_group
    reason = _too_few(groups, texts_per_group)
    if reason is not None:
        description["none"] = reason
    return description


def texts_read(intervals: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return how many texts intervals are over, for `interp.results.verdicts.judged`, or None if that is unknown.

    Args:
        intervals: what `about` has recorded.

    Examples:
        >>> texts_read(about(20, 3))
        (60, 'text')
    """
    if not {"groups", "texts_per_group"} <= intervals.keys():
        return None
    return intervals["groups"] * intervals["texts_per_group"], "text"


def _too_few(groups: int, texts_per_group: int) -> str | None:
    """Why there is no interval, or None if there is one."""
    if groups * texts_per_group < FEWEST_TEXTS:
        problem = f"what was read is {count(groups * texts_per_group, 'different text')}, or pieces of longer ones"
        return f"{problem}; intervals need {FEWEST_TEXTS} (more text, shorter rows or a row per text)"
    if groups < _FEWEST_GROUPS:
        return f"what was read is from {groups} groups of texts; intervals need {_FEWEST_GROUPS}"
    return None
