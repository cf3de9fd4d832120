"""What `interp attention` finds: whether outlier dimensions steer attention."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from interp.analyses.attention.claims import CONTROLS, MOST_APART
from interp.analyses.attention.options import Where
from interp.results.findings import Finding, Verdict, side

__all__ = ["steered", "untested"]

_FROM = {"keys": "the keys of one block", "residual": "the residual stream that enters one block"}
_OF = 1 + CONTROLS  # p is a whole number of these parts
_FEW, _MANY = _OF // 20, _OF // 5  # p = .05 and p = .2
_RULE = f"yes where p ≤ .05 (max-T over blocks and classes, {CONTROLS} controls) and the interval excludes 0; no where "
_RULE += "p > .2; cannot tell in between, or where too few dimensions match it in size"


def steered(claims: pd.DataFrame, words: Mapping[str, str], where: Where) -> Iterator[Finding]:
    """The largest effect of each outlier dimension, from the table of `interp.attention.claims.largest_effects`.

    Args:
        words: the display names of classes, if they differ from the name.
        where: what the dimension was removed from.
    """
    row: Any
    for row in claims.itertuples():
        place = f"in block {row.layer} for {_named(row.key_class, words)}"
        known = not math.isnan(row.p_value)
        matched = f"p = {row.p_value:.3f}; the largest change for {CONTROLS} dimensions of similar size (dimension "
        matched += f"{row.control_dim} in block {row.control_layer}, for {_named(row.control_key_class, words)})"
        few = f"no control: fewer than {CONTROLS} dimensions are within a factor of {MOST_APART:g} of its size"
        if where == "residual":
            few = f"no test: a removal from the residual stream is not repeated for {CONTROLS} dimensions of its size"
        yield Finding(
            question=f"Does outlier dimension {row.dim} steer attention?",
            verdict=_verdict(row),
            measure=f"removing it from {_FROM[where]} changes the share of attention that goes to a class of tokens; "
            f"the largest such change, {place}, is",
            value=row.change,
            low=row.change_low,
            high=row.change_high,
            control=row.control_change if known else math.nan,
            compared_with=matched if known else few,
            rule=_RULE,
            form="{:+z.4f}",
            control_form="{:.4f}",
        )


def untested(outliers: pd.DataFrame, ablation: pd.DataFrame) -> Iterator[str]:
    """How many outlier dimensions were removed, if some were and others were not."""
    n, removed = outliers["dim"].nunique(), ablation.loc[ablation["set"] == "outlier", "dim"].unique()
    if 0 < len(removed) < n:
        which = ", ".join(map(str, removed))
        few = f"{n:,} dimensions are outliers in some state, and only {len(removed)} of them were removed ({which})"
        yield f"{few}; nothing is said of the others"


def _named(key_class: str, words: Mapping[str, str]) -> str:
    return words.get(key_class, f"the class {key_class}")


def _verdict(row: Any) -> Verdict:
    if math.isnan(row.p_value):
        return "cannot tell"
    as_large = round(row.p_value * _OF)
    apart = side(row.change_low, row.change_high) != "cannot tell"
    return "no" if as_large > _MANY else "yes" if as_large <= _FEW and apart else "cannot tell"
