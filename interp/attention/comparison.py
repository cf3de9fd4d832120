"""What stands side by side of several results of `interp attention`."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from interp.attention.page import DEFINITIONS
from interp.attention.tables import AttentionStudy
from interp.figures.runs import DEPTH, Sides, by_depth, draw_runs, extremes, layers_of, numbers_of, shared
from interp.figures.style import CHANCE, CLASS_NAME, figure, plain, run_styles


def sides(studies: Mapping[str, AttentionStudy]) -> Sides:
    rows: dict[str, dict[str, Any]] = {}
    for name, study in studies.items():
        width = study.dims["dim"].nunique()
        share = study.gaps["n_dims_90_abs"].mean() / width
        rows[name] = {"n_dims": width, "n_outlier_dims": study.outliers["dim"].nunique(), "share_for_90": share}
        special = study.attention[study.attention["key_class"] != "other"]
        rows[name] |= {f"attention_{key}": value for key, value in special.groupby("key_class")["sum"].mean().items()}
        removed = study.ablation[(study.ablation["set"] == "outlier") & (study.ablation["key_class"] != "other")]
        rows[name]["largest_fall"] = (removed["attention_after"] - removed["attention_before"]).min()
    numbers = numbers_of(rows)
    classes = shared(studies, lambda one: [name for name in one.attention["key_class"].unique() if name != "other"])
    figures = {f"attention_{i}": _attention(having, name) for i, (name, having) in enumerate(classes)}
    figures["spread"] = _spread(studies)
    what = "The share of dimensions that makes 90 % of what sets a class of keys apart"
    return Sides(DEFINITIONS, numbers, figures, extremes(what, numbers["share_for_90"], "{:.0%}"))


def _attention(studies: Mapping[str, AttentionStudy], key_class: str) -> go.Figure:
    """Attention to a class of keys by depth, mean over heads; dotted what uniform attention would give."""
    out = figure(
        f"Attention to {plain(CLASS_NAME.get(key_class, key_class))}",
        DEPTH,
        "attention summed over the class",
        subtitle="mean over heads; dotted: uniform",
    )
    means = {
        name: study.attention[study.attention["key_class"] == key_class].groupby("layer")[["sum", "uniform"]].mean()
        for name, study in studies.items()
    }
    depth = {name: by_depth(table, layers_of(name, studies[name].provenance)) for name, table in means.items()}
    draw_runs(out, {name: table["sum"] for name, table in depth.items()}, list(studies))
    for name, style in run_styles(list(studies)).items():
        line = CHANCE | {"color": style["color"]}
        uniform = depth[name]["uniform"].round(4)
        out.add_scatter(
            x=uniform.index, y=uniform, mode="lines", line=line, legendgroup=style["name"], showlegend=False,
            hoverinfo="skip",
        )  # fmt: skip
    out.update_yaxes(rangemode="tozero")
    return out


def _spread(studies: Mapping[str, AttentionStudy]) -> go.Figure:
    """How many dimensions make 90 % of what sets a class of keys apart, as a share of all, by depth."""
    out = figure(
        "How many dimensions set a class apart",
        DEPTH,
        "share of dimensions for 90 %",
        subtitle="of the sum of |gap|; mean over heads and classes",
    )
    lines = {}
    for name, study in studies.items():
        share = study.gaps.groupby("layer")["n_dims_90_abs"].mean() / study.dims["dim"].nunique()
        lines[name] = by_depth(share, layers_of(name, study.provenance))
    draw_runs(out, lines, list(studies))
    out.update_yaxes(tickformat=".0%", rangemode="tozero")
    return out
