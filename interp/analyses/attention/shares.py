"""What distinguishes a class of keys most, averaged over heads."""

import pandas as pd

from interp.instruments.shares import gaps
from interp.results.dense import Dense

__all__ = ["gaps", "largest_gaps"]


def largest_gaps(gaps: Dense) -> pd.DataFrame:
    """For each layer and class with a gap, the dimension with the largest mean |gap| share: (layer, key_class, dim,
    gap, abs_share, n_dims_90_abs), as means over heads.

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
