"""What `interp probing` finds: whether probes do better than words, untrained models, chance and random bases, and with
how few dimensions."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.analyses.probing.rotations import LEAST_DENSE
from interp.instruments.over_tasks import (
    Mean,
    Units,
    apart,
    judged_over,
    mean_over,
    most_general,
    off_diagonal,
)
from interp.results.findings import Answer, Finding
from interp.results.verdicts import ZERO, Control, smallest
from interp.support.words import count, printed

__all__ = ["above_untrained", "answer", "beyond", "concentrated", "held", "needed", "some_general"]

_S = smallest("accuracy")
_SIGNED = "{:+z.3f}"
_PROBES = {"dense": "dense probes", "l0": "sparse probes", "topk": "probes of the top dimensions"}
_WORDS = {"bag_of_words": "a bag of words"}
_SHOWN_DIMS = 6


def answer(
    means: pd.DataFrame, by_state: pd.DataFrame, neurons_read: pd.DataFrame, state: int, n_dims: int, over: str
) -> Answer:
    """How many dimensions sparse probes read at one state, which of them for the most tasks, and how often they are
    right, beside other probes.

    Args:
        means, by_state, neurons_read: tables of `ProbingStudy`.
        state: the state of its findings.
        n_dims: the length of a vector.
        over: what the means are over, with their number.
    """
    accuracy = means[means["state"] == state].set_index("probe")["accuracy"]
    values: dict[str, Any] = {"state": state}
    accuracies = []
    for probe, name in (*_PROBES.items(), *_WORDS.items()):
        if probe in accuracy:
            values[probe] = accuracy[probe]
            accuracies.append(f"{name} {accuracy[probe]:.3f}")
    text = f"Accuracy at state {state}, mean over {over}: {', '.join(accuracies)}."
    if len(neurons_read) and "l0_open" in by_state:
        values["n_read"] = n_dims * by_state.loc[by_state["state"] == state, "l0_open"].iloc[0]
        top = neurons_read[neurons_read["read_by"] == neurons_read["read_by"].max()]
        values.update(dims=top["dim"].tolist(), read_by=int(top["read_by"].iloc[0]))
        text += f" A sparse probe reads {values['n_read']:.1f} of {n_dims} dimensions on average"
        if len(top) <= _SHOWN_DIMS:
            dims = f"dimension{'s' * (len(top) > 1)} {', '.join(map(str, values['dims']))}"
            text += f"; most often {dims}, for {count(values['read_by'], 'task')}{' each' * (len(top) > 1)}"
        text += "."
    return Answer(text, values)


def beyond(differences: pd.DataFrame, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    """Probes of one state against a bag of words, from the table `differences` of a study.

    Probes of the top dimensions are left out if there are sparse ones.

    Args:
        phenomena: the phenomenon of each task, if it has one; in all functions here.
    """
    rows = differences[differences["against"] == "bag_of_words"]
    row: Any
    for row in rows[rows["probe"].isin(_shown(rows))].itertuples():
        mean = _as_printed(row, phenomena)
        yield judged_over(
            mean, question=f"Are {_PROBES[row.probe]} more accurate than a bag of words?",
            measure=f"{_tasks_apart(row)}; the difference in accuracy (mean over {count(mean.n, mean.unit)}) is",
            controls=[ZERO], smallest=_S, form=_SIGNED,
        )  # fmt: skip


def _shown(rows: pd.DataFrame) -> list[str]:
    present = set(rows["probe"])
    return [name for name in _PROBES if name in present and not (name == "topk" and "l0" in present)]


def _as_printed(row: Any, phenomena: Mapping[Any, Any]) -> Mean:
    """The mean of a row of `differences`. Its tasks are those of the study."""
    units = Units.of(list(phenomena), phenomena)
    return Mean(row.difference, row.low, row.high, units.n, units.name)


def _tasks_apart(row: Any) -> str:
    return (
        f"they are better on {row.above:.0f} of {count(int(row.n_tasks), 'task')} and worse on {row.below:.0f} "
        "(McNemar's test, p ≤ .05)"
    )


def above_untrained(
    untrained: pd.DataFrame, differences: pd.DataFrame, phenomena: Mapping[Any, Any]
) -> Iterator[Finding]:
    """Probes of a model against those of untrained models, from the tables `untrained` and `differences`."""
    counts = differences.set_index(["probe", "against"])
    for name in _shown(untrained):
        rows = untrained[untrained["probe"] == name]
        accuracies, controls, units = _by_draw(rows, "untrained", phenomena)
        if not len(controls):
            continue
        mean, draws = apart(accuracies, controls, units)
        measure = f"the accuracy of the model's own minus the mean of the others (mean over {units.said}) is"
        if (name, f"{name}_untrained") in counts.index:
            measure = f"{_tasks_apart(counts.loc[(name, f'{name}_untrained')])}; {measure}"
        yield judged_over(
            mean, question=f"Are {_PROBES[name]} more accurate than those of untrained models?", measure=measure,
            controls=[Control("untrained models", draws, "models")], smallest=_S, form=_SIGNED,
        )  # fmt: skip


def _by_draw(
    rows: pd.DataFrame, control: str, phenomena: Mapping[Any, Any]
) -> tuple[Float[np.ndarray, " tasks"], Float[np.ndarray, "draws tasks"], Units]:
    """The accuracy on each task, that of each draw of a control on the same tasks, and what means are over."""
    wide = rows.pivot(index=["control", "draw"], columns="task", values="accuracy")
    tasks = rows["task"].unique()
    accuracies = wide.loc[("none", 0), tasks].to_numpy(dtype=np.float64)
    draws = wide.loc[wide.index.get_level_values("control") == control, tasks].to_numpy(dtype=np.float64)
    return accuracies, draws, Units.of(tasks.tolist(), phenomena)


def concentrated(rotations: pd.DataFrame, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    """Whether the top dimensions hold more than those of random bases, for each of their numbers, from the table
    `rotations`."""
    if rotations.empty:
        return
    d = int(rotations["k"].max())
    n_tasks = rotations["task"].nunique()
    question = "Is what probes read concentrated in few dimensions{}?"
    accurate = f"on which a probe of all dimensions is right on more than {LEAST_DENSE:g} (lower end)"
    for k, rows in rotations[rotations["k"] < d].groupby("k"):
        accuracies, controls, units = _by_draw(rows, "rotation", phenomena)
        mean, draws = apart(accuracies, controls, units)
        sides = units.means(accuracies), units.means(controls.T)
        printed_means = [printed(values.mean(), "{:.3f}") for values in sides]
        where = f"on the {len(accuracies)} of {count(n_tasks, 'task')} {accurate}, "
        top = f"the top {k:,} of {d:,} dimensions by |t| have an accuracy of {printed_means[0]}"
        yield judged_over(
            mean, question=question.format(f" (the top {k:,} of {d:,})"),
            measure=f"{where}{top}, and those of random rotations {printed_means[1]}; the difference (mean over "
            f"{units.said}) is",
            controls=[Control("random rotations", draws)], smallest=_S, form=_SIGNED,
        )  # fmt: skip
    if not (rotations["k"] < d).any():
        nothing = Mean(np.nan, np.nan, np.nan, 0, "task")
        yield judged_over(
            nothing, question=question.format(""), measure=f"there is no task of {n_tasks} {accurate}; the accuracy of "
            "the top dimensions, minus that in random rotations, is",
            controls=[Control("random rotations", [])], smallest=_S, form=_SIGNED,
        )  # fmt: skip


def held(transfer: pd.DataFrame, l0_strength: float, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    """Whether probes are right on the pairs of tasks that they have not seen, from the table `transfer`."""
    for name, matrix, units in _across(transfer, l0_strength, phenomena):
        mean = off_diagonal(matrix, units)
        yield judged_over(
            mean, question=f"Are {name} probes of one task right on {_others(units)}?",
            measure="the share of pairs that probes trained on one task judge correctly on another (mean over pairs of "
            f"{units.said}) is", controls=[Control("chance", [0.5], "number")], smallest=_S,
        )  # fmt: skip


def some_general(transfer: pd.DataFrame, l0_strength: float, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    """Whether the sparse probes of any task are right on the pairs of others, and more so than a bag of words, from the
    table `transfer`; see `interp.instruments.over_tasks.most_general`."""
    (_, matrix, units), *_ = _across(transfer, l0_strength, phenomena)
    tasks = transfer["test_task"].unique()
    measures = {"": (matrix - 0.5, "minus ½")}
    words = _matrix(transfer[transfer["method"] == "bag_of_words"])
    if len(words):
        minus = "minus that of a bag of words trained on the same task"
        measures[" beyond what its words tell"] = (matrix - words, minus)
    for beyond_words, (values, minus) in measures.items():
        best, mean, draws = most_general(values, units)
        yield judged_over(
            mean, question=f"Is the sparse probe of some task right on {_others(units)}{beyond_words}?",
            measure=f"of {count(len(matrix), 'task')}, that of {tasks[best].replace('_', ' ')} is right most often: "
            f"its share of pairs of the others, {minus} (mean over {count(mean.n, mean.unit)}), is",
            controls=[Control("draws with the sentences of pairs swapped by " + units.name, draws)], smallest=_S,
            form=_SIGNED,
        )  # fmt: skip


def _across(
    transfer: pd.DataFrame, l0_strength: float, phenomena: Mapping[Any, Any]
) -> Iterator[tuple[str, Float[np.ndarray, "tasks tasks"], Units]]:
    """The pair accuracy of sparse and of dense probes: of each task (row) on each task (column)."""
    units = Units.of(transfer["test_task"].unique().tolist(), phenomena)
    yield "sparse", _matrix(transfer[transfer["l0_strength"] == l0_strength]), units
    yield "dense", _matrix(transfer[transfer["method"] == "dense"]), units


def _matrix(rows: pd.DataFrame) -> Float[np.ndarray, "tasks tasks"]:
    tasks = rows["test_task"].unique()
    wide = rows.pivot(index="train_task", columns="test_task", values="pair_accuracy")
    return np.asarray(wide.loc[tasks, tasks].to_numpy(dtype=np.float64))


def _others(units: Units) -> str:
    return "tasks of other phenomena" if units.name == "phenomenon" else "tasks that it has not seen"


def needed(changes: pd.DataFrame, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    """Whether accuracy needs the neurons that probes found more than neurons of matched magnitude, and more than random
    ones that cost as much perplexity, from the table `ablation` with its changes."""
    for mode, part in changes.groupby("mode", sort=False):
        by_task = part.groupby(["task", "set"], sort=False)["accuracy"].mean().unstack()
        to = "their means" if mode == "mean" else "zero"
        question = f"Does the model need the neurons that sparse probes found (set to {to})?"
        yield _needed(by_task, "matched", to, question, "others of matched magnitude", phenomena)
        if "perplexity" in by_task:
            question = f"Does it need them more than random neurons that cost as much perplexity (set to {to})?"
            yield _needed(by_task, "perplexity", to, question, "these random neurons", phenomena)


def _needed(
    by_task: pd.DataFrame, other: str, to: str, question: str, control_words: str, phenomena: Mapping[Any, Any]
) -> Finding:
    """How much the change of accuracy without the neurons that were found differs from that without others."""
    rows = by_task.dropna(subset=["found", other])
    change = rows["found"].to_numpy(dtype=np.float64)
    without = rows[other].to_numpy(dtype=np.float64)
    units = Units.of(rows.index.tolist(), phenomena)
    control_change = printed(units.means(without).mean(), _SIGNED) if len(rows) else "undefined"
    return judged_over(
        mean_over(change - without, units), question=question,
        measure=f"its accuracy on {count(len(rows), 'task')} with them set to {to}, minus that with {control_words} "
        f"set to {to} (which changes it by {control_change}; mean over {units.said}), is",
        controls=[ZERO], smallest=_S, towards=-1, form=_SIGNED,
    )  # fmt: skip
