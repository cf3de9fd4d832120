"""Which pairs of a table are used, and how they are split into training, validation and test: no sentence is in two
parts."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int
from scipy import sparse
from scipy.sparse import csgraph

from interp.corpora.pairs import sentences_of
from interp.support.checks import list_of_strings, warn
from interp.support.choices import Several, listed
from interp.support.words import count, meant

__all__ = ["Split", "UsedPairs", "of_equal_size", "split_tasks", "used_pairs"]

_FEWEST_GROUPS = 10
_ENDS = (0.6, 0.8)  # where the training and the validation groups end


class UsedPairs(NamedTuple):
    """Which pairs of a table are used, and the group of each: pairs that share a sentence, directly or through others,
    are in one group. `counts` says for a provenance how many pairs there are, and why some are not used."""

    used: Bool[np.ndarray, " pairs"]
    group: Int[np.ndarray, " pairs"]
    counts: dict[str, int]


def used_pairs(pairs: pd.DataFrame, rows: Sequence[list[int]] = (), *, by: Sequence[str] = ("UID",)) -> UsedPairs:
    """The pairs of a table without those whose two sentences are equal and those that repeat an earlier pair of their
    task. Warns if there are any.

    Args:
        rows: the token ids of the sentences, good and bad in turn. Sentences are equal if their tokens are; without
            ids, if their characters are.
        by: the columns that tell the tasks of a table apart.

    Examples:
        >>> table = pd.DataFrame({"UID": "t", "sentence_good": ["a", "b", "a"], "sentence_bad": ["b", "c", "d"]})
        >>> used_pairs(table).group.tolist()  # the first pair shares b with the second, and a with the third
        [0, 0, 0]
    """
    sentences = sentences_of(pairs)
    numbers: dict[Hashable, int] = {}
    keys = map(tuple, rows) if len(rows) else sentences
    good, bad = np.array([numbers.setdefault(key, len(numbers)) for key in keys]).reshape(-1, 2).T
    identical = good == bad
    repeated = pairs[list(by)].assign(good=good, bad=bad).duplicated().to_numpy() & ~identical
    edges = sparse.coo_array((np.ones(len(good)), (good, bad)), shape=(len(numbers), len(numbers)))
    group = pd.factorize(csgraph.connected_components(edges, directed=False)[1][good])[0]
    used = ~(identical | repeated)
    counts = {"pairs": len(pairs), "repeated": int(repeated.sum()), "same_tokens": int(identical.sum())}
    counts["groups"] = len(np.unique(group[used]))
    if not used.all():
        _warn_of_unused(counts, np.reshape(sentences, (-1, 2))[identical])
    return UsedPairs(used, group, counts)


def _warn_of_unused(counts: dict[str, int], identical: np.ndarray) -> None:
    reasons = []
    if counts["repeated"]:
        reasons.append(f"{counts['repeated']:,} because an earlier pair of the task is the same")
    if counts["same_tokens"]:
        example = " and ".join(repr(text[:40]) for text in identical[0])
        reasons.append(f"{counts['same_tokens']:,} because both sentences are the same tokens to the model ({example})")
    unused = counts["repeated"] + counts["same_tokens"]
    warn(f"left out {unused:,} of {count(counts['pairs'], 'pair')}: {', '.join(reasons)}")


class Split(NamedTuple):
    """The numbers of the pairs of one task in the table of all pairs. Test pairs are in order of their groups, and
    `sizes` says how many pairs each of these groups has."""

    train: Int[np.ndarray, " train"]
    validation: Int[np.ndarray, " validation"]
    test: Int[np.ndarray, " test"]
    sizes: Int[np.ndarray, " groups"]

    @property
    def starts(self) -> Int[np.ndarray, " groups"]:
        """The place of each group's first pair among the test pairs."""
        return np.cumsum(self.sizes) - self.sizes


def split_tasks(
    pairs: pd.DataFrame, tasks: Several[str] | None = None, rows: Sequence[list[int]] = ()
) -> dict[str, Split]:
    """The split of each of these tasks, by default of all: 60 % of its groups (see `used_pairs`) for training, 20 % for
    validation and 20 % for test.

    If a group were divided, the training set could contain a test sentence, perhaps with the other label. A group of
    several tasks is in the same part of each, so that the probe of one task can be tested on another. The groups are
    drawn at random, and those with more pairs come first, so that test pairs share as few sentences as possible.

    Args:
        rows: see `used_pairs`.

    Raises ValueError for an unknown task, for no tasks, for fewer than ten groups, and for a task whose sentences are
    in other tasks such that a part has no pairs.
    """
    all_tasks = list(dict.fromkeys(pairs["UID"]))
    chosen = all_tasks if tasks is None else list_of_strings(listed(tasks), "tasks")
    if unknown := sorted(set(chosen) - set(all_tasks)):
        raise ValueError(
            f"unknown tasks {', '.join(unknown)}{meant(unknown[0], all_tasks)}; found {', '.join(all_tasks)}"
        )
    used, group, _ = used_pairs(pairs, rows)
    part_of: dict[int, int] = {}
    splits: dict[str, Split] = {}
    for task in all_tasks:
        of_task = (pairs["UID"] == task).to_numpy()
        numbers = np.flatnonzero(of_task & used)
        groups, sizes = np.unique(group[numbers], return_counts=True)
        if task in chosen:
            _check_size(task, int(of_task.sum()), len(numbers), len(groups))
        order = np.random.default_rng(0).permutation(len(groups))
        order = order[np.argsort(-sizes[order], kind="stable")]
        ends = np.rint(np.array(_ENDS) * len(groups)).astype(int)
        for number, part in enumerate(np.split(groups[order], ends)):
            for of_part in part.tolist():
                part_of.setdefault(of_part, number)
        parts = np.array([part_of[of_pair] for of_pair in group[numbers].tolist()], dtype=int)
        train, validation, test = numbers[parts == 0], numbers[parts == 1], numbers[parts == 2]
        test = test[np.argsort(group[test], kind="stable")]
        splits[task] = Split(train, validation, test, np.unique(group[test], return_counts=True)[1])
    for task in chosen:
        if not all(map(len, splits[task])):
            problem = f"the sentences of task {task!r} are also in other tasks, and none are left to train or test on"
            raise ValueError(f"{problem}; leave one of these tasks out, or give more pairs")
    return {task: splits[task] for task in chosen}


def _check_size(task: str, n_pairs: int, n_used: int, n_groups: int) -> None:
    if n_groups < _FEWEST_GROUPS:
        problem = f"task {task!r} has {count(n_pairs, 'pair')}"
        problem += f", {n_used} of them different" * (n_used < n_pairs)
        problem += f", in {count(n_groups, 'group')} that share no sentence" * (n_groups < n_used)
        raise ValueError(f"{problem}; a split needs at least {_FEWEST_GROUPS}: give more pairs, or leave the task out")


def of_equal_size(splits: dict[str, Split]) -> list[dict[str, Split]]:
    """The splits, grouped by size, because splits of equal size can be fitted as one problem."""
    groups: dict[tuple[int, ...], dict[str, Split]] = {}
    for task, split in splits.items():
        groups.setdefault(tuple(map(len, split)), {})[task] = split
    return list(groups.values())
