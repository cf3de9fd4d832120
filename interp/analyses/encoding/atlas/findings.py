"""What an atlas of directions says: whether three papers describe the same thing."""

from collections.abc import Iterator

import pandas as pd

from interp.results.findings import Finding, side

__all__ = ["atlas_findings"]

_QUESTIONS = {
    ("word frequency", "principal axes"): "Do the directions of word frequency lie in the principal axes of W_U?",
    ("word frequency", "outlier dimensions"): "Do outlier dimensions hold the directions of word frequency?",
    ("word frequency", "sink keys"): "Do the keys of attention sinks lie along the directions of word frequency?",
    ("outlier dimensions", "sink keys"): "Do the keys of attention sinks lie in outlier dimensions?",
}


def atlas_findings(atlas: pd.DataFrame, subspaces: pd.DataFrame) -> Iterator[Finding]:
    """The findings of the tables `atlas` and `subspaces` of a study. There are none for empty tables, and none about
    what a model does not have.

    Examples:
        >>> list(atlas_findings(pd.DataFrame(), pd.DataFrame()))
        []
    """
    if atlas.empty:
        return
    yield _slope(atlas)
    for row in subspaces.to_dict("records"):
        if question := _QUESTIONS.get((row["name_a"], row["name_b"])):
            yield _finding(
                question,
                f"the overlap of the two subspaces ({row['n_dims_a']} and {row['n_dims_b']} dimensions), which is the "
                "mean squared cosine of their principal angles, is",
                *(row[name] for name in ("overlap", "overlap_low", "overlap_high", "null_high")),
            )


def _slope(atlas: pd.DataFrame) -> Finding:
    """Whether b_LN, or E[h] where there is none, points along −A."""
    towards = atlas[atlas["name_b"] == "-A"].set_index("name_a")
    name = "b_LN" if "b_LN" in towards.index else "E[h]"
    question = f"Does {name} point where log-probability grows in the output embeddings (along −A)?"
    row = towards.loc[name].to_dict()
    numbers = [row[column] for column in ("cosine", "cosine_low", "cosine_high", "null_95")]
    return _finding(question, "the cosine of the two directions is", *numbers)


def _finding(question: str, measure: str, value: float, low: float, high: float, control: float) -> Finding:
    return Finding(
        question=question,
        verdict=side(low, high, than=control),
        measure=measure,
        value=value,
        low=low,
        high=high,
        control=control,
        compared_with="97.5th percentile under random rotations",
        rule="yes where the interval lies above the control, no where it lies below",
        towards=1,
    )
