"""Figures of units that tell good sentences from bad."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from interp.analyses.units.columns import KINDS
from interp.analyses.units.tables import UnitStudy
from interp.figures import style
from interp.figures.draw import add_grid, add_series, error_bars, only
from interp.figures.figure import Figure
from interp.figures.style import Style, figure, panels, spaced

__all__ = ["pair_similarity", "shared_units", "unit_consistency", "unit_depth", "unit_separability"]

_LOOK: dict[str, Style] = {
    "none": {"name": "grammar", "color": style.BLUE, "symbol": "circle"},
    "words": {"name": "a word swapped", "color": style.AMBER, "symbol": "square"},
    "numbers": {"name": "a number swapped", "color": style.PINK, "symbol": "diamond"},
    "null": {"name": "labels flipped", "color": style.GREY, "symbol": "x"},
}


_SWAPPED = {"none": "", "words": " (word)", "numbers": " (number)"}


def unit_consistency(study: UnitStudy) -> Figure:
    """The share of the top 1 % of units that other pairs of the same task find again: a point for each task, its
    controls, and the mean with labels flipped.

    Examples:
        >>> import interp
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=40)
        >>> study = interp.units.study(interp.load("tiny-gpt2"), pairs, control_pairs={}, bos=True, progress=False)
        >>> [trace.name for trace in unit_consistency(study).data]
        ['grammar', 'labels flipped']
    """
    table = study.consistency
    out = figure(
        "Are the top units found again by other pairs?",
        "",
        "share of the top 1 %",
        subtitle="one point per task; top by paired t",
    )
    null = table[table["control"] == "none"].assign(control="null", overlap=lambda rows: rows["null"])
    for kind, part in pd.concat([table, null]).groupby("control", sort=False):
        look = _LOOK[str(kind)]
        points: dict[str, Any] = {"boxpoints": "all", "jitter": 0.4, "pointpos": 0, "line_width": 1.4}
        points["marker"] = {"size": 4, "opacity": 0.6, "color": look["color"]}
        points["text"] = part["task"].map(spaced)
        names = part["of"].map(KINDS)
        out.add_box(x=names, y=part["overlap"].round(4), name=look["name"], hovertemplate=_HOVER, **points)
    return out.update_layout(boxmode="group").update_yaxes(rangemode="tozero")


_HOVER = "%{text}: %{y:.3f}<extra></extra>"


def shared_units(study: UnitStudy, of: str = "residual") -> Figure:
    """Which tasks share units: the overlap of the top 1 % of two tasks; on the diagonal, that of a task with its other
    pairs; further right, that with the controls of tasks.

    Args:
        of: the kind of units: residual, neurons or heads.

    Raises ValueError for a result of a single task, or for a kind that it does not have.

    Examples:
        >>> import interp
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number", "causative"], limit=40)
        >>> study = interp.units.study(interp.load("tiny-gpt2"), pairs, control_pairs={}, bos=True, progress=False)
        >>> shared_units(study, of="heads").data[0].z.shape
        (2, 2)
    """
    if study.shared_units.empty:
        raise ValueError("the table shared_units of this result has no rows; give two tasks or more")
    table = only(study.shared_units, "of", of)
    turned = table.rename(columns={"task_a": "task_b", "task_b": "task_a", "control_a": "control_b",
                                   "control_b": "control_a"})  # fmt: skip
    diagonal = only(study.consistency, "of", of)
    task, control = diagonal["task"], diagonal["control"]
    diagonal = diagonal.assign(task_a=task, task_b=task, control_a=control, control_b=control)
    rows = pd.concat([table, turned, diagonal])
    rows = rows[rows["control_a"] == "none"]
    wide = rows.pivot(index="task_a", columns=["control_b", "task_b"], values="overlap")
    tasks = diagonal.loc[diagonal["control"] == "none", "task"].tolist()
    columns = []
    names = []
    for kind, name in product(_SWAPPED, tasks):
        if (kind, name) in wide:
            columns.append((kind, name))
            names.append(spaced(name) + _SWAPPED[kind])
    grid = wide.loc[tasks, columns].set_axis(names, axis=1).rename(index=spaced)
    out = figure("Units that tasks share", "", "", subtitle=f"{KINDS[of]}: share of the top 1 % in common")
    add_grid(out, grid, "%{y}, %{x}: %{z:.3f}", reach=1.0)
    for behind in range(len(tasks), len(columns), len(tasks)):
        out.add_vline(x=behind - 0.5, line=dict(style.THIN, color=style.INK))
    out.update_xaxes(tickangle=-45, tickfont_size=9, showgrid=False)
    out.update_yaxes(tickfont_size=9, showgrid=False)
    return out.update_layout(height=520, meta={"least_width": 640})


def unit_separability(study: UnitStudy, of: str = "residual") -> Figure:
    """The AUC of each task's best single unit, chosen on other pairs, with its 95 % interval, and of its controls.

    Args:
        of: the kind of units: residual, neurons or heads.

    Raises ValueError for a kind that the result does not have.

    Examples:
        >>> import interp
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=40)
        >>> study = interp.units.study(interp.load("tiny-gpt2"), pairs, control_pairs={}, bos=True, progress=False)
        >>> unit_separability(study).layout.title.text
        'How well one unit tells good from bad'
    """
    table = only(study.separability, "of", of)
    out = figure(
        "How well one unit tells good from bad", "", "AUC of the best", subtitle=f"{KINDS[of]}, chosen on other pairs"
    )
    for control, part in table.groupby("control", sort=False):
        values = part.set_index(part["task"].map(spaced))[["auc", "low", "high"]].astype(np.float64).round(4)
        bars = error_bars(values["auc"], values["low"], values["high"])
        add_series(out, values["auc"], _LOOK[str(control)], mode="markers", hover="%{x}: %{y:.3f}", error_y=bars)
    out.add_hline(y=0.5, line=style.CHANCE, annotation_text="chance", annotation_position="bottom left")
    return out.update_xaxes(tickangle=-45, tickfont_size=10)


def unit_depth(study: UnitStudy) -> Figure:
    """Where the top units are: the share of them at each hidden state or block, as a mean over tasks, by kind of unit.

    Examples:
        >>> import interp
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=40)
        >>> study = interp.units.study(interp.load("tiny-gpt2"), pairs, control_pairs={}, bos=True, progress=False)
        >>> [len(trace.x) for trace in unit_depth(study).data]
        [7, 6, 6]
    """
    table = study.units
    kinds = table["of"].drop_duplicates().tolist()
    out = panels("Where the top units are", "state, or block", names=[KINDS[kind] for kind in kinds])
    last = int(table.loc[table["of"] == "residual", "at"].max())
    for panel, kind in enumerate(kinds, 1):
        places = range(max(last + (kind == "residual"), int(table.loc[table["of"] == kind, "at"].max()) + 1))
        for control, part in only(table, "of", kind).groupby("control", sort=False):
            counts = part.groupby("task")["at"].value_counts(normalize=True).unstack(fill_value=0)
            shares = counts.reindex(columns=places, fill_value=0.0).mean()
            hover = "%{x}: %{y:.1%}"
            add_series(out, shares.round(4), _LOOK[str(control)], hover=hover, legend=panel == 1, panel=panel)
    return out.update_yaxes(tickformat=".0%", rangemode="tozero").update_yaxes(title_text="of the top 1 %", col=1)


def pair_similarity(study: UnitStudy) -> Figure:
    """Do differences good minus bad of different tasks point the same way? Mean cosines by hidden state, of a
    task with its other pairs, with other tasks and with the controls of others, and what flipped labels reach.

    Raises ValueError for a result of a single task.

    Examples:
        >>> import interp
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number", "causative"], limit=40)
        >>> study = interp.units.study(interp.load("tiny-gpt2"), pairs, control_pairs={}, bos=True, progress=False)
        >>> [trace.name for trace in pair_similarity(study).data]
        ['its other pairs', 'other tasks', '95 % of flipped labels']
    """
    table = study.similarity
    same_task = (table["task_a"] == table["task_b"]) & (table["control_a"] == table["control_b"])
    grammar = (table["control_a"] == "none") & (table["control_b"] == "none")
    if table[~same_task].empty:
        raise ValueError("the table similarity of this result compares no two tasks; give two tasks or more")
    out = figure(
        "Do tasks share a direction?",
        "hidden state",
        "cosine",
        subtitle="of the mean differences good minus bad, in the residual stream",
    )
    mixed = (table["control_a"] == "none") != (table["control_b"] == "none")
    lines: dict[str, tuple[pd.DataFrame, str, Style]] = {
        "its other pairs": (table[same_task & grammar], "cosine", {"color": style.INK, "symbol": "diamond"}),
        "other tasks": (table[~same_task & grammar], "cosine", {"color": style.BLUE, "symbol": "circle"}),
        "controls of other tasks": (
            table[mixed & (table["task_a"] != table["task_b"])], "cosine",
            {"color": style.AMBER, "symbol": "square"},
        ),
        "95 % of flipped labels": (table[~same_task & grammar], "null_high", {"color": style.GREY, "dash": "dot"}),
    }  # fmt: skip
    for name, (part, measure, look) in lines.items():
        means = part.groupby("at")[measure].mean().round(4)
        add_series(out, means, dict(look, name=name), hover="state %{x}: %{y:.3f}")
    return out.update_yaxes(zeroline=True, zerolinecolor=style.GREY)
