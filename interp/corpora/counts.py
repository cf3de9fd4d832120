"""Unigram counts of a corpus with a model's tokenizer."""

import os
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Integer

from interp.corpora import unigrams
from interp.corpora.batching import Batches
from interp.corpora.sentences import tokenizer_of
from interp.corpora.sources import Source, load
from interp.corpora.tokens import tokens_of
from interp.corpora.unigrams import Unigrams
from interp.corpora.unknown import Unknown, unknown_id
from interp.models import origin
from interp.models.sites import Model, is_encoder
from interp.paths import is_counts

Counts: TypeAlias = Unigrams | Integer[np.ndarray, " d_vocab"] | str | os.PathLike[str]
"""What `unigrams_of` takes: counts, an array of them, a file of them, or a text to count (a file or a name)."""


def count_unigrams(
    model: Model,
    corpus: Source,
    *,
    column: str | None = None,
    limit: int | None = None,
    separator: str = "",
    processes: int = 1,
) -> Unigrams:
    """Unigram counts of a corpus with the model's tokenizer. See `interp.corpora.unigrams.count`; for `column`, `limit`
    and `separator` see `interp.corpora.load`.

    Raises ValueError for a corpus of which the tokenizer knows nothing; warns above 5 % of unknown tokens.
    """
    source, tokenizer = load(corpus, column=column, limit=limit, separator=separator), tokenizer_of(model)
    found = unigrams.count(tokenizer, source, corpus=source.name, d_vocab=model.W_U.shape[1], processes=processes)
    if (token_id := unknown_id(tokenizer)) is not None:
        Unknown(found.n_tokens, int(found.counts[token_id])).check(tokenizer, source.name)
    return found


def unigrams_of(model: Model, prepared: Batches, given: Counts | None = None, *, column: str | None = None) -> Unigrams:
    """The word frequencies to compare with: those given, those that ship with the model, or this text's own.

    A text to count is read like this one: with its separator, and `column`.

    Raises ValueError for counts of another vocabulary or tokenizer.
    """
    if given is None:
        counts = _default(model, prepared)
    elif isinstance(given, Unigrams):
        counts = given
    elif isinstance(given, np.ndarray):
        counts = Unigrams(given, "given counts")
    elif isinstance(given, str | os.PathLike) and is_counts(str(given)):
        counts = unigrams.load(given)
    elif isinstance(given, str | os.PathLike):
        text = load(given, column=column, separator=prepared.settings.get("separator", ""))
        counts = count_unigrams(model, text, processes=os.cpu_count() or 1)
    else:
        raise TypeError(f"unigram counts are Unigrams, an array or a file of them, found {type(given).__name__}")
    d_vocab = model.W_U.shape[1]
    if len(counts.counts) != d_vocab:
        wrong = f"are over {len(counts.counts):,} types, this model's vocabulary has {d_vocab:,}"
    elif None not in (counts.tokenizer, model.tokenizer) and counts.tokenizer != unigrams.tokenizer_hash(
        model.tokenizer
    ):
        wrong = "were made with another tokenizer"
    else:
        return counts
    raise ValueError(f"the unigram counts ({counts.corpus}) {wrong}; count with this model's tokenizer")


def shipped_counts(model: Model) -> Path | None:
    """The file of counts in the model's directory (`unigram.safetensors`), where there is one."""
    directory = origin(model).directory
    path = directory and directory / "unigram.safetensors"
    return path if path and path.is_file() else None


def _default(model: Model, prepared: Batches) -> Unigrams:
    """The counts that ship with the model, or else this text's own."""
    if shipped := shipped_counts(model):
        return unigrams.load(shipped)
    if prepared.corpus is not None:
        return tokens_of(prepared.corpus.whole, model.tokenizer).counts(model.W_U.shape[1])
    if is_encoder(model) and prepared.settings.get("mask_rate") is not None:
        raise ValueError("masked token ids cannot be counted; give unigram= counts")
    counts = torch.zeros(model.W_U.shape[1], dtype=torch.int64)
    for batch in prepared:
        counts += torch.bincount(batch.tokens[batch.mask.bool()].cpu(), minlength=len(counts))
    return Unigrams(counts.numpy(), "these tokens")
