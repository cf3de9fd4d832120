"""What the page says about `interp attention`."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.analyses.attention import figures as plots
from interp.analyses.attention.tables import AttentionStudy
from interp.figures.draw import add_series
from interp.figures.figure import Figure
from interp.figures.runs import DEPTH, Sides, by_depth, draw_runs, extremes, layers_of, numbers_of, shared
from interp.figures.section import Contexts, Section
from interp.figures.style import CHANCE, figure, plain, run_styles
from interp.instruments.profile import noise_count
from interp.support.words import count, printed, within

__all__ = ["DEFINITIONS", "section", "sides"]

_LEAST = 1e-4  # the smallest change of attention that is printed
_MOST_DIMS = 20  # the number of dimensions whose tokens the page has

DEFINITIONS = {
    "Source": "Maruta and Matsuzaki, on BERT-base-uncased; attention by class as in Clark et al. 2019.",
    "C_j": "[(x_m W_Q + b_Q) W_Kᵀ]_j x_nj: what dimension j of the key contributes to the score of a query at m and a "
    "key at n (the paper's equation 6, read with b_Q W_Kᵀ x).",
    "Classes of keys": "BOS, [CLS] and [SEP] are the special tokens themselves; first is any other token at the first "
    "position of a row; commas and periods are one class; other is everything else. Users can define classes of their "
    "own.",
    "Gap": "C_j of a class of keys minus that of the other keys; n_dims_90 dimensions make 90 % of it.",
    "Outlier dimension": "Its mean over tokens is over k robust SD (1.4826 MAD) from the median over the state's "
    "dimensions, or over k SD from the mean; rule and k are in the provenance. in_noise: how many dimensions would lie "
    "beyond k if their means were N(0, 1) noise.",
    "Tokens of a dimension": "A click on an outlier dimension shows the 20 tokens at which its magnitude is largest, "
    "each with up to eight tokens of its row on either side, in the state in which the dimension stands out most; the "
    "table contexts has every state. Among magnitudes that differ by less than about 1 in 8,000, the first in the text "
    "are shown.",
    "Massive activation": "A single value of the residual stream above 100 and above 1,000 times the median magnitude "
    "of the hidden state of its row (Sun et al. 2024).",
    "Removed": "The dimension is set to its mean (or zero) in the input of one layer's keys only or, where scores "
    "cannot be decomposed, in the residual stream that enters one layer. Five random dimensions are removed beside it.",
    "Same values along random directions": "What is removed from the input of the keys is put back along random "
    "orthonormal directions, the same in all layers; and along these directions scaled so that the keys of each head "
    "change as much as by the dimension. The change is that from attention without the dimension. Of the two, the "
    "larger one counts.",
    "Change of log-odds": "The largest change of log(a / (1 − a)) over blocks and classes except other, where a is the "
    "attention averaged over heads and over up to eight queries of each row, in a part of the rows of long texts. A "
    "class counts where it, and all others together, get .02 or more. The smallest effect of interest is .1, or what "
    "changes attention by .02 and a tenth of it.",
    "L3H5": "Head 5 of block 3. Layers are TransformerLens' blocks, counted from 0 as heads are; the paper counts "
    "layers from 1 and calls that layer 4. State 0 is the embeddings, state L + 1 what leaves block L.",
}


def section(study: AttentionStudy) -> Section:
    """Return what the page says about `interp attention`; every number comes from the result."""
    figures = {"dimension_means": plots.dimension_means(study), "attention": plots.attention_by_layer(study)}
    if not study.outliers.empty:
        figures["outlier_values"] = plots.outlier_values(study)
    if strongest := study.largest_gap:
        layer = int(strongest["layer"])
        figures["contributions"] = plots.contributions(study, layer, strongest["key_class"])
        figures["contribution_table"] = plots.contribution_table(study, layer, int(strongest["dim"]))
    for number, name in enumerate(study.special):
        if name in set(study.ablation["key_class"]):
            figures[f"ablation_{number}"] = plots.ablation(study, name)
    claims = study.claims
    main = "attention"
    if claims["log_odds"].any():
        largest = claims["log_odds"].abs().argmax()
        main = f"ablation_{study.special.index(claims['key_class'].iloc[largest])}"
    notes = tuple(filter(None, [_outliers(study), _massive(study), _driven(study)]))
    tables = {
        "Attention by layer and class, mean over heads": study.by_layer,
        "Outlier dimensions": study.outliers,
        "Outlier dimensions by state and rule, beside how many noise would give": study.outlier_counts,
        "What sets a class apart, mean over heads": study.largest_gaps,
        "Largest effect of outlier dimensions, beside those of their controls": claims,
        "What outlier dimensions add to the scores of a class": study.outlier_share,
        "Change of attention with a dimension removed": study.ablated,
    }
    if not study.massive.empty:
        tables["Massive activations by state, dimension and position"] = study.massive
    return Section(
        main, study.findings, notes, DEFINITIONS, figures, tables, study.provenance, contexts=_contexts(study)
    )


def _contexts(study: AttentionStudy) -> dict[str, Contexts]:
    """The tokens at which each outlier dimension is largest, in the state in which it stands out most."""
    ranked = study.outliers[study.outliers["rank"] <= _MOST_DIMS]
    score = ranked["robust_z" if study.rule == "robust" else "z"].abs().dropna()
    largest = ranked.loc[score.groupby(ranked["rank"]).idxmax(), ["dim", "state"]]
    contexts = {}
    for dim, state in largest.itertuples(index=False):
        tokens = study.contexts[(study.contexts["dim"] == dim) & (study.contexts["state"] == state)]
        if len(tokens):
            title = f"The {count(len(tokens), 'token')} at which its magnitude is largest in state {state}"
            caption = f"{title}, where it stands out most. Texts are counted from 0."
            contexts[f"dimension {dim}"] = Contexts(caption, tokens)
    return contexts


def _driven(study: AttentionStudy) -> str:
    """The largest effect of removing a dimension with the largest gap, next to all other dimensions except outliers."""
    table = study.changes
    removed = table[table["set"] == "driver"].dropna(subset="change")
    if removed.empty:
        return ""
    tried = "Of the dimensions with the largest gap of some class"
    row = removed.sort_values("change").iloc[0]
    if -row["change"] < _LEAST:
        return f"{tried}, none lowers attention to a class by {_LEAST:.4f} or more."
    controls = table[(table["set"] == "random") & (table["dim"] != row["dim"])]
    largest_control = -controls["change"].min()
    form = "{:+z.4f}"
    against = f" (control dimensions: down to {printed(-max(largest_control, 0), form)})" if len(controls) else ""
    attention = f"attention to {study.class_words.get(row['key_class'], row['key_class'])}"
    change = f"{printed(row['change'], form)} {within(row['change_low'], row['change_high'], form)}"
    largest_change = f"most when removed from the keys of block {row['layer']}: by {change}"
    return f"{tried}, dimension {row['dim']} changes {attention} {largest_change}{against}."


def _outliers(study: AttentionStudy) -> str:
    if study.outliers.empty:
        return "No dimension of the residual stream is an outlier."
    first = study.outliers[study.outliers["rank"] == 1]
    outliers = count(study.outliers["dim"].nunique(), "outlier dimension")
    states = count(study.dims["state"].nunique(), "hidden state")
    in_noise = noise_count(study.dims["dim"].nunique(), study.provenance["k"])
    noise = f"where noise would give {in_noise:.2g} in each state"
    if first.empty:
        return f"{outliers}, {noise}."
    return f"{outliers}, {noise}; dimension {first['dim'].iloc[0]} is one in {len(first)} of {states}."


def _massive(study: AttentionStudy) -> str:
    table = study.massive
    if table.empty:
        return ""
    largest = table.sort_values("max_abs").iloc[-1]
    dims = count(table["dim"].nunique(), "dimension")
    states = f"states {table['state'].min()} to {table['state'].max()}"
    example = (
        f"the largest, {largest['max_abs']:,.0f} in dimension {largest['dim']:.0f} of state {largest['state']:.0f}"
    )
    return f"Massive activations in {dims} ({states}); {example}, is {largest['max_ratio']:,.0f} times the median."


def sides(studies: Mapping[str, AttentionStudy]) -> Sides:
    rows: dict[str, dict[Any, Any]] = {}
    for name, study in studies.items():
        width = study.dims["dim"].nunique()
        share = _spread_of(study).mean() / width if len(study.gaps) else math.nan
        means = study.attention.groupby("key_class")["sum"].mean().drop("other", errors="ignore")
        fall = study.changes.loc[study.changes["set"] == "outlier", "change"].min()
        rows[name] = {"n_dims": width, "n_outlier_dims": study.outliers["dim"].nunique(), "share_for_90": share}
        rows[name].update(means.add_prefix("attention_"))
        rows[name]["largest_fall"] = fall
    numbers = numbers_of(rows)
    decomposed = {name: study for name, study in studies.items() if len(study.gaps)}
    classes = shared(studies, lambda result: result.special)
    figures = {f"attention_{i}": _attention(having, name) for i, (name, having) in enumerate(classes)}
    if decomposed:
        figures["spread"] = _spread(decomposed)
    quantity = "The share of dimensions that makes 90 % of what sets a class of keys apart"
    return Sides(DEFINITIONS, numbers, figures, extremes(quantity, numbers["share_for_90"], "{:.0%}"))


def _attention(studies: Mapping[str, AttentionStudy], key_class: str) -> Figure:
    """Attention to a class of keys by depth, mean over heads; the dotted line is uniform attention."""
    called = {study.class_words.get(key_class, key_class) for study in studies.values()}
    title = f"Attention to {plain(called.pop() if len(called) == 1 else key_class)}"
    out = figure(title, DEPTH, "attention summed over the class", subtitle="mean over heads; dotted: uniform")
    depth = {}
    for name, study in studies.items():
        means = study.attention[study.attention["key_class"] == key_class].groupby("layer")[["sum", "uniform"]].mean()
        depth[name] = by_depth(means, layers_of(name, study.provenance))
    draw_runs(out, {name: table["sum"] for name, table in depth.items()}, list(studies))
    for name, style in run_styles(list(studies)).items():
        dotted = dict(CHANCE, name=style["name"], color=style["color"])
        add_series(out, depth[name]["uniform"].round(4), dotted, legend=False, hoverinfo="skip")
    return out.update_yaxes(rangemode="tozero")


def _spread_of(study: AttentionStudy) -> pd.Series:
    """How many dimensions make 90 % of what sets a class apart, by layer, head and class."""
    return study.gaps.arrays["n_dims_90_abs"].to_series()


def _spread(studies: Mapping[str, AttentionStudy]) -> Figure:
    """How many dimensions make 90 % of what sets a class of keys apart, as a share of all, by depth."""
    subtitle = "of the sum of |gap|; mean over heads and classes"
    out = figure("How many dimensions set a class apart", DEPTH, "share of dimensions for 90 %", subtitle=subtitle)
    lines = {}
    for name, study in studies.items():
        share = _spread_of(study).groupby("layer").mean() / study.dims["dim"].nunique()
        lines[name] = by_depth(share, layers_of(name, study.provenance))
    draw_runs(out, lines, list(studies))
    return out.update_yaxes(tickformat=".0%", rangemode="tozero")
