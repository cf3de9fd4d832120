"""Figures of attention sinks: which heads, which positions, what draws attention there, and who writes it."""

import numpy as np

from interp.analyses.sinks import SinkStudy
from interp.figures.draw import add_grid, add_series, error_bars, only
from interp.figures.figure import Figure
from interp.figures.style import CHANCE, COLOURS, DIVERGING, GREY, LAYER, THIN, VERMILION, figure, ramp, whole_ticks

__all__ = ["massive_writers", "sink_heads", "sink_positions", "sink_scores"]

_SHOWN_NUMBERS = 150  # the most cells of a grid with its numbers written in it
_LEAST_SHARE = 0.01


def sink_heads(study: SinkStudy) -> Figure:
    """Plot the mean attention to the first position by layer and head, from the queries that see it.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> options = {"key_classes": {"some": [7, 8]}, "progress": False}
        >>> study = interp.sinks.study(toy_decoder(), ["w0 w1 w2"] * 20, **options)
        >>> sink_heads(study).data[0].z.shape  # layers and heads
        (2, 4)
    """
    first = only(study.heads, "first_position", 0)
    grid = first.pivot(index="layer", columns="head", values="attention")
    uniform = first["uniform"].mean()
    subtitle = f"mean over the queries that see it; uniform attention: {uniform:.3f}"
    out = figure("Attention to the first position", "head", LAYER, subtitle=subtitle)
    numbers = "%{z:.2f}" if grid.size <= _SHOWN_NUMBERS else None
    add_grid(out, grid, "L%{y}H%{x}<br>%{z:.3f}", reach=1.0, colorbar_title_text="attention", texttemplate=numbers)
    out.update_traces(zmin=0.0, colorscale=DIVERGING[3:])
    return out.update_xaxes(whole_ticks(grid.shape[1])).update_yaxes(whole_ticks(len(grid)), gridcolor="rgba(0,0,0,0)")


def sink_positions(study: SinkStudy) -> Figure:
    """Plot the attention that a position draws, by range of positions and layer: mean over heads, against uniform
    attention.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> options = {"key_classes": {"some": [7, 8]}, "progress": False}
        >>> study = interp.sinks.study(toy_decoder(), ["w0 w1 w2"] * 20, **options)
        >>> [line.name for line in sink_positions(study).data]
        ['block 0', 'block 1', 'uniform']
    """
    table = study.rates
    ranges = np.where(
        table["first_position"] == table["last_position"],
        table["first_position"].astype(str),
        table["first_position"].astype(str) + "–" + table["last_position"].astype(str),
    )
    table = table.assign(position=ranges)
    subtitle = "mean over heads and the queries that see it; dotted: uniform"
    out = figure("Attention that a position draws", "position in its row", "attention", subtitle=subtitle)
    layers = table["layer"].unique()
    for colour, (layer, part) in zip(ramp(len(layers))[::-1], table.groupby("layer"), strict=True):
        style = {"name": f"block {layer}", "color": colour, "symbol": "circle"}
        by_position = part.set_index("position")
        ends = by_position[["attention", "attention_low", "attention_high"]].round(4)
        low_high = error_bars(ends["attention"], ends["attention_low"], ends["attention_high"])
        means = ends["attention"]
        add_series(out, means, style, hover="position %{x}<br>%{y:.3f}", error_y=low_high)
    uniform = table.groupby("position", sort=False)["uniform"].mean().round(4)
    add_series(out, uniform, dict(CHANCE, name="uniform"), hover="position %{x}<br>%{y:.3f}")
    return out.update_xaxes(type="category").update_yaxes(rangemode="tozero")


def sink_scores(study: SinkStudy) -> Figure:
    """Plot the difference between the scores of the first position and of other keys, head by head: the part due to the
    direction of its key, and the part due to its norm.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> options = {"key_classes": {"some": [7, 8]}, "epsilon": 0.2, "progress": False}
        >>> study = interp.sinks.study(toy_decoder(), ["w0 w1 w2"] * 20, **options)
        >>> sum(len(points.x) for points in sink_scores(study).data)  # two layers of four heads
        8
    """
    first = only(study.heads, "first_position", 0)
    title, y = "What draws attention to the first position", "score by the direction of its key"
    subtitle = "one point for each head, in nats; a sink lies to the upper right"
    out = figure(title, "score by the norm of its key", y, subtitle=subtitle)
    drawing = first["attention"] > study.epsilon
    styles = (
        {"name": "no sink", "color": GREY, "symbol": "circle-open"},
        {"name": "sink", "color": VERMILION, "symbol": "square"},
    )
    for style, chosen in zip(styles, (~drawing, drawing), strict=True):
        part = first[chosen]
        points = part["by_direction"].round(3).set_axis(part["by_norm"].round(3))
        customdata = part[["layer", "head", "attention", "cosine"]].round(3)
        hover = "L%{customdata[0]}H%{customdata[1]}<br>norm %{x}, direction %{y}<br>attention %{customdata[2]}"
        hover += "<br>cosine %{customdata[3]}<extra></extra>"
        add_series(out, points, style, hover=hover, size=8, mode="markers", customdata=customdata)
    return out.add_hline(y=0, line=THIN).add_vline(x=0, line=THIN)


def massive_writers(study: SinkStudy) -> Figure:
    """Plot what each component adds to the massive activations of a dimension, as a share of their height. At most six
    dimensions are drawn, the highest first, with the components that add 1 % or more to one of them.

    Raises ValueError for a study without writers.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> model.pos_embed.W_pos.data[0, 5] = 9_999.0
        >>> options = {"key_classes": {"some": [7, 8]}, "progress": False}
        >>> study = interp.sinks.study(model, ["w0 w1 w2"] * 20, **options)
        >>> [(bars.name, list(bars.x)) for bars in massive_writers(study).data]
        [('dimension 5, first position', ['embeddings'])]
    """
    table = study.writers
    if table.empty:
        raise ValueError("this study has no writer of massive activations: it found none, or its model is an encoder")
    layer = table["layer"].astype("string").radd(" of block ").fillna("")
    table = table.assign(component=table["component"] + layer)
    table = table[(table["share"].abs() >= _LEAST_SHARE).groupby(table["component"]).transform("any")]
    heights = table.groupby(["dim", "first_position"])["added"].sum().sort_values(ascending=False)
    title, subtitle = "Who writes the massive activations", "divided by their height, with 95 % interval"
    out = figure(title, "component", "added, of the height", subtitle=subtitle)
    for colour, (dim, first) in zip(COLOURS, heights.index, strict=False):
        part = table[(table["dim"] == dim) & (table["first_position"] == first)].set_index("component").round(4)
        name = f"dimension {dim}, {'later positions' if first else 'first position'}"
        bars = error_bars(part["share"], part["share_low"], part["share_high"])
        hover = f"{name}<br>%{{x}}<br>%{{y:.3f}}<extra></extra>"
        out.add_bar(
            showlegend=True,
            x=part.index,
            y=part["share"],
            name=name,
            marker_color=colour,
            error_y=bars,
            hovertemplate=hover,
        )
    order = table.drop_duplicates("component")["component"].tolist()
    return out.update_xaxes(categoryorder="array", categoryarray=order)
