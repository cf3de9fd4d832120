"""The passes over the pairs of each task, including its controls, and what is kept of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from interp.analyses.units.options import ControlPairs
from interp.analyses.units.summary import TaskUnits, n_top, task_units
from interp.analyses.units.sums import (
    BINS,
    Place,
    Scale,
    UnitSums,
    folds_of,
    pair_batches,
    places,
    signs_of,
)
from interp.corpora import pairs as minimal_pairs
from interp.corpora.controls import Swap
from interp.corpora.frames import settled_bos
from interp.corpora.pairs import COLUMNS, sentences_of
from interp.corpora.positions import state_rows
from interp.corpora.splits import UsedPairs, used_pairs
from interp.models.identity import weight_hash
from interp.models.shapes import Shape
from interp.models.sites import Model, is_encoder
from interp.passes.budget import Pass
from interp.passes.execution import Passes, Reading
from interp.passes.reading import TOKENS_AT_ONCE
from interp.support.checks import check_choice
from interp.support.choices import Bos, Position

__all__ = ["FLIPS", "LEVEL", "TaskKey", "sample", "unit_cost", "unit_passes", "why_too_few"]

FLIPS = 40
"""How often labels are flipped at random within pairs. The smallest p is 1/41."""
_AT_ONCE = 256 * 2**20  # bytes of sums that are held at the same time
LEVEL = 0.05
"""The level of a permutation test."""
_FEWEST = 6  # groups in a fold; flipping them in 2⁶ ways is enough for a p of .05
_SCALED_BY, _FEWEST_SCALED = 64, 8  # the scale of histograms comes from one pair in 64, but from at least 8


class TaskKey(NamedTuple):
    """A task, with `none`, or with `words` or `numbers` for a control of the task."""

    task: str
    control: str


def unit_passes(
    model: Model,
    pairs: pd.DataFrame,
    controls: ControlPairs,
    *,
    position: Position | None,
    folds: int,
    bos: Bos,
) -> Passes[tuple[dict[TaskKey, TaskUnits], dict[str, Any]]]:
    """What is kept for every task, with a few tasks read at a time, and the settings."""
    position = position or _usual(model)
    table = _with_controls(pairs, controls)
    rows = state_rows(model, sentences_of(table), position, bos=bos)
    used = used_pairs(table, rows, by=("UID", "control"))
    tasks = _divided(table, used, folds)
    where = places(model)
    settled = settled_bos(model, bos)
    settings: dict[str, Any] = {"weight_hash": weight_hash(model), "bos": settled, "folds": folds, "flips": FLIPS}
    units: dict[TaskKey, TaskUnits] = {}
    for keys in _chunks(list(tasks), where, folds):
        samples = [sample(tasks[key].pairs) for key in keys]
        scales = [Scale(model, where, few) for few in samples]
        some_batches = pair_batches(model, rows, samples, position, settings)
        yield [Reading("scales of units", some_batches, scales)]
        observers = [UnitSums(model, where, *tasks[key], scale=scale) for key, scale in zip(keys, scales, strict=True)]
        all_batches = pair_batches(model, rows, [tasks[key].pairs for key in keys], position, settings)
        yield [Reading("units", all_batches, observers)]
        for key, observer in zip(keys, observers, strict=True):
            units[key] = task_units(observer)
            _check_differs(key, units[key], position)
    settings.update(position=position, pair_counts=used.counts)
    return units, settings


def unit_cost(size: Shape, n_tasks: int, longest: int, folds: int) -> tuple[Pass, int]:
    """Estimate the cost of `unit_passes` and the bytes that are stored, from the shape of a model. In addition to the
    sums of the tasks that are read side by side, it holds the top units of every task with labels flipped, and mean
    differences of the residual stream; and for a batch, the values of a place in float64, their bins and a histogram.

    Args:
        n_tasks: how many tasks and controls there are.
        longest: the tokens of the longest sentence.
    """
    outputs = size.n_heads * size.d_head
    units = (size.n_layers + 1) * size.d_model + size.n_layers * (size.d_mlp + outputs)
    sets = 4 * 2 * folds * (1 + FLIPS) * n_top(units)
    differences = 4 * (size.n_layers + 1) * size.d_model * (1 + FLIPS + 2 * folds)
    task_bytes = bytes_of_task(units, folds)
    rows = max(1, TOKENS_AT_ONCE // longest)
    read = Pass(
        what="units", text="sentences of units", sums=task_bytes * tasks_at_once(units, folds, n_tasks),
        copies=n_tasks * (sets + differences), size=(rows, longest),
        per_batch=max(size.d_mlp, outputs) * (rows * 6 * 8 + 4 * 8 * folds * BINS),
    )  # fmt: skip
    return read, n_tasks * (task_bytes + Scale.n_bytes(None, [""], width=units))


def why_too_few(model: Model, pairs: pd.DataFrame, position: Position | None, folds: int) -> str | None:
    """Return why the pairs of some task cannot be divided into folds, or None if they can."""
    table = pairs.assign(control="none")
    rows = state_rows(model, sentences_of(table), position or _usual(model))
    try:
        _divided(table, used_pairs(table, rows), folds)
    except ValueError as error:
        return str(error)
    return None


def _usual(model: Model) -> Position:
    return "cls" if is_encoder(model) else "eos"


class _Divided(NamedTuple):
    """The pairs of a task that are used, the fold of each, and its signs; see `UnitSums`."""

    pairs: Int[np.ndarray, " pairs"]
    fold: Int[np.ndarray, " pairs"]
    signs: Float[np.ndarray, "flips pairs"]


def _divided(table: pd.DataFrame, used: UsedPairs, folds: int) -> dict[TaskKey, _Divided]:
    """Every task, with its groups of pairs drawn into folds. A group of several tasks is in the same fold of each.

    Raises ValueError for a task with fewer than six groups in a fold.
    """
    fold_of: dict[int, int] = {}
    tasks: dict[TaskKey, _Divided] = {}
    for task, control in table[["UID", "control"]].drop_duplicates().itertuples(index=False):
        here = (table["UID"] == task) & (table["control"] == control)
        pairs = np.flatnonzero(here & used.used)
        groups, group = np.unique(used.group[pairs], return_inverse=True)
        for number, fold in zip(groups.tolist(), folds_of(len(groups), folds).tolist(), strict=True):
            fold_of.setdefault(number, fold)
        fold = np.array([fold_of[number] for number in groups.tolist()])
        key = TaskKey(str(task), str(control))
        _check_size(key, int(here.sum()), len(groups), np.bincount(fold, minlength=folds))
        tasks[key] = _Divided(pairs, fold[group], signs_of(len(groups), FLIPS)[:, group])
    return tasks


def sample(pairs: Int[np.ndarray, " pairs"]) -> Int[np.ndarray, " some"]:
    """The pairs that scale the histograms of a task, spread evenly over all pairs."""
    n = min(len(pairs), max(_FEWEST_SCALED, len(pairs) // _SCALED_BY))
    return np.asarray(pairs[np.linspace(0, len(pairs) - 1, n).round().astype(int)])


def bytes_of_task(units: int, folds: int) -> int:
    """The bytes of the sums of a task."""
    return UnitSums.n_bytes(None, [""], width=units, folds=folds, flips=FLIPS)


def tasks_at_once(units: int, folds: int, n_tasks: int) -> int:
    """How many tasks are read side by side."""
    return min(n_tasks, max(1, _AT_ONCE // bytes_of_task(units, folds)))


def _chunks(tasks: Sequence[TaskKey], where: Sequence[Place], folds: int) -> Iterator[Sequence[TaskKey]]:
    """Tasks that are read side by side."""
    units = sum(place.width for place in where)
    size = tasks_at_once(units, folds, len(tasks))
    for start in range(0, len(tasks), size):
        yield tasks[start : start + size]


def _with_controls(pairs: pd.DataFrame, controls: ControlPairs) -> pd.DataFrame:
    """The pairs of all tasks, and of their controls of each kind."""
    columns = list(COLUMNS[:3])
    tasks = pairs["UID"].unique().tolist()
    kinds = controls if isinstance(controls, Mapping) else {"words": controls}
    tables = [pairs[columns].assign(control="none")]
    for kind, source in kinds.items():
        check_choice("control_pairs", kind, get_args(Swap))
        table = minimal_pairs.read(source).table
        if without := [task for task in tasks if task not in set(table["UID"])]:
            advice = "give each task pairs that do not differ in grammar, under its own UID, or control_pairs={}"
            raise ValueError(f"control_pairs ({kind}) has no pairs for {', '.join(without)}; {advice}")
        if unknown := sorted(set(table["UID"]) - set(tasks)):
            problem = f"control_pairs ({kind}) has pairs for {', '.join(unknown)}, which are not among the tasks"
            raise ValueError(f"{problem}; leave them out")
        tables.append(table[columns].assign(control=kind))
    return pd.concat(tables, ignore_index=True)


def _check_size(key: TaskKey, n_pairs: int, n_groups: int, in_folds: Int[np.ndarray, " folds"]) -> None:
    if in_folds.min() < _FEWEST:
        problem = f"task {key.task!r} has {n_pairs} pairs{' of its control' * (key.control != 'none')}"
        problem += f" in {n_groups} groups that share no sentence" * (n_groups < n_pairs)
        needed = f"{problem}, {in_folds.min()} in each of {len(in_folds)} folds; a permutation test at {LEVEL:g} needs"
        raise ValueError(f"{needed} {_FEWEST} or more in each: give more pairs or fewer folds")


def _check_differs(key: TaskKey, units: TaskUnits, position: str) -> None:
    if all((sets[:, :, 0] < 0).all() for sets in units.sets.values()):
        problem = f"no unit differs between the two sentences of any pair of task {key.task!r}, read at {position!r}"
        raise ValueError(f"{problem}; read them where they differ: position='last', 'eos' or 'mean'")
