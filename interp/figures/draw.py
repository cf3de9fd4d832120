"""The parts of figures: lines, bands, error bars, heatmaps, and the rows of a table to draw."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from interp.figures.style import DIVERGING, GREY, Style, plain_token

__all__ = ["add_band", "add_equal", "add_grid", "add_series", "add_types", "error_bars", "evenly", "only"]

_MOST_TYPES = 1_500


def only(table: pd.DataFrame, column: str, value: Any) -> pd.DataFrame:
    """Select the rows with this value in a column.

    Raises ValueError if there are none, listing the existing values.
    """
    rows = table[table[column] == value]
    if rows.empty:
        labels = list(map(str, table[column].unique())) or ["none"]
        listed = labels if len(labels) < 10 else [*labels[:2], "…", labels[-1]]
        raise ValueError(f"{column} {value!r} is not in this result; found {', '.join(listed)}")
    return rows


def evenly(ordered: Any, limit: int) -> Any:
    """Take at most this many rows of a table, or values of a series, at even distances."""
    return ordered.iloc[np.linspace(0, len(ordered) - 1, min(len(ordered), limit)).round().astype(int)]


def add_series(
    out: go.Figure,
    values: pd.Series,
    style: Style,
    *,
    hover: str | None = None,
    size: Any = 6,
    legend: bool | None = None,
    panel: int | None = None,
    **options: Any,
) -> None:
    """Add a line over the index of the values, with markers if the style has a symbol. Adds nothing without values.

    Args:
        hover: the hover text of a point, before the name of the series.
        size: the size of the markers.
        legend: whether the name is in the legend, on behalf of all series with this name.
        panel: the column, in a figure with several panels.
        options: arguments of `plotly.graph_objects.Scatter`; `mode="markers"` for points without a line.
    """
    if values.empty:
        return
    name = style.get("name")
    symbol = style.get("symbol")
    options.setdefault("mode", "lines" if symbol is None else "lines+markers")
    if options["mode"] != "markers":
        options["line"] = {"width": 2}
        for key in ("color", "dash", "width"):
            if key in style:
                options["line"][key] = style[key]
    if symbol is not None:
        options["marker"] = dict(
            {"size": size, "symbol": symbol, "color": style.get("color")}, **options.get("marker", {})
        )
    if hover is not None:
        options["hovertemplate"] = hover if "<extra>" in hover else f"{hover}<extra>{name}</extra>"
    if legend is not None:
        options.update(legendgroup=name, showlegend=legend)
    out.add_scatter(x=values.index, y=values, name=name, row=panel and 1, col=panel, **options)


def add_equal(out: go.Figure, low: float, high: float, name: str, **options: Any) -> None:
    """Add the line on which x and y are equal."""
    style = {"name": name, "color": GREY, "width": 1.2}
    add_series(out, pd.Series([low, high], [low, high]), style, hoverinfo="skip", **options)


def add_band(out: go.Figure, low: pd.Series, high: pd.Series, colour: str, **options: Any) -> None:
    """Fill the area between two lines over the same index."""
    around = pd.concat([high, low[::-1]])
    options.update(fill="toself", fillcolor=colour, line={"width": 0}, mode="lines", hoverinfo="skip")
    out.add_scatter(x=around.index, y=around, **options)


def error_bars(values: pd.Series, low: pd.Series, high: pd.Series, **options: Any) -> dict[str, Any]:
    """Describe error bars from `low` to `high` at each value."""
    bars = {"thickness": 1, "width": 3, "type": "data", "symmetric": False}
    bars.update(array=high - values, arrayminus=values - low, **options)
    return bars


def add_types(out: go.Figure, types: pd.DataFrame, x: pd.Series, y: pd.Series, style: Style, hover: str) -> None:
    """Add one point per token type; if there are many, 1,500 at even distances."""
    sample = evenly(types.assign(x=x, y=y), _MOST_TYPES).astype({"x": np.float32, "y": np.float32})
    points = sample.set_index("x")["y"]
    text = sample["token"].map(plain_token)
    look = dict(style, name=f"{len(sample):,} of {len(types):,} types")
    look.setdefault("symbol", "circle")
    hover = f"%{{text}}<br>{hover}<extra></extra>"
    add_series(out, points, look, hover=hover, size=5, mode="markers", marker={"opacity": 0.45}, text=text)


def add_grid(
    out: go.Figure, grid: pd.DataFrame, hover: str, *, middle: float = 0.0, reach: float | None = None, **options: Any
) -> None:
    """Add a heatmap with the names of rows and columns, with the first row at the top.

    Colours range from `middle` − `reach` to `middle` + `reach`. The default reach is the largest magnitude.
    """
    if reach is None:
        reach = float(grid.fillna(0).abs().to_numpy().max()) or 1.0
    options.update(zmin=middle - reach, zmax=middle + reach, colorscale=DIVERGING)
    options.update(colorbar_thickness=12, colorbar_title_side="right")
    options.update(x=list(grid.columns), y=list(grid.index), hovertemplate=f"{hover}<extra></extra>")
    out.add_heatmap(z=grid.to_numpy().round(3), **options)
    out.update_yaxes(autorange="reversed")
