"""Uncertainty of measures of generated text, by leaving out one prompt at a time.

A bootstrap would not work: a text that is drawn twice adds no new n-grams, so bootstrap samples are less diverse than
the texts.

MAUVE has no interval. It is largest where texts of both kinds are alike, and flat there, so that it varies only to
second order, and the jackknife gives twice the variance (Efron and Stein, "The jackknife estimate of variance", Annals
of Statistics 9, 1981): 1.6 times the standard deviation for 100 prompts and ten clusters. Taking out the second-order
part, as they propose, leaves a variance that is negative in half of the draws.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from interp.instruments.diversity import diversity_without, ratio, without_each
from interp.results.intervals import Jackknife, jackknife

__all__ = ["MEASURES", "intervals"]

MEASURES = ("diversity", "repetition", "frequent_share")
_REPETITION = MEASURES.index("repetition")
_FEWEST_PROMPTS = 5  # whose texts repeat themselves, for an interval of repetition
_COLUMNS = ["decoder", "scale", "measure", "value", "low", "high", "difference", "difference_low", "difference_high"]


def intervals(texts: pd.DataFrame, frequent: Bool[np.ndarray, " d_vocab"]) -> pd.DataFrame:
    """Measures of `text_metrics` with 95 % intervals, and their differences from λ = 1 for the same prompts.

    Intervals come from leaving out each prompt with all of its continuations (`interp.results.intervals.jackknife`).

    Args:
        texts: a table with decoder, scale, prompt_id and token_ids.
        frequent: which types are frequent (`interp.generation.metrics.frequent_types`).

    Returns the table (decoder, scale, measure, value, low, high, difference, difference_low, difference_high). The
    measures are diversity, repetition and frequent_share. Intervals are NaN for fewer than 20 prompts, and that of
    repetition also if the texts of fewer than five prompts repeat themselves; differences are NaN for human texts, and
    if λ = 1 is not among the scales.

    Examples:
        >>> ids = [[number, 1, 2, number] for number in range(20)]
        >>> texts = pd.DataFrame({"decoder": "greedy", "scale": 1.0, "prompt_id": range(20), "token_ids": ids})
        >>> table = intervals(texts, np.arange(20) == 1)
        >>> table[table["measure"] == "frequent_share"][["value", "difference"]].round(3).values.tolist()
        [[0.275, 0.0]]
    """
    rows = []
    for decoder, of_decoder in texts.groupby("decoder", sort=False):
        read = {
            scale: _left_out([part.tolist() for _, part in of_scale.groupby("prompt_id")["token_ids"]], frequent)
            for scale, of_scale in of_decoder.groupby("scale", sort=False, dropna=False)
        }
        for scale, values in read.items():
            as_trained = read.get(1.0, np.full_like(values, np.nan))
            interval = _jackknifed(values, [values])._replace(least=0, most=1)
            difference = _jackknifed(values - as_trained, [values, as_trained])
            ends = zip(
                interval.value,
                interval.low,
                interval.high,
                difference.value,
                difference.low,
                difference.high,
                strict=True,
            )
            rows += [(decoder, scale, name, *numbers) for name, numbers in zip(MEASURES, ends, strict=True)]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _jackknifed(
    values: Float[np.ndarray, "prompts_and_one measures"],
    texts: Sequence[Float[np.ndarray, "prompts_and_one measures"]],
) -> Jackknife:
    """The interval of measures, or of differences of those of two sets of texts."""
    interval = jackknife(values[0], values[1:], np.ones(len(values) - 1), 1)
    repeating = [(of_texts[1:, _REPETITION] < of_texts[0, _REPETITION]).sum() for of_texts in texts]
    if max(repeating) < _FEWEST_PROMPTS:
        interval.half[_REPETITION] = np.nan
    return interval


def _left_out(
    by_prompt: list[list[Any]], frequent: Bool[np.ndarray, " d_vocab"]
) -> Float[np.ndarray, "prompts_and_one measures"]:
    """The measures of all texts, given as token ids by prompt, followed by those without the texts of each prompt."""
    tokens = np.array([sum(map(len, texts)) for texts in by_prompt])
    n_frequent = np.array([sum(frequent[list(ids)].sum() for ids in texts) for texts in by_prompt])
    return np.column_stack([diversity_without(by_prompt), ratio(without_each(n_frequent), without_each(tokens))])
