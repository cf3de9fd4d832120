"""A run directory → one self-contained HTML page."""

import base64
import hashlib
import json
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from html import unescape
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeAlias
from urllib.parse import urljoin, urlsplit

import circuitsvis
import jinja2
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import yaml
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from interp.analyses.declare import Analysis
from interp.analyses.registry import load, names, saved_names
from interp.figures.section import Section
from interp.figures.style import DARK, FONTS
from interp.pages import overview
from interp.pages.overview import Entry
from interp.pages.undrawn import Written
from interp.results.columns import displayed
from interp.results.exports import written_as
from interp.results.findings import counted
from interp.results.result import Result
from interp.support.checks import warn
from interp.support.disk import (
    FIGURES,
    GENERATOR,
    OPTIONS,
    check_own,
    check_page,
    in_turn,
    replacing,
    replacing_directory,
)
from interp.support.paths import check_matplotlib, local_path
from interp.support.words import capitalized, count, sentence

__all__ = ["Part", "Run", "description", "find_runs", "keep_figures", "plain_title", "render", "saved_results", "style"]
__all__ += ["templates", "write_page", "written_page"]
__dir__ = __all__.copy

_json = partial(htmlsafe_json_dumps, ensure_ascii=False)
_CARTESIAN = {"bar", "box", "contour", "heatmap", "histogram", "histogram2d", "image", "pie", "scatter", "violin"}
_MOST_ROWS = 7  # the most rows of a table that is unfolded when the tables are
_MOST_ROWS_ALONE = 24  # the same on a page that is saved in the explorer, where tables are unfolded
_HALF = 540  # pixels of a figure that shares its row; a wider figure gets its own row
Part: TypeAlias = tuple[str, Analysis, Section]
"""A section of a page, with the name of its run."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory with its results by analysis."""

    directory: Path
    results: dict[str, Result]


def find_runs(directory: str | os.PathLike[str]) -> list[Run]:
    """The directory itself, if it holds results, and those of its subdirectories that do, except hidden ones.

    A result that cannot be read, such as one of another version, or that names no model or text, is left out with a
    warning.

    Raises FileNotFoundError if there is no result.
    """
    runs = []
    for folder, analyses in saved_results(directory).items():
        results = {}
        for name in analyses:
            try:
                result = load(name).kind.load(folder)
                if not {"model", "corpus"} <= set(result.provenance):
                    raise ValueError("its provenance names no model and text; run the analysis again")
                results[name] = result
            except (OSError, ValueError, KeyError) as error:
                warn(f"left out {folder / name}: {error}")
        if results:
            runs.append(Run(folder, results))
    if not runs:
        problem = f"{directory} holds no result that can be read; expected the --out of one run or more"
        if (local_path(directory) / "result.json").is_file():
            problem = f"{directory} is one result of a run; give the directory of the run, {Path(directory).parent}"
        raise FileNotFoundError(problem)
    return runs


def saved_results(directory: str | os.PathLike[str]) -> dict[Path, list[str]]:
    """The results in a directory and its subdirectories, except hidden ones."""
    root = local_path(directory)
    saved = {}
    for folder in (root, *sorted(filter(Path.is_dir, root.glob("[!.]*")))):
        if analyses := saved_names(folder):
            saved[folder] = analyses
    return saved


def write_page(directory: str | os.PathLike[str], *, url: str | None = None) -> Path:
    """Write `directory/index.html` from the results in it, or in its subdirectories.

    The page opens from disk without a network: all it needs is inside, once. Each figure is also kept as JSON that
    `plotly.io.read_json` reads, in `<analysis>/figures` next to the result.

    Args:
        url: the address at which the page will be published. With it `directory/index.png` is written too, the picture
            that other sites show with a link to the page (1,200 by 630 pixels); it needs the extra `interp[figures]`.

    Raises FileNotFoundError if there is no result; FileExistsError, before anything is written, if something that
    interp did not write has the name of the page or of its picture, or lies among the figures; and ValueError for an
    address that is not complete, and if matplotlib is missing.

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
    return written_page(directory, url=url).path


def written_page(directory: str | os.PathLike[str], *, url: str | None = None) -> Written:
    """Do what `write_page` does, and tell what could not be drawn."""
    root = local_path(directory)
    address = None if url is None else _address(url)
    if address is not None:
        check_matplotlib()
        check_page(root, "index.png")
    with in_turn(root):
        return _write_page(root, address)


def _write_page(root: Path, address: str | None) -> Written:
    runs = find_runs(root)
    check_page(root)
    for run in runs:
        for analysis in run.results:
            check_own(run.directory / analysis / FIGURES)
    written = Written(root / "index.html")
    parts: list[Part] = []
    for analysis in names():
        results = {run.directory: run.results[analysis] for run in runs if analysis in run.results}
        labels = [result.where for result in results.values()]
        for (place, result), label in zip(results.items(), labels, strict=True):
            heading = f"{label} ({place.name})" if labels.count(label) > 1 else label
            part = written.attempt(
                f"interp {analysis} of {heading}",
                partial(_drawn, result, place / analysis, root),
                partial(Section.undrawn, provenance=result.provenance),
            )
            written.results += [result] if part.is_drawn else []
            parts.append((heading, load(analysis), part))
    title = " · ".join(dict.fromkeys(label for label, _, _ in parts))
    drawn = [part for _, _, part in parts if part.is_drawn]
    if address is not None and drawn:
        picture = partial(resolve_name("interp.pages.picture:write_picture"), root / "index.png", title, drawn[0])
        written.attempt("the picture of the page", picture, lambda note: None)
    render(written, title, parts, url=address if drawn else None)
    return written


def _drawn(result: Result, place: Path, root: Path) -> Section:
    """The section of a result, whose figures are kept in its folder."""
    part = replace(result.section, repeat=_repeat(place / OPTIONS, root))
    keep_figures(part.figures, place / FIGURES)
    return part


def _repeat(options: Path, root: Path) -> str:
    """The command that repeats a run whose options are in this file, which is named from where the page lies; empty if
    the file is missing or names no command."""
    with suppress(OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        command = yaml.safe_load(options.read_text(encoding="utf-8"))["command"]
        if command in (*names(), "report"):
            return f"interp {command} --config {options.relative_to(root)} --out DIR"
    return ""


def _address(url: str) -> str:
    """The address of a page: of a file, or of a folder, which ends in a slash."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ValueError(f"url is {url!r}; expected the whole address of the page, such as https://example.org/run/")
    return url if url.endswith(("/", ".html")) else f"{url}/"


def keep_figures(figures: dict[str, go.Figure], directory: Path) -> None:
    """Write each figure as JSON; the folder then holds these and no others.

    Raises ValueError for a name that is not a file name.
    """
    for name in figures:
        if Path(name).name != name:
            raise ValueError(f"a figure cannot be named {name!r}; expected a file name: is the result damaged?")
    with replacing_directory(directory) as temporary:
        for name, figure in figures.items():
            figure.write_json(temporary / f"{name}.json")


def render(written: Written, title: str, parts: list[Part], *, url: str | None = None) -> None:
    """Write a page of sections, each with the name of its run; they are ordered by question and analysis.

    Args:
        written: the page, to which notes are added for sections that cannot be drawn.
        url: the address of the page, if there is a picture next to it.
    """
    questions = _by_question(parts, written)
    entries: list[Entry] = []
    for by_title in questions.values():
        for group in by_title.values():
            entries.extend(group)
    labels = {}
    for name in questions:
        analysis = load(name)
        labels[name] = (name.replace("_", " ").capitalize(), analysis.question or analysis.title)
    sections = [part for _, _, part in parts]
    scripts = [_plotly(figure for part in sections for figure in part.figures.values()), _file("page.js")]
    if any(part.views for part in sections):
        scripts.insert(0, _circuitsvis())
    template = templates().get_template("page.html")
    page = template.render(
        title=title,
        description=" ".join(part.summary for part in sections if part.is_drawn),
        url=url,
        image=None if url is None else urljoin(url, "index.png"),
        generator=Markup(GENERATOR),
        questions=questions,
        subjects=overview.subjects(entries),
        several=len({entry.model for entry in entries}) > 1,
        terms=overview.terms(entries),
        rules=overview.rules(entries),
        left_out=overview.left_out(entries),
        names=labels,
        style=Markup(style()),
        scripts=[Markup(script) for script in scripts],
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        dark=DARK,
    )
    written.path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(written.path) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")


@cache
def templates() -> jinja2.Environment:
    """The templates in this folder, and the functions that they call."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    out = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    csv = partial(written_as, form="csv")
    out.globals.update(json=_json, csv=csv, caption=_caption, cell=_cell, value=_value, count=count, fonts=FONTS)
    out.globals.update(direction=_direction, displayed=displayed, sentence=sentence, most_rows=_MOST_ROWS)
    out.globals.update(most_rows_alone=_MOST_ROWS_ALONE)
    out.globals.update(plain_title=plain_title, description=description, opens=_opens, opening=_opening)
    out.globals.update(capitalized=capitalized, counted=counted, anchor=_anchor, in_words=_in_words, half=_HALF)
    out.globals.update(figure_json=partial(htmlsafe_json_dumps, dumps=go.Figure.to_json))
    return out


def style() -> str:
    return _file("page.css")


def _by_question(parts: list[Part], written: Written) -> dict[str, dict[str, list[Entry]]]:
    """The parts by question and by title of the analysis."""
    questions: dict[str, dict[str, list[Entry]]] = {}
    for label, analysis, part in sorted(parts, key=lambda part: names().index(part[1].group)):
        by_title = questions.setdefault(analysis.group, {})
        entries = by_title.setdefault(analysis.title, [])
        place = f"{analysis.group}-{[*by_title].index(analysis.title) + 1}-{len(entries) + 1}"
        model = part.provenance.get("model")
        entry = Entry(place, label, Path(model).name if model else label, analysis, part)
        drawing = f"interp {analysis.name} of {label}"
        entries.append(written.attempt(drawing, partial(_as_html, entry), partial(_undrawn, entry)))
    return questions


def _as_html(entry: Entry) -> Entry:
    part = templates().get_template("part.html").module
    return entry._replace(lead=part.lead(entry), body=part.body(entry))  # type: ignore[attr-defined]


def _undrawn(entry: Entry, note: str) -> Entry:
    return _as_html(entry._replace(section=Section.undrawn(note, {})))


def _plotly(figures: Iterable[go.Figure]) -> str:
    """plotly.js: its cartesian bundle if that has the installed version and all kinds of traces."""
    bundle = _file("plotly/plotly-cartesian.min.js")
    kinds = {trace.type for figure in figures for trace in figure.data}
    is_installed_version = f"(cartesian - minified) v{get_plotlyjs_version()}\n" in bundle[:200]
    return bundle if is_installed_version and kinds <= _CARTESIAN else get_plotlyjs()


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _circuitsvis() -> str:
    """The script of the installed package, without the reference to its source map, which is missing."""
    source = Path(circuitsvis.__file__).parent / "dist" / "cdn" / "iife.js"
    text = source.read_text(encoding="utf-8").partition("\n//# sourceMappingURL")[0]
    return text.replace("</script", "<\\/script")


def _caption(text: str | None) -> Markup:
    """A title as plotly reads it, of which only sub- and superscripts are kept as HTML."""
    pieces = re.split(r"(</?su[bp]>)", text or "")
    return Markup("").join(Markup(piece) if i % 2 else escape(unescape(piece)) for i, piece in enumerate(pieces))


def plain_title(figure: go.Figure) -> str:
    return unescape(re.sub("<[^>]*>", "", figure.layout.title.text or ""))


def description(figure: go.Figure) -> str:
    """What a figure shows, for those who do not see it: its title, its axes and its lines."""
    axes = [axis.title.text for axis in (*figure.select_xaxes(), *figure.select_yaxes()) if axis.title.text]
    named = [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]
    parts = [plain_title(figure), figure.layout.title.subtitle.text, "Axes: " + "; ".join(dict.fromkeys(axes))]
    if named:
        parts.append("Shown: " + "; ".join(dict.fromkeys(named)))
    return unescape(re.sub("<[^>]*>", "", ". ".join(filter(None, parts))))


def _opens(place: str, name: str, text: str) -> Markup:
    """A button with this text that opens the contexts of what has this name."""
    return Markup('<button type="button" class="opens" popovertarget="{}">{}</button>').format(
        _anchor(place, name), text
    )


def _opening(text: str, contexts: Iterable[str], place: str) -> Markup:
    """A text in which each name of something that has contexts is a button that opens them."""
    names = "|".join(map(re.escape, sorted(contexts, key=len, reverse=True)))
    pieces = re.split(rf"(\b(?:{names})\b)", text) if names else [text]
    return Markup("").join(_opens(place, piece, piece) if i % 2 else escape(piece) for i, piece in enumerate(pieces))


def _anchor(place: str, name: str) -> str:
    return f"{place}-{name.replace(' ', '-')}"


def _in_words(token: str) -> str:
    """The name of a token without the mark for a space before it, or for the continuation of a word."""
    return re.sub("^(␣|##(?!#))(?=.)", "", token)


def _direction(properties: dict[str, Any]) -> str:
    """The direction of a view of tokens: `rtl` if most letters of its tokens are written from right to left."""
    text = unescape("".join(map(str, properties.get("tokens", ()))))
    letters = Counter(map(unicodedata.bidirectional, text))
    return "rtl" if letters["R"] + letters["AL"] > letters["L"] else "ltr"


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        number = float(value)
        return "–" if math.isnan(number) else f"{number:.4g}" if abs(number) < 1000 else f"{number:,.0f}"
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def _value(value: float | int) -> str:
    """A number in full, as JavaScript reads it; empty for a missing one."""
    return "" if pd.isna(value) else f"{float(value)!r}".replace("inf", "Infinity")
