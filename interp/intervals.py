"""Uncertainty of what is computed from sums over groups of texts: the delete-one-group jackknife.

Texts are what is drawn independently; tokens of a text are not, so the texts, in groups (`interp.run.groups`), are left
out one after the other.

Source: Busing, Meijer and van der Leeden, "Delete-m Jackknife for Unequal m", Statistics and Computing 9, 1999.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy import stats

__all__ = ["FEWEST_GROUPS", "Jackknife", "about", "jackknife"]

FEWEST_GROUPS = 10
"""With fewer groups an interval is NaN: the standard error is then too uncertain (see docs/intervals.md)."""

_LEVEL = 0.95


Numbers: TypeAlias = Float[np.ndarray, "*shape"]


class Jackknife(NamedTuple):
    """A value, the same corrected for bias, and half the width of its 95 % interval."""

    value: Numbers
    corrected: Numbers
    half: Numbers

    @property
    def low(self) -> Numbers:
        """The lower end of the interval around the value."""
        return np.asarray(self.value - self.half)

    @property
    def high(self) -> Numbers:
        """The upper end of the interval around the value."""
        return np.asarray(self.value + self.half)

    @property
    def centred(self) -> "Jackknife":
        """The same with the interval around the corrected value."""
        return self._replace(value=self.corrected)


def jackknife(
    whole: Numbers | float, without: Float[np.ndarray, "groups *shape"], sizes: Float[np.ndarray, " groups"]
) -> Jackknife:
    """Correct a value for bias, and give half the width of its 95 % interval, from its values without each group.

    With G groups of sizes m_g, `n = Σ m_g` and `h_g = n / m_g`:

        corrected = G θ − Σ (1 − m_g/n) θ₋g
        variance = 1/G Σ (h_g θ − (h_g − 1) θ₋g − corrected)² / (h_g − 1)

    and half the width is t(.975, G − 1) standard errors (Busing et al. 1999).

    Args:
        whole: θ, the value of the whole corpus; any number of values.
        without: θ₋g, the same without each group.
        sizes: of the groups: how many positions each has, none of them 0.

    Returns NaN where there are fewer than `FEWEST_GROUPS` groups.

    Examples:
        >>> x = np.arange(20.0)  # of a mean, with groups of one: the interval of Student's t
        >>> found = jackknife(x.mean(), (x.sum() - x) / 19, np.ones(20))
        >>> float(found.corrected), float(found.half.round(3))
        (9.5, 2.769)
    """
    groups = len(sizes)
    whole = np.asarray(whole, dtype=np.float64)
    if groups < FEWEST_GROUPS:
        return Jackknife(whole, np.full(whole.shape, np.nan), np.full(whole.shape, np.nan))
    share = (sizes / sizes.sum()).reshape(-1, *[1] * whole.ndim)
    with np.errstate(invalid="ignore"):  # infinite values have no interval
        corrected = groups * whole - ((1 - share) * without).sum(0)
        pseudo = whole / share - (1 / share - 1) * without
        variance = ((pseudo - corrected) ** 2 / (1 / share - 1)).mean(0)
    half = stats.t.ppf((1 + _LEVEL) / 2, groups - 1) * np.sqrt(variance)
    return Jackknife(whole, np.asarray(corrected), np.asarray(half))


def about(sizes: Float[np.ndarray, " groups"], stretches: int) -> dict[str, Any]:
    """What a result says of its intervals: their method, level, groups, and why there are none where there are none.

    Args:
        sizes: positions in each group.
        stretches: consecutive texts, or pieces of longer ones, in a group.

    Examples:
        >>> about(np.ones(3), 1)["none"]
        'the text has 3 groups of texts; intervals need 10 or more'
    """
    known: dict[str, Any] = {"method": "delete-one-group jackknife", "level": _LEVEL, "groups": len(sizes)}
    known["texts_per_group"] = stretches
    if len(sizes) < FEWEST_GROUPS:
        known["none"] = f"the text has {len(sizes)} groups of texts; intervals need {FEWEST_GROUPS} or more"
    return known
