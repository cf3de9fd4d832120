"""Figures of question 1: the prediction head's biases and word frequency (Kobayashi et al. 2023)."""

import numpy as np
import plotly.graph_objects as go

from interp.figures.style import (
    BIAS_COLOUR,
    BIAS_NAME,
    BIAS_SYMBOL,
    CHANCE,
    GREY,
    figure,
    plain,
    scale_styles,
    translucent,
)
from interp.frequency import BiasEffect
from interp.models.head import Bias

_MOST_CURVES = 5
_MOST_POINTS = 1_500
_LINE = {"width": 2}


def bias_curve(effect: BiasEffect, bias: Bias = "ln") -> go.Figure:
    """Mean predicted probability against unigram probability with the bias scaled by λ (the paper's figures 2, 3).

    Per bin of log u the geometric mean of q, its band ± one geometric SD over types, and the lines q = u
    ("unigram") and q = 1/V ("uniform"). Of more than five λ, five evenly spaced ones are drawn.

    Raises:
        ValueError: a bias that was not part of the run.
    """
    _require(effect, bias)
    curve = effect.curve[effect.curve["bias"] == bias]
    scales = sorted(curve["scale"].unique())
    if len(scales) > _MOST_CURVES:
        scales = [scales[round(i)] for i in np.linspace(0, len(scales) - 1, _MOST_CURVES)]
    out = figure(
        f"What {BIAS_NAME[bias]} does to word frequency",
        "unigram probability u(w)",
        "mean predicted probability q(w)",
        subtitle="geometric mean ± SD over types, in bins of log u",
    )
    for scale, style in scale_styles(scales).items():
        part = curve[curve["scale"] == scale]
        x = np.sqrt(part["unigram_low"] * part["unigram_high"])
        mean, sd = part["geometric_mean"], part["geometric_sd"]
        name = f"λ = {scale:g}" + (" (as trained)" if scale == 1 else " (removed)" if scale == 0 else "")
        out.add_scatter(
            x=np.concatenate([x, x[::-1]]),
            y=np.concatenate([mean * sd, (mean / sd)[::-1]]),
            fill="toself",
            fillcolor=translucent(style["color"], 0.13),
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            legendgroup=name,
        )
        out.add_scatter(
            x=x,
            y=mean,
            name=name,
            legendgroup=name,
            mode="lines+markers",
            line=_LINE | {"color": style["color"], "dash": style["dash"]},
            marker={"size": 6, "symbol": style["symbol"], "color": style["color"]},
            customdata=part["n_types"],
            hovertemplate="u = %{x:.2g}<br>q = %{y:.2g}<br>%{customdata} types<extra>" + name + "</extra>",
        )
    low, high = curve["unigram_low"].min(), curve["unigram_high"].max()
    uniform = 1 / len(effect.types)
    unigram = {"color": GREY, "width": 1.2}
    for name, y, line in (("q = u (unigram)", [low, high], unigram), ("q = 1/V (uniform)", [uniform] * 2, CHANCE)):
        out.add_scatter(x=[low, high], y=y, name=name, mode="lines", line=line, hoverinfo="skip")
    out.update_xaxes(type="log", dtick=1)
    out.update_yaxes(type="log", dtick=1)
    return out


def projection(effect: BiasEffect, bias: Bias = "ln") -> go.Figure:
    """What a bias adds to each token's logit against log u, with the least-squares line (the paper's figure 4).

    `b_LN W_U` for ln, `b_last` for last; at most 1,500 types, evenly taken over the ranks of frequency.

    Raises:
        ValueError: a bias that was not part of the run, or fc, which adds no constant to the logits.
    """
    _require(effect, bias)
    column = {"ln": "projection_ln", "last": "bias_last"}.get(bias)
    if column is None:
        raise ValueError("b_FC acts before the activation and adds no constant to the logits; there is nothing to plot")
    seen = effect.types[effect.types["count"] > 0].sort_values("count", kind="stable")
    if len(seen) > _MOST_POINTS:
        shown = seen.iloc[np.linspace(0, len(seen) - 1, _MOST_POINTS).round().astype(int)]
    else:
        shown = seen
    numbers = effect.projection.set_index("bias").loc[bias]
    what = "b<sub>LN</sub>W<sub>U</sub>" if bias == "ln" else BIAS_NAME[bias]
    out = figure(
        f"{what} and word frequency",
        "log u(w), nats",
        f"{what}, logits (nats)",
        subtitle=f"Spearman ρ = {numbers['spearman']:.2f}, slope τ = {numbers['slope']:.2f}",
    )
    log_u = np.log(shown["unigram"])
    out.add_scatter(
        x=log_u.round(3),
        y=shown[column].round(3),
        mode="markers",
        marker={"size": 5, "opacity": 0.45, "color": BIAS_COLOUR[bias], "symbol": BIAS_SYMBOL[bias]},
        text=[plain(token) for token in shown["token"]],
        hovertemplate="%{text}<br>log u = %{x:.2f}<br>effect = %{y:.2f}<extra></extra>",
        name=f"{len(shown):,} of {len(seen):,} types",
    )
    ends = np.array([log_u.min(), log_u.max()])
    center = np.log(seen["unigram"]).mean(), seen[column].mean()
    out.add_scatter(
        x=ends.round(3),
        y=(center[1] + numbers["slope"] * (ends - center[0])).round(3),
        mode="lines",
        line=_LINE | {"color": GREY, "dash": "dash"},
        name="least squares",
        hoverinfo="skip",
    )
    return out


def kl_by_scale(effect: BiasEffect) -> go.Figure:
    """KL(u‖q) against the scale λ, one line a bias."""
    out = figure("Distance of predictions from word frequency", "scale λ of the bias", "KL(u‖q), nats")
    for bias, part in effect.kl.groupby("bias", sort=False):
        ordered = part.sort_values("scale")
        key = str(bias)
        out.add_scatter(
            x=ordered["scale"],
            y=ordered["kl_unigram_model"],
            name=BIAS_NAME[key],
            mode="lines+markers",
            line=_LINE | {"color": BIAS_COLOUR[key]},
            marker={"size": 9, "symbol": BIAS_SYMBOL[key]},
            customdata=ordered["perplexity"],
            hovertemplate="λ = %{x:g}<br>KL = %{y:.4f}<br>perplexity %{customdata:.2f}<extra></extra>",
            showlegend=True,
        )
    out.update_yaxes(rangemode="tozero")
    return out


def _require(effect: BiasEffect, bias: str) -> None:
    present = list(effect.kl["bias"].unique())
    if bias not in present:
        raise ValueError(f"bias {bias!r} was not part of this run; found {', '.join(present)}")
