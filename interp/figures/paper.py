"""Saves a plotly figure as a file for a paper: with a given width in inches, 8-point type, embedded fonts, and nothing
cut off.

matplotlib draws the figure again from the contents of the plotly figure, so no browser is needed.
"""

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from html import unescape
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import matplotlib
import numpy as np
import plotly.graph_objects as go
from matplotlib.figure import Figure
from matplotlib.font_manager import findSystemFonts, fontManager
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FormatStrFormatter,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)

from interp.figures.figure import with_arrays
from interp.figures.fitting import POINTS, fit, folded
from interp.figures.style import COLOURS, FONTS
from interp.figures.traces import Plot, check_traces, draw, draw_note, draw_shape, named, tell_apart, words
from interp.support.checks import check_choice
from interp.support.disk import replacing

__all__ = ["FORMATS", "POINTS", "SETTINGS", "PaperStyle", "caption", "check_look", "drawn", "save"]

PaperStyle: TypeAlias = Literal["paper", "titled"]
"""`paper` leaves the title to the caption; `titled` writes title and subtitle above the figure."""
FORMATS = ("pdf", "svg", "png")
_LEAST_WIDTH, _MOST_WIDTH = 2.5, 20.0  # inches
_PANEL = {True: 1.5, False: 2.2}  # inches that a panel needs, with a shared y axis or its own
_DPI = 300
_NO_FONT = r"Glyph (\d+) .*missing from font"


def _settings() -> dict[str, Any]:
    # fonts that were installed since matplotlib last looked
    for new in set(findSystemFonts()) - {font.fname for font in fontManager.ttflist}:
        with suppress(RuntimeError):  # the file is not a font
            fontManager.addfont(new)
    installed = {font.name for font in fontManager.ttflist}
    sizes = ("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")
    widths = ("axes.linewidth", "xtick.major.width", "ytick.major.width", "grid.linewidth", "hatch.linewidth")
    default: Any = matplotlib.rcParamsDefault
    settings: dict[str, Any] = dict(default)
    settings.update(dict.fromkeys((*sizes, "figure.titlesize", "legend.title_fontsize"), POINTS))
    settings.update(dict.fromkeys(widths, 0.5))
    settings["font.family"] = ["DejaVu Sans", *(name for name in FONTS.split(", ") if name in installed)]
    settings.update(
        {
            "pdf.fonttype": 42,
            "svg.fonttype": "path",
            "svg.hashsalt": "interp",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.formatter.use_mathtext": True,
            "xtick.major.size": 2.5,
            "ytick.major.size": 2.5,
            "xtick.minor.size": 0,
            "ytick.minor.size": 0,
            "figure.constrained_layout.h_pad": 0.03,
            "figure.constrained_layout.w_pad": 0.03,
        }
    )
    return settings


SETTINGS: Any = _settings()
"""The settings of matplotlib."""


@matplotlib.rc_context(SETTINGS)
def save(
    figure: go.Figure, path: str | os.PathLike[str], *, width: float | int = 3.3, style: PaperStyle = "paper"
) -> Path:
    """Write a figure as PDF, SVG or PNG (300 dots per inch), depending on the ending of the path.

    Args:
        width: the width in inches: 3.3 for one column of two, 6.8 for both. The height follows from what is drawn.
        style: `paper` leaves the title to the caption, `titled` writes it above the figure.

    Warns about letters that no installed font has. Raises ValueError for another ending, for a width outside 2.5 … 20,
    and for a figure with traces other than lines, points, bars, boxes and heatmaps.

    Examples:
        >>> import tempfile
        >>> from interp.figures.style import figure
        >>> out = figure("Squares", "x", "x²").add_scatter(x=[1, 2, 3], y=[1, 4, 9])
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     save(out, f"{directory}/squares.pdf", width=3.3).name
        'squares.pdf'
    """
    target = Path(path)
    ending = target.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise ValueError(f"{str(target)!r} ends in {target.suffix!r}; expected .{', .'.join(FORMATS)}")
    title, below = _titles(figure)
    metadata = {
        "pdf": {"Title": title, "Subject": below, "Creator": "interp", "CreationDate": None},
        "svg": {"Title": title, "Description": below, "Creator": "interp", "Date": None},
        "png": {"Title": title, "Description": below, "Software": "interp"},
    }
    with replacing(target) as temporary, _joint_warning():
        drawn(figure, width=width, style=style).savefig(temporary, format=ending, dpi=_DPI, metadata=metadata[ending])
    return target


@contextmanager
def _joint_warning() -> Iterator[None]:
    """Give one warning for all letters without a font, instead of one for each letter and each time it is drawn."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _NO_FONT)
        yield
    letters: dict[str, None] = {}
    for warning in caught:
        if match := re.match(_NO_FONT, str(warning.message)):
            letters[chr(int(match[1]))] = None
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if letters:
        problem = (
            f"no installed font has {' '.join(letters)}, drawn as boxes; install a font that has, such as Noto Sans"
        )
        warnings.warn(f"{problem} (Debian, Ubuntu: apt install fonts-noto-core fonts-noto-cjk)", stacklevel=3)


def caption(figure: go.Figure) -> str:
    """Write the title and subtitle of a figure as sentences.

    Examples:
        >>> from interp.figures.style import figure
        >>> caption(figure("b<sub>LN</sub> and word frequency", "x", "y", subtitle="means over tasks"))
        'b_LN and word frequency. Means over tasks.'
    """
    title, below = _titles(figure)
    if re.match("[a-z]{2,}\\b", below):
        below = below[0].upper() + below[1:]
    sentences = []
    for line in filter(None, (title, below)):
        sentences.append(line if line.endswith(("?", ".")) else f"{line}.")
    return " ".join(sentences)


def _titles(figure: go.Figure) -> tuple[str, str]:
    """Title and subtitle as plain text, with `b_LN` for b<sub>LN</sub>."""

    def plain(text: str | None) -> str:
        spaced = re.sub(r"</sub>(?=\w)", " ", text or "").replace("<sub>", "_")
        return unescape(re.sub("<.*?>", "", spaced))

    title = figure.layout.title
    return plain(title.text), plain(title.subtitle.text)


def check_look(width: float | int, style: PaperStyle) -> None:
    """Raise ValueError for an impossible width or an unknown style."""
    check_choice("style", style, get_args(PaperStyle))
    if not _LEAST_WIDTH <= width <= _MOST_WIDTH:
        raise ValueError(f"width is {width:g} inches; expected {_LEAST_WIDTH:g} to {_MOST_WIDTH:g}")


@matplotlib.rc_context(SETTINGS)
def drawn(figure: go.Figure, *, width: float | int, style: PaperStyle = "paper") -> Figure:
    """Draw the figure with matplotlib. Raises the errors of `save`."""
    check_look(width, style)
    check_traces(figure.data)
    figure = _coloured(figure)
    out = Figure(figsize=(width, width), layout="constrained")
    plots = _axes(out, figure, _places(figure, width))
    handles: dict[str, Any] = {}
    for plot in plots:
        for trace in plot.traces:
            handle = draw(plot, trace)
            if _in_legend(figure, trace) and handle is not None:
                handles.setdefault(named(trace), (handle, words(trace.name)))
    for plot in plots:
        _scales(plot)
        lies_here = partial(_lies_on, plot)
        levels = {shape.y0: draw_shape(plot, shape) for shape in filter(lies_here, figure.layout.shapes)}
        for note in filter(lies_here, figure.layout.annotations):
            if str(note.xref).endswith("domain") and note.y in levels:
                handles.setdefault(note.text, (levels[note.y], words(note.text)))
            elif str(note.xref).endswith("domain") and str(note.yref).endswith("domain") and note.y == 1:
                plot.axes.set_title(words(note.text), pad=3)
            else:
                draw_note(plot, note)
    if style == "titled":
        title = figure.layout.title
        lines = [folded(words(text), width) for text in (title.text, title.subtitle.text) if text]
        out.suptitle("\n".join(lines), x=0.01, ha="left")
    _legend(out, [*handles.values()], width)
    fit(out, plots)
    return out


def _coloured(figure: go.Figure) -> go.Figure:
    """A copy in which each series has the colour that plotly gives it."""
    out = with_arrays(figure)
    for trace, colour in zip(out.data, cycle(figure.layout.colorway or COLOURS), strict=False):
        if trace.type != "heatmap" and (trace.type != "scatter" or trace.line.color is None):
            trace.marker.color = colour if trace.marker.color is None else trace.marker.color
    return out


def _places(figure: go.Figure, width: float) -> dict[tuple[str, str], tuple[int, int]]:
    """The row and column of each pair of axes with contents, in the order of the figure, with fewer columns if the page
    is narrow."""
    pairs = dict.fromkeys((trace.xaxis or "x", trace.yaxis or "y") for trace in figure.data) or [("x", "y")]
    left_edge = {pair: _domain(figure, pair[0])[0] for pair in pairs}
    top_edge = {pair: _domain(figure, pair[1])[1] for pair in pairs}
    shared = any(figure.layout[_key(y)].matches for _, y in pairs)
    columns = min(len({*left_edge.values()}), max(1, int(width / _PANEL[shared])))
    order = sorted(pairs, key=lambda pair: (-top_edge[pair], left_edge[pair]))
    return {pair: divmod(number, columns) for number, pair in enumerate(order)}


def _key(axis: str) -> str:
    """`xaxis2` of `x2`."""
    return f"{axis[0]}axis{axis[1:]}"


def _domain(figure: go.Figure, axis: str) -> tuple[float, float]:
    return tuple(figure.layout[_key(axis)].domain or (0.0, 1.0))


def _axes(out: Figure, figure: go.Figure, places: Mapping[tuple[str, str], tuple[int, int]]) -> list[Plot]:
    """Axes in their places, labelled at the left and below. A panel without a label gets that of the others."""
    rows, columns = (1 + np.max(list(places.values()), axis=0)).tolist()
    grid = out.add_gridspec(rows, columns)
    looks = tell_apart(figure.data)
    axes_of: dict[str | None, Any] = {}
    plots: list[Plot] = []
    for (x, y), (row, column) in places.items():
        across, along = figure.layout[_key(x)], figure.layout[_key(y)]
        matched = axes_of.get(along.matches)
        axes = axes_of[y] = out.add_subplot(grid[row, column], sharey=matched)
        axes.set_ylabel(words(along.title.text or (_label(figure, places, 1) if matched and not column else "")))
        axes.tick_params(labelleft=not column or along.showticklabels is not False)
        traces = [trace for trace in figure.data if (trace.xaxis or "x", trace.yaxis or "y") == (x, y)]
        plots.append(Plot(axes, across, along, traces, looks))
        below = [pair for pair, place in places.items() if place[1] == column and place[0] > row]
        label = across.title.text or _label(figure, places, 0)
        if not below or figure.layout[_key(below[0][0])].title.text not in (None, label):
            axes.set_xlabel(words(label))
    return plots


def _label(figure: go.Figure, places: Iterable[tuple[str, str]], side: int) -> str:
    """The first existing label of an axis."""
    for pair in places:
        if text := figure.layout[_key(pair[side])].title.text:
            return str(text)
    return ""


def _lies_on(plot: Plot, item: Any) -> bool:
    """Whether a shape or an annotation belongs to this pair of axes."""
    plot_refs = {axis.plotly_name.replace("axis", "") for axis in (plot.x, plot.y)}
    refs = {str(getattr(item, f"{side}ref") or side).removesuffix(" domain") for side in "xy"}
    return bool(refs & plot_refs) and refs <= plot_refs | {"paper"}


def _in_legend(figure: go.Figure, trace: Any) -> bool:
    """Whether a trace is in the legend, as in plotly: a single series only if this is asked for."""
    listed = [series for series in figure.data if series.showlegend is not False and series.type != "heatmap"]
    if trace.showlegend is None and len(listed) == 1:
        return False
    return trace in listed and bool(trace.name)


def _scales(plot: Plot) -> None:
    """Set the kind, range and ticks of both axes, and the grid behind the data."""
    axes = plot.axes
    has_heatmap = any(trace.type == "heatmap" for trace in plot.traces)
    if not has_heatmap:
        axes.grid(color="#dddddd", zorder=0)
        axes.set_axisbelow(True)
    for name, axis, drawn_axis in (("x", plot.x, axes.xaxis), ("y", plot.y, axes.yaxis)):
        limit = getattr(axes, f"set_{name}lim")
        categories = plot.categories(name)
        values = [plot.places(trace, name) for trace in plot.traces]
        if axis.type == "log":
            getattr(axes, f"set_{name}scale")("log")
        if axis.range is not None:
            limit(*(np.power(10.0, axis.range) if axis.type == "log" else axis.range))
        elif axis.rangemode == "tozero" and axis.type != "log":
            low, high = getattr(axes, f"get_{name}lim")()
            negative = any((value < 0).any() for value in values)
            limit(low if negative else 0.0, 1.04 * max(0.0, high))
        if axis.tickvals is not None:
            low, high = sorted(getattr(axes, f"get_{name}lim")())
            tick_labels = axis.ticktext if axis.ticktext is not None else [f"{value:g}" for value in axis.tickvals]
            ticks = {}
            for position, value in zip(axis.tickvals, tick_labels, strict=True):
                if low <= position <= high:
                    ticks[float(position)] = words(value)
            drawn_axis.set_ticks([*ticks], [*ticks.values()])
            drawn_axis.set_minor_formatter(NullFormatter())
        elif categories is not None:
            drawn_axis.set_ticks(range(len(categories)), list(map(words, categories)))
            if not has_heatmap:
                limit(-0.5, len(categories) - 0.5)
        elif axis.type != "log":
            integers = all((value == np.round(value)).all() for value in values)
            drawn_axis.set_major_locator(MaxNLocator("auto", integer=integers, steps=[1, 2, 5, 10]))
        else:
            _decades(drawn_axis, values)
        if axis.tickformat and axis.tickformat.endswith("%"):
            drawn_axis.set_major_formatter(PercentFormatter(1.0, decimals=int(axis.tickformat[1:-1])))
        elif axis.tickformat:
            drawn_axis.set_major_formatter(FormatStrFormatter(f"%{axis.tickformat}"))
        if axis.autorange == "reversed":
            drawn_axis.set_inverted(True)


def _decades(axis: Any, values: list[np.ndarray]) -> None:
    """Use ticks at powers of ten, or at 1, 2, 5, 10 … if there are few powers."""
    positive = np.concatenate([*values, [np.nan]])
    positive = positive[positive > 0]
    if len(positive) and positive.max() / positive.min() < 300:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _legend(out: Figure, handles: list[tuple[Any, str]], width: float) -> None:
    """Draw the legend below the figure, in as many columns as fit."""
    if not handles:
        return
    symbols = []
    names = []
    for symbol, name in handles:
        is_area = isinstance(symbol, Patch) and symbol.get_linewidth() == 0
        symbols.append(Patch(facecolor=symbol.get_facecolor()) if is_area else symbol)
        names.append(folded(name, width - 0.5))
    look: dict[str, Any] = {
        "frameon": False, "handlelength": 2.4, "columnspacing": 1.2, "handletextpad": 0.5,
        "borderpad": 0.1, "labelspacing": 0.25, "loc": "outside lower center",
    }  # fmt: skip
    for columns in range(min(len(names), 6), 0, -1):
        legend = out.legend(symbols, names, ncols=columns, **look)
        if columns == 1 or legend.get_window_extent().width <= (width - 0.06) * out.dpi:
            return
        legend.remove()
