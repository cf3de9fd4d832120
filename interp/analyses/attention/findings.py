"""What `interp attention` finds: whether outlier dimensions steer attention, and explain scores."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.special import logit

from interp.analyses.attention.claims import controls_of
from interp.analyses.attention.frames import ALL
from interp.analyses.attention.options import Where
from interp.results.findings import Answer, Finding
from interp.results.verdicts import ZERO, Control, judged, smallest
from interp.support.words import count, printed

__all__ = ["answer", "explained", "steered", "untested"]

_FROM = {"keys": "the keys of {}", "residual": "the residual stream that enters {}"}
_SHOWN_DIMS = 6
_CONTROLS = {"directions": "random directions with the same values", "ordinary": "other dimensions"}


def answer(
    largest_gaps: pd.DataFrame,
    ablation: pd.DataFrame,
    outliers: pd.DataFrame,
    frames: pd.DataFrame,
    words: Mapping[str, str],
    where: Where,
) -> Answer:
    """Say which dimension sets a class of keys apart most, how attention changes without it, and without all outlier
    dimensions, or without the one that changes it most if they were removed one by one only.

    Args:
        largest_gaps, ablation, outliers, frames: tables of `AttentionStudy`.
        words, where: see `steered`.
    """
    sentences = []
    values = {"outliers": sorted(outliers["dim"].unique().tolist())}
    row: Any
    for row in largest_gaps.nlargest(1, "abs_share").itertuples():
        values.update(dim=row.dim, layer=row.layer, key_class=row.key_class, share=row.abs_share)
        sentences.append(
            f"Dimension {row.dim} sets one class of keys apart most: in block {row.layer} it makes {row.abs_share:.0%} "
            f"of what sets the scores of {_named(row.key_class, words)} apart from those of other keys."
        )
        if row.dim not in values["outliers"]:
            sentences.append("It is no outlier dimension, and no verdict is about it.")
        without = ablation.query("layer == @row.layer and dim == @row.dim and key_class == @row.key_class")
        for attention in zip(without["attention_before"], without["attention_after"], strict=True):
            values["attention_without_dim"] = attention[1]
            changes = f"attention to {_named(row.key_class, words)} goes from {' to '.join(map(_share, attention))}"
            sentences.append(f"Without it in {_FROM[where].format('this block')}, {changes}.")
    removed = frames[(frames["kind"] == "removed") & frames["log_odds"].notna()]
    size = removed["log_odds"].abs().where(removed["dims"] != ALL, np.inf)
    for row in removed.loc[size.nlargest(1).index].itertuples():
        dims = values["outliers"] if row.dims == ALL else [int(row.dims)]
        values.update(removed=dims, removed_layer=row.layer, removed_class=row.key_class)
        values.update(attention_before=row.attention_before, attention_after=row.attention_after)
        sentences.append(
            f"Without {_dims(dims)} in {_FROM[where].format(f'block {row.layer}')}, attention to "
            f"{_named(row.key_class, words)} goes from {_share(row.attention_before)} to {_share(row.attention_after)}."
        )
    if not values["outliers"]:
        sentences.append("No dimension of the residual stream is an outlier.")
    return Answer(" ".join(sentences), values)


def steered(frames: pd.DataFrame, words: Mapping[str, str], where: Where) -> Iterator[Finding]:
    """Whether outlier dimensions, together and one by one, change attention more than their values along random
    directions do, and more than other dimensions; first together, then the largest change first.

    Args:
        frames: the table of `interp.attention.frames.FrameDraws`.
        words: the display names of classes, if they differ from the name.
        where: what the dimensions were removed from.
    """
    removed = frames[frames["kind"] == "removed"]
    source = _FROM[where].format("one block")
    size = removed["log_odds"].abs().where(removed["dims"] != ALL, np.inf)
    row: Any
    for row in removed.loc[size.sort_values(ascending=False, kind="stable").index].itertuples():
        together = row.dims == ALL
        subject = "the outlier dimensions" if together else f"outlier dimension {row.dims}"
        pronoun = "them all" if together else "it"
        change = f"{_share(row.attention_before)} to {_share(row.attention_after)}"
        place = f"in block {row.layer} for {_named(row.key_class, words)} (from {change} of the attention)"
        towards: Literal[-1, 1] = -1 if row.log_odds < 0 else 1
        controls = controls_of(frames, row.dims)
        yield judged(
            question=f"Do{'' if together else 'es'} {subject} steer attention more than other directions do?",
            measure=f"removing {pronoun} from {source} changes the log-odds of attention to a class of tokens; the "
            f"largest change, {place}, is",
            value=row.log_odds,
            low=row.log_odds_low,
            high=row.log_odds_high,
            controls=[Control(_CONTROLS[name], towards * draws) for name, draws in controls.items()],
            smallest=_smallest(row.attention_before, towards),
            towards=towards,
            form="{:+z.2f}",
        )


def explained(shares: pd.DataFrame, words: Mapping[str, str]) -> Iterator[Finding]:
    """Whether outlier dimensions make more of what sets a class of keys apart than as many others, in the block in
    which its scores are highest above those of other keys. Not asked where they are not higher.

    Args:
        shares: the table of `interp.attention.shares.outlier_shares`.
        words: the display names of classes, if they differ from the name.
    """
    row: Any
    for name, rows in shares[shares["gap"] > 0].groupby("key_class", sort=False):
        row = rows.nlargest(1, "gap").iloc[0]
        named = _named(str(name), words)
        outliers = count(row["n_dims"], "outlier dimension")
        parts = f"{_share(row['outlier_share'])} for {outliers}, {_share(row['control_share'])} for as many others"
        finding = judged(
            question=f"Do outlier dimensions raise the scores of {named} more than as many others do?",
            measure=f"in block {row['layer']}, where these scores are highest above those of other keys, the "
            f"difference between the shares of that gap ({parts}) is",
            value=row["share_beyond"],
            low=row["share_beyond_low"],
            high=row["share_beyond_high"],
            controls=[ZERO],
            smallest=smallest("overlap"),
            form="{:+z.2f}",
        )
        yield replace(finding, towards=0)  # to be below the largest of others is nothing special


def _smallest(before: float, towards: int) -> float:
    """The smallest change of log-odds of interest: .1, or more where attention would change by less than .02 or a
    tenth."""
    after = before + towards * smallest("attention", before)
    least = abs(logit(after) - logit(before)) if 0 < after < 1 else 0.0
    return max(smallest("log ratio"), float(least))


def untested(outliers: pd.DataFrame, ablation: pd.DataFrame) -> Iterator[str]:
    """Say how many outlier dimensions were removed one by one, if some were and others were not."""
    n = outliers["dim"].nunique()
    removed = ablation.loc[ablation["set"] == "outlier", "dim"].unique()
    if 0 < len(removed) < n:
        removed_words = ", ".join(map(str, removed))
        few = f"{n:,} dimensions are outliers in some state, and only {len(removed)} of them were removed one by one"
        yield f"{few} ({removed_words}); nothing is said of each of the others"


def _share(attention: float) -> str:
    return printed(attention, "{:.3f}")


def _dims(dims: list[int]) -> str:
    if len(dims) == 1:
        return f"outlier dimension {dims[0]}"
    listing = ", ".join(map(str, dims[:_SHOWN_DIMS])) + ", …" * (len(dims) > _SHOWN_DIMS)
    return f"the {len(dims)} outlier dimensions ({listing})"


def _named(key_class: str, words: Mapping[str, str]) -> str:
    return words.get(key_class, f"the class {key_class}")
