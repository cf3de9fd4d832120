"""A part of a page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from interp.figures.figure import Figure
from interp.results.columns import COMMON, Column
from interp.results.findings import Finding

__all__ = ["Contexts", "Section"]


@dataclass(frozen=True, eq=False)
class Contexts:
    """The tokens at which something is largest, which open where the page names it.

    Args:
        caption: a sentence that says what they are.
        tokens: a table (activation, before, token, after, text); see `interp.corpora.contexts.in_context`.
    """

    caption: str
    tokens: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Section:
    """The part of a page about one result.

    Args:
        main: the figure for the top of the page; empty if the section could not be drawn.
        findings: what was found. The first finding is shown at the top, below the answer.
        notes: further sentences, each with its numbers. If there are no findings, the first note is shown at the top.
        definitions: the meaning of each word or symbol, with its source; the same for all results of an analysis.
        figures: figures by name, which is also their file name.
        views: circuitsvis views by heading: the name of the component and its properties, with tokens as HTML.
        contexts: contexts by the name used in sentences, such as "dimension 48" or "neuron 7"; table columns called
            `dim` or `neuron` have the number.
        columns: the headings and meanings of columns.
        caveats: what to bear in mind when reading the findings (`Result.caveats`).
        answer: the answer to the question (`Result.answer`), if there is one.
        repeat: the command that repeats the run, if there is one.
        code: lines for a notebook that give the same numbers, if there are some.
    """

    main: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    definitions: dict[str, str]
    figures: dict[str, Figure]
    tables: dict[str, pd.DataFrame]
    provenance: dict[str, Any]
    views: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    contexts: dict[str, Contexts] = field(default_factory=dict)
    columns: Mapping[str, Column] = field(default_factory=lambda: COMMON)
    caveats: tuple[str, ...] = ()
    answer: str = ""
    repeat: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        """Give figures that another package made with plain plotly the method `save`."""
        figures = dict(self.figures)
        for name, figure in figures.items():
            if not isinstance(figure, Figure):
                figures[name] = Figure(figure)
        object.__setattr__(self, "figures", figures)

    @classmethod
    def undrawn(cls, note: str, provenance: dict[str, Any]) -> "Section":
        """Make a section that has only a note in place of what could not be drawn."""
        nothing: dict[str, Any] = {}
        return cls("", (), (f"{note}.",), nothing, nothing, nothing, provenance)

    @property
    def is_drawn(self) -> bool:
        return bool(self.main)

    @property
    def summary(self) -> str:
        """The sentence at the top of the page."""
        return self.answer or (str(self.findings[0]) if self.findings else self.notes[0])
