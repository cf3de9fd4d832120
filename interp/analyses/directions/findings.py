"""What `interp directions` finds: whether three papers describe the same directions."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from interp.results.findings import Answer, Finding
from interp.results.verdicts import Control, ends, judged, smallest
from interp.support.words import count

__all__ = ["LEVEL", "answer", "direction_findings", "tested"]

LEVEL = 0.05
"""The adjusted p below which two directions are closer than random ones."""
_QUESTIONS = {
    ("word frequency", "principal axes"): "Do the directions of word frequency lie in the principal axes of W_U?",
    ("word frequency", "sink keys"): "Do the keys of attention sinks lie along the directions of word frequency?",
    ("outlier dimensions", "sink keys"): "Do the keys of attention sinks lie in outlier dimensions?",
}


def tested(cosines: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs that are not related by construction, the largest cosines first."""
    pairs = cosines[~cosines["by_construction"]]
    return pairs.sort_values("cosine", key=abs, ascending=False, kind="stable")


def answer(cosines: pd.DataFrame) -> Answer:
    """Say how many pairs of directions are closer than random ones, and which are the closest.

    Args:
        cosines: the table of `DirectionStudy`.
    """
    pairs = tested(cosines)
    closest = pairs.iloc[0]
    names = [str(closest[name]).replace("-A", "−A") for name in ("name_a", "name_b")]
    n_close = int((pairs["p_adjusted"] < LEVEL).sum())
    values: dict[str, Any] = {"n_close": n_close, "n_pairs": len(pairs), "name_a": names[0], "name_b": names[1]}
    values["cosine"] = closest["cosine"]
    text = (
        f"Of {count(len(pairs), 'pair')} of directions that are not related by construction, {n_close:,} are closer "
        f"than random ones (adjusted p < {LEVEL:g}). The closest are {names[0]} and {names[1]}: their cosine is "
        f"{closest['cosine']:.2f}, where 95% of random ones are below {closest['null_95']:.2f}."
    )
    return Answer(text, values)


def direction_findings(cosines: pd.DataFrame, overlaps: pd.DataFrame, rotations: pd.DataFrame) -> Iterator[Finding]:
    """Make the findings from a study's tables. There are none about what a model does not have, and none about what is
    true by construction, such as that E[h] points along −A."""
    for row in cosines.query("name_a == 'b_LN' and name_b == '-A'").to_dict("records"):
        yield judged(
            question="Does b_LN point where log-probability grows in the output embeddings (along −A)?",
            measure="the cosine of the two directions is",
            smallest=smallest("correlation"),
            **ends(row, "cosine"),
            controls=_rotated(row, rotations),
        )
    for row in overlaps.to_dict("records"):
        if question := _QUESTIONS.get((row["name_a"], row["name_b"])):
            yield judged(
                question=question,
                measure=f"the overlap of the two subspaces ({row['n_dims_a']} and {row['n_dims_b']} dimensions), which "
                "is the mean squared cosine of their principal angles, is",
                smallest=smallest("overlap"),
                **ends(row, "overlap"),
                controls=_rotated(row, rotations),
            )


def _rotated(row: Mapping[Any, Any], rotations: pd.DataFrame) -> list[Control]:
    """The same measure under random rotations."""
    pair = (rotations["name_a"] == row["name_a"]) & (rotations["name_b"] == row["name_b"])
    return [Control("random rotations", rotations.loc[pair, "value"])]
