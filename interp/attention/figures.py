"""Figures of question 2: dimensions of the residual stream and attention by token class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch

from interp.attention import AttentionStudy
from interp.checks import unicode_text
from interp.corpora.sentences import tokenizer_of
from interp.figures.style import (
    AMBER,
    BLUE,
    COLOURS,
    DIVERGING,
    GREY,
    INK,
    VERMILION,
    class_styles,
    figure,
    panels,
    ramp,
)
from interp.figures.views import safe, shielded
from interp.models import check_weights
from interp.models.head import token_names
from interp.models.qk import check_dims, qk_circuit
from interp.models.running import running
from interp.models.sites import Model, hook_name

_BLOCK = "layer (TransformerLens' block, from 0)"
_LINE = {"width": 2}
_NAMED = 6  # outlier dimensions that get a line of their own
_POINTS = 40  # dimensions shown for each head


def dimension_means(study: AttentionStudy) -> go.Figure:
    """Mean of every dimension by state: outlier dimensions as lines, the others as the range they fill (the paper's
    figure 1).
    """
    table = study.dims[study.dims["key_class"] == "all"].pivot(index="state", columns="dim", values="mean")
    named = _named(study)
    others = table.drop(columns=study.outliers["dim"].unique())
    states = table.index.to_list()
    out = figure(
        "Outlier dimensions of the residual stream",
        "hidden state (0: embeddings)",
        "mean over tokens",
        subtitle=f"outliers: more than {study.provenance['k']:g} SD from the mean over dimensions",
    )
    for low, high, name, alpha in ((0, 100, "all other dimensions", 0.12), (5, 95, "90 % of them", 0.2)):
        band = np.percentile(others, [low, high], axis=1).round(4)
        out.add_scatter(
            x=states + states[::-1],
            y=[*band[1], *band[0][::-1]],
            fill="toself",
            fillcolor=f"rgba(128,128,128,{alpha})",
            line={"width": 0},
            mode="lines",
            name=name,
            hoverinfo="skip",
        )
    for dim, colour in zip(named, COLOURS, strict=False):
        outlying = set(study.outliers.loc[study.outliers["dim"] == dim, "state"])
        out.add_scatter(
            x=states,
            y=table[dim].round(4),
            name=f"dimension {dim}",
            mode="lines+markers",
            line=_LINE | {"color": colour},
            marker={"size": [9 if state in outlying else 4 for state in states], "color": colour},
            hovertemplate=f"dimension {dim}<br>state %{{x}}<br>mean %{{y:.3f}}<extra></extra>",
        )
    out.update_xaxes(dtick=1 if len(states) <= 16 else 4)
    return out


def attention_by_layer(study: AttentionStudy) -> go.Figure:
    """Attention to each class by layer, averaged over heads, against what uniform attention would give (figure 2).

    The class `other` is left out: it is what remains.
    """
    table = study.attention.groupby(["layer", "key_class"], sort=False)[["sum", "uniform"]].mean().reset_index()
    ranges = study.attention.groupby(["layer", "key_class"])["sum"].agg(["min", "max"])
    names = [name for name in study.provenance["key_classes"] if name != "other"]
    out = figure(
        "Attention by class of the key",
        _BLOCK,
        "attention summed over the class",
        subtitle="mean and range over heads; dotted: uniform",
    )
    for number, (name, style) in enumerate(class_styles(names).items()):
        part = table[table["key_class"] == name]
        if part.empty:
            continue
        limits = ranges.loc[[(layer, name) for layer in part["layer"]]]
        out.add_scatter(
            x=part["layer"] + 0.1 * (number - (len(names) - 1) / 2),
            y=part["sum"].round(4),
            name=style["name"],
            legendgroup=name,
            mode="lines+markers",
            line=_LINE | {"color": style["color"]},
            marker={"size": 8, "symbol": style["symbol"]},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": (limits["max"].to_numpy() - part["sum"].to_numpy()).round(4),
                "arrayminus": (part["sum"].to_numpy() - limits["min"].to_numpy()).round(4),
                "thickness": 1,
                "width": 3,
            },
            hovertemplate="block %{x:.0f}<br>%{y:.3f}<extra>" + style["name"] + "</extra>",
        )
        out.add_scatter(
            x=part["layer"],
            y=part["uniform"].round(4),
            legendgroup=name,
            showlegend=False,
            mode="lines",
            line={"width": 1.2, "dash": "dot", "color": style["color"]},
            hoverinfo="skip",
        )
    out.update_yaxes(rangemode="tozero")
    out.update_xaxes(dtick=1 if table["layer"].nunique() <= 16 else 4)
    return out


def outlier_values(study: AttentionStudy, dims: Sequence[int] | None = None) -> go.Figure:
    """Mean of outlier dimensions by token class and state, a panel each (figure 3); the first three by default.

    Raises ValueError for a dimension that does not exist, and where there is no outlier to choose.
    """
    chosen = _named(study)[:3] if dims is None else list(dims)
    known = set(study.dims["dim"])
    if not chosen or not set(chosen) <= known:
        raise ValueError(f"expected dimensions in 0 … {max(known)}, found {chosen}")
    out = panels(
        "Outlier dimensions by token class",
        "hidden state",
        subtitle="mean over the tokens of a class; state 0: embeddings",
        names=[f"dimension {dim}" for dim in chosen],
    )
    table = study.dims[study.dims["dim"].isin(chosen) & (study.dims["key_class"] != "all")]
    for column, dim in enumerate(chosen, 1):
        for name, style in class_styles(study.provenance["key_classes"]).items():
            part = table[(table["dim"] == dim) & (table["key_class"] == name)]
            if part.empty:
                continue
            out.add_scatter(
                x=part["state"],
                y=part["mean"].round(4),
                name=style["name"],
                legendgroup=name,
                showlegend=column == 1,
                mode="lines+markers",
                line=_LINE | {"color": style["color"], "dash": style["dash"]},
                marker={"size": 6, "symbol": style["symbol"]},
                hovertemplate="state %{x}<br>%{y:.3f}<extra>" + style["name"] + "</extra>",
                row=1,
                col=column,
            )
    out.update_yaxes(title_text="mean", col=1)
    out.update_layout(margin_t=96)
    return out


def contributions(study: AttentionStudy, layer: int, key_class: str) -> go.Figure:
    """Mean contribution of each dimension to the scores of one class of keys, for all heads of a layer (figures 4, 5).

    The forty largest of each head are drawn; outlier dimensions of the state that enters the layer are named.

    Raises ValueError for a layer or class that is not in the study.
    """
    part = _scores(study, layer, key_class)
    style = class_styles(study.provenance["key_classes"])[key_class]
    unit = "nats" if study.provenance["scaled"] else "score × √d_head"
    out = figure(
        f"Scores of {style['name']} keys by dimension",
        "dimension of the residual stream",
        f"mean contribution, {unit}",
        subtitle=f"block {layer}; {_POINTS} largest of each head; dotted: outliers",
    )
    heads = sorted(part["head"].unique())
    colours = ramp([i / max(1, len(heads) - 1) for i in range(len(heads))])
    shown = part.loc[part.groupby("head")["mean"].transform(lambda mean: mean.abs().rank(ascending=False)) <= _POINTS]
    for head, colour in zip(heads, colours, strict=True):
        of_head = shown[shown["head"] == head]
        out.add_scatter(
            x=of_head["dim"],
            y=of_head["mean"].round(4),
            name=f"L{layer}H{head}",
            mode="markers",
            marker={"size": 7, "color": colour, "symbol": int(head) % 8, "opacity": 0.8},
            hovertemplate="dimension %{x}<br>%{y:.3f}<extra>" + f"L{layer}H{head}</extra>",
        )
    outlying = study.outliers.loc[study.outliers["state"] == layer].sort_values("rank")["dim"].head(_NAMED)
    for dim in outlying:
        out.add_vline(x=dim, line={"width": 1, "dash": "dot", "color": INK}, annotation_text=str(dim))
    out.add_hline(y=0, line={"width": 1, "color": GREY})
    return out


def contribution_table(study: AttentionStudy, layer: int, dim: int) -> go.Figure:
    """What one dimension contributes to the scores of one layer, head by class (the paper's table 1).

    Raises ValueError for a layer or dimension that is not in the study.
    """
    part = _scores(study, layer, None)
    part = part[part["dim"] == dim]
    if part.empty:
        raise ValueError(f"dimension {dim} is not in this study; expected 0 … {int(study.scores['dim'].max())}")
    classes = [name for name in study.provenance["key_classes"] if name in set(part["key_class"])]
    grid = part.pivot(index="head", columns="key_class", values="mean")[classes]
    limit = float(np.abs(grid.to_numpy()).max()) or 1.0
    out = figure(
        f"Dimension {dim} in block {layer}",
        "class of the key",
        "head",
        subtitle="mean contribution to the score",
    )
    out.add_heatmap(
        z=grid.to_numpy().round(3),
        x=[class_styles(classes)[name]["name"] for name in classes],
        y=[f"L{layer}H{head}" for head in grid.index],
        zmin=-limit,
        zmax=limit,
        colorscale=DIVERGING,
        texttemplate="%{z:.2f}",
        hovertemplate="%{y}, %{x}<br>%{z:.3f}<extra></extra>",
        colorbar={"title": {"text": "C"}, "thickness": 12},
    )
    out.update_yaxes(type="category", autorange="reversed", gridcolor="rgba(0,0,0,0)")
    return out


def ablation(study: AttentionStudy, key_class: str) -> go.Figure:
    """Change of attention to a class when a dimension is removed from a layer's keys: outliers against controls.

    Raises ValueError for a class that is not in the table, and where no layer had an outlier.
    """
    table = study.ablation[study.ablation["key_class"] == key_class]
    if table.empty:
        raise ValueError(
            f"no ablation for class {key_class!r}; found {', '.join(study.ablation['key_class'].unique())}"
        )
    name = class_styles(study.provenance["key_classes"])[key_class]["name"]
    out = figure(
        f"{name}: a key dimension removed",
        _BLOCK,
        "change of attention",
        subtitle="mean over heads; a point a dimension, set to "
        + ("its mean" if study.provenance["mode"] == "mean" else "zero"),
    )
    looks = {"random": (GREY, "circle-open", -0.24), "matched": (AMBER, "diamond-open", -0.08)}
    looks |= {"outlier": (VERMILION, "square", 0.08), "driver": (BLUE, "triangle-up", 0.24)}
    names = {"outlier": "outlier dimensions", "driver": "largest gap", "matched": "matched magnitude"}
    for kind, (colour, symbol, offset) in looks.items():
        part = table[table["set"] == kind]
        out.add_scatter(
            x=part["layer"] + offset,
            y=(part["attention_after"] - part["attention_before"]).round(5),
            name=names.get(kind, kind),
            mode="markers",
            marker={"size": 9, "color": colour, "symbol": symbol, "line": {"width": 1.5, "color": colour}},
            customdata=np.stack([part["dim"], part["magnitude"].round(3)], -1),
            hovertemplate="dimension %{customdata[0]} (RMS %{customdata[1]})<br>change %{y:.4f}<extra></extra>",
        )
    out.add_hline(y=0, line={"width": 1, "color": GREY})
    return out


@torch.no_grad()
def attention_view(model: Model, text: str, layer: int, dim: int) -> Any:
    """Attention patterns of a layer beside what one dimension of the key contributes to their scores (circuitsvis).

    For each head two panels: its pattern, and the dimension's contribution to each score in nats, less its mean over
    the keys that the query sees; divided by the largest magnitude, which the panel's name gives.

    Raises ValueError for a layer or dimension that does not exist, where scores are no sum over dimensions, for a model
    without tokenizer or with weights that are not finite, and for a text without tokens or longer than the context.
    """
    from circuitsvis.attention import attention_heads

    check_dims(model, [dim])
    check_weights(model)
    circuit = qk_circuit(model, layer)
    tokens = tokenizer_of(model)(unicode_text(text, "text"), return_tensors="pt")["input_ids"].to(model.W_U.device)
    if not 1 <= tokens.shape[1] <= model.cfg.n_ctx:
        raise ValueError(f"text has {tokens.shape[1]} tokens; expected 1 … {model.cfg.n_ctx} for this model")
    seen: dict[str, torch.Tensor] = {}
    names = {"input": circuit.input_name, "q": circuit.query_name, "pattern": hook_name(model, "pattern", layer)}

    def keep(key: str) -> Any:
        return lambda activation, hook: seen.update({key: activation})

    with running(model, [(name, keep(key)) for key, name in names.items()]):
        model(tokens)
    x = circuit.attn_input(seen["input"])
    direction = circuit.rotate(circuit.W_K[:, dim].expand(1, x.shape[1], -1, -1))[0]
    scores = torch.einsum("mhe,nhe->hmn", seen["q"][0], direction) * x[0, :, dim] / circuit.scale
    visible = circuit.span.mask(x.shape[1]).to(scores.device)
    scores = (scores - (scores * visible).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)) * visible
    panels, labels = [], []
    for head in range(len(scores)):
        limit = scores[head].abs().max().clamp(min=1e-9)
        panels += [seen["pattern"][0, head], scores[head] / limit]
        labels += [f"L{layer}H{head}", f"dim {dim} ±{limit:.1f}"]
    view = attention_heads(
        attention=torch.stack(panels).float().cpu().numpy(),
        tokens=shielded(token_names(model, tokens[0].tolist())),
        attention_head_names=labels,
        min_value=-1.0,
        max_value=1.0,
        mask_upper_tri=circuit.span.causal,
    )
    return safe(view)


def _named(study: AttentionStudy) -> list[int]:
    return study.outliers.sort_values("rank")["dim"].drop_duplicates().head(_NAMED).tolist()


def _scores(study: AttentionStudy, layer: int, key_class: str | None) -> Any:
    part = study.scores[study.scores["layer"] == layer]
    if part.empty:
        raise ValueError(f"layer {layer} is not in this study; found {study.provenance['layers']}")
    if key_class is None:
        return part
    part = part[part["key_class"] == key_class]
    if part.empty:
        found = ", ".join(study.scores["key_class"].unique())
        raise ValueError(f"class {key_class!r} is not in this study; found {found}")
    return part
