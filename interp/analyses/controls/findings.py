"""What `interp controls` finds: whether a direction favours frequent words, and whether outlier dimensions hold word
frequency, more than random ones.

What removing a direction adds to KL(u‖q) is ranked among random directions without a verdict: a random shift of the
logits with the same spread raises KL by about half its variance, which is as much as a shift along log u does, so that
no true effect could be told from it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from interp.analyses.controls.draws import KINDS, farthest
from interp.results.findings import Answer, Finding
from interp.results.intervals import texts_read
from interp.results.verdicts import Control, judged, smallest
from interp.support.words import DISTANCE, capitalized, count, named_bias, printed, without

__all__ = ["answer", "band_findings", "outlier_findings"]

_NAMED = {
    "norm": "random directions of equal norm",
    "effect": "random directions of equal effect",
    "embeddings": "random sums of output embeddings, of equal norm",
    "centred embeddings": "random sums of centred output embeddings, of equal norm",
}


def answer(bands: pd.DataFrame) -> Answer | None:
    """Say what removing the first bias or direction costs the most and the least frequent tokens. None without bands.

    Args:
        bands: a table of `ControlStudy`.
    """
    edited = bands[bands["scale"] != 1]
    if edited.empty:
        return None
    rows = farthest(edited[edited["bias"] == edited["bias"].iloc[0]]).sort_values("band")
    first, last = rows.iloc[0], rows.iloc[-1]
    values = {"bias": first["bias"], "scale": first["scale"], "frequent": first["delta_nll"], "rare": last["delta_nll"]}
    change = "{:+z.2f}"
    return Answer(
        f"{capitalized(without(first['bias'], first['scale']))}, the negative log-likelihood of the "
        f"{count(first['n_types'], 'most frequent token')}, {first['share']:.0%} of the text, changes by "
        f"{printed(first['delta_nll'], change)} nats, and that of the {count(last['n_types'], 'rarest token')}, "
        f"{last['share']:.0%} of the text, by {printed(last['delta_nll'], change)} nats.",
        values,
    )


def band_findings(bands: pd.DataFrame, controls: pd.DataFrame, intervals: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether removing b_LN or a direction costs the most frequent words more than the others, and whether that
    difference is larger than for random directions.

    Args:
        bands, controls: tables of `ControlStudy`.
        intervals: what its provenance says about the intervals.
    """
    first = bands[(bands["band"] == 1) & (bands["scale"] != 1)]
    for row in farthest(first).to_dict("records"):
        drawn = _controls_of_row(controls, row, "excess_nll")
        if not drawn:
            continue
        yield judged(
            question=f"Does {named_bias(row['bias'])} favour frequent words more than random directions do?",
            measure=f"{without(row['bias'], row['scale'])}, the negative log-likelihood of the most frequent words, "
            "minus that of all tokens, changes by",
            value=row["excess_nll"],
            low=row["excess_nll_low"],
            high=row["excess_nll_high"],
            controls=drawn,
            smallest=smallest("divergence"),
            sample=texts_read(intervals),
            unit="nats",
            form="{:+z.3f}",
        )


def outlier_findings(
    outlier_dims: pd.DataFrame, outliers: pd.DataFrame, intervals: Mapping[str, Any]
) -> Iterator[Finding]:
    """Whether predictions from the outlier dimensions of the head's input alone are nearer to word frequency than those
    from random parts.

    Args:
        outlier_dims, outliers: tables of `ControlStudy`.
        intervals: what its provenance says about the intervals.
    """
    if outliers.empty:
        return
    all_dims = outliers.query("part == 'all'").iloc[0]["kl_unigram_model"]
    parts_alone = outliers[outliers["part"] == "alone"]
    outlier_row = parts_alone[parts_alone["of"] == "outliers"].iloc[0]
    dims = f"{_listed(outlier_dims)} of the unembedding's input"
    yield judged(
        question=f"Are predictions from {dims} alone nearer to word frequency than from random parts?",
        measure=f"{DISTANCE} is {all_dims:.3f} with all dimensions and, with these alone,",
        value=outlier_row["kl_unigram_model"],
        low=outlier_row["kl_unigram_model_low"],
        high=outlier_row["kl_unigram_model_high"],
        controls=[
            Control(
                "random parts of the same norm",
                parts_alone.loc[parts_alone["of"] == "random", "kl_unigram_model"].to_numpy(),
            )
        ],
        smallest=smallest("divergence", as_trained=all_dims),
        towards=-1,
        sample=texts_read(intervals),
        unit="nats",
    )


def _controls_of_row(controls: pd.DataFrame, row: Mapping[Any, Any], measure: str) -> list[Control]:
    """The controls of one row, none if there are no draws: those of each kind (runs of 0.2 have two), and no change."""
    drawn_rows = controls[(controls["bias"] == row["bias"]) & (controls["scale"] == row["scale"])]
    drawn = []
    for kind in KINDS:
        values = drawn_rows.loc[drawn_rows["kind"] == kind, measure].to_numpy()
        if len(values):
            drawn.append(Control(_NAMED[kind], values))
    return [*drawn, Control("no change", [0.0], "number")] if drawn else []


def _listed(outlier_dims: pd.DataFrame) -> str:
    names = list(map(str, outlier_dims["dim"]))
    return f"dimension {names[0]}" if len(names) == 1 else f"dimensions {', '.join(names)}"
