"""Figures of `interp controls`: random directions, bands of word frequency, and outlier dimensions."""

from typing import Any

import pandas as pd

from interp.analyses.controls import ControlStudy
from interp.analyses.controls.draws import farthest, plug_in
from interp.figures import style
from interp.figures.draw import add_series, error_bars
from interp.figures.figure import Figure
from interp.figures.style import BIAS_LOOKS, BIAS_NAME, GREY, panels

__all__ = ["bands", "outlier_parts", "random_directions"]

_KIND = {
    "norm": "equal norm",
    "effect": "equal effect",
    "embeddings": "embeddings",
    "centred embeddings": "centred",
}
_RANDOM = {"color": GREY, "symbol": "circle-open"}


def random_directions(study: ControlStudy) -> Figure:
    """Plot ΔKL(u‖q) of b_LN and each direction at the λ nearest to 0, with its interval, among random directions of
    each kind.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> study = interp.controls.study(model, text, unigram=counts, directions="mean", bands=2, progress=False)
        >>> [len(points.x) for points in random_directions(study).data][:3]  # and b_LN and E[h], in four panels
        [78, 1, 1]
    """
    controls = farthest(study.controls)
    kinds = [kind for kind in _KIND if (controls["kind"] == kind).any()]
    names = [_KIND[kind] for kind in kinds]
    scale = controls["scale"].iloc[0]
    n = controls["draw"].nunique()
    subtitle = f"at λ = {scale:g}, with 95 % interval, among {n} random directions"
    out = panels("ΔKL(u‖q) beside random directions", "ΔKL, nats", subtitle=subtitle, names=names)
    values = plug_in(study.kl).set_index(["scale", "bias"]).loc[scale]
    for panel, kind in enumerate(kinds, 1):
        drawn = controls[controls["kind"] == kind]
        points = drawn["bias"].map(BIAS_NAME).set_axis(drawn["delta_kl"].round(4))
        random_look = dict(_RANDOM, name="random")
        add_series(out, points, random_look, mode="markers", size=7, legend=panel == 1, panel=panel)
        for bias in drawn["bias"].unique():
            row = values.loc[[bias]]
            look = BIAS_LOOKS[str(bias)]
            bars = error_bars(row["delta_kl"], row["delta_kl_low"], row["delta_kl_high"])
            value = pd.Series(look["name"], row["delta_kl"])
            options: dict[str, Any] = {"mode": "markers", "size": 11, "legend": panel == 1, "panel": panel}
            add_series(out, value, look, hover="ΔKL = %{x:+.3f}<extra></extra>", error_x=bars, **options)
    return out.update_yaxes(autorange="reversed", type="category").update_layout(margin_t=96)


def bands(study: ControlStudy) -> Figure:
    """Plot what each edit at the λ nearest to 0 changes by band of word frequency: the NLL of the true token, and the
    calibration error of the band's probability, with 95 % intervals.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> study = interp.controls.study(model, text, unigram=counts, directions=(), bands=2, progress=False)
        >>> [line.x.tolist() for line in bands(study).data]
        [[1, 2], [1, 2]]
    """
    rows = farthest(study.bands)
    measures = {"delta_nll": "Δ NLL, nats", "delta_calibration_error": "Δ calibration error"}
    title, x = "What rare and frequent words lose", "band (1: most frequent words)"
    out = panels(title, x, subtitle=f"λ = {rows['scale'].iloc[0]:g} against 1")
    for panel, (name, label) in enumerate(measures.items(), 1):
        for bias, part in rows.groupby("bias", sort=False):
            table = part.set_index("band")
            low, high = table[f"{name}_low"], table[f"{name}_high"]
            bars = error_bars(table[name], low, high) if low.notna().all() else None
            hover = "band %{x}: %{y:+.3f}"
            add_series(
                out,
                table[name],
                BIAS_LOOKS[str(bias)],
                hover=hover,
                size=9,
                legend=panel == 1,
                panel=panel,
                error_y=bars,
            )
        out.update_yaxes(title_text=label, row=1, col=panel)
    return out.update_xaxes(dtick=1)


def outlier_parts(study: ControlStudy) -> Figure:
    """Plot KL(u‖q) and the entropy of predictions from the outlier dimensions of the head's input alone, and without
    them, with 95 % intervals, next to random parts of the input with the same norm.

    Raises:
        ValueError: a model without outlier dimensions.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5 w6 w7"] * 20
        >>> model.ln_final.b.data[5] = 30  # an outlier dimension
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> study = interp.controls.study(model, text, unigram=counts, directions=(), bands=2, progress=False)
        >>> [trace.name for trace in outlier_parts(study).data if trace.showlegend]
        ['random parts', 'outlier dimensions']
    """
    if study.outliers.empty:
        raise ValueError("the head's input has no outlier dimension in this result; there is nothing to draw")
    names = {"all": "all dimensions", "without": "without outliers", "alone": "outliers alone"}
    out = panels("Outlier dimensions of the head's input", "")
    drawn = study.outliers[study.outliers["of"] == "random"]
    outlying = study.outliers[study.outliers["of"] == "outliers"]
    look = {"name": "outlier dimensions", "color": style.VERMILION, "symbol": "diamond"}
    for panel, (measure, label) in enumerate(
        {"kl_unigram_model": "KL(u‖q), nats", "entropy": "entropy, nats"}.items(), 1
    ):
        points = drawn["part"].map(names).set_axis(drawn[measure].round(4))
        random_look = dict(_RANDOM, name="random parts")
        add_series(out, points, random_look, mode="markers", size=7, legend=panel == 1, panel=panel)
        value = outlying["part"].map(names).set_axis(outlying[measure])
        bars = {
            "type": "data", "symmetric": False, "thickness": 1, "width": 3,
            "array": outlying[f"{measure}_high"] - outlying[measure],
            "arrayminus": outlying[measure] - outlying[f"{measure}_low"],
        }  # fmt: skip
        options: dict[str, Any] = {"mode": "markers", "size": 11, "legend": panel == 1, "panel": panel, "error_x": bars}
        add_series(out, value, look, hover=f"{label} %{{x:.3f}}<extra></extra>", **options)
        out.update_xaxes(title_text=label, row=1, col=panel)
    order = list(names.values())[::-1]
    return out.update_yaxes(type="category", categoryorder="array", categoryarray=order).update_yaxes(
        showticklabels=False, col=2
    )
