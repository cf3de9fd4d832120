"""Figures of question 1: the prediction head's biases and word frequency (Kobayashi et al. 2023)."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from interp.figures import style
from interp.figures.draw import add_band, add_equal, add_series, add_types, error_bars, evenly, only
from interp.figures.style import BIAS_NAME, CHANCE, GREY, LOG, figure, scale_styles, translucent
from interp.frequency import BiasEffect
from interp.models.head import Bias

__all__ = ["bias_curve", "kl_by_scale", "projection"]

_MOST_CURVES = 5
_LOOKS = {
    "ln": {"name": BIAS_NAME["ln"], "color": style.BLUE, "symbol": "circle"},
    "fc": {"name": BIAS_NAME["fc"], "color": style.VERMILION, "symbol": "square"},
    "last": {"name": BIAS_NAME["last"], "color": style.GREEN, "symbol": "diamond"},
}


def bias_curve(effect: BiasEffect, bias: Bias = "ln") -> go.Figure:
    """Mean predicted probability against unigram probability with the bias scaled by λ (the paper's figures 2, 3).

    Per bin of log u the geometric mean of q, its band ± one geometric SD over types, and the lines q = u
    ("unigram") and q = 1/V ("uniform"). Of more than five λ, five evenly spaced ones are drawn.

    Raises:
        ValueError: a bias that was not part of the run.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> effect = interp.frequency.bias_effect(model, text, unigram=counts, scales=[0, 1], progress=False)
        >>> [trace.name for trace in bias_curve(effect).data if trace.name]
        ['λ = 0 (removed)', 'λ = 1 (as trained)', 'q = u (unigram)', 'q = 1/V (uniform)']
    """
    curve = only(effect.curve, "bias", bias)
    curve = curve.set_axis(np.sqrt(curve["unigram_low"] * curve["unigram_high"]))
    title = f"What {BIAS_NAME[bias]} does to word frequency"
    subtitle = "geometric mean ± SD over types, in bins of log u"
    out = figure(title, "unigram probability u(w)", "mean predicted probability q(w)", subtitle=subtitle)
    scales = curve["scale"].drop_duplicates().sort_values()
    for scale, look in scale_styles(evenly(scales, _MOST_CURVES)).items():
        part = curve[curve["scale"] == scale]
        mean, sd = part["geometric_mean"], part["geometric_sd"]
        look["name"] += {1.0: " (as trained)", 0.0: " (removed)"}.get(scale, "")
        band = translucent(look["color"], 0.13)
        add_band(out, mean / sd, mean * sd, band, legendgroup=look["name"], showlegend=False)
        hover = "u = %{x:.2g}<br>q = %{y:.2g}<br>%{customdata} types"
        add_series(out, mean, look, hover=hover, legend=True, customdata=part["n_types"])
    low, high = curve["unigram_low"].min(), curve["unigram_high"].max()
    add_equal(out, low, high, "q = u (unigram)")
    uniform = pd.Series(1 / len(effect.types), [low, high])
    add_series(out, uniform, CHANCE | {"name": "q = 1/V (uniform)"}, hoverinfo="skip")
    return out.update_xaxes(LOG).update_yaxes(LOG)


def projection(effect: BiasEffect, bias: Bias = "ln") -> go.Figure:
    """What a bias adds to each token's logit against log u, with the least-squares line (the paper's figure 4).

    `b_LN W_U` for ln, `b_last` for last; at most 1,500 types, evenly taken over the ranks of frequency.

    Raises:
        ValueError: a bias that was not part of the run, or fc, which adds no constant to the logits.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> effect = interp.frequency.bias_effect(model, text, unigram=counts, scales=[0, 1], progress=False)
        >>> len(projection(effect).data[0].x)  # types that occur in the text
        3
    """
    only(effect.kl, "bias", bias)
    if bias == "fc":
        raise ValueError("b_FC acts before the activation and adds no constant to the logits; there is nothing to plot")
    what = "b<sub>LN</sub>W<sub>U</sub>" if bias == "ln" else BIAS_NAME[bias]
    numbers = effect.projection.set_index("bias").loc[bias]
    subtitle = f"Spearman ρ = {numbers['spearman']:.2f}, slope τ = {numbers['slope']:.2f}"
    out = figure(f"{what} and word frequency", "log u(w), nats", f"{what}, logits (nats)", subtitle=subtitle)
    seen = effect.types[effect.types["count"] > 0].sort_values("count", kind="stable")
    log_u, added = np.log(seen["unigram"]), seen["projection_ln" if bias == "ln" else "bias_last"]
    add_types(out, seen, log_u, added, _LOOKS[bias], hover="log u = %{x:.2f}<br>effect = %{y:.2f}")
    ends = log_u.iloc[[0, -1]]
    fitted = (added.mean() + numbers["slope"] * (ends - log_u.mean())).round(3).set_axis(ends.round(3))
    add_series(out, fitted, {"name": "least squares", "color": GREY, "dash": "dash"}, hoverinfo="skip")
    return out


def kl_by_scale(effect: BiasEffect) -> go.Figure:
    """KL(u‖q) against the scale λ, one line per bias, corrected for bias and with its 95 % interval where the text has
    groups enough for one.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> effect = interp.frequency.bias_effect(model, text, unigram=counts, scales=[1, 0], progress=False)
        >>> [line.x.tolist() for line in kl_by_scale(effect).data]
        [[0.0, 1.0]]
    """
    known = effect.kl["kl_low"].notna().all()
    subtitle = "corrected for the number of positions, with 95 % intervals" if known else ""
    title, x = "Distance of predictions from word frequency", "scale λ of the bias"
    out = figure(title, x, "KL(u‖q), nats", subtitle=subtitle)
    hover = "λ = %{x:g}<br>KL = %{y:.4f}<br>perplexity %{customdata:.2f}<extra></extra>"
    for bias, part in effect.kl.groupby("bias", sort=False):
        kl = part.sort_values("scale").set_index("scale")
        values = kl["kl_corrected" if known else "kl_unigram_model"]
        bars = error_bars(values, kl["kl_low"], kl["kl_high"]) if known else None
        look = _LOOKS[str(bias)]
        add_series(out, values, look, hover=hover, size=9, customdata=kl["perplexity"], showlegend=True, error_y=bars)
    return out.update_yaxes(rangemode="tozero")
