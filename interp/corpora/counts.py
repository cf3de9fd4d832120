"""Unigram counts of a corpus with a model's tokenizer."""

import os
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Integer

from interp.corpora import unigrams
from interp.corpora.batching import Batches
from interp.corpora.sentences import tokenizer_of
from interp.corpora.sources import Source, load
from interp.corpora.tokens import Unknown, tokens_of, unknown_id
from interp.corpora.unigrams import Unigrams
from interp.models.identity import origin
from interp.models.sites import Model, is_encoder
from interp.paths import is_counts

__all__ = ["Counts", "count_unigrams", "shipped_counts", "unigrams_of"]

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

    Examples:
        >>> from interp.testing import toy_decoder
        >>> count_unigrams(toy_decoder(), ["w1 w2 w2"]).n_tokens
        3
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
    if isinstance(given, str | os.PathLike) and is_counts(str(given)):
        given = unigrams.load(given)
    elif isinstance(given, str | os.PathLike):
        text = load(given, column=column, separator=prepared.settings.get("separator", ""))
        given = count_unigrams(model, text, processes=os.cpu_count() or 1)
    counts = _default(model, prepared) if given is None else given
    counts = Unigrams(counts, "given counts") if isinstance(counts, np.ndarray) else counts
    if not isinstance(counts, Unigrams):
        raise TypeError(f"unigram counts are Unigrams, an array or a file of them, found {type(counts).__name__}")
    found, expected, what = len(counts.counts), model.W_U.shape[1], f"the unigram counts ({counts.corpus})"
    how = "count with this model's tokenizer"
    if found != expected:
        raise ValueError(f"{what} are over {found:,} types, this model's vocabulary has {expected:,}; {how}")
    known = None not in (counts.tokenizer, model.tokenizer)
    if known and counts.tokenizer != unigrams.tokenizer_hash(model.tokenizer):
        raise ValueError(f"{what} were made with another tokenizer; {how}")
    return counts


def shipped_counts(model: Model) -> Path | None:
    """The file of counts in the model's directory (`unigram.safetensors`), where there is one."""
    directory = origin(model).directory
    path = directory and directory / "unigram.safetensors"
    return path if path and path.is_file() else None


def _default(model: Model, prepared: Batches) -> Unigrams:
    """The counts that ship with the model, or else this text's own."""
    if shipped := shipped_counts(model):
        return unigrams.load(shipped)
    name, tokenizer = "these tokens", None
    if prepared.corpus is not None:
        name, tokenizer = prepared.corpus.name, unigrams.tokenizer_hash(model.tokenizer)
        ids = (ids for ids, _ in tokens_of(prepared.corpus.whole, model.tokenizer).chunks())
    elif is_encoder(model) and prepared.settings.get("mask_rate") is not None:
        raise ValueError("masked token ids cannot be counted; give unigram= counts")
    else:
        ids = (batch.tokens[batch.mask.bool()].cpu().numpy() for batch in prepared)
    return Unigrams(unigrams.total(map(np.bincount, ids), model.W_U.shape[1], name), name, tokenizer)
