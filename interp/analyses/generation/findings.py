"""What `interp generation` finds: whether text becomes more diverse with less of b_LN."""

from collections.abc import Iterator

import pandas as pd

from interp.results.findings import Answer, Finding
from interp.results.verdicts import ZERO, ends, judged, smallest

__all__ = ["HUMAN", "answer", "diverse"]

HUMAN = "human"
"""What the tables call the human continuations in place of a decoder; their scale is NaN."""
_CALLED = {"greedy": "greedy decoding", "beam": "beam search", "sample": "sampling"}
_CALLED |= {"top_k": "top-k sampling", "top_p": "top-p sampling"}


def answer(intervals: pd.DataFrame) -> Answer | None:
    """Whose text comes nearer to the diversity of human text, or moves away from it, from λ = 1 to the smallest λ. None
    if there is only one of them.

    Args:
        intervals: the table of `GenerationStudy`.
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
            changes = (
                f"{_CALLED.get(name, name)} ({before[name]:.3f} to {ends['value'][name]:.3f})" for name in decoders
            )
            parts.append(f"{direction} {target} with {', '.join(changes)}")
            target = "it"
    scale = ends["scale"].iloc[0]
    less = "Without b_LN" if scale == 0 else f"With {scale:g} times b_LN"
    values = {"scale": scale, "human": human, "before": before.to_dict(), "after": ends["value"].to_dict()}
    return Answer(f"{less}, the diversity of text is {' and '.join(parts)}.", values)


def diverse(intervals: pd.DataFrame, n_prompts: int) -> Iterator[Finding]:
    """How the diversity of each decoder's text changes from λ = 1 to the smallest λ, from the table `intervals`."""
    human, ends_of_scale = _at_the_smallest(intervals)
    for decoder, row in ends_of_scale.to_dict("index").items():
        before = row["value"] - row["difference"]
        condition = "without b_LN" if row["scale"] == 0 else f"with {row['scale']:g} times b_LN"
        yield judged(
            question=f"Is text from {_CALLED.get(str(decoder), str(decoder))} more diverse with less of b_LN?",
            measure=f"{condition}, its diversity (the mean share of distinct n-grams), {before:.3f} as trained and "
            f"{human:.3f} in human text, changes by",
            **ends(row, "difference"),
            controls=[ZERO],
            smallest=smallest("diversity"),
            sample=(n_prompts, "prompt"),
            form="{:+z.3f}",
        )


def _at_the_smallest(intervals: pd.DataFrame) -> tuple[float, pd.DataFrame]:
    """The diversity of human text, and by decoder that of its text at the smallest λ."""
    table = intervals[intervals["measure"] == "diversity"].sort_values("scale", kind="stable")
    is_human = table["decoder"] == HUMAN
    written = table[~is_human & (table["scale"] != 1)].dropna(subset="difference")
    return float(table.loc[is_human, "value"].iloc[0]), written.drop_duplicates("decoder").set_index("decoder")
