"""What stands side by side of several results of `interp attention`."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from interp.attention.page import DEFINITIONS
from interp.attention.tables import AttentionStudy
from interp.figures.draw import add_series
from interp.figures.runs import DEPTH, Sides, by_depth, draw_runs, extremes, layers_of, numbers_of, shared
from interp.figures.style import CHANCE, CLASS_NAME, figure, plain, run_styles

__all__ = ["sides"]


def sides(studies: Mapping[str, AttentionStudy]) -> Sides:
    rows: dict[str, dict[str, Any]] = {}
    for name, study in studies.items():
        width = study.dims["dim"].nunique()
        share = study.gaps["n_dims_90_abs"].mean() / width
        rows[name] = {"n_dims": width, "n_outlier_dims": study.outliers["dim"].nunique(), "share_for_90": share}
        means = study.attention.groupby("key_class")["sum"].mean().drop("other", errors="ignore")
        rows[name] |= {f"attention_{key}": value for key, value in means.items()}
        rows[name]["largest_fall"] = study.changes.loc[study.changes["set"] == "outlier", "change"].min()
    numbers = numbers_of(rows)
    classes = shared(studies, lambda one: one.special)
    figures = {f"attention_{i}": _attention(having, name) for i, (name, having) in enumerate(classes)}
    figures["spread"] = _spread(studies)
    what = "The share of dimensions that makes 90 % of what sets a class of keys apart"
    return Sides(DEFINITIONS, numbers, figures, extremes(what, numbers["share_for_90"], "{:.0%}"))


def _attention(studies: Mapping[str, AttentionStudy], key_class: str) -> go.Figure:
    """Attention to a class of keys by depth, mean over heads; dotted what uniform attention would give."""
    title, y = f"Attention to {plain(CLASS_NAME.get(key_class, key_class))}", "attention summed over the class"
    out = figure(title, DEPTH, y, subtitle="mean over heads; dotted: uniform")
    depth = {}
    for name, study in studies.items():
        means = study.attention[study.attention["key_class"] == key_class].groupby("layer")[["sum", "uniform"]].mean()
        depth[name] = by_depth(means, layers_of(name, study.provenance))
    draw_runs(out, {name: table["sum"] for name, table in depth.items()}, list(studies))
    for name, style in run_styles(list(studies)).items():
        dotted = CHANCE | {"name": style["name"], "color": style["color"]}
        add_series(out, depth[name]["uniform"].round(4), dotted, legend=False, hoverinfo="skip")
    out.update_yaxes(rangemode="tozero")
    return out


def _spread(studies: Mapping[str, AttentionStudy]) -> go.Figure:
    """How many dimensions make 90 % of what sets a class of keys apart, as a share of all, by depth."""
    subtitle = "of the sum of |gap|; mean over heads and classes"
    out = figure("How many dimensions set a class apart", DEPTH, "share of dimensions for 90 %", subtitle=subtitle)
    lines = {}
    for name, study in studies.items():
        share = study.gaps.groupby("layer")["n_dims_90_abs"].mean() / study.dims["dim"].nunique()
        lines[name] = by_depth(share, layers_of(name, study.provenance))
    draw_runs(out, lines, list(studies))
    out.update_yaxes(tickformat=".0%", rangemode="tozero")
    return out
