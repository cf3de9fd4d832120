"""What the page says of `interp frequency`."""

from interp import plots
from interp.frequency import BiasEffect
from interp.report.section import Section

TITLE = "Word frequency in the prediction head"
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


def frequency_section(effect: BiasEffect) -> Section:
    """What the page says of `interp frequency`; every number comes from the result."""
    biases = list(effect.kl["bias"].unique())
    constant = [bias for bias in biases if bias != "fc"]
    figures = {f"curve_{biases[0]}": plots.bias_curve(effect, biases[0]), "kl": plots.kl_by_scale(effect)}
    figures |= {f"projection_{bias}": plots.projection(effect, bias) for bias in constant}
    figures |= {f"curve_{bias}": plots.bias_curve(effect, bias) for bias in biases[1:]}
    tables = {"KL, perplexity by bias and scale": effect.kl, "Projection on word frequency": effect.projection}
    tables["Logit adjustment, for comparison"] = effect.adjustment
    return Section(
        question="frequency",
        title=TITLE,
        summary=_summary(effect),
        main=f"curve_{biases[0]}",
        finding=_finding(effect),
        definitions=DEFINITIONS,
        figures=figures,
        tables=tables,
        provenance=effect.provenance,
    )


def _summary(effect: BiasEffect) -> str:
    """The bias whose removal changes KL(u‖q) most."""
    wide = effect.kl.pivot(index="bias", columns="scale", values="kl_unigram_model")
    if not {0.0, 1.0}.issubset(wide.columns):
        row = effect.kl.iloc[0]
        return f"With {_plain(row['bias'])} scaled by {row['scale']:g}, KL(u‖q) is {row['kl_unigram_model']:.3f} nats."
    bias = str((wide[0.0] - wide[1.0]).abs().idxmax())
    before, after = wide[1.0][bias], wide[0.0][bias]
    return (
        f"Without {_plain(bias)} predictions are {'further from' if after > before else 'closer to'} word frequency: "
        f"KL(u‖q) goes from {before:.3f} to {after:.3f} nats."
    )


def _finding(effect: BiasEffect) -> str:
    sentences = []
    for bias, part in effect.kl.groupby("bias", sort=False):
        by_scale = part.set_index("scale")
        if not {0.0, 1.0}.issubset(by_scale.index):
            continue
        kl, ppl = by_scale["kl_unigram_model"], by_scale["perplexity"]
        sentences.append(
            f"Without {_plain(str(bias))}, KL(u‖q) goes from {kl[1.0]:.3f} to {kl[0.0]:.3f} nats and perplexity "
            f"from {ppl[1.0]:.1f} to {ppl[0.0]:.1f}."
        )
    for row in effect.projection.itertuples():
        what = "b_LN W_U" if row.bias == "ln" else _plain(str(row.bias))
        sentences.append(f"Spearman correlation of {what} with log u: {row.spearman:.2f}.")
    return " ".join(sentences)


def _plain(bias: str) -> str:
    return {"ln": "b_LN", "fc": "b_FC", "last": "b_last"}[bias]
