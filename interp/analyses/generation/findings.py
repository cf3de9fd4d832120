"""What `interp generation` finds: whether text becomes more diverse with less of b_LN (or E[h]), and more like human
text at another λ than 1."""

import math
from collections.abc import Iterator

import pandas as pd

from interp.results.findings import Answer, Finding
from interp.results.verdicts import ZERO, ends, judged, smallest
from interp.support.choices import Scaled
from interp.support.words import capitalized, named_bias, within, without

__all__ = ["HUMAN", "answer", "diverse", "more_human"]

HUMAN = "human"
"""What the tables call the human continuations in place of a decoder; their scale is NaN."""
_CALLED = {"greedy": "greedy decoding", "beam": "beam search", "sample": "sampling"}
_CALLED.update(top_k="top-k sampling", top_p="top-p sampling")


def answer(intervals: pd.DataFrame, highest: pd.DataFrame, scaled: Scaled = "ln") -> Answer | None:
    """Whose text comes nearer to the diversity of human text, or moves away from it, from λ = 1 to the smallest λ, and
    the λ of the highest MAUVE. None if there is only one λ.

    Args:
        intervals, highest: tables of `GenerationStudy`.
        scaled: what was scaled, b_LN or E[h].
    """
    human, ends = _at_the_smallest(intervals)
    if ends.empty:
        return None
    before = ends["value"] - ends["difference"]
    nearer = (ends["value"] - human).abs() < (before - human).abs()
    parts = []
    target = f"that of human text ({human:.3f})"
    for direction, decoders in (("nearer to", ends.index[nearer]), ("farther from", ends.index[~nearer])):
        if len(decoders):
            changes = (f"{_called(name)} ({before[name]:.3f} to {ends['value'][name]:.3f})" for name in decoders)
            parts.append(f"{direction} {target} with {', '.join(changes)}")
            target = "it"
    scale = ends["scale"].iloc[0]
    less = capitalized(without(scaled, scale))
    values = {"scale": scale, "human": human, "before": before.to_dict(), "after": ends["value"].to_dict()}
    sentences = [f"{less}, the diversity of text is {' and '.join(parts)}."]
    if len(highest):
        values["highest"] = highest.set_index("decoder")["scale"].to_dict()
        where = []
        for row in highest.to_dict("records"):
            interval = within(row["scale_low"], row["scale_high"], "{:g}")
            where.append(f"λ = {row['scale']:g} {interval} with {_called(row['decoder'])}")
        sentences.append(f"MAUVE, the similarity to human text, is highest at {', '.join(where)}.")
    return Answer(" ".join(sentences), values)


def diverse(intervals: pd.DataFrame, n_prompts: int, scaled: Scaled = "ln") -> Iterator[Finding]:
    """How the diversity of each decoder's text changes from λ = 1 to the smallest λ; see `answer`."""
    human, ends_of_scale = _at_the_smallest(intervals)
    for decoder, row in ends_of_scale.to_dict("index").items():
        before = row["value"] - row["difference"]
        yield judged(
            question=f"Is text from {_called(decoder)} more diverse with less of {named_bias(scaled)}?",
            measure=f"{without(scaled, row['scale'])}, its diversity (the mean share of distinct n-grams), "
            f"{before:.3f} as trained and {human:.3f} in human text, changes by",
            **ends(row, "difference"),
            controls=[ZERO],
            smallest=smallest("diversity"),
            sample=(n_prompts, "prompt"),
            form="{:+z.3f}",
        )


def more_human(highest: pd.DataFrame, n_prompts: int, why_none: str = "") -> Iterator[Finding]:
    """Whether each decoder's text is more like human text at the λ of the highest MAUVE than at λ = 1.

    Args:
        highest: the table of `GenerationStudy`. Without λ = 1 there is no finding.
        why_none: why there are no intervals, if so.
    """
    for row in highest.to_dict("records"):
        if math.isnan(row["gain"]) and not why_none:
            continue
        scales = within(row["scale_low"], row["scale_high"], "{:g}")
        yield judged(
            question=f"Is text from {_called(row['decoder'])} more like human text at another λ than 1?",
            measure=f"MAUVE is highest at λ = {row['scale']:g} {scales}; compared with λ = 1, choosing λ on one half "
            "of the prompts changes MAUVE of the other half by",
            **ends(row, "gain"),
            controls=[ZERO],
            smallest=smallest("mauve"),
            sample=(n_prompts, "prompt"),
            form="{:+z.3f}",
            because=why_none,
        )


def _called(decoder: object) -> str:
    return _CALLED.get(str(decoder), str(decoder))


def _at_the_smallest(intervals: pd.DataFrame) -> tuple[float, pd.DataFrame]:
    """The diversity of human text, and by decoder that of its text at the smallest λ."""
    table = intervals[intervals["measure"] == "diversity"].sort_values("scale", kind="stable")
    is_human = table["decoder"] == HUMAN
    written = table[~is_human & (table["scale"] != 1)].dropna(subset="difference")
    return float(table.loc[is_human, "value"].iloc[0]), written.drop_duplicates("decoder").set_index("decoder")
