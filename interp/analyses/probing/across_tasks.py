"""Figures of question 4 that compare tasks: does a probe of one work on another, and do tasks share neurons?"""

from typing import Literal

import pandas as pd
from scipy import stats

from interp.analyses.probing import ProbingStudy
from interp.analyses.probing.columns import TRAINED_ON
from interp.analyses.probing.figures import DENSE, l0_styles, table_of
from interp.figures import style
from interp.figures.draw import add_grid, add_series
from interp.figures.figure import Figure
from interp.figures.style import figure, plain, spaced
from interp.instruments.over_tasks import FEWEST_PAIRED

__all__ = ["general_probes", "neuron_overlap", "transfer_matrix"]

_NAMED_TASKS = 25


def transfer_matrix(
    study: ProbingStudy,
    *,
    difference: bool = False,
    measure: Literal["accuracy", "pair_accuracy"] = "pair_accuracy",
) -> Figure:
    """How well each task's sparse probe reads each task, or the difference from the probe of λ = 1 with all gates open.

    Args:
        measure: the share of pairs whose good sentence scores higher or, as in figure 6 of the paper, the accuracy on
            sentences, which is low if all sentences of a task lie on one side of the other task's threshold.

    Raises ValueError for a study of one task, or without L0 probes.

    Examples:
        >>> import interp
        >>> tasks = ["reflexive_number", "causative"]
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=tasks, limit=20)
        >>> how = {"states": [6], "methods": ["l0"], "controls": ["none"], "steps": 20, "bos": True, "progress": False}
        >>> study = interp.probing.study(interp.load("tiny-gpt2"), pairs, **how)
        >>> transfer_matrix(study).data[0].z.shape  # trained on, tested on
        (2, 2)
    """
    table = table_of(study, "transfer").dropna(subset="l0_strength")
    wide = table.pivot(index="train_task", columns=["l0_strength", "test_task"], values=measure)
    sparse = wide[study.provenance["l0_strength"]]
    of_pairs = measure == "pair_accuracy"
    if difference:
        title = f"Transfer{'' if of_pairs else ' to sentences'}: sparse probes minus those with all gates open"
        return _matrix(study, sparse - wide[1.0], title, f"difference in {spaced(measure)}", reach=0.5)
    title = f"Does a sparse probe of one task read {'another' if of_pairs else 'sentences of another'}?"
    return _matrix(study, sparse, title, spaced(measure), middle=0.5, reach=0.5)


def neuron_overlap(study: ProbingStudy) -> Figure:
    """Do tasks share neurons? Jaccard index of open gates, minus its chance value.

    Raises ValueError for a study of one task, or without L0 probes.

    Examples:
        >>> import interp
        >>> tasks = ["reflexive_number", "causative"]
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=tasks, limit=20)
        >>> how = {"states": [6], "methods": ["l0"], "controls": ["none"], "steps": 20, "bos": True, "progress": False}
        >>> study = interp.probing.study(interp.load("tiny-gpt2"), pairs, **how)
        >>> neuron_overlap(study).layout.title.text
        'Neurons that two tasks share'
    """
    table = table_of(study, "overlap").set_index(["task_a", "task_b"])
    once = (table["jaccard"] - table["expected"]).unstack()
    return _matrix(
        study,
        once.combine_first(once.T),
        "Neurons that two tasks share",
        "Jaccard index minus chance",
        x="task",
        y="task",
    )


def general_probes(study: ProbingStudy) -> Figure:
    """The pair accuracy of probes on a task that they have never seen, by what they were trained on: the mean over
    tasks with its 95 % interval.

    Raises ValueError for a study of one task, or without L0 probes.

    Examples:
        >>> import interp
        >>> tasks = ["reflexive_number", "causative"]
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=tasks, limit=20)
        >>> how = {"states": [6], "methods": ["l0"], "controls": ["none"], "steps": 20, "bos": True, "progress": False}
        >>> study = interp.probing.study(interp.load("tiny-gpt2"), pairs, **how)
        >>> [trace.name for trace in general_probes(study).data]
        ['dense', 'λ = 0.2']
    """
    by_method = table_of(study, "general").groupby("method")
    subtitle = f"state {study.provenance['state']}; mean over tasks, 95 % interval from {FEWEST_PAIRED} tasks on"
    title, axis_title = (
        "Do probes of several tasks work on one they have not seen?",
        "pair accuracy on a task never seen",
    )
    out = figure(title, "trained on tasks of", axis_title, subtitle=subtitle)
    sparse = l0_styles(study)[study.provenance["l0_strength"]]
    for method, line in (("dense", dict(DENSE, symbol="circle")), ("l0", sparse)):
        accuracy = by_method.get_group(method).groupby("trained_on")["pair_accuracy"]
        table = accuracy.agg(["mean", "sem", "count"]).reindex(list(TRAINED_ON)).dropna(how="all")
        table = table.rename(index=TRAINED_ON)
        has_interval = (table["count"] >= FEWEST_PAIRED) & (table["sem"] > 0)
        half = stats.t.ppf(0.975, table["count"] - 1) * table["sem"]
        bars = {"array": half.where(has_interval), "thickness": 1.2, "width": 5}
        add_series(out, table["mean"].round(4), line, size=10, mode="markers", error_y=bars)
    return out.add_hline(y=0.5, line=style.CHANCE, annotation_text="chance", annotation_position="bottom left")


def _matrix(
    study: ProbingStudy,
    wide: pd.DataFrame,
    title: str,
    measure: str,
    *,
    x: str = "tested on",
    y: str = "trained on",
    **scale: float,
) -> Figure:
    """A square of tasks by tasks, ordered by field. If there are many tasks, only their fields are named."""
    where = f"state {study.provenance['state']}, λ = {study.provenance['l0_strength']:g}"
    out = figure(title, x, y, subtitle=f"{measure}, {where}")
    order = study.tasks.sort_values("field", kind="stable", ignore_index=True)
    grid = wide.reindex(index=order["task"], columns=order["task"]).rename(index=plain, columns=plain)
    add_grid(out, grid, "%{y} → %{x}: %{z:.3f}", colorbar_title_text=measure, **scale)
    names = order["task"]
    if len(order) > _NAMED_TASKS:
        fields = order.reset_index().groupby("field")["index"].agg(["min", "max"])
        names = fields.index.to_series().set_axis(fields.sum(axis=1) // 2)
        border = dict(style.THIN, color=style.INK)
        for edge in fields["min"].iloc[1:] - 0.5:
            out.add_vline(x=edge, line=border)
            out.add_hline(y=edge, line=border)
    ticks = {"tickmode": "array", "tickvals": names.index, "showgrid": False, "tickfont_size": 10}
    numbers = list(map(str, range(1, len(names) + 1)))
    out.update_yaxes(ticks, ticktext=[f"{spaced(name)} {number}" for name, number in zip(names, numbers, strict=True)])
    out.update_xaxes(ticks, ticktext=numbers, tickangle=0, title_text=f"{x}, numbered as on the left")
    return out.update_layout(height=520, meta={"least_width": 540})
