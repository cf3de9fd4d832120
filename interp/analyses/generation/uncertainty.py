"""Uncertainty of measures of generated text, by leaving out one prompt at a time.

A bootstrap would not work: a text that is drawn twice adds no new n-grams, so bootstrap samples are less diverse than
the texts.
"""

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from sklearn.decomposition import PCA
from sklearn.metrics import auc
from sklearn.preprocessing import normalize

from interp.analyses.generation.metrics import MAUVE_SEEDS, faiss_quiet
from interp.instruments.diversity import diversity_without, ratio, without_each
from interp.results.intervals import Jackknife, jackknife

__all__ = ["FEWEST_PROMPTS", "MEASURES", "intervals", "mauve_jackknife"]

FEWEST_PROMPTS = 100
"""With fewer, and fewer than ten clusters, an interval of MAUVE holds the true value too seldom."""

MEASURES = ("diversity", "repetition", "frequent_share")
_COLUMNS = ["decoder", "scale", "measure", "value", "low", "high", "difference", "difference_low", "difference_high"]


def intervals(texts: pd.DataFrame, frequent: Bool[np.ndarray, " d_vocab"]) -> pd.DataFrame:
    """Measures of `text_metrics` with 95 % intervals, and their differences from λ = 1 for the same prompts.

    Intervals come from leaving out each prompt with all of its continuations (`interp.results.intervals.jackknife`).

    Args:
        texts: a table with decoder, scale, prompt_id and token_ids.
        frequent: which types are frequent (`interp.generation.metrics.frequent_types`).

    Returns the table (decoder, scale, measure, value, low, high, difference, difference_low, difference_high). The
    measures are diversity, repetition and frequent_share. Intervals are NaN for fewer than 20 prompts; differences are
    NaN for human texts, and if λ = 1 is not among the scales.

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
            found = _jackknifed(values)._replace(least=0, most=1)
            apart = _jackknifed(values - read.get(1.0, np.full_like(values, np.nan)))
            ends = zip(found.value, found.low, found.high, apart.value, apart.low, apart.high, strict=True)
            rows += [(decoder, scale, name, *numbers) for name, numbers in zip(MEASURES, ends, strict=True)]
    return pd.DataFrame(rows, columns=_COLUMNS)


def mauve_jackknife(
    features: Float[np.ndarray, "texts d"],
    human_features: Float[np.ndarray, "prompts d"],
    prompt_ids: Int[np.ndarray, " texts"],
    *,
    seeds: Sequence[int] = MAUVE_SEEDS,
) -> Jackknife:
    """The mean of `mauve_scores` over seeds, with its 95 % interval over prompts.

    MAUVE compares how many texts of either kind are in each cluster. The clusters are those of all texts, made as
    mauve-text makes them; each prompt is then left out, with its human text and with all that was written after it. So
    the interval says how much MAUVE would vary with other prompts and other draws of as many texts. It does not
    contain the variation over clusterings (`mauve_sd`), nor the distance from what infinitely many texts would give.
    It ends at 0 and 1. It is wider than it should be.

    Args:
        features: the features of the texts of a model.
        human_features: the features of the human text of each prompt.
        prompt_ids: which prompt each text of the model continues.
        seeds: the seeds of the clusterings.

    Raises ImportError if mauve-text is not installed.
    """
    if (n := len(human_features)) < FEWEST_PROMPTS:
        return Jackknife(*np.full(3, np.nan))
    found = [_left_out_of_mauve(features, human_features, prompt_ids, seed) for seed in seeds]
    whole, without = zip(*found, strict=True)
    return jackknife(float(np.mean(whole)), np.mean(without, axis=0), np.ones(n), 1)._replace(least=0, most=1)


def _left_out_of_mauve(
    features: np.ndarray, human_features: np.ndarray, prompt_ids: np.ndarray, seed: int
) -> tuple[float, Float[np.ndarray, " prompts"]]:
    """MAUVE with one clustering, and the same without each prompt; once for prompts with texts in the same clusters."""
    labels, human, n_clusters = _clusters(features, human_features, seed)
    texts = np.zeros((2, len(human), n_clusters))  # texts by people and by the model, by prompt
    texts[0, np.arange(len(human)), human] = 1
    np.add.at(texts[1], (prompt_ids, labels), 1)
    kinds, kind = np.unique(texts.swapaxes(0, 1), axis=0, return_inverse=True)
    without = np.array([_mauve(*(texts.sum(1) - one)) for one in kinds])
    return _mauve(*texts.sum(1)), without[kind.ravel()]


def _clusters(
    features: np.ndarray, human_features: np.ndarray, seed: int
) -> tuple[Int[np.ndarray, " texts"], Int[np.ndarray, " human_texts"], int]:
    """The cluster of each text, which mauve-text does not tell, and their number; as mauve-text makes them."""
    import faiss

    n_clusters = max(2, round(min(len(features), len(human_features)) / 10))
    both = normalize(np.vstack([features, human_features]))
    pca = PCA(random_state=seed + 1).fit(both)
    kept = int(np.argmax(pca.explained_variance_ratio_.cumsum() >= 0.9)) + 1
    points = pca.transform(both)[:, :kept].astype(np.float32)
    kmeans = faiss.Kmeans(kept, n_clusters, niter=500, nredo=5, update_index=True, seed=seed + 2)
    with faiss_quiet():
        kmeans.train(points)
    labels = kmeans.index.search(points, 1)[1].ravel()
    return labels[: len(features)], labels[len(features) :], n_clusters


def _mauve(human: Float[np.ndarray, " clusters"], model: Float[np.ndarray, " clusters"]) -> float:
    """MAUVE of how many texts of either kind are in each cluster, at mauve-text's settings."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        library = import_module("mauve.compute_mauve")
    weights, scale = np.linspace(1e-6, 1 - 1e-6, 25), 5
    x, y = library.get_divergence_curve_for_multinomials(human / human.sum(), model / model.sum(), weights, scale).T
    return float(auc(x[np.argsort(x)], y[np.argsort(x)]) + auc(y[np.argsort(y)], x[np.argsort(y)])) / 2


def _jackknifed(values: Float[np.ndarray, "prompts_and_one measures"]) -> Jackknife:
    return jackknife(values[0], values[1:], np.ones(len(values) - 1), 1)


def _left_out(
    by_prompt: list[list[Any]], frequent: Bool[np.ndarray, " d_vocab"]
) -> Float[np.ndarray, "prompts_and_one measures"]:
    """The measures of all texts, given as token ids by prompt, followed by those without the texts of each prompt."""
    tokens = np.array([sum(map(len, texts)) for texts in by_prompt])
    known = np.array([sum(frequent[list(ids)].sum() for ids in texts) for texts in by_prompt])
    return np.column_stack([diversity_without(by_prompt), ratio(without_each(known), without_each(tokens))])
