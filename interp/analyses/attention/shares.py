"""What distinguishes a class of keys most, averaged over heads."""

import math
from typing import Any

import pandas as pd

from interp.instruments.scores import ScoreContributions
from interp.instruments.shares import gaps
from interp.results.dense import Dense

__all__ = ["gaps", "largest_gaps", "outlier_shares"]
__dir__ = __all__.copy

_SHARE_COLUMNS = ["layer", "key_class", "n_dims", "gap", "outlier_share", "control_share", "share_beyond"]
_SHARE_COLUMNS += ["share_beyond_low", "share_beyond_high"]


def largest_gaps(gaps: Dense) -> pd.DataFrame:
    """Find, for each layer and class with a gap, the dimension with the largest mean |gap| share: the table
    `largest_gaps` of an `AttentionStudy`, without intervals.

    Args:
        gaps: the gaps of a study, or those that `gaps` computes from its scores.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"first": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> largest_gaps(study.gaps)[["layer", "key_class"]].values.tolist()
        [[0, 'first'], [1, 'first']]
    """
    table = gaps.mean("head", ["gap", "abs_share", "n_dims_90_abs"]).dropna(subset="abs_share")
    largest = table.groupby(["layer", "key_class"], sort=False)["abs_share"].idxmax()
    return table.loc[largest].reset_index(drop=True)


def outlier_shares(gaps: Dense, outliers: pd.DataFrame, scores: ScoreContributions | None = None) -> pd.DataFrame:
    """Compute, for each layer and class, the share of `S(class) − S(other)` that the outlier dimensions have, beside
    the largest share of as many other dimensions.

    S is the mean score without its part from b_K, averaged over heads. Outliers are those of the state that enters the
    layer. Shares have a sign: dimensions that lower the scores of a class with a positive gap have a negative share.

    Args:
        gaps: the gaps of a study.
        outliers: the table of `interp.instruments.profile.find_outliers`.
        scores: the observer that the gaps come from, for intervals.

    Returns the table `outlier_share` of an `AttentionStudy`, without layers that no outlier enters. Its intervals do
    not take into account that the other dimensions were chosen.

    Examples:
        >>> import numpy as np
        >>> of = {"layer": [0], "head": [0], "key_class": ["cls"], "dim": range(4)}
        >>> gaps = Dense.of(of | {"gap": np.array([6.0, 3.0, 2.0, -1.0]).reshape(1, 1, 1, 4)}, list(of))
        >>> table = outlier_shares(gaps, pd.DataFrame({"state": [0], "dim": [0]}))
        >>> table[["gap", "outlier_share", "control_share"]].values.tolist()
        [[10.0, 0.6, 0.3]]
    """
    rows = []
    layer: Any
    name: Any
    means = gaps.mean("head", ["gap"]).dropna(subset="gap").groupby(["layer", "key_class"], sort=False)
    for (layer, name), part in means:
        dims = outliers.loc[outliers["state"] == layer, "dim"].drop_duplicates().tolist()
        gap = part.set_index("dim")["gap"]
        total = float(gap.sum())
        if not dims or not total:
            continue
        shares = gap / total
        largest_others = shares.drop(dims).nlargest(len(dims))
        outlier_share = float(shares[dims].sum())
        half = scores.half_beyond(layer, name, dims, largest_others.index.tolist()) if scores else math.nan
        beyond = outlier_share - float(largest_others.sum())
        rows.append(
            (
                layer,
                name,
                len(dims),
                total,
                outlier_share,
                float(largest_others.sum()),
                beyond,
                beyond - half,
                beyond + half,
            )
        )
    return pd.DataFrame(rows, columns=_SHARE_COLUMNS)
