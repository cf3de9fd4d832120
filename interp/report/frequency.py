"""What the page says of `interp frequency`."""

from interp import plots
from interp.frequency import BiasEffect
from interp.report.section import Section


def frequency_section(effect: BiasEffect) -> Section:
    """What the page says of `interp frequency`; every number comes from the result."""
    biases = list(effect.kl["bias"].unique())
    constant = [bias for bias in biases if bias != "fc"]
    figures = [plots.bias_curve(effect, biases[0]), plots.kl_by_scale(effect)]
    figures += [plots.projection(effect, bias) for bias in constant]
    figures += [plots.bias_curve(effect, bias) for bias in biases[1:]]
    tables = {"KL, perplexity by bias and scale": effect.kl, "Projection on word frequency": effect.projection}
    tables["Logit adjustment, for comparison"] = effect.adjustment
    return Section(
        title="Word frequency in the prediction head",
        finding=_frequency_finding(effect),
        definition=(
            "u is the unigram distribution, q the mean over positions of the predicted distribution. "
            "KL(u‖q) = Σ u log(u/q) in nats, over types with u > 0. λ multiplies the bias. "
            "Source: Kobayashi et al., Findings of ACL 2023."
        ),
        figures=figures,
        tables=tables,
        provenance=effect.provenance,
    )


def _frequency_finding(effect: BiasEffect) -> str:
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
