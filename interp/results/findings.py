"""What a result says: its answer in one sentence, and findings, each with its number, interval, control and verdict."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeAlias, get_args

import pandas as pd

from interp.support.words import finer, printed, sentence, within

__all__ = ["Answer", "Finding", "Verdict", "counted", "findings_table", "over_texts"]
__dir__ = __all__.copy

Verdict: TypeAlias = Literal["yes", "partly", "no", "cannot tell"]
"""What follows from the numbers of a finding; see `interp.results.verdicts`."""


@dataclass(frozen=True)
class Answer:
    """The answer to the question of an analysis, in names, sizes and units. Findings say what it can be trusted for.

    Args:
        text: one or two sentences.
        values: the names and numbers in them, not rounded, by name.

    Examples:
        >>> print(Answer("Dimension 7 makes 41 % of the gap.", {"dim": 7, "share": 0.4123}))
        Dimension 7 makes 41 % of the gap.
    """

    text: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A question that a result answers, and on what grounds.

    Args:
        question: a question that can be answered by yes or no.
        verdict: what follows from the numbers by the rule; see `interp.results.verdicts`.
        measure: what `value` is, as the beginning of a sentence that ends with the number and its `unit`.
        value, low, high: the number and the ends of its 95 % interval, NaN where there is none.
        control: the same measure for what it is compared with, NaN where there is none.
        compared_with: what the control is, in words; if its number is NaN, why there is none.
        rule: how the verdict follows from the numbers, in a sentence.
        effect, effect_low, effect_high: the value minus the median of the control that it passes by least, and the ends
            of the 95 % interval of this difference.
        smallest: the smallest effect of interest.
        p, n_controls: the rank of the value among random controls, and their number.
        because: which control is not passed if the verdict is "partly"; what would decide if it is "cannot tell".
        no_interval: why there is no interval, in a few words; empty if there is one, or if the reason is unknown.
        form: how the numbers are printed; with more decimals if one of them would be printed as zero.
        towards: 1 if larger values speak for yes, −1 if smaller ones do; 0 if neither.
            If the interval of the effect lies wholly on the other side of 0, "no" is printed as "no, the opposite".

    Examples:
        >>> found = Finding(
        ...     question="Does the first token draw attention?", verdict="yes", measure="its share of attention is",
        ...     value=0.41, low=0.38, high=0.44, control=0.12, compared_with="uniform attention",
        ...     rule="yes where the interval lies above the control", form="{:.2f}")
        >>> print(found)
        Does the first token draw attention? Its share of attention is 0.41 [0.38, 0.44]; uniform attention: 0.12. Yes.
    """

    question: str
    verdict: Verdict
    measure: str
    value: float
    low: float
    high: float
    rule: str
    control: float = math.nan
    compared_with: str = ""
    effect: float = math.nan
    effect_low: float = math.nan
    effect_high: float = math.nan
    smallest: float = math.nan
    p: float = math.nan
    n_controls: int = 0
    unit: str = ""
    because: str = ""
    no_interval: str = ""
    form: str = "{:.3f}"
    towards: Literal[-1, 0, 1] = 0

    @property
    def answer(self) -> str:
        """The verdict, as it is printed."""
        ends = (self.low, self.high) if math.isnan(self.smallest) else (self.effect_low, self.effect_high)
        opposite = all(self.towards * end < 0 for end in ends) and not abs(self.effect) < self.smallest
        return "no, the opposite" if opposite and self.verdict == "no" else self.verdict

    @property
    def number(self) -> str:
        """The value with its unit and its interval, or why there is no interval."""
        if math.isnan(self.value):
            return "undefined"
        unit = f" {self.unit}" if self.unit else ""
        form = finer(self.form, self.value, self.low, self.high)
        return f"{printed(self.value, form)}{unit} {within(self.low, self.high, form, self.no_interval)}"

    @property
    def beside(self) -> str:
        """What the value is compared with, and the number of that control; empty if there is none."""
        if math.isnan(self.control) or not math.isnan(self.smallest):
            return self.compared_with
        return f"{self.compared_with}: {printed(self.control, finer(self.form, self.control))}"

    @property
    def grounds(self) -> str:
        """The number with its interval and its control, and what would decide."""
        return "; ".join(filter(None, [f"{self.measure} {self.number}", self.beside, self.because]))

    def __str__(self) -> str:
        return f"{self.question} {sentence(self.grounds)} {self.answer.capitalize()}."


def counted(findings: Iterable[Finding]) -> str:
    """Say how many findings have each verdict.

    Examples:
        >>> asked: dict[str, Any] = dict(question="Is it so?", measure="it is", value=1, low=0, high=2, rule="always")
        >>> counted([Finding(verdict="yes", **asked), Finding(verdict="no", **asked), Finding(verdict="yes", **asked)])
        '2 yes, 1 no'
    """
    verdicts = Counter(finding.verdict for finding in findings)
    return ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in get_args(Verdict) if verdict in verdicts)


def findings_table(findings: Iterable[Finding]) -> pd.DataFrame:
    """Put findings in a table, one row each.

    Examples:
        >>> findings_table([]).columns.tolist()[:4]
        ['question', 'verdict', 'measure', 'value']
    """
    table = pd.DataFrame([asdict(finding) for finding in findings], columns=[item.name for item in fields(Finding)])
    return table.drop(columns=["form", "towards", "no_interval", "because"])


def over_texts(findings: Iterable[Finding], intervals: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return findings whose intervals are over texts, with the reason if there are none.

    Args:
        intervals: what the provenance says about the intervals (`interp.results.intervals.about`).

    Examples:
        >>> found = Finding(
        ...     question="Is it so?", verdict="cannot tell", measure="the mean is", value=1.0, low=math.nan,
        ...     high=math.nan, rule="yes where the interval lies above 0")
        >>> print(*over_texts([found], {"none": "9 texts were read; intervals need 20"}))
        Is it so? The mean is 1.000 (no interval: 9 texts were read; intervals need 20). Cannot tell.
    """
    reason = intervals.get("none", "")
    return tuple(replace(finding, no_interval=finding.no_interval or reason) for finding in findings)
