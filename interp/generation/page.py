"""What the page says of `interp generation`."""

import numpy as np
import pandas as pd

from interp.figures.section import Section
from interp.figures.style import DECODER_NAME
from interp.figures.words import change
from interp.generation import GenerationStudy, figures as plots
from interp.generation.tables import HUMAN

_SAMPLES = 2
_SIDE_BY_SIDE = 3

DEFINITIONS = {
    "Source": "Kobayashi et al., Findings of ACL 2023, table 2.",
    "Diversity": "D = ¼ Σ distinct-n for n = 1 … 4, distinct-n = different n-grams / all n-grams over all "
    "texts; within each text in the columns that end in _text.",
    "Perplexity": "That of the model with λ b_LN on the human texts.",
    "Frequent tokens": "The most frequent types, which make up half of the corpus.",
    "MAUVE": "How much of the generated text is like human text and the other way round, 1 at best (Pillutla "
    "et al. 2021).",
}


def section(sweep: GenerationStudy) -> Section:
    """What the page says of `interp generation`; every number comes from the result."""
    measures: list[plots.TextMeasure] = ["diversity", "mauve", "frequent_share", "repetition"]
    if sweep.provenance["mauve"] is None:
        measures.remove("mauve")
    figures = {"tradeoff": plots.generation_tradeoff(sweep)}
    figures |= {measure: plots.text_measure(sweep, measure) for measure in measures}
    tables = {"Text and perplexity by decoder and scale": sweep.metrics, "Samples by scale": _samples(sweep.texts)}
    summary, finding = _summary(sweep.metrics), _finding(sweep.metrics)
    return Section(summary, "tradeoff", finding, DEFINITIONS, figures, tables, sweep.provenance)


def ends(metrics: pd.DataFrame) -> tuple[pd.Series, dict[str, tuple[pd.Series, pd.Series]]]:
    """The row of the human texts, and of each decoder those of the largest λ and the smallest."""
    is_human = metrics["decoder"] == HUMAN
    written = metrics[~is_human].sort_values("scale", kind="stable").groupby("decoder", sort=False)
    return metrics[is_human].iloc[0], {
        DECODER_NAME.get(str(name), str(name)): (part.iloc[-1], part.iloc[0]) for name, part in written
    }


def _summary(metrics: pd.DataFrame) -> str:
    """The decoder whose diversity changes most."""
    human, decoders = ends(metrics)
    name = max(decoders, key=lambda one: abs(decoders[one][1]["diversity"] - decoders[one][0]["diversity"]))
    before, after = decoders[name]
    if before["scale"] == after["scale"]:
        text = f"At λ = {before['scale']:g} text by {name} has diversity {before['diversity']:.3f}"
        return f"{text}, human text {human['diversity']:.3f}."
    return (
        f"From λ = {before['scale']:g} to {after['scale']:g} diversity of the text by {name} "
        f"{change(before['diversity'], after['diversity'], '{:.3f}')} (human text {human['diversity']:.3f}), and "
        f"perplexity {change(before['perplexity'], after['perplexity'], '{:.1f}')}."
    )


def _finding(metrics: pd.DataFrame) -> str:
    """What changes from the largest λ to the smallest."""
    human, decoders = ends(metrics)
    before, after = next(iter(decoders.values()))
    if before["scale"] == after["scale"]:
        each = ", ".join(f"{name} {row['diversity']:.3f}" for name, (row, _) in decoders.items())
        return f"Diversity at λ = {before['scale']:g}: {each}; human {human['diversity']:.3f}."
    shares = {name: [f"{one['frequent_share']:.3f}" for one in both] for name, both in decoders.items()}
    frequent = ", ".join(f"{name} {first} to {last}" for name, (first, last) in shares.items())
    return (
        f"From λ = {before['scale']:g} to λ = {after['scale']:g} perplexity on human text "
        f"{change(before['perplexity'], after['perplexity'], '{:.1f}')}. {_diversity(decoders)}; human text has "
        f"{human['diversity']:.3f}. Share of frequent tokens: {frequent}; human {human['frequent_share']:.3f}."
    )


def _diversity(ends: dict[str, tuple[pd.Series, pd.Series]]) -> str:
    """What becomes of it, clearly where it is more than two standard errors of the difference."""
    found: dict[str, list[str]] = {"rises clearly": [], "falls clearly": [], "does not change clearly": []}
    for name, (before, after) in ends.items():
        difference = after["diversity"] - before["diversity"]
        clear = abs(difference) > 2 * np.hypot(before["diversity_se"], after["diversity_se"])
        verb = ("rises clearly" if difference > 0 else "falls clearly") if clear else "does not change clearly"
        found[verb].append(f"{name} ({before['diversity']:.3f} to {after['diversity']:.3f})")
    return "Diversity " + ", and ".join(f"{verb} by {', '.join(names)}" for verb, names in found.items() if names)


def _samples(texts: pd.DataFrame) -> pd.DataFrame:
    """The first prompts as each decoder continues them at the ends of the λ and between, and as people did."""
    written = texts[(texts["decoder"] != HUMAN) & (texts["prompt_id"] < _SAMPLES)]
    human = dict(texts.loc[texts["decoder"] == HUMAN, ["prompt", "text"]].to_numpy())
    scales = sorted(written["scale"].unique())
    shown = sorted({scales[round(i)] for i in np.linspace(0, len(scales) - 1, _SIDE_BY_SIDE)}, reverse=True)
    ordered = written.sort_values("prompt_id", kind="stable").drop_duplicates(["prompt", "decoder", "scale"])
    by_scale = ordered.set_index(["prompt", "decoder", "scale"])["text"]
    table = (
        by_scale.unstack(sort=False)[shown].rename(columns="λ = {:g}".format).rename_axis(columns=None).reset_index()
    )
    table["human"] = table["prompt"].map(human)
    table[["prompt", "human"]] = table[["prompt", "human"]].mask(table["prompt"].duplicated(), "")
    return table
