"""What is found about attention sinks: verdicts from the tables of a study, and from nothing else."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from interp.results.findings import Answer, Finding
from interp.results.verdicts import ZERO, Control, judged, smallest
from interp.support.words import capitalized, count, printed

__all__ = ["answer", "sink_findings"]

_FEWEST_HEADS = 5  # the number of heads that an interval needs


def answer(heads: pd.DataFrame, writers: pd.DataFrame, epsilon: float) -> Answer:
    """Say how many heads have a sink at the first position in most rows, which of them the strongest, and what writes
    most of the largest massive activation.

    Args:
        heads, writers: tables of `SinkStudy`.
        epsilon: the study's epsilon.
    """
    first = heads[heads["first_position"] == 0]
    sinks, top = first[first["rate"] > 0.5], first.nlargest(1, "attention").iloc[0]
    head = f"L{top['layer']:.0f}H{top['head']:.0f}"
    values: dict[str, Any] = {"n_sinks": len(sinks), "n_heads": len(first), "head": head}
    values["attention"] = top["attention"]
    sentences = [
        f"In {len(sinks):,} of {count(len(first), 'head')} the first position draws more than {epsilon:g} of the "
        f"attention in most rows; it draws most in {head}: {top['attention']:.3f}, where uniform attention would give "
        f"it {top['uniform']:.3f}."
    ]
    if len(writers):
        largest, name = _largest_writer(writers)
        values.update(writer=name, dim=largest["dim"], share=largest["share"])
        sentences.append(
            f"{capitalized(name)} contribute{'' if name == 'embeddings' else 's'} {largest['share']:.0%} of the height "
            f"of the largest massive activations, in dimension {largest['dim']}."
        )
    return Answer(" ".join(sentences), values)


def sink_findings(tables: Mapping[str, pd.DataFrame], epsilon: float) -> tuple[Finding, ...]:
    """Make the findings from a study's tables. What draws attention to the first position is asked only if it is a
    sink, and who writes massive activations only if there are some whose writers can be determined.

    Args:
        tables: the tables of the study, by name.
        epsilon: the study's epsilon.
    """
    return tuple(_findings(tables, epsilon))


def _findings(tables: Mapping[str, pd.DataFrame], epsilon: float) -> Iterator[Finding]:
    measures = tables["measures"]
    rows = int(tables["heads"].query("first_position == 0")["n_keys"].max())
    sink = _sink(measures, tables["draws"], epsilon, rows)
    yield sink
    if sink.verdict == "yes":
        if "direction_ratio" in set(measures["measure"]):
            yield _direction(measures, rows)
        yield _values(measures, rows)
        if len(tables["dims"]):
            yield _outliers(tables["dims"])
    if len(tables["writers"]):
        yield _writer(tables["writers"])


def _sink(measures: pd.DataFrame, draws: pd.DataFrame, epsilon: float, rows: int) -> Finding:
    rate = _ends(measures, "rate")
    return judged(
        question="Is there an attention sink at the first position?",
        measure=f"the share of layers, heads and rows in which it draws more than {epsilon:g} of the attention is",
        **rate,
        controls=[Control("shuffles of each row's keys", draws["rate"].to_numpy(float))],
        smallest=smallest("sink rate"),
        sample=(rows, "row"),
    )


def _ends(measures: pd.DataFrame, measure: str) -> dict[str, Any]:
    """Value, low and high of a measure."""
    row = measures[measures["measure"] == measure].iloc[0]
    return {name: float(row[name]) for name in ("value", "low", "high")}


def _direction(measures: pd.DataFrame, rows: int) -> Finding:
    return judged(
        question="Is it the direction of its key that draws attention there, more than the norm?",
        measure="over heads with a sink, the part of its higher attention score that is due to the direction, divided "
        "by the whole (above 1 where the norm works against it), is",
        **_ends(measures, "direction_ratio"),
        controls=[Control("if direction and norm contributed equally", [0.5], "number")],
        smallest=smallest("overlap"),
        sample=(rows, "row"),
    )


def _values(measures: pd.DataFrame, rows: int) -> Finding:
    ends = _ends(measures, "value_ratio")
    logs: dict[str, Any] = {name: math.log(value) if value > 0 else math.nan for name, value in ends.items()}
    return judged(
        question="Is little read from the sink?",
        measure="over heads with a sink, the logarithm of the norm of its value vectors, relative to that of value "
        "vectors elsewhere, is",
        **logs,
        controls=[Control("if all had the same norm", [0.0], "number")],
        smallest=smallest("log ratio"),
        towards=-1,
        sample=(rows, "row"),
        form="{:+z.3f}",
    )


def _outliers(dims: pd.DataFrame) -> Finding:
    """Looks at the ten dimensions with the largest gaps, because the table has no others."""
    excess = []
    for _, rows in dims.groupby(["layer", "head"]):
        of_outliers = rows.loc[rows["outlier"], "abs_share"]
        of_others = rows.loc[~rows["outlier"], "abs_share"].nlargest(len(of_outliers))
        excess.append(of_outliers.sum() - of_others.sum())
    value, low, high = _over_heads(np.asarray(excess))
    return judged(
        question="Do outlier dimensions make the sink?",
        measure="their share of the gap between its scores and those of other keys, as a sum of |gap|, minus the share "
        "of as many of the largest other dimensions, mean over heads with a sink, is",
        value=value,
        low=low,
        high=high,
        controls=[ZERO],
        smallest=smallest("overlap"),
        sample=(len(excess), "head"),
        no_interval=f"fewer than {_FEWEST_HEADS} heads have a sink" if len(excess) < _FEWEST_HEADS else "",
        form="{:+z.3f}",
    )


def _over_heads(values: Float[np.ndarray, " heads"]) -> tuple[float, float, float]:
    """The mean, and the ends of its 95 % interval by Student's t, which are NaN for fewer than five heads."""
    mean = float(values.mean())
    n = len(values)
    half = float(stats.t.ppf(0.975, n - 1) * stats.sem(values)) if n >= _FEWEST_HEADS else math.nan
    return mean, mean - half, mean + half


def _largest_writer(writers: pd.DataFrame) -> tuple[Any, str]:
    """What adds most to the highest massive activations, those of one dimension at some positions; and its name."""
    heights = writers.groupby(["dim", "first_position"])["added"].transform("sum")
    largest: Any = writers[heights == heights.max()].sort_values("share").iloc[-1]
    component = largest["component"]
    return largest, component if pd.isna(largest["layer"]) else f"the {component} of block {largest['layer']}"


def _writer(writers: pd.DataFrame) -> Finding:
    largest, where = _largest_writer(writers)
    added = printed(largest["added"], "{:,.0f}")
    return judged(
        question="Does one component write the massive activations?",
        measure=f"for dimension {largest['dim']}, {where} contributes most ({added} on average), which divided by "
        "their height is",
        value=float(largest["share"]),
        low=float(largest["share_low"]),
        high=float(largest["share_high"]),
        controls=[Control("half of their height", [0.5], "number")],
        smallest=smallest("overlap"),
        sample=(int(largest["n_activations"]), "activation"),
    )
