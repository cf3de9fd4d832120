"""What the page says of `interp frequency`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures.runs import Sides, draw_runs, extremes, numbers_of, shared
from interp.figures.section import Section, direction, within
from interp.figures.style import BIAS_NAME, figure
from interp.frequency import figures as plots
from interp.frequency.tables import BiasEffect
from interp.models.head import Bias

__all__ = ["DEFINITIONS", "section", "sides"]

_BIAS = {"ln": "b_LN", "fc": "b_FC", "last": "b_last"}
_MOVED = {1: "further from", -1: "closer to", 0: "neither clearly further from nor clearly closer to"}

DEFINITIONS = {
    "Source": "Kobayashi, Kuribayashi, Yokoi and Inui, “Transformer Language Models Handle Word Frequency in "
    "Prediction Head”, Findings of ACL 2023.",
    "Prediction head": "GPT-2: p = softmax(LN(x) W_U). BERT: p = softmax(LN(GELU(x W_FC + b_FC)) W_U + "
    "b_last). LN(x) = (x − m)/s ⊙ γ + b_LN.",
    "λ": "What the bias is multiplied by: 1 as trained, 0 removed.",
    "u, q": "The unigram distribution, and the mean over positions of the predicted distribution.",
    "KL(u‖q)": "Σ u log(u/q) in nats, over types with u > 0. It falls as q averages more positions; kl_corrected is "
    "without that bias.",
    "[low, high]": "95 % interval, by leaving out groups of texts one after the other (delete-one-group jackknife; "
    "Busing et al. 1999); of correlations over types, by Fisher’s z.",
    "Projection": "What a bias adds to each token's logit: b_LN W_U, or b_last; its Spearman correlation with "
    "log u, and the least-squares slope τ.",
}


def section(effect: BiasEffect) -> Section:
    """What the page says of `interp frequency`; every number comes from the result."""
    first, *others = effect.kl["bias"].unique()
    main = f"curve_{first}"
    figures = {main: plots.bias_curve(effect, first), "kl": plots.kl_by_scale(effect)}
    figures |= {f"projection_{bias}": plots.projection(effect, bias) for bias in [first, *others] if bias != "fc"}
    figures |= {f"curve_{bias}": plots.bias_curve(effect, bias) for bias in others}
    tables = {"KL, perplexity by bias and scale": effect.kl, "Projection on word frequency": effect.projection}
    tables["Logit adjustment, for comparison"] = effect.adjustment
    return Section(_summary(effect), main, _finding(effect), DEFINITIONS, figures, tables, effect.provenance)


def _ends(effect: BiasEffect) -> list[Any]:
    """The row of each bias at λ = 0, or else farthest from 1."""
    scales = np.array(effect.kl["scale"].unique(), dtype=float)
    last = 0.0 if 0.0 in scales else scales[np.abs(scales - 1).argmax()]
    return [*effect.kl[effect.kl["scale"] == last].itertuples()]


def _with(row: Any) -> str:
    """The scale of a row of `_ends` in words."""
    return f"Without {_BIAS[row.bias]}" if row.scale == 0 else f"With {_BIAS[row.bias]} times {row.scale:g}"


def _summary(effect: BiasEffect) -> str:
    """The bias whose scaling changes KL(u‖q) most."""
    row = max(_ends(effect), key=lambda one: abs(one.delta_kl))
    if row.scale == 1:
        return f"As trained, KL(u‖q) is {row.kl_unigram_model:.3f} nats {within(row.kl_low, row.kl_high, '{:.3f}')}."
    known = within(row.delta_kl_low, row.delta_kl_high, "{:+z.3f}")
    moved = _MOVED[direction(row.delta_kl_low, row.delta_kl_high)]
    return f"{_with(row)} predictions are {moved} word frequency: KL(u‖q) changes by {row.delta_kl:+z.3f} nats {known}."


def _finding(effect: BiasEffect) -> str:
    sentences = []
    for row in _ends(effect):
        kl, perplexity = f"KL(u‖q) is {row.kl_unigram_model:.3f} nats", f"perplexity {row.perplexity:.1f}"
        if row.scale == 1:
            sentences.append(f"As trained, {kl} and {perplexity}.")
            continue
        kl += f", {row.delta_kl:+z.3f} {within(row.delta_kl_low, row.delta_kl_high, '{:+z.3f}')} against λ = 1"
        low, high = row.delta_perplexity_low, row.delta_perplexity_high
        perplexity += f", {row.delta_perplexity:+z.1f} {within(low, high, '{:+z.1f}')}"
        sentences.append(f"{_with(row)}, {kl}; {perplexity}.")
    for bias, found in effect.projection.set_index("bias").iterrows():
        what, value = "b_LN W_U" if bias == "ln" else _BIAS[str(bias)], "undefined"
        if not np.isnan(found["spearman"]):
            value = f"{found['spearman']:.2f} {within(found['spearman_low'], found['spearman_high'], '{:.2f}')}"
        sentences.append(f"Spearman correlation of {what} with log u: {value}.")
    return " ".join(sentences)


def sides(effects: Mapping[str, BiasEffect]) -> Sides:
    numbers = numbers_of({name: _numbers(effect) for name, effect in effects.items()})
    figures = {f"kl_{bias}": _kl(having, bias) for bias, having in shared(effects, lambda one: one.kl["bias"].unique())}
    added = numbers.reindex(columns=["kl", "kl_without_ln"]).diff(axis=1)["kl_without_ln"]
    return Sides(DEFINITIONS, numbers, figures, extremes("What removing b_LN adds to KL(u‖q)", added, "{:+z.3f} nats"))


def _numbers(effect: BiasEffect) -> dict[Any, Any]:
    """KL and perplexity as trained and without each bias, and how the projections follow word frequency."""
    row: dict[Any, Any] = {}
    for short, measure in (("kl", "kl_unigram_model"), ("perplexity", "perplexity")):
        values = effect.kl.set_index(["scale", "bias"])[measure]
        if 1.0 in values:
            row[short] = values[1.0].iloc[0]
        if 0.0 in values:
            row |= values[0.0].add_prefix(f"{short}_without_").to_dict()
    return row | effect.projection.set_index("bias")["spearman"].add_prefix("spearman_").to_dict()


def _kl(effects: Mapping[str, BiasEffect], bias: Bias = "ln") -> go.Figure:
    """KL(u‖q) against the scale of a bias."""
    out = figure(f"Distance from word frequency as {BIAS_NAME[bias]} goes", "scale λ of the bias", "KL(u‖q), nats")
    kl = {name: effect.kl.set_index(["bias", "scale"])["kl_unigram_model"] for name, effect in effects.items()}
    draw_runs(out, {name: values[bias].sort_index() for name, values in kl.items()}, list(effects))
    return out.update_yaxes(rangemode="tozero")
