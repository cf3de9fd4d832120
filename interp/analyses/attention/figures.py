"""Figures of question 2: dimensions of the residual stream and attention by token class."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from interp.analyses.attention import AttentionStudy
from interp.analyses.attention.patterns import AttentionInText
from interp.figures.draw import add_band, add_grid, add_series, error_bars, only
from interp.figures.figure import Figure
from interp.figures.style import (
    BLUE,
    COLOURS,
    GREY,
    INK,
    LAYER,
    THIN,
    VERMILION,
    class_styles,
    figure,
    panels,
    plain,
    ramp,
    translucent,
    whole_ticks,
)
from interp.figures.views import as_html
from interp.support.choices import Several, listed

__all__ = ["ablation", "all_contributions", "attention_by_layer", "attention_view", "contribution_table"]
__all__ += ["contributions", "contributions_by_layer", "dimension_means", "means_by_dimension", "outlier_contributions"]
__all__ += ["outlier_values"]

_DIMENSION = "dimension of the residual stream"
_IN_ROW = 4  # panels per row
_NAMED = 6  # outlier dimensions that get a line of their own
_POINTS = 40  # dimensions shown for each head
_REMOVED = {
    "random": {"name": "random", "color": GREY, "symbol": "circle-open"},
    "outlier": {"name": "outlier dimensions", "color": VERMILION, "symbol": "square"},
    "driver": {"name": "largest gap", "color": BLUE, "symbol": "triangle-up"},
}


def dimension_means(study: AttentionStudy) -> Figure:
    """Plot the mean of every dimension by state: outlier dimensions as lines, the others as the range they fill (see
    `means_by_dimension` for the paper's figure 1).

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"own": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, k=1.5, progress=False)
        >>> lines = [trace.name for trace in dimension_means(study).data if str(trace.name).startswith("dimension")]
        >>> len(lines) == study.outliers["dim"].nunique()
        True
    """
    table = study.dims[study.dims["key_class"] == "all"].pivot(index="state", columns="dim", values="mean")
    ordinary = table.drop(columns=study.outliers["dim"].unique())
    measure = "robust SD from the median" if study.rule == "robust" else "SD from the mean"
    subtitle = f"outliers: more than {study.provenance['k']:.3g} {measure} over dimensions"
    title = "Outlier dimensions of the residual stream"
    out = figure(title, "hidden state (0: embeddings)", "mean over tokens", subtitle=subtitle)
    for lower, upper, name, alpha in ((0, 1, "all other dimensions", 0.12), (0.05, 0.95, "90 % of them", 0.2)):
        low = ordinary.quantile(lower, axis=1).round(4)
        high = ordinary.quantile(upper, axis=1).round(4)
        add_band(out, low, high, f"rgba(128,128,128,{alpha})", name=name)
    for dim, colour in zip(_named(study), COLOURS, strict=False):
        outlying = table.index.isin(study.outliers.loc[study.outliers["dim"] == dim, "state"])
        style = {"name": f"dimension {dim}", "color": colour, "symbol": "circle"}
        hover = f"dimension {dim}<br>state %{{x}}<br>mean %{{y:.3f}}<extra></extra>"
        add_series(out, table[dim].round(4), style, hover=hover, size=np.where(outlying, 9, 4))
    return out.update_xaxes(whole_ticks(len(table)))


def means_by_dimension(study: AttentionStudy) -> Figure:
    """Plot the mean of every dimension, one line for each state (the paper's figure 1).

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"own": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> [(line.name, len(line.x)) for line in means_by_dimension(study).data]
        [('state 0', 16), ('state 1', 16), ('state 2', 16)]
    """
    table = study.dims[study.dims["key_class"] == "all"].pivot(index="state", columns="dim", values="mean")
    subtitle = "one line for each hidden state (0: embeddings); dotted: outliers in most states"
    out = figure("Mean of every dimension", _DIMENSION, "mean over tokens", subtitle=subtitle)
    for colour, (state, means) in zip(ramp(len(table))[::-1], table.iterrows(), strict=True):
        style = {"name": f"state {state}", "color": colour, "width": 1.2}
        add_series(out, means.round(4), style, hover="dimension %{x}<br>mean %{y:.3f}")
    _mark(out, _named(study)[:3])
    return out


def attention_by_layer(study: AttentionStudy, classes: Several[str] | None = None) -> Figure:
    """Plot attention to each class by layer, averaged over heads, against what uniform attention would give (figure 2).

    Args:
        classes: to draw; all but `other` by default, which is what remains. The paper draws it too.

    Raises ValueError for a class that is not in the study.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"one": [7], "two": [8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> [trace.name for trace in attention_by_layer(study).data if trace.showlegend]
        ['one', 'two']
    """
    subtitle = "mean over heads, 95 % interval; bars: range over heads; dotted: uniform"
    out = figure("Attention by class of the key", LAYER, "attention summed over the class", subtitle=subtitle)
    names = study.special if classes is None else listed(classes)
    styles = class_styles(study.provenance["key_classes"])
    for number, name in enumerate(names):
        shift = 0.1 * (number - (len(names) - 1) / 2)
        mean = only(study.by_layer, "key_class", name).set_index("layer").round(4)
        style = styles[name]
        heads = only(study.attention, "key_class", name).groupby("layer")["sum"]
        bars = error_bars(mean["sum"], heads.min().round(4), heads.max().round(4))
        mean.index += shift
        if mean["sum_low"].notna().all():
            band = translucent(style["color"], 0.2)
            add_band(out, mean["sum_low"], mean["sum_high"], band, legendgroup=name, showlegend=False)
        add_series(out, mean["sum"], style, hover="block %{x:.0f}<br>%{y:.3f}", size=8, legend=True, error_y=bars)
        dotted = dict(style, dash="dot", width=1.2, symbol=None)
        add_series(out, mean["uniform"], dotted, legend=False, hoverinfo="skip")
    out.update_xaxes(whole_ticks(study.attention["layer"].nunique()))
    return out.update_yaxes(rangemode="tozero")


def outlier_values(study: AttentionStudy, dims: Several[int] | None = None) -> Figure:
    """Plot the mean of outlier dimensions by token class and state, with one panel each (figure 3); the first three by
    default.

    Raises ValueError for a dimension that does not exist, and if there is no outlier to choose.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"own": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> [panel.text for panel in outlier_values(study, dims=[3, 5]).layout.annotations]
        ['dimension 3', 'dimension 5']
    """
    chosen = _named(study)[:3] if dims is None else listed(dims)
    all_dims = set(study.dims["dim"])
    if not chosen or not set(chosen) <= all_dims:
        raise ValueError(f"expected dimensions in 0 … {max(all_dims)}, found {chosen}")
    names = [f"dimension {dim}" for dim in chosen]
    subtitle = "mean over the tokens of a class; state 0: embeddings"
    out = panels("Outlier dimensions by token class", "hidden state", subtitle=subtitle, names=names)
    for panel, dim in enumerate(chosen, 1):
        of_dim = study.dims[study.dims["dim"] == dim].set_index("state")
        for name, style in class_styles(study.provenance["key_classes"]).items():
            mean = of_dim.loc[of_dim["key_class"] == name, "mean"].round(4)
            add_series(out, mean, style, hover="state %{x}<br>%{y:.3f}", legend=panel == 1, panel=panel)
    out.update_yaxes(title_text="mean", col=1)
    return out.update_layout(margin_t=96)


def contributions(study: AttentionStudy, layer: int, key_class: str) -> Figure:
    """Plot the mean contribution of each dimension to the scores of one class of keys, for all heads of a layer.

    The forty largest of each head are drawn; outlier dimensions of the state that enters the layer are named. The class
    `all` has all keys; `all_contributions` draws every dimension.

    Raises ValueError for a layer or class that is not in the study.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"own": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> [trace.name for trace in contributions(study, layer=1, key_class="own").data]
        ['L1H0', 'L1H1', 'L1H2', 'L1H3']
    """
    part = study.scores(layer=layer, key_class=key_class)
    subtitle = f"block {layer}; the {_POINTS} largest of each head; dotted: outlier dimensions"
    out = figure(_scores_of(study, key_class), _DIMENSION, f"mean contribution, {_unit(study)}", subtitle=subtitle)
    largest = part[part["mean"].abs().groupby(part["head"]).rank(ascending=False) <= _POINTS].set_index("dim")
    colours = ramp(part["head"].nunique())
    for number, (head, means) in enumerate(largest.groupby("head")["mean"]):
        style = {"name": f"L{layer}H{head}", "color": colours[number], "symbol": number % 8}
        hover = "dimension %{x}<br>%{y:.3f}"
        marker = {"opacity": 0.8}
        add_series(out, means.round(4), style, hover=hover, size=7, mode="markers", marker=marker)
    _mark(out, _outlying(study, layer))
    return out.add_hline(y=0, line=THIN)


def all_contributions(study: AttentionStudy, layer: int, key_class: str = "all") -> Figure:
    """Plot the mean contribution of every dimension, a line for each head of a layer, over all keys (the paper's figure
    4).

    Args:
        key_class: the class of keys; by default all keys.

    Raises ValueError for a layer or class that is not in the study.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"own": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> [(line.name, len(line.x)) for line in all_contributions(study, layer=1).data]
        [('L1H0', 16), ('L1H1', 16), ('L1H2', 16), ('L1H3', 16)]
    """
    heads = study.scores(layer=layer, key_class=key_class).set_index("dim").groupby("head")["mean"]
    subtitle = f"block {layer}; one line for each head; dotted: outlier dimensions"
    out = figure(_scores_of(study, key_class), _DIMENSION, f"mean contribution, {_unit(study)}", subtitle=subtitle)
    for colour, (head, means) in zip(ramp(len(heads)), heads, strict=True):
        style = {"name": f"L{layer}H{head}", "color": colour, "width": 1}
        add_series(out, means.round(3), style, hover="dimension %{x}<br>%{y:.3f}")
    _mark(out, _outlying(study, layer))
    return out


def contributions_by_layer(study: AttentionStudy, key_class: str = "all") -> Figure:
    """Plot the mean contribution of every dimension, a panel per layer (the paper's figure 5): mean over heads, and
    their range.

    Raises ValueError for a class that is not in the study.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"own": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> [panel.text for panel in contributions_by_layer(study).layout.annotations if "block" in panel.text]
        ['block 0', 'block 1']
    """
    layers = study.scores.arrays.indexes["layer"].tolist()
    wide = min(_IN_ROW, len(layers))
    title = _scores_of(study, key_class)
    subtitle = "mean and range over heads; dotted: outlier dimensions"
    out = panels(title, "dimension", subtitle=subtitle, names=[f"block {layer}" for layer in layers], columns=wide)
    for number, layer in enumerate(layers):
        heads = study.scores(layer=layer, key_class=key_class).groupby("dim")["mean"]
        low = heads.min().round(3)
        mean = heads.mean().round(3)
        high = heads.max().round(3)
        place: dict[str, Any] = {"row": number // wide + 1, "col": number % wide + 1}
        look = {"showlegend": False, "legendgroup": "range"}
        add_band(out, low, high, "rgba(128,128,128,0.35)", name="range", **look, **place)
        hover = f"block {layer}, dimension %{{x}}<br>%{{y:.3f}}<extra></extra>"
        out.add_scatter(x=mean.index, y=mean, line={"color": BLUE, "width": 1}, hovertemplate=hover, **look, **place)
        _mark(out, _outlying(study, layer)[:3], **place)
    out.update_yaxes(title_text=_unit(study), col=1)
    return out.update_layout(height=120 + 220 * -(-len(layers) // wide), margin_t=96)


def outlier_contributions(study: AttentionStudy, layer: int, dims: Several[int] | None = None) -> Figure:
    """Show what each outlier dimension contributes to the scores of one layer, by class and head (the paper's table 1).

    Args:
        dims: by default the outlier dimensions of the state that enters the layer, at most six.

    Raises ValueError for a layer or dimension that is not in the study, and if there is no outlier to choose.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"own": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> outlier_contributions(study, layer=1, dims=[3, 5]).data[0].z.shape  # heads; dimensions and classes
        (4, 4)
    """
    chosen = _outlying(study, layer) if dims is None else listed(dims)
    if not chosen:
        raise ValueError(f"no dimension is an outlier in state {layer}, which enters block {layer}; give dims")
    return _contribution_grid(study, layer, chosen, "outlier dimensions add")


def contribution_table(study: AttentionStudy, layer: int, dim: int) -> Figure:
    """Show what one dimension contributes to the scores of one layer, head by class; see `outlier_contributions`.

    Raises ValueError for a layer or dimension that is not in the study.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"own": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> grid = contribution_table(study, layer=1, dim=5).data[0]
        >>> grid.z.shape  # heads and classes
        (4, 2)
    """
    out = _contribution_grid(study, layer, [dim], f"dimension {dim} adds")
    return out.update_traces(x=out.data[0].x[1])


def ablation(study: AttentionStudy, key_class: str) -> Figure:
    """Change of attention to a class when a dimension is removed from a layer's keys, or from the residual stream that
    enters it: outliers against controls.

    Bars at outlier dimensions are 95 % intervals.

    Raises ValueError for a class that is not in the table, and where no layer had an outlier.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"own": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, k=1.5, progress=False)
        >>> [trace.name for trace in ablation(study, "own").data]
        ['random', 'outlier dimensions', 'largest gap']
    """
    table = only(study.ablation, "key_class", key_class)
    value = "its mean" if study.provenance["mode"] == "mean" else "zero"
    keys = class_styles(study.provenance["key_classes"])[key_class]["name"]
    title = f"Attention to {keys} without one dimension"
    place = {"keys": "the keys of a block", "residual": "the residual stream that enters a block"}[study.removed_from]
    subtitle = f"set to {value} in {place}; mean over heads; bars: 95 % intervals"
    out = figure(title, LAYER, "change of attention", subtitle=subtitle)
    hover = "dimension %{customdata[0]} (RMS %{customdata[1]:.3f})<br>change %{y:.4f}<extra></extra>"
    for number, (kind, style) in enumerate(_REMOVED.items()):
        part = table[table["set"] == kind]
        change = (part["attention_after"] - part["attention_before"]).round(5)
        points = change.set_axis((part["layer"] + 0.2 * number - 0.2).astype(np.float32))
        options: dict[str, Any] = {"customdata": part[["dim", "magnitude"]].astype(np.float32)}
        if kind == "outlier":
            options["error_y"] = error_bars(change, part["change_low"].round(5), part["change_high"].round(5))
        marker = {"line": {"width": 1.5, "color": style["color"]}}
        add_series(out, points.astype(np.float32), style, hover=hover, size=9, mode="markers", marker=marker, **options)
    out.update_xaxes(whole_ticks(table["layer"].nunique()))
    return out.add_hline(y=0, line=THIN)


def attention_view(in_text: AttentionInText) -> Any:
    """Show attention patterns of a layer next to what one dimension of the key contributes to their scores
    (circuitsvis).

    There are two panels for each head: its pattern, and the dimension's contribution to each score in nats, minus its
    mean over the keys that the query sees. Contributions are divided by their largest magnitude, which the panel's name
    gives.

    Args:
        in_text: what `interp.attention.attention_in_text` returns.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> shown = interp.attention.attention_in_text(toy_decoder(), "w1 w2 w3", layer=1, dim=5, bos=True)
        >>> view = attention_view(shown)  # the last line of a notebook's cell shows it
        >>> "L1H3" in str(view)
        True
    """
    from circuitsvis.attention import attention_heads

    panels, names = [], []
    for head, (pattern, contribution) in enumerate(zip(in_text.pattern, in_text.contribution, strict=True)):
        limit = max(np.abs(contribution).max(), 1e-9)
        panels += [pattern, contribution / limit]
        names += [f"L{in_text.layer}H{head}", f"dim {in_text.dim} ±{limit:.1f}"]
    options = {"min_value": -1.0, "max_value": 1.0, "mask_upper_tri": in_text.causal}
    tokens = as_html(in_text.tokens)
    return attention_heads(attention=np.stack(panels), tokens=tokens, attention_head_names=names, **options)


def _named(study: AttentionStudy) -> list[int]:
    return study.outliers.sort_values("rank")["dim"].drop_duplicates().head(_NAMED).tolist()


def _outlying(study: AttentionStudy, layer: int) -> list[int]:
    """Outlier dimensions of the state that enters a layer."""
    return study.outliers[study.outliers["state"] == layer].sort_values("rank")["dim"].head(_NAMED).tolist()


def _contribution_grid(study: AttentionStudy, layer: int, dims: list[int], subject: str) -> Figure:
    """What dimensions contribute to the scores of a layer: a row for each head, and columns by dimension and class."""
    part = study.scores(layer=layer, dim=dims)
    present = set(part["key_class"])
    styles = {name: style for name, style in class_styles(study.provenance["key_classes"]).items() if name in present}
    columns = [(dim, name) for dim in dims for name in styles]
    grid = part.pivot(index="head", columns=["dim", "key_class"], values="mean")[columns]
    grid.index = [f"L{layer}H{head}" for head in grid.index]
    subtitle = f"{_unit(study)}, mean over pairs of a query and a key"
    out = figure(f"What {subject} to scores in block {layer}", "class of the key", "head", subtitle=subtitle)
    look: dict[str, Any] = {"texttemplate": "%{z:.2f}", "colorbar_title_text": "contribution"}
    add_grid(out, grid, "%{y}, %{x}<br>%{z:.3f}", **look)
    out.update_traces(x=[[f"dimension {dim}" for dim, _ in columns], [styles[name]["name"] for _, name in columns]])
    return out.update_yaxes(type="category", gridcolor="rgba(0,0,0,0)")


def _mark(out: Figure, dims: Sequence[int], **place: Any) -> None:
    """Dotted lines at dimensions, with their numbers."""
    for dim in dims:
        out.add_vline(x=dim, line=dict(THIN, dash="dot", color=INK), annotation_text=str(dim), **place)


def _unit(study: AttentionStudy) -> str:
    return "nats" if study.provenance["scaled"] else "score × √d_head"


def _scores_of(study: AttentionStudy, key_class: str) -> str:
    """The title of contributions to a class of keys, or to all."""
    if key_class == "all":
        return "What each dimension adds to the scores of all keys"
    style = class_styles(study.provenance["key_classes"]).get(key_class, {"name": plain(key_class)})
    return f"What each dimension adds to the scores of keys: {style['name']}"
