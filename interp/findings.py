"""Findings: what a result says, each with its number, interval, control and verdict, and the rule of the verdict."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import pandas as pd

from interp.words import printed, within

__all__ = ["Finding", "Verdict", "findings_table", "side"]

Verdict: TypeAlias = Literal["yes", "partly", "no", "cannot tell"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A question that a result answers, and on what grounds.

    Args:
        question: one that yes or no answers.
        verdict: "yes" or "no" if interval and control agree on it, "partly" if they agree in part, "cannot tell" if
            there is no interval or no control, or the interval includes both answers.
        measure: what `value` is, as the beginning of a sentence that ends with the number and its `unit`.
        value, low, high: the number and the ends of its 95 % interval, NaN where there is none.
        control: the same measure for what it is compared with, NaN where there is none.
        compared_with: what the control is, in words; if its number is NaN, why there is none.
        rule: how the verdict follows from the numbers, in a sentence.
        form: how the numbers are printed.

    Examples:
        >>> found = Finding(
        ...     question="Does the first token draw attention?", verdict="yes", measure="its share of attention is",
        ...     value=0.41, low=0.38, high=0.44, control=0.12, compared_with="uniform attention",
        ...     rule="yes where the interval lies above the control", form="{:.2f}")
        >>> print(found)
        Does the first token draw attention? Yes: its share of attention is 0.41 [0.38, 0.44]; uniform attention: 0.12.
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
    unit: str = ""
    form: str = "{:.3f}"

    @property
    def number(self) -> str:
        """The value with its unit and interval."""
        if math.isnan(self.value):
            return "undefined"
        unit = f" {self.unit}" if self.unit else ""
        return f"{printed(self.value, self.form)}{unit} {within(self.low, self.high, self.form)}"

    @property
    def beside(self) -> str:
        """What it is compared with, and the control's number; empty where there is nothing."""
        if math.isnan(self.control):
            return self.compared_with
        return f"{self.compared_with}: {printed(self.control, self.form)}"

    @property
    def grounds(self) -> str:
        """The number with its interval and its control."""
        return f"{self.measure} {self.number}" + (f"; {self.beside}" if self.beside else "")

    def __str__(self) -> str:
        return f"{self.question} {self.verdict.capitalize()}: {self.grounds}."


def side(low: float, high: float, than: float = 0.0) -> Verdict:
    """Whether an interval lies above a number: "no" if it lies below, "cannot tell" if it includes it or is NaN.

    Examples:
        >>> side(0.1, 0.3), side(-0.3, -0.1), side(-0.1, 0.3), side(0.1, 0.3, than=0.5)
        ('yes', 'no', 'cannot tell', 'no')
    """
    return "yes" if low > than else "no" if high < than else "cannot tell"


def findings_table(findings: Iterable[Finding]) -> pd.DataFrame:
    """Findings as a table, one row each.

    Examples:
        >>> findings_table([]).columns.tolist()[:4]
        ['question', 'verdict', 'measure', 'value']
    """
    return pd.DataFrame([asdict(one) for one in findings], columns=[*Finding.__dataclass_fields__]).drop(columns="form")
