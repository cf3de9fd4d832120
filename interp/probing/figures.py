"""Figures of question 4: sparse probes for grammar."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from interp.figures.style import (
    AMBER,
    BLUE,
    CHANCE,
    COLOURS,
    DIVERGING,
    GREEN,
    GREY,
    INK,
    SYMBOLS,
    UNTRAINED,
    VERMILION,
    figure,
    panels,
    plain,
    scale_styles,
)
from interp.figures.views import safe, shielded
from interp.models.sites import Model
from interp.probing import Probe, ProbingStudy, Sweep, token_scores

_LINE = {"width": 2}
_DENSE = {"color": INK, "dash": "solid", "width": 2.5}
_FLIP = {"color": VERMILION, "dash": "dot", "width": 1.8}
_WORDS = {"color": GREY, "dash": "dash", "width": 1.8}
_TRAINED_ON = {"others": "all others", "other_fields": "other fields", "same_field": "the same field"}
_TRAINED_ON |= {"same_term": "the same term"}
_SETS = {"found": ("found", BLUE), "matched": ("matched in size", AMBER), "random": ("random", GREY)}
_NAMED_TASKS = 25


def sparse_probes(found: Sweep) -> go.Figure:
    """Accuracy of L0 probes by state for each λ, beside the share of open gates; means over tasks.

    With them the dense probe and what it must beat: words alone, labels flipped within half of the pairs, and the
    untrained model where the result has one.

    Raises ValueError for a result without L0 probes.
    """
    l0 = _plain(found, "l0")
    out = panels("Sparse probes", "hidden state", subtitle="means over tasks; a small λ opens few gates")
    for l0_strength, style in _l0_styles(found).items():
        by_state = l0[l0["l0_strength"] == l0_strength].groupby("state")
        for column, measure in ((1, "accuracy"), (2, "open_fraction")):
            _line(out, by_state[measure].mean(), f"λ = {l0_strength:g}", style, column, legend=column == 1)
    dense = found.probes[found.probes["method"] == "dense"]
    for control, name, line in (
        ("none", "dense", _DENSE),
        ("flip", "dense, labels flipped", _FLIP),
        ("untrained", "dense, untrained", UNTRAINED),
    ):
        part = dense[dense["control"] == control]
        if not part.empty:
            _line(out, part.groupby("state")["accuracy"].mean(), name, line, 1, symbol="circle-open")
    _line(out, l0.groupby("state")["bag_of_words"].mean(), "bag of words", _WORDS, 1, symbol=None)
    out.update_yaxes(title_text="accuracy", tickformat=".2f", col=1)
    out.update_yaxes(title_text="open gates", tickformat=".0%", rangemode="tozero", col=2)
    return out


def topk_probes(found: Sweep) -> go.Figure:
    """Accuracy of top-k probes by state for each k (largest Welch t), and of random bases; means over tasks.

    Raises ValueError for a result without top-k probes.
    """
    fitted = _plain(found, "topk:welch")
    out = figure("Top-k probes", "hidden state", "accuracy", subtitle="means over tasks; dotted: in a random basis")
    rotated = found.probes[(found.probes["method"] == "topk:welch") & (found.probes["control"] == "rotation")]
    for k, style in scale_styles([float(k) for k in fitted["k"].unique()]).items():
        for part, dotted in ((fitted, False), (rotated, True)):
            means = part[part["k"] == k].groupby("state")["accuracy"].mean()
            if dotted and not len(means):
                continue
            line = {"color": style["color"], "dash": "dot" if dotted else style["dash"], "width": 1.2 if dotted else 2}
            out.add_scatter(
                x=means.index, y=means.round(4), name=f"k = {k:g}", legendgroup=f"{k:g}", showlegend=not dotted,
                mode="lines" if dotted else "lines+markers", line=line, marker={"size": 6, "symbol": style["symbol"]},
                hovertemplate=f"state %{{x}}: %{{y:.3f}}<extra>k = {k:g}{', random basis' if dotted else ''}</extra>",
            )  # fmt: skip
    dense = found.probes[(found.probes["method"] == "dense") & (found.probes["control"] == "none")]
    if not dense.empty:
        means = dense.groupby("state")["accuracy"].mean()
        out.add_scatter(x=means.index, y=means.round(4), name="dense", mode="lines", line=_DENSE)
    out.update_xaxes(dtick=_tick(fitted["state"]))
    return out


def gate_agreement(found: Sweep) -> go.Figure:
    """Do gates open where |t| is large? Spearman with its largest reachable value, and AUROC, by state; λ below 1.

    Raises ValueError for a result without gates.
    """
    if found.agreement.empty:
        raise ValueError("this result has no gates: it was made without method 'l0'")
    out = panels(
        "Gates and Welch's t",
        "hidden state",
        subtitle="means over tasks with open gates; dotted: reachable",
    )
    known = found.agreement[found.agreement["l0_strength"] < 1].dropna(subset="spearman")
    for l0_strength, style in _l0_styles(found).items():
        if l0_strength not in set(known["l0_strength"]):
            continue
        by_state = known[known["l0_strength"] == l0_strength].groupby("state")
        name = f"λ = {l0_strength:g}"
        _line(out, by_state["spearman"].mean(), name, style, 1)
        _line(out, by_state["spearman_max"].mean(), name, style | {"dash": "dot"}, 1, legend=False, symbol=None)
        _line(out, by_state["auroc"].mean(), name, style, 2, legend=False)
    out.update_yaxes(title_text="Spearman of |t| and gate", rangemode="tozero", col=1)
    out.update_yaxes(title_text="AUROC of |t| for open gates", col=2)
    return out


def random_dims(found: Sweep, state: int | None = None) -> go.Figure:
    """Accuracy of random dimensions against their number, beside the top 1 % by Welch t; and how many replace them.

    Args:
        state: of the left panel; the last by default.

    Raises ValueError for a result without random probes, or a state that it does not have.
    """
    if found.random_k.empty:
        raise ValueError("this result has no random probes: it was made without method 'random'")
    shown = int(found.random_k["state"].iloc[-1] if state is None else state)
    draws = found.random_k[found.random_k["state"] == shown].groupby(["k", "draw"])["accuracy"].mean().unstack()
    if draws.empty:
        raise ValueError(f"state {shown} is not in this result; found {list(found.random_k['state'].unique())}")
    subtitle = f"left: state {shown}, with the range over draws"
    out = panels("Top neurons against random ones", "hidden state", subtitle=subtitle)
    middle = draws.mean(axis=1)
    spread = {"array": draws.max(axis=1) - middle, "arrayminus": middle - draws.min(axis=1), "symmetric": False}
    out.add_scatter(
        x=middle.index, y=middle.round(4), error_y=spread | {"thickness": 1, "width": 3}, name="random outside the top",
        mode="lines+markers", line=_LINE | {"color": GREY}, marker={"symbol": "x"}, row=1, col=1,
    )  # fmt: skip
    top = found.equivalence[found.equivalence["state"] == shown]
    out.add_scatter(
        x=[middle.index.min(), middle.index.max()], y=[top["top_accuracy"].mean()] * 2, mode="lines",
        name=f"top {int(top['n_top'].iloc[0])} by |t|", line=_LINE | {"color": BLUE}, row=1, col=1,
    )  # fmt: skip
    ratios = found.equivalence.groupby("state")["ratio"].quantile(np.array([0.25, 0.5, 0.75])).unstack()
    bars = {"array": ratios[0.75] - ratios[0.5], "arrayminus": ratios[0.5] - ratios[0.25], "symmetric": False}
    out.add_scatter(
        x=ratios.index, y=ratios[0.5], error_y=bars | {"thickness": 1, "width": 3}, mode="lines+markers",
        name="median and quartiles over tasks", line=_LINE | {"color": GREEN}, marker={"symbol": "diamond"},
        row=1, col=2,
    )  # fmt: skip
    out.update_xaxes(type="log", title_text="random dimensions", tickvals=middle.index[::2], col=1)
    out.update_yaxes(title_text="accuracy", col=1)
    out.update_yaxes(title_text="random for one of the top", type="log", tickvals=[2**i for i in range(12)], col=2)
    return out


def beyond_words(study: ProbingStudy) -> go.Figure:
    """What a probe knows beyond the words: accuracy − bag of words by state, and task by task at the study's state."""
    fitted = study.probes[study.probes["control"].isin(["none", "untrained"])]
    fitted = fitted.assign(gain=fitted["accuracy"] - fitted["bag_of_words"])
    out = panels("Beyond the words", "hidden state", subtitle="accuracy of probes and of a bag of words, same split")
    l0_strength = study.provenance["l0_strength"]
    sparse = _l0_styles(study).get(l0_strength, {})
    for (method, control), name, line in (
        (("dense", "none"), "dense", _DENSE),
        (("l0", "none"), f"λ = {l0_strength:g}", _LINE | sparse),
        (("dense", "untrained"), "dense, untrained", UNTRAINED),
    ):
        part = fitted[(fitted["method"] == method) & (fitted["control"] == control)]
        part = part[part["l0_strength"] == l0_strength] if method == "l0" else part
        if not part.empty:
            _line(out, part.groupby("state")["gain"].mean(), name, line, 1)
    out.add_hline(y=0, line={"width": 1, "color": GREY}, row=1, col=1)
    state = study.provenance["state"]
    at = fitted[(fitted["state"] == state) & (fitted["control"] == "none")]
    best = "dense" if (at["method"] == "dense").any() else str(at["method"].iloc[0])
    at = at[at["method"] == best].drop_duplicates("task", keep="last")
    at = at.merge(study.tasks[["task", "field"]], on="task")
    for number, (field, part) in enumerate(at.groupby("field", sort=False)):
        bars = {
            "array": part["accuracy_high"] - part["accuracy"],
            "arrayminus": part["accuracy"] - part["accuracy_low"],
        }
        out.add_scatter(
            x=part["bag_of_words"].round(4), y=part["accuracy"].round(4), name=_words(field) or "tasks",
            text=part["task"].map(plain), mode="markers",
            error_y=bars | {"symmetric": False, "thickness": 0.6, "width": 0},
            marker={"size": 7, "color": COLOURS[number % 6], "symbol": SYMBOLS[number % 6]},
            hovertemplate="%{text}<br>words %{x:.3f}<br>probe %{y:.3f}<extra></extra>", row=1, col=2,
        )  # fmt: skip
    ends = [min(at["bag_of_words"].min(), at["accuracy"].min()), 1]
    out.add_scatter(
        x=ends,
        y=ends,
        mode="lines",
        line={"width": 1.2, "color": GREY},
        showlegend=False,
        hoverinfo="skip",
        row=1,
        col=2,
    )
    out.update_yaxes(title_text="accuracy − bag of words", col=1)
    out.update_xaxes(title_text="bag of words", col=2)
    out.update_yaxes(title_text=f"{best} probe, state {state}", col=2)
    return out


def transfer_matrix(study: ProbingStudy, *, difference: bool = False) -> go.Figure:
    """Pair accuracy of each task's sparse probe on each task; or less that of λ = 1, all gates open.

    Raises ValueError for a study of one task, or without L0 probes.
    """
    if study.transfer.empty:
        raise ValueError("this study has no transfer: it needs method 'l0' and two tasks or more")
    order = study.tasks.sort_values("field", kind="stable")
    l0_strength = study.provenance["l0_strength"]

    def grid(at: float) -> pd.DataFrame:
        part = study.transfer[study.transfer["l0_strength"] == at]
        wide = part.pivot(index="train_task", columns="test_task", values="pair_accuracy")
        return wide.loc[order["task"], order["task"]]

    where = f"pair accuracy, state {study.provenance['state']}, λ = {l0_strength:g}"
    sparse = grid(l0_strength)
    if difference:
        return _matrix(sparse - grid(1.0), order, "Transfer: sparse less all gates open", where, 0.0, 0.5)
    return _matrix(sparse, order, "Transfer between tasks", where, 0.5, 0.5)


def neuron_overlap(study: ProbingStudy) -> go.Figure:
    """Do tasks share neurons? Jaccard index of open gates, less its chance value.

    Raises ValueError for a study of one task, or without L0 probes.
    """
    if study.overlap.empty:
        raise ValueError("this study has no overlap: it needs method 'l0' and two tasks or more")
    order = study.tasks.sort_values("field", kind="stable")
    above = study.overlap.assign(above=study.overlap["jaccard"] - study.overlap["expected"])
    both = pd.concat([above, above.rename(columns={"task_a": "task_b", "task_b": "task_a"})])
    wide = both.pivot(index="task_a", columns="task_b", values="above").reindex(order["task"], columns=order["task"])
    subtitle = f"Jaccard index less chance, state {study.provenance['state']}, λ = {study.provenance['l0_strength']:g}"
    return _matrix(wide, order, "Neurons in common", subtitle, 0.0, float(np.nanmax(wide.abs().to_numpy())))


def _matrix(
    wide: pd.DataFrame, order: pd.DataFrame, title: str, subtitle: str, middle: float, reach: float
) -> go.Figure:
    """A square of tasks by tasks, ordered by field; many tasks are named by their field alone."""
    out = figure(title, "tested on", "trained on", subtitle=subtitle)
    tasks = [plain(task) for task in wide.index]
    out.add_heatmap(
        z=wide.to_numpy().round(3), x=tasks, y=tasks, zmin=middle - reach, zmax=middle + reach, colorscale=DIVERGING,
        hovertemplate="%{y} → %{x}: %{z:.3f}<extra></extra>", colorbar={"thickness": 12},
    )  # fmt: skip
    numbers = np.arange(len(tasks))
    if len(tasks) <= _NAMED_TASKS:
        where, names = numbers, [_words(task) for task in wide.index]
    else:
        fields = order["field"].to_numpy()
        starts = np.flatnonzero(np.r_[True, fields[1:] != fields[:-1]])
        ends = np.r_[starts[1:], len(tasks)]
        where, names = (starts + ends - 1) // 2, [_words(fields[i]) for i in starts]
        for start in starts[1:]:
            line: dict[str, Any] = {"line": {"width": 1, "color": INK}}
            out.add_vline(x=start - 0.5, **line)
            out.add_hline(y=start - 0.5, **line)
    ticks: dict[str, Any] = {"tickmode": "array", "tickvals": where, "ticktext": names, "tickfont": {"size": 10}}
    out.update_xaxes(**ticks, tickangle=-45, showgrid=False)
    out.update_yaxes(**ticks, autorange="reversed", showgrid=False)
    out.update_layout(height=520, meta={"least_width": 540})
    return out


def general_probes(study: ProbingStudy) -> go.Figure:
    """Probes that have never seen a task, on its pairs: mean over tasks with its 95 % interval, by what they were
    trained on.

    Raises ValueError for a study of one task, or without L0 probes.
    """
    if study.general.empty:
        raise ValueError("this study has no general probes: it needs method 'l0' and two tasks or more")
    out = figure(
        "Is there grammaticality in general?", "trained on tasks of", "pair accuracy on a task never seen",
        subtitle=f"state {study.provenance['state']}; mean over tasks, 95 % interval",
    )  # fmt: skip
    l0_strength = study.provenance["l0_strength"]
    sparse = _l0_styles(study)[l0_strength]
    for method, name, colour, symbol in (
        ("dense", "dense", INK, "circle"),
        ("l0", f"λ = {l0_strength:g}", sparse["color"], sparse["symbol"]),
    ):
        grouped = study.general[study.general["method"] == method].groupby("trained_on")["pair_accuracy"]
        table = grouped.agg(["mean", "sem"]).reindex([key for key in _TRAINED_ON if key in grouped.groups])
        out.add_scatter(
            x=[_TRAINED_ON[str(key)] for key in table.index], y=table["mean"].round(4), name=name, mode="markers",
            error_y={"array": 1.96 * table["sem"], "thickness": 1.2, "width": 5},
            marker={"size": 10, "color": colour, "symbol": symbol},
        )  # fmt: skip
    out.add_hline(
        y=0.5,
        line=CHANCE,
        annotation_text="chance",
        annotation_position="bottom left",
    )
    return out


def probe_ablation(study: ProbingStudy) -> go.Figure:
    """What removing neurons does to the model's own minimal-pair accuracy and margin, task by task.

    Raises ValueError for a study without ablation.
    """
    if study.ablation.empty:
        raise ValueError(
            "this study has no ablation: the model itself is below .6 on every task, or its probes open no gate or "
            "more than half of them"
        )
    table = study.ablation.assign(
        accuracy=study.ablation["accuracy_after"] - study.ablation["accuracy_before"],
        margin=study.ablation["margin_after"] - study.ablation["margin_before"],
    )
    means = table.groupby(["task", "mode", "set"], sort=False)[["accuracy", "margin"]].mean().reset_index()
    subtitle = f"state {study.provenance['state']}, all positions; a point a task, mean over draws"
    out = panels("Neurons removed from the residual stream", "", subtitle=subtitle)
    for name, (label, colour) in _SETS.items():
        part = means[means["set"] == name]
        for column, measure in ((1, "accuracy"), (2, "margin")):
            out.add_box(
                x="to " + part["mode"], y=part[measure].round(4), name=label, legendgroup=name, offsetgroup=name,
                showlegend=column == 1, boxpoints="all", jitter=0.4, pointpos=0, marker={"size": 4, "opacity": 0.6},
                line={"width": 1.4}, marker_color=colour, text=part["task"].map(plain),
                hovertemplate="%{text}: %{y:.3f}<extra></extra>", row=1, col=column,
            )  # fmt: skip
    out.update_layout(boxmode="group")
    out.update_yaxes(title_text="change of accuracy", zeroline=True, zerolinecolor=GREY, col=1)
    out.update_yaxes(title_text="change of margin, nats", zeroline=True, zerolinecolor=GREY, col=2)
    return out


def probe_view(model: Model, probe: Probe, sentence: str, *, bos: bool | None = None) -> Any:
    """A sentence with the probe's score at every token: a circuitsvis view (see `interp.probing.token_scores`)."""
    from circuitsvis.tokens import colored_tokens

    tokens, scores = token_scores(model, probe, sentence, bos=bos)
    view = colored_tokens(shielded(tokens), scores, positive_color=BLUE, negative_color=VERMILION)
    return safe(view)


def token_views(study: ProbingStudy) -> dict[str, tuple[str, dict[str, Any]]]:
    """The sentences of the table `views` with the probe's score at every token: by heading, the name of a circuitsvis
    component and its properties, for a page that includes circuitsvis once. A pair has one scale.
    """
    views = {}
    read = {"eos": -1, "cls": 0}.get(study.provenance["position"])
    for task, pair in study.views.groupby("task", sort=False):
        limit = float(pair["score"].abs().max())
        for sentence, part in pair.groupby("sentence", sort=False):
            where = "" if read is None else f": {part['score'].iloc[read]:+.1f} at {part['token'].iloc[read]}"
            views[f"{str(task).replace('_', ' ')}, {sentence}{where}"] = (
                "ColoredTokens",
                {
                    "tokens": part["token"].tolist(),
                    "values": part["score"].round(3).tolist(),
                    "minValue": -limit,
                    "maxValue": limit,
                    "positiveColor": BLUE,
                    "negativeColor": VERMILION,
                },
            )
    return views


def _plain(found: Sweep, method: str) -> pd.DataFrame:
    part = found.probes[(found.probes["method"] == method) & (found.probes["control"] == "none")]
    if part.empty:
        raise ValueError(
            f"this result has no probes of method {method!r}; found {list(found.probes['method'].unique())}"
        )
    return part


def _line(
    out: go.Figure,
    values: pd.Series,
    name: str,
    style: dict[str, Any],
    column: int,
    *,
    legend: bool = True,
    symbol: str | None = "circle",
) -> None:
    """A curve over hidden states in one of two panels."""
    shape = style.get("symbol", symbol) if symbol else None
    out.add_scatter(
        x=values.index, y=values.round(4), name=name, legendgroup=name, showlegend=legend,
        mode="lines+markers" if shape else "lines", marker={"size": 6, "symbol": shape},
        line={key: value for key, value in style.items() if key != "symbol"},
        hovertemplate=f"state %{{x}}: %{{y:.3f}}<extra>{name}</extra>", row=1, col=column,
    )  # fmt: skip


def _l0_styles(found: Sweep) -> dict[float, dict[str, str]]:
    """The look of each λ of the L0 probes, the same in every figure."""
    return scale_styles([float(s) for s in found.probes.loc[found.probes["method"] == "l0", "l0_strength"].unique()])


def _words(name: object) -> str:
    return plain(name).replace("_", " ")


def _tick(states: pd.Series) -> int:
    return max(1, round(len(states.unique()) / 12))
