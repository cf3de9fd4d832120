"""The sentence of a minimal pair that a model itself prefers, by several scores."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pandas as pd

from interp.analyses.probing.options import Score
from interp.analyses.probing.scores import Sentences, TokenScores, sentence_scores
from interp.corpora.pairs import check_pairs, sentences_of
from interp.corpora.sentences import sentence_rows
from interp.corpora.splits import used_pairs
from interp.instruments.uncertainty import averaged, compared, counted, wilson
from interp.models.shapes import Shape
from interp.models.sites import Model, view
from interp.passes.budget import Pass
from interp.passes.execution import Passes
from interp.passes.reading import LOGITS_AT_ONCE, TOKENS_AT_ONCE
from interp.support.checks import check_choices, list_of_strings, warn
from interp.support.choices import Bos

__all__ = ["by_task", "check_judged", "judged", "judged_cost", "over_tasks", "unjudged"]

_ABOUT = ["task", "pair", "group"]
_OF_DIFFERENCE = {"probe": "score", "low": "difference_low", "high": "difference_high"}


def judged(
    model: Model, pairs: pd.DataFrame, *, scores: Sequence[Score], whole_words: bool, bos: Bos
) -> Passes[pd.DataFrame]:
    """Whether the good sentence of each pair has the higher score (ties count as wrong), as 1 or 0, with one row per
    pair (task, pair, group) and one column per score. `pair` is its row in the table, and `group` that of
    `interp.corpora.splits.used_pairs`, which leaves out pairs that cannot be judged or are repeated.

    Raises ValueError if no pairs are left.
    """
    check_pairs(pairs)
    names = list_of_strings(scores, "scores")
    check_choices("scores", names, get_args(Score))
    rows = sentence_rows(model, sentences_of(pairs), bos=bos)
    used, group, _ = used_pairs(pairs, rows)
    if not used.any():
        raise ValueError("the model reads the same tokens in both sentences of every pair; give other pairs")
    usable = pairs[used]
    both = [*usable["sentence_good"], *usable["sentence_bad"]]
    table = yield from sentence_scores.passes(model, both, whole_words=whole_words, bos=bos)
    good, bad = np.split(table[names].to_numpy(), 2)
    columns = {"task": usable["UID"].to_numpy(), "pair": np.flatnonzero(used), "group": group[used]}
    columns.update(zip(names, (good > bad).astype(float).T, strict=True))
    return pd.DataFrame(columns)


def judged_cost(size: Shape, longest: int) -> list[Pass]:
    """Estimate the cost of `judged` for sentences of this length at most, from the shape of a model. The head reads a
    batch in parts, so not all logits are held."""
    logits = LOGITS_AT_ONCE if size.encoder else max(LOGITS_AT_ONCE, longest * size.d_vocab)
    rows = max(1, TOKENS_AT_ONCE // longest)
    read: Any = {"what": "sentences judged", "text": "sentences", "step": 2, "size": (rows, longest)}
    head = Pass(head=True, share=0, per_batch=3 * 4 * logits, **read)
    return [head, Pass(flops=2.0 * size.d_model * size.d_vocab, **read)]


def unjudged(scores: Sequence[Score]) -> pd.DataFrame:
    """The table of `judged` for a model that cannot judge: without rows."""
    return pd.DataFrame({name: pd.Series(dtype=object if name == "task" else float) for name in [*_ABOUT, *scores]})


def check_judged(model: Model, pairs: pd.DataFrame, *, scores: Sequence[Score], whole_words: bool, bos: Bos) -> bool:
    """Raise the errors of `judged` for what cannot be judged, before anything is read. Returns False, with a warning,
    for a model that has no prediction head to judge with."""
    if reason := view(model).why_no_head:
        warn(f"no judgements of the model itself: {reason}")
        return False
    both = [*pairs["sentence_good"], *pairs["sentence_bad"]]
    TokenScores(Sentences(model, both, whole_words=whole_words, bos=bos))
    return True


def by_task(right: pd.DataFrame) -> pd.DataFrame:
    """The table of `interp.probing.minimal_pair_accuracy`, computed from that of `judged`."""
    rows = []
    for score in right.columns.drop(_ABOUT):
        for task, part in right.groupby("task", sort=False):
            accuracy = part[score].mean()
            low, high = wilson(np.asarray(accuracy), part["group"].nunique())
            rows.append((task, score, accuracy, float(low), float(high), len(part)))
    table = pd.DataFrame(rows, columns=["task", "score", "accuracy", "low", "high", "n_pairs"])
    comparison = compared(_independent(right), _against_first(right)).drop(columns=["state", "against"])
    return table.merge(comparison.rename(columns=_OF_DIFFERENCE), on=["task", "score"])


def over_tasks(right: pd.DataFrame, phenomena: Mapping[Any, Any]) -> pd.DataFrame:
    """The accuracies as means over tasks (see `interp.instruments.uncertainty.averaged`), and the number of tasks on
    which a score judges better or worse than the first one."""
    hits = _independent(right)
    against = _against_first(right)
    means, differences = averaged(hits, against, phenomena)
    differences = differences.join(counted(compared(hits, against)), on=["state", "probe", "against"])
    comparison = differences.drop(columns=["state", "against"]).rename(columns=_OF_DIFFERENCE)
    return means.drop(columns="state").rename(columns={"probe": "score"}).merge(comparison, on="score")


def _independent(right: pd.DataFrame) -> pd.DataFrame:
    """One row per task and group of pairs that share sentences, with means over the group, as a table of `hits`."""
    means = right.groupby(["task", "group"], sort=False).mean().reset_index()
    return means.drop(columns="group").assign(state=0)


def _against_first(right: pd.DataFrame) -> list[tuple[str, str]]:
    scores = right.columns.drop(_ABOUT)
    return [(score, scores[0]) for score in scores]
