"""What `interp frequency` finds: whether a bias keeps predictions near word frequency."""

from typing import Any

import numpy as np
import pandas as pd
from scipy.special import entr

from interp.results.findings import Finding, Verdict, side
from interp.support.words import BIAS_WORD, printed

__all__ = ["DISTANCE", "NAMED", "findings", "misfit", "without"]

DISTANCE = "KL(u‖q) (the divergence of the mean prediction q from word frequency u)"
"""How sentences name KL(u‖q)."""
_MEANT = {
    "ln": "the bias of the final layer norm",
    "fc": "the bias of the head's dense layer",
    "last": "the bias of the logits",
    "mean": "the mean input of the unembedding",
    "slope": "the direction along which log-probability grows",
}
NAMED = BIAS_WORD | {"mean": _MEANT["mean"]}
"""How questions name what is scaled."""
_ADDED = {"ln": "b_LN W_U", "last": "b_last", "mean": "E[h] W_U", "slope": "−A W_U"}
_RANDOM = dict.fromkeys(("ln", "mean", "slope"), "random directions") | {"last": "random orders of its values"}
_MOVED = "yes where the interval lies above 0 and what {} adds to the logits follows log u more closely than any "
_MOVED += "control; partly where only the interval does; no where it lies below 0"
_FOLLOWS = "yes where the interval lies above 0 and the correlation above that of every control; partly where only the "
_FOLLOWS += "interval does; no where it lies below 0"


def findings(kl: pd.DataFrame, projection: pd.DataFrame) -> tuple[Finding, ...]:
    """What removing each bias (or else scaling it by the λ farthest from 1) does to KL(u‖q), and whether it follows
    log u.

    Args:
        kl, projection: the tables of `BiasEffect`, `kl` without what is ranked among random directions.
    """
    known: dict[Any, Any] = {row.bias: row for row in projection.itertuples()}
    moved = [_moved(row, known.get(row.bias)) for row in (_ends(kl) if len(kl) else []) if row.scale != 1]
    moved.sort(key=lambda one: -abs(one.value))
    return (*moved, *(_follows(row) for row in known.values() if not np.isnan(row.spearman)))


def misfit(kl: pd.DataFrame, types: pd.DataFrame) -> list[str]:
    """A warning if the model predicts the text no better than word frequencies do: if its perplexity is at least
    `exp(−Σ u log u)`, that of u itself.

    Args:
        kl, types: the tables of `BiasEffect`.

    Examples:
        >>> kl, types = pd.DataFrame({"scale": [1.0], "perplexity": [9.0]}), pd.DataFrame({"unigram": [0.25] * 4})
        >>> misfit(kl, types)[0][:83]
        "the model's perplexity on this text is 9.0, no better than that of word frequencies"
        >>> misfit(kl.assign(perplexity=3.0), types)
        []
    """
    as_trained = kl.loc[kl["scale"] == 1, "perplexity"]
    of_frequencies = np.exp(entr(types["unigram"]).sum())
    if as_trained.empty or not as_trained.iloc[0] >= of_frequencies:
        return []
    return [
        f"the model's perplexity on this text is {as_trained.iloc[0]:,.1f}, no better than that of word frequencies "
        f"alone, {of_frequencies:,.1f}, so the findings may not hold for text that the model can predict. Perhaps it "
        "was trained on text in another language, or written in another way (upper case, spaces, punctuation)"
    ]


def without(bias: str, scale: float) -> str:
    """How sentences begin that say what happens without a bias or direction, or with a multiple of it.

    Examples:
        >>> without("ln", 0), without("mean", 0.5)
        ('without b_LN (the bias of the final layer norm)', 'with 0.5 times E[h] (the mean input of the unembedding)')
    """
    return f"{'without' if scale == 0 else f'with {scale:g} times'} {BIAS_WORD[bias]} ({_MEANT[bias]})"


def _ends(kl: pd.DataFrame) -> list[Any]:
    """The row of each bias at λ = 0, or else farthest from 1."""
    scales = np.array(kl["scale"].unique(), dtype=float)
    last = 0.0 if 0.0 in scales else scales[np.abs(scales - 1).argmax()]
    return [*kl[kl["scale"] == last].itertuples()]


def _moved(row: Any, projected: Any) -> Finding:
    bias = NAMED[row.bias]
    how = f"without {bias}" if row.scale == 0 else f"with {bias} times {printed(row.scale, '{:g}')}"
    verdict, control, compared_with = side(row.delta_kl_low, row.delta_kl_high), np.nan, ""
    if projected is not None and not np.isnan(projected.control_spearman):
        control = projected.control_spearman
        rho = printed(projected.spearman, "{:+.3f}")
        compared_with = f"Spearman correlation of {_ADDED[row.bias]} with log u: {rho}; the largest for "
        compared_with += f"{projected.n_controls} {_RANDOM[row.bias]}"
    elif verdict == "yes":
        compared_with = f"there is no control for {bias}"
    return Finding(
        question=f"Are predictions further from word frequency {how}?",
        verdict="partly" if verdict == "yes" and not _above(projected) else verdict,
        measure=f"{without(row.bias, row.scale)}, {DISTANCE} changes by",
        value=row.delta_kl if np.isnan(row.delta_kl_corrected) else row.delta_kl_corrected,
        low=row.delta_kl_low,
        high=row.delta_kl_high,
        unit="nats",
        control=control,
        compared_with=compared_with,
        rule=_MOVED.format(_MEANT[row.bias]),
        form="{:+z.3f}",
        towards=1,
    )


def _follows(row: Any) -> Finding:
    verdict: Verdict = side(row.spearman_low, row.spearman_high)
    return Finding(
        question=f"Does what {NAMED[row.bias]} adds to the logits follow word frequency?",
        verdict="partly" if verdict == "yes" and not _above(row) else verdict,
        measure=f"{BIAS_WORD[row.bias]} is {_MEANT[row.bias]}; the Spearman correlation of {_ADDED[row.bias]} with log "
        "u, the logarithm of word frequency, is",
        value=row.spearman,
        low=row.spearman_low,
        high=row.spearman_high,
        no_interval="three types or fewer occur in the text",
        control=row.control_spearman,
        compared_with=f"the largest for {row.n_controls} {_RANDOM[row.bias]}",
        rule=_FOLLOWS,
        form="{:+.3f}",
        towards=1,
    )


def _above(projected: Any) -> bool:
    """Whether what a bias adds follows log u more closely than any control."""
    return projected is not None and bool(projected.spearman > projected.control_spearman)
