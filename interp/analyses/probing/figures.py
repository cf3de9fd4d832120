"""Figures of question 4: sparse probes for grammar."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.analyses.probing import ProbingStudy
from interp.analyses.probing.sweeps import Sweep
from interp.analyses.probing.tables import changes
from interp.figures import style
from interp.figures.draw import add_equal, add_series, error_bars, only
from interp.figures.figure import Figure
from interp.figures.style import Style, figure, panels, plain, run_styles, scale_styles, spaced
from interp.figures.views import as_html
from interp.results.result import Result
from interp.support.words import printed

__all__ = ["DENSE", "beyond_words", "gate_agreement", "l0_styles", "probe_ablation", "probe_view", "random_dims"]
__all__ += ["random_dims_by_state", "sparse_probes", "table_of", "token_views", "topk_probes"]

DENSE: Style = {"name": "dense", "color": style.INK, "width": 2.5}
_FLIP: Style = {"name": "dense, labels flipped", "color": style.VERMILION, "dash": "dot", "width": 1.8}
_UNTRAINED: Style = {"name": "dense, untrained", "color": style.PINK, "dash": "dashdot", "width": 1.8}
_WORDS: Style = {"name": "bag of words", "color": style.GREY, "dash": "dash", "width": 1.8}
_SETS = {
    "found": ("found", style.BLUE), "matched": ("matched in size", style.AMBER),
    "perplexity": ("random, matched in perplexity", style.GREEN), "random": ("random", style.GREY),
}  # fmt: skip
_GOOD, _BAD = "#6baed6", "#fd8d3c"  # light enough for circuitsvis to write in black on every shade
_TWO_TASKS = "method 'l0' and two tasks or more"
_NEEDS = {
    "agreement": "method 'l0'", "random_k": "method 'random'", "transfer": _TWO_TASKS, "general": _TWO_TASKS,
    "overlap": _TWO_TASKS, "ablation": "a task that the model itself solves, and a probe of one to half of the neurons",
}  # fmt: skip


def sparse_probes(found: Sweep) -> Figure:
    """Accuracy of L0 probes by state for each λ, next to the share of open gates, as means over tasks.

    The figure also has the dense probe and what it must beat: words alone, labels flipped within half of the pairs, and
    the untrained model if the result has one.

    Raises ValueError for a result without L0 probes.

    Examples:
        >>> import interp
        >>> model, tasks = interp.load("tiny-gpt2"), ["reflexive_number"]
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=tasks, limit=20)
        >>> states = interp.probing.collect(model, pairs, states=[6], bos=True, progress=False)
        >>> found = interp.probing.sweep(states, methods=["l0"], l0_strengths=[0.2, 1], steps=20, progress=False)
        >>> [trace.name for trace in sparse_probes(found).data if trace.showlegend]
        ['λ = 0.2', 'λ = 1', 'bag of words']
    """
    l0 = only(found.probes[found.probes["control"] == "none"], "method", "l0")
    out = panels(
        "Accuracy and size of sparse probes", "hidden state", subtitle="means over tasks; a small λ opens few gates"
    )
    for l0_strength, line in l0_styles(found).items():
        part = l0[l0["l0_strength"] == l0_strength]
        _add_means(out, part, "accuracy", line, 1)
        _add_means(out, part, "open_fraction", line, 2)
    for control, line in (("none", DENSE), ("flip", _FLIP), ("untrained", _UNTRAINED)):
        _add_means(out, _of(found.probes, "dense", control), "accuracy", dict(line, symbol="circle-open"), 1)
    _add_means(out, l0, "bag_of_words", _WORDS, 1)
    out.update_yaxes(title_text="accuracy", tickformat=".2f", col=1)
    return out.update_yaxes(title_text="open gates", tickformat=".0%", rangemode="tozero", col=2)


def topk_probes(found: Sweep) -> Figure:
    """Accuracy of top-k probes by state for each k (largest Welch t), and in random bases, as means over tasks.

    Raises ValueError for a result without top-k probes.

    Examples:
        >>> import interp
        >>> model, tasks = interp.load("tiny-gpt2"), ["reflexive_number"]
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=tasks, limit=20)
        >>> states = interp.probing.collect(model, pairs, states=[6], bos=True, progress=False)
        >>> found = interp.probing.sweep(states, methods=["topk", "dense"], ks=[1, 10], progress=False)
        >>> [trace.name for trace in topk_probes(found).data]
        ['k = 1', 'k = 10', 'dense']
    """
    fitted = only(found.probes[found.probes["control"] == "none"], "method", "topk:welch")
    rotated = _of(found.probes, "topk:welch", "rotation")
    out = figure(
        "Probes of the k dimensions with the largest |t|",
        "hidden state",
        "accuracy",
        subtitle="means over tasks; dotted: in a random basis",
    )
    for k, line in scale_styles(fitted["k"], "k").items():
        _add_means(out, fitted[fitted["k"] == k], "accuracy", line)
        dotted = dict(line, dash="dot", width=1.2, symbol=None)
        hover = f"state %{{x}}: %{{y:.3f}}<extra>{line['name']}, random basis</extra>"
        _add_means(out, rotated[rotated["k"] == k], "accuracy", dotted, legend=False, hover=hover)
    _add_means(out, _of(found.probes, "dense"), "accuracy", DENSE)
    return out.update_xaxes(dtick=max(1, round(fitted["state"].nunique() / 12)))


def gate_agreement(found: Sweep) -> Figure:
    """Do gates open where |t| is large? By state, for λ below 1: Spearman's ρ and its largest value, and AUROC.

    Raises ValueError for a result without gates.

    Examples:
        >>> import interp
        >>> model, tasks = interp.load("tiny-gpt2"), ["reflexive_number"]
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=tasks, limit=20)
        >>> states = interp.probing.collect(model, pairs, states=[6], bos=True, progress=False)
        >>> found = interp.probing.sweep(states, methods=["l0"], l0_strengths=[0.2, 1], steps=20, progress=False)
        >>> {trace.name for trace in gate_agreement(found).data}  # not λ = 1, at which every gate is open
        {'λ = 0.2'}
    """
    agreement = table_of(found, "agreement").query("l0_strength < 1").dropna(subset="spearman")
    subtitle = "means over tasks with open gates; dotted: the largest ρ possible"
    out = panels("Do sparse probes read the strongest dimensions?", "hidden state", subtitle=subtitle)
    for l0_strength, line in l0_styles(found).items():
        part = agreement[agreement["l0_strength"] == l0_strength]
        _add_means(out, part, "spearman", line, 1)
        _add_means(out, part, "spearman_max", dict(line, dash="dot", symbol=None), 1, legend=False)
        _add_means(out, part, "auroc", line, 2)
    out.update_yaxes(title_text="Spearman of |t| and gate", rangemode="tozero", col=1)
    return out.update_yaxes(title_text="AUROC of |t| for open gates", col=2)


def random_dims(found: Sweep, state: int | None = None) -> Figure:
    """Accuracy of random dimensions against their number, next to the top 1 % by Welch t, as means over tasks; and how
    many of them replace one of the top, as median and quartiles over the tasks that have a ratio.

    Args:
        state: the state in the left panel. Default: the last.

    Raises ValueError for a result without random probes, or a state that it does not have.

    Examples:
        >>> import interp
        >>> model, tasks = interp.load("tiny-gpt2"), ["reflexive_number"]
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=tasks, limit=20)
        >>> states = interp.probing.collect(model, pairs, states=[6], bos=True, progress=False)
        >>> found = interp.probing.sweep(states, methods=["random"], progress=False)
        >>> [trace.name for trace in random_dims(found).data]  # no ratio: of four test pairs, nothing is above chance
        ['random outside the top', 'top 1 by |t|']
    """
    table = table_of(found, "random_k")
    shown_state = int(table["state"].iloc[-1] if state is None else state)
    rows = only(table, "state", shown_state)
    top = found.equivalence[found.equivalence["state"] == shown_state]
    common = rows[rows["k"].isin(_of_every_task(rows))]
    draws = common.groupby(["k", "draw"])["accuracy"].mean().groupby("k")
    low = draws.min()
    mean = draws.mean()
    high = draws.max()
    ratios = found.equivalence.dropna(subset="ratio")
    n_known = f"{(ratios['state'] == shown_state).sum()} of {len(top)}"
    subtitle = f"left: state {shown_state}, bars: range over draws; "
    subtitle += f"right: tasks whose top is above chance (there {n_known})"
    out = panels("How many random neurons replace the top ones?", "hidden state", subtitle=subtitle)
    line = {"name": "random outside the top", "color": style.GREY, "symbol": "x"}
    add_series(out, mean.round(4), line, error_y=error_bars(mean, low, high), panel=1)
    level = pd.Series(top["top_accuracy"].mean(), mean.index[[0, -1]])
    add_series(out, level, {"name": f"top {int(top['n_top'].iloc[0])} by |t|", "color": style.BLUE}, panel=1)
    ratio = ratios.groupby("state")["ratio"]
    low = ratio.quantile(0.25)
    median = ratio.quantile(0.5)
    high = ratio.quantile(0.75)
    line = {"name": "median and quartiles over tasks", "color": style.GREEN, "symbol": "diamond"}
    add_series(out, median, line, error_y=error_bars(median, low, high), panel=2)
    out.update_xaxes(type="log", title_text="random dimensions", tickvals=mean.index, col=1)
    out.update_yaxes(title_text="accuracy", col=1)
    ticks = np.outer(2 ** np.arange(12), [1, 1.5]).ravel().tolist()
    return out.update_yaxes(title_text="random dimensions per top one", type="log", tickvals=ticks, col=2)


def random_dims_by_state(found: Sweep) -> Figure:
    """Accuracy of the top 1 % of dimensions by Welch t and of 1, 2, 4 … 32 times as many random ones, by hidden state,
    as means over tasks (figure 5 of the paper).

    Raises ValueError for a result without random probes.

    Examples:
        >>> import interp
        >>> model, tasks = interp.load("tiny-gpt2"), ["reflexive_number"]
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=tasks, limit=20)
        >>> states = interp.probing.collect(model, pairs, states=[6], bos=True, progress=False)
        >>> found = interp.probing.sweep(states, methods=["random"], progress=False)
        >>> [trace.name for trace in random_dims_by_state(found).data]
        ['1 random', '2 random', '4 random', '8 random', '16 random', '32 random', 'top 1 by |t|']
    """
    table = table_of(found, "random_k")
    means = table[table["k"].isin(_of_every_task(table))].groupby(["k", "state"])["accuracy"].mean()
    top = found.equivalence.groupby("state")["top_accuracy"].mean()
    n_top = int(found.equivalence["n_top"].iloc[0])
    subtitle = "means over tasks; of random ones, none of them among the top, also over draws"
    out = figure("Top neurons beside random ones, by depth", "hidden state", "accuracy", subtitle=subtitle)
    for k, line in scale_styles(means.index.get_level_values("k").to_series(), "k").items():
        add_series(out, means[k].round(4), dict(line, name=f"{k:g} random"), hover="state %{x}: %{y:.3f}")
    line = {"name": f"top {n_top} by |t|", "color": style.INK, "width": 2.5, "symbol": "circle"}
    add_series(out, top.round(4), line, hover="state %{x}: %{y:.3f}")
    return out.update_xaxes(dtick=max(1, round(len(top) / 12)))


def _of_every_task(random_k: pd.DataFrame) -> list[int]:
    """The sizes that were fitted for every task and state."""
    n = random_k.groupby("k").size()
    return [int(str(k)) for k in n.index[n == n.max()]]


def beyond_words(study: ProbingStudy) -> Figure:
    """What a probe knows beyond the words: accuracy − bag of words by state, and task by task at the study's state.

    Examples:
        >>> import interp
        >>> tasks = ["reflexive_number", "causative"]
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=tasks, limit=20)
        >>> how = {"states": [6], "methods": ["dense"], "controls": ["none"], "bos": True, "progress": False}
        >>> study = interp.probing.study(interp.load("tiny-gpt2"), pairs, **how)
        >>> [trace.name for trace in beyond_words(study).data if trace.mode == "markers"]  # the fields of the tasks
        ['morphology', 'syntax']
    """
    l0_strength, state = study.provenance["l0_strength"], study.provenance["state"]
    probes = study.probes.assign(gain=study.probes["accuracy"] - study.probes["bag_of_words"])
    out = panels(
        "Do probes tell more than the words alone?",
        "hidden state",
        subtitle="right: one point per task, with 95 % intervals; the line: equal",
    )
    sparse = _of(probes, "l0").query("l0_strength == @l0_strength")
    _add_means(out, _of(probes, "dense"), "gain", dict(DENSE, symbol="circle"), 1)
    _add_means(out, sparse, "gain", l0_styles(study).get(l0_strength, {}), 1)
    _add_means(out, _of(probes, "dense", "untrained"), "gain", dict(_UNTRAINED, symbol="circle"), 1)
    out.add_hline(y=0, line=style.THIN, row=1, col=1)
    rows = probes[(probes["state"] == state) & (probes["control"] == "none")]
    best = "dense" if (rows["method"] == "dense").any() else str(rows["method"].iloc[0])
    rows = rows[rows["method"] == best].drop_duplicates("task", keep="last")
    rows = rows.merge(study.tasks[["task", "field"]], on="task")
    hover = "%{text}<br>words %{x:.3f}<br>probe %{y:.3f}<extra></extra>"
    for field, line in run_styles(list(rows["field"].unique())).items():
        part = rows[rows["field"] == field]
        accuracy = part["accuracy"].round(4).set_axis(part["bag_of_words"].round(4))
        bars = error_bars(part["accuracy"], part["accuracy_low"], part["accuracy_high"], thickness=0.6, width=0)
        look: dict[str, Any] = {"size": 7, "mode": "markers", "text": part["task"].map(plain), "error_y": bars}
        add_series(out, accuracy, dict(line, name=spaced(field) or "tasks"), hover=hover, panel=2, **look)
    least = rows[["bag_of_words", "accuracy"]].min(axis=None)
    add_equal(out, least, 1.0, "equal", panel=2, showlegend=False)
    out.update_yaxes(title_text="accuracy − bag of words", col=1)
    out.update_xaxes(title_text="bag of words", col=2)
    return out.update_yaxes(title_text=f"{best} probe, state {state}", col=2)


def probe_ablation(study: ProbingStudy) -> Figure:
    """What removing neurons does to the model's own minimal-pair accuracy and margin, task by task.

    Raises ValueError for a study without ablation.

    Examples:
        >>> import interp
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=30)
        >>> how = {"states": [6], "methods": ["l0"], "l0_strengths": [0.1], "controls": ["none"], "steps": 200}
        >>> study = interp.probing.study(interp.load("tiny-gpt2"), pairs, **how, bos=True, progress=False)
        >>> [trace.name for trace in probe_ablation(study).data if trace.showlegend]
        ['found', 'matched in size', 'random']
    """
    tasks = changes(table_of(study, "ablation")).groupby(["task", "mode", "set"], sort=False)
    means = tasks[["accuracy", "margin"]].mean().round(4).reset_index()
    subtitle = f"state {study.provenance['state']}, set to zero or to their mean at all positions; one point per task"
    out = panels("Does the model need the neurons that probes found?", "", subtitle=subtitle)
    look: dict[str, Any] = {"boxpoints": "all", "jitter": 0.4, "pointpos": 0, "line_width": 1.4}
    look["hovertemplate"] = "%{text}: %{y:.3f}<extra></extra>"
    for name, (label, colour) in _SETS.items():
        part = means[means["set"] == name]
        if part.empty:
            continue
        look.update(name=label, legendgroup=name, offsetgroup=name, text=part["task"].map(plain))
        look.update(x="to " + part["mode"], marker={"size": 4, "opacity": 0.6, "color": colour})
        for panel, measure in enumerate(("accuracy", "margin"), 1):
            out.add_box(y=part[measure], showlegend=panel == 1, row=1, col=panel, **look)
    out.update_layout(boxmode="group")
    out.update_yaxes(title_text="change of accuracy", zeroline=True, zerolinecolor=style.GREY, col=1)
    return out.update_yaxes(title_text="change of margin, nats", zeroline=True, zerolinecolor=style.GREY, col=2)


def probe_view(tokens: Sequence[str], scores: Float[np.ndarray, " pos"]) -> Any:
    """A sentence with the probe's score at every token: a circuitsvis view of `interp.probing.token_scores`.

    Examples:
        >>> view = probe_view(["The", " boy", " hurt", " himself"], np.array([0.1, -0.2, 0.5, 2.0]))
        >>> "ColoredTokens" in str(view)  # the last line of a notebook's cell shows it
        True
    """
    from circuitsvis.tokens import colored_tokens

    return colored_tokens(as_html(tokens), scores, positive_color=_GOOD, negative_color=_BAD)


def token_views(study: ProbingStudy) -> dict[str, tuple[str, dict[str, Any]]]:
    """The sentences of the table `views` with the probe's score at every token: by heading, the name of a circuitsvis
    component and its properties, for a page that includes circuitsvis once. The colours of a pair cover the
    scores at the position where the probe was trained; a token beyond them has no colour.

    Examples:
        >>> import interp
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["left_branch"], limit=20)
        >>> how = {"states": [6], "methods": ["l0"], "controls": ["none"], "steps": 20, "bos": True, "progress": False}
        >>> study = interp.probing.study(interp.load("tiny-gpt2"), pairs, **how)
        >>> [component for component, properties in token_views(study).values()]  # the good sentence and the bad
        ['ColoredTokens', 'ColoredTokens']
    """
    views = {}
    read = {"eos": -1, "cls": 0}.get(study.provenance["position"])
    for task, pair in study.views.groupby("task", sort=False):
        sentences = {str(sentence): part for sentence, part in pair.groupby("sentence", sort=False)}
        trained = [part["score"].iloc[slice(None) if read is None else read] for part in sentences.values()]
        limit = float(max(np.abs(score).max() for score in trained))
        look = {"minValue": -limit, "maxValue": limit, "positiveColor": _GOOD, "negativeColor": _BAD}
        for sentence, part in sentences.items():
            tokens = part["token"].tolist()
            scores = part["score"].to_numpy()
            where = ""
            if read is not None:
                score = printed(scores[read], "{:+.1f}")
                where = f": {score} at {tokens[read]} {_mark(sentence, scores[read])}"
            values = np.where(np.abs(scores) <= limit, scores, 0.0)
            arguments = dict(look, tokens=as_html(tokens), values=values.round(3).tolist())
            views[f"{str(task).replace('_', ' ')}, {sentence}{where}"] = ("ColoredTokens", arguments)
    return views


def _mark(sentence: str, score: float) -> str:
    """Whether the score of a sentence is on the correct side of 0."""
    return "✓" if (score > 0) == (sentence == "good") else "✗"


def table_of(result: Result, name: str) -> pd.DataFrame:
    """A table of the result. Raises ValueError if it has no rows."""
    table = result.tables[name]
    if table.empty:
        raise ValueError(f"the table {name} of this result has no rows: it needs {_NEEDS[name]}")
    return table


def _of(probes: pd.DataFrame, method: str, control: str = "none") -> pd.DataFrame:
    return probes[(probes["method"] == method) & (probes["control"] == control)]


def _add_means(
    out: Figure, part: pd.DataFrame, measure: str, line: Style, panel: int | None = None, **options: Any
) -> None:
    """A line over hidden states, with means over tasks. It is in the legend only once."""
    look: dict[str, Any] = {"hover": "state %{x}: %{y:.3f}", "legend": panel != 2}
    add_series(out, part.groupby("state")[measure].mean().round(4), line, panel=panel, **(look | options))


def l0_styles(sweep: Sweep) -> dict[float, Style]:
    """The look of each λ of the L0 probes, the same in every figure."""
    return scale_styles(sweep.probes.loc[sweep.probes["method"] == "l0", "l0_strength"])
