"""A part of a page."""

import base64
from dataclasses import dataclass, field
from html import escape
from typing import Any

import pandas as pd

from interp.figures.figure import Figure
from interp.findings import Finding

__all__ = ["Section"]

_SHOWN = 8  # rows of a table, where there is no figure
_WIDTH = 6.0  # inches of a figure in a notebook


@dataclass(frozen=True, eq=False)
class Section:
    """What a page says of one result.

    Args:
        main: the figure for the top of the page.
        findings: what was found; the first stands at the top.
        notes: further sentences, each with its numbers; where nothing was found the first stands at the top.
        definitions: what each word or symbol means, with its source; the same for every result of the analysis.
        figures: by a name that serves as a file name.
        views: circuitsvis views by heading: the name of the component and its properties, tokens as HTML.
    """

    main: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    definitions: dict[str, str]
    figures: dict[str, Figure]
    tables: dict[str, pd.DataFrame]
    provenance: dict[str, Any]
    views: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """What stands at the top of the page."""
        return str(self.findings[0]) if self.findings else self.notes[0]

    def html(self, title: str) -> str:
        """The part as a notebook shows it: what was found, and the main figure as an image; without matplotlib the
        first table."""
        said = [_told(one) for one in self.findings] or [escape(self.notes[0])]
        shown = f"<p><b>{escape(title)}</b></p><p>{said[0]}</p>"
        if svg := self.figures[self.main].svg(width=_WIDTH):
            image = base64.b64encode(svg.encode()).decode()
            shown += f'<img style="background: white; max-width: 100%" src="data:image/svg+xml;base64,{image}">'
        else:
            shown += next(iter(self.tables.values())).head(_SHOWN).to_html(index=False, float_format="{:.4g}".format)
        if len(said) > 1:
            others = "".join(f"<li>{one}</li>" for one in said[1:])
            shown += f"<details><summary>{len(said) - 1} more</summary><ul>{others}</ul></details>"
        return f'<div class="interp">{shown}</div>'


def _told(finding: Finding) -> str:
    return f"{escape(finding.question)} <b>{finding.verdict.capitalize()}</b>: {escape(finding.grounds)}."
