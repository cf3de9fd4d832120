"""Measures of generated text: distinct n-grams, repetition, frequent tokens, MAUVE."""

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.corpora.batching import Batch
from interp.corpora.frames import frame
from interp.corpora.sentences import encode
from interp.corpora.unigrams import Unigrams
from interp.instruments.diversity import ORDERS, distinct_without, diversity_without, ratio, without_each
from interp.models.identity import check_weights
from interp.models.running import running
from interp.models.sites import Model, Recipe, hook_name, is_encoder, narrowing, trunk_output
from interp.passes.reading import forward
from interp.results.intervals import Jackknife, jackknife
from interp.support.checks import check_token_ids, list_of_strings, whole_number
from interp.support.paths import check_mauve

__all__ = [
    "MAUVE_MODEL",
    "MAUVE_SEEDS",
    "MEASURES",
    "frequent_types",
    "intervals",
    "mauve_scores",
    "text_features",
    "text_metrics",
]
__dir__ = __all__.copy

MAUVE_SEEDS = (0, 1, 2, 3, 4)
MAUVE_MODEL = "gpt2-large"
"""The model whose features mauve-text uses by default."""

MEASURES = ("diversity", "repetition", "frequent_share")
"""The measures that have intervals."""
_REPETITION = MEASURES.index("repetition")
_FEWEST_PROMPTS = 5  # whose texts repeat themselves, for an interval of repetition
_INTERVALS = ["decoder", "scale", "measure", "value", "low", "high", "difference", "difference_low", "difference_high"]
_FEATURE_TEXTS = 16


def text_metrics(
    token_ids: Sequence[Sequence[int]],
    *,
    unigram: Unigrams | None = None,
    features: Float[np.ndarray, "texts d"] | None = None,
    human_features: Float[np.ndarray, "human_texts d"] | None = None,
) -> dict[str, float]:
    """Measures of a set of texts, given as token ids. n-grams do not extend from one text into the next.

    - `distinct_1` … `distinct_4`: D_n = different n-grams / all n-grams, pooled over the texts, and `diversity`
      D = ¼ Σ D_n (Kobayashi et al. 2023). They decrease with the amount of text, so compare only equal `n_tokens`.
    - `diversity_se`: the standard error of the diversity over texts, by the jackknife.
    - `repetition`: the share of 4-grams that occurred earlier in the same text.
    - `frequent_share`: the share of tokens that are among the corpus's `frequent_types`, which make up half of it.
    - `mauve_mean`, `mauve_sd`: mean and SD of MAUVE over clustering seeds, if features are given; see `mauve_scores`.
    - `n_texts`, `n_tokens`.

    Values that cannot be computed are NaN. Raises TypeError for token ids that are not whole numbers. Raises ValueError
    for token ids that `unigram` does not count, if there are no texts, for one kind of features without the other, and
    as `mauve_scores` does.

    Examples:
        >>> text_metrics([[1, 2, 3, 1, 2, 3]])["distinct_1"]
        0.5
    """
    rows = [[whole_number(token_id, "a token id") for token_id in ids] for ids in token_ids]
    if not rows:
        raise ValueError("expected texts as lists of token ids, found none")
    if (features is None) != (human_features is None):
        raise ValueError("MAUVE compares two sets of features; give both features and human_features, or neither")
    flat = np.array(list(chain.from_iterable(rows)), dtype=np.int64)
    if unigram is not None and len(flat) and not 0 <= flat.min() <= flat.max() < len(unigram.counts):
        span, counted = f"{flat.min()} … {flat.max()}", f"0 … {len(unigram.counts) - 1}"
        raise ValueError(f"the texts have token ids {span}, but the unigram counts ({unigram.corpus}) have {counted}")
    by_text = [[ids] for ids in rows]
    diversity, repetition = diversity_without(by_text).T
    variance = (len(rows) - 1) * diversity[1:].var()  # by the jackknife
    measures: dict[str, float] = {}
    for n, shares in zip(ORDERS, distinct_without(by_text), strict=True):
        measures[f"distinct_{n}"] = shares[0]
    measures.update(diversity=diversity[0], repetition=repetition[0])
    measures["diversity_se"] = np.sqrt(variance) if len(rows) > 1 else np.nan
    frequent = pd.Series(() if unigram is None else frequent_types(unigram)[flat], dtype=float)
    scores = pd.Series(dtype=float)
    if features is not None and human_features is not None:
        scores = pd.Series(mauve_scores(features, human_features))
    measures.update(frequent_share=frequent.mean(), mauve_mean=scores.mean(), mauve_sd=scores.std())
    plain = {name: float(value) for name, value in measures.items()}
    plain.update(n_texts=len(rows), n_tokens=len(flat))
    return plain


def frequent_types(unigram: Unigrams) -> Bool[np.ndarray, " d_vocab"]:
    """The smallest set of types that makes up at least half of a corpus's tokens."""
    order = np.argsort(-unigram.counts, kind="stable")
    needed = int(np.searchsorted(np.cumsum(unigram.counts[order]), unigram.n_tokens / 2)) + 1
    return np.isin(np.arange(len(order)), order[:needed])


def mauve_scores(
    features: Float[np.ndarray, "texts d"],
    human_features: Float[np.ndarray, "human_texts d"],
) -> list[float]:
    """MAUVE of machine text against human text, 0 … 1, for five seeds of its clustering (Pillutla et al. 2021).

    It is computed by mauve-text with its default settings, with a tenth as many clusters as texts. The spread over
    seeds comes only from the clustering; the choice of texts adds more (.954 ± .044 for 100 texts of the same model),
    of which there is no interval (see `intervals`). Rounding beyond 0 and 1 is cut off. Compare
    only equal numbers of texts.

    Raises ValueError if there are too few texts to cluster, and if mauve-text is not installed.
    """
    check_mauve()
    if min(len(features), len(human_features)) < 2:
        raise ValueError(f"MAUVE needs at least 2 texts on each side, found {len(features)} and {len(human_features)}")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        import mauve
    texts = {"p_features": human_features, "q_features": features}
    with _faiss_quiet():
        return [min(1.0, max(0.0, float(mauve.compute_mauve(**texts, seed=seed).mauve))) for seed in MAUVE_SEEDS]


@contextmanager
def _faiss_quiet() -> Iterator[None]:
    """Suppress the line that faiss prints (bypassing Python) for every clustering with fewer than 39 texts per
    cluster."""
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@torch.no_grad()
def text_features(model: Model, texts: Iterable[str]) -> Float[np.ndarray, "texts d_model"]:
    """The last hidden state (after the final norm) at the last token of each text, as mauve-text uses it.

    An encoder reads `[CLS] … [SEP]`. For a causal model nothing is put before a text, as mauve-text does with GPT-2.
    Texts that are too long are cut to the context.

    Raises ValueError for a model without a tokenizer or with that of another model, if there are no texts, and for a
    text without tokens. Raises TypeError if `model` is not a model, or `texts` is not a list of strings.
    """
    texts = list_of_strings(texts, "texts")
    check_weights(model)
    before, after = frame(model, bos=False).alone
    room = model.cfg.n_ctx - len(before) - len(after)
    rows = [before + ids[:room] + after for ids in encode(model.tokenizer, texts)]
    if not all(rows):
        raise ValueError("a text without tokens has no last hidden state; leave empty texts out")
    check_token_ids(max(map(max, rows)), model.cfg.d_vocab, "the texts have")
    parts: list[Tensor] = []
    for start in range(0, len(rows), _FEATURE_TEXTS):
        batch = Batch.of(rows[start : start + _FEATURE_TEXTS]).to(model.W_U.device)
        last = torch.arange(len(batch.mask)), batch.mask.sum(1) - 1
        with running(model, _features_recipe(model, last, parts)):
            forward(model, batch, model.cfg.n_layers if is_encoder(model) else None)
    return torch.cat(parts).numpy()


def _features_recipe(model: Model, last: tuple[Tensor, Tensor], into: list[Tensor]) -> Recipe:
    """Hooks that keep the last state at some positions. A causal model's head runs only at these."""

    def keep(states: Tensor, hook: object) -> None:
        into.append(states.float().cpu())

    if is_encoder(model):
        return [(trunk_output(model), lambda states, hook: keep(states[last], hook))]
    narrowed: Recipe = [(narrowing(model), lambda activation, hook: activation[last][None])]
    return [*narrowed, (hook_name(model, "head_input"), lambda states, hook: keep(states[0], hook))]


def intervals(texts: pd.DataFrame, frequent: Bool[np.ndarray, " d_vocab"]) -> pd.DataFrame:
    """Measures of `text_metrics` with 95 % intervals, and their differences from λ = 1 for the same prompts.

    Intervals come from leaving out each prompt with all of its continuations (`interp.results.intervals.jackknife`). A
    bootstrap would not work: a text that is drawn twice adds no new n-grams, so bootstrap samples are less diverse than
    the texts.

    MAUVE has no interval. It is largest where texts of both kinds are alike, and flat there, so that it varies only to
    second order, and the jackknife gives twice the variance (Efron and Stein, "The jackknife estimate of variance",
    Annals of Statistics 9, 1981): 1.6 times the standard deviation for 100 prompts and ten clusters. Taking out the
    second-order part, as they propose, leaves a variance that is negative in half of the draws.

    Args:
        texts: a table with decoder, scale, prompt_id and token_ids.
        frequent: which types are frequent (`frequent_types`).

    Returns the table `intervals` of a `GenerationStudy`. The measures are diversity, repetition and frequent_share.
    Intervals are NaN for fewer than 20 prompts, and that of repetition also if the texts of fewer than five prompts
    repeat themselves; differences are NaN for human texts, and if λ = 1 is not among the scales.

    Examples:
        >>> ids = [[number, 1, 2, number] for number in range(20)]
        >>> texts = pd.DataFrame({"decoder": "greedy", "scale": 1.0, "prompt_id": range(20), "token_ids": ids})
        >>> table = intervals(texts, np.arange(20) == 1)
        >>> table[table["measure"] == "frequent_share"][["value", "difference"]].round(3).values.tolist()
        [[0.275, 0.0]]
    """
    rows = []
    for decoder, of_decoder in texts.groupby("decoder", sort=False):
        read = {}
        for scale, of_scale in of_decoder.groupby("scale", sort=False, dropna=False):
            by_prompt = [part.tolist() for _, part in of_scale.groupby("prompt_id")["token_ids"]]
            read[scale] = _left_out(by_prompt, frequent)
        for scale, values in read.items():
            as_trained = read.get(1.0, np.full_like(values, np.nan))
            interval = _jackknifed(values, [values])._replace(least=0, most=1)
            difference = _jackknifed(values - as_trained, [values, as_trained])
            estimates = (interval.value, interval.low, interval.high)
            differences = (difference.value, difference.low, difference.high)
            for name, *numbers in zip(MEASURES, *estimates, *differences, strict=True):
                rows.append((decoder, scale, name, *numbers))
    return pd.DataFrame(rows, columns=_INTERVALS)


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
    tokens = np.zeros(len(by_prompt), dtype=int)
    n_frequent = np.zeros(len(by_prompt), dtype=int)
    for number, texts in enumerate(by_prompt):
        ids = list(chain.from_iterable(texts))
        tokens[number] = len(ids)
        n_frequent[number] = frequent[ids].sum()
    return np.column_stack([diversity_without(by_prompt), ratio(without_each(n_frequent), without_each(tokens))])
