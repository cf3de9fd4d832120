"""What the page says about `interp sinks`."""

from collections.abc import Mapping
from typing import Any

from interp.analyses.sinks import figures as plots
from interp.analyses.sinks.tables import SinkStudy
from interp.figures.figure import Figure
from interp.figures.runs import DEPTH, Sides, by_depth, draw_runs, extremes, layers_of, numbers_of
from interp.figures.section import Section
from interp.figures.style import figure

__all__ = ["DEFINITIONS", "section", "sides"]

DEFINITIONS = {
    "Source": "Gu et al., ICLR 2025; massive activations as in Sun et al. 2024.",
    "Sink": "A position that draws more than epsilon of a head's attention from the queries that see it, on average; "
    "rate is the share of heads and rows in which it does. In causal models queries at the first eight positions do "
    "not count, because they see so few keys. A position counts in rows in which at least 16 queries see it.",
    "Control": "The same rate with the key vectors of each row shuffled among its positions, before RoPE and with one "
    "permutation for all heads and blocks, 39 times, in at most 64 rows.",
    "by_direction, by_norm": "The two parts of gap, the difference between the score |q| |k| cos of a position and "
    "that of other keys: the part due to the direction of its key, and the part due to its norm.",
    "Dimensions of the sinks": "The residual dimensions in which the keys of the first position's class differ most "
    "from other keys, for each head with a sink there: the largest |gap| of contributions C_j.",
    "Massive activation": "A single value of the residual stream above 100 and above 1,000 times the median magnitude "
    "of the hidden state of its row.",
    "Writer": "What adds to a massive activation until its height is reached: the embeddings, or attention or MLP of a "
    "block.",
    "L3H5": "Head 5 of block 3. Layers are TransformerLens' blocks, counted from 0 as heads are.",
}


def section(study: SinkStudy) -> Section:
    """Return what the page says about `interp sinks`; every number comes from the result."""
    figures = {"heads": plots.sink_heads(study), "positions": plots.sink_positions(study)}
    if study.heads["by_norm"].notna().any():
        figures["scores"] = plots.sink_scores(study)
    if not study.writers.empty:
        figures["writers"] = plots.massive_writers(study)
    tables = {
        "The first position: rate, key and values": study.measures,
        "Attention that positions draw, mean over heads": study.rates,
        "Attention to the first position and its scores, head by head": study.heads[study.heads["first_position"] == 0],
        "Sink rate with shuffled keys": study.draws,
        "Dimensions that make the sinks": study.dims,
        "What writes the massive activations": study.writers,
    }
    filled = {title: table for title, table in tables.items() if not table.empty}
    return Section("heads", study.findings, (), DEFINITIONS, figures, filled, study.provenance)


def sides(studies: Mapping[str, SinkStudy]) -> Sides:
    rows: dict[str, dict[Any, Any]] = {}
    for name, study in studies.items():
        rows[name] = study.measures.set_index("measure")["value"].to_dict()
    numbers = numbers_of(rows)
    summary = extremes("The sink rate of the first position", numbers["rate"], "{:.3f}")
    return Sides(DEFINITIONS, numbers, {"rates": _rates(studies)}, summary)


def _rates(studies: Mapping[str, SinkStudy]) -> Figure:
    """The sink rate of the first position by depth."""
    thresholds = {f"{study.epsilon:g}" for study in studies.values()}
    subtitle = f"share of heads and rows in which it draws more than {' or '.join(sorted(thresholds))} of the attention"
    out = figure("Attention sinks at the first position", DEPTH, "sink rate", subtitle=subtitle)
    lines = {}
    for name, study in studies.items():
        first = study.rates[study.rates["first_position"] == 0]
        lines[name] = by_depth(first.set_index("layer")["rate"], layers_of(name, study.provenance))
    draw_runs(out, lines, list(studies))
    return out.update_yaxes(rangemode="tozero")
