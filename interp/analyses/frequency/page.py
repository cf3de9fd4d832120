"""What the page says about `interp frequency`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from interp.analyses.frequency import figures as plots
from interp.analyses.frequency.tables import FrequencyStudy
from interp.figures.draw import add_series, error_bars
from interp.figures.figure import Figure
from interp.figures.runs import Sides, draw_runs, extremes, numbers_of, shared
from interp.figures.section import Section
from interp.figures.style import TITLE_NAME, figure, run_styles
from interp.models.head import Bias
from interp.support.choices import Direction
from interp.support.words import within

__all__ = ["DEFINITIONS", "section", "sides"]

DEFINITIONS = {
    "Source": "Kobayashi, Kuribayashi, Yokoi and Inui, “Transformer Language Models Handle Word Frequency in "
    "Prediction Head”, Findings of ACL 2023.",
    "Prediction head": "GPT-2: p = softmax(LN(x) W_U). BERT: p = softmax(LN(GELU(x W_FC + b_FC)) W_U + b_last). LN(x) "
    "= (x − m)/s ⊙ γ + b_LN.",
    "λ": "What the bias is multiplied by: 1 as trained, 0 removed.",
    "u, q": "The unigram distribution, and the mean over positions of the predicted distribution.",
    "KL(u‖q)": "Σ u log(u/q) in nats, over types with u > 0. It falls as q averages more positions; kl_corrected is "
    "without that bias.",
    "[low, high]": "95 % interval, by leaving out groups of texts one after the other (delete-one-group jackknife; "
    "Busing et al. 1999); of correlations over types, by Fisher’s z.",
    "Projection": "What a bias adds to each token's logit: b_LN W_U, or b_last; its Spearman correlation with log u, "
    "and the least-squares slope τ.",
    "E[h], −A": "Directions in the input h of the unembedding that are scaled like a bias: the mean of h, which stands "
    "in for b_LN in a model without it, and the slope of the log of the mean predicted probability on the output "
    "embeddings (Cho et al. 2025).",
}

_FAMILY = 3
"""The fewest models whose sizes are compared."""


def section(effect: FrequencyStudy) -> Section:
    """Return what the page says about `interp frequency`; every number comes from the result."""
    first, *later = effect.kl["bias"].unique()
    scaled = {1.0} < set(effect.kl["scale"])
    figures = {f"ratio_{first}": plots.bias_ratio(effect, first)} if scaled else {}
    figures[f"curve_{first}"] = plots.bias_curve(effect, first)
    figures["kl"] = plots.kl_by_scale(effect)
    main = next(iter(figures))
    for bias in [first, *later]:
        if bias != "fc":
            figures[f"projection_{bias}"] = plots.projection(effect, bias)
    for bias in later:
        figures[f"curve_{bias}"] = plots.bias_curve(effect, bias)
    tables = {"KL, perplexity by bias and scale": effect.kl, "Projection on word frequency": effect.projection}
    tables["Logit adjustment, for comparison"] = effect.adjustment
    return Section(main, effect.findings, tuple(_notes(effect)), DEFINITIONS, figures, tables, effect.provenance)


def _notes(effect: FrequencyStudy) -> Iterator[str]:
    """KL and perplexity as trained."""
    row: Any
    for row in effect.kl[effect.kl["scale"] == 1].head(1).itertuples():
        kl = f"KL(u‖q) is {row.kl_unigram_model:.3f} nats"
        if not np.isnan(row.kl_corrected):
            kl += f", {row.kl_corrected:.3f} {within(row.kl_low, row.kl_high, '{:.3f}')} corrected for bias,"
        perplexity = within(row.perplexity_low, row.perplexity_high, "{:.1f}")
        yield f"As trained, {kl} and perplexity {row.perplexity:.1f} {perplexity}."


def sides(effects: Mapping[str, FrequencyStudy]) -> Sides:
    numbers = numbers_of({name: _numbers(effect) for name, effect in effects.items()})
    figures = {}
    for bias, having in shared(effects, lambda result: result.kl["bias"].unique()):
        figures[f"kl_{bias}"] = _kl(having, bias)
    without = numbers.reindex(columns=["kl_without_ln", "kl_without_mean"]).set_axis(["b_LN", "E[h]"], axis=1)
    removed = " or ".join(without.dropna(how="all").notna().idxmax(axis=1).unique()) or "b_LN"
    added = without.bfill(axis=1)["b_LN"] - numbers.reindex(columns=["kl"])["kl"]
    summary = extremes(f"What removing {removed} adds to KL(u‖q)", added, "{:+z.3f} nats")
    if len(effects) >= _FAMILY:
        reason = _why_no_sizes(effects)
        if reason:
            summary += f" It is not drawn against the size of the models: {reason}."
        else:
            figures["by_size"] = _by_size(effects, removed)
    return Sides(DEFINITIONS, numbers, figures, summary)


def _numbers(effect: FrequencyStudy) -> dict[Any, Any]:
    """KL and perplexity as trained and without each bias, and how the projections follow word frequency."""
    row: dict[Any, Any] = {}
    for short, measure in (("kl", "kl_unigram_model"), ("perplexity", "perplexity")):
        values = effect.kl.set_index(["scale", "bias"])[measure]
        if 1.0 in values:
            row[short] = values[1.0].iloc[0]
        if 0.0 in values:
            row |= values[0.0].add_prefix(f"{short}_without_").to_dict()
    return row | effect.projection.set_index("bias")["spearman"].add_prefix("spearman_").to_dict()


def _why_no_sizes(effects: Mapping[str, FrequencyStudy]) -> str:
    """Why models cannot be compared by size; empty if they can."""
    sizes = [effect.provenance.get("n_parameters") for effect in effects.values()]
    if None in sizes:
        return "the version that saved some of them did not record their number of parameters"
    if len(set(sizes)) < _FAMILY:
        return f"fewer than {_FAMILY} of them differ in their number of parameters"
    if len({effect.provenance["tokenizer"] for effect in effects.values()}) > 1:
        return "their tokenizers differ, so that KL(u‖q) is over different types"
    return ""


def _by_size(effects: Mapping[str, FrequencyStudy], removed: str) -> Figure:
    """What removing a bias or direction adds to KL(u‖q), against the number of parameters."""
    subject = removed.replace("b_LN", TITLE_NAME["ln"])
    out = figure(f"What removing {subject} adds to KL(u‖q), by size", "parameters", "added to KL(u‖q), nats")
    for name, style in run_styles(list(effects)).items():
        effect = effects[name]
        without = effect.kl[effect.kl["scale"] == 0].head(1).set_index(pd.Index([effect.provenance["n_parameters"]]))
        added = without["delta_kl_corrected"].fillna(without["delta_kl"])
        bars = error_bars(added, without["delta_kl_low"], without["delta_kl_high"])
        hover = "%{x:,} parameters<br>%{y:+.4f} nats"
        add_series(out, added, style, hover=hover, size=9, legend=True, mode="markers", error_y=bars)
    return out.update_xaxes(type="log", dtick="D2", tickformat="~s")


def _kl(effects: Mapping[str, FrequencyStudy], bias: Bias | Direction = "ln") -> Figure:
    """KL(u‖q) against the scale of a bias."""
    out = figure(f"Distance from word frequency as {TITLE_NAME[bias]} goes", "scale λ", "KL(u‖q), nats")
    lines = {}
    for name, effect in effects.items():
        kl = effect.kl.set_index(["bias", "scale"])["kl_unigram_model"]
        lines[name] = kl[bias].sort_index()
    draw_runs(out, lines, list(effects))
    return out.update_yaxes(rangemode="tozero")
