"""What the page says about `interp frequency`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from interp.analyses.frequency import figures as plots
from interp.analyses.frequency.directions import nearest, uncorrected
from interp.analyses.frequency.tables import BiasEffect
from interp.figures.draw import add_series, error_bars, only
from interp.figures.figure import Figure
from interp.figures.runs import Sides, draw_runs, extremes, numbers_of, shared
from interp.figures.section import Section
from interp.figures.style import GREY, TITLE_NAME, Style, figure, run_styles
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
    "Random directions": "These replace b_LN, E[h] or −A and have its norm, or its effect, which is the SD of what it "
    "adds to the logits over the types that occur. Rank 1 is above all of them; p is how often a random direction "
    "would be as extreme.",
    "Bands": "Types grouped by word frequency, each band an equal part of the text; 1 is the most frequent. The "
    "calibration error is that of a band's probability in ten bins (Naeini et al. 2015); in a short text, chance "
    "raises it.",
    "Outlier dimensions": "Dimensions that lie more than 3 SD from the mean over a position's dimensions, at more than "
    "half of the positions (after Macocco et al. 2025). For predictions from these alone, all others are zero. Random "
    "parts have the same norm at each position.",
}


def section(effect: BiasEffect) -> Section:
    """What the page says about `interp frequency`; every number comes from the result."""
    first, *others = effect.kl["bias"].unique()
    scaled = {1.0} < set(effect.kl["scale"])
    figures = {f"ratio_{first}": plots.bias_ratio(effect, first)} if scaled else {}
    figures |= {f"curve_{first}": plots.bias_curve(effect, first), "kl": plots.kl_by_scale(effect)}
    main = next(iter(figures))
    figures |= {f"projection_{bias}": plots.projection(effect, bias) for bias in [first, *others] if bias != "fc"}
    figures |= {f"curve_{bias}": plots.bias_curve(effect, bias) for bias in others}
    tables = {"KL, perplexity by bias and scale": effect.kl, "Projection on word frequency": effect.projection}
    tables["Logit adjustment, for comparison"] = effect.adjustment
    drawn = {"controls": (plots.random_directions, "Beside random directions", effect.ranks)}
    drawn |= {"bands": (plots.bands, "By band of word frequency", effect.bands)}
    drawn |= {"outliers": (plots.outlier_parts, "Outlier dimensions of the head's input", effect.outliers)}
    for name, (draw, title, table) in drawn.items():
        if not effect.tables[name].empty:
            figures[name], tables[title] = draw(effect), table
    return Section(main, effect.findings, tuple(_notes(effect)), DEFINITIONS, figures, tables, effect.provenance)


def _notes(effect: BiasEffect) -> Iterator[str]:
    """KL and perplexity as trained."""
    row: Any
    for row in effect.kl[effect.kl["scale"] == 1].head(1).itertuples():
        kl = f"KL(u‖q) is {row.kl_unigram_model:.3f} nats"
        if not np.isnan(row.kl_corrected):
            kl += f", {row.kl_corrected:.3f} {within(row.kl_low, row.kl_high, '{:.3f}')} corrected for bias,"
        perplexity = within(row.perplexity_low, row.perplexity_high, "{:.1f}")
        yield f"As trained, {kl} and perplexity {row.perplexity:.1f} {perplexity}."


def sides(effects: Mapping[str, BiasEffect]) -> Sides:
    numbers = numbers_of({name: _numbers(effect) for name, effect in effects.items()})
    figures = {f"kl_{bias}": _kl(having, bias) for bias, having in shared(effects, lambda one: one.kl["bias"].unique())}
    for bias, having in shared(effects, lambda one: one.controls["bias"].unique()):
        figures[f"controls_{bias}"] = _controls(having, bias)
    for bias, having in shared(effects, lambda one: one.bands["bias"].unique()):
        figures[f"bands_{bias}"] = _bands(having, bias)
    for _, having in shared(effects, lambda one: one.outliers["of"].unique()[:1]):
        figures["outliers"] = _outlier_parts(having)
    without = numbers.reindex(columns=["kl_without_ln", "kl_without_mean"]).set_axis(["b_LN", "E[h]"], axis=1)
    removed = " or ".join(without.dropna(how="all").notna().idxmax(axis=1).unique()) or "b_LN"
    added = without.bfill(axis=1)["b_LN"] - numbers.reindex(columns=["kl"])["kl"]
    what = f"What removing {removed} adds to KL(u‖q)"
    return Sides(DEFINITIONS, numbers, figures, extremes(what, added, "{:+z.3f} nats"))


def _numbers(effect: BiasEffect) -> dict[Any, Any]:
    """KL and perplexity as trained and without each bias, and how the projections follow word frequency. If they were
    asked for, also ranks among random directions, what the rarest band loses, and KL from outlier dimensions alone and
    without them."""
    row: dict[Any, Any] = {}
    for short, measure in (("kl", "kl_unigram_model"), ("perplexity", "perplexity")):
        values = effect.kl.set_index(["scale", "bias"])[measure]
        if 1.0 in values:
            row[short] = values[1.0].iloc[0]
        if 0.0 in values:
            row |= values[0.0].add_prefix(f"{short}_without_").to_dict()
    row |= effect.projection.set_index("bias")["spearman"].add_prefix("spearman_").to_dict()
    for one in _farthest(effect.ranks).itertuples():
        row |= {f"rank_{one.bias}_{one.kind}": one.rank, "n_controls": one.n_controls}
    for one in _farthest(effect.bands).groupby("bias", sort=False).tail(1).itertuples():
        row[f"excess_nll_rarest_{one.bias}"] = one.excess_nll
    parts = effect.outliers[effect.outliers["of"] == "outliers"].set_index("part")["kl_unigram_model"]
    return row | parts.drop("all", errors="ignore").add_prefix("kl_outliers_").to_dict()


def _farthest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the λ nearest to 0."""
    return table[table["scale"] == nearest(table["scale"].tolist(), 0)] if len(table) else table


def _kl(effects: Mapping[str, BiasEffect], bias: Bias | Direction = "ln") -> Figure:
    """KL(u‖q) against the scale of a bias."""
    out = figure(f"Distance from word frequency as {TITLE_NAME[bias]} goes", "scale λ", "KL(u‖q), nats")
    kl = {name: effect.kl.set_index(["bias", "scale"])["kl_unigram_model"] for name, effect in effects.items()}
    draw_runs(out, {name: values[bias].sort_index() for name, values in kl.items()}, list(effects))
    return out.update_yaxes(rangemode="tozero")


def _controls(effects: Mapping[str, BiasEffect], bias: Bias | Direction) -> Figure:
    """What removing a bias does to KL(u‖q), next to random directions, with one line for each run."""
    kinds = {"norm": "random, of equal norm", "effect": "random, of equal effect"}
    title = f"ΔKL(u‖q) without {TITLE_NAME[bias]}, beside random directions"
    out = figure(title, "ΔKL(u‖q), nats", "", subtitle="at the λ nearest to 0, with 95 % interval")
    for number, (name, look) in enumerate(run_styles(list(effects)).items()):
        drawn = _farthest(only(effects[name].controls, "bias", bias))
        for (kind, words), symbol in zip(kinds.items(), ("circle-open", "x-thin-open"), strict=True):
            points = drawn.loc[drawn["kind"] == kind, "delta_kl"].round(4)
            points = pd.Series(look["name"], points)
            random: Style = {"name": words, "color": GREY, "symbol": symbol}
            add_series(out, points, random, hover="%{x:+.3f}", mode="markers", legend=not number)
        own = uncorrected(_farthest(only(effects[name].kl, "bias", bias))).set_index("bias")
        bars = error_bars(*(own[f"delta_kl{end}"] for end in ("", "_low", "_high")))
        value = pd.Series(look["name"], own["delta_kl"].round(4))
        how: dict[str, Any] = {"mode": "markers", "size": 11, "legend": False, "error_x": bars}
        add_series(out, value, look, hover="%{x:+.3f}", **how)
    return out.update_yaxes(autorange="reversed", type="category")


def _bands(effects: Mapping[str, BiasEffect], bias: Bias | Direction) -> Figure:
    """What the tokens of each band of word frequency lose without a bias."""
    title, x = (
        f"What rare and frequent words lose without {TITLE_NAME[bias]}",
        "share of the text in more frequent words",
    )
    out = figure(title, x, "Δ NLL, nats", subtitle="by band of word frequency, at the λ nearest to 0")
    lines = {}
    for name, effect in effects.items():
        table = _farthest(only(effect.bands, "bias", bias)).set_index("band")["delta_nll"]
        lines[name] = table.set_axis((table.index - 0.5) / len(table))
    draw_runs(out, lines, list(effects))
    return out.update_xaxes(range=[0, 1])


def _outlier_parts(effects: Mapping[str, BiasEffect]) -> Figure:
    """KL(u‖q) from the outlier dimensions of the head's input alone, and without them."""
    names = {"all": "all dimensions", "without": "without outliers", "alone": "outliers alone"}
    out = figure("Outlier dimensions of the head's input", "", "KL(u‖q), nats")
    own = {name: only(effect.outliers, "of", "outliers").set_index("part") for name, effect in effects.items()}
    draw_runs(out, {name: table["kl_unigram_model"].rename(names) for name, table in own.items()}, list(effects))
    return out.update_xaxes(type="category", categoryorder="array", categoryarray=list(names.values()))
