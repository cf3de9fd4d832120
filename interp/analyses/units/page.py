"""What the page says about `interp units`."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.analyses.units import figures as plots
from interp.analyses.units.columns import KINDS
from interp.analyses.units.tables import UnitStudy
from interp.figures.figure import Figure
from interp.figures.runs import Sides, draw_runs, extremes, numbers_of
from interp.figures.section import Section
from interp.figures.style import figure

__all__ = ["DEFINITIONS", "section", "sides"]

DEFINITIONS = {
    "Source": "Kryvosheieva et al. 2025; controls as in Hewitt and Liang 2019.",
    "Units": "Dimensions of the residual stream, MLP neurons after the activation, outputs of attention heads.",
    "Top": "The 1 % of units of a kind with the largest |t| of the differences good minus bad within pairs.",
    "Found again": "The share of the top units by one half of a task's pairs that the other half chooses too, against "
    "40 draws with labels flipped within pairs.",
    "Controls": "Grammatical sentences that differ in a word or a number, a random half of which is called good.",
}


def section(study: UnitStudy) -> Section:
    """Return what the page says about `interp units`; every number comes from the result."""
    kinds = study.separability["of"].unique()
    figures = {"consistency": plots.unit_consistency(study), "depth": plots.unit_depth(study)}
    for kind in kinds:
        figures[f"separability_{kind}"] = plots.unit_separability(study, kind)
    tables = {"Top units found again by other pairs, mean over tasks": study.found_again}
    if not study.shared_units.empty:
        for kind in kinds:
            figures[f"shared_{kind}"] = plots.shared_units(study, kind)
        figures["similarity"] = plots.pair_similarity(study)
        tables["Units shared within and between phenomena"] = study.phenomena
    filled = {title: table for title, table in tables.items() if not table.empty}
    return Section("consistency", study.findings, (), DEFINITIONS, figures, filled, study.provenance)


def sides(studies: Mapping[str, UnitStudy]) -> Sides:
    again: dict[str, pd.Series] = {}
    rows: dict[str, dict[Any, Any]] = {}
    for name, study in studies.items():
        grammar = study.found_again[study.found_again["control"] == "none"]
        again[name] = grammar.set_index("of")["overlap"]
        rows[name] = again[name].add_prefix("found_again_").to_dict()
    numbers = numbers_of(rows)
    heading = "The share of the top residual dimensions that other pairs find again"
    summary = extremes(heading, numbers["found_again_residual"], "{:.3f}")
    return Sides(DEFINITIONS, numbers, {"consistency": _found_again(again)}, summary)


def _found_again(again: Mapping[str, pd.Series]) -> Figure:
    """The share of the top units that other pairs find again, by kind of unit, mean over tasks."""
    out = figure("Top units found again by other pairs", "", "share of the top 1 %", subtitle="mean over tasks")
    draw_runs(out, {name: values.rename(KINDS) for name, values in again.items()}, list(again))
    return out.update_yaxes(rangemode="tozero")
