"""One style for all figures: the meaning of colours, dashes and fonts, on light and dark backgrounds."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from plotly.colors import hex_to_rgb, sample_colorscale
from plotly.subplots import make_subplots

from interp.figures.figure import Figure
from interp.support.words import BIAS_WORD, DECODER_NAME, MISSING, class_words

__all__ = [
    "BIAS_LOOKS",
    "BIAS_NAME",
    "CHANCE",
    "COLOURS",
    "DARK",
    "DASHES",
    "DIRECTION_NAME",
    "DIVERGING",
    "FONTS",
    "LAYER",
    "LOG",
]
__all__ += ["SYMBOLS", "THIN", "TITLE_NAME", "Style", "class_styles", "decoder_styles", "figure", "panels", "plain"]
__all__ += ["plain_token", "ramp", "run_styles", "scale_styles", "spaced", "translucent", "whole_ticks"]

Style: TypeAlias = dict[str, Any]
"""How something looks in every figure: its `name`, `color`, `dash`, `width` and `symbol`, or some of these."""

INK, GREY, PAPER = "#333333", "#8a8a8a", "#ffffff"
BLUE, VERMILION, GREEN, PINK, AMBER, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c58500", "#3d97cf"
COLOURS = (BLUE, VERMILION, GREEN, PINK, AMBER, SKY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CHANCE: Style = {"color": GREY, "dash": "dot", "width": 1.5}
THIN: Style = {"color": GREY, "width": 1}
DIVERGING = ["#2166ac", "#67a9cf", "#d1e5f0", "#f7f7f7", "#fddbc7", "#ef8a62", "#b2182b"]
BIAS_NAME = {name: re.sub("_(.+)", r"<sub>\1</sub>", word) for name, word in BIAS_WORD.items()}
TITLE_NAME = dict(BIAS_NAME, mean="the mean input of the unembedding")
BIAS_LOOKS: dict[str, Style] = {}
for _name, _colour, _symbol in zip(BIAS_NAME, COLOURS, SYMBOLS, strict=False):
    BIAS_LOOKS[_name] = {"name": BIAS_NAME[_name], "color": _colour, "symbol": _symbol}
"""The look of each bias and direction."""
DIRECTION_NAME = {"b_LN": BIAS_NAME["ln"], "-A": BIAS_NAME["slope"]}
LAYER = "layer (from 0)"
LOG = {"type": "log", "dtick": 1}

_CLASS_COLOUR = {"cls": BLUE, "bos": BLUE, "sep": VERMILION, "comma_period": GREEN, "other": GREY}
_DECODER_COLOUR = {"greedy": BLUE, "beam": VERMILION, "sample": GREEN, "top_k": PINK, "top_p": AMBER}
_MORE_COLOURS = (PINK, AMBER, SKY, INK)
_AXIS = {
    "showline": True, "linecolor": GREY, "ticks": "outside", "tickcolor": GREY, "zeroline": False,
    "gridcolor": "rgba(128,128,128,0.18)", "exponentformat": "power", "automargin": True, "title_standoff": 8,
}  # fmt: skip
FONTS = (
    "system-ui, -apple-system, Segoe UI, Helvetica, Arial, "
    "Hiragino Sans, Yu Gothic UI, Meiryo, Noto Sans CJK JP, Noto Sans JP, IPAexGothic, "
    "PingFang SC, Microsoft YaHei, Noto Sans CJK SC, Apple SD Gothic Neo, Malgun Gothic, Noto Sans CJK KR, "
    "Geeza Pro, Noto Sans Arabic, Noto Sans Hebrew, Kohinoor Devanagari, Nirmala UI, Noto Sans Devanagari, "
    "Thonburi, Leelawadee UI, Noto Sans Thai, sans-serif"
)
"""What the system writes with, and fonts of other scripts: of macOS, Windows and Linux."""
_STEPS = 60


def _ramp(start: float, end: float) -> list[str]:
    colours = sample_colorscale("Plasma", list(np.linspace(start, end, _STEPS + 1)), colortype="tuple")
    channels = np.rint(255 * np.array(colours)).astype(int)
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in channels.tolist()]


_RAMP = _ramp(0.0, 0.65)
DARK = {
    INK: "#e8eaed", GREY: "#9aa0a6", PAPER: "#202124", BLUE: "#4ea8de", VERMILION: "#ff8a4c", GREEN: "#2fc79a",
    PINK: "#e39ac4", AMBER: "#f2b632", SKY: "#9ad9ff",
}  # fmt: skip
DARK |= dict(zip(_RAMP, _ramp(0.98, 0.45), strict=True))
DARK |= dict(zip(DIVERGING, ["#7cc0ff", "#3f86bf", "#2c4a63", "#2d2e32", "#63402f", "#c2603b", "#ff9c70"], strict=True))
"""The replacement of each colour of a figure on a dark background, with the same contrast."""


def plain(text: object) -> str:
    """Escape text, so that plotly shows it literally. It would otherwise interpret HTML in names, ticks and hover
    texts."""
    return escape(str(text), quote=False)


def spaced(name: object) -> str:
    """A name with spaces instead of underscores, as plotly shows it."""
    return plain(name).replace("_", " ")


def plain_token(token: Any) -> str:
    """Escape a token as `plain` does; a missing one becomes a dash. One with right-to-left letters is isolated from the
    text around it, so that a space before it is shown on its right."""
    if not isinstance(token, str):
        return MISSING
    leftwards = any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in token)
    return f"\u2068{plain(token)}\u2069" if leftwards else plain(token)


def translucent(colour: str, alpha: float) -> str:
    """Convert `#rrggbb` to `rgba(r, g, b, alpha)`."""
    return "rgba" + str((*hex_to_rgb(colour), alpha))


def figure(title: str, x: str, y: str, *, subtitle: str = "") -> Figure:
    """Make an empty figure with axis titles, thin frame, faint grid, and the legend outside the data."""
    out = Figure(layout=_layout(title, subtitle))
    return out.update_xaxes(_AXIS, title_text=x).update_yaxes(_AXIS, title_text=y)


def panels(
    title: str, x: str, *, subtitle: str = "", names: Sequence[str] | None = None, columns: int | None = None
) -> Figure:
    """Make panels in that style side by side, with the same x axis: two panels, or one per name, with a shared y axis
    and this many `columns`."""
    n, space = (2, 0.22) if names is None else (len(names), 0.06)
    wide = columns or n
    rows = -(-n // wide)
    spacing = {"horizontal_spacing": space, "vertical_spacing": 0.3 / rows}
    places = [(number // wide + 1, number % wide + 1) for number in range(n)]
    cells: list[dict[str, Any] | None] = [{} for _ in places]
    cells.extend([None] * (rows * wide - n))
    specs = [cells[start : start + wide] for start in range(0, n, wide)]
    out = make_subplots(rows=rows, cols=wide, shared_yaxes=names is not None, specs=specs, figure=Figure(), **spacing)
    above = {"x": 0.5, "y": 1, "xref": "x domain", "yref": "y domain", "xanchor": "center", "yanchor": "bottom"}
    for (row, column), name in zip(places, names or [], strict=False):
        out.add_annotation(above, text=name, showarrow=False, row=row, col=column)
    out.update_layout(_layout(title, subtitle))
    for row, column in places[-wide:]:
        out.update_xaxes(title_text=x, row=row, col=column)
    return out.update_xaxes(_AXIS).update_yaxes(_AXIS)


def _layout(title: str, subtitle: str) -> dict[str, Any]:
    below = {"text": subtitle, "font": {"size": 12.5, "color": GREY}}
    return {
        "template": "none",
        "title": {"text": title, "subtitle": below, "x": 0, "xref": "paper", "xanchor": "left", "font": {"size": 16}},
        "font": {"family": FONTS, "size": 13, "color": INK},
        "hoverlabel": {"font_size": 13, "namelength": -1},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "legend": {"x": 1.02, "y": 1, "xanchor": "left", "yanchor": "top", "bgcolor": "rgba(0,0,0,0)"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": INK, "orientation": "v"},
        "margin": {"l": 70, "r": 20, "t": 64, "b": 60},
        "height": 420,
        "colorway": list(COLOURS),
    }


def whole_ticks(n: int) -> dict[str, int]:
    """Return the ticks of an axis of n layers, states or heads: whole numbers, and all of them if there are few."""
    return {"tick0": 0, "dtick": 1 if n <= 16 else 4}


def ramp(n: int) -> list[str]:
    """Return colours for n ordered things, from the most prominent to the faintest."""
    return [_RAMP[round(_STEPS * i / max(1, n - 1))] for i in range(n)]


def scale_styles(scales: pd.Series, symbol: str = "λ") -> dict[float, Style]:
    """Return the style of each value of λ or another ordered quantity. The smallest is the most prominent."""
    ordered = sorted(map(float, scales.unique()))
    colours = ramp(len(ordered))
    styles: dict[float, Style] = {}
    for i, scale in enumerate(ordered):
        name = f"{symbol} = {scale:g}"
        styles[scale] = {"name": name, "color": colours[i], "dash": DASHES[i % 5], "symbol": SYMBOLS[i % 5]}
    return styles


def class_styles(names: Sequence[str]) -> dict[str, Style]:
    """Return the style of each token class of a study, the same in every figure."""
    return _styles(names, class_words(names), _CLASS_COLOUR, ["dash" if name == "other" else "solid" for name in names])


def decoder_styles(names: Sequence[str]) -> dict[str, Style]:
    """Return the style of each decoder. Decoders that interp names look the same in every figure."""
    return _styles(names, DECODER_NAME, _DECODER_COLOUR, DASHES[:5])


def run_styles(names: Sequence[str]) -> dict[str, Style]:
    """Return the style of each run of a comparison, the same in every figure."""
    return _styles(names, {}, dict(zip(names, cycle(COLOURS))), DASHES)


def _styles(
    names: Sequence[str], labels: Mapping[str, str], colours: Mapping[str, str], dashes: Sequence[str]
) -> dict[str, Style]:
    """Known names keep their colour, and others take the remaining colours in turn. Names are shown literally."""
    colours_in_turn = cycle(_MORE_COLOURS)
    styles: dict[str, Style] = {}
    for i, name in enumerate(names):
        styles[name] = {
            "name": plain(labels.get(name, name)),
            "color": colours.get(name) or next(colours_in_turn),
            "dash": dashes[i % len(dashes)],
            "symbol": SYMBOLS[i % len(SYMBOLS)],
        }
    return styles
