"""What the page says about `interp generation`."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from interp.analyses.generation import figures as plots
from interp.analyses.generation.tables import HUMAN, GenerationStudy
from interp.figures.figure import Figure
from interp.figures.runs import Sides, draw_runs, extremes, numbers_of, shared
from interp.figures.section import Section
from interp.figures.style import figure, plain
from interp.support.words import BIAS_WORD, DECODER_NAME, within

__all__ = ["DEFINITIONS", "section", "sides"]

_SAMPLES = 2
_SIDE_BY_SIDE = 3

DEFINITIONS = {
    "Source": "Kobayashi et al., Findings of ACL 2023, table 2.",
    "Diversity": "D = ¼ Σ distinct-n for n = 1 … 4, distinct-n = different n-grams / all n-grams over all texts; "
    "within each text in the columns that end in _text.",
    "Perplexity": "That of the model with λ b_LN (or λ E[h]) on the whole text that the prompts are from, with a 95 % "
    "interval by leaving out groups of texts.",
    "Frequent tokens": "The most frequent types, which make up half of the corpus.",
    "MAUVE": "How much of the generated text is like human text and vice versa, 1 at best (Pillutla et al. 2021).",
    "Highest MAUVE": "The interval of its λ has the λ that are best on random halves of the prompts. Its gain over "
    "λ = 1 is of MAUVE on one half, at the λ that is best on the other.",
}


def section(sweep: GenerationStudy) -> Section:
    """What the page says about `interp generation`; every number comes from the result."""
    measures: list[plots.TextMeasure] = ["diversity", "mauve", "frequent_share", "repetition"]
    figures = {"tradeoff": plots.generation_tradeoff(sweep)}
    for measure in measures:
        if plots.is_known(sweep, measure):
            figures[measure] = plots.text_measure(sweep, measure)
    tables = {"Text and perplexity by decoder and scale": sweep.metrics, "Samples by scale": _samples(sweep.texts)}
    if len(sweep.highest):
        tables["λ of the highest MAUVE"] = sweep.highest
    notes = tuple(_notes(sweep.metrics))
    return Section("tradeoff", sweep.findings, notes, DEFINITIONS, figures, tables, sweep.provenance)


def _notes(metrics: pd.DataFrame) -> Iterator[str]:
    """Perplexity on human text at the ends of λ."""
    scored = metrics[metrics["decoder"] != HUMAN].sort_values("scale", kind="stable").drop_duplicates("scale")
    ends = scored.iloc[[-1, 0]].drop_duplicates("scale").to_dict("records")
    phrases = []
    for row in ends:
        interval = within(row["perplexity_low"], row["perplexity_high"], "{:.1f}")
        phrases.append(f"{row['perplexity']:.1f} {interval} at λ = {row['scale']:g}")
    yield f"Perplexity on human text is {' and '.join(phrases)}."


def _samples(texts: pd.DataFrame) -> pd.DataFrame:
    """The first prompts, as each decoder continues them from the largest λ to the smallest, and as people did."""
    written = texts[(texts["decoder"] != HUMAN) & (texts["prompt_id"] < _SAMPLES)]
    human = dict(texts.loc[texts["decoder"] == HUMAN, ["prompt", "text"]].to_numpy())
    scales = sorted(written["scale"].unique())
    chosen = sorted({scales[round(i)] for i in np.linspace(0, len(scales) - 1, _SIDE_BY_SIDE)}, reverse=True)
    ordered = written.sort_values("prompt_id", kind="stable").drop_duplicates(["prompt", "decoder", "scale"])
    by_scale = ordered.set_index(["prompt", "decoder", "scale"])["text"]
    wide = by_scale.unstack(sort=False)[chosen].rename(columns="λ = {:g}".format)
    table = wide.rename_axis(columns=None).reset_index()
    table["human"] = table["prompt"].map(human)
    table[["prompt", "human"]] = table[["prompt", "human"]].mask(table["prompt"].duplicated(), "")
    return table


def sides(sweeps: Mapping[str, GenerationStudy]) -> Sides:
    rows: dict[str, dict[str, Any]] = {}
    ends = _shared_ends(sweeps)
    for name, sweep in sweeps.items():
        by_scale = sweep.metrics.set_index(["decoder", "scale"])
        diversity, perplexity = by_scale["diversity"], by_scale["perplexity"]
        first, *_ = names = _decoders(sweep)
        rows[name] = {f"{end}_scale": scale for end, scale in ends.items()}
        for end, scale in ends.items():
            rows[name][f"perplexity_at_{end}"] = perplexity.get((first, scale), np.nan)
        rows[name]["human_diversity"] = diversity.loc[HUMAN].iloc[0]
        for decoder, (end, scale) in product(names, ends.items()):
            rows[name][f"{DECODER_NAME.get(decoder, decoder)}_at_{end}"] = diversity.get((decoder, scale), np.nan)
    numbers = numbers_of(rows)
    common = enumerate(shared(sweeps, _decoders))
    figures = {f"diversity_{i}": _diversity_of_runs(having, name) for i, (name, having) in common}
    added = numbers["perplexity_at_smallest"] - numbers["perplexity_at_largest"]
    apart = ends["largest"] > ends["smallest"]
    span = f"from λ = {ends['largest']:g} to {ends['smallest']:g}" if apart else "down"
    scaled = " or ".join(dict.fromkeys(BIAS_WORD[sweep.scaled] for sweep in sweeps.values()))
    title = f"What scaling {scaled} {span} adds to the perplexity"
    return Sides(DEFINITIONS, numbers, figures, extremes(title, added if apart else added * np.nan, "{:+z.2f}"))


def _decoders(sweep: GenerationStudy) -> list[str]:
    return [name for name in sweep.metrics["decoder"].unique() if name != HUMAN]


def _shared_ends(sweeps: Mapping[str, GenerationStudy]) -> dict[str, float]:
    """The largest and the smallest λ that all runs have, NaN if there is none. Runs with a single λ count only if
    all have a single one."""
    scales = [set(sweep.metrics["scale"].dropna()) for sweep in sweeps.values()]
    shared = set.intersection(*([run_scales for run_scales in scales if len(run_scales) > 1] or scales))
    return {"largest": max(shared, default=np.nan), "smallest": min(shared, default=np.nan)}


def _diversity_of_runs(sweeps: Mapping[str, GenerationStudy], decoder: str) -> Figure:
    """Diversity of a decoder's texts against λ."""
    title = f"Diversity of the text, {plain(DECODER_NAME.get(decoder, decoder))}"
    out = figure(title, "scale λ", "diversity D = ¼ Σ distinct-n")
    lines = {}
    for run, sweep in sweeps.items():
        written = sweep.metrics[sweep.metrics["decoder"] == decoder]
        lines[run] = written.set_index("scale")["diversity"].sort_index()
    draw_runs(out, lines, list(sweeps))
    return out
