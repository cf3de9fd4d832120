"""What the page shows of an answer, and the page on which it is saved."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from interp.analyses.registry import load
from interp.figures.figure import Figure
from interp.figures.section import Section
from interp.figures.style import DARK
from interp.pages.explorer.subject import Answer, Subject
from interp.pages.page import description, plain_title, render
from interp.pages.undrawn import Written
from interp.results.columns import COMMON, Column, Displayed, displayed
from interp.results.result import provenance
from interp.support.paths import short_name
from interp.support.words import count, sentence

__all__ = ["aria", "caveat", "saved_page", "shown"]

_MOST_ROWS = 24
_LONG = 30  # characters of text that may be wrapped
_SMALL = 0.0005
_COLUMNS = dict(
    COMMON,
    contribution=Column("contribution, nats", "What the dimension of the key adds to the score."),
    outlier=Column("outlier", "Whether the dimension is an outlier in the state that enters the block."),
    removed=Column("removed", "Whether the dimension is removed."),
    unigram=Column("u(w)", "Frequency of the token in text."),
    as_trained=Column("p, as trained", "Probability of the token as the next one."),
    scaled=Column("p, with λ", "The same, with the bias scaled by λ."),
    way=Column("way", "What is added to the token's logit."),
    weights=Column("weights", "How the change of the embedding is spread over its dimensions."),
    requested=Column("requested p", "The mean probability that was requested."),
    achieved=Column("achieved p", "The mean probability on the prepared text."),
    requested_ratio=Column("requested factor", "The requested probability divided by the one as trained."),
    achieved_ratio=Column("achieved factor", "The achieved probability divided by the one as trained."),
)


def shown(key: str, answer: Answer, *, dark: bool) -> list[Component]:
    """What is shown of an answer."""
    first, *further = answer.notes
    code = html.Details(
        [
            html.Summary("Show the code"),
            html.Div(dcc.Clipboard(target_id=f"{key}-code", title="Copy the code"), className="copy"),
            html.Pre(answer.code, id=f"{key}-code"),
        ]
    )
    return [
        html.P(first, className="main"),
        *(html.P(note) for note in further),
        html.Div([_graph(key, name, figure, dark) for name, figure in answer.figures.items()], className="figures"),
        *(_sheet(heading, table) for heading, table in answer.tables.items()),
        code,
    ]


def _graph(key: str, name: str, figure: Figure, dark: bool) -> Component:
    """A figure below its caption."""
    title = plain_title(figure)
    subtitle = figure.layout.title.subtitle.text or ""
    drawn = figure.to_dict()
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    top = 44 if any(trace.name for trace in figure.data) else 14
    width = (figure.layout.meta or {}).get("least_width", 0)
    margin = drawn["layout"]["margin"] if width else {"l": 56, "r": 12, "t": top, "b": 48}
    layout = dict(drawn["layout"], title=None, legend=legend, margin=margin)
    height = layout["height"] - (80 if width else 20)
    drawn = {"data": drawn["data"], "layout": layout}
    graph = dcc.Graph(
        id=f"{key}-figure-{name}", figure=_darkened(drawn) if dark else drawn, responsive=True,
        config={"displayModeBar": False}, style={"height": f"min({height}px, 105vw)", "minWidth": width},
    )  # fmt: skip
    caption = html.Figcaption([html.Strong(title), html.Span(subtitle, className="subtitle")])
    drawing = html.Div(graph, className="scroll" if width else "", role="img", **aria(label=description(figure)))
    return html.Figure([caption, drawing], className="figure wide" if width else "figure")


def _darkened(part: Any, name: str = "") -> Any:
    """A figure with the colours of a dark background."""
    if isinstance(part, dict):
        return {key: _darkened(value, key) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [_darkened(value, name) for value in part]
    if not isinstance(part, str) or "color" not in name:
        return part
    if not part.startswith("rgba"):
        return DARK.get(part, part)
    red, green, blue, alpha = re.findall(r"[\d.]+", part)
    opaque = DARK.get(f"#{int(red):02x}{int(green):02x}{int(blue):02x}")
    return part if opaque is None else f"{opaque}{round(255 * float(alpha)):02x}"


def _sheet(heading: str, table: Any) -> Component:
    """The first rows of a table."""
    columns = displayed(table.head(_MOST_ROWS), _COLUMNS)
    size = count(len(table), "row") if len(table) <= _MOST_ROWS else f"{_MOST_ROWS} of {len(table):,} rows"
    head = [html.Th(column.heading.label, title=column.heading.meaning, scope="col") for column in columns]
    body = []
    for row in zip(*map(_cells, columns), strict=True):
        cells = []
        for column, cell in zip(columns, row, strict=True):
            look = "text" if len(cell) > _LONG else ""
            cells.append(html.Td(cell, className="number" if column.numeric else look))
        body.append(html.Tr(cells))
    sheet = html.Table([html.Thead(html.Tr(head)), html.Tbody(body)])
    summary = html.Summary([heading, html.Span(size, className="size")])
    scroll = html.Div(sheet, className="scroll", tabIndex="0", role="region", **aria(label=heading))
    return html.Details([summary, scroll], className="table", open=len(table) < _MOST_ROWS)


def _cells(column: Displayed) -> list[str]:
    """A column as it is printed; one with small probabilities with three digits."""
    sizes = [abs(value) for value in column.values if column.numeric and value]
    return [f"{value:.3g}" for value in column.values] if min(sizes, default=1) < _SMALL else column.cells


def caveat(text: str) -> Component:
    """What to bear in mind, or why nothing is shown."""
    return html.P(sentence(text), className="caveat", role="alert")


def saved_page(subject: Subject, analysis: str, answer: Answer, caveats: Sequence[str]) -> str:
    """What a panel shows, as a page of its own."""
    settings = provenance(subject.model, {"prepared_text": subject.reading})
    section = Section(
        main=next(iter(answer.figures)),
        findings=(),
        notes=tuple(answer.notes),
        definitions={},
        figures=answer.figures,
        tables=answer.tables,
        provenance=settings,
        columns=_COLUMNS,
        caveats=tuple(caveats),
        code=answer.code,
    )
    name = short_name(settings["model"])
    with tempfile.TemporaryDirectory() as directory:
        written = Written(Path(directory) / "index.html")
        render(written, name, [(name, load(analysis), section)])
        return written.path.read_text(encoding="utf-8")


def aria(**named: str) -> dict[str, Any]:
    """Attributes for those who do not see the page."""
    return {f"aria-{name}": value for name, value in named.items()}
