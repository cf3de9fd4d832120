"""A part of a page, and how its sentences say numbers."""

import math
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import plotly.graph_objects as go

__all__ = ["Section", "change", "count", "direction", "within"]


@dataclass(frozen=True, eq=False)
class Section:
    """What a page says of one result.

    Args:
        summary: one sentence with its number, for the top of the page, beside the figure named `main`.
        finding: all that it says, in a few sentences.
        definitions: what each word or symbol means, with its source; the same for every result of the analysis.
        figures: by a name that serves as a file name.
        views: circuitsvis views by heading: the name of the component and its properties, tokens as HTML.
    """

    summary: str
    main: str
    finding: str
    definitions: dict[str, str]
    figures: dict[str, go.Figure]
    tables: dict[str, pd.DataFrame]
    provenance: dict[str, Any]
    views: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)


def change(before: float, after: float, form: str) -> str:
    """`goes from … to …`, or `stays at …` where both print the same."""
    first, last = form.format(before), form.format(after)
    return f"stays at {first}" if first == last else f"goes from {first} to {last}"


def within(low: float, high: float, form: str) -> str:
    """The 95 % interval of a number; that there is none where the text was too short for it."""
    if math.isnan(low) or math.isnan(high):
        return "(no interval: too few texts)"
    return f"[{form.format(low)}, {form.format(high)}]"


def direction(low: float, high: float) -> int:
    """1 or −1 where an interval lies above or below 0, else 0."""
    return (low > 0) - (high < 0)


def count(number: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
