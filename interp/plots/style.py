"""One look for every figure: what a colour, a dash and a font mean everywhere."""

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

INK = "#333333"
GREY = "#8a8a8a"
GRID = "rgba(128,128,128,0.18)"
BIAS_NAME = {"ln": "b<sub>LN</sub>", "fc": "b<sub>FC</sub>", "last": "b<sub>last</sub>"}
BIAS_COLOUR = {"ln": "#0072b2", "fc": "#d55e00", "last": "#009e73"}
BIAS_SYMBOL = {"ln": "circle", "fc": "square", "last": "diamond"}
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")


def figure(title: str, x: str, y: str, *, subtitle: str = "") -> go.Figure:
    """An empty figure with axis titles, thin frame, faint grid, and the legend outside the data."""
    axis = {"showline": True, "linecolor": GREY, "ticks": "outside", "tickcolor": GREY, "gridcolor": GRID}
    axis |= {"zeroline": False, "exponentformat": "power", "automargin": True, "title_standoff": 8}
    return go.Figure(
        layout={
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
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "legend": {"x": 1.02, "y": 1, "xanchor": "left", "yanchor": "top", "bgcolor": "rgba(0,0,0,0)"},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": INK, "orientation": "v"},
            "margin": {"l": 70, "r": 20, "t": 64, "b": 60},
            "height": 420,
            "colorway": list(BIAS_COLOUR.values()),
        }
    )


def panels(title: str, x: str, *, subtitle: str = "") -> go.Figure:
    """Two figures of that look side by side, with the same x."""
    base = figure(title, "", "", subtitle=subtitle)
    out = make_subplots(rows=1, cols=2, horizontal_spacing=0.22)
    out.update_layout(base.layout)
    axis = {key: value for key, value in base.layout.xaxis.to_plotly_json().items() if key != "title"}
    out.update_xaxes(**axis, title_text=x)
    out.update_yaxes(**axis)
    return out


def scale_styles(scales: list[float]) -> dict[float, dict[str, str]]:
    """Colour, dash and symbol of each λ: from dark (the smallest) to light (the largest) of one ordered ramp."""
    positions = [i / max(1, len(scales) - 1) * 0.8 for i in range(len(scales))]
    colours = sample_colorscale("Cividis", positions)
    return {
        scale: {"color": colours[i], "dash": _DASHES[i % len(_DASHES)], "symbol": _SYMBOLS[i % len(_SYMBOLS)]}
        for i, scale in enumerate(sorted(scales))
    }


def translucent(colour: str, alpha: float) -> str:
    """`rgb(r, g, b)` as `rgba(r, g, b, alpha)`."""
    return colour.replace("rgb(", "rgba(").replace(")", f", {alpha})")


_CLASS_COLOUR = {"cls": "#0072b2", "bos": "#0072b2", "sep": "#d55e00", "comma_period": "#009e73", "other": GREY}
_CLASS_NAME = {"cls": "[CLS]", "sep": "[SEP]", "bos": "BOS", "comma_period": "comma, period"}
_MORE_COLOURS = ("#cc79a7", "#e69f00", "#56b4e9", "#000000")


def class_styles(names: list[str]) -> dict[str, dict[str, str]]:
    """Name, colour, dash and symbol of each token class, the same in every figure."""
    return _styles(names, _CLASS_NAME, _CLASS_COLOUR, ["dash" if name == "other" else "solid" for name in names])


_DECODER_NAME = {"sample": "sampling", "top_k": "top-k", "top_p": "top-p"}
_DECODER_COLOUR = {"greedy": "#0072b2", "beam": "#d55e00", "sample": "#009e73", "top_k": "#cc79a7", "top_p": "#e69f00"}


def decoder_styles(names: list[str]) -> dict[str, dict[str, str]]:
    """Name, colour, dash and symbol of each decoder, the same in every figure for those with a name of interp's."""
    return _styles(names, _DECODER_NAME, _DECODER_COLOUR, [_DASHES[i % len(_DASHES)] for i in range(len(names))])


def _styles(
    names: list[str], shown: dict[str, str], colours: dict[str, str], dashes: list[str]
) -> dict[str, dict[str, str]]:
    """Known names keep their colour; others take one of those that are left, in turn."""
    own = iter(_MORE_COLOURS * len(names))
    return {
        name: {
            "name": shown.get(name, name),
            "color": colours[name] if name in colours else next(own),
            "dash": dashes[i],
            "symbol": _SYMBOLS[i % len(_SYMBOLS)],
        }
        for i, name in enumerate(names)
    }
