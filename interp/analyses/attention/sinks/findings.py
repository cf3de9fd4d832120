"""What is found about attention sinks: verdicts from the tables of a study, and from nothing else."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from interp.results.findings import Finding, Verdict, side
from interp.support.words import printed

__all__ = ["by_chance", "sink_findings"]

_POSITIONS = 4  # the number of positions with a row of their own in the table
_DRAWS = 10_000
_ROUNDING = 1e-9  # the rounding error of shares that are equal
_FEWEST_HEADS = 5  # the number of heads that an interval needs


def sink_findings(tables: Mapping[str, pd.DataFrame], epsilon: float) -> tuple[Finding, ...]:
    """The findings from a study's tables; none if it did not ask for sinks.

    Args:
        tables: the tables of the study, by name.
        epsilon: the study's epsilon.
    """
    if tables["sinks"].empty:
        return ()
    sink = _sink(tables["sinks"], tables["sink_summary"], epsilon)
    found = [sink]
    if sink.verdict == "yes":
        summary = tables["sink_summary"]
        found += [_direction(summary)] if "direction_ratio" in set(summary["measure"]) else []
        found.append(_values(summary))
        if not tables["sink_dims"].empty:
            found.append(_outliers(tables["sink_dims"]))
    found.append(_writer(tables["writers"], tables["massive"]))
    return tuple(found)


def by_chance(rates: Float[np.ndarray, "heads position"], seed: int = 0) -> float:
    """The sink rate that the first position would not exceed, in 39 of 40 draws, if a head's first positions were
    alike: each head's rates are shuffled among its positions.

    Examples:
        >>> rates = np.zeros((12, 4))
        >>> rates[:6, 0] = 1.0  # six of twelve heads have a sink at the first position
        >>> by_chance(rates)
        0.3333333333333333
    """
    rng = np.random.default_rng(seed)
    places = rng.integers(rates.shape[1], size=(_DRAWS, len(rates)))
    drawn = np.take_along_axis(rates.T[None], places[:, None], 1)[:, 0].mean(1)
    return float(np.quantile(drawn, 0.975, method="higher"))


def _sink(sinks: pd.DataFrame, summary: pd.DataFrame, epsilon: float) -> Finding:
    rate = _ends(summary, "rate")
    single = sinks[sinks["first_position"] < _POSITIONS]
    rates = single.pivot(index=["layer", "head"], columns="first_position", values="rate").to_numpy(float)
    chance = by_chance(rates) if rates.shape[1] > 1 else math.nan
    verdict: Verdict = "no" if rate["high"] == 0 else side(rate["low"] - _ROUNDING, rate["high"] + _ROUNDING, chance)
    return Finding(
        question="Is there an attention sink at the first position?",
        verdict=verdict,
        measure=f"the share of layers, heads and rows in which it draws more than {epsilon:g} of the attention is",
        **rate,
        control=chance,
        compared_with="97.5th percentile with each head's first positions shuffled",
        rule="yes where the interval lies above the control; no where it lies below, and where there is none at all",
    )


def _ends(summary: pd.DataFrame, measure: str) -> dict[str, Any]:
    """Value, low and high of a measure."""
    row = summary[summary["measure"] == measure].iloc[0]
    return {name: float(row[name]) for name in ("value", "low", "high")}


def _direction(summary: pd.DataFrame) -> Finding:
    ratio = _ends(summary, "direction_ratio")
    return Finding(
        question="Is it the direction of its key that draws attention there, and not the norm?",
        verdict=side(ratio["low"], ratio["high"], 0.5),
        measure="the part of its higher attention score that is due to the direction, divided by the whole (above 1 "
        "where the norm works against it), is",
        **ratio,
        control=0.5,
        compared_with="if direction and norm contributed equally",
        rule="over heads with a sink; yes where the interval lies above one half, no where it lies below",
    )


def _values(summary: pd.DataFrame) -> Finding:
    ratio = _ends(summary, "value_ratio")
    return Finding(
        question="Is little read from the sink?",
        verdict=side(-ratio["high"], -ratio["low"], -1.0),
        measure="the norm of its value vectors, divided by that of value vectors elsewhere, is",
        **ratio,
        control=1.0,
        compared_with="if all had the same norm",
        rule="over heads with a sink; yes where the interval lies below 1, no where it lies above",
    )


def _outliers(dims: pd.DataFrame) -> Finding:
    """Looks at the ten dimensions with the largest gaps, because the table has no others."""
    heads = dims.groupby(["layer", "head"])
    share = heads[["abs_share", "outlier"]].apply(lambda rows: rows.loc[rows["outlier"], "abs_share"].sum())
    n_outlying = heads["outlier"].sum().to_numpy()
    others = [
        rows.loc[~rows["outlier"], "abs_share"].nlargest(number).sum()
        for (_, rows), number in zip(heads, n_outlying, strict=True)
    ]
    value, low, high = _over_heads(share.to_numpy(float))
    control = float(np.mean(others))
    return Finding(
        question="Do outlier dimensions make the sink?",
        verdict=side(low, high, control),
        measure="their share of the gap between its scores and those of other keys, as a sum of |gap|, is",
        value=value,
        low=low,
        high=high,
        no_interval=f"fewer than {_FEWEST_HEADS} heads have a sink" if len(share) < _FEWEST_HEADS else "",
        control=control,
        compared_with="share of as many of the largest other dimensions of each head",
        rule="mean over heads with a sink, with an interval over these heads; yes where it lies above the control",
    )


def _over_heads(values: Float[np.ndarray, " heads"]) -> tuple[float, float, float]:
    """The mean, and the ends of its 95 % interval by Student's t, which are NaN for fewer than five heads."""
    mean, n = float(values.mean()), len(values)
    half = float(stats.t.ppf(0.975, n - 1) * stats.sem(values)) if n >= _FEWEST_HEADS else math.nan
    return mean, mean - half, mean + half


def _writer(writers: pd.DataFrame, massive: pd.DataFrame) -> Finding:
    """Looks at the dimension with the largest massive activation."""
    question = "Does one component write the massive activations?"
    rule = "for the dimension with the largest one; yes where the interval of the largest part lies above one half"
    if writers.empty:
        none = massive.empty
        return Finding(
            question=question,
            verdict="no" if none else "cannot tell",
            measure="the number of massive activations in the text is"
            if none
            else "what each component adds to the hidden states cannot be determined, so the largest part is",
            value=0.0 if none else math.nan,
            low=math.nan,
            high=math.nan,
            no_interval="it is a count",
            rule=rule,
            form="{:.0f}",
        )
    dim = massive["dim"].iloc[int(massive["max_abs"].argmax())]
    of_dim = writers[writers["dim"] == dim]
    of_dim = of_dim[of_dim["first_position"] == of_dim["first_position"].min()].sort_values("share", ascending=False)
    largest = of_dim.iloc[0]
    where = largest["component"]
    if not pd.isna(largest["layer"]):
        where = f"the {where} of block {largest['layer']}"
    added = printed(largest["added"], "{:,.0f}")
    return Finding(
        question=question,
        verdict=side(largest["share_low"], largest["share_high"], 0.5),
        measure=f"for dimension {dim}, {where} contributes most ({added} on average), which divided by their height is",
        value=float(largest["share"]),
        low=float(largest["share_low"]),
        high=float(largest["share_high"]),
        control=float(of_dim["share"].iloc[1]) if len(of_dim) > 1 else math.nan,
        compared_with="the second largest part" if len(of_dim) > 1 else "nothing else adds to them",
        rule=rule,
    )
