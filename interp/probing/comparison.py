"""What stands side by side of several results of `interp probing`."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from interp.figures.runs import DEPTH, Sides, draw_runs, extremes, layers_of, numbers_of, shared
from interp.figures.style import CHANCE, figure, run_styles
from interp.probing.page import DEFINITIONS
from interp.probing.tables import ProbingStudy

_PROBES = {"dense": "Dense probes", "l0": "Sparse probes", "dense_untrained": "Dense probes of untrained models"}


def sides(studies: Mapping[str, ProbingStudy]) -> Sides:
    tables = {name: study.by_state for name, study in studies.items()}
    rows: dict[str, dict[str, Any]] = {}
    for name, study in studies.items():
        state = study.provenance["state"]
        rows[name] = {
            "n_tasks": len(study.tasks),
            "state": state,
            "model_accuracy": study.tasks["model_accuracy"].mean(),
        }
        rows[name] |= tables[name].set_index("state").loc[state].to_dict()
    numbers = numbers_of(rows)
    figures = {
        measure: _probes(having, measure, _PROBES[measure], {name: studies[name].provenance for name in having})
        for measure, having in shared(tables, lambda one: [name for name in _PROBES if name in one])
    }
    best = numbers.filter(["dense", "l0", "topk"]).max(axis=1)
    what = "What the best probes add to a bag of words in accuracy"
    return Sides(DEFINITIONS, numbers, figures, extremes(what, best - numbers["bag_of_words"], "{:+z.3f}"))


def _probes(
    by_state: Mapping[str, pd.DataFrame], measure: str, title: str, provenance: Mapping[str, dict[str, Any]]
) -> go.Figure:
    """Accuracy of probes by depth, mean over tasks, from tables of `interp.pages.by_state`; dotted a bag of words."""
    out = figure(title, DEPTH, "accuracy", subtitle="mean over tasks; dotted: a bag of words")
    depth = {
        name: table.set_index(table["state"] / layers_of(name, provenance[name])) for name, table in by_state.items()
    }
    draw_runs(out, {name: table[measure] for name, table in depth.items()}, list(by_state))
    for name, style in run_styles(list(by_state)).items():
        words = depth[name]["bag_of_words"].round(4)
        line = CHANCE | {"color": style["color"]}
        out.add_scatter(
            x=words.index, y=words, mode="lines", line=line, legendgroup=style["name"], showlegend=False,
            hoverinfo="skip",
        )  # fmt: skip
    return out
