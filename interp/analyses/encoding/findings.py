"""What `interp encoding` finds: whether output embeddings encode how probable a token is, and where."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from interp.analyses.encoding.pruning import PRUNED
from interp.results.findings import Answer, Finding
from interp.results.verdicts import ZERO, Control, ends, judged, reaching, smallest

__all__ = ["answer", "as_untrained", "better_than_random", "beyond_theory", "removable", "steered"]

_ENOUGH, _TOO_LITTLE = 0.95, 0.9  # of the predictions
_FEWEST_TOKENS = 5
_RATIOS = (0.2 - 1e-9, 5 + 1e-9)
_R2 = "R² of the linear fit of −log α (α: a token's mean probability) on tokens that were left out of it"


def answer(regression: pd.DataFrame, removable: pd.DataFrame, steering_error: pd.DataFrame) -> Answer:
    """How well output embeddings predict token probability, how far steering along A misses what was asked, and how
    many dimensions the most probable token does not need.

    Args:
        regression, removable, steering_error: tables of `EncodingStudy`.
    """
    fit = regression.set_index("target").loc["-log alpha"]
    values: dict[str, Any] = {"cv_r2": fit["cv_r2"], "n_types": fit["n_types"]}
    sentences = [
        f"A linear function of the {fit['n_dims']:.0f} dimensions of an output embedding predicts −log α of tokens "
        f"left out of the fit with R² = {fit['cv_r2']:.3f}."
    ]
    missed = steering_error.query("text == 'fitted' and group == 'all' and shift == 'regression'")
    for error in missed["error"].head(1):
        values["steering_factor"] = math.exp(error)
        sentences.append(
            "Asked to change a token's probability at most fivefold, steering along A misses by a factor of "
            f"{math.exp(error):.2f} in the median."
        )
    for fraction in removable.query("basis == 'axis' and order == 'spearman'")["95%"]:
        values["removable"] = fraction
        share = f"{fraction:.0%}" if fraction else "Less than 1%"
        sentences.append(
            f"{share} of the dimensions can be removed before more than 5% of the most probable tokens change."
        )
    return Answer(" ".join(sentences), values)


def beyond_theory(theory: pd.DataFrame) -> Finding:
    """Whether −log α is more linear in the output embeddings than it is by construction, from the table `theory`."""
    fit, best = _fit_and_best(theory)
    is_corrected = not np.isnan(best.get("beyond_corrected", np.nan))  # runs of 0.2 have no such column
    return judged(
        question="Do output embeddings encode token probability beyond what is true by construction?",
        measure=f"the {_R2}, {fit['r2']:.3f}, minus that of the theory without a fit ({best['predictor']}), "
        f"{best['r2']:.3f},{' corrected for the finite text,' * is_corrected} is",
        value=best["beyond_corrected" if is_corrected else "beyond"],
        low=best["beyond_low"],
        high=best["beyond_high"],
        controls=[ZERO],
        smallest=smallest("r2"),
        form="{:+z.3f}",
    )


def as_untrained(regression: pd.DataFrame, theory: pd.DataFrame) -> Iterator[Finding]:
    """Whether the fit is better than those of untrained models at the same spread of log α, if these were asked for,
    and than the theory, which random biases alone make good. None of these values is corrected for the finite text, so
    the interval is moved to the value that is not."""
    twins = regression.loc[regression["target"] == "untrained", "cv_r2"].to_numpy()
    if not len(twins):
        return
    fit, best = _fit_and_best(theory)
    shift = fit["r2"] - fit.get("r2_corrected", fit["r2"])
    yield judged(
        question="Do output embeddings encode token probability better than without training?",
        measure=f"{_R2} is",
        value=fit["r2"],
        low=fit["r2_low"] + shift,
        high=fit["r2_high"] + shift,
        controls=[
            Control("untrained models whose logits are multiplied until log α varies as much", twins, "models"),
            Control("the theory without a fit", [best["r2"]], "number"),
        ],
        smallest=smallest("r2"),
    )


def _fit_and_best(theory: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The fit, and the better of the two predictors without one: the first order alone misses what even nearly
    constant predictions add."""
    is_fit = theory["predictor"] == "fit"
    return theory[is_fit].iloc[0], theory[~is_fit].sort_values("r2").iloc[-1]


def removable(pruning: pd.DataFrame) -> Iterator[Finding]:
    """Whether the dimensions least tied to probability can be removed, from the table `pruning`."""
    curve = pruning[(pruning["basis"] == "axis") & (pruning["order"] == "spearman")].set_index("fraction")
    if curve.empty:
        return
    fraction = min(curve.index, key=lambda share: abs(share - PRUNED))
    yield reaching(
        question=f"Can {fraction:.0%} of the output dimensions be removed?",
        measure="without those that correlate least with −log α, the share of positions whose most probable token "
        "stays the same is",
        **ends(curve.loc[fraction], "top1_agreement"),
        enough=_ENOUGH,
        too_little=_TOO_LITTLE,
    )


def better_than_random(orders: pd.DataFrame) -> Iterator[Finding]:
    """Whether the order of removal matters, from the table `random_orders`."""
    drawn = orders.loc[orders["order"] == "random", "top1_agreement"].to_numpy()
    for row in orders[orders["order"] == "spearman"].to_dict("records"):
        yield judged(
            question=f"Does removing {row['fraction']:.0%} in this order change less than in a random one?",
            measure=f"without the dimensions that correlate least with −log α, the most probable token stays the same "
            f"at a share of {row['n_positions']:,} positions of",
            **ends(row, "top1_agreement"),
            controls=[Control("random orders", drawn)],
            smallest=smallest("agreement"),
        )


def steered(steering: pd.DataFrame) -> Iterator[Finding]:
    """Whether steering along the slope does better than a constant shift, which knows no slope, from the table
    `steering`; nothing unless both were asked for."""
    rows = (steering["text"] == "fitted") & steering["requested"].between(*_RATIOS)
    missed = np.abs(np.log(steering["achieved"] / steering["requested"]))
    medians = (
        steering.assign(missed=missed)[rows].groupby(["shift", "weights", "token_id"], sort=False)["missed"].median()
    )
    shifts = medians.index.unique("shift")
    if not {"constant", "regression"} <= set(shifts):
        return
    constant = medians.loc["constant"].droplevel("weights")
    for weights, by_token in medians.loc["regression"].groupby("weights", sort=False):
        regression = by_token.droplevel("weights")
        differences = (regression - constant).dropna().to_numpy()
        n = len(differences)
        enough = n >= _FEWEST_TOKENS
        mean = float(differences.mean()) if n else np.nan
        half = stats.t.ppf(0.975, n - 1) * stats.sem(differences) if enough else np.nan
        yield judged(
            question="Does steering along A change a token's probability more as asked than a constant shift?",
            measure="for factors from 1/5 to 5, the error |log(achieved/requested)| with A as the slope of −log α on "
            f"the output embeddings ({str(weights).replace('_', ' ')} weights), {regression.mean():.3f}, minus that of "
            f"the same shift of the token's logit everywhere, {constant.mean():.3f}, is",
            value=mean,
            low=float(mean - half),
            high=float(mean + half),
            controls=[ZERO],
            smallest=smallest("log ratio"),
            towards=-1,
            sample=(n, "token") if enough else None,
            no_interval="" if enough else f"{n} tokens were steered; an interval needs {_FEWEST_TOKENS}",
            form="{:+z.3f}",
        )
