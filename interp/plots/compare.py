"""Figures of several runs side by side, one trace a run; the runs come as results by name."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from interp.encoding import EncodingStudy
from interp.frequency import BiasEffect
from interp.generation import GenerationSweep
from interp.lm_head import Bias
from interp.outliers import AttentionStudy
from interp.plots.style import (
    BIAS_NAME,
    CHANCE,
    CLASS_NAME,
    DECODER_NAME,
    GREY,
    figure,
    plain,
    run_styles,
)

_DEPTH = "relative depth (1: after the last layer)"


def kl(effects: Mapping[str, BiasEffect], bias: Bias = "ln") -> go.Figure:
    """KL(u‖q) against the scale of a bias."""
    out = figure(f"Distance from word frequency as {BIAS_NAME[bias]} goes", "scale λ of the bias", "KL(u‖q), nats")
    lines = {
        name: effect.kl[effect.kl["bias"] == bias].set_index("scale")["kl_unigram_model"].sort_index()
        for name, effect in effects.items()
    }
    _draw(out, lines, list(effects))
    out.update_yaxes(rangemode="tozero")
    return out


def diversity(sweeps: Mapping[str, GenerationSweep], decoder: str) -> go.Figure:
    """Diversity of a decoder's texts against the scale of b_LN."""
    name = plain(DECODER_NAME.get(decoder, decoder))
    out = figure(f"Diversity of the text, {name}", "scale λ of b<sub>LN</sub>", "diversity D = ¼ Σ distinct-n")
    lines = {
        run: sweep.metrics[sweep.metrics["decoder"] == decoder].set_index("scale")["diversity"].sort_index()
        for run, sweep in sweeps.items()
    }
    _draw(out, lines, list(sweeps))
    return out


def attention(studies: Mapping[str, AttentionStudy], key_class: str) -> go.Figure:
    """Attention to a class of keys by depth, mean over heads; dotted what uniform attention would give."""
    out = figure(
        f"Attention to {plain(CLASS_NAME.get(key_class, key_class))}",
        _DEPTH,
        "attention summed over the class",
        subtitle="mean over heads; dotted: uniform",
    )
    means = {
        name: study.attention[study.attention["key_class"] == key_class].groupby("layer")[["sum", "uniform"]].mean()
        for name, study in studies.items()
    }
    depth = {name: _by_depth(table, _layers(name, studies[name].provenance)) for name, table in means.items()}
    _draw(out, {name: table["sum"] for name, table in depth.items()}, list(studies))
    for name, style in run_styles(list(studies)).items():
        line = CHANCE | {"color": style["color"]}
        uniform = depth[name]["uniform"].round(4)
        out.add_scatter(
            x=uniform.index, y=uniform, mode="lines", line=line, legendgroup=style["name"], showlegend=False,
            hoverinfo="skip",
        )  # fmt: skip
    out.update_yaxes(rangemode="tozero")
    return out


def spread(studies: Mapping[str, AttentionStudy]) -> go.Figure:
    """How many dimensions make 90 % of what sets a class of keys apart, as a share of all, by depth."""
    out = figure(
        "How many dimensions set a class apart",
        _DEPTH,
        "share of dimensions for 90 %",
        subtitle="of the sum of |gap|; mean over heads and classes",
    )
    lines = {}
    for name, study in studies.items():
        share = study.gaps.groupby("layer")["n_dims_90_abs"].mean() / study.dims["dim"].nunique()
        lines[name] = _by_depth(share, _layers(name, study.provenance))
    _draw(out, lines, list(studies))
    out.update_yaxes(tickformat=".0%", rangemode="tozero")
    return out


def fit(studies: Mapping[str, EncodingStudy]) -> go.Figure:
    """Adjusted R² of −log α on the output embeddings, and that of α shuffled."""
    out = figure("Token probability from the output embedding", "adjusted R² of −log α", "")
    for name, style in run_styles(list(studies)).items():
        r2 = studies[name].regression.set_index("target")["adj_r2"]
        for target, marker in (
            ("-log alpha", {"color": style["color"], "symbol": style["symbol"], "size": 12}),
            ("shuffled", {"color": GREY, "symbol": "circle-open", "size": 10}),
        ):
            out.add_scatter(
                x=[round(float(r2[target]), 4)], y=[style["name"]], mode="markers", marker=marker,
                name="α shuffled" if target == "shuffled" else style["name"],
                showlegend=target == "shuffled" and name == next(iter(studies)),
                hovertemplate="%{x:.3f}<extra></extra>",
            )  # fmt: skip
    out.update_yaxes(autorange="reversed", type="category")
    return out


def pruning(studies: Mapping[str, EncodingStudy], basis: str = "axis", order: str = "spearman") -> go.Figure:
    """Top-1 agreement against the fraction of dimensions removed, least tied to probability first."""
    axes = "axes of W_U" if basis == "axis" else "principal axes"
    out = figure("Output dimensions removed", "fraction removed", "top-1 agreement", subtitle=f"{axes}, by |{order}|")
    lines = {}
    for name, study in studies.items():
        part = study.pruning[(study.pruning["basis"] == basis) & (study.pruning["order"] == order)]
        lines[name] = part.set_index("fraction")["top1_agreement"].sort_index()
    _draw(out, lines, list(studies))
    out.update_xaxes(tickformat=".0%")
    out.update_yaxes(rangemode="tozero")
    return out


def probes(
    by_state: Mapping[str, pd.DataFrame], measure: str, title: str, provenance: Mapping[str, dict[str, Any]]
) -> go.Figure:
    """Accuracy of probes by depth, mean over tasks, from tables of `interp.report.by_state`; dotted a bag of words."""
    out = figure(title, _DEPTH, "accuracy", subtitle="mean over tasks; dotted: a bag of words")
    depth = {
        name: table.set_index(table["state"] / _layers(name, provenance[name])) for name, table in by_state.items()
    }
    _draw(out, {name: table[measure] for name, table in depth.items()}, list(by_state))
    for name, style in run_styles(list(by_state)).items():
        words = depth[name]["bag_of_words"].round(4)
        line = CHANCE | {"color": style["color"]}
        out.add_scatter(
            x=words.index, y=words, mode="lines", line=line, legendgroup=style["name"], showlegend=False,
            hoverinfo="skip",
        )  # fmt: skip
    return out


def _draw(out: go.Figure, lines: Mapping[str, pd.Series], names: list[str]) -> None:
    for name, style in run_styles(names).items():
        values = lines[name].round(5)
        out.add_scatter(
            x=values.index, y=values, name=style["name"], legendgroup=style["name"], mode="lines+markers",
            line={"width": 2, "color": style["color"], "dash": style["dash"]}, showlegend=True,
            marker={"size": 7, "symbol": style["symbol"]},
            hovertemplate="%{x:.3g}: %{y:.4g}<extra>" + style["name"] + "</extra>",
        )  # fmt: skip


def _layers(run: str, provenance: Mapping[str, Any]) -> int:
    """How many layers the model of a run has."""
    if "n_layers" not in provenance:
        raise ValueError(
            f"the provenance of {run} does not say how many layers its model has (n_layers): it was saved by another "
            "version of interp; make it again"
        )
    return int(provenance["n_layers"])


def _by_depth(table: Any, n_layers: int) -> Any:
    """With the relative depth after each layer as index."""
    return table.set_axis((table.index + 1) / n_layers)
