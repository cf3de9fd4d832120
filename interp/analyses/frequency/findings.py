"""What `interp frequency` finds: what a bias does to words by frequency, and whether it keeps predictions near it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import entr

from interp.results.dense import Dense
from interp.results.findings import Answer, Finding
from interp.results.intervals import texts_read
from interp.results.verdicts import ZERO, Control, judged, smallest
from interp.support.words import BIAS_MEANING, BIAS_WORD, DISTANCE, capitalized, named_bias, printed, without

__all__ = ["answer", "findings", "misfit"]

_ADDED = {"ln": "b_LN W_U", "last": "b_last", "mean": "E[h] W_U", "slope": "−A W_U"}
_DIRECTIONS = {
    "isotropic": "random directions",
    "embeddings": "random sums of output embeddings, which share their common direction",
    "centred embeddings": "random sums of centred output embeddings",
}
_ORDERS = {"orders": "random orders of its values"}
_RARE, _FREQUENT = 0.1, 0.01  # of the types that occur
_MUCH = 0.05  # probability that is mentioned if it goes to types that do not occur


def answer(kl: pd.DataFrame, types: pd.DataFrame, probabilities: Dense) -> Answer | None:
    """Say how much more or less probable the first bias makes rare and frequent types, as geometric means over types,
    and how far it keeps the mean prediction from word frequency. None if it was not read both with and without it.

    The rarest tenth and the most frequent hundredth of the types that occur are taken, with all that are as frequent as
    the last of them. If these are the same types, nothing is said of them.

    Args:
        kl, types, probabilities: tables of `FrequencyStudy`.
    """
    rows = _edited(kl)
    unigram = types.set_index("token_id")["unigram"]
    occurring = unigram[unigram > 0].sort_values()
    if not rows or occurring.empty or not (kl["scale"] == 1).any():
        return None
    row = rows[0]
    edited = probabilities(bias=row.bias, scale=row.scale).set_index("token_id")["probability"]
    trained = probabilities(bias=row.bias, scale=1.0).set_index("token_id")["probability"]
    log_ratio = np.log(edited[occurring.index] / trained[occurring.index])
    n_rare = math.ceil(_RARE * len(occurring))
    n_frequent = math.ceil(_FREQUENT * len(occurring))
    is_rare = occurring <= occurring.iloc[n_rare - 1]
    is_frequent = occurring >= occurring.iloc[-n_frequent]
    rare = math.exp(log_ratio[is_rare].mean())
    frequent = math.exp(log_ratio[is_frequent].mean())
    as_trained = kl[kl["scale"] == 1].iloc[0]
    column = "kl_unigram_model" if np.isnan(row.kl_corrected) else "kl_corrected"
    before, after = as_trained[column], getattr(row, column)
    values = {
        "bias": row.bias, "scale": row.scale, "rare_ratio": rare, "frequent_ratio": frequent, "kl_before": before,
        "kl_after": after,
    }  # fmt: skip
    text = f"{capitalized(without(row.bias, row.scale))}, "
    if not (is_rare & is_frequent).any():
        most_frequent = "most frequent" if is_frequent.sum() == 1 else f"{is_frequent.sum():,} most frequent"
        text += (
            f"the {is_rare.sum():,} rarest of {len(occurring):,} types are {rare:.3g} times as probable and the "
            f"{most_frequent} {frequent:.3g} times (geometric means); "
        )
    text += f"KL(u‖q), the distance of predictions from word frequency, goes from {before:.3f} to {after:.3f} nats."
    dropped = as_trained["dropped_mass"]
    if row.dropped_mass - dropped > _MUCH:
        text += f" Types that do not occur get {row.dropped_mass:.0%} of the probability, {dropped:.0%} as trained."
    return Answer(text, values)


def findings(
    kl: pd.DataFrame,
    types: pd.DataFrame,
    projection: pd.DataFrame,
    projection_draws: pd.DataFrame,
    intervals: Mapping[str, Any],
) -> tuple[Finding, ...]:
    """Say what removing each bias (or else scaling it by the λ farthest from 1) does to KL(u‖q), and whether it follows
    log u.

    There is no verdict about KL(u‖q) if the model predicts the text no better than word frequencies do: the mean
    prediction of many types then comes from a few contexts, and too few intervals contain the true value
    (docs/intervals.md).

    Args:
        kl, types, projection, projection_draws: tables of `FrequencyStudy`.
        intervals: what its provenance says about the intervals.
    """
    fits = not misfit(kl, types)
    moved = [_moved(row, texts_read(intervals), fits) for row in _edited(kl)]
    moved.sort(key=lambda finding: -abs(finding.value))
    draws: dict[Any, Any] = {} if projection_draws.empty else dict(list(projection_draws.groupby("kind")["spearman"]))
    follows = [_follows(row, draws) for row in projection.dropna(subset="spearman").itertuples()]
    return (*moved, *follows)


def misfit(kl: pd.DataFrame, types: pd.DataFrame) -> list[str]:
    """Return a warning if the model predicts the text no better than word frequencies do: if its perplexity is at least
    `exp(−Σ u log u)`, that of u itself.

    Args:
        kl, types: the tables of `FrequencyStudy`.

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


def _edited(kl: pd.DataFrame) -> list[Any]:
    """The row of each bias at λ = 0, or else at the λ farthest from 1; none if that is 1 itself."""
    if kl.empty:
        return []
    scales = np.array(kl["scale"].unique(), dtype=float)
    last = 0.0 if 0.0 in scales else scales[np.abs(scales - 1).argmax()]
    return list(kl[(kl["scale"] == last) & (kl["scale"] != 1)].itertuples())


def _moved(row: Any, sample: tuple[int, str] | None, fits: bool) -> Finding:
    bias = named_bias(row.bias)
    condition = f"without {bias}" if row.scale == 0 else f"with {bias} times {printed(row.scale, '{:g}')}"
    return judged(
        question=f"Are predictions further from word frequency {condition}?",
        measure=f"{without(row.bias, row.scale)}, {DISTANCE} changes by",
        value=row.delta_kl if np.isnan(row.delta_kl_corrected) else row.delta_kl_corrected,
        low=row.delta_kl_low if fits else np.nan,
        high=row.delta_kl_high if fits else np.nan,
        controls=[ZERO],
        smallest=smallest("divergence", as_trained=row.kl_unigram_model - row.delta_kl),
        sample=sample if fits else None,
        no_interval="" if fits else "the model predicts this text no better than word frequencies do",
        unit="nats",
        form="{:+z.3f}",
    )


def _follows(row: Any, draws: Mapping[str, pd.Series]) -> Finding:
    kinds = _ORDERS if row.bias == "last" else _DIRECTIONS
    return judged(
        question=f"Does what {named_bias(row.bias)} adds to the logits follow word frequency?",
        measure=f"{BIAS_WORD[row.bias]} is {BIAS_MEANING[row.bias]}; the Spearman correlation of {_ADDED[row.bias]} "
        "with log u, the logarithm of word frequency, is",
        value=row.spearman,
        low=row.spearman_low,
        high=row.spearman_high,
        controls=[Control(name, draws.get(kind, pd.Series(dtype=float)).to_numpy()) for kind, name in kinds.items()],
        smallest=smallest("correlation"),
        sample=(row.n_types, "type"),
        no_interval="three types or fewer occur in the text",
        form="{:+.3f}",
    )
