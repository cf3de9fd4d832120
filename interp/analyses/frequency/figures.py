"""Figures of question 1: the prediction head's biases and word frequency (Kobayashi et al. 2023)."""

from typing import Any

import numpy as np
import pandas as pd

from interp.analyses.frequency import BiasEffect
from interp.analyses.frequency.directions import nearest, uncorrected
from interp.figures import style
from interp.figures.draw import add_band, add_equal, add_series, add_types, error_bars, evenly, only
from interp.figures.figure import Figure
from interp.figures.style import BIAS_NAME, CHANCE, GREY, LOG, TITLE_NAME, figure, panels, scale_styles, translucent
from interp.models.head import Bias
from interp.support.choices import Direction
from interp.support.words import printed

__all__ = ["bands", "bias_curve", "bias_ratio", "kl_by_scale", "outlier_parts", "projection", "random_directions"]

_MOST_CURVES = 5
_LOOKS = {
    "ln": {"name": BIAS_NAME["ln"], "color": style.BLUE, "symbol": "circle"},
    "fc": {"name": BIAS_NAME["fc"], "color": style.VERMILION, "symbol": "square"},
    "last": {"name": BIAS_NAME["last"], "color": style.GREEN, "symbol": "diamond"},
    "mean": {"name": BIAS_NAME["mean"], "color": style.PINK, "symbol": "triangle-up"},
    "slope": {"name": BIAS_NAME["slope"], "color": style.AMBER, "symbol": "x"},
}
_ADDED = {"last": ("b<sub>last</sub>", "bias_last")} | {
    name: (f"{BIAS_NAME[name]}W<sub>U</sub>", f"projection_{name}") for name in ("ln", "mean", "slope")
}
_KIND = {"norm": "of equal norm", "effect": "of equal effect"}
_RANDOM = {"color": GREY, "symbol": "circle-open"}


def bias_curve(effect: BiasEffect, bias: Bias | Direction = "ln") -> Figure:
    """Mean predicted probability against unigram probability with the bias scaled by λ (the paper's figures 2, 3).

    For each bin of log u, there is the geometric mean of q with a band of ± one geometric SD over types. The lines are
    q = u ("unigram") and q = 1/V ("uniform"). Of more than five λ, five evenly spaced ones are drawn.

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
    low, high = curve["unigram_low"].min(), curve["unigram_high"].max()
    add_equal(out, low, high, "q = u (unigram)")
    uniform = pd.Series(1 / len(effect.types), [low, high])
    add_series(out, uniform, CHANCE | {"name": "q = 1/V (uniform)"}, hoverinfo="skip")
    return out.update_xaxes(LOG).update_yaxes(LOG)


def bias_ratio(effect: BiasEffect, bias: Bias | Direction = "ln") -> Figure:
    """How many times as probable rare and frequent words become with the bias scaled by λ: q_λ(w) / q_1(w) by u(w).

    For each bin of log u, there is the geometric mean over types with a band of ± one geometric SD. Of more than five
    λ, five evenly spaced ones are drawn.

    Raises:
        ValueError: a bias that was not part of the run, or a run without λ = 1 or with no other.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> effect = interp.frequency.bias_effect(model, text, unigram=counts, scales=[0, 1], progress=False)
        >>> [trace.name for trace in bias_ratio(effect).data if trace.name]
        ['λ = 0 (removed)', 'λ = 1 (as trained)']
    """
    only(effect.kl, "bias", bias)
    q = effect.probabilities(bias=bias).pivot(index="token_id", columns="scale", values="probability")
    if 1.0 not in q or len(q.columns) < 2:
        raise ValueError(f"a ratio needs λ = 1 and another λ; this result has {', '.join(f'{one:g}' for one in q)}")
    u = effect.types.set_index("token_id")["unigram"]
    bins = only(effect.curve, "bias", bias).drop_duplicates("bin").set_index("bin")[["unigram_low", "unigram_high"]]
    places = pd.Series(np.searchsorted(bins["unigram_low"], u[u > 0] * (1 + 1e-9)) - 1, u.index[u > 0])
    centres = np.sqrt(bins.prod(axis=1)).to_numpy()
    title = f"How scaling {TITLE_NAME[bias]} changes predictions"
    y = "times as probable as trained"
    out = figure(title, "word frequency u(w)", y, subtitle="geometric mean ± SD over words of that frequency")
    for scale, look in scale_styles(evenly(q.columns[q.columns != 1].to_series(), _MOST_CURVES)).items():
        ratio = (q[scale] / q[1.0]).reindex(places.index)
        log_ratio = ratio.map(np.log).groupby(places).agg(["mean", "std"]).fillna({"std": 0.0})
        log_ratio = log_ratio.set_axis(centres[log_ratio.index])
        look["name"] += " (removed)" if scale == 0 else ""
        mean, sd = (log_ratio[name].map(np.exp) for name in ("mean", "std"))
        _add_scale(out, look, mean, sd, hover="u = %{x:.2g}<br>%{y:.3g} times as probable")
    add_series(out, pd.Series(1.0, centres[[0, -1]]), CHANCE | {"name": "λ = 1 (as trained)"}, hoverinfo="skip")
    ticks = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)]
    return out.update_xaxes(LOG).update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])


def _add_scale(out: Figure, look: style.Style, mean: pd.Series, sd: pd.Series, **more: Any) -> None:
    """The geometric means of one λ, with a band of ± one geometric SD."""
    band = translucent(look["color"], 0.13)
    add_band(out, mean / sd, mean * sd, band, legendgroup=look["name"], showlegend=False)
    add_series(out, mean, look, legend=True, **more)


def projection(effect: BiasEffect, bias: Bias | Direction = "ln") -> Figure:
    """What a bias adds to each token's logit against log u, with the least-squares line (the paper's figure 4).

    This is `b_LN W_U` for ln, `b_last` for last, `E[h] W_U` for mean, and `−A W_U` for slope. At most 1,500 types are
    drawn, evenly spaced in the ranks of frequency.

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
    what, column = _ADDED[bias]
    numbers: Any = effect.projection.set_index("bias").loc[bias]
    rho, tau = (printed(numbers[one], "{:.2f}") for one in ("spearman", "slope"))
    subtitle = f"Spearman ρ = {rho}, slope τ = {tau}" if "nan" not in (rho, tau) else "the same for every word"
    out = figure(f"{what} and word frequency", "log u(w), nats", f"{what}, logits (nats)", subtitle=subtitle)
    seen = effect.types[effect.types["count"] > 0].sort_values("count", kind="stable")
    log_u, added = np.log(seen["unigram"]), seen[column]
    add_types(out, seen, log_u, added, _LOOKS[bias], hover="log u = %{x:.2f}<br>effect = %{y:.2f}")
    ends = log_u.iloc[[0, -1]] if len(seen) else log_u
    fitted = (added.mean() + numbers["slope"] * (ends - log_u.mean())).round(3).set_axis(ends.round(3))
    add_series(out, fitted, {"name": "least squares", "color": GREY, "dash": "dash"}, hoverinfo="skip")
    return out


def kl_by_scale(effect: BiasEffect) -> Figure:
    """KL(u‖q) against the scale λ, one line per bias, corrected for bias and with its 95 % interval if the text has
    enough groups for one.

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
    title, x = "How far predictions are from word frequency", "scale λ"
    out = figure(title, x, "KL(u‖q), nats", subtitle=subtitle)
    hover = "λ = %{x:g}<br>KL = %{y:.4f}<br>perplexity %{customdata:.2f}<extra></extra>"
    for bias, part in effect.kl.groupby("bias", sort=False):
        kl = part.sort_values("scale").set_index("scale")
        values = kl["kl_corrected" if known else "kl_unigram_model"]
        bars = error_bars(values, kl["kl_low"], kl["kl_high"]) if known else None
        look = _LOOKS[str(bias)]
        add_series(out, values, look, hover=hover, size=9, customdata=kl["perplexity"], showlegend=True, error_y=bars)
    return out.update_yaxes(rangemode="tozero")


def random_directions(effect: BiasEffect) -> Figure:
    """ΔKL(u‖q) of b_LN and each direction at the λ nearest to 0, with its interval, among random directions of its norm
    and of its effect.

    Raises:
        ValueError: a run without controls.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> asked = {"scales": [0, 1], "controls": 39}
        >>> effect = interp.frequency.bias_effect(model, text, unigram=counts, **asked, progress=False)
        >>> [len(points.x) for points in random_directions(effect).data]  # and b_LN, in both panels
        [39, 1, 39, 1]
    """
    _check_asked(effect.controls, "controls")
    scale = nearest(effect.controls["scale"].tolist(), 0)
    biases = effect.controls["bias"].drop_duplicates().tolist()
    names = [f"{effect.controls['draw'].nunique()} random directions {kind}" for kind in _KIND.values()]
    out = panels("The effect beside random directions", f"ΔKL(u‖q) at λ = {scale:g}, nats", names=names)
    beside = effect.controls[effect.controls["scale"] == scale]
    own = uncorrected(effect.kl[effect.kl["scale"] == scale]).set_index("bias").loc[biases]
    for panel, kind in enumerate(_KIND, 1):
        drawn = beside[beside["kind"] == kind]
        points = drawn["bias"].map(BIAS_NAME).set_axis(drawn["delta_kl"].round(4))
        add_series(out, points, _RANDOM | {"name": "random"}, mode="markers", size=7, legend=panel == 1, panel=panel)
        for bias, row in own.iterrows():
            look = _LOOKS[str(bias)]
            value = pd.Series(look["name"], [row["delta_kl"]])
            bars = error_bars(*(own[f"delta_kl{end}"].loc[[str(bias)]] for end in ("", "_low", "_high")))
            how: dict[str, Any] = {"mode": "markers", "size": 11, "legend": panel == 1, "panel": panel}
            add_series(out, value, look, hover="ΔKL = %{x:+.3f}<extra></extra>", error_x=bars, **how)
    return out.update_yaxes(autorange="reversed", type="category")


def bands(effect: BiasEffect) -> Figure:
    """What each edit at the λ nearest to 0 changes by band of word frequency: the NLL of the true token, and the
    calibration error of the band's probability, with 95 % intervals.

    Raises:
        ValueError: a run without bands.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> asked = {"scales": [0, 1], "bands": 2}
        >>> effect = interp.frequency.bias_effect(model, text, unigram=counts, **asked, progress=False)
        >>> [line.x.tolist() for line in bands(effect).data]
        [[1, 2], [1, 2]]
    """
    _check_asked(effect.bands, "bands")
    scale = nearest([*effect.bands["scale"]], 0)
    measures = {"delta_nll": "Δ NLL, nats", "delta_calibration_error": "Δ calibration error"}
    title, x = "What rare and frequent words lose", "band of word frequency (1: the most frequent)"
    out = panels(title, x, subtitle=f"λ = {scale:g} against 1")
    for panel, (name, label) in enumerate(measures.items(), 1):
        for bias, part in effect.bands[effect.bands["scale"] == scale].groupby("bias", sort=False):
            table = part.set_index("band")
            low, high = table[f"{name}_low"], table[f"{name}_high"]
            bars = error_bars(table[name], low, high) if low.notna().all() else None
            hover = "band %{x}: %{y:+.3f}"
            add_series(
                out, table[name], _LOOKS[str(bias)], hover=hover, size=9, legend=panel == 1, panel=panel, error_y=bars
            )
        out.update_yaxes(title_text=label, row=1, col=panel)
    return out.update_xaxes(dtick=1)


def outlier_parts(effect: BiasEffect) -> Figure:
    """KL(u‖q) and the entropy of predictions from the outlier dimensions of the head's input alone, and without them,
    with 95 % intervals, next to random parts of the input with the same norm.

    Raises:
        ValueError: a run without outlier dimensions, or that did not look for them.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5 w6 w7"] * 20
        >>> model.ln_final.b.data[5] = 30  # an outlier dimension
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> asked = {"scales": [0, 1], "outliers": True}
        >>> effect = interp.frequency.bias_effect(model, text, unigram=counts, **asked, progress=False)
        >>> [trace.name for trace in outlier_parts(effect).data if trace.showlegend]  # with controls, random parts too
        ['outlier dimensions']
    """
    _check_asked(effect.outliers, "outliers")
    names = {"all": "all dimensions", "without": "without outliers", "alone": "outliers alone"}
    out = panels("Outlier dimensions of the head's input", "")
    drawn, own = (effect.outliers[effect.outliers["of"] == of] for of in ("random", "outliers"))
    look = {"name": "outlier dimensions", "color": style.VERMILION, "symbol": "diamond"}
    for panel, (measure, label) in enumerate(
        {"kl_unigram_model": "KL(u‖q), nats", "entropy": "entropy, nats"}.items(), 1
    ):
        points = drawn["part"].map(names).set_axis(drawn[measure].round(4))
        add_series(
            out, points, _RANDOM | {"name": "random parts"}, mode="markers", size=7, legend=panel == 1, panel=panel
        )
        value = own["part"].map(names).set_axis(own[measure])
        ends = {"array": own[f"{measure}_high"] - own[measure], "arrayminus": own[measure] - own[f"{measure}_low"]}
        bars = {"type": "data", "symmetric": False, "thickness": 1, "width": 3} | ends
        how: dict[str, Any] = {"mode": "markers", "size": 11, "legend": panel == 1, "panel": panel, "error_x": bars}
        add_series(out, value, look, hover=f"{label} %{{x:.3f}}<extra></extra>", **how)
        out.update_xaxes(title_text=label, row=1, col=panel)
    order = list(names.values())[::-1]
    return out.update_yaxes(type="category", categoryorder="array", categoryarray=order).update_yaxes(
        showticklabels=False, col=2
    )


def _check_asked(table: pd.DataFrame, option: str) -> None:
    """Raise ValueError for an empty table."""
    if table.empty:
        raise ValueError(f"this result has no {option}: none were found, or it was run without {option}= (--{option})")
