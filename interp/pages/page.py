"""A run directory → one self-contained HTML page."""

import base64
import hashlib
import json
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any, TypeAlias

import circuitsvis
import jinja2
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape
from pandas.api.types import is_numeric_dtype
from plotly.offline import get_plotlyjs

from interp.analyses import load, names
from interp.checks import warn
from interp.declare import Analysis, find
from interp.disk import FIGURES, GENERATOR, check_own, check_page, replacing, replacing_directory
from interp.exports import written_as
from interp.figures.section import Section
from interp.figures.style import DARK, FONTS
from interp.results import Result

__all__ = ["Part", "Run", "find_runs", "keep_figures", "render", "saved_results", "section", "showing"]
__all__ += ["write_page"]

_json = partial(htmlsafe_json_dumps, ensure_ascii=False)
Part: TypeAlias = tuple[str, Analysis, Section]
"""A section of a page, with the name of its run."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory with its results by analysis."""

    directory: Path
    results: dict[str, Result]


@contextmanager
def showing(places: Iterable[Path]) -> Iterator[None]:
    """Raises ValueError where a result lacks what is shown of it: columns, rows, or entries of its provenance."""
    try:
        yield
    except (KeyError, IndexError, AttributeError, TypeError, ValueError, StopIteration) as error:
        what, why = " or ".join(map(str, places)), f"{type(error).__name__}: {error}"
        told = f"{what} is no result of this version of interp, or is damaged ({why}); make it again"
        raise ValueError(told) from error


def find_runs(directory: str | os.PathLike[str]) -> list[Run]:
    """The directory itself, where it holds results, and its subdirectories that do; hidden ones aside.

    A result that cannot be read, such as one of another version, is left out with a warning.

    Raises FileNotFoundError where there is no result.
    """
    runs = []
    for folder, found in saved_results(directory).items():
        results = {}
        for name in found:
            try:
                results[name] = load(name).kind.load(folder)
            except (OSError, ValueError, KeyError) as error:
                warn(f"left out {folder / name}: {error}")
        if results:
            runs.append(Run(folder, results))
    if not runs:
        raise FileNotFoundError(f"{directory} holds no result that can be read; expected the --out of one run or more")
    return runs


def saved_results(directory: str | os.PathLike[str]) -> dict[Path, list[str]]:
    """What results a directory and its subdirectories hold, hidden ones aside."""
    root = Path(directory)
    folders = [root, *(path for path in sorted(root.glob("[!.]*")) if path.is_dir())]
    found = {folder: [name for name in names() if (folder / name / "result.json").is_file()] for folder in folders}
    return {folder: held for folder, held in found.items() if held}


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

    Examples:
        >>> import tempfile
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"first": [7, 8]}
        >>> found = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     saved = found.save(directory)
        ...     write_page(directory).name
        'index.html'
    """
    root = Path(directory)
    runs = find_runs(root)
    check_page(root)
    for run in runs:
        for analysis in run.results:
            check_own(run.directory / analysis / FIGURES)
    parts: list[Part] = []
    for analysis in names():
        results = {run.directory: run.results[analysis] for run in runs if analysis in run.results}
        with showing(place / analysis for place in results):
            labels = [result.where for result in results.values()]
        for (place, result), label in zip(results.items(), labels, strict=True):
            with showing([place / analysis]):
                part = section(result)
            keep_figures(part.figures, place / analysis / FIGURES)
            shown = f"{label} ({place.name})" if labels.count(label) > 1 else label
            parts.append((shown, load(analysis), part))
    return render(root / "index.html", " · ".join(dict.fromkeys(label for label, _, _ in parts)), parts)


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
    for label, analysis, part in sorted(parts, key=lambda one: names().index(one[1].group)):
        questions.setdefault(analysis.group, {}).setdefault(analysis.title, []).append((label, part))
    groups = {name: load(name) for name in questions}
    scripts = [get_plotlyjs(), _file("page.js")]
    if any(part.views for _, _, part in parts):
        scripts.insert(0, _circuitsvis())
    template = jinja2.Template(
        _file("page.html"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template.globals.update(
        json=_json, csv=partial(written_as, form="csv"), caption=_caption, cell=_cell, value=_value, numeric=_numeric
    )
    template.globals["direction"] = _direction
    page = template.render(
        title=title,
        generator=Markup(GENERATOR),
        questions=questions,
        names={name: (name.replace("_", " ").capitalize(), one.question or one.title) for name, one in groups.items()},
        fonts=FONTS,
        style=Markup(_file("page.css")),
        scripts=[Markup(script) for script in scripts],
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        dark=DARK,
        figure_json=partial(htmlsafe_json_dumps, dumps=go.Figure.to_json),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")
    return target


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _circuitsvis() -> str:
    """The script of the installed package, which would look for its source map."""
    source = Path(circuitsvis.__file__).parent / "dist" / "cdn" / "iife.js"
    text = source.read_text(encoding="utf-8").partition("\n//# sourceMappingURL")[0]
    return text.replace("</script", "<\\/script")


def _caption(text: str | None) -> Markup:
    """A title as plotly reads it, of which only sub- and superscripts are kept as HTML."""
    pieces = re.split(r"(</?su[bp]>)", text or "")
    return Markup("").join(Markup(piece) if i % 2 else escape(unescape(piece)) for i, piece in enumerate(pieces))


def _direction(properties: dict[str, Any]) -> str:
    """How a view of tokens is to be read: `rtl` where most letters of its tokens are of scripts that go leftwards."""
    text = unescape("".join(map(str, properties.get("tokens", ()))))
    letters = Counter(map(unicodedata.bidirectional, text))
    return "rtl" if letters["R"] + letters["AL"] > letters["L"] else "ltr"


def _numeric(table: pd.DataFrame) -> list[bool]:
    return [is_numeric_dtype(kind) for kind in table.dtypes]


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
