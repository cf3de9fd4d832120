"""The sentence of a minimal pair that a model itself prefers, by several scores."""

from collections.abc import Sequence
from typing import get_args

import numpy as np
import pandas as pd

from interp.checks import check_choice, list_of_strings
from interp.corpora.pairs import check_pairs
from interp.declare import Bos
from interp.models.sites import Model
from interp.probing.options import Score
from interp.probing.scores import Sentences, TokenScores, sentence_scores
from interp.probing.uncertainty import averaged, compared, counted, share_interval
from interp.run.passes import Passes

__all__ = ["by_task", "check_judged", "check_scores", "judged", "over_tasks"]

_OF_DIFFERENCE = {"probe": "score", "low": "difference_low", "high": "difference_high"}


def judged(
    model: Model, pairs: pd.DataFrame, *, scores: Sequence[Score], whole_words: bool, bos: Bos
) -> Passes[pd.DataFrame]:
    """Whether the good sentence of each pair has the higher score (ties count as wrong), as 1 or 0, with one row per
    pair (task, pair) and one column per score."""
    check_pairs(pairs)
    names = check_scores(scores)
    both = [*pairs["sentence_good"], *pairs["sentence_bad"]]
    table = yield from sentence_scores.passes(model, both, whole_words=whole_words, bos=bos)
    good, bad = np.split(table[names].to_numpy(), 2)
    task, pair = pairs["UID"].to_numpy(), pairs.groupby("UID", sort=False).cumcount().to_numpy()
    return pd.DataFrame({"task": task, "pair": pair} | dict(zip(names, (good > bad).astype(float).T, strict=True)))


def check_judged(model: Model, pairs: pd.DataFrame, *, scores: Sequence[Score], whole_words: bool, bos: Bos) -> None:
    """Raise the errors of `judged` for what cannot be judged, before anything is read."""
    check_scores(scores)
    both = [*pairs["sentence_good"], *pairs["sentence_bad"]]
    TokenScores(Sentences(model, both, whole_words=whole_words, bos=bos), whole_words=whole_words)


def check_scores(scores: Sequence[str]) -> list[str]:
    """The scores. Raises ValueError if there are none, or if a score is unknown or repeated."""
    names = list_of_strings(scores, "scores")
    for name in names:
        check_choice("score", name, get_args(Score))
    if len(set(names)) < len(names):
        raise ValueError(f"scores has a score twice: {', '.join(names)}; give each score once")
    return names


def by_task(right: pd.DataFrame) -> pd.DataFrame:
    """The table of `interp.probing.minimal_pair_accuracy`, computed from that of `judged`."""
    rows = []
    for score in right.columns.drop(["task", "pair"]):
        for task, part in right.groupby("task", sort=False)[score]:
            low, high = share_interval(part.to_numpy(), sentences=1)
            rows.append((task, score, part.mean(), float(low), float(high), len(part)))
    table = pd.DataFrame(rows, columns=["task", "score", "accuracy", "low", "high", "n_pairs"])
    apart = compared(right.assign(state=0), _against_first(right)).drop(columns=["state", "against"])
    return table.merge(apart.rename(columns=_OF_DIFFERENCE), on=["task", "score"])


def over_tasks(right: pd.DataFrame) -> pd.DataFrame:
    """The accuracies as means over tasks, with intervals by a bootstrap of tasks and then of pairs within them, and the
    number of tasks on which a score judges better or worse than the first one."""
    hits, against = right.assign(state=0), _against_first(right)
    means, differences = averaged(hits, against)
    differences = differences.join(counted(compared(hits, against)), on=["state", "probe", "against"])
    apart = differences.drop(columns=["state", "against"]).rename(columns=_OF_DIFFERENCE)
    return means.drop(columns="state").rename(columns={"probe": "score"}).merge(apart, on="score")


def _against_first(right: pd.DataFrame) -> list[tuple[str, str]]:
    scores = right.columns.drop(["task", "pair"])
    return [(score, scores[0]) for score in scores]
