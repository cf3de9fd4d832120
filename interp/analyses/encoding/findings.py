"""What `interp encoding` finds: whether output embeddings encode how probable a token is, and where."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from interp.analyses.encoding.pruning import PRUNED
from interp.results.findings import Finding, Verdict, side

__all__ = ["linear", "removable", "steered"]

_HALF = 0.5  # of the variance
_ENOUGH = 0.95  # of the predictions
_LINEAR = f"yes where the interval lies above {_HALF} and above the fit before training; partly if that fit is as "
_LINEAR += f"good or unknown; no where the interval lies below {_HALF}"
_MISSED = 0.1  # in the logarithm, about 10 %
_RESAMPLES = 1_000
_RATIOS = (0.2 - 1e-9, 5 + 1e-9)
_STEERED = f"yes where the interval lies below {_MISSED}; partly where it lies below the error without steering; "
_STEERED += "no where it lies above that"
_REMOVABLE = f"yes where the interval lies above {_ENOUGH} and above that of a random order; partly where it lies "
_REMOVABLE += "above the latter alone; no where it lies below it"


def linear(regression: pd.DataFrame, dynamics: pd.DataFrame) -> Finding:
    """Whether −log α is a linear function of the output embeddings, from the tables of a study."""
    fits = regression.set_index("target")
    whole, shuffled = fits.loc["-log alpha"].to_dict(), fits.loc["shuffled"].to_dict()
    low, high = whole["cv_r2_low"], whole["cv_r2_high"]
    before = dynamics.loc[dynamics["step"] == 0, "adj_r2"].dropna().tolist()
    verdict = side(low, high, than=_HALF)
    if verdict == "yes" and not (before and low > before[0]):
        verdict = "partly"
    return Finding(
        question="Is token probability a linear function of the output embeddings?",
        verdict=verdict,
        measure="R² of the linear fit of −log α (α: a token's mean probability) on tokens that were left out of it is",
        value=whole["cv_r2"],
        low=low,
        high=high,
        control=before[0] if before else shuffled["cv_r2"],
        compared_with="adjusted R² before training"
        if before
        else "R² before training is unknown; R² with α shuffled over tokens",
        rule=_LINEAR,
    )


def removable(pruning: pd.DataFrame) -> Iterator[Finding]:
    """Whether the dimensions least tied to probability can be removed, from the table `pruning`."""
    axes = pruning[pruning["basis"] == "axis"]
    curves = {order: axes[axes["order"] == order].set_index("fraction") for order in ("spearman", "random")}
    if any(curve.empty for curve in curves.values()):
        return
    fraction = min(curves["spearman"].index, key=lambda one: abs(one - PRUNED))
    columns = ["top1_agreement", "top1_agreement_low", "top1_agreement_high"]
    value, low, high = curves["spearman"].loc[fraction, columns].tolist()
    control, least, most = curves["random"].loc[fraction, columns].tolist()
    verdict: Verdict = "no" if high < least else "cannot tell"
    if low > most:
        verdict = "yes" if low > _ENOUGH else "partly"
    yield Finding(
        question="Can the dimensions least tied to probability be removed?",
        verdict=verdict,
        measure=f"without the {fraction:.0%} of the output dimensions that correlate least with −log α, the share of "
        "positions whose most probable token stays the same is",
        value=value,
        low=low,
        high=high,
        control=control,
        compared_with="with as many removed in random order",
        rule=_REMOVABLE,
    )


def steered(steering: pd.DataFrame) -> Iterator[Finding]:
    """Whether steering along the slope changes a token's probability as asked, from the table `steering`."""
    rows = (
        (steering["text"] == "fitted") & (steering["shift"] == "regression") & steering["requested"].between(*_RATIOS)
    )
    missed = np.abs(np.log(steering["achieved"] / steering["requested"]))
    for weights, part in steering.assign(missed=missed)[rows].groupby("weights", sort=False):
        by_token = [values.to_numpy() for _, values in part.groupby("token_id", sort=False)["missed"]]
        drawn = np.random.default_rng(0).integers(len(by_token), size=(_RESAMPLES, len(by_token)))
        medians = [np.median(np.concatenate([by_token[token] for token in tokens])) for tokens in drawn]
        low, high = np.quantile(medians, (0.025, 0.975)) if len(by_token) > 1 else (np.nan, np.nan)
        still = float(np.abs(np.log(part["requested"])).median())
        verdict = side(-float(high), -float(low), than=-still)
        yield Finding(
            question="Does steering along A change a token's probability by what is asked?",
            verdict="partly" if verdict == "yes" and not high < _MISSED else verdict,
            measure="with A as the slope of −log α on the output embeddings and requested factors from 1/5 to 5 "
            f"({str(weights).replace('_', ' ')} weights), the median error |log(achieved/requested)| is",
            value=float(part["missed"].median()),
            low=float(low),
            high=float(high),
            no_interval="a single token was steered" if len(by_token) == 1 else "",
            control=still,
            compared_with="without steering",
            rule=_STEERED,
        )
