"""Do the model's own dimensions hold more of a distinction than those of random bases? The top dimensions of either.

The largest coordinates of any direction hold more than their share of it, in any basis: of a direction with normally
distributed coordinates, the top 1 % hold 8.45 %. So that few dimensions are worth many others says nothing about the
basis. What it is compared with are the top dimensions of as many coordinates in random rotations.
"""

from collections.abc import Iterator
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor
from tqdm.auto import tqdm

from interp.analyses.probing.fitting import fit_dense
from interp.analyses.probing.group import Group, dense_on, ranked
from interp.analyses.probing.options import ROTATIONS
from interp.analyses.probing.states import States
from interp.corpora.splits import of_equal_size, split_tasks
from interp.instruments.uncertainty import share_interval
from interp.support.checks import whole_number

__all__ = ["LEAST_DENSE", "ROTATED", "haar", "rotated", "rotations"]

ROTATED = ["task", "state", "control", "draw", "k", "accuracy"]
"""The columns of the table `rotations`."""
LEAST_DENSE = 0.6
"""Tasks are compared if the lower end of the accuracy of their dense probe is above this."""
_SHARES = (0.01, 0.1, 0.25)
_CONSTANT = 1e-6  # a coordinate with a smaller SD, where that of the states' own dimensions is 1


def rotations(
    collected: States,
    state: int,
    *,
    draws: int = ROTATIONS,
    progress: bool = True,
) -> pd.DataFrame:
    """The accuracy of the top 1, 10 and 25 % of dimensions, and of the top of as many coordinates in random rotations.

    The states of a task are standardised with the mean and SD of its training sentences, rotated (`haar`; a draw is the
    same matrix for all tasks), and standardised again. In either basis the top k by |Welch t| on the training sentences
    are fitted by L2 logistic regression (C = 1). Tasks enter if the 95 % interval of the accuracy of their dense probe
    lies above .6.

    Args:
        state: the state, out of those collected.
        draws: the number of rotations; with 0, the table is empty.

    Returns the table `rotations` of a `ProbingStudy`. For every task there is a row of its dense probe, where k is the
    width; for those that enter also rows for each smaller k, with the control `none` for the own dimensions and
    `rotation` for each draw.

    Raises the errors of `sweep`, and TypeError if draws is not a whole number.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=60)
        >>> states = interp.probing.collect(model, pairs, states=[6], bos=True, progress=False)
        >>> table = rotations(states, 6, draws=2, progress=False)
        >>> table.groupby("k")["control"].apply(list).to_dict()[192]
        ['none']
    """
    if not whole_number(draws, "draws", least=0):
        return pd.DataFrame(columns=ROTATED)
    vectors = collected.load(state)
    rows: list[dict[str, Any]] = []
    able: list[Group] = []
    for splits in of_equal_size(split_tasks(collected.pairs, rows=collected.rows)):
        group = Group(vectors, splits, scaling="standard", device=collected.device)
        right = group.right(fit_dense(group.X, group.targets())[:, 0])
        rows += _rows(group, "none", 0, group.d, right)
        part = group.part(np.flatnonzero(share_interval(right)[0] > LEAST_DENSE).tolist())
        if part.tasks:
            able.append(part)
            rows += _top(part, "none", 0)
    for draw in tqdm(range(draws if able else 0), "rotating", unit="basis", disable=None if progress else True):
        for part in able:
            rows += _top(rotated(part, haar(part.d, draw)), "rotation", draw)
    table = pd.DataFrame(rows).assign(state=state)[ROTATED]
    return table.sort_values(["k", "control", "draw"], kind="stable", ignore_index=True)


def _top(group: Group, control: str, draw: int) -> Iterator[dict[str, Any]]:
    order = ranked(group)
    for k in sorted({max(1, int(share * group.d)) for share in _SHARES} - {group.d}):
        yield from _rows(group, control, draw, k, group.right(dense_on(group, order[:, :k])))


def _rows(
    group: Group, control: str, draw: int, k: int, right: Float[np.ndarray, "tasks groups"]
) -> Iterator[dict[str, Any]]:
    for task, accuracy in zip(group.tasks, right.mean(1).tolist(), strict=True):
        yield {"task": task, "control": control, "draw": draw, "k": k, "accuracy": accuracy}


def rotated(group: Group, rotation: Float[np.ndarray, "d d"]) -> Group:
    """The tasks in another basis, standardised there with the mean and SD of the training samples."""
    part = copy(group)
    matrix = torch.from_numpy(rotation).to(group.X)
    part.X, part.X_test = group.X @ matrix, group.X_test @ matrix
    mean: Tensor = part.X.mean(1, keepdim=True)
    spread: Tensor = part.X.std(1, correction=0, keepdim=True)
    spread = torch.where(spread > _CONSTANT, spread, torch.inf)
    part.X, part.X_test = (part.X - mean) / spread, (part.X_test - mean) / spread
    return part


@lru_cache(maxsize=1)  # tasks and states use the same
def haar(d: int, draw: int) -> Float[np.ndarray, "d d"]:
    """A random orthogonal matrix, uniform over all of them: Q of a normal matrix, with the signs of R's diagonal."""
    return np.asarray(stats.ortho_group.rvs(d, random_state=draw)) if d > 1 else np.ones((1, 1))
