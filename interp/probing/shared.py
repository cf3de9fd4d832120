"""What tasks share: probes of one read on another, neurons in common, and a probe of grammaticality in general."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy import stats
from torch import Tensor

from interp.checks import check_seed, whole_number
from interp.models import find_device
from interp.probing.fitting import fit_dense, fit_sparse
from interp.probing.group import Group, hits
from interp.probing.options import STEPS
from interp.probing.split import Split, of_equal_size, split_tasks
from interp.probing.states import States
from interp.probing.sweeps import SHOWN_L0_STRENGTH, check_neurons

_PAIRS_A_TASK = 100  # of training, in a probe of many tasks
_DENSE: dict[str, str | float] = {"method": "dense", "l0_strength": np.nan, "C": 1.0}


def transfer(
    collected: States,
    *,
    tasks: Sequence[str] | None = None,
    states: Sequence[int] | None = None,
    l0_strengths: Sequence[float | int] = (SHOWN_L0_STRENGTH, 1.0),
    raw: bool = False,
    steps: int = STEPS,
    seed: int = 0,
    device: str | None = None,
) -> pd.DataFrame:
    """Every task's probe on every task's test pairs, one matrix product a state.

    A probe keeps its own task's standardisation. `pair_accuracy` (good scored above bad) does not see a shift of the
    task mean, which moves the threshold of `accuracy`.

    Args:
        tasks, states: which; all by default.
        l0_strengths: λ of the sparse probes; beside them stands the dense one (L2, C = 1). λ = 1 leaves all gates
            open, the paper's dense baseline.
        raw, steps, seed, device: see `sweep`.

    Returns the table `transfer` (train_task, test_task, state, method, l0_strength, C, accuracy, pair_accuracy):
    method `l0`, with its λ, or `dense`, with its C.

    Raises as `sweep` does.
    """
    l0_strengths, steps, seed = list(l0_strengths), whole_number(steps, "steps", least=1), check_seed(seed)
    splits = split_tasks(collected.pairs, tasks)
    chosen = list(splits)
    kinds = [*map(_sparse, l0_strengths), _DENSE]
    tables = []
    for state in collected.states if states is None else states:
        vectors = collected.load(state)
        scorers: dict[str, tuple[Float[np.ndarray, "kinds d"], Float[np.ndarray, " kinds"]]] = {}
        for some in of_equal_size(splits):
            group = Group(vectors, some, raw=raw, device=find_device(device))
            scaled = _coefficients(group, l0_strengths, steps, seed) / group.spread[:, None]
            offsets = -(scaled * group.mean[:, None]).sum(2)
            scorers |= {task: (scaled[i], offsets[i]) for i, task in enumerate(some)}
        tested = np.concatenate([vectors[splits[task].test] for task in chosen]).astype(np.float64)
        ends = np.cumsum([len(splits[task].test) for task in chosen])[:-1]
        for number, kind in enumerate(kinds):
            W = np.stack([scorers[task][0][number] for task in chosen], 1)
            scores = tested @ W + [scorers[task][1][number] for task in chosen]
            right, above = hits(scores[:, 0], scores[:, 1])
            where = {"train_task": np.repeat(chosen, len(chosen)), "test_task": np.tile(chosen, len(chosen))}
            measured = {
                name: np.stack([part.mean(0) for part in np.split(values, ends)], 1).ravel()  # train task first
                for name, values in (("accuracy", right), ("pair_accuracy", above))
            }
            tables.append(pd.DataFrame(where | {"state": state} | kind | measured))
    return pd.concat(tables, ignore_index=True)


def _sparse(l0_strength: float | int) -> dict[str, str | float]:
    return {"method": "l0", "l0_strength": float(l0_strength), "C": np.nan}


def _coefficients(
    group: Group, l0_strengths: Sequence[float | int], steps: int, seed: int
) -> Float[np.ndarray, "tasks kinds d"]:
    """Of the sparse probes and the dense probe of each task, on standardised states."""
    y = group.columns(group.labels(group.n)[:, None])
    found = []
    if l0_strengths:
        many = y.expand(-1, -1, len(l0_strengths))
        seeds = [seed] * len(l0_strengths)
        fitted = fit_sparse(group.X, many, l0_strengths=[float(s) for s in l0_strengths], seeds=seeds, steps=steps)
        found.append(fitted.coefficients.double())
    return torch.cat([*found, fit_dense(group.X, y)], 1).cpu().numpy()


def overlap(neurons: pd.DataFrame) -> pd.DataFrame:
    """Which tasks share neurons: of each pair of tasks, the Jaccard index of their open gates and the cosine of w ⊙ m.

    `jaccard` is |A ∩ B| / |A ∪ B|; `expected` its mean over random sets of the same sizes (|A ∩ B| hypergeometric).
    NaN where no gate is open.

    Args:
        neurons: the table of `sweep`.

    Returns the table `overlap` (task_a, task_b, state, jaccard, expected, cosine), each pair once.

    Raises ValueError for a table that lacks dimensions or has them twice.
    """
    check_neurons(neurons)
    rows = []
    for state, part in neurons.groupby("state", sort=False):
        tasks = list(part["task"].unique())
        is_open = part.pivot(index="task", columns="dim", values="gate").loc[tasks].to_numpy() > 0
        coefficients = part.assign(c=part["gate"] * part["weight"]).pivot(index="task", columns="dim", values="c")
        c = coefficients.loc[tasks].to_numpy(dtype=np.float64)
        norms = np.linalg.norm(c, axis=1)
        norms[norms == 0] = np.nan
        cosine = c @ c.T / np.outer(norms, norms)
        shared = is_open.astype(float) @ is_open.T
        sizes = is_open.sum(1)
        for a, b in zip(*np.triu_indices(len(tasks), 1), strict=True):
            union = sizes[a] + sizes[b] - shared[a, b]
            jaccard = shared[a, b] / union if union else np.nan
            chance = _expected_jaccard(int(sizes[a]), int(sizes[b]), is_open.shape[1])
            rows.append((tasks[a], tasks[b], state, jaccard, chance, cosine[a, b]))
    return pd.DataFrame(rows, columns=["task_a", "task_b", "state", "jaccard", "expected", "cosine"])


def _expected_jaccard(a: int, b: int, d: int) -> float:
    if a + b == 0:
        return float("nan")
    shared = np.arange(max(0, a + b - d), min(a, b) + 1)
    return float((stats.hypergeom.pmf(shared, d, a, b) * shared / (a + b - shared)).sum())


def general(
    collected: States,
    *,
    tasks: Sequence[str] | None = None,
    states: Sequence[int] | None = None,
    l0_strength: float | int = SHOWN_L0_STRENGTH,
    raw: bool = False,
    steps: int = STEPS,
    seed: int = 0,
    device: str | None = None,
) -> pd.DataFrame:
    """Is there grammaticality in general? Each task's test pairs read by probes that have never seen the task.

    For each task a probe is trained on `others` (all other tasks), `same_field` and `other_fields`, and `same_term`
    (BLiMP's `field` and `linguistics_term`; the task itself always left out), on 100 training pairs of each task, fewer
    where it has fewer. States are standardised with the mean and SD of all these pairs, the left-out task's sentences
    included, its labels not.

    Returns the table `general` (task, field, linguistics_term, state, trained_on, n_tasks, method, l0_strength, C,
    accuracy, pair_accuracy, n_open): one row for each set that has a task.

    Raises ValueError for fewer than two tasks, and as `sweep` does.
    """
    steps, seed = whole_number(steps, "steps", least=1), check_seed(seed)
    splits = split_tasks(collected.pairs, tasks)
    if len(splits) < 2:
        raise ValueError(f"a probe of grammaticality in general needs two tasks or more, found {', '.join(splits)}")
    described = collected.pairs.drop_duplicates("UID").set_index("UID").reindex(columns=["field", "linguistics_term"])
    about = described.loc[list(splits)].fillna("")
    columns = _left_out(about)
    chosen = [split.train[:_PAIRS_A_TASK] for split in splits.values()]
    owner = np.tile(np.repeat(np.arange(len(splits)), [len(rows) for rows in chosen]), 2)
    used = torch.from_numpy(np.stack([seen[owner] for _, _, seen in columns], 1))
    rows = np.concatenate(chosen)
    everything = {"": Split(rows, rows[:1], rows[:1])}
    tables = []
    for state in collected.states if states is None else states:
        vectors = collected.load(state)
        group = Group(vectors, everything, raw=raw, device=find_device(device))
        y = group.labels(group.n)
        weights = used.to(group.X)
        sparse = fit_sparse(
            group.X, y[None, :, None].expand(1, -1, len(columns)), weights=weights[None], steps=steps,
            l0_strengths=[float(l0_strength)] * len(columns), seeds=[seed] * len(columns),
        ).coefficients[0].double()  # fmt: skip
        dense = torch.stack([_on_rows(group.X[0], y, column) for column in used.T.to(group.X.device)])
        for kind, found in ((_sparse(l0_strength), sparse), (_DENSE, dense)):
            scaled = found.cpu().numpy() / group.spread
            scores = {
                task: vectors[split.test].astype(np.float64) @ scaled.T - scaled @ group.mean[0]
                for task, split in splits.items()
            }
            for number, (task, trained_on, seen) in enumerate(columns):
                right, above = hits(scores[task][:, 0, number], scores[task][:, 1, number])
                tables.append(
                    {"task": task, **about.loc[task], "state": state, "trained_on": trained_on}
                    | {"n_tasks": int(seen.sum())}
                    | kind
                    | {"accuracy": right.mean(), "pair_accuracy": above.mean()}
                    | {"n_open": int((found[number] != 0).sum())}
                )
    return pd.DataFrame(tables)


def _left_out(about: pd.DataFrame) -> list[tuple[str, str, Bool[np.ndarray, " tasks"]]]:
    """For each task the sets of other tasks to train on."""
    field, term = about["field"].to_numpy(), about["linguistics_term"].to_numpy()
    found = []
    for number, task in enumerate(about.index):
        other = np.arange(len(about)) != number
        same_field, same_term = other & (field == field[number]), other & (term == term[number])
        sets = {"others": other}
        if field[number]:
            sets |= {"same_field": same_field, "other_fields": other & (field != field[number])}
        if term[number]:
            sets["same_term"] = same_term
        found += [(task, name, seen) for name, seen in sets.items() if seen.any()]
    return found


def _on_rows(X: Float[Tensor, "samples d"], y: Float[Tensor, " samples"], rows: Tensor) -> Float[Tensor, " d"]:
    return fit_dense(X[rows][None], y[rows][None, :, None])[0, 0]
