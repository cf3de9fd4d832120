"""What the page says of `interp generate`."""

import numpy as np
import pandas as pd

from interp import plots
from interp.generation import GenerationSweep
from interp.generation.sweep import HUMAN
from interp.plots.style import decoder_styles
from interp.report.section import Section

_SAMPLES = 2
_SIDE_BY_SIDE = 3


def generation_section(sweep: GenerationSweep) -> Section:
    """What the page says of `interp generate`; every number comes from the result."""
    figures = [plots.generation_tradeoff(sweep), plots.text_measure(sweep, "diversity")]
    if sweep.provenance["mauve"] is not None:
        figures.append(plots.text_measure(sweep, "mauve"))
    figures += [plots.text_measure(sweep, "frequent_share"), plots.text_measure(sweep, "repetition")]
    seen = sweep.provenance
    return Section(
        title="Generated text with b_LN scaled",
        finding=_finding(sweep.metrics),
        definition=(
            f"{seen['n_prompts']} prompts of {seen['prompt_tokens']} tokens, {seen['max_new_tokens']} new tokens each. "
            "distinct_n = different n-grams / all n-grams over all texts, diversity D = ¼ Σ distinct_n; within each "
            "text in the columns that end in _text. Perplexity is that of the model with λ b_LN on the human texts. "
            "Frequent tokens are the types that make up half of the corpus. Source: Kobayashi et al., Findings of "
            "ACL 2023."
        ),
        figures=figures,
        tables={"Text and perplexity by decoder and scale": sweep.metrics, "Samples by scale": _samples(sweep.texts)},
        provenance=sweep.provenance,
    )


def _finding(metrics: pd.DataFrame) -> str:
    """What changes from the largest λ to the smallest."""
    written = metrics[metrics["decoder"] != HUMAN]
    human = metrics[metrics["decoder"] == HUMAN].iloc[0]
    styles = decoder_styles(list(written["decoder"].unique()))
    by_decoder = {
        styles[str(name)]["name"]: part.set_index("scale").sort_index()
        for name, part in written.groupby("decoder", sort=False)
    }
    ends = {name: (part.iloc[-1], part.iloc[0]) for name, part in by_decoder.items()}
    before, after = next(iter(ends.values()))
    if len(written["scale"].unique()) == 1:
        each = ", ".join(f"{name} {row['diversity']:.3f}" for name, (row, _) in ends.items())
        return f"Diversity at λ = {before.name:g}: {each}; human {human['diversity']:.3f}."
    frequent = ", ".join(
        f"{name} {first['frequent_share']:.3f} to {last['frequent_share']:.3f}" for name, (first, last) in ends.items()
    )
    return (
        f"From λ = {before.name:g} to λ = {after.name:g} perplexity on human text goes from {before['perplexity']:.1f} "
        f"to {after['perplexity']:.1f}. {_diversity(ends)}; human text has {human['diversity']:.3f}. "
        f"Share of frequent tokens: {frequent}; human {human['frequent_share']:.3f}."
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
    rows = []
    for prompt, of_prompt in written.groupby("prompt", sort=False):
        for decoder, part in of_prompt.groupby("decoder", sort=False):
            text = part.drop_duplicates("scale").set_index("scale")["text"]
            rows.append({"prompt": prompt, "decoder": decoder} | {f"λ = {scale:g}": text[scale] for scale in shown})
            rows[-1]["human"] = human[prompt]
    table = pd.DataFrame(rows)
    table[["prompt", "human"]] = table[["prompt", "human"]].mask(table["prompt"].duplicated(), "")
    return table
