"""Pairs split into training, validation and test, and what the words alone can tell."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Int
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from interp.checks import list_of_strings

__all__ = ["FEWEST_PAIRS", "Split", "bag_of_words", "of_equal_size", "split_pairs", "split_tasks"]

FEWEST_PAIRS = 10
_TRAIN, _VALIDATION = 0.6, 0.2
_SEED = 0


class Split(NamedTuple):
    """Numbers of the pairs of one task, in the table of all pairs."""

    train: Int[np.ndarray, " train"]
    validation: Int[np.ndarray, " validation"]
    test: Int[np.ndarray, " test"]


def split_pairs(pairs: pd.DataFrame, task: str) -> Split:
    """60 : 20 : 20 of a task's pairs, both sentences of a pair on the same side.

    Split by sentence, the twin of a test sentence with the other label would be in training.

    Raises ValueError for fewer than ten pairs.
    """
    rows = np.flatnonzero(pairs["UID"].to_numpy() == task)
    if len(rows) < FEWEST_PAIRS:
        raise ValueError(f"task {task!r} has {len(rows)} pairs; a split needs at least {FEWEST_PAIRS}")
    rows = np.random.default_rng(_SEED).permutation(rows)
    ends = [round(_TRAIN * len(rows)), round((_TRAIN + _VALIDATION) * len(rows))]
    return Split(*map(np.sort, np.split(rows, ends)))


def split_tasks(pairs: pd.DataFrame, tasks: Sequence[str] | None) -> dict[str, Split]:
    """The split of each task, or of all. Raises ValueError for one that the pairs do not have, or none."""
    known = list(dict.fromkeys(pairs["UID"]))
    chosen = known if tasks is None else list_of_strings(tasks, "tasks")
    if unknown := sorted(set(chosen) - set(known)):
        raise ValueError(f"unknown tasks {', '.join(unknown)}; found {', '.join(known)}")
    return {task: split_pairs(pairs, task) for task in chosen}


def of_equal_size(splits: dict[str, Split]) -> list[dict[str, Split]]:
    """The splits, those of equal size together: they can be fitted as one problem."""
    groups: dict[tuple[int, ...], dict[str, Split]] = {}
    for task, split in splits.items():
        groups.setdefault(tuple(map(len, split)), {})[task] = split
    return list(groups.values())


def bag_of_words(pairs: pd.DataFrame, split: Split) -> float:
    """Test accuracy of an L2 logistic regression (C = 1) on word counts: what a probe must beat to say anything."""
    columns = ["sentence_good", "sentence_bad"]
    sides = [pairs.iloc[rows][columns].to_numpy().ravel(order="F") for rows in (split.train, split.test)]
    words = CountVectorizer(token_pattern=r"\S+")
    X, X_test = words.fit_transform(sides[0]), words.transform(sides[1])
    y, y_test = (np.repeat([1, 0], len(side) // 2) for side in sides)
    return float(LogisticRegression(max_iter=1_000).fit(X, y).score(X_test, y_test))
