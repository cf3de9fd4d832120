"""One look for every figure: what a colour, a dash and a font mean everywhere, on light paper and on dark."""

from html import escape

import plotly.graph_objects as go
from plotly.colors import hex_to_rgb, sample_colorscale
from plotly.subplots import make_subplots

INK, GREY, PAPER = "#333333", "#8a8a8a", "#ffffff"
BLUE, VERMILION, GREEN, PINK, AMBER, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c58500", "#3d97cf"
COLOURS = (BLUE, VERMILION, GREEN, PINK, AMBER, SKY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CHANCE = {"color": GREY, "dash": "dot", "width": 1.5}
UNTRAINED = {"color": PINK, "dash": "dashdot", "width": 1.8}
DIVERGING = ["#2166ac", "#67a9cf", "#d1e5f0", "#f7f7f7", "#fddbc7", "#ef8a62", "#b2182b"]
BIAS_NAME = {"ln": "b<sub>LN</sub>", "fc": "b<sub>FC</sub>", "last": "b<sub>last</sub>"}
BIAS_COLOUR = {"ln": BLUE, "fc": VERMILION, "last": GREEN}
BIAS_SYMBOL = {"ln": "circle", "fc": "square", "last": "diamond"}

_GRID = "rgba(128,128,128,0.18)"
_STEPS = 60


def _ramp(start: float, end: float) -> list[str]:
    colours = sample_colorscale(
        "Plasma", [start + (end - start) * i / _STEPS for i in range(_STEPS + 1)], colortype="tuple"
    )
    return ["#" + "".join(f"{round(255 * channel):02x}" for channel in colour) for colour in colours]


_RAMP = _ramp(0.0, 0.65)
DARK = {
    INK: "#e8eaed", GREY: "#9aa0a6", PAPER: "#202124", BLUE: "#4ea8de", VERMILION: "#ff8a4c", GREEN: "#2fc79a",
    PINK: "#e39ac4", AMBER: "#f2b632", SKY: "#9ad9ff",
}  # fmt: skip
DARK |= dict(zip(_RAMP, _ramp(0.98, 0.45), strict=True))
DARK |= dict(zip(DIVERGING, ["#7cc0ff", "#3f86bf", "#2c4a63", "#2d2e32", "#63402f", "#c2603b", "#ff9c70"], strict=True))
"""What each colour of a figure becomes on dark paper; as readable there as here."""


def plain(text: object) -> str:
    """Text that plotly shows to the letter; it reads links and other HTML in names, ticks and hover texts."""
    return escape(str(text), quote=False)


def figure(title: str, x: str, y: str, *, subtitle: str = "") -> go.Figure:
    """An empty figure with axis titles, thin frame, faint grid, and the legend outside the data."""
    axis = {"showline": True, "linecolor": GREY, "ticks": "outside", "tickcolor": GREY, "gridcolor": _GRID}
    axis |= {"zeroline": False, "exponentformat": "power", "automargin": True, "title_standoff": 8}
    return go.Figure(
        layout={
            "template": "none",
            "title": {
                "text": title,
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "font": {"size": 16},
                "subtitle": {"text": subtitle, "font": {"size": 12.5, "color": GREY}},
            },
            "xaxis": axis | {"title": {"text": x}},
            "yaxis": axis | {"title": {"text": y}},
            "font": {"family": "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif", "size": 13},
            "font_color": INK,
            "hoverlabel": {"font_size": 13, "namelength": -1},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "legend": {"x": 1.02, "y": 1, "xanchor": "left", "yanchor": "top", "bgcolor": "rgba(0,0,0,0)"},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": INK, "orientation": "v"},
            "margin": {"l": 70, "r": 20, "t": 64, "b": 60},
            "height": 420,
            "colorway": list(COLOURS),
        }
    )


def panels(title: str, x: str, *, subtitle: str = "", names: list[str] | None = None) -> go.Figure:
    """Figures of that look side by side, with the same x: two, or one for each name, with a shared y."""
    base = figure(title, "", "", subtitle=subtitle)
    if names is None:
        out = make_subplots(rows=1, cols=2, horizontal_spacing=0.22)
    else:
        out = make_subplots(rows=1, cols=len(names), shared_yaxes=True, horizontal_spacing=0.06)
    out.update_layout(base.layout)
    axis = {key: value for key, value in base.layout.xaxis.to_plotly_json().items() if key != "title"}
    out.update_xaxes(**axis, title_text=x)
    out.update_yaxes(**axis)
    for number, name in enumerate(names or [], 1):
        out.add_annotation(
            text=name, showarrow=False, x=0.5, y=1, xanchor="center", yanchor="bottom",
            xref=f"x{number if number > 1 else ''} domain", yref=f"y{number if number > 1 else ''} domain",
        )  # fmt: skip
    return out


def ramp(positions: list[float]) -> list[str]:
    """Colours of an ordered quantity at positions in [0, 1], from the one that stands out most to the faintest."""
    return [_RAMP[round(position * _STEPS)] for position in positions]


def scale_styles(scales: list[float]) -> dict[float, dict[str, str]]:
    """Colour, dash and symbol of each λ, the smallest standing out most."""
    colours = ramp([i / max(1, len(scales) - 1) for i in range(len(scales))])
    return {
        scale: {"color": colours[i], "dash": DASHES[i % 5], "symbol": SYMBOLS[i % 5]}
        for i, scale in enumerate(sorted(scales))
    }


def translucent(colour: str, alpha: float) -> str:
    """`#rrggbb` as `rgba(r, g, b, alpha)`."""
    return "rgba" + str((*hex_to_rgb(colour), alpha))


_CLASS_COLOUR = {"cls": BLUE, "bos": BLUE, "sep": VERMILION, "comma_period": GREEN, "other": GREY}
CLASS_NAME = {"cls": "[CLS]", "sep": "[SEP]", "bos": "BOS", "comma_period": "comma, period"}
_MORE_COLOURS = (PINK, AMBER, SKY, INK)


def class_styles(names: list[str]) -> dict[str, dict[str, str]]:
    """Name, colour, dash and symbol of each token class, the same in every figure."""
    return _styles(names, CLASS_NAME, _CLASS_COLOUR, ["dash" if name == "other" else "solid" for name in names])


DECODER_NAME = {"sample": "sampling", "top_k": "top-k", "top_p": "top-p"}
_DECODER_COLOUR = {"greedy": BLUE, "beam": VERMILION, "sample": GREEN, "top_k": PINK, "top_p": AMBER}


def decoder_styles(names: list[str]) -> dict[str, dict[str, str]]:
    """Name, colour, dash and symbol of each decoder, the same in every figure for those with a name of interp's."""
    return _styles(names, DECODER_NAME, _DECODER_COLOUR, [DASHES[i % 5] for i in range(len(names))])


def run_styles(names: list[str]) -> dict[str, dict[str, str]]:
    """Name, colour, dash and symbol of each run of a comparison, the same in every figure."""
    return _styles(
        names,
        {},
        {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)},
        [DASHES[i % len(DASHES)] for i in range(len(names))],
    )


def _styles(
    names: list[str], shown: dict[str, str], colours: dict[str, str], dashes: list[str]
) -> dict[str, dict[str, str]]:
    """Known names keep their colour; others take one of those that are left, in turn. Names are shown to the letter."""
    own = iter(_MORE_COLOURS * len(names))
    return {
        name: {
            "name": plain(shown.get(name, name)),
            "color": colours[name] if name in colours else next(own),
            "dash": dashes[i],
            "symbol": SYMBOLS[i % len(SYMBOLS)],
        }
        for i, name in enumerate(names)
    }
