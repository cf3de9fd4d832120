"""One claim per outlier dimension: its largest effect over layers and classes, compared with equally large
dimensions."""

import math

import numpy as np
import pandas as pd

from interp.support.checks import check_table

__all__ = ["CONTROLS", "MOST_APART", "apart_in_size", "largest_effects"]

CONTROLS = 39
"""The number of control dimensions of a claim, with which the smallest p-value is .025."""
MOST_APART = 1.5
"""The factor by which a control dimension may be larger or smaller than the dimension it is compared with."""
_COLUMNS = ["dim", "removed", "layer", "key_class", "attention_before", "attention_after", "change"]
_COLUMNS += ["change_low", "change_high", "n_controls", "control_removed", "control_change", "control_dim"]
_COLUMNS += ["control_layer", "control_key_class", "p_value"]


def apart_in_size(size: pd.DataFrame, dim: int) -> pd.Series:
    """The factor by which other dimensions are larger or smaller than one dimension, as the geometric mean over layers.

    Args:
        size: a table with one row per dimension and one column per layer.

    Examples:
        >>> apart_in_size(pd.DataFrame([[1.0, 1.0], [2.0, 0.5], [1.0, 4.0]]), 0).round(6).tolist()
        [1.0, 2.0, 2.0]
    """
    logs = (size + 1e-12).transform(np.log)
    return (logs - logs.loc[dim]).abs().mean(axis=1).transform(np.exp)


def largest_effects(ablation: pd.DataFrame) -> pd.DataFrame:
    """The largest effect of removing each outlier dimension, with a p-value from one test over all layers and classes.

    The statistic is the largest |change of attention| over layers and over classes except `other`, when the dimension
    is removed from the keys of one layer at a time. It is compared with the same maximum for the 39 control dimensions
    that are nearest in size (max-T). Since all dimensions have equally many chances, no correction for the number of
    layers and classes is needed. `p = (1 + controls at least as large) / (1 + controls)`.

    Size is the root mean square of what is removed, as the geometric mean over layers. If fewer than 39 dimensions are
    within a factor of 1.5 of the outlier's size, nothing matches it: its effect may be due to its size alone, and p is
    NaN.

    Args:
        ablation: the table of `interp.attention.ablation_effect` with `where="keys"`, or that of a study. Dimensions
            that are not removed from all of its layers cannot be controls.

    Returns a table (dim, removed, layer, key_class, attention_before, attention_after, change, change_low, change_high,
    n_controls, control_removed, control_change, control_dim, control_layer, control_key_class, p_value) in the order of
    the outliers' rank. It gives the layer and class in which the effect, averaged over heads, is largest; the number of
    matching controls; the median of their sizes; and the largest of their effects, up or down, as a magnitude, with the
    dimension, layer and class that it belongs to. These are missing without a matching control. The interval is that of
    the change in this layer and class. It does not take into account that they were chosen.

    Raises ValueError for a table that has missing values or mixes two runs.

    Examples:
        >>> after = {"layer": 0, "dim": range(40), "attention_before": 0.5, "attention_after": np.linspace(0, 0.5, 40)}
        >>> kinds = {"set": ["outlier"] + ["matched"] * 39, "removed": 1.0, "key_class": "first"}
        >>> largest_effects(pd.DataFrame(after | kinds))[["dim", "change", "n_controls", "p_value"]]
           dim  change  n_controls  p_value
        0    0    -0.5          39    0.025
    """
    key = ["layer", "dim", "key_class"]
    check_table(ablation, "ablation", [*key, "set", "removed", "attention_before", "attention_after"], key)
    size = ablation.drop_duplicates(["layer", "dim"]).pivot(index="dim", columns="layer", values="removed").dropna()
    table = ablation[(ablation["key_class"] != "other") & ablation["dim"].isin(size.index)]
    change = (table["attention_after"] - table["attention_before"]).astype(float)
    table = table.assign(change=change).reset_index(drop=True)
    table = table.loc[table["change"].abs().groupby(table["dim"], sort=False).idxmax()].set_index("dim")
    effect, outlying = table["change"].abs(), pd.Index(ablation.loc[ablation["set"] == "outlier", "dim"].unique())
    rows = []
    for dim in table.index.intersection(outlying, sort=False):
        apart = apart_in_size(size, dim).drop(outlying, errors="ignore").nsmallest(CONTROLS)
        near = apart[apart <= MOST_APART].index
        controls, about = effect[near], {"removed": _mean_size(size.loc[[dim]]).item(), "p_value": math.nan}
        if len(near) == CONTROLS:
            about["p_value"] = (1 + int((controls >= effect[dim]).sum())) / (1 + CONTROLS)
        about |= {"control_removed": _mean_size(size.loc[near]).median(), "control_change": controls.max()}
        if len(near):
            most = controls.idxmax()
            about |= {"control_dim": most} | table.loc[most, ["layer", "key_class"]].add_prefix("control_").to_dict()
        rows.append(table.loc[dim].to_dict() | about | {"dim": dim, "n_controls": len(near)})
    return pd.DataFrame(rows, columns=_COLUMNS).astype(dict.fromkeys(["control_dim", "control_layer"], "Int64"))


def _mean_size(size: pd.DataFrame) -> pd.Series:
    """The geometric mean over layers."""
    return (size + 1e-12).transform(np.log).mean(axis=1).transform(np.exp)
