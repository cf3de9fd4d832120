"""One rule for every verdict: what an effect is compared with, and how large it has to be to matter.

The effect e is a value minus the median of its controls, with a 95 % interval [l, h] that takes in both the sampling of
the value and the spread of that median. s is the smallest effect of interest, and p the rank of the value among its n
controls, (1 + controls at least as large) / (n + 1). Controls that equal the value count against it.

    yes                e ≥ s, l > 0 and p ≤ .05, with n ≥ 39
    no, the opposite   the same in the other direction
    no                 −s < l and h < s
    partly             all controls but one are passed, of two or more
    cannot tell        otherwise

"No" is a test of equivalence: Schuirmann, "A comparison of the two one-sided tests procedure and the power approach",
Journal of Pharmacokinetics and Biopharmaceutics 15, 1987. The interval of a difference is made of the intervals of its
parts: Zou and Donner, "Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from scipy import stats

from interp.results.findings import Finding, Verdict
from interp.support.words import count, finer, printed

__all__ = ["FEWEST_CONTROLS", "FEWEST_MODELS", "SMALLEST", "ZERO", "Comparison", "Control", "compare", "ends", "judged"]
__all__ += ["reaching", "smallest"]

Kind: TypeAlias = Literal["draws", "models", "number"]
Outcome: TypeAlias = Literal["yes", "opposite", "no", "cannot tell"]

FEWEST_CONTROLS = 39
"""The number of random controls with which the smallest p is .025."""
FEWEST_MODELS = 3
"""The number of control models, each of which costs a training or a pass of its own."""
_FEWEST = {"draws": FEWEST_CONTROLS, "models": FEWEST_MODELS, "number": 0}
_LEVEL = 0.05
_MOST = 100  # more than this many times as much is not advised

SMALLEST: dict[str, tuple[float, float]] = {
    "divergence": (0.005, 0.05),
    "perplexity": (0.0, 0.01),
    "attention": (0.02, 0.10),
    "sink rate": (0.05, 0.0),
    "correlation": (0.10, 0.0),
    "accuracy": (0.02, 0.0),
    "r2": (0.02, 0.0),
    "localisation": (math.log(1.25), 0.0),
    "log ratio": (0.1, 0.0),
    "diversity": (0.02, 0.0),
    "mauve": (0.03, 0.0),
    "calibration": (0.01, 0.0),
    "agreement": (0.02, 0.0),
    "overlap": (0.05, 0.0),
}
"""The smallest effect of interest of each measure: a number, and a share of the value as trained.

Divergences, differences of them and of log-likelihoods are in nats. Correlations are Spearman's and cosines. A
localisation is the logarithm of a ratio. The accuracy of probes and of pairs, and AUC, have the same size.
"""


class Control(NamedTuple):
    """What a value is compared with.

    Attributes:
        name: how a sentence calls it, without numbers: `"random directions of equal norm"`.
        values: the same measure for each draw; NaN where it could not be measured.
        kind: `"draws"` are random and cheap, so that the value is ranked among them; `"models"` are few, and the value
            has to exceed them all by s; a `"number"` is fixed, such as chance.
    """

    name: str
    values: Sequence[float] | Float[np.ndarray, " draws"]
    kind: Kind = "draws"


ZERO = Control("", [0.0], "number")
"""What a difference is compared with that is 0 by chance."""


class Comparison(NamedTuple):
    """A value compared with one control: the median of the control, and the effect with its interval, p and outcome."""

    control: Control
    n: int
    median: float
    effect: float
    low: float
    high: float
    p: float
    outcome: Outcome


def ends(row: Mapping[Any, Any], name: str) -> dict[str, Any]:
    """Return a column of a row, and the ends of its interval, as arguments of `judged`.

    Examples:
        >>> ends({"kl": 0.2, "kl_low": 0.1, "kl_high": 0.3}, "kl")
        {'value': 0.2, 'low': 0.1, 'high': 0.3}
    """
    return {"value": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"]}


def smallest(measure: str, as_trained: float = 0.0) -> float:
    """Return the smallest effect of interest: a number, or a share of the value as trained where that is more.

    Raises KeyError for a measure that `SMALLEST` does not have.

    Examples:
        >>> smallest("divergence"), smallest("divergence", as_trained=2.0), smallest("sink rate", 0.9)
        (0.005, 0.1, 0.05)
    """
    absolute, relative = SMALLEST[measure]
    return max(absolute, relative * abs(as_trained))


def compare(
    value: float, low: float, high: float, control: Control, *, smallest: float, towards: Literal[-1, 1] = 1
) -> Comparison:
    """Compare a value, and the ends of its 95 % interval, with a control.

    Args:
        smallest: s, the smallest effect of interest.
        towards: 1 if the claim is that the value is larger than the control, −1 if it is that it is smaller.

    Raises ValueError for s ≤ 0.

    Examples:
        >>> chance = Control("chance", [0.5], "number")
        >>> [compare(x, x - 0.01, x + 0.01, chance, smallest=0.02).outcome for x in (0.8, 0.5)]
        ['yes', 'no']
        >>> random = Control("random orders", [i / 100 for i in range(39)])
        >>> comparison = compare(0.8, 0.7, 0.9, random, smallest=0.02)
        >>> round(comparison.effect, 2), comparison.p, comparison.outcome
        (0.61, 0.025, 'yes')
    """
    if not smallest > 0:
        raise ValueError(f"smallest={smallest}; expected the smallest effect of interest, a number above 0")
    draws = np.sort(towards * np.asarray(control.values, dtype=np.float64))
    draws = draws[~np.isnan(draws)]
    low_end, high_end = sorted((towards * low, towards * high)) if not math.isnan(low + high) else (math.nan, math.nan)
    turned = towards * value
    by_kind = _against_models if control.kind == "models" else _against_draws
    effect, below, above, p, outcome = by_kind(turned, low_end, high_end, draws, smallest, control.kind)
    median = towards * float(np.median(draws)) if len(draws) else math.nan
    ends = (below, above) if towards == 1 else (-above, -below)
    return Comparison(control, len(draws), median, towards * effect, *ends, p, outcome)


def _against_draws(
    value: float, low: float, high: float, draws: Float[np.ndarray, " draws"], s: float, kind: Kind
) -> tuple[float, float, float, float, Outcome]:
    n = len(draws)
    if not n:
        return math.nan, math.nan, math.nan, math.nan, "cannot tell"
    median = float(np.median(draws))
    # order statistics between which a median lies in at least 95 % of samples
    k = int(stats.binom.ppf(_LEVEL / 2, n, 0.5))
    around = (float(draws[k - 1]), float(draws[n - k])) if k else (-math.inf, math.inf)
    if kind == "number":
        around = median, median
    effect = value - median
    below = effect - math.hypot(value - low, around[1] - median)
    above = effect + math.hypot(high - value, median - around[0])
    p_above = (1 + int((draws >= value).sum())) / (n + 1)
    p_below = (1 + int((draws <= value).sum())) / (n + 1)
    enough = kind == "number" or n >= FEWEST_CONTROLS
    outcome: Outcome = "cannot tell"
    if enough and effect >= s and below > 0 and (kind == "number" or p_above <= _LEVEL):
        outcome = "yes"
    elif enough and effect <= -s and above < 0 and (kind == "number" or p_below <= _LEVEL):
        outcome = "opposite"
    elif -s < below and above < s:
        outcome = "no"
    return effect, below, above, math.nan if kind == "number" else p_above, outcome


def _against_models(
    value: float, low: float, high: float, models: Float[np.ndarray, " models"], s: float, kind: Kind
) -> tuple[float, float, float, float, Outcome]:
    """A few models are no sample to rank a value in: it exceeds all of them by s, or lies among them to within s."""
    if len(models) < FEWEST_MODELS:
        return math.nan, math.nan, math.nan, math.nan, "cannot tell"
    lowest, highest = float(models[0]), float(models[-1])
    outcome: Outcome = "cannot tell"
    if low - highest >= s:
        outcome = "yes"
    elif high - lowest <= -s:
        outcome = "opposite"
    elif lowest - s < low and high < highest + s:
        outcome = "no"
    return value - highest, low - highest, high - highest, math.nan, outcome


def judged(
    *,
    question: str,
    measure: str,
    value: float,
    low: float,
    high: float,
    controls: Sequence[Control],
    smallest: float,
    towards: Literal[-1, 1] = 1,
    sample: tuple[int, str] | None = None,
    form: str = "{:.3f}",
    **words: Any,
) -> Finding:
    """Make a finding whose verdict follows from the rule.

    Args:
        controls: what the value is compared with. With a `"number"` of no name, sentences do not mention it.
        smallest, towards: see `compare`.
        sample: how many texts, tasks or pairs the interval is over, and what one is called, to say how many would
            decide.
        words: further fields of `Finding`, such as `unit` and `no_interval`.

    Raises ValueError without controls, and the errors of `compare`.

    Examples:
        >>> print(judged(
        ...     question="Are probes right on new pairs?", measure="their accuracy is", value=0.55, low=0.45, high=0.65,
        ...     controls=[Control("chance", [0.5], "number")], smallest=0.02, sample=(40, "task"), form="{:.2f}"))
        Are probes right on new pairs? Their accuracy is 0.55 [0.45, 0.65]; chance: 0.50; about 160 tasks would decide \
it, if the value stays as it is. Cannot tell.
    """
    if not controls:
        raise ValueError(f"the finding {question!r} has no control; expected at least one")
    compared = [compare(value, low, high, control, smallest=smallest, towards=towards) for control in controls]
    missed = [comparison for comparison in compared if comparison.outcome != "yes"]
    outcomes = {comparison.outcome for comparison in missed}
    verdict: Verdict = "cannot tell"
    if not missed:
        verdict = "yes"
    elif len(missed) == 1 and len(compared) > 1:
        verdict = "partly"
    elif outcomes <= {"no", "opposite"}:
        verdict = "no"
    by_effect = sorted(missed or compared, key=lambda comparison: _or_infinite(towards * comparison.effect))
    hardest = by_effect[-1 if verdict == "no" else 0]
    undecided = words.pop("because", "")
    least = printed(smallest, finer(form.replace("+", ""), smallest))
    because = ""
    if verdict == "partly":
        because = f"it does not pass {missed[0].control.name}: {_missed(missed[0], smallest, least, towards)}"
    elif verdict == "no" and "no" in outcomes:
        because = f"a difference below {least} counts as none"
    elif verdict == "cannot tell":
        because = undecided or _undecided(missed, smallest, towards, sample)
    return Finding(
        question=question, verdict=verdict, measure=measure, value=value, low=low, high=high, control=hardest.median,
        compared_with="; ".join(filter(None, (_in_words(comparison, form, towards) for comparison in compared))),
        effect=hardest.effect, effect_low=hardest.low, effect_high=hardest.high, smallest=smallest, p=hardest.p,
        n_controls=hardest.n, rule=_rule(compared, least, towards),
        because=because, form=form, towards=towards, **words,
    )  # fmt: skip


def reaching(
    *,
    question: str,
    measure: str,
    value: float,
    low: float,
    high: float,
    enough: float,
    too_little: float,
    **words: Any,
) -> Finding:
    """Make a finding about a share that is judged by what is asked of it rather than by a control.

    Args:
        enough: yes where the interval lies at this or above.
        too_little: no where the interval lies below this; partly in between.
        words: further fields of `Finding`.

    Examples:
        >>> print(reaching(
        ...     question="Do predictions stay?", measure="the share that stays is", value=0.93, low=0.91, high=0.95,
        ...     enough=0.95, too_little=0.9, form="{:.2f}"))
        Do predictions stay? The share that stays is 0.93 [0.91, 0.95]; enough: 0.95; too little: below 0.90. Partly.
    """
    form = words.get("form", "{:.3f}")
    ends = printed(enough, form), printed(too_little, form)
    verdict: Verdict = "yes" if low >= enough else "no" if high < too_little else "partly"
    return Finding(
        question=question, verdict="cannot tell" if math.isnan(low + high) else verdict, measure=measure, value=value,
        low=low, high=high, compared_with=f"enough: {ends[0]}; too little: below {ends[1]}",
        rule=f"yes where the interval lies at {ends[0]} or above, no where it lies below {ends[1]}, else partly",
        **words,
    )  # fmt: skip


def _or_infinite(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _in_words(compared: Comparison, form: str, towards: int) -> str:
    """A control with its numbers."""
    name, values, kind = compared.control
    if not compared.n:
        return name and f"{name}: none"
    if kind == "number":
        return name and f"{name}: {printed(compared.median, finer(form, compared.median))}"
    if kind == "models":
        extreme = float(np.nanmax(values) if towards == 1 else np.nanmin(values))
        return (
            f"{compared.n} {name}: {'at most' if towards == 1 else 'at least'} {printed(extreme, finer(form, extreme))}"
        )
    median = printed(compared.median, finer(form, compared.median))
    return f"{compared.n} {name}: median {median}, p = {compared.p:.3f}"


def _missed(compared: Comparison, s: float, least: str, towards: int) -> str:
    """Why a control is not passed."""
    if compared.n < _FEWEST[compared.control.kind]:
        return f"{_FEWEST[compared.control.kind]} are the fewest that can decide it"
    if compared.p > _LEVEL:
        return f"{round(compared.p * (compared.n + 1)) - 1} of {compared.n} reach it"
    if towards * compared.effect < s:
        return f"the difference is below {least}"
    return "the interval of the difference is too wide"


def _undecided(missed: Sequence[Comparison], s: float, towards: int, sample: tuple[int, str] | None) -> str:
    """What would decide, or what stands in the way."""
    for comparison in missed:
        fewest = _FEWEST[comparison.control.kind]
        if comparison.n < fewest:
            return f"{fewest} {comparison.control.name} are the fewest that can decide it"
    widest = max(missed, key=lambda comparison: comparison.high - comparison.low)
    width = widest.high - widest.low
    if math.isnan(width):
        return ""
    effect = towards * widest.effect
    if effect >= s and widest.p > _LEVEL:
        return f"{round(widest.p * (widest.n + 1)) - 1} of {widest.n} {widest.control.name} reach it"
    margin = s if widest.control.kind == "models" else 0.0  # by which a value has to exceed all models
    target = abs(effect) - margin if abs(effect) >= s else s - abs(effect)
    times = (width / 2 / target) ** 2 if target else math.inf
    if sample is None or times <= 1:
        return ""
    n, unit = sample
    if times > _MOST:
        return f"even {count(_MOST * n, unit)} would not decide it, if the value stays as it is"
    return f"about {count(math.ceil(times * n), unit)} would decide it, if the value stays as it is"


def _rule(compared: Sequence[Comparison], s: str, towards: int) -> str:
    kinds = {comparison.control.kind for comparison in compared}
    side = "above" if towards == 1 else "below"
    models = f"{'exceeds' if towards == 1 else 'is below'} every {'one' if len(compared) > 1 else 'model'} by {s}, "
    models += "with its interval"
    if kinds == {"models"}:
        return f"yes where the value {models}; no where the interval lies among them, to within {s}"
    rank = ", at most 1 in 20 controls reaches the value" if "draws" in kinds else ""
    reference = (
        "the median of each control" if len(compared) > 1 else "the control" if not rank else "the median control"
    )
    rule = f"yes where the value is {s} or more {side} {reference}{rank}, and the interval of the difference excludes 0"
    rule += f" (for models: where it {models})" if "models" in kinds else ""
    rule += "; partly where all controls but one are passed" if len(compared) > 1 else ""
    return f"{rule}; no where the interval of the difference lies within ±{s}"
