"""Figures of question 3: token probability in output embeddings."""

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.encoding import EncodingStudy
from interp.figures.style import (
    BLUE,
    CHANCE,
    DIVERGING,
    GREEN,
    GREY,
    INK,
    VERMILION,
    figure,
    panels,
    plain,
)

_LINE = {"width": 2}
_MOST_POINTS = 1_500
_PRUNED_BY_THE_PAPER = 0.3
_ORDERS = {
    "spearman": ("least |Spearman| first", BLUE, "solid", "circle"),
    "slope": ("least |slope| first", GREEN, "dash", "diamond"),
    "random": ("random", GREY, "dot", "x"),
    "reverse": ("most |Spearman| first", VERMILION, "dashdot", "square"),
}
_SHIFTS = {
    "exact": ("exact", GREEN, "diamond"),
    "constant": ("constant: log r", BLUE, "circle"),
    "regression": ("regression (paper)", VERMILION, "square"),
}


def probability_fit(study: EncodingStudy) -> go.Figure:
    """Predicted against actual −log α; at most 1,500 types, evenly taken over the ranks of α."""
    types = study.types.sort_values("alpha", kind="stable")
    shown = types.iloc[np.unique(np.linspace(0, len(types) - 1, min(len(types), _MOST_POINTS)).round().astype(int))]
    numbers = study.regression.set_index("target").loc["-log alpha"]
    out = figure(
        "Token probability from the output embedding",
        "−log α predicted, A·E + B (nats)",
        "−log α, nats",
        subtitle=f"adjusted R² = {numbers['adj_r2']:.3f}, {numbers['n_types']:,.0f} types",
    )
    x, y = -np.log(shown["predicted"]), -np.log(shown["alpha"])
    out.add_scatter(
        x=x.round(3),
        y=y.round(3),
        mode="markers",
        marker={"size": 5, "opacity": 0.45, "color": BLUE},
        text=[plain(token) for token in shown["token"]],
        hovertemplate="%{text}<br>predicted %{x:.2f}<br>actual %{y:.2f}<extra></extra>",
        name=f"{len(shown):,} of {len(types):,} types",
    )
    ends = [float(y.min()), float(y.max())]
    out.add_scatter(x=ends, y=ends, mode="lines", line={"width": 1.2, "color": GREY}, name="equal", hoverinfo="skip")
    return out


def dimension_slopes(study: EncodingStudy, basis: str = "axis") -> go.Figure:
    """|Spearman| with −log α and |standardised slope| of every dimension, each sorted, beside a shuffled α."""
    dims = _only(study.dims, "basis", basis)
    what = "dimensions of W_U" if basis == "axis" else "principal components"
    out = figure(
        f"Which {what} carry probability",
        f"rank among {len(dims)} {what}",
        "|Spearman| with −log α",
        subtitle="sorted; slope: |A_j SD(E_j)| divided by its largest",
    )
    slope = dims["standardised_slope"].abs()
    columns = (
        (dims["spearman"].abs(), "|Spearman|", _LINE | {"color": BLUE}),
        (slope / slope.max(), "|slope|, relative", _LINE | {"color": GREEN, "dash": "dash"}),
        (dims["spearman_shuffled"].abs(), "|Spearman|, α shuffled", CHANCE),
    )
    for values, name, line in columns:
        out.add_scatter(
            x=np.arange(1, len(values) + 1),
            y=values.sort_values(ascending=False).round(4),
            name=name,
            mode="lines",
            line=line,
        )
    out.update_yaxes(rangemode="tozero")
    return out


def pruning(study: EncodingStudy, basis: str = "axis") -> go.Figure:
    """Top-1 agreement and KL against the fraction of dimensions removed, for each order; the paper's 30 % marked."""
    table = _only(study.pruning, "basis", basis)
    axes = "axes of W_U" if basis == "axis" else "principal axes"
    out = panels("Output dimensions removed", "fraction removed", subtitle=axes)
    for order, part in table.groupby("order", sort=False):
        name, colour, dash, symbol = _ORDERS[str(order)]
        for column, measure in ((1, "top1_agreement"), (2, "kl")):
            out.add_scatter(
                x=part["fraction"],
                y=part[measure].round(5),
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                mode="lines+markers",
                line=_LINE | {"color": colour, "dash": dash},
                marker={"size": 5, "symbol": symbol},
                hovertemplate="%{x:.0%} removed<br>%{y:.4g}<extra>" + name + "</extra>",
                row=1,
                col=column,
            )
    out.add_vline(x=_PRUNED_BY_THE_PAPER, line={"width": 1, "dash": "dot", "color": INK})
    out.update_xaxes(tickformat=".0%")
    out.update_yaxes(title_text="top-1 agreement", rangemode="tozero", col=1)
    out.update_yaxes(title_text="KL(full‖pruned), nats", rangemode="tozero", col=2)
    return out


def steering(study: EncodingStudy) -> go.Figure:
    """Ratio asked against ratio got, median and quartiles over tokens, for each shift; dotted on unseen text."""
    out = figure(
        "Steering one token's probability",
        "ratio asked",
        "ratio got",
        subtitle="median and quartiles over tokens; dotted: other text",
    )
    table = study.steering.assign(log_got=np.log(study.steering["got"]))
    for (shift, text), part in table.groupby(["shift", "text"], sort=False):
        name, colour, symbol = _SHIFTS[str(shift)]
        quartiles = part.groupby("asked")["log_got"].quantile(np.array([0.25, 0.5, 0.75])).unstack()
        middle = np.exp(quartiles[0.5])
        bars: dict[str, Any] = {
            "array": np.exp(quartiles[0.75]) - middle,
            "arrayminus": middle - np.exp(quartiles[0.25]),
        }
        out.add_scatter(
            x=quartiles.index,
            y=middle,
            name=name,
            legendgroup=name,
            showlegend=text == "fitted",
            mode="lines+markers",
            line=_LINE | {"color": colour, "dash": "solid" if text == "fitted" else "dot"},
            marker={"size": 8, "symbol": symbol},
            error_y={"type": "data", "symmetric": False, "thickness": 1, "width": 3} | bars
            if text == "fitted"
            else None,
            hovertemplate="asked %{x:.3g}<br>got %{y:.3g}<extra>" + name + "</extra>",
        )
    ends = [float(table["asked"].min()), float(table["asked"].max())]
    line = {"width": 1.2, "color": GREY}
    out.add_scatter(x=ends, y=ends, mode="lines", line=line, name="got = asked", hoverinfo="skip")
    out.update_xaxes(type="log", dtick=1)
    out.update_yaxes(type="log", dtick=1)
    return out


def direction_cosines(study: EncodingStudy) -> go.Figure:
    """The cosine matrix of the frequency directions."""
    names = list(study.directions["name_a"].unique())
    shown = [plain(name) for name in names]
    grid = study.directions.pivot(index="name_a", columns="name_b", values="cosine").loc[names, names]
    off = study.directions[study.directions["name_a"] != study.directions["name_b"]]
    out = figure(
        "Directions of word frequency",
        "",
        "",
        subtitle=f"cosine; chance (95 %): |cosine| below {off['null_95'].median():.2f}",
    )
    out.add_heatmap(
        z=grid.to_numpy().round(3),
        x=shown,
        y=shown,
        zmin=-1,
        zmax=1,
        colorscale=DIVERGING,
        texttemplate="%{z:.2f}",
        hovertemplate="%{y}, %{x}: %{z:.3f}<extra></extra>",
        colorbar={"thickness": 12},
    )
    out.update_yaxes(autorange="reversed")
    out.update_layout(meta={"least_width": 460})
    return out


def neurons(study: EncodingStudy) -> go.Figure:
    """Norm and logit variance of the last MLP's neurons, coloured by what ablating one does to the entropy.

    At most 1,500: those of the largest effect. Raises ValueError for a study without neurons (an encoder's).
    """
    if study.neurons.empty:
        raise ValueError("this study has no neurons: it is of an encoder, or of a model without MLP")
    shown = study.neurons.sort_values("delta_entropy", key=abs).tail(_MOST_POINTS)
    out = figure(
        "Neurons of the last MLP",
        "‖w̃‖ of the output weights",
        "variance of cos(w̃, W_U)",
        subtitle="variance over the vocabulary; colour: change of entropy when set to the mean (nats)",
    )
    limit = float(shown["delta_entropy"].abs().max()) or 1.0
    out.add_scatter(
        x=shown["w_out_norm"].round(4),
        y=shown["logit_var"].round(7),
        mode="markers",
        marker={
            "size": 7,
            "color": shown["delta_entropy"].round(6),
            "cmin": -limit,
            "cmax": limit,
            "colorscale": DIVERGING,
            "line": {"width": 0.5, "color": GREY},
            "colorbar": {"thickness": 12, "title": {"text": "ΔH"}},
        },
        customdata=np.stack([shown["neuron"], shown["delta_loss"].round(6)], -1),
        hovertemplate="neuron %{customdata[0]}<br>ΔH %{marker.color}<br>Δloss %{customdata[1]}<extra></extra>",
        showlegend=False,
    )
    for row in shown.tail(5).to_dict("records"):
        height = math.log10(row["logit_var"])
        out.add_annotation(x=row["w_out_norm"], y=height, text=str(row["neuron"]), showarrow=False, yshift=11)
    out.update_yaxes(type="log")
    return out


def dynamics(study: EncodingStudy) -> go.Figure:
    """How the encoding of frequency comes about in training. Raises ValueError for a study without checkpoints."""
    table = study.dynamics[study.dynamics["step"] > 0]
    if table.empty:
        raise ValueError("this study has no checkpoints: only the bundled models ship with a table of their training")
    out = panels("Word frequency during training", "step")
    curves = (
        (1, "adj_r2", "adjusted R² of −log α", BLUE, "circle"),
        (1, "spearman", "Spearman of b<sub>LN</sub>W<sub>U</sub> with log u", GREEN, "diamond"),
        (2, "kl_unigram_model", "KL(u‖q)", VERMILION, "square"),
        (2, "loss", "loss", GREY, "x"),
    )
    for column, name, label, colour, symbol in curves:
        out.add_scatter(
            x=table["step"],
            y=table[name].round(5),
            name=label,
            mode="lines+markers",
            line=_LINE | {"color": colour},
            marker={"size": 7, "symbol": symbol},
            row=1,
            col=column,
        )
    out.update_xaxes(type="log", dtick=1)
    out.update_yaxes(title_text="", col=1)
    out.update_yaxes(title_text="nats", type="log", dtick=1, col=2)
    return out


def _only(table: Any, column: str, value: str) -> Any:
    part = table[table[column] == value]
    if part.empty:
        raise ValueError(
            f"{column} {value!r} is not in this study; found {', '.join(map(str, table[column].unique()))}"
        )
    return part
