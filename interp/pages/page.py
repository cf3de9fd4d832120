"""A run directory → one self-contained HTML page."""

import base64
import hashlib
import json
import math
import os
import re
from html import unescape
from pathlib import Path
from typing import Any, TypeAlias

import circuitsvis
import jinja2
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from interp.analyses import load, names
from interp.declare import Analysis, find
from interp.disk.files import replacing, replacing_directory
from interp.disk.marks import FIGURES, GENERATOR, check_own, check_page
from interp.figures.section import Section
from interp.figures.style import DARK
from interp.pages.runs import Run, find_runs, showing
from interp.results import Result

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
Part: TypeAlias = tuple[str, Analysis, Section]
"""A section of a page, with the name of its run."""


def section(result: Result) -> Section:
    """What the page says of a result."""
    found: Section = find(load(result.analysis).section)(result)
    return found


def write_page(directory: str | os.PathLike[str]) -> Path:
    """Write `directory/index.html` from the results in it, or in its subdirectories.

    The page opens from disk without a network: all it needs is inside, once. Each figure is also kept as JSON that
    `plotly.io.read_json` reads, in `<analysis>/figures` beside the result.

    Raises FileNotFoundError where there is no result, and FileExistsError, before anything is written, where something
    that interp did not write has the name of the page or lies among the figures.
    """
    parts: list[Part] = []
    runs = find_runs(directory)
    check_page(Path(directory))
    for run in runs:
        for analysis in run.results:
            check_own(run.directory / analysis / FIGURES)
    for analysis in names():
        of_analysis = [run for run in runs if analysis in run.results]
        with showing(run.directory / analysis for run in of_analysis):
            labels = _labels(of_analysis, analysis)
        for run, label in zip(of_analysis, labels, strict=True):
            with showing([run.directory / analysis]):
                part = section(run.results[analysis])
            keep_figures(part.figures, run.directory / analysis / FIGURES)
            parts.append((label, load(analysis), part))
    return render(Path(directory) / "index.html", " · ".join(dict.fromkeys(label for label, _, _ in parts)), parts)


def _labels(runs: list[Run], analysis: str) -> list[str]:
    """Model and corpus of each result, and its directory where these are the same."""
    about = [run.results[analysis].provenance for run in runs]
    labels = [f"{Path(one['model']).name} on {one['corpus']}" for one in about]
    return [
        f"{label} ({run.directory.name})" if labels.count(label) > 1 else label
        for run, label in zip(runs, labels, strict=True)
    ]


def keep_figures(figures: dict[str, go.Figure], directory: Path) -> None:
    """Write each figure as JSON; the folder then holds these and no others.

    Raises ValueError for a name that is no file name.
    """
    for name in figures:
        if Path(name).name != name:
            raise ValueError(f"a figure cannot be named {name!r}; expected a file name: is the result damaged?")
    with replacing_directory(directory) as temporary:
        for name, figure in figures.items():
            figure.write_json(temporary / f"{name}.json")


def render(target: Path, title: str, parts: list[Part]) -> Path:
    """Write a page of sections, each with the name of its run; they are ordered by question and analysis."""
    questions: dict[str, dict[str, list[tuple[str, Section]]]] = {}
    groups = sorted({analysis.group for _, analysis, _ in parts}, key=names().index)
    for group in groups:
        for label, analysis, part in parts:
            if analysis.group == group:
                questions.setdefault(group, {}).setdefault(analysis.title, []).append((label, part))
    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    scripts = [get_plotlyjs(), (folder / "page.js").read_text(encoding="utf-8")]
    if any(part.views for _, _, part in parts):
        scripts.insert(0, _circuitsvis())
    page = environment.get_template("page.html").render(
        title=title,
        generator=Markup(GENERATOR),
        questions=questions,
        names={name: (name.replace("_", " ").capitalize(), load(name).question or load(name).title) for name in groups},
        style=Markup((folder / "page.css").read_text(encoding="utf-8")),
        scripts=[Markup(script) for script in scripts],
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        dark=DARK,
        json=_json,
        csv=_csv,
        figure_json=lambda figure: _shielded(figure.to_json()),
        caption=_caption,
        cell=_cell,
        value=_value,
        numeric=lambda table: [pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes],
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")
    return target


def _circuitsvis() -> str:
    """The script of the installed package, which would look for its source map."""
    source = Path(circuitsvis.__file__).parent / "dist" / "cdn" / "iife.js"
    text = source.read_text(encoding="utf-8").partition("\n//# sourceMappingURL")[0]
    return text.replace("</script", "<\\/script")


def _json(value: object) -> Markup:
    return _shielded(json.dumps(value, ensure_ascii=False))


def _shielded(text: str) -> Markup:
    """JSON that is safe inside a script element."""
    for character, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(character, code)
    return Markup(text)


def _caption(text: str | None) -> Markup:
    """A title as plotly reads it, of which only sub- and superscripts are kept as HTML."""
    pieces = re.split(r"(</?su[bp]>)", text or "")
    return Markup("").join(Markup(piece) if i % 2 else escape(unescape(piece)) for i, piece in enumerate(pieces))


def _csv(table: pd.DataFrame) -> str:
    """As CSV; an apostrophe stands before text that a spreadsheet would run as a formula."""
    names = [str(name) for name in table]
    numbers = [pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes]
    columns = [
        table[name] if number else table[name].map(_no_formula) for name, number in zip(table, numbers, strict=True)
    ]
    return pd.concat(columns, axis=1).to_csv(index=False, header=[_no_formula(name) for name in names])


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        number = float(value)
        return "–" if math.isnan(number) else f"{number:.4g}" if abs(number) < 1000 else f"{number:,.0f}"
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def _value(value: float | int) -> str:
    """A number in full as JavaScript reads it, nothing for NaN."""
    number = float(value)
    return "" if math.isnan(number) else f"{number!r}".replace("inf", "Infinity")
