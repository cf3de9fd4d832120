"""What distinguishes a class of keys: the difference of its scores from those of other keys, dimension by dimension."""

import math
from collections.abc import Mapping
from typing import Any, overload

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from interp.instruments.scores import KEY
from interp.results.dense import Dense, number_types
from interp.support.checks import check_table

__all__ = ["GAPS", "gaps"]
__dir__ = __all__.copy

GAPS: dict[str, Any] = {"dims": KEY, "fewer": dict.fromkeys(("n_dims_90", "n_dims_90_abs"), KEY[:3])}
"""The labels that columns of gaps depend on; see `interp.results.dense.Dense.of_table`."""
_GAP_COLUMNS = {"gap": float, "share": float, "rank": int, "n_dims_90": int, "abs_share": float, "n_dims_90_abs": int}


@overload
def gaps(scores: pd.DataFrame) -> pd.DataFrame: ...
@overload
def gaps(scores: Dense) -> Dense: ...
def gaps(scores: pd.DataFrame | Dense) -> pd.DataFrame | Dense:
    """Compute how much each dimension distinguishes a class of keys: `ΔC_j = C_j(class) − C_j(other)`.

    Gaps are computed from key-centred means if `scores` has them, otherwise from plain means, which in causal models
    are over different queries for different classes. `share` is `ΔC_j / Σ_j ΔC_j`, with `rank` 1 for the largest share.
    `n_dims_90` is the smallest number of dimensions, largest share first, whose shares make up 90 % of the gap. If
    dimensions have opposite signs, the sum is small and shares exceed 1. So there are also `abs_share`,
    `|ΔC_j| / Σ_j |ΔC_j|`, and `n_dims_90_abs`, the smallest number of dimensions that make up 90 % of that. A head that
    makes no difference has no shares and 0 dimensions.

    Args:
        scores: the table of `interp.attention.score_contributions`, or `scores` of a study or of a
            `ScoreContributions`.

    Returns the table `gaps` of an `interp.attention.AttentionStudy`, or an `interp.results.dense.Dense` if `scores` is
    one. It does not have the class `all`, and is empty if there is no class `other`.

    Raises ValueError for a table that mixes two runs, has missing values, or lacks `other` for some heads or
    dimensions.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> asked = {"key_classes": {"first": [7, 8]}, "progress": False}
        >>> scores = interp.attention.score_contributions(toy_decoder(), ["w0 w1 w2"] * 20, **asked)
        >>> table = gaps(scores)
        >>> bool(table.groupby(["layer", "head"])["share"].sum().round(6).eq(1).all())
        True
    """
    if isinstance(scores, Dense):
        return _dense_gaps(scores)
    row_key = [*KEY]
    check_table(scores, "scores", [*row_key, "mean"], row_key)
    column = "centred_mean" if "centred_mean" in scores and scores["centred_mean"].notna().any() else "mean"
    scores = scores[scores["key_class"] != "all"]
    is_other = scores["key_class"] == "other"
    place = ["layer", "head", "dim"]
    other = scores[is_other].set_index(place)[column].rename("other")
    table = scores.loc[~is_other & scores["layer"].isin(scores.loc[is_other, "layer"])].join(other, on=place)
    table["gap"] = table[column] - table["other"]
    if (lacking := table["gap"].isna()).any():
        raise _lacking(column, table.loc[lacking, row_key].iloc[0].to_dict())
    gap = table["gap"].to_numpy(float)
    columns: dict[str, np.ndarray] = {name: np.empty(len(gap), kind) for name, kind in _GAP_COLUMNS.items()}
    for places in table.groupby(row_key[:3], sort=False).indices.values():
        for name, values in _shares(gap[places]).items():
            columns[name][places] = values
    return table[row_key].assign(**columns).reset_index(drop=True)


def _dense_gaps(scores: Dense) -> Dense:
    """`gaps` of labelled arrays, one layer at a time."""
    arrays = scores.arrays
    if scores.dims != KEY or "mean" not in arrays:
        expected = f"a mean by {', '.join(KEY)}"
        raise ValueError(f"found scores {scores!r}, expected {expected}; give the unmodified scores of a study")
    column = "mean"
    classes = arrays.indexes["key_class"]
    if "centred_mean" in arrays and any(part.arrays["centred_mean"].notnull().any() for part in scores.parts()):
        column = "centred_mean"
    special = classes[~classes.isin(["other", "all"])] if "other" in classes else classes[:0]
    labels = {dim: arrays.indexes[dim] for dim in KEY}
    labels["key_class"] = special
    shape = tuple(map(len, labels.values()))
    number, integer = number_types(math.prod(shape))
    gaps = {}
    for name, kind in _GAP_COLUMNS.items():
        of_column = shape[:3] if name in GAPS["fewer"] else shape
        gaps[name] = np.empty(of_column, number if kind is float else integer)
    for place, layer in enumerate(labels["layer"] if len(special) else []):
        means = arrays[column][place].astype(np.float64)
        gap = (means.sel(key_class=special) - means.sel(key_class="other")).to_numpy()
        if len(lacking := np.argwhere(np.isnan(gap))):
            row = {"layer": layer}
            for dim, index in zip(KEY[1:], lacking[0], strict=True):
                row[dim] = labels[dim][index]
            raise _lacking(column, row)
        for name, values in _shares(gap).items():
            gaps[name][place] = values
    columns: dict[str, Any] = dict(labels)
    for name, values in gaps.items():
        columns[name] = (GAPS["fewer"].get(name, KEY), values)
    return Dense.of(columns, KEY)


def _lacking(column: str, row: Mapping[Any, Any]) -> ValueError:
    return ValueError(f"scores lacks {column} for {row} or for the matching 'other'; give the whole table of one run")


def _shares(gap: Float[np.ndarray, "*of dim"]) -> dict[str, np.ndarray]:
    """The columns of `gaps`, with dimensions on the last axis. Counts have one value for all dimensions."""
    rank = np.empty(gap.shape, int)
    share, order, n_dims = _of_sum(gap)
    np.put_along_axis(rank, order, np.arange(1, gap.shape[-1] + 1), -1)
    abs_share, _, n_dims_abs = _of_sum(np.abs(gap))
    return dict(zip(_GAP_COLUMNS, (gap, share, rank, n_dims, abs_share, n_dims_abs), strict=True))


def _of_sum(
    parts: Float[np.ndarray, "*of dim"],
) -> tuple[Float[np.ndarray, "*of dim"], Int[np.ndarray, "*of dim"], Int[np.ndarray, "*of"]]:
    """Shares of the sum (NaN if that is 0), their order with the largest first, and how many of them make up 90 %."""
    total = parts.sum(-1, keepdims=True)
    shares = parts / np.where(total == 0, np.nan, total)
    order = np.argsort(-shares, axis=-1, kind="stable")
    reached = np.take_along_axis(shares, order, -1).cumsum(-1) >= 0.9 - 1e-12
    return shares, order, np.where(total[..., 0] == 0, 0, reached.argmax(-1) + 1)
