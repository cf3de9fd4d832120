"""The page of the explorer: the controls of each panel, and what is shown when one of them changes."""

import re
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from interp.analyses.encoding.steering import WEIGHTS
from interp.analyses.registry import load
from interp.figures.figure import Figure
from interp.figures.section import Section
from interp.figures.style import DARK, FONTS
from interp.models.identity import origin
from interp.models.spelling import token_names
from interp.pages.explorer.attention import attention
from interp.pages.explorer.grammar import grammar
from interp.pages.explorer.predictions import example_token, frequency, probability
from interp.pages.explorer.subject import MOST_TOKENS, Answer, Subject, token_ids
from interp.pages.page import description, plain_title, render, style
from interp.pages.undrawn import Written
from interp.results.columns import COMMON, Column, Displayed, displayed
from interp.results.result import provenance
from interp.support.checks import collecting
from interp.support.paths import short_name
from interp.support.words import count, sentence

__all__ = ["application"]

_SENTENCES = ("The boy who lived by the river hurt himself.", "The boy who lived by the river hurt herself.")
_PROMPT = "The boy walked to the"
_MOST_ROWS = 24
_SMALL = 0.0005
_WORDS = {"True": "yes", "False": "–"}
_COLUMNS = {
    **COMMON,
    "contribution": Column("contribution, nats", "What the dimension of the key adds to the score."),
    "outlier": Column("outlier", "Whether the dimension is an outlier in the state that enters the block.", _WORDS),
    "removed": Column("removed", "Whether the dimension is removed.", _WORDS),
    "unigram": Column("u(w)", "Frequency of the token in text."),
    "as_trained": Column("p, as trained", "Probability of the token as the next one."),
    "scaled": Column("p, with λ", "The same, with the bias scaled by λ."),
    "way": Column("way", "What is added to the token's logit."),
    "weights": Column("weights", "How the change of the embedding is spread over its dimensions."),
    "requested": Column("requested p", "The mean probability that was requested."),
    "achieved": Column("achieved p", "The mean probability on the prepared text."),
    "requested_ratio": Column("requested factor", "The requested probability divided by the one as trained."),
    "achieved_ratio": Column("achieved factor", "The achieved probability divided by the one as trained."),
}
_INDEX = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{%title%}</title>
<link rel="icon" href="data:,">
<style>:root { --fonts: FONTS; }
STYLE</style>
{%css%}
</head>
<body>
{%app_entry%}
{%config%}
{%scripts%}
{%renderer%}
</body>
</html>"""


@dataclass(frozen=True, eq=False)
class _Panel:
    """A panel: its title, the question it answers, the analysis it belongs to, its controls by label, and the function
    of their values that answers it."""

    title: str
    question: str
    analysis: str
    controls: dict[str, Any]
    answer: Callable[..., Answer]

    @property
    def inputs(self) -> list[str]:
        """The names of the controls that have a value."""
        return [one.id for one in self.controls.values() if not isinstance(one, html.Button)]


def application(subject: Subject, prefix: str) -> Dash:
    """The page as an application whose addresses all begin with `prefix`, such as `/token/`."""
    name = short_name(origin(subject.model).name)
    app = Dash(
        "interp.pages.explorer",
        url_base_pathname=prefix,
        assets_folder=str(Path(__file__).parent / "assets"),
        title=f"interp explore · {name}",
        update_title="",
        suppress_callback_exceptions=True,  # figures exist only once a panel has answered
        index_string=_INDEX.replace("FONTS", FONTS).replace("STYLE", style()),
    )
    panels = _panels(subject)
    app.layout = _layout(subject, name, panels)
    lock = threading.Lock()
    for key, panel in panels.items():
        _answering(app, key, panel, subject, lock)
    _choosing(app, subject)
    app.clientside_callback(
        ClientsideFunction("explorer", "darkness"), Output("dark", "data"), Input("dark", "id")
    )  # it also follows later changes
    return app


def _panels(subject: Subject) -> dict[str, _Panel]:
    cfg = subject.model.cfg
    layers: dict[str, Any] = {"type": "number", "min": 0, "step": 1, "debounce": True}
    text: dict[str, Any] = {"type": "text", "debounce": 0.6, "autoComplete": "off"}
    scales: dict[str, Any] = {
        "min": 0,
        "max": 2,
        "step": 0.05,
        "marks": {0: "0", 1: "1", 2: "2"},
        "updatemode": "mouseup",
    }
    seen = {
        "Sentence": dcc.Input(id="attention-text", value=_SENTENCES[0], **text),
        f"Block, 0 to {cfg.n_layers - 1}": dcc.Input(id="attention-layer", value=0, max=cfg.n_layers - 1, **layers),
        f"Head, 0 to {cfg.n_heads - 1}": dcc.Input(id="attention-head", value=0, max=cfg.n_heads - 1, **layers),
        "Query": dcc.Dropdown(id="attention-query", placeholder="the last token"),
        "Key": dcc.Dropdown(id="attention-key", placeholder="the most attended"),
        "Dimensions to remove": dcc.Input(id="attention-removed", value="", placeholder="such as 48, 12", **text),
        "": html.Button("Remove the outliers", id="attention-outliers", className="tool", type="button"),
        "Removed from": dcc.RadioItems(["keys", "queries", "residual"], "keys", id="attention-where", inline=True),
    }
    ways = {
        "Token (␣ is a space)": dcc.Input(id="probability-token", value=example_token(subject), **text),
        "Factor": dcc.Input(id="probability-ratio", value=2, type="number", min=0, step="any", debounce=True),
        "Weights of the dimensions": dcc.RadioItems(list(WEIGHTS), WEIGHTS[0], id="probability-weights", inline=True),
    }
    pair: dict[str, Any] = {
        "First sentence": dcc.Input(id="grammar-one", value=_SENTENCES[0], **text),
        "Second sentence": dcc.Input(id="grammar-other", value=_SENTENCES[1], **text),
    }
    if subject.probes is not None:
        neurons = subject.probes.neurons.query("gate > 0")  # a probe without open gates has no scores
        probes = neurons[["task", "state"]].drop_duplicates().itertuples(index=False)
        options = [{"label": f"{task}, state {state}", "value": f"{state} {task}"} for task, state in probes]
        pair["Probe"] = dcc.Dropdown(options, options[0]["value"] if options else None, id="grammar-probe")
    prompt = {
        "Text": dcc.Input(id="frequency-text", value=_PROMPT, **text),
        "λ": dcc.Slider(id="frequency-scale", value=0, **scales),
    }
    return {
        "attention": _Panel("Attention", "Which dimensions make an attention score?", "attention", seen, _attend),
        "frequency": _Panel("Frequency", "What does b_LN or E[h] do to frequent words?", "frequency", prompt, _scale),
        "probability": _Panel("Token probability", "How is one token made more probable?", "encoding", ways, _multiply),
        "grammar": _Panel("Grammar", "Which of two sentences is more probable?", "probing", pair, _compare),
    }


def _attend(
    subject: Subject, text: str, layer: int | None, head: int | None, query: int | None, key: int | None, removed: str,
    where: Any,
) -> Answer:  # fmt: skip
    if layer is None or head is None:
        cfg = subject.model.cfg
        raise ValueError(f"expected a block in 0 … {cfg.n_layers - 1} and a head in 0 … {cfg.n_heads - 1}")
    chosen: dict[str, Any] = {"layer": layer, "head": head, "query": query, "key": key}
    return attention(subject, text or "", **chosen, removed=_dims(removed), where=where)


def _scale(subject: Subject, text: str, scale: float) -> Answer:
    return frequency(subject, text or "", scale=scale)


def _multiply(subject: Subject, token: str, ratio: float | None, weights: Any) -> Answer:
    if not token or ratio is None or not ratio > 0:
        raise ValueError("type a token of the vocabulary, and a factor above 0")
    return probability(subject, token, ratio=ratio, weights=weights)


def _compare(subject: Subject, one: str, other: str, probe: str | None = None) -> Answer:
    state, _, task = (probe or "").partition(" ")
    return grammar(subject, one or "", other or "", probe_of=(task, int(state)) if probe else None)


def _dims(text: str | None) -> list[int]:
    """The numbers in a list of dimensions."""
    parts = re.findall(r"[^\s,]+", text or "")
    if wrong := [part for part in parts if not re.fullmatch("[0-9]{1,9}", part)]:
        raise ValueError(f"{wrong[0]!r} is not a dimension; write whole numbers with commas between them: 48, 12")
    return [int(part) for part in dict.fromkeys(parts)]


def _answering(app: Dash, key: str, panel: _Panel, subject: Subject, lock: threading.Lock) -> None:
    """Let a panel answer when a control changes, and save what it shows."""
    values = [(name, "value") for name in panel.inputs]

    @app.callback(Output(f"{key}-shown", "children"), *[Input(*one) for one in values], Input("dark", "data"))
    def show(*given: Any) -> list[Component]:
        *chosen, dark = given
        try:
            caveats: list[str] = []
            with lock, collecting(caveats):
                answer = panel.answer(subject, *chosen)
            return [*map(_caveat, caveats), *_shown(key, answer, dark=bool(dark))]
        except (ValueError, TypeError) as error:
            said = str(error)
        except Exception as error:
            traceback.print_exc()
            said = f"{type(error).__name__}: {error}; this is probably a mistake in interp: please report it"
        return [_caveat(said)]

    @app.callback(
        Output(f"{key}-saved", "data"), Input(f"{key}-save", "n_clicks"), *[State(*one) for one in values],
        prevent_initial_call=True,
    )  # fmt: skip
    def save(_: int, *chosen: Any) -> Any:
        try:
            with lock:
                page = _page(subject, panel, panel.answer(subject, *chosen))
        except (ValueError, TypeError):  # what is shown says so
            return no_update
        return dcc.send_string(page, f"{short_name(origin(subject.model).name)}-{key}.html")


def _caveat(text: str) -> Component:
    return html.P(sentence(text), className="caveat", role="alert")


def _page(subject: Subject, panel: _Panel, answer: Answer) -> str:
    """What a panel shows, as a page of its own."""
    about = provenance(subject.model, {"prepared_text": subject.reading})
    section = Section(
        main=next(iter(answer.figures)),
        findings=(),
        notes=tuple(answer.notes),
        definitions={},
        figures=answer.figures,
        tables=answer.tables,
        provenance=about,
        columns=_COLUMNS,
        code=answer.code,
    )
    name = short_name(about["model"])
    with tempfile.TemporaryDirectory() as directory:
        written = Written(Path(directory) / "index.html")
        render(written, name, [(name, load(panel.analysis), section)])
        return written.path.read_text(encoding="utf-8")


def _choosing(app: Dash, subject: Subject) -> None:
    """Let the tokens of a sentence be chosen by name or in the figure, and dimensions in theirs."""

    @app.callback(
        Output("attention-query", "options"), Output("attention-key", "options"),
        Output("attention-query", "value"), Output("attention-key", "value"),
        Input("attention-text", "value"), Input("attention-figure-pattern", "clickData", allow_optional=True),
    )  # fmt: skip
    def tokens(text: str | None, click: Any) -> tuple[Any, ...]:
        if ctx.triggered_id == "attention-figure-pattern" and click:
            point = click["points"][0]
            return no_update, no_update, point["y"], point["x"]
        try:
            names = token_names(subject.model, token_ids(subject.model, text or ""))
        except ValueError:  # the panel says so
            names = []
        options = [{"label": f"{place}  {name}", "value": place} for place, name in enumerate(names)]
        return options, options, None, None

    @app.callback(
        Output("attention-removed", "value"),
        Input("attention-figure-dimensions", "clickData", allow_optional=True), Input("attention-outliers", "n_clicks"),
        State("attention-removed", "value"), State("attention-layer", "value"), prevent_initial_call=True,
    )  # fmt: skip
    def removed(click: Any, _: int | None, text: str | None, layer: int | None) -> Any:
        if ctx.triggered_id == "attention-outliers":
            outliers = subject.prepared.outliers
            return ", ".join(map(str, outliers[outliers["state"] == layer]["dim"].tolist()))
        if not click:
            return no_update
        dim, known = str(click["points"][0]["x"]), re.findall("[0-9]+", text or "")
        return ", ".join([one for one in known if one != dim] if dim in known else [*known, dim])


def _layout(subject: Subject, name: str, panels: dict[str, _Panel]) -> Component:
    cfg = subject.model.cfg
    shape = f"{type(subject.model).__name__}, {count(cfg.n_layers, 'block')} of {cfg.d_model:,} dimensions"
    limit = f"Texts have at most {min(MOST_TOKENS, cfg.n_ctx)} tokens"
    tabs = [
        html.Button(panel.title, id=f"{key}-tab", role="tab", className="tab", **_aria(controls=key))
        for key, panel in panels.items()
    ]
    return html.Main(
        [
            html.Header([html.H1(f"interp explore · {name}"), html.P(f"{shape}. {limit}.")]),
            html.Div(tabs, className="tabs", role="tablist", **_aria(label="Panels")),
            *(_section(key, panel) for key, panel in panels.items()),
            dcc.Store(id="dark"),
        ],
        className="explorer",
    )


def _section(key: str, panel: _Panel) -> Component:
    controls = [
        html.Div([html.Label(label, htmlFor=one.id), one] if label else one, className=f"control {one.id}")
        for label, one in panel.controls.items()
    ]
    save = html.Button("Save as HTML", id=f"{key}-save", className="tool", type="button")
    shown = html.Div(id=f"{key}-shown", className="shown", **_aria(live="polite"))
    children: list[Component] = [
        html.H2(panel.question),
        html.Div([html.Form([*controls, save]), shown], className="panel"),
    ]
    children.append(dcc.Download(id=f"{key}-saved"))
    return html.Section(children, id=key, role="tabpanel", **_aria(labelledby=f"{key}-tab"))


def _aria(**named: str) -> dict[str, Any]:
    """Attributes for those who do not see the page."""
    return {f"aria-{name}": value for name, value in named.items()}


def _shown(key: str, answer: Answer, *, dark: bool) -> list[Component]:
    """What is shown of an answer."""
    first, *others = answer.notes
    code = html.Details(
        [
            html.Summary("Show the code"),
            html.Div(dcc.Clipboard(target_id=f"{key}-code", title="Copy the code"), className="copy"),
            html.Pre(answer.code, id=f"{key}-code"),
        ]
    )
    return [
        html.P(first, className="said"),
        *(html.P(note) for note in others),
        html.Div([_graph(key, name, one, dark) for name, one in answer.figures.items()], className="figures"),
        *(_sheet(heading, table) for heading, table in answer.tables.items()),
        code,
    ]


def _graph(key: str, name: str, figure: Figure, dark: bool) -> Component:
    """A figure below its caption."""
    title, subtitle = plain_title(figure), figure.layout.title.subtitle.text or ""
    drawn = figure.to_dict()
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    top = 44 if any(trace.name for trace in figure.data) else 14
    layout = drawn["layout"] | {"title": None, "legend": legend, "margin": {"l": 56, "r": 12, "t": top, "b": 48}}
    drawn = {"data": drawn["data"], "layout": layout}
    graph = dcc.Graph(
        id=f"{key}-figure-{name}", figure=_darkened(drawn) if dark else drawn, responsive=True,
        config={"displayModeBar": False}, style={"height": f"min({layout['height'] - 20}px, 105vw)"},
    )  # fmt: skip
    caption = html.Figcaption([html.Strong(title), html.Span(subtitle, className="subtitle")])
    return html.Figure([caption, html.Div(graph, role="img", **_aria(label=description(figure)))], className="figure")


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
    head = [html.Th(one.heading.label, title=one.heading.meaning, scope="col") for one in columns]
    kinds = ["number" if one.numeric else "" for one in columns]
    body = [
        html.Tr([html.Td(cell, className=kind) for cell, kind in zip(row, kinds, strict=True)])
        for row in zip(*map(_cells, columns), strict=True)
    ]
    sheet = html.Table([html.Thead(html.Tr(head)), html.Tbody(body)])
    summary = html.Summary([heading, html.Span(size, className="size")])
    scroll = html.Div(sheet, className="scroll", tabIndex="0", role="region", **_aria(label=heading))
    return html.Details([summary, scroll], className="table", open=len(table) < _MOST_ROWS)


def _cells(column: Displayed) -> list[str]:
    """A column as it is printed; one with small probabilities with three digits."""
    sizes = [abs(value) for value in column.values if column.numeric and value]
    return [f"{value:.3g}" for value in column.values] if min(sizes, default=1) < _SMALL else column.cells
