"""The page of the explorer, and what happens when a control changes."""

import re
import threading
import traceback
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from interp.figures.style import FONTS
from interp.models.identity import origin
from interp.models.spelling import token_names
from interp.pages.explorer.controls import Panel, panels
from interp.pages.explorer.figures import head_at
from interp.pages.explorer.shown import aria, caveat, saved_page, shown
from interp.pages.explorer.subject import MOST_TOKENS, Answer, Subject, token_ids
from interp.pages.page import style
from interp.support.checks import collecting
from interp.support.paths import short_name
from interp.support.words import count

__all__ = ["application"]

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


def application(subject: Subject, prefix: str) -> Dash:
    """The page as an application whose addresses all begin with `prefix`, such as `/token/`."""
    name = short_name(origin(subject.model).name)
    app = Dash(
        "interp.pages.explorer",
        url_base_pathname=prefix,
        assets_folder=str(Path(__file__).parent / "assets"),
        title=f"interp explore · {escape(name)}",
        update_title="",
        suppress_callback_exceptions=True,  # figures exist only once a panel has answered
        index_string=_INDEX.replace("FONTS", FONTS).replace("STYLE", style()),
    )
    by_name = panels(subject)
    app.layout = _layout(subject, name, by_name)
    lock = threading.Lock()
    for key, panel in by_name.items():
        _answering(app, key, panel, subject, lock)
    _choosing(app, subject)
    app.clientside_callback(
        ClientsideFunction("explorer", "darkness"), Output("dark", "data"), Input("dark", "id")
    )  # it also follows later changes
    return app


def _answering(app: Dash, key: str, panel: Panel, subject: Subject, lock: threading.Lock) -> None:
    """Let a panel answer when a control changes, and save what it shows."""
    inputs = [Input(name, "value") for name in panel.inputs]
    states = [State(name, "value") for name in panel.inputs]

    def answered(chosen: Sequence[Any]) -> tuple[Answer, list[str]]:
        caveats: list[str] = []
        with lock, collecting(caveats):
            return panel.answer(subject, *chosen), caveats

    @app.callback(Output(f"{key}-shown", "children"), *inputs, Input("dark", "data"))
    def show(*arguments: Any) -> list[Component]:
        *chosen, dark = arguments
        try:
            answer, caveats = answered(chosen)
            return [*map(caveat, caveats), *shown(key, answer, dark=bool(dark))]
        except (ValueError, TypeError) as error:
            message = str(error)
        except Exception as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}; this is probably a mistake in interp: please report it"
        return [caveat(message)]

    @app.callback(Output(f"{key}-saved", "data"), Input(f"{key}-save", "n_clicks"), *states, prevent_initial_call=True)
    def save(_: int, *chosen: Any) -> Any:
        try:
            page = saved_page(subject, panel.analysis, *answered(chosen))
        except (ValueError, TypeError):  # what is shown says so
            return no_update
        return dcc.send_string(page, f"{short_name(origin(subject.model).name)}-{key}.html")


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
            return no_update, no_update, int(point["y"].split()[0]), int(point["x"].split()[0])
        try:
            names = token_names(subject.model, token_ids(subject.model, text or ""))
        except ValueError:  # the panel says so
            names = []
        options = [{"label": f"{place}  {name}", "value": place} for place, name in enumerate(names)]
        return options, options, None, None

    @app.callback(
        Output("attention-head", "value"), Input("attention-figure-heads", "clickData", allow_optional=True),
        prevent_initial_call=True,
    )  # fmt: skip
    def head(click: Any) -> Any:
        if not click:
            return no_update
        point = click["points"][0]
        chosen = head_at(point["x"], point["y"], subject.model.cfg.n_heads)
        return no_update if chosen is None else chosen

    @app.callback(
        Output("attention-outliers", "children"), Output("attention-outliers", "disabled"),
        Input("attention-layer", "value"),
    )  # fmt: skip
    def removable(layer: int | None) -> tuple[str, bool]:
        n = len(_outliers(subject, layer))
        return (f"Remove {count(n, 'outlier')}" if n else "No outliers in this block"), not n

    @app.callback(
        Output("attention-removed", "value"),
        Input("attention-figure-dimensions", "clickData", allow_optional=True), Input("attention-outliers", "n_clicks"),
        State("attention-removed", "value"), State("attention-layer", "value"), prevent_initial_call=True,
    )  # fmt: skip
    def removed(click: Any, _: int | None, text: str | None, layer: int | None) -> Any:
        if ctx.triggered_id == "attention-outliers":
            return ", ".join(map(str, _outliers(subject, layer)))
        if not click:
            return no_update
        dim = str(click["points"][0]["x"])
        dims = re.findall("[0-9]+", text or "")
        return ", ".join([number for number in dims if number != dim] if dim in dims else [*dims, dim])


def _outliers(subject: Subject, layer: int | None) -> list[int]:
    """The outlier dimensions of the state that a block reads."""
    outliers = subject.prepared.outliers
    return outliers[outliers["state"] == layer]["dim"].tolist()


def _layout(subject: Subject, name: str, by_name: dict[str, Panel]) -> Component:
    cfg = subject.model.cfg
    shape = f"{type(subject.model).__name__}, {count(cfg.n_layers, 'block')} of {cfg.d_model:,} dimensions"
    limit = f"Texts have at most {min(MOST_TOKENS, cfg.n_ctx)} tokens"
    tabs = []
    sections = []
    for key, panel in by_name.items():
        tabs.append(html.Button(panel.title, id=f"{key}-tab", role="tab", className="tab", **aria(controls=key)))
        sections.append(_section(key, panel))
    return html.Main(
        [
            html.Header([html.H1(f"interp explore · {name}"), html.P(f"{shape}. {limit}.")]),
            html.Div(tabs, className="tabs", role="tablist", **aria(label="Panels")),
            *sections,
            dcc.Store(id="dark"),
        ],
        className="explorer",
    )


def _section(key: str, panel: Panel) -> Component:
    controls = []
    for label, control in panel.controls.items():
        labelled = [html.Label(label, htmlFor=control.id), control] if label else control
        controls.append(html.Div(labelled, className=f"control {control.id}"))
    save = html.Button("Save as HTML", id=f"{key}-save", className="tool", type="button")
    result = html.Div(id=f"{key}-shown", className="shown", **aria(live="polite"))
    children: list[Component] = [
        html.H2(panel.question),
        html.P(panel.hint, className="hint"),
        html.Div([html.Form([*controls, save]), result], className="panel"),
        dcc.Download(id=f"{key}-saved"),
    ]
    return html.Section(children, id=key, role="tabpanel", **aria(labelledby=f"{key}-tab"))
