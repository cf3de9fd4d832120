"""Unigram counts of a corpus with a model's tokenizer."""

import os
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Integer

from interp.corpora import unigrams
from interp.corpora.batching import Batches
from interp.corpora.frames import tokenizer_of
from interp.corpora.sources import Corpus, Source, load
from interp.corpora.tokens import Counted, tokens_of, unknown_id
from interp.corpora.unigrams import Unigrams
from interp.models.identity import origin
from interp.models.sites import Model, is_encoder
from interp.support.checks import warn
from interp.support.paths import is_counts
from interp.support.words import argument

__all__ = ["Counts", "added_unigrams", "count_unigrams", "shipped_counts", "unigrams_of", "word_frequencies"]
__dir__ = __all__.copy

_ENOUGH_TOKENS = 10_000_000
Counts: TypeAlias = Unigrams | Integer[np.ndarray, " d_vocab"] | str | os.PathLike[str]
"""What `unigrams_of` takes: counts, an array or a file of counts, or a text to count (a file or a name)."""


def count_unigrams(
    model: Model,
    corpus: Source,
    *,
    column: str | None = None,
    limit: int | None = None,
    separator: str = "",
    processes: int = 1,
) -> Unigrams:
    """Count the unigrams of a corpus with the model's tokenizer. See `interp.corpora.unigrams.count`, and
    `interp.corpora.load` for `column`, `limit` and `separator`.

    Raises ValueError if the tokenizer knows none of the corpus's tokens, and warns if more than 5 % are unknown.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> count_unigrams(toy_decoder(), ["w1 w2 w2"]).n_tokens
        3
    """
    source = load(corpus, column=column, limit=limit, separator=separator)
    tokenizer = tokenizer_of(model)
    counted = unigrams.count(tokenizer, source, corpus=source.name, d_vocab=model.W_U.shape[1], processes=processes)
    if (token_id := unknown_id(tokenizer)) is not None:
        Counted(counted.n_tokens, int(counted.counts[token_id])).checked(tokenizer, source.name)
    return counted


def added_unigrams(model: Model, sources: Sequence[Unigrams | Source], *, processes: int = 1) -> Unigrams:
    """Add up the unigram counts of several corpora, some of which may have been counted before.

    Args:
        sources: counts, files of counts, and anything that `count_unigrams` takes. Use `interp.corpora.load` to choose
            a column, a limit or a separator.
        processes: see `interp.corpora.unigrams.count`.

    Raises ValueError if there are no sources, for counts of another vocabulary or tokenizer, and as `count_unigrams`
    does. Raises TypeError for a single string in place of a list of sources.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> before = count_unigrams(model, ["w1 w2 w2"])
        >>> added_unigrams(model, [before, ["w2 w3"]]).n_tokens
        5
    """
    if isinstance(sources, str | os.PathLike | Unigrams):
        raise TypeError(
            f"sources must be a list of corpora and counts, found {type(sources).__name__}; put it in a list"
        )
    if not len(sources):
        raise ValueError("there is nothing to add; expected at least one corpus or file of counts")
    parts: list[Unigrams | Corpus] = []
    for source in sources:
        part: Any = source
        if isinstance(source, str | os.PathLike) and is_counts(str(source)):
            part = unigrams.load(source)
        elif not isinstance(source, Unigrams | Corpus):
            part = load(source)
        parts.append(checked(model, part) if isinstance(part, Unigrams) else part)

    def counted(part: Unigrams | Corpus) -> Unigrams:
        return part if isinstance(part, Unigrams) else count_unigrams(model, part, processes=processes)

    return reduce(Unigrams.merge, map(counted, parts))


def unigrams_of(
    model: Model, prepared: Batches, unigram: Counts | None = None, *, column: str | None = None
) -> Unigrams:
    """Return the word frequencies to compare with: the given ones, those that ship with the model, or those of this
    text.

    If a text is given to be counted, it is read like this one, with the same separator, and with `column`.

    Raises ValueError for counts of another vocabulary or tokenizer.
    """
    if isinstance(unigram, str | os.PathLike) and is_counts(str(unigram)):
        unigram = unigrams.load(unigram)
    elif isinstance(unigram, str | os.PathLike):
        text = load(unigram, column=column, separator=prepared.settings.get("separator", ""))
        unigram = count_unigrams(model, text, processes=os.cpu_count() or 1)
    counts = _default(model, prepared) if unigram is None else unigram
    counts = Unigrams(counts, "given counts") if isinstance(counts, np.ndarray) else counts
    if not isinstance(counts, Unigrams):
        raise TypeError(f"unigram counts must be Unigrams, an array or a file, found {type(counts).__name__}")
    return checked(model, counts)


def word_frequencies(
    model: Model, prepared: Batches, counts: Counts | None = None, *, column: str | None = None
) -> Unigrams:
    """Return `unigrams_of`, with a warning if the counts are those of the text itself and few."""
    unigram = unigrams_of(model, prepared, counts, column=column)
    if counts is None and shipped_counts(model) is None and unigram.n_tokens < _ENOUGH_TOKENS:
        source = f"word frequencies come from {unigram.corpus}, {unigram.n_tokens:,} tokens"
        consequence = f"with fewer than about {_ENOUGH_TOKENS:,}, sampling error raises the KL"
        warn(f"{source}; {consequence}. Give counts of a larger corpus ({argument('unigram')})")
    return unigram


def checked(model: Model, counts: Unigrams) -> Unigrams:
    """Return the same counts. Raises ValueError if they belong to another vocabulary or tokenizer."""
    n_counted = len(counts.counts)
    d_vocab = model.W_U.shape[1]
    subject = f"the unigram counts ({counts.corpus})"
    remedy = "count with this model's tokenizer"
    if n_counted != d_vocab:
        raise ValueError(
            f"{subject} are over {n_counted:,} types, but this model's vocabulary has {d_vocab:,}; {remedy}"
        )
    comparable = None not in (counts.tokenizer, model.tokenizer)
    if comparable and counts.tokenizer != unigrams.tokenizer_hash(model.tokenizer):
        raise ValueError(f"{subject} were made with another tokenizer; {remedy}")
    return counts


def shipped_counts(model: Model) -> Path | None:
    """Return the file of counts in the model's directory (`unigram.safetensors`), or None if there is none."""
    directory = origin(model).directory
    path = directory and directory / "unigram.safetensors"
    return path if path and path.is_file() else None


def _default(model: Model, prepared: Batches) -> Unigrams:
    """The counts that ship with the model, or else those of this text."""
    if shipped := shipped_counts(model):
        return unigrams.load(shipped)
    name, tokenizer = "these tokens", None
    if prepared.corpus is not None:
        name = prepared.corpus.name
        tokenizer = unigrams.tokenizer_hash(model.tokenizer)
        ids = (ids for ids, _ in tokens_of(prepared.corpus.whole, model.tokenizer).chunks())
    elif is_encoder(model) and prepared.settings.get("mask_rate") is not None:
        raise ValueError(f"masked token ids cannot be counted; give counts with {argument('unigram')}")
    else:
        ids = (batch.tokens[batch.mask.bool()].cpu().numpy() for batch in prepared)
    return Unigrams(unigrams.total(map(np.bincount, ids), model.W_U.shape[1], name), name, tokenizer)
