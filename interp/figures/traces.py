"""Draws the traces of a plotly figure with matplotlib. Series can be distinguished without colour."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import cycle
from typing import Any

import numpy as np
import plotly.graph_objects as go
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, to_rgba
from matplotlib.patches import Patch
from plotly.colors import sample_colorscale

__all__ = ["INDEX", "Plot", "check_traces", "draw", "draw_note", "draw_shape", "named", "tell_apart", "words"]

_POINT = 0.5  # points in print per pixel of plotly
_DASHES: dict[str, Any] = {
    "solid": "-", "dash": (0, (4, 2)), "dot": (0, (1.4, 1.4)), "dashdot": (0, (4, 1.5, 1, 1.5)),
    "longdash": (0, (9, 2)), "longdashdot": (0, (9, 2, 1, 2)),
}  # fmt: skip
_SYMBOLS = {
    "circle": "o", "square": "s", "diamond": "D", "cross": "P", "x": "X", "triangle-up": "^",
    "triangle-down": "v", "triangle-left": "<", "triangle-right": ">",
}  # fmt: skip
_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++")
_MOST_MARKERS = 14  # the most markers on a line
_GREY = np.array([0.2126, 0.7152, 0.0722])  # luminance of red, green and blue


@dataclass(frozen=True, eq=False)
class Plot:
    """A pair of axes, the traces on it, and the place of each category of an axis."""

    axes: Any
    x: go.layout.XAxis
    y: go.layout.YAxis
    traces: Sequence[Any]
    looks: Mapping[str, Mapping[str, Any]]

    def categories(self, name: str) -> list[str] | None:
        """Return the categories of the axis `x` or `y`, in order; None for an axis of numbers."""
        axis = getattr(self, name)
        values: list[Any] = []
        for trace in self.traces:
            values.extend(_values(trace, name))
        if axis.type != "category" and not any(isinstance(value, str) for value in values):
            return None
        first = [] if axis.categoryarray is None else axis.categoryarray
        return list(dict.fromkeys(map(str, [*first, *values])))

    def places(self, trace: Any, name: str) -> np.ndarray:
        """Return the coordinates of a trace's values."""
        values = _values(trace, name)
        categories = self.categories(name)
        if categories is None:
            return np.asarray(values, dtype=float)
        return np.array([categories.index(str(value)) for value in values], dtype=float)


def _values(trace: Any, name: str) -> list[Any]:
    values = trace[name]
    if values is None:  # plotly counts them from 0
        if trace.type == "heatmap":
            neighbours = trace.z if name == "y" else trace.z[0]
        else:
            neighbours = trace["y" if name == "x" else "x"]
        return [*range(0 if neighbours is None else len(neighbours))]
    if len(values) and isinstance(values[0], list | tuple | np.ndarray):  # levels of labels
        return [", ".join(map(str, levels)) for levels in zip(*values, strict=True)]
    return list(values)


INDEX = re.compile(r"\$[_^]\{\\mathrm\{(.*?)\}\}\$")
"""A sub- or superscript in `words`, with its letters as group."""


def words(text: object) -> str:
    """Convert text of a plotly figure for matplotlib, with sub- and superscripts as mathtext and everything else
    literal."""
    plain_text = re.sub("[\u2068\u2069]", "", str(text)).replace("$", r"\$")
    plain_text = re.sub("</?[bi]>", "", re.sub(r"<br ?/?>", "\n", plain_text))
    plain_text = re.sub(r"<sub>(.*?)</sub>", r"$_{\\mathrm{\1}}$", plain_text)
    return unescape(re.sub(r"<sup>(.*?)</sup>", r"$^{\\mathrm{\1}}$", plain_text))


def css_colour(css: str) -> tuple[float, ...]:
    """Read red, green, blue and opacity, each from 0 to 1, of `#rrggbb`, `rgb(…)` or `rgba(…)`."""
    if not css.startswith("rgb"):
        return to_rgba(css)
    red, green, blue, *alpha = map(float, re.findall(r"[\d.]+", css))
    return (red / 255, green / 255, blue / 255, *(alpha or [1.0]))


def dashes(name: str | None) -> Any:
    return _DASHES.get(name or "solid", "-")


def _colour(trace: Any) -> tuple[float, ...]:
    of_line = trace.line.color if trace.type == "scatter" else None
    return css_colour(of_line or trace.marker.color)


def _width(line: Any) -> float:
    return 2.0 if line.width is None else float(line.width)


def named(trace: Any) -> str:
    """Return the name of a series. All traces with the same name look alike."""
    return str(trace.legendgroup or trace.name or "")


def tell_apart(traces: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Choose a distinct `symbol`, `dash` or `hatch` for each series that differs from another only in its colour.

    More than six lines without symbols are not changed: they are ordered from dark to light.
    """
    series: dict[str, Any] = {}
    for trace in traces:
        if trace.showlegend is not False:
            series.setdefault(named(trace), trace)
    hatches = cycle(_HATCHES)
    looks: dict[str, dict[str, Any]] = {}
    for name, trace in series.items():
        if trace.type in ("bar", "box"):
            looks[name] = {"hatch": next(hatches)}
    lines = {name: trace for name, trace in series.items() if trace.type == "scatter" and trace.fill is None}
    used: set[tuple[Any, Any]] = set()
    for name, trace in lines.items():
        dash = (trace.line.dash or "solid") if "lines" in (trace.mode or "lines") else None
        symbol = (trace.marker.symbol or "circle") if "markers" in (trace.mode or "") else None
        if (dash, symbol) in used and len(lines) <= len(_DASHES):
            if symbol is not None:
                symbol = next((two for two in _SYMBOLS if (dash, two) not in used), symbol)
                looks[name] = {"symbol": symbol}
            else:
                dash = next((two for two in _DASHES if (two, None) not in used), dash)
                looks[name] = {"dash": dash}
        used.add((dash, symbol))
    return looks


def check_traces(traces: Iterable[Any]) -> None:
    """Raise ValueError for a kind of trace that cannot be drawn for a paper."""
    for trace in traces:
        if trace.type not in _DRAWN:
            drawable = ", ".join(_DRAWN)
            problem = f"a {trace.type!r} trace cannot be drawn for a paper, only {drawable}"
            raise ValueError(f"{problem}; use plotly's write_image")


def draw(plot: Plot, trace: Any) -> Any:
    """Draw a trace, and return its handle for the legend."""
    return _DRAWN[trace.type](plot, trace)


def _scatter(plot: Plot, trace: Any) -> Any:
    x = plot.places(trace, "x")
    y = plot.places(trace, "y")
    axes = plot.axes
    if trace.fill == "toself":
        finite = np.isfinite(x) & np.isfinite(y)
        (patch,) = axes.fill(x[finite], y[finite], color=css_colour(trace.fillcolor), linewidth=0, zorder=1)
        return patch
    if trace.marker.colorscale is not None and not isinstance(trace.marker.color, str):
        return _cloud(plot, trace, x, y)
    look = plot.looks.get(named(trace), {})
    mode = trace.mode or "lines"
    colour = _colour(trace)
    style: dict[str, Any] = {"linestyle": "none"}
    if "lines" in mode:
        dash = look.get("dash", trace.line.dash) if trace.showlegend is not False else trace.line.dash
        style = {"linestyle": dashes(dash), "linewidth": _POINT * _width(trace.line)}
    if "markers" in mode:
        style |= _marker(trace, look)
        if "lines" in mode and trace.error_y.array is None and trace.error_x.array is None:
            style["markevery"] = max(1, -(-len(x) // _MOST_MARKERS))
    _bars_of_error(plot, trace, x, y)
    (line,) = axes.plot(x, y, color=colour, zorder=2.5, **style)
    if "markers" in mode and np.ndim(trace.marker.size):
        large = np.asarray(trace.marker.size) == np.max(trace.marker.size)
        line.set(markevery=1, markersize=2)
        style["linestyle"] = "none"
        axes.plot(x[large], y[large], color=colour, zorder=2.6, **style)
    return line


def _marker(trace: Any, look: Mapping[str, Any]) -> dict[str, Any]:
    symbol = look.get("symbol", trace.marker.symbol)
    if isinstance(symbol, int | np.integer):
        symbol = list(_SYMBOLS)[symbol]
    size = 6 if trace.marker.size is None else np.max(trace.marker.size)
    style = {"markersize": max(2.0, 0.55 * float(size)), "markeredgewidth": 0.7, "alpha": trace.marker.opacity}
    if str(trace.marker.symbol).endswith("-open"):
        style["markerfacecolor"] = "white"
    style["marker"] = _SYMBOLS.get(str(symbol).removesuffix("-open"), "o")
    return style


def _cloud(plot: Plot, trace: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Draw points with a colour scale."""
    colours = np.asarray(trace.marker.color, dtype=float)
    scale = ScalarMappable(Normalize(trace.marker.cmin, trace.marker.cmax), _colours(trace.marker.colorscale))
    scale.norm.autoscale_None(colours)
    options: dict[str, Any] = {"s": 9, "alpha": trace.marker.opacity, "zorder": 2.6, "linewidths": 0}
    plot.axes.scatter(x, y, c=colours, cmap=scale.cmap, norm=scale.norm, **options)
    _scale_beside(plot.axes, scale, trace.marker.colorbar)


def _bars_of_error(plot: Plot, trace: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Draw intervals with caps. An estimate may lie outside its interval."""
    colour = _colour(trace)
    for error, across, lines, cap in (
        (trace.error_y, False, plot.axes.vlines, "_"),
        (trace.error_x, True, plot.axes.hlines, "|"),
    ):
        if error.array is None:
            continue
        upwards = np.asarray(error.array, dtype=float)
        downwards = upwards if error.arrayminus is None else np.asarray(error.arrayminus, dtype=float)
        place, middle = (y, x) if across else (x, y)
        ends = middle - downwards, middle + upwards
        lines(place, *ends, color=colour, linewidth=0.7, zorder=2.4)
        if error.width != 0:
            for end in ends:
                coordinates = (end, place) if across else (place, end)
                plot.axes.plot(*coordinates, cap, color=colour, markersize=3, markeredgewidth=0.7, zorder=2.4)


def _bars(plot: Plot, trace: Any) -> Any:
    neighbours = [neighbour for neighbour in plot.traces if neighbour.type == "bar"]
    width = 0.8 / len(neighbours)
    x = plot.places(trace, "x") + width * (neighbours.index(trace) - (len(neighbours) - 1) / 2)
    y = np.asarray(trace.y, dtype=float)
    style = _filled(plot, trace)
    plot.axes.bar(x, y, width, zorder=2, **style)
    _bars_of_error(plot, trace, x, y)
    return Patch(**style)


def _filled(plot: Plot, trace: Any) -> dict[str, Any]:
    """A pale fill with a hatch in the colour of the series."""
    colour = _colour(trace)
    hatch = plot.looks.get(named(trace), {}).get("hatch", "")
    return {"facecolor": (*colour[:3], 0.25), "edgecolor": colour[:3], "hatch": hatch, "linewidth": 0.7}


def _boxes(plot: Plot, trace: Any) -> Any:
    """Draw the median, the quartiles and the furthest points within 1.5 interquartile ranges of them, as in plotly. The
    points stand next to the box, in their order."""
    groups = list(dict.fromkeys(named(box_trace) for box_trace in plot.traces if box_trace.type == "box"))
    width = 0.8 / len(groups)
    x = plot.places(trace, "x")
    y = np.asarray(trace.y, dtype=float)
    style = _filled(plot, trace)
    colour = _colour(trace)[:3]
    line = {"color": colour, "linewidth": 0.7}
    for place in np.unique(x):
        values = y[(x == place) & np.isfinite(y)]
        if not len(values):
            continue
        middle = place + width * (groups.index(named(trace)) - (len(groups) - 1) / 2)
        low, median, high = np.percentile(values, [25, 50, 75], method="hazen")
        inside = values[(values >= low - 1.5 * (high - low)) & (values <= high + 1.5 * (high - low))]
        box = {"q1": low, "med": median, "q3": high, "whislo": inside.min(), "whishi": inside.max()}
        plot.axes.bxp(
            [box], positions=[middle], widths=0.8 * width, manage_ticks=False, patch_artist=True, showfliers=False,
            boxprops=style, whiskerprops=line, capprops=line, medianprops=line,
        )  # fmt: skip
        spread = 0.25 * width * ((np.arange(len(values)) * 0.618) % 1 - 0.5)
        plot.axes.plot(middle + spread, values, "o", color=colour, markersize=1.8, alpha=0.6, zorder=3)
    return Patch(**style)


def _grid(plot: Plot, trace: Any) -> None:
    x = plot.places(trace, "x")
    y = plot.places(trace, "y")
    z = np.asarray(trace.z, dtype=float)
    scale = ScalarMappable(Normalize(trace.zmin, trace.zmax), _colours(trace.colorscale))
    scale.norm.autoscale_None(z)
    plot.axes.pcolormesh(_edges(x), _edges(y), z, cmap=scale.cmap, norm=scale.norm, zorder=0)
    for (row, column), value in np.ndenumerate(z):
        if trace.texttemplate is not None and np.isfinite(value):
            form = re.sub(r"%\{z:(.*?)\}", r"{:\1}", trace.texttemplate)
            cell_text = str(trace.text[row][column]) if form == "%{text}" else form.format(value)
            ink = "white" if np.dot(scale.to_rgba(value)[:3], _GREY) < 0.45 else "black"
            options: dict[str, Any] = {"color": ink, "ha": "center", "va": "center", "gid": "cell"}
            options["weight"] = "bold" if "<b>" in cell_text else None
            options["style"] = "italic" if "<i>" in cell_text else None
            plot.axes.text(x[column], y[row], words(cell_text).replace("-", "−"), **options)
    _scale_beside(plot.axes, scale, trace.colorbar)


def _edges(centres: np.ndarray) -> np.ndarray:
    if len(centres) == 1:
        return centres[0] + np.array([-0.5, 0.5])
    inner = (centres[1:] + centres[:-1]) / 2
    return np.array([2 * centres[0] - inner[0], *inner, 2 * centres[-1] - inner[-1]])


def _colours(scale: Any) -> Colormap:
    """A colour scale whose brightness only rises or only falls. A scale with two dark ends is replaced by cividis."""
    if scale is not None:
        css = sample_colorscale(list(map(list, scale)), list(np.linspace(0, 1, 65)))
        colours = [css_colour(item)[:3] for item in css]
        steps = np.diff(np.array(colours) @ _GREY)
        if (steps > -1e-3).all() or (steps < 1e-3).all():
            return LinearSegmentedColormap.from_list("scale", colours)
    return colormaps["cividis"]


def _scale_beside(axes: Any, scale: ScalarMappable, bar: Any) -> None:
    drawn = axes.figure.colorbar(scale, ax=axes, pad=0.02, aspect=25)
    drawn.outline.set_linewidth(0.4)
    if bar.title.text:
        drawn.ax.set_ylabel(words(bar.title.text))


_DRAWN: dict[str, Callable[[Plot, Any], Any]]
_DRAWN = {"scatter": _scatter, "bar": _bars, "box": _boxes, "heatmap": _grid}


def draw_shape(plot: Plot, shape: Any) -> Any:
    """Draw a line across the axes. Other shapes of plotly are not used."""
    style = {"color": css_colour(shape.line.color), "linewidth": _POINT * _width(shape.line), "zorder": 1.5}
    style["linestyle"] = dashes(shape.line.dash)
    if str(shape.xref).startswith("x") and not str(shape.xref).endswith("domain"):
        return plot.axes.axvline(shape.x0, **style)
    return plot.axes.axhline(shape.y0, **style)


def draw_note(plot: Plot, note: Any) -> None:
    """Draw a text at a place of the axes."""
    ends: dict[str, tuple[float, Any]] = {}
    for name, axis, value in (("x", plot.x, note.x), ("y", plot.y, note.y)):
        inside = str(getattr(note, f"{name}ref")).endswith(("domain", "paper"))
        ends[name] = (value if inside or axis.type != "log" else 10**value, inside)
    (x, x_inside), (y, y_inside) = ends["x"], ends["y"]
    over = ("axes fraction" if x_inside else "data", "axes fraction" if y_inside else "data")
    shift = (0.75 * (note.xshift or 0), 0.75 * (note.yshift or 0))
    across = {"left": "left", "right": "right"}.get(note.xanchor, "center")
    along = "bottom" if y_inside and y == 1 else {"top": "top", "bottom": "bottom"}.get(note.yanchor, "center")
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.7}
    options: dict[str, Any] = {"ha": across, "va": along, "zorder": 4, "gid": "note", "bbox": ground}
    plot.axes.annotate(words(note.text), (x, y), xycoords=over, xytext=shift, textcoords="offset points", **options)
