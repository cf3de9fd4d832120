"""What the page says of `interp frequency`."""

from typing import Any

import numpy as np

from interp.figures.section import Section
from interp.figures.words import change
from interp.frequency import BiasEffect, figures as plots

_BIAS = {"ln": "b_LN", "fc": "b_FC", "last": "b_last"}

DEFINITIONS = {
    "Source": "Kobayashi, Kuribayashi, Yokoi and Inui, “Transformer Language Models Handle Word Frequency in "
    "Prediction Head”, Findings of ACL 2023.",
    "Prediction head": "GPT-2: p = softmax(LN(x) W_U). BERT: p = softmax(LN(GELU(x W_FC + b_FC)) W_U + "
    "b_last). LN(x) = (x − m)/s ⊙ γ + b_LN.",
    "λ": "What the bias is multiplied by: 1 as trained, 0 removed.",
    "u, q": "The unigram distribution, and the mean over positions of the predicted distribution.",
    "KL(u‖q)": "Σ u log(u/q) in nats, over types with u > 0.",
    "Projection": "What a bias adds to each token's logit: b_LN W_U, or b_last; its Spearman correlation with "
    "log u, and the least-squares slope τ.",
}


def section(effect: BiasEffect) -> Section:
    """What the page says of `interp frequency`; every number comes from the result."""
    biases = list(effect.kl["bias"].unique())
    constant = [bias for bias in biases if bias != "fc"]
    figures = {f"curve_{biases[0]}": plots.bias_curve(effect, biases[0]), "kl": plots.kl_by_scale(effect)}
    figures |= {f"projection_{bias}": plots.projection(effect, bias) for bias in constant}
    figures |= {f"curve_{bias}": plots.bias_curve(effect, bias) for bias in biases[1:]}
    tables = {"KL, perplexity by bias and scale": effect.kl, "Projection on word frequency": effect.projection}
    tables["Logit adjustment, for comparison"] = effect.adjustment
    return Section(
        summary=_summary(effect),
        main=f"curve_{biases[0]}",
        finding=_finding(effect),
        definitions=DEFINITIONS,
        figures=figures,
        tables=tables,
        provenance=effect.provenance,
    )


def _ends(effect: BiasEffect) -> dict[str, dict[str, Any]]:
    """KL(u‖q) and perplexity of each bias before, at λ = 1 or else the largest, and after, at 0 or the farthest."""
    scales = np.array(effect.kl["scale"].unique(), dtype=float)
    first = 1.0 if 1.0 in scales else float(scales.max())
    last = 0.0 if 0.0 in scales else float(scales[np.abs(scales - first).argmax()])
    measures = effect.kl.set_index(["scale", "bias"], drop=False)[["scale", "kl_unigram_model", "perplexity"]]
    ends = measures.loc[first].add_suffix("_before").join(measures.loc[last].add_suffix("_after"))
    return {str(bias): dict(row) for bias, row in ends.iterrows()}


def _with(bias: str, before: float, after: float) -> str:
    name = _BIAS[bias]
    if after == 0 and before in (0, 1):
        return f"Without {name}"
    return f"With {name} times {after:g}" + ("" if before == after else f" instead of {before:g}")


def _summary(effect: BiasEffect) -> str:
    """The bias whose scaling changes KL(u‖q) most."""
    ends = _ends(effect)
    bias = max(ends, key=lambda one: abs(ends[one]["kl_unigram_model_after"] - ends[one]["kl_unigram_model_before"]))
    row = ends[bias]
    before, after = row["kl_unigram_model_before"], row["kl_unigram_model_after"]
    when = _with(bias, row["scale_before"], row["scale_after"])
    if row["scale_before"] == row["scale_after"]:
        return f"{when}, KL(u‖q) is {after:.3f} nats."
    moved = change(before, after, "{:.3f}")
    how = "as far from" if moved.startswith("stays") else "further from" if after > before else "closer to"
    return f"{when} predictions are {how} word frequency: KL(u‖q) {moved} nats."


def _finding(effect: BiasEffect) -> str:
    sentences = []
    for bias, row in _ends(effect).items():
        when = _with(bias, row["scale_before"], row["scale_after"])
        kl, perplexity = row["kl_unigram_model_after"], row["perplexity_after"]
        if row["scale_before"] == row["scale_after"]:
            sentences.append(f"{when}, KL(u‖q) is {kl:.3f} nats and perplexity {perplexity:.1f}.")
            continue
        sentences.append(
            f"{when}, KL(u‖q) {change(row['kl_unigram_model_before'], kl, '{:.3f}')} nats and perplexity "
            f"{change(row['perplexity_before'], perplexity, '{:.1f}')}."
        )
    for of, spearman in effect.projection.set_index("bias")["spearman"].items():
        what = "b_LN W_U" if of == "ln" else _BIAS[str(of)]
        value = "undefined" if np.isnan(spearman) else f"{spearman:.2f}"
        sentences.append(f"Spearman correlation of {what} with log u: {value}.")
    return " ".join(sentences)
