"""The token ids of a corpus, whose texts are tokenised once and then read from temporary files."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Int32, Integer
from numpy.typing import NDArray

from interp.corpora.sentences import encode
from interp.corpora.sources import Corpus
from interp.corpora.unigrams import chunked, tokenizer_hash
from interp.models.spelling import special_ids
from interp.support.checks import warn

__all__ = ["Counted", "Tokens", "tokens_of", "unknown_id"]

MOST_KEPT = 2**28  # the most tokens that are kept, one gigabyte
_ENOUGH = 10_000  # reading stops after this many tokens if all of them are unknown
_WARN_ABOVE = 0.05


def unknown_id(tokenizer: Any) -> int | None:
    """Return the id of the token for text that a tokenizer does not know, or None if it knows all text.

    Byte-level tokenizers know all text. (GPT-2's unknown token is its end-of-text token.) Tokens are compared by name,
    because a TransformerBridge gives BERT's tokenizer an end-of-text token, which has the id of the unknown one.
    """
    token_id = getattr(tokenizer, "unk_token_id", None)
    special_tokens = (getattr(tokenizer, f"{name}_token", None) for name in ("bos", "eos", "pad"))
    return None if token_id is None or tokenizer.unk_token in special_tokens else int(token_id)


@dataclass(frozen=True)
class Counted:
    """The number of tokens of a text, how many of them are unknown, and how often each special token is written out in
    it."""

    n_tokens: int = 0
    n_unknown: int = 0
    special: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """The share of unknown tokens; None if no token was read."""
        return self.n_unknown / self.n_tokens if self.n_tokens else None

    @classmethod
    def of(cls, ids: Integer[np.ndarray, "..."], tokenizer: Any) -> "Counted":
        unknown = unknown_id(tokenizer)
        special = sorted(special_ids(tokenizer) - {unknown})
        numbers, counts = np.unique(ids[np.isin(ids, special)], return_counts=True)
        names = tokenizer.convert_ids_to_tokens(numbers.tolist()) if len(numbers) else []
        return cls(ids.size, int((ids == unknown).sum()), dict(zip(names, counts.tolist(), strict=True)))

    def __add__(self, other: "Counted") -> "Counted":
        special = dict(Counter(self.special) + Counter(other.special))
        return Counted(self.n_tokens + other.n_tokens, self.n_unknown + other.n_unknown, special)

    def checked(self, tokenizer: Any, where: str, *, quiet: bool = False) -> "Counted":
        """Return the same numbers. Raises ValueError if every token is unknown. Unless `quiet`, warns above 5 % and of
        special tokens."""
        share = self.share or 0.0
        does_not_know = "this model's tokenizer does not know"
        if share == 1.0:
            problem = f"all {self.n_tokens:,} tokens read from {where} are {tokenizer.unk_token}"
            raise ValueError(f"{problem}: {does_not_know} its script; give a text in a language of the model")
        if share > _WARN_ABOVE and not quiet:
            problem = f"{share:.0%} of the tokens of {where} are {tokenizer.unk_token}"
            warn(f"{problem}, for text that {does_not_know}; they count as one word")
        if self.special and not quiet:
            listed = ", ".join(f"{token} {n:,} ×" for token, n in self.special.items())
            warn(f"special tokens are written out in {where} and are read as such: {listed}")
        return self


class Tokens:
    """The token ids of each text of a corpus. Iterate over it to get lists of ids.

    The first reading tokenises the texts. If it reaches the end, up to 2²⁸ tokens are kept in unnamed temporary files
    and read from there afterwards. A longer corpus is tokenised at every reading.

    While reading, raises ValueError if the tokenizer knows none of the tokens, and warns if more than 5 % are unknown,
    and of special tokens that are written out in the text.
    """

    def __init__(self, corpus: Corpus, tokenizer: Any) -> None:
        self.corpus, self.tokenizer = corpus, tokenizer
        self._counted: Counted | None = None
        self._memory: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None

    def counted(self) -> Counted:
        """Count how many tokens are unknown or special. If the corpus has not been read to its end, this reads it."""
        while self._counted is None:
            for _ in self.chunks():
                pass
        return self._counted

    def __iter__(self) -> Iterator[list[int]]:
        for ids, lengths in self.chunks():
            ends = np.cumsum(lengths)
            for start, end in zip(ends - lengths, ends, strict=True):
                yield ids[start:end].tolist()

    def chunks(self) -> Iterator[tuple[Int32[np.ndarray, " token"], Int32[np.ndarray, " text"]]]:
        """Yield the concatenated ids of several texts at once, and the lengths of those texts."""
        if self._memory is None:
            self._take_prefix(tokens_of(self.corpus.whole, self.tokenizer))
        if self._memory is None:
            yield from self._tokenised()
            return
        ids, lengths = self._memory
        start = 0
        for first in range(0, len(lengths), 1_000):
            part = lengths[first : first + 1_000]
            end = start + int(part.sum(dtype=np.int64))
            yield ids[start:end], part
            start = end

    def _take_prefix(self, tokens: "Tokens") -> None:
        """Use what was kept of the corpus without its limit."""
        if tokens._memory is not None:
            lengths = tokens._memory[1][: self.corpus.limit]
            ids = tokens._memory[0][: lengths.sum(dtype=np.int64)]
            self._counted = Counted.of(ids, self.tokenizer).checked(self.tokenizer, self.corpus.name)
            self._memory = ids, lengths

    def _tokenised(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        counted = Counted()
        with tempfile.TemporaryFile() as ids_file, tempfile.TemporaryFile() as lengths_file:
            for chunk in chunked(self.corpus):
                rows = encode(self.tokenizer, chunk)
                ids = np.fromiter(chain.from_iterable(rows), np.int32)
                lengths = np.fromiter(map(len, rows), np.int32)
                counted += Counted.of(ids, self.tokenizer)
                if counted.n_tokens >= _ENOUGH and counted.n_unknown == counted.n_tokens:
                    break
                if counted.n_tokens <= MOST_KEPT:
                    with suppress(OSError):  # no room on disk; the corpus is tokenised again next time
                        ids.tofile(ids_file)
                        lengths.tofile(lengths_file)
                yield ids, lengths
            self._counted = counted.checked(self.tokenizer, self.corpus.name, quiet=self._counted is not None)
            with suppress(OSError, ValueError):  # the files are missing or incomplete
                memory = np.memmap(ids_file, np.int32, "r"), np.memmap(lengths_file, np.int32, "r")
                if len(memory[0]) == counted.n_tokens == memory[1].sum(dtype=np.int64):
                    self._memory = memory


def tokens_of(corpus: Corpus, tokenizer: Any) -> Tokens:
    """Return the tokens of a corpus with a tokenizer. The object is the same for as long as the corpus exists."""
    key = tokenizer_hash(tokenizer), corpus.limit, corpus.separator
    tokens: Tokens = corpus.tokens.setdefault(key, Tokens(corpus, tokenizer))
    return tokens
