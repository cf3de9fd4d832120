"""What stands side by side of several results of `interp generation`."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures.runs import Sides, draw_runs, extremes, numbers_of, shared
from interp.figures.style import DECODER_NAME, figure, plain
from interp.generation.page import DEFINITIONS
from interp.generation.tables import HUMAN, GenerationStudy

__all__ = ["sides"]


def sides(sweeps: Mapping[str, GenerationStudy]) -> Sides:
    rows: dict[str, dict[str, Any]] = {}
    ends = _shared_ends(sweeps)
    for name, sweep in sweeps.items():
        by_scale = sweep.metrics.set_index(["decoder", "scale"])
        diversity, perplexity = by_scale["diversity"], by_scale["perplexity"]
        first, *_ = names = _decoders(sweep)
        rows[name] = {f"{end}_scale": scale for end, scale in ends.items()}
        rows[name] |= {f"perplexity_at_{end}": perplexity.get((first, scale), np.nan) for end, scale in ends.items()}
        rows[name]["human_diversity"] = diversity.loc[HUMAN].iloc[0]
        for decoder, (end, scale) in product(names, ends.items()):
            rows[name][f"{DECODER_NAME.get(decoder, decoder)}_at_{end}"] = diversity.get((decoder, scale), np.nan)
    numbers = numbers_of(rows)
    figures = {f"diversity_{i}": _diversity(having, name) for i, (name, having) in enumerate(shared(sweeps, _decoders))}
    added = numbers["perplexity_at_smallest"] - numbers["perplexity_at_largest"]
    scaled = ends["largest"] > ends["smallest"]
    how = f"from λ = {ends['largest']:g} to {ends['smallest']:g}" if scaled else "down"
    what = f"What scaling b_LN {how} adds to the perplexity"
    return Sides(DEFINITIONS, numbers, figures, extremes(what, added if scaled else added * np.nan, "{:+z.2f}"))


def _decoders(sweep: GenerationStudy) -> list[str]:
    return [name for name in sweep.metrics["decoder"].unique() if name != HUMAN]


def _shared_ends(sweeps: Mapping[str, GenerationStudy]) -> dict[str, float]:
    """The largest and the smallest λ that all runs have, one-λ runs aside unless all are; NaN where they share none."""
    scales = [set(sweep.metrics["scale"].dropna()) for sweep in sweeps.values()]
    shared = set.intersection(*([one for one in scales if len(one) > 1] or scales))
    return {"largest": max(shared, default=np.nan), "smallest": min(shared, default=np.nan)}


def _diversity(sweeps: Mapping[str, GenerationStudy], decoder: str) -> go.Figure:
    """Diversity of a decoder's texts against the scale of b_LN."""
    title = f"Diversity of the text, {plain(DECODER_NAME.get(decoder, decoder))}"
    out = figure(title, "scale λ of b<sub>LN</sub>", "diversity D = ¼ Σ distinct-n")
    written = {run: sweep.metrics[sweep.metrics["decoder"] == decoder] for run, sweep in sweeps.items()}
    lines = {run: table.set_index("scale")["diversity"].sort_index() for run, table in written.items()}
    draw_runs(out, lines, list(sweeps))
    return out
