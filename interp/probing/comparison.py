"""What stands side by side of several results of `interp probing`."""

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from interp.figures.runs import DEPTH, Sides, draw_runs, extremes, layers_of, numbers_of, shared
from interp.figures.style import CHANCE, figure, run_styles
from interp.probing.page import DEFINITIONS
from interp.probing.tables import ProbingStudy

__all__ = ["sides"]

_PROBES = {"dense": "Dense probes", "l0": "Sparse probes", "dense_untrained": "Dense probes of untrained models"}


def sides(studies: Mapping[str, ProbingStudy]) -> Sides:
    rows, depth = {}, {}
    for name, study in studies.items():
        table, state = study.by_state.set_index("state"), study.provenance["state"]
        tested = {"n_tasks": len(study.tasks), "state": state, "model_accuracy": study.tasks["model_accuracy"].mean()}
        rows[name] = tested | table.loc[state].to_dict()
        depth[name] = table.set_axis(table.index / layers_of(name, study.provenance))
    common = shared(depth, lambda table: [measure for measure in _PROBES if measure in table])
    numbers, figures = numbers_of(rows), {measure: _probes(having, measure) for measure, having in common}
    best = numbers.filter(["dense", "l0", "topk"]).max(axis=1)
    what = "What the best probes add to a bag of words in accuracy"
    return Sides(DEFINITIONS, numbers, figures, extremes(what, best - numbers["bag_of_words"], "{:+z.3f}"))


def _probes(tables: Mapping[str, pd.DataFrame], measure: str) -> go.Figure:
    """Accuracy of probes by relative depth, mean over tasks, from the tables `by_state`; dotted a bag of words."""
    out = figure(_PROBES[measure], DEPTH, "accuracy", subtitle="mean over tasks; dotted: a bag of words")
    draw_runs(out, {name: table[measure] for name, table in tables.items()}, list(tables))
    for name, style in run_styles(list(tables)).items():
        words = tables[name]["bag_of_words"].round(4)
        out.add_scatter(
            x=words.index, y=words, mode="lines", line=CHANCE | {"color": style["color"]}, legendgroup=style["name"],
            showlegend=False, hoverinfo="skip",
        )  # fmt: skip
    return out
