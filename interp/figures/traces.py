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
_SYMBOLS = {"circle": "o", "square": "s", "diamond": "D", "cross": "P", "x": "X", "triangle-up": "^"}
_SYMBOLS |= {"triangle-down": "v", "triangle-left": "<", "triangle-right": ">"}
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
        """The categories of the axis `x` or `y`, in order; None for an axis of numbers."""
        axis = getattr(self, name)
        values = [one for trace in self.traces for one in _values(trace, name)]
        if axis.type != "category" and not any(isinstance(one, str) for one in values):
            return None
        return list(
            dict.fromkeys([*map(str, axis.categoryarray if axis.categoryarray is not None else ()), *map(str, values)])
        )

    def places(self, trace: Any, name: str) -> np.ndarray:
        """The coordinates of a trace's values."""
        values, known = _values(trace, name), self.categories(name)
        if known is None:
            return np.asarray(values, dtype=float)
        return np.array([known.index(str(one)) for one in values], dtype=float)


def _values(trace: Any, name: str) -> list[Any]:
    values = trace[name]
    if values is None:  # plotly counts them from 0
        if trace.type == "heatmap":
            beside = trace.z if name == "y" else trace.z[0]
        else:
            beside = trace["y" if name == "x" else "x"]
        return [*range(0 if beside is None else len(beside))]
    if len(values) and isinstance(values[0], list | tuple | np.ndarray):  # levels of labels
        return [", ".join(map(str, levels)) for levels in zip(*values, strict=True)]
    return list(values)


INDEX = re.compile(r"\$[_^]\{\\mathrm\{(.*?)\}\}\$")
"""A sub- or superscript in `words`, with its letters as group."""


def words(text: object) -> str:
    """Text of a plotly figure for matplotlib, with sub- and superscripts as mathtext and everything else literal."""
    known = re.sub("[\u2068\u2069]", "", str(text)).replace("$", r"\$")
    known = re.sub("</?[bi]>", "", re.sub(r"<br ?/?>", "\n", known))
    known = re.sub(r"<sub>(.*?)</sub>", r"$_{\\mathrm{\1}}$", known)
    return unescape(re.sub(r"<sup>(.*?)</sup>", r"$^{\\mathrm{\1}}$", known))


def css_colour(css: str) -> tuple[float, ...]:
    """Red, green, blue and opacity, each from 0 to 1, of `#rrggbb`, `rgb(…)` or `rgba(…)`."""
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
    """The name of a series. All traces with the same name look alike."""
    return str(trace.legendgroup or trace.name or "")


def tell_apart(traces: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """A distinct `symbol`, `dash` or `hatch` for each series that differs from another only in its colour.

    More than six lines without symbols are not changed: they are ordered from dark to light.
    """
    series: dict[str, Any] = {}
    for one in traces:
        if one.showlegend is not False:
            series.setdefault(named(one), one)
    filled = [name for name, one in series.items() if one.type in ("bar", "box")]
    looks: dict[str, dict[str, Any]]
    looks = {name: {"hatch": hatch} for name, hatch in zip(filled, cycle(_HATCHES), strict=False)}
    lines = {name: one for name, one in series.items() if one.type == "scatter" and one.fill is None}
    taken: set[tuple[Any, Any]] = set()
    for name, one in lines.items():
        dash = (one.line.dash or "solid") if "lines" in (one.mode or "lines") else None
        symbol = (one.marker.symbol or "circle") if "markers" in (one.mode or "") else None
        if (dash, symbol) in taken and len(lines) <= len(_DASHES):
            if symbol is not None:
                symbol = next((two for two in _SYMBOLS if (dash, two) not in taken), symbol)
                looks[name] = {"symbol": symbol}
            else:
                dash = next((two for two in _DASHES if (two, None) not in taken), dash)
                looks[name] = {"dash": dash}
        taken.add((dash, symbol))
    return looks


def check_traces(traces: Iterable[Any]) -> None:
    """Raise ValueError for a kind of trace that cannot be drawn for a paper."""
    for kind in (one.type for one in traces):
        if kind not in _DRAWN:
            known = ", ".join(_DRAWN)
            raise ValueError(f"a {kind!r} trace cannot be drawn for a paper, only {known}; use plotly's write_image")


def draw(plot: Plot, trace: Any) -> Any:
    """Draw a trace, and return its handle for the legend."""
    return _DRAWN[trace.type](plot, trace)


def _scatter(plot: Plot, trace: Any) -> Any:
    x, y, axes = plot.places(trace, "x"), plot.places(trace, "y"), plot.axes
    if trace.fill == "toself":
        known = np.isfinite(x) & np.isfinite(y)
        (patch,) = axes.fill(x[known], y[known], color=css_colour(trace.fillcolor), linewidth=0, zorder=1)
        return patch
    if trace.marker.colorscale is not None and not isinstance(trace.marker.color, str):
        return _cloud(plot, trace, x, y)
    look, mode, colour = plot.looks.get(named(trace), {}), trace.mode or "lines", _colour(trace)
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
        axes.plot(x[large], y[large], color=colour, zorder=2.6, **style | {"linestyle": "none"})
    return line


def _marker(trace: Any, look: Mapping[str, Any]) -> dict[str, Any]:
    symbol = look.get("symbol", trace.marker.symbol)
    if isinstance(symbol, int | np.integer):
        symbol = list(_SYMBOLS)[symbol]
    size = 6 if trace.marker.size is None else np.max(trace.marker.size)
    style = {"markersize": max(2.0, 0.55 * float(size)), "markeredgewidth": 0.7, "alpha": trace.marker.opacity}
    fill = {"markerfacecolor": "white"} if str(trace.marker.symbol).endswith("-open") else {}
    return style | fill | {"marker": _SYMBOLS.get(str(symbol).removesuffix("-open"), "o")}


def _cloud(plot: Plot, trace: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Draw points with a colour scale."""
    colours = np.asarray(trace.marker.color, dtype=float)
    scale = ScalarMappable(Normalize(trace.marker.cmin, trace.marker.cmax), _colours(trace.marker.colorscale))
    scale.norm.autoscale_None(colours)
    how: dict[str, Any] = {"s": 9, "alpha": trace.marker.opacity, "zorder": 2.6, "linewidths": 0}
    plot.axes.scatter(x, y, c=colours, cmap=scale.cmap, norm=scale.norm, **how)
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
        more = np.asarray(error.array, dtype=float)
        less = more if error.arrayminus is None else np.asarray(error.arrayminus, dtype=float)
        place, middle = (y, x) if across else (x, y)
        ends = middle - less, middle + more
        lines(place, *ends, color=colour, linewidth=0.7, zorder=2.4)
        if error.width != 0:
            for end in ends:
                at = (end, place) if across else (place, end)
                plot.axes.plot(*at, cap, color=colour, markersize=3, markeredgewidth=0.7, zorder=2.4)


def _bars(plot: Plot, trace: Any) -> Any:
    beside = [one for one in plot.traces if one.type == "bar"]
    width = 0.8 / len(beside)
    x = plot.places(trace, "x") + width * (beside.index(trace) - (len(beside) - 1) / 2)
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
    groups = list(dict.fromkeys(named(one) for one in plot.traces if one.type == "box"))
    width = 0.8 / len(groups)
    x, y = plot.places(trace, "x"), np.asarray(trace.y, dtype=float)
    style, colour = _filled(plot, trace), _colour(trace)[:3]
    lines = {name: {"color": colour, "linewidth": 0.7} for name in ("whiskerprops", "capprops", "medianprops")}
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
            boxprops=style, **lines,
        )  # fmt: skip
        spread = 0.25 * width * ((np.arange(len(values)) * 0.618) % 1 - 0.5)
        plot.axes.plot(middle + spread, values, "o", color=colour, markersize=1.8, alpha=0.6, zorder=3)
    return Patch(**style)


def _grid(plot: Plot, trace: Any) -> None:
    x, y, z = plot.places(trace, "x"), plot.places(trace, "y"), np.asarray(trace.z, dtype=float)
    scale = ScalarMappable(Normalize(trace.zmin, trace.zmax), _colours(trace.colorscale))
    scale.norm.autoscale_None(z)
    plot.axes.pcolormesh(_edges(x), _edges(y), z, cmap=scale.cmap, norm=scale.norm, zorder=0)
    for (row, column), value in np.ndenumerate(z):
        if trace.texttemplate is not None and np.isfinite(value):
            form = re.sub(r"%\{z:(.*?)\}", r"{:\1}", trace.texttemplate)
            said = str(trace.text[row][column]) if form == "%{text}" else form.format(value)
            ink = "white" if np.dot(scale.to_rgba(value)[:3], _GREY) < 0.45 else "black"
            look = {"weight": "bold" if "<b>" in said else None, "style": "italic" if "<i>" in said else None}
            how: dict[str, Any] = {"color": ink, "ha": "center", "va": "center", "gid": "cell"} | look
            plot.axes.text(x[column], y[row], words(said).replace("-", "−"), **how)
    _scale_beside(plot.axes, scale, trace.colorbar)


def _edges(centres: np.ndarray) -> np.ndarray:
    if len(centres) == 1:
        return centres[0] + np.array([-0.5, 0.5])
    inner = (centres[1:] + centres[:-1]) / 2
    return np.array([2 * centres[0] - inner[0], *inner, 2 * centres[-1] - inner[-1]])


def _colours(scale: Any) -> Colormap:
    """A colour scale whose brightness only rises or only falls. A scale with two dark ends is replaced by cividis."""
    if scale is not None:
        css = sample_colorscale([list(one) for one in scale], list(np.linspace(0, 1, 65)))
        colours = [css_colour(one)[:3] for one in css]
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
    how: dict[str, Any] = {"ha": across, "va": along, "zorder": 4, "gid": "note", "bbox": ground}
    plot.axes.annotate(words(note.text), (x, y), xycoords=over, xytext=shift, textcoords="offset points", **how)
