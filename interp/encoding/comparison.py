"""What stands side by side of several results of `interp encoding`."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from interp.encoding.page import DEFINITIONS
from interp.encoding.tables import EncodingStudy
from interp.figures.draw import add_series, only
from interp.figures.runs import Sides, draw_runs, extremes, numbers_of, shared
from interp.figures.style import GREY, figure, run_styles

__all__ = ["sides"]

_PRUNED = 0.3  # by the paper


def sides(studies: Mapping[str, EncodingStudy]) -> Sides:
    rows: dict[str, dict[str, Any]] = {}
    for name, study in studies.items():
        r2 = study.regression.set_index("target")["adj_r2"]
        rows[name] = {"adj_r2": r2["-log alpha"], "adj_r2_shuffled": r2["shuffled"]}
        for basis, part in _ranked(study).groupby("basis", sort=False):
            at = part.iloc[(part["fraction"] - _PRUNED).abs().argmin()]
            rows[name][f"top1_without_{at['fraction']:.0%}_{basis}"] = at["top1_agreement"]
        fitted = study.steering_error.query("text == 'fitted'").set_index("shift")["all"]
        rows[name] |= {f"steering_{shift}": value for shift, value in fitted.items()}
    numbers = numbers_of(rows)
    figures = {"fit": _fit(studies)}
    for basis, having in shared(studies, lambda one: _ranked(one)["basis"].unique()):
        figures[f"pruning_{basis}"] = _pruning(having, basis)
    what = "Adjusted R² of −log α on the output embeddings"
    return Sides(DEFINITIONS, numbers, figures, extremes(what, numbers["adj_r2"], "{:.3f}"))


def _ranked(study: EncodingStudy) -> pd.DataFrame:
    return study.pruning.query("order == 'spearman'")


def _fit(studies: Mapping[str, EncodingStudy]) -> go.Figure:
    """Adjusted R² of −log α on the output embeddings, and that of α shuffled."""
    out = figure("Token probability from the output embedding", "adjusted R² of −log α", "")
    chance = {"name": "α shuffled", "color": GREY, "symbol": "circle-open"}
    for number, (name, style) in enumerate(run_styles(list(studies)).items()):
        r2 = studies[name].regression.set_index("target")["adj_r2"].round(4)
        for target, look, size, in_legend in (("-log alpha", style, 12, False), ("shuffled", chance, 10, not number)):
            point = pd.Series(style["name"], [r2[target]])
            how: dict[str, Any] = {"hover": "%{x:.3f}<extra></extra>", "mode": "markers", "showlegend": in_legend}
            add_series(out, point, look, size=size, **how)
    out.update_yaxes(autorange="reversed", type="category")
    return out


def _pruning(studies: Mapping[str, EncodingStudy], basis: str) -> go.Figure:
    """Top-1 agreement against the fraction of dimensions removed, least tied to probability first."""
    axes = "axes of W_U" if basis == "axis" else "principal axes"
    out = figure("Output dimensions removed", "fraction removed", "top-1 agreement", subtitle=f"{axes}, by |spearman|")
    ranked = {name: only(_ranked(study), "basis", basis) for name, study in studies.items()}
    lines = {name: table.set_index("fraction")["top1_agreement"].sort_index() for name, table in ranked.items()}
    draw_runs(out, lines, list(studies))
    return out.update_xaxes(tickformat=".0%").update_yaxes(rangemode="tozero")
