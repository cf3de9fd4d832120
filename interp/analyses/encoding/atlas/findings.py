"""What an atlas of directions says: whether three papers describe the same thing."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from interp.results.findings import Finding
from interp.results.verdicts import Control, judged, smallest

__all__ = ["atlas_findings"]

_QUESTIONS = {
    ("word frequency", "principal axes"): "Do the directions of word frequency lie in the principal axes of W_U?",
    ("word frequency", "sink keys"): "Do the keys of attention sinks lie along the directions of word frequency?",
    ("outlier dimensions", "sink keys"): "Do the keys of attention sinks lie in outlier dimensions?",
}


def atlas_findings(atlas: pd.DataFrame, subspaces: pd.DataFrame, rotations: pd.DataFrame) -> Iterator[Finding]:
    """The findings of the tables of an atlas. There are none for empty tables, none about what a model does not have,
    and none about what is true by construction, such as that E[h] points along −A.

    Examples:
        >>> list(atlas_findings(pd.DataFrame(), pd.DataFrame(), pd.DataFrame()))
        []
    """
    if atlas.empty:
        return
    for row in atlas[(atlas["name_a"] == "b_LN") & (atlas["name_b"] == "-A")].to_dict("records"):
        yield judged(
            question="Does b_LN point where log-probability grows in the output embeddings (along −A)?",
            measure="the cosine of the two directions is",
            smallest=smallest("correlation"),
            **_numbers(row, "cosine", rotations),
        )
    for row in subspaces.to_dict("records"):
        if question := _QUESTIONS.get((row["name_a"], row["name_b"])):
            yield judged(
                question=question,
                measure=f"the overlap of the two subspaces ({row['n_dims_a']} and {row['n_dims_b']} dimensions), which "
                "is the mean squared cosine of their principal angles, is",
                smallest=smallest("overlap"),
                **_numbers(row, "overlap", rotations),
            )


def _numbers(row: Mapping[Any, Any], name: str, rotations: pd.DataFrame) -> dict[str, Any]:
    """A value with its interval, and the same under random rotations."""
    pair = (rotations["name_a"] == row["name_a"]) & (rotations["name_b"] == row["name_b"])
    controls = [Control("random rotations", rotations.loc[pair, "value"])]
    return {"value": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"], "controls": controls}
