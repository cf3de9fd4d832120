"""What `interp controls` finds: whether a direction does more to predictions than random ones do."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from interp.analyses.controls.draws import KINDS, farthest, plug_in
from interp.results.findings import Finding
from interp.results.intervals import texts_read
from interp.results.verdicts import Control, judged, smallest
from interp.support.words import DISTANCE, named_bias, without

__all__ = ["band_findings", "control_findings", "outlier_findings"]

_NAMED = {
    "norm": "random directions of equal norm",
    "effect": "random directions of equal effect",
    "embeddings": "random sums of output embeddings, of equal norm",
    "centred embeddings": "random sums of centred output embeddings, of equal norm",
}


def control_findings(kl: pd.DataFrame, controls: pd.DataFrame, intervals: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether b_LN and each direction keeps predictions near word frequency more than random directions do.

    Args:
        kl, controls: tables of `ControlStudy`.
        intervals: what its provenance says about the intervals.
    """
    for row in farthest(plug_in(kl)).to_dict("records"):
        drawn = _of(controls, row, "delta_kl")
        if not drawn:
            continue
        yield judged(
            question=f"Does {named_bias(row['bias'])} keep predictions near word frequency more than a random direction "
            "does?",
            measure=f"{without(row['bias'], row['scale'])}, {DISTANCE} changes by",
            value=row["delta_kl"],
            low=row["delta_kl_low"],
            high=row["delta_kl_high"],
            controls=drawn,
            smallest=smallest("divergence", as_trained=row["kl_unigram_model"] - row["delta_kl"]),
            sample=texts_read(intervals),
            unit="nats",
            form="{:+z.3f}",
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
        drawn = _of(controls, row, "excess_nll")
        if not drawn:
            continue
        yield judged(
            question=f"Does {named_bias(row['bias'])} favour frequent words more than a random direction does?",
            measure=f"{without(row['bias'], row['scale'])}, the negative log-likelihood of the most frequent words, minus "
            "that of all tokens, changes by",
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
    """Whether predictions without the outlier dimensions of the head's input are further from word frequency than
    predictions without random parts, and whether predictions from them alone are nearer to it.

    Args:
        outlier_dims, outliers: tables of `ControlStudy`.
        intervals: what its provenance says about the intervals.
    """
    if outliers.empty:
        return
    whole = outliers.query("part == 'all'").iloc[0]["kl_unigram_model"]
    named = f"{_listed(outlier_dims)} of the unembedding's input"
    questions = {
        "without": f"Are predictions without {named} further from word frequency than without random parts?",
        "alone": f"Are predictions from {named} alone nearer to word frequency than from random parts?",
    }
    for part, question in questions.items():
        rows = outliers[outliers["part"] == part]
        own = rows[rows["of"] == "outliers"].iloc[0]
        random = rows.loc[rows["of"] == "random", "kl_unigram_model"].to_numpy()
        how = "without these" if part == "without" else "with these alone"
        yield judged(
            question=question,
            measure=f"{DISTANCE} is {whole:.3f} with all dimensions and, {how},",
            value=own["kl_unigram_model"],
            low=own["kl_unigram_model_low"],
            high=own["kl_unigram_model_high"],
            controls=[Control("random parts of the same norm", random)],
            smallest=smallest("divergence", as_trained=whole),
            towards=1 if part == "without" else -1,
            sample=texts_read(intervals),
            unit="nats",
        )


def _of(controls: pd.DataFrame, row: Mapping[Any, Any], measure: str) -> list[Control]:
    """The controls of one row, none if there are no draws: those of each kind (runs of 0.2 have two), and no change."""
    same = controls[(controls["bias"] == row["bias"]) & (controls["scale"] == row["scale"])]
    drawn = {kind: same.loc[same["kind"] == kind, measure].to_numpy() for kind in KINDS}
    found = [Control(_NAMED[kind], values) for kind, values in drawn.items() if len(values)]
    return [*found, Control("no change", [0.0], "number")] if found else []


def _listed(outlier_dims: pd.DataFrame) -> str:
    names = [f"{dim}" for dim in outlier_dims["dim"]]
    return f"dimension {names[0]}" if len(names) == 1 else f"dimensions {', '.join(names)}"
