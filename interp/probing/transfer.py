"""A probe of one task, read on all others: is there grammaticality in general?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.probing.fitting import STEPS, fit_dense, fit_sparse
from interp.probing.split import of_equal_size, split_tasks
from interp.probing.states import States
from interp.probing.sweep import Group

_KINDS = ("sparse", "dense")


def transfer(
    states: States,
    *,
    tasks: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    strength: float | int = 0.2,
    raw: bool = False,
    steps: int = STEPS,
    seed: int = 0,
) -> pd.DataFrame:
    """Every task's probe on every task's test pairs, one matrix product a state.

    A probe keeps its own task's standardisation. `pair_accuracy` (good scored above bad) does not see a shift of the
    task mean, which moves the threshold of `accuracy`.

    Args:
        tasks, layers: which; all by default.
        strength: λ of the sparse probe; beside it stands the dense one (L2, C = 1).
        raw, steps, seed: see `sweep`.

    Returns the table `transfer` (train_task, test_task, state, strength, accuracy, pair_accuracy, dense_accuracy,
    dense_pair_accuracy).

    Raises ValueError as `sweep` does.
    """
    splits = split_tasks(states.pairs, tasks)
    chosen = list(splits)
    tables = []
    for state in states.states if layers is None else layers:
        vectors = states.load(state)
        weights: dict[str, dict[str, tuple[Float[np.ndarray, " d"], float]]] = {kind: {} for kind in _KINDS}
        for some in of_equal_size(splits):
            group = Group(vectors, some, {"raw": raw}, torch.device("cpu"))
            for kind, found in zip(_KINDS, _fitted(group, strength, steps, seed), strict=True):
                scaled = found / group.spread
                offset = -(scaled * group.mean).sum(1)
                weights[kind] |= {task: (scaled[i], float(offset[i])) for i, task in enumerate(some)}
        tested = np.concatenate([vectors[splits[task].test] for task in chosen])
        ends = np.cumsum([len(splits[task].test) for task in chosen])
        table: dict[str, Any] = {}
        for kind, prefix in (("sparse", ""), ("dense", "dense_")):
            W = np.stack([weights[kind][task][0] for task in chosen], 1)
            scores = tested.astype(np.float64) @ W + [weights[kind][task][1] for task in chosen]  # [pairs, 2, tasks]
            right = ((scores[:, 0] > 0).astype(float) + (scores[:, 1] <= 0)) / 2
            above = (scores[:, 0] > scores[:, 1]) + 0.5 * (scores[:, 0] == scores[:, 1])
            for name, hits in (("accuracy", right), ("pair_accuracy", above)):
                parts = np.split(hits, ends[:-1])
                table[prefix + name] = np.stack([part.mean(0) for part in parts], 1).ravel()  # train task first
        where = {"train_task": np.repeat(chosen, len(chosen)), "test_task": np.tile(chosen, len(chosen))}
        tables.append(pd.DataFrame(where | {"state": state, "strength": float(strength)} | table))
    return pd.concat(tables, ignore_index=True)


def _fitted(
    group: Group, strength: float, steps: int, seed: int
) -> tuple[Float[np.ndarray, "tasks d"], Float[np.ndarray, "tasks d"]]:
    """Coefficients of the sparse and of the dense probe of each task, on standardised states."""
    y = torch.tensor([1.0, 0.0]).repeat_interleave(group.n)[None, :, None].expand(len(group.tasks), -1, -1)
    sparse = fit_sparse(group.X, y, strengths=[float(strength)], seeds=[seed], steps=steps).coefficients[:, 0]
    return sparse.double().numpy(), fit_dense(group.X, y)[:, 0].numpy()
