"""The largest effect of removing outlier dimensions, beside those of its controls."""

import math

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.support.checks import check_table

__all__ = ["controls_of", "largest_effects"]
__dir__ = __all__.copy

_KINDS = {"directions": ["frame", "equal keys"], "ordinary": ["ordinary"]}
_COLUMNS = ["dims", "layer", "key_class", "attention_before", "attention_after", "log_odds", "log_odds_low"]
_COLUMNS += ["log_odds_high", "n_controls", "of_directions", "of_ordinary"]


def controls_of(frames: pd.DataFrame, dims: str) -> dict[str, Float[np.ndarray, " draws"]]:
    """Find the largest |change of the log-odds| of each draw, for each control of a set of dimensions.

    `directions` is the larger of the two changes along the same random directions: with the dimensions' own values, and
    with those for which keys change as much. `ordinary` is that of other dimensions.

    Examples:
        >>> of = {"dims": "3", "kind": ["removed", "frame", "equal keys", "ordinary"], "draw": 0}
        >>> controls = controls_of(pd.DataFrame(of | {"log_odds": [-3.0, 0.1, -0.2, 0.3]}), "3")
        >>> {name: draws.tolist() for name, draws in controls.items()}
        {'directions': [0.2], 'ordinary': [0.3]}
    """
    part = frames[frames["dims"] == dims]
    sizes = part["log_odds"].abs()
    controls = {}
    for name, kinds in _KINDS.items():
        controls[name] = sizes[part["kind"].isin(kinds)].groupby(part["draw"]).max().to_numpy()
    return controls


def largest_effects(frames: pd.DataFrame) -> pd.DataFrame:
    """Find the largest effect of removing each outlier dimension, and all of them together, in the order of their rank.

    The statistic is the largest |change of the log-odds of attention| over layers and over classes except `other`, when
    dimensions are removed from the keys of one layer at a time. Controls have the same maximum (max-T), so no
    correction for the number of layers and classes is needed.

    Args:
        frames: the table of a study.

    Returns a table of the layer and class with the largest change, its interval, which does not take into account that
    they were chosen, the number of draws of each control (`n_controls`), and their largest changes, up or down, as
    magnitudes (`of_directions`, `of_ordinary`).

    Raises ValueError for a table that has missing values or mixes two runs.

    Examples:
        >>> of = {"dims": "3", "kind": ["removed", "frame", "equal keys", "ordinary"], "draw": 0, "layer": 0}
        >>> frames = pd.DataFrame(of | {"key_class": "cls", "log_odds": [-3.0, 0.1, -0.2, 0.3]})
        >>> largest_effects(frames)[["dims", "log_odds", "of_directions", "of_ordinary"]]
          dims  log_odds  of_directions  of_ordinary
        0    3      -3.0            0.2          0.3
    """
    key = ["dims", "kind", "draw"]
    check_table(frames, "frames", [*key, "layer", "key_class", "log_odds"], key)
    table = frames[frames["kind"] == "removed"].reset_index(drop=True)
    controls = [controls_of(frames, dims) for dims in table["dims"]]
    table["n_controls"] = [len(draws["directions"]) for draws in controls]
    for name in _KINDS:
        table[f"of_{name}"] = [draws[name].max(initial=0.0) if len(draws[name]) else math.nan for draws in controls]
    return table.reindex(columns=_COLUMNS)
