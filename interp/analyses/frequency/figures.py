"""Figures of question 1: the prediction head's biases and word frequency (Kobayashi et al. 2023)."""

from typing import Any

import numpy as np
import pandas as pd

from interp.analyses.frequency import FrequencyStudy
from interp.analyses.frequency.components import FrequencyWriters
from interp.figures import style
from interp.figures.draw import add_band, add_equal, add_series, add_types, error_bars, evenly, only
from interp.figures.figure import Figure
from interp.figures.style import (
    BIAS_LOOKS,
    BIAS_NAME,
    CHANCE,
    COLOURS,
    GREY,
    LOG,
    TITLE_NAME,
    Style,
    figure,
    scale_styles,
    translucent,
)
from interp.models.head import Bias
from interp.support.choices import Direction
from interp.support.words import printed

__all__ = ["bias_curve", "bias_ratio", "frequency_writers", "kl_by_scale", "projection"]

_MOST_CURVES = 5
_SO_FAR: Style = {"name": "sum so far", "color": GREY, "dash": "dot"}
_WRITERS: dict[str, Style] = {
    "attention": {"name": "attention", "color": COLOURS[0], "symbol": "circle"},
    "MLP": {"name": "MLP", "color": COLOURS[1], "symbol": "square"},
}
_ADDED = {name: (f"{BIAS_NAME[name]}W<sub>U</sub>", f"projection_{name}") for name in ("ln", "mean", "slope")}
_ADDED["last"] = ("b<sub>last</sub>", "bias_last")


def bias_curve(effect: FrequencyStudy, bias: Bias | Direction = "ln") -> Figure:
    """Plot the mean predicted against the unigram probability with the bias scaled by λ (the paper's figures 2, 3).

    For each bin of log u, there is the geometric mean of q with a band of ± one geometric SD over types. The lines are
    q = u ("unigram") and q = 1/V ("uniform"). Of more than five λ, five evenly spaced ones are drawn.

    Raises:
        ValueError: a bias that was not part of the run.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> effect = interp.frequency.study(model, text, unigram=counts, scales=[0, 1], progress=False)
        >>> [trace.name for trace in bias_curve(effect).data if trace.name]
        ['λ = 0 (removed)', 'λ = 1 (as trained)', 'q = u (unigram)', 'q = 1/V (uniform)']
    """
    curve = only(effect.curve, "bias", bias)
    curve = curve.set_axis(np.sqrt(curve["unigram_low"] * curve["unigram_high"]))
    title = f"What {TITLE_NAME[bias]} does to word frequency"
    subtitle = "geometric mean ± SD over words of that frequency"
    out = figure(title, "unigram probability u(w)", "mean predicted probability q(w)", subtitle=subtitle)
    scales = curve["scale"].drop_duplicates().sort_values()
    for scale, look in scale_styles(evenly(scales, _MOST_CURVES)).items():
        part = curve[curve["scale"] == scale]
        mean, sd = part["geometric_mean"], part["geometric_sd"]
        look["name"] += {1.0: " (as trained)", 0.0: " (removed)"}.get(scale, "")
        hover = "u = %{x:.2g}<br>q = %{y:.2g}<br>%{customdata} types"
        _add_scale(out, look, mean, sd, hover=hover, customdata=part["n_types"])
    low = curve["unigram_low"].min()
    high = curve["unigram_high"].max()
    add_equal(out, low, high, "q = u (unigram)")
    uniform = pd.Series(1 / len(effect.types), [low, high])
    add_series(out, uniform, dict(CHANCE, name="q = 1/V (uniform)"), hoverinfo="skip")
    return out.update_xaxes(LOG).update_yaxes(LOG)


def bias_ratio(effect: FrequencyStudy, bias: Bias | Direction = "ln") -> Figure:
    """Plot how many times as probable rare and frequent words become with the bias scaled by λ: q_λ(w) / q_1(w) by
    u(w).

    For each bin of log u, there is the geometric mean over types with a band of ± one geometric SD. Of more than five
    λ, five evenly spaced ones are drawn.

    Raises:
        ValueError: a bias that was not part of the run, or a run without λ = 1 or with no other.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> effect = interp.frequency.study(model, text, unigram=counts, scales=[0, 1], progress=False)
        >>> [trace.name for trace in bias_ratio(effect).data if trace.name]
        ['λ = 0 (removed)', 'λ = 1 (as trained)']
    """
    only(effect.kl, "bias", bias)
    q = effect.probabilities(bias=bias).pivot(index="token_id", columns="scale", values="probability")
    if 1.0 not in q or len(q.columns) < 2:
        raise ValueError(
            f"a ratio needs λ = 1 and another λ; this result has {', '.join(f'{scale_value:g}' for scale_value in q)}"
        )
    u = effect.types.set_index("token_id")["unigram"]
    bins = only(effect.curve, "bias", bias).drop_duplicates("bin").set_index("bin")[["unigram_low", "unigram_high"]]
    places = pd.Series(np.searchsorted(bins["unigram_low"], u[u > 0] * (1 + 1e-9)) - 1, u.index[u > 0])
    centres = np.sqrt(bins.prod(axis=1)).to_numpy()
    title = f"How scaling {TITLE_NAME[bias]} changes predictions"
    y = "times as probable as trained"
    out = figure(title, "word frequency u(w)", y, subtitle="geometric mean ± SD over words of that frequency")
    for scale, look in scale_styles(evenly(q.columns[q.columns != 1].to_series(), _MOST_CURVES)).items():
        ratio = (q[scale] / q[1.0]).reindex(places.index)
        log_ratio = ratio.map(np.log).groupby(places).agg(["mean", "std", "size"]).fillna({"std": 0.0})
        log_ratio = log_ratio.set_axis(centres[log_ratio.index])
        look["name"] += " (removed)" if scale == 0 else ""
        mean = log_ratio["mean"].map(np.exp)
        sd = log_ratio["std"].map(np.exp)
        hover = "u = %{x:.2g}<br>%{y:.3g} times as probable<br>words in the bin: %{customdata}"
        _add_scale(out, look, mean, sd, hover=hover, customdata=log_ratio["size"])
    add_series(out, pd.Series(1.0, centres[[0, -1]]), dict(CHANCE, name="λ = 1 (as trained)"), hoverinfo="skip")
    ticks = np.outer(10.0 ** np.arange(-6, 7), [1, 2, 5]).ravel().tolist()
    return out.update_xaxes(LOG).update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])


def _add_scale(out: Figure, look: style.Style, mean: pd.Series, sd: pd.Series, **options: Any) -> None:
    """The geometric means of one λ, with a band of ± one geometric SD."""
    band = translucent(look["color"], 0.13)
    add_band(out, mean / sd, mean * sd, band, legendgroup=look["name"], showlegend=False)
    add_series(out, mean, look, legend=True, **options)


def projection(effect: FrequencyStudy, bias: Bias | Direction = "ln") -> Figure:
    """Plot what a bias adds to each token's logit against log u, with the least-squares line (the paper's figure 4).

    This is `b_LN W_U` for ln, `b_last` for last, `E[h] W_U` for mean, and `−A W_U` for slope. At most 1,500 types are
    drawn, evenly spaced in the ranks of frequency.

    Raises:
        ValueError: a bias that was not part of the run, or fc, which adds no constant to the logits.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> effect = interp.frequency.study(model, text, unigram=counts, scales=[0, 1], progress=False)
        >>> len(projection(effect).data[0].x)  # types that occur in the text
        3
    """
    only(effect.kl, "bias", bias)
    if bias == "fc":
        raise ValueError("b_FC acts before the activation and adds no constant to the logits; there is nothing to plot")
    label, column = _ADDED[bias]
    numbers: Any = effect.projection.set_index("bias").loc[bias]
    rho = printed(numbers["spearman"], "{:.2f}")
    tau = printed(numbers["slope"], "{:.2f}")
    subtitle = f"Spearman ρ = {rho}, slope τ = {tau}" if "nan" not in (rho, tau) else "the same for every word"
    out = figure(f"{label} and word frequency", "log u(w), nats", f"{label}, logits (nats)", subtitle=subtitle)
    seen = effect.types[effect.types["count"] > 0].sort_values("count", kind="stable")
    log_u = np.log(seen["unigram"])
    added = seen[column]
    add_types(out, seen, log_u, added, BIAS_LOOKS[bias], hover="log u = %{x:.2f}<br>effect = %{y:.2f}")
    ends = log_u.iloc[[0, -1]] if len(seen) else log_u
    fitted = (added.mean() + numbers["slope"] * (ends - log_u.mean())).round(3).set_axis(ends.round(3))
    add_series(out, fitted, {"name": "least squares", "color": GREY, "dash": "dash"}, hoverinfo="skip")
    return out


def frequency_writers(ledger: FrequencyWriters) -> Figure:
    """Plot the slope on log u of what the attention and the MLP of each block add to the logits through E[h], with 95 %
    intervals, and its sum so far.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> text = interp.corpora.load("bundled", limit=60)
        >>> ledger = interp.frequency.components.writers(model, text, progress=False)
        >>> [trace.name for trace in frequency_writers(ledger).data]
        ['sum so far', 'attention', 'MLP']
    """
    out = figure("Who writes word frequency", "block", "slope on log u, nats", subtitle="with 95 % intervals")
    blocks = ledger.components.dropna(subset="layer").set_index("layer")
    hover = "block %{x}<br>%{y:+.3f}"
    add_series(out, blocks["cumulative_slope"].groupby(level=0).last(), _SO_FAR, hover=hover, legend=True)
    for name, look in _WRITERS.items():
        part = blocks[blocks["component"] == name]
        bars = error_bars(part["slope"], part["slope_low"], part["slope_high"])
        add_series(out, part["slope"], look, hover=hover, legend=True, error_y=bars)
    return out


def kl_by_scale(effect: FrequencyStudy) -> Figure:
    """Plot KL(u‖q) against the scale λ, one line per bias, corrected for bias and with its 95 % interval if the text
    has enough groups for one.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> effect = interp.frequency.study(model, text, unigram=counts, scales=[1, 0], progress=False)
        >>> [line.x.tolist() for line in kl_by_scale(effect).data]
        [[0.0, 1.0]]
    """
    has_intervals = effect.kl["kl_low"].notna().all()
    subtitle = "corrected for the number of positions, with 95 % intervals" if has_intervals else ""
    title, x = "How far predictions are from word frequency", "scale λ"
    out = figure(title, x, "KL(u‖q), nats", subtitle=subtitle)
    hover = "λ = %{x:g}<br>KL = %{y:.4f}<br>perplexity %{customdata:.2f}<extra></extra>"
    for bias, part in effect.kl.groupby("bias", sort=False):
        kl = part.sort_values("scale").set_index("scale")
        values = kl["kl_corrected" if has_intervals else "kl_unigram_model"]
        bars = error_bars(values, kl["kl_low"], kl["kl_high"]) if has_intervals else None
        look = BIAS_LOOKS[str(bias)]
        add_series(out, values, look, hover=hover, size=9, customdata=kl["perplexity"], showlegend=True, error_y=bars)
    return out.update_yaxes(rangemode="tozero")
