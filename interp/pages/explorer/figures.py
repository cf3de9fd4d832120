"""The figures of the panels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.figures.draw import add_equal, add_series, add_types
from interp.figures.figure import Figure
from interp.figures.style import (
    BLUE,
    CHANCE,
    COLOURS,
    DIVERGING,
    INK,
    LOG,
    SYMBOLS,
    THIN,
    VERMILION,
    figure,
    panels,
    plain,
    plain_token,
    scale_styles,
)

__all__ = ["achieved", "change", "contributions", "frequencies", "head_at", "heads", "pattern", "probe_scores"]
__all__ += ["surprisal"]

_MOST_DIMENSIONS = 16
_MOST_LABELS = 24
_LONGEST = 14
_BINS = 16
_HEADS_IN_A_ROW = 12
_CELLS = 48  # the most rows of a small pattern
_TICKS = np.outer(10.0 ** np.arange(-4, 4), [1, 2, 5]).ravel().tolist()
_KINDS = {
    True: {"name": "outlier dimension", "color": VERMILION},
    False: {"name": "other dimension", "color": BLUE},
}


def pattern(
    values: Float[np.ndarray, "query key"], tokens: Sequence[str], title: str, pair: tuple[int, int], without: str
) -> Figure:
    """A head's attention, with a frame around one pair of a query and a key."""
    subtitle = f"{without}; each row adds up to 1" if without else "each row adds up to 1"
    out = figure(title, "key", "query", subtitle=subtitle)
    _add_tokens(out, values, tokens, "attention %{z:.3f}", zmin=0, zmax=1, colorscale=DIVERGING[3:])
    query, key = pair
    edges = {"x0": key - 0.5, "x1": key + 0.5, "y0": query - 0.5, "y1": query + 0.5}
    return out.add_shape(type="rect", **edges, line={"color": INK, "width": 2})


def change(values: Float[np.ndarray, "query key"], tokens: Sequence[str], without: str) -> Figure:
    """What a removal does to a head's attention."""
    reach = max(float(np.abs(values).max()), 1e-9)
    out = figure("Change of attention", "key", "query", subtitle=without)
    _add_tokens(out, values, tokens, "change %{z:+.3f}", zmin=-reach, zmax=reach, colorscale=DIVERGING)
    return out


def _add_tokens(
    out: Figure, values: Float[np.ndarray, "query key"], tokens: Sequence[str], hover: str, **look: Any
) -> None:
    """A square heatmap over queries and keys, which are categories: positions with the names of their tokens."""
    labels = [f"{place}  {plain_token(_short(token))}" for place, token in enumerate(tokens)]
    hover = f"%{{y}} → %{{x}}<br>{hover}<extra></extra>"
    bar = {"orientation": "h", "thickness": 10, "len": 0.6, "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"}
    out.add_heatmap(z=values.round(4), x=labels, y=labels, hovertemplate=hover, colorbar=bar, colorbar_ypad=4, **look)
    ticks = dict(_ticks(range(len(tokens)), tokens), type="category", showgrid=False, constrain="domain")
    out.update_xaxes(ticks, tickangle=-60)
    out.update_yaxes(ticks, autorange="reversed", scaleanchor="x")
    out.update_layout(height=max(480, min(740, 240 + 22 * len(tokens))))


def _ticks(places: Sequence[int], tokens: Sequence[str]) -> dict[str, Any]:
    """Ticks that are tokens: every second, third … if there are many."""
    step = -(-len(tokens) // _MOST_LABELS)
    names = [plain_token(_short(token)) for token in tokens[::step]]
    return {"tickmode": "array", "tickvals": list(places[::step]), "ticktext": names}


def heads(patterns: Float[np.ndarray, "head query key"], layer: int, head: int, without: str) -> Figure:
    """Small patterns of every head of a block, each in a unit square, with a frame around one; of a long text, the
    largest attention of every two, three … queries and keys."""
    n_heads, n_tokens, _ = patterns.shape
    starts = np.arange(0, n_tokens, -(-n_tokens // _CELLS))
    small = np.maximum.reduceat(np.maximum.reduceat(patterns, starts, axis=1), starts, axis=2)
    side = len(starts)
    unit = side + -(-side // 4)
    columns = _columns(n_heads)
    rows = -(-n_heads // columns)
    cells = np.full((rows * unit, columns * unit), np.nan, dtype=np.float32)
    subtitle = "rows are queries, columns keys" + (f"; {without}" if without else "")
    out = figure(f"All heads of block {layer}", "", "", subtitle=subtitle)
    for number, part in enumerate(small):
        row, column = divmod(number, columns)
        cells[row * unit : row * unit + side, column * unit : column * unit + side] = part
        place = {"x": column + side / unit / 2, "y": row, "yanchor": "bottom"}
        out.add_annotation(place, text=str(number), showarrow=False)
    row, column = divmod(head, columns)
    edges = {"x0": column, "x1": column + side / unit, "y0": row, "y1": row + side / unit}
    out.add_shape(type="rect", **edges, line={"color": INK, "width": 2})
    x = (np.arange(cells.shape[1]) + 0.5) / unit
    y = (np.arange(cells.shape[0]) + 0.5) / unit
    look = {"zmin": 0, "zmax": 1, "colorscale": DIVERGING[3:], "showscale": False, "hoverinfo": "none"}
    out.add_heatmap(z=cells.round(3), x=x, y=y, **look)
    out.update_xaxes(visible=False, constrain="domain", constraintoward="left")
    out.update_yaxes(visible=False, range=[rows, -0.2], scaleanchor="x")
    margin = {"l": 0, "r": 0, "t": 0, "b": 4}
    return out.update_layout(height=150 + 105 * rows, margin=margin, meta={"least_width": 600})


def head_at(x: float, y: float, n_heads: int) -> int | None:
    """The head at a point of `heads`; None where there is none."""
    head = int(y) * _columns(n_heads) + int(x)
    return head if head < n_heads else None


def _columns(n_heads: int) -> int:
    """The number of small patterns in a row, as equal as possible."""
    rows = -(-n_heads // _HEADS_IN_A_ROW)
    return -(-n_heads // rows)


def _short(token: str) -> str:
    return token if len(token) <= _LONGEST else f"{token[: _LONGEST - 1]}…"


def contributions(table: pd.DataFrame, pair: str) -> Figure:
    """The largest contributions of dimensions to a score."""
    subtitle = "in nats, as trained" + ("; hatched: removed" if table["removed"].any() else "")
    out = figure(f"What makes the score of {plain(pair)}", "dimension", "contribution", subtitle=subtitle)
    largest = table.head(_MOST_DIMENSIONS)
    for outlier, style in _KINDS.items():
        part = largest[largest["outlier"] == outlier]
        if len(part):
            look = {"name": style["name"], "marker_color": style["color"]}
            look["marker_pattern_shape"] = np.where(part["removed"], "/", "").tolist()
            hover = "dimension %{x}<br>%{y:+.4f} nats<extra></extra>"
            out.add_bar(x=part["dim"].astype(str), y=part["contribution"], hovertemplate=hover, **look)
    order = largest["dim"].astype(str).tolist()
    return out.update_xaxes(type="category", categoryorder="array", categoryarray=order).update_layout(height=360)


def frequencies(table: pd.DataFrame, scale: float, bias: str) -> Figure:
    """Predicted probabilities against word frequency, as trained and with a bias scaled by λ: points for types, lines
    for the geometric means of types of a frequency."""
    subtitle = f"{bias} scaled by λ; lines: geometric mean over words of that frequency"
    out = figure(
        "Predicted probability and word frequency", "word frequency u(w)", "probability p(w)", subtitle=subtitle
    )
    types = table[table["unigram"] > 0].sort_values("unigram")
    styles = scale_styles(pd.Series([scale, 1.0]))
    hover = "u = %{x:.2g}<br>p = %{y:.2g}"
    points = {"color": styles[scale]["color"]}
    add_types(out, types, types["unigram"], types["scaled"], points, hover)
    edges = np.geomspace(types["unigram"].min(), types["unigram"].max() * (1 + 1e-9), _BINS + 1)
    bins = np.searchsorted(edges, types["unigram"], side="right") - 1
    centres = np.sqrt(edges[:-1] * edges[1:])
    for factor, column in {scale: "scaled", 1.0: "as_trained"}.items():
        means = np.log(types[column]).groupby(bins).mean().map(np.exp)
        style = styles[factor].copy()
        style["name"] += " (as trained)" if factor == 1 else ""
        add_series(out, means.set_axis(centres[means.index]), style, hover=hover)
    add_equal(out, edges[0], edges[-1], "p = u")
    return out.update_xaxes(LOG).update_yaxes(LOG)


def achieved(curve: pd.DataFrame, table: pd.DataFrame, token: str) -> Figure:
    """The factor by which steering multiplies a token's probability, against the one that was requested."""
    subtitle = "ratio of mean probabilities on the prepared text"
    out = figure(f"Steering {plain_token(token)}", "requested factor", "achieved factor", subtitle=subtitle)
    add_equal(out, curve["requested"].min(), curve["requested"].max(), "achieved = requested")
    looks = {"along A": BLUE, "constant": VERMILION}
    for number, (way, colour) in enumerate(looks.items()):
        part = curve[curve["way"] == way].set_index("requested")["achieved"]
        style = {"name": way, "color": colour, "dash": ("solid", "dash")[number]}
        add_series(out, part, style, hover="requested %{x:.3g}<br>achieved %{y:.3g}")
        point = table[table["way"] == way].set_index("requested_ratio")["achieved_ratio"]
        style.update(symbol=SYMBOLS[number], name=f"{way}, × {point.index[0]:g}")
        add_series(out, point, style, size=12, mode="markers", hover="requested %{x:.3g}<br>achieved %{y:.3g}")
    ticks = {"type": "log", "tickvals": _TICKS, "ticktext": [f"{tick:g}" for tick in _TICKS]}
    return out.update_xaxes(ticks).update_yaxes(ticks)


def surprisal(words: pd.DataFrame) -> Figure:
    """The surprisal of each word of two sentences."""
    out = panels("Surprisal of every word", "word", subtitle="−log p, in nats")
    for column, (sentence, part) in enumerate(words.groupby("sentence", sort=False), start=1):
        texts = [plain_token(_short(text)) for text in part["text"]]
        hover = "%{customdata}<br>%{y:.3f} nats<extra></extra>"
        look = {"name": f"{sentence} sentence", "marker_color": COLOURS[column - 1], "customdata": texts}
        out.add_bar(x=part["word"], y=part["surprisal"], hovertemplate=hover, row=1, col=column, **look)
        ticks = _ticks(part["word"].tolist(), part["text"].tolist())
        out.update_xaxes(ticks, tickangle=-60, row=1, col=column)
    largest = float(words["surprisal"].max())
    return out.update_yaxes(title_text="surprisal", range=[0, 1.05 * largest if largest > 0 else 1])


def probe_scores(scores: pd.DataFrame, title: str, place: str) -> Figure:
    """A probe's score at every token of two sentences, with the token at which it was trained."""
    out = panels(title, "token", subtitle=f"above 0: good; it was trained at {place}")
    for column, (sentence, part) in enumerate(scores.groupby("sentence", sort=False), start=1):
        style = {"name": f"{sentence} sentence", "color": COLOURS[column - 1], "symbol": SYMBOLS[column - 1]}
        texts = [plain_token(_short(token)) for token in part["token"]]
        values = part.set_index("position")["score"]
        add_series(out, values, style, hover="%{customdata}<br>%{y:+.3f}", customdata=texts, panel=column)
        ticks = _ticks(part["position"].tolist(), part["token"].tolist())
        out.update_xaxes(ticks, tickangle=-60, row=1, col=column)
    return out.add_hline(y=0, line=dict(THIN, dash=CHANCE["dash"]))
