"""Figures of question 3: token probability in output embeddings."""

import math
from typing import Any

import numpy as np
import pandas as pd

from interp.analyses.encoding import EncodingStudy
from interp.analyses.encoding.columns import BASIS_WORD, ORDER_WORD
from interp.analyses.encoding.pruning import PRUNED
from interp.figures.draw import add_equal, add_series, add_types, error_bars, evenly, only
from interp.figures.figure import Figure
from interp.figures.style import (
    AMBER,
    BLUE,
    CHANCE,
    DIVERGING,
    GREEN,
    GREY,
    INK,
    LOG,
    PINK,
    VERMILION,
    Style,
    figure,
    panels,
    plain_token,
    ramp,
)
from interp.support.words import argument

__all__ = ["REMOVING", "dimension_slopes", "dynamics", "embedding_scatter", "neurons"]
__all__ += ["probability_fit", "pruned_texts", "pruning", "steering", "way_of_steering"]

REMOVING = {"axis": "Removing output dimensions", "pca": "Removing principal axes of the output"}
"""The titles of pruning curves."""
_MOST_NEURONS = 1_500
_MOST_TYPES = 3_000
_ORDERS: dict[str, Style] = {
    "spearman": {"color": BLUE, "dash": "solid", "symbol": "circle"},
    "slope": {"color": GREEN, "dash": "dash", "symbol": "diamond"},
    "random": {"color": GREY, "dash": "dot", "symbol": "x"},
    "reverse": {"color": VERMILION, "dash": "dashdot", "symbol": "square"},
}
_SHIFTS: dict[str, Style] = {
    "exact": {"color": GREEN, "symbol": "diamond"},
    "constant": {"name": "constant: log r", "color": BLUE, "symbol": "circle"},
    "regression, least norm": {"color": VERMILION, "symbol": "square"},
    "regression, weighted": {"color": PINK, "symbol": "triangle-up"},
    "regression, top": {"color": AMBER, "symbol": "cross"},
}


def probability_fit(study: EncodingStudy) -> Figure:
    """Predicted against actual −log α. At most 1,500 types are drawn, evenly spaced in the ranks of α.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> study = interp.encoding.study(model, text, orders=["random"], ratios=[2], progress=False)
        >>> probability_fit(study).data[0].name
        '67 of 67 types'
    """
    types = study.types.sort_values("alpha", kind="stable")
    numbers = study.regression.set_index("target").loc["-log alpha"]
    axes = "−log α predicted, A·E + B (nats)", "−log α, nats"
    r2 = f"adjusted R² = {numbers['adj_r2']:.3f}, cross-validated {numbers['cv_r2']:.3f}"
    subtitle = f"{r2}, {numbers['n_types']:,.0f} types"
    out = figure("Token probability from the output embedding", *axes, subtitle=subtitle)
    predicted, actual = -np.log(types["predicted"]), -np.log(types["alpha"])
    add_types(out, types, predicted, actual, {"color": BLUE}, "predicted %{x:.2f}<br>actual %{y:.2f}")
    add_equal(out, actual.min(), actual.max(), "equal")
    return out


def embedding_scatter(study: EncodingStudy) -> Figure:
    """Output embeddings on their first two principal axes, coloured by token probability. At most 3,000 types are
    drawn, evenly spaced in the ranks of α.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> study = interp.encoding.study(model, text, orders=["random"], ratios=[2], progress=False)
        >>> len(embedding_scatter(study).data[0].x)
        67
    """
    types = evenly(study.types.sort_values("alpha", kind="stable"), _MOST_TYPES)
    components = only(study.dims, "basis", "pca").set_index("dim").loc[[0, 1]]
    shares = enumerate(components["explained_variance"], 1)
    axes = [f"principal axis {number} ({share:.1%} of variance)" for number, share in shares]
    first, second = components["spearman"].abs()
    subtitle = f"|Spearman| with −log α: {first:.2f} along the first axis, {second:.2f} along the second"
    out = figure("Output embeddings by token probability", *axes, subtitle=subtitle)
    bar = {"thickness": 12, "title": {"text": "log₁₀ α", "side": "right"}}
    colour = np.log10(types["alpha"]).astype("float32")
    marker = {"color": colour, "colorscale": ramp(9)[::-1], "colorbar": bar, "opacity": 0.7}
    names = types["token"].map(plain_token)
    options: dict[str, Any] = {"mode": "markers", "showlegend": False, "marker": marker, "text": names}
    points = types["pc2"].astype("float32").set_axis(types["pc1"].astype("float32"))
    hover = "%{text}<br>log₁₀ α %{marker.color:.3f}<extra></extra>"
    add_series(out, points, {"symbol": "circle"}, hover=hover, size=5, **options)
    return out


def dimension_slopes(study: EncodingStudy, basis: str = "axis") -> Figure:
    """|Spearman| with −log α and |standardised slope| of every dimension, each sorted, next to those with α shuffled.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> study = interp.encoding.study(model, text, orders=["random"], ratios=[2], progress=False)
        >>> [trace.name for trace in dimension_slopes(study, basis="pca").data]
        ['|Spearman|', '|slope|, relative', '|Spearman|, α shuffled']
    """
    dims = only(study.dims, "basis", basis)
    subject = "dimensions of W_U" if basis == "axis" else "principal components"
    axes = f"rank among {len(dims)} {subject}", "|Spearman| with −log α"
    subtitle = "each curve sorted separately; slope: |A_j SD(E_j)| divided by its largest"
    out = figure(f"Which {subject} carry probability", *axes, subtitle=subtitle)
    slope = dims["standardised_slope"].abs()
    for values, style in (
        (dims["spearman"].abs(), {"name": "|Spearman|", "color": BLUE}),
        (slope / slope.max(), {"name": "|slope|, relative", "color": GREEN, "dash": "dash"}),
        (dims["spearman_shuffled"].abs(), dict(CHANCE, name="|Spearman|, α shuffled")),
    ):
        ordered = values.sort_values(ascending=False).round(4)
        add_series(out, ordered.set_axis(range(1, len(ordered) + 1)), style)
    return out.update_yaxes(rangemode="tozero")


def pruning(study: EncodingStudy, basis: str = "axis") -> Figure:
    """Top-1 agreement and KL against the fraction of dimensions removed, for each order. The paper's 30 % are marked.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> study = interp.encoding.study(model, text, orders=["spearman", "random"], ratios=[2], progress=False)
        >>> [trace.name for trace in pruning(study, basis="axis").data if trace.showlegend]
        ['least |Spearman| first', 'random']
    """
    table = only(study.pruning, "basis", basis).set_index("fraction")
    out = panels(REMOVING[basis], "fraction removed", subtitle=f"{BASIS_WORD[basis]}; dotted: 30 %, as in the paper")
    for order, part in table.groupby("order", sort=False):
        for panel, measure in enumerate(("top1_agreement", "kl"), 1):
            style = _order_style(str(order))
            hover = "%{x:.0%} removed<br>%{y:.4g}"
            add_series(out, part[measure].round(5), style, hover=hover, size=5, legend=panel == 1, panel=panel)
    out.add_vline(x=PRUNED, line={"width": 1, "dash": "dot", "color": INK})
    out.update_xaxes(tickformat=".0%")
    out.update_yaxes(title_text="top-1 agreement", rangemode="tozero", col=1)
    return out.update_yaxes(title_text="KL(full‖pruned), nats", rangemode="tozero", col=2)


def pruned_texts(written: pd.DataFrame, basis: str = "axis") -> Figure:
    """Text after pruning: the share of tokens that stay, diversity, and perplexity, by fraction removed and by order.

    Args:
        written: `EncodingStudy.pruned_texts`, or from `interp.encoding.writing.pruned_text`.
        basis: the basis in which dimensions were removed.

    Raises ValueError for a study that was not asked for text.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> prompts = interp.generation.prompts(model, text, n=3, prompt_tokens=2, new_tokens=4)
        >>> fit = interp.encoding.fit(model, text, progress=False)
        >>> curve = interp.encoding.pruning_curve(model, text, fit=fit, order="spearman", fractions=[0, 0.5])
        >>> written = interp.encoding.writing.pruned_text(model, prompts, fit=fit, curve=curve, progress=False)
        >>> [trace.name for trace in pruned_texts(written).data if trace.showlegend]
        ['least |Spearman| first']
    """
    if written.empty:
        raise ValueError(f"no text was continued without some dimensions; ask with {argument('prompts', 100)}")
    table = only(written, "basis", basis).set_index("fraction")
    names = ("same tokens", "diversity", "perplexity")
    subtitle = f"greedy text, compared with that of the whole model; {BASIS_WORD[basis]}; dotted: 30 %, as in the paper"
    out = panels("Text with output dimensions removed", "fraction removed", subtitle=subtitle, names=names)
    for order, part in table.groupby("order", sort=False):
        for panel, measure in enumerate(("agreement", "diversity", "perplexity"), 1):
            values = part[measure]
            hover = "%{x:.0%} removed<br>%{y:.3f}"
            bars = error_bars(values, part[f"{measure}_low"], part[f"{measure}_high"])
            style = _order_style(str(order))
            add_series(out, values, style, hover=hover, legend=panel == 1, panel=panel, error_y=bars)
    out.add_vline(x=PRUNED, line={"width": 1, "dash": "dot", "color": INK})
    out.update_xaxes(tickformat=".0%").update_yaxes(range=[0, 1.02], title_text="share", col=1)
    return out.update_yaxes(matches=None, showticklabels=True, rangemode="tozero", col=3)


def _order_style(order: str) -> Style:
    return dict(_ORDERS[order], name=ORDER_WORD.get(order, order))


def steering(study: EncodingStudy) -> Figure:
    """Achieved against requested ratio for each shift, as median and quartiles over tokens. Dotted lines: unseen text.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> study = interp.encoding.study(model, text, orders=["random"], ratios=[0.5, 2], progress=False)
        >>> [trace.name for trace in steering(study).data]
        ['exact', 'constant: log r', 'regression, least norm', 'achieved = requested']
    """
    subtitle = "median and quartiles over tokens; dotted: on text not used for the fit"
    out = figure("Steering one token's probability", "requested ratio", "achieved ratio", subtitle=subtitle)
    table = study.steering.assign(log_achieved=np.log(study.steering["achieved"]))
    for (shift, weights, text), part in table.groupby(["shift", "weights", "text"], sort=False):
        log_achieved = part.groupby("requested")["log_achieved"]
        low = np.exp(log_achieved.quantile(0.25))
        median = np.exp(log_achieved.quantile(0.5))
        high = np.exp(log_achieved.quantile(0.75))
        fitted = text == "fitted"
        way = way_of_steering(str(shift), str(weights))
        style = dict(_SHIFTS[way], dash="solid" if fitted else "dot")
        style.setdefault("name", way)
        bars = error_bars(median, low, high) if fitted else None
        add_series(
            out, median, style, hover="requested %{x:.3g}<br>achieved %{y:.3g}", size=8, legend=fitted, error_y=bars
        )
    add_equal(out, table["requested"].min(), table["requested"].max(), "achieved = requested")
    return out.update_xaxes(LOG).update_yaxes(LOG)


def way_of_steering(shift: str, weights: str) -> str:
    """A shift by name, with the weights of a regression."""
    return f"{shift}, {weights.replace('_', ' ')}" if weights and not pd.isna(weights) else shift


def neurons(study: EncodingStudy) -> Figure:
    """Norm and logit variance of the last MLP's neurons, coloured by what ablating one does to the entropy.

    At most 1,500 are drawn, those with the largest effect. Raises ValueError for a study without neurons (an
    encoder's).

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> study = interp.encoding.study(model, text, orders=["random"], ratios=[2], progress=False)
        >>> len(neurons(study).data[0].x) == model.cfg.d_mlp
        True
    """
    if study.neurons.empty:
        raise ValueError("this study has no neurons: it is of an encoder, or of a model without MLP")
    strongest = study.neurons.sort_values("delta_entropy", key=abs).tail(_MOST_NEURONS)
    subtitle = "colour: change of entropy when the neuron is set to its mean"
    axes = "‖w̃‖ of the output weights", "variance of cos(w̃, W_U)"
    out = figure("Neurons of the last MLP", *axes, subtitle=subtitle)
    limit = float(strongest["delta_entropy"].abs().max()) or 1.0
    small = strongest.astype(dict.fromkeys(("delta_entropy", "delta_loss", "w_out_norm", "logit_var"), np.float32))
    marker: dict[str, Any] = {"color": small["delta_entropy"], "cmin": -limit, "cmax": limit, "colorscale": DIVERGING}
    bar = {"thickness": 12, "title": {"text": "change of entropy, nats", "side": "right"}}
    marker.update(colorbar=bar, line={"width": 0.5, "color": GREY})
    options: dict[str, Any] = {"mode": "markers", "showlegend": False, "marker": marker}
    details = np.stack([small["neuron"].astype(np.float32), small["delta_loss"]], -1)
    hover = "neuron %{customdata[0]}<br>ΔH %{marker.color:.6f}<br>Δloss %{customdata[1]:.6f}<extra></extra>"
    points = small.set_index("w_out_norm")["logit_var"]
    add_series(out, points, {"symbol": "circle"}, hover=hover, size=7, customdata=details, **options)
    for row in strongest.tail(5).to_dict("records"):
        height = math.log10(row["logit_var"])
        out.add_annotation(x=row["w_out_norm"], y=height, text=str(row["neuron"]), showarrow=False, yshift=11)
    return out.update_yaxes(type="log")


def dynamics(study: EncodingStudy) -> Figure:
    """How the encoding of frequency develops during training. Raises ValueError for a study without checkpoints.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> text = interp.corpora.batches(model, "bundled", limit=3)
        >>> study = interp.encoding.study(model, text, orders=["random"], bases=["axis"], ratios=[2], progress=False)
        >>> len(dynamics(study).data)
        4
    """
    table = study.dynamics[study.dynamics["step"] > 0].set_index("step")
    if table.empty:
        raise ValueError("this study has no checkpoints: only the bundled models ship with a table of their training")
    out = panels("Word frequency during training", "step")
    for panel, column, name, colour, symbol in (
        (1, "adj_r2", "adjusted R² of −log α", BLUE, "circle"),
        (1, "spearman", "Spearman of b<sub>LN</sub>W<sub>U</sub> with log u", GREEN, "diamond"),
        (2, "kl_unigram_model", "KL(u‖q)", VERMILION, "square"),
        (2, "loss", "loss", GREY, "x"),
    ):
        style = {"name": name, "color": colour, "symbol": symbol}
        add_series(out, table[column].round(5), style, size=7, panel=panel)
    out.update_xaxes(LOG)
    out.update_yaxes(title_text="", col=1)
    return out.update_yaxes(LOG, title_text="nats", col=2)
