"""The residual dimensions that make the sinks."""

from typing import Any

import numpy as np
import pandas as pd

from interp.results.dense import Dense

__all__ = ["sink_dims"]

_COLUMNS = ["layer", "head", "key_class", "dim", "gap", "share", "abs_share", "rank", "outlier", "massive"]
_SHOWN = 10  # dimensions per head


def sink_dims(
    heads: pd.DataFrame,
    gaps: Dense | None,
    outliers: pd.DataFrame,
    massive: pd.DataFrame,
    *,
    key_class: str,
    epsilon: float,
) -> pd.DataFrame:
    """Find the dimensions that make the sinks: for each head whose mean attention to the first position is above ε, the
    ten dimensions with the largest |gap| between the class of the first position and other keys.

    Args:
        heads: the table of a `SinkStudy`.
        gaps: `interp.instruments.shares.gaps` of scores; None if these cannot be decomposed.
        outliers: the table of `interp.instruments.profile.find_outliers`.
        massive: the table of an `interp.instruments.massive.MassiveActivations`.
        key_class: the class of the first position. If it has no gaps, as `other` has none, the table is empty.

    Returns the table `dims` of a `SinkStudy`, with `gap`, `share` and `abs_share` as in `gaps`. `rank` is by |gap|,
    with the lower dimension first in ties.
    """
    sinks = heads.query("first_position == 0 and attention > @epsilon")[["layer", "head"]]
    rows: list[Any] = []
    if gaps is not None and key_class in gaps.arrays.indexes["key_class"]:
        is_outlier = set(outliers[["state", "dim"]].itertuples(index=False, name=None))
        is_massive = set(massive[["state", "dim"]].itertuples(index=False, name=None))
        for layer, head in sinks.itertuples(index=False, name=None):
            part = gaps.arrays.sel(layer=layer, head=head, key_class=key_class)
            gap = part["gap"].to_numpy()
            share = part["share"].to_numpy()
            abs_share = part["abs_share"].to_numpy()
            dims = part["dim"].to_numpy().tolist()
            for rank, place in enumerate(np.argsort(-np.abs(gap), kind="stable")[:_SHOWN], 1):
                dim = dims[place]
                marks = ((layer, dim) in is_outlier, (layer, dim) in is_massive)
                rows.append((layer, head, key_class, dim, gap[place], share[place], abs_share[place], rank, *marks))
    kinds = dict.fromkeys(["gap", "share", "abs_share"], "float64")
    kinds.update(dict.fromkeys(["outlier", "massive"], "bool"))
    kinds.update(dict.fromkeys(["layer", "head", "dim", "rank"], "int64"), key_class="object")
    return pd.DataFrame(rows, columns=_COLUMNS).astype(kinds)
