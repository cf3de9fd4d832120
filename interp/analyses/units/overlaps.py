"""The tables of `interp units`: which units tasks find again and share, and whether their differences are alike."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from scipy import sparse, stats

from interp.analyses.units.reading import LEVEL, TaskKey
from interp.analyses.units.summary import TaskUnits, kinds, n_top, shared
from interp.analyses.units.sums import Of, Place
from interp.corpora.pairs import COLUMNS
from interp.instruments.over_tasks import left_out

__all__ = ["phenomena", "unit_tables"]

_PERMUTATIONS = 1_000
_COLUMNS = {
    "consistency": "task control of overlap expected null null_high p p_adjusted n_units n_top n_pairs",
    "units": "task control of at unit t auc auc_error parts",
    "shared_units": "of task_a control_a task_b control_b overlap expected null null_high p",
    "phenomena": "of by within between difference low high p n_tasks n_groups",
    "separability": "task control of at unit auc low high error pair_share pair_low pair_high n_pairs",
    "similarity": "at task_a control_a task_b control_b cosine null_high",
    "tasks": "task field linguistics_term n_pairs",
}

Summaries: TypeAlias = Mapping[TaskKey, TaskUnits]


def unit_tables(units: Summaries, where: Sequence[Place], pairs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables of `UnitStudy`, from what is kept for each task.

    Args:
        where: the places that were read.
        pairs: the pairs of the tasks, of which the columns UID, field and linguistics_term are used.
    """
    sizes = {kind.of: len(kind.at) for kind in kinds(list(where))}
    shared_units = _shared_units(units, sizes)
    by_task = pairs.groupby("UID", sort=False)
    groups = by_task[list(COLUMNS[4:])].first()
    top_units: list[pd.DataFrame] = []
    separability: list[dict[str, object]] = []
    for key, summary in units.items():
        for table in summary.units:
            top_units.append(table.assign(**key._asdict()))
        for row in summary.separability:
            separability.append(dict(key._asdict(), **row))
    tables = {
        "consistency": _consistency(units, sizes),
        "units": pd.concat(top_units),
        "shared_units": shared_units,
        "phenomena": phenomena(shared_units, groups),
        "separability": pd.DataFrame(separability),
        "similarity": _similarity(units),
        "tasks": groups.assign(n_pairs=by_task.size()).rename_axis("task").reset_index(),
    }
    for name, columns in _COLUMNS.items():
        tables[name] = tables[name].reindex(columns=columns.split()).reset_index(drop=True)
    return tables


def _beside_null(draws: Float[np.ndarray, " draws"]) -> dict[str, float]:
    """The null of a value, which comes first, from the same with flipped labels: mean, 95th percentile, and p."""
    value, null = draws[0], draws[1:]
    p = (1 + (null >= value).sum()) / (1 + len(null))
    return {"overlap": value, "null": null.mean(), "null_high": np.quantile(null, 1 - LEVEL), "p": p}


def _consistency(units: Summaries, sizes: Mapping[Of, int]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for key, summary in units.items():
        n_pairs = {str(row["of"]): row["n_pairs"] for row in summary.separability}
        for kind, size in sizes.items():
            sets = summary.sets[kind]
            draws = shared(sets[:, 0], sets[:, 1]).mean(0)
            n = n_top(size)
            labels: dict[str, Any] = {"of": kind, "n_units": size, "n_top": n, "expected": n / size}
            labels["n_pairs"] = n_pairs[kind]
            rows.append(dict(key._asdict(), **labels, **_beside_null(draws)))
    table = pd.DataFrame(rows)
    return table.assign(p_adjusted=table.groupby(["control", "of"])["p"].transform(_adjusted))


def _adjusted(p: pd.Series) -> Any:
    return stats.false_discovery_control(p, method="bh")


def _shared_units(units: Summaries, sizes: Mapping[Of, int]) -> pd.DataFrame:
    keys = list(units)
    tables = []
    a, b = np.triu_indices(len(keys), 1)
    names: dict[str, list[str]] = {
        "task_a": [keys[i].task for i in a], "control_a": [keys[i].control for i in a],
        "task_b": [keys[i].task for i in b], "control_b": [keys[i].control for i in b],
    }  # fmt: skip
    for kind, size in sizes.items():
        sets = np.stack([summary.sets[kind] for summary in units.values()])  # [task, fold, part, draw, top]
        draws = np.stack([_overlaps(sets[:, :, :, draw], size)[a, b] for draw in range(sets.shape[3])], 1)
        if len(a):
            measured = pd.DataFrame([_beside_null(row) for row in draws])
            tables.append(pd.DataFrame(names).assign(of=kind, expected=n_top(size) / size, **measured))
    if not tables:
        return pd.DataFrame(columns=_COLUMNS["shared_units"].split())
    return pd.concat(tables, ignore_index=True)


def _overlaps(sets: Int[np.ndarray, "task fold 2 top"], size: int) -> Float[np.ndarray, "task task"]:
    """The share that the top of one task by a fold has in common with the top of another task by all other folds, as a
    mean over folds and both directions."""
    total = np.zeros((len(sets), len(sets)))
    for fold in range(sets.shape[1]):
        total += (_indicators(sets[:, fold, 0], size) @ _indicators(sets[:, fold, 1], size).T).toarray()
    return (total + total.T) / (2 * sets.shape[1] * sets.shape[3])


def _indicators(sets: Int[np.ndarray, "task top"], size: int) -> Any:
    task, place = np.nonzero(sets >= 0)
    return sparse.csr_array((np.ones(len(task)), (task, sets[task, place])), shape=(len(sets), size))


def phenomena(shared_units: pd.DataFrame, groups: pd.DataFrame) -> pd.DataFrame:
    """Do tasks of one group share more units than tasks of different groups? The table `phenomena`, see `UnitStudy`.

    Args:
        shared_units: the table of that name; controls are left out.
        groups: a table with field and linguistics_term, one row per task, indexed by its name.

    Examples:
        >>> shared_units = pd.DataFrame({"of": "heads", "task_a": ["a", "a", "b"], "task_b": ["b", "c", "c"]})
        >>> shared_units = shared_units.assign(control_a="none", control_b="none", overlap=[0.5, 0.1, 0.2])
        >>> groups = pd.DataFrame({"field": ["syntax", "syntax", "semantics"]}, index=["a", "b", "c"])
        >>> phenomena(shared_units, groups)[["within", "between"]].round(2).to_dict("records")
        [{'within': 0.5, 'between': 0.15}]
    """
    grammar = shared_units[(shared_units["control_a"] == "none") & (shared_units["control_b"] == "none")]
    rows: list[dict[str, Any]] = []
    for kind, part in grammar.groupby("of", sort=False):
        wide = part.pivot(index="task_a", columns="task_b", values="overlap").reindex(groups.index, axis=0)
        once = wide.reindex(groups.index, axis=1).to_numpy(dtype=np.float64)
        matrix = np.where(np.isnan(once), once.T, once)
        for by in groups:
            rows += _contrast(matrix, groups[by].fillna("").to_numpy(), {"of": kind, "by": by})
    return pd.DataFrame(rows, columns=_COLUMNS["phenomena"].split())


def _contrast(
    matrix: Float[np.ndarray, "task task"], labels: np.ndarray, keys: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    """The row of one grouping, or none if no two tasks are in the same group, or all are."""
    labelled = labels != ""
    codes = pd.factorize(labels[labelled])[0]
    matrix = np.nan_to_num(matrix[np.ix_(labelled, labelled)])
    n = len(codes)
    same_group = codes[:, None] == codes
    groups = [same_group & ~np.eye(n, dtype=bool), ~same_group]
    if not groups[0].any() or not groups[1].any():
        return
    within = float(matrix[groups[0]].mean())
    between = float(matrix[groups[1]].mean())
    distinct = (~np.eye(n, dtype=bool)).astype(np.float64)
    reach = left_out(_weighted(matrix, groups[0], distinct) - _weighted(matrix, groups[1], distinct))
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(n), (_PERMUTATIONS, 1)), axis=1)
    permuted = matrix[orders[:, :, None], orders[:, None]]
    gaps = permuted[:, groups[0]].mean(1) - permuted[:, groups[1]].mean(1)
    p = (1 + (gaps >= within - between - 1e-12).sum()) / (1 + _PERMUTATIONS)
    yield dict(
        keys, within=within, between=between, difference=within - between, low=within - between - reach,
        high=within - between + reach, p=p, n_tasks=n, n_groups=int(codes.max()) + 1,
    )  # fmt: skip


def _weighted(
    matrix: Float[np.ndarray, "task task"],
    cells: Bool[np.ndarray, "task task"],
    weights: Float[np.ndarray, "draw task"],
) -> Float[np.ndarray, " draw"]:
    """The mean of some cells, weighted by the weights of their row and column; NaN if they are all 0."""
    sums = ((weights @ np.where(cells, matrix, 0.0)) * weights).sum(1)
    times = ((weights @ (cells * 1.0)) * weights).sum(1)
    return np.divide(sums, times, out=np.full(len(weights), np.nan), where=times > 0)


def _similarity(units: Summaries) -> pd.DataFrame:
    keys = list(units)
    rows = []
    for state in next(iter(units.values())).difference:
        differences = [summary.difference[state] for summary in units.values()]
        vectors = np.stack(differences, axis=1).astype(np.float64)  # [draw, task, d]
        cosines = _cosines(vectors, vectors)
        high = np.quantile(np.abs(cosines[1:]), 1 - LEVEL, axis=0)  # NaN where no difference is left
        by_task = [summary.parts[state] for summary in units.values()]
        parts = np.stack(by_task, axis=1).astype(np.float64)  # [fold, task, part, d]
        by_fold = [np.diagonal(_cosines(fold[:, 0][None], fold[:, 1][None])[0]) for fold in parts]
        itself = np.mean(by_fold, axis=0)
        for i, j in combinations_with_replacement(range(len(keys)), 2):
            cosine, null = (itself[i], np.nan) if i == j else (cosines[0, i, j], high[i, j])
            rows.append((state, *keys[i], *keys[j], cosine, null))
    return pd.DataFrame(rows, columns=_COLUMNS["similarity"].split())


def _cosines(
    a: Float[np.ndarray, "draw task d"], b: Float[np.ndarray, "draw task d"]
) -> Float[np.ndarray, "draw task task"]:
    """Cosines of all pairs; NaN for a vector of zeros."""
    with np.errstate(invalid="ignore"):
        a = a / np.linalg.norm(a, axis=2, keepdims=True)
        b = b / np.linalg.norm(b, axis=2, keepdims=True)
    return np.asarray(a @ b.transpose(0, 2, 1))
