"""Unigram counts of a corpus: how often each token of a vocabulary occurs.

This module does not import torch, because counting runs in worker processes that import only this module.
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xxhash
from jaxtyping import Bool, Float, Int64, Integer
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from interp.support.checks import check_token_ids
from interp.support.disk import replacing
from interp.support.paths import local_path

__all__ = ["Unigrams", "check_counts_file", "chunked", "count", "load", "tokenizer_hash", "total"]
__dir__ = __all__.copy

_TEXTS_AT_ONCE = 1_000
_CHARACTERS_AT_ONCE = 1_000_000
_WORTH_PROCESSES = 16  # chunks; fewer are counted before processes have started
_AROUND_A_TEXT = {"truncation", "padding", "post_processor"}
_NO_OPTIONS = {"name_or_path", "vocab_file", "tokenizer_file", "model_max_length", "special_tokens_map_file"}
_NO_OPTIONS |= {"is_local", "local_files_only"}
_tokenizer: Tokenizer | None = None  # the tokenizer of a worker process


@dataclass(frozen=True, eq=False)
class Unigrams:
    """Token counts over a vocabulary, `counts[token_id]`, and the name of the corpus they come from.

    `tokenizer` identifies the tokenizer they were counted with (`tokenizer_hash`), if it is known.

    Tokens that batching adds (BOS, `[CLS]` …) are not counted, but special tokens in the text itself are.

    Examples:
        >>> Unigrams(np.array([3, 1]), "a text").distribution.tolist()
        [0.75, 0.25]
    """

    counts: Integer[np.ndarray, " d_vocab"]
    corpus: str
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.counts, np.ndarray):
            raise TypeError(f"unigram counts must be a numpy array, found {type(self.counts).__name__}")
        if self.counts.ndim != 1 or self.counts.dtype.kind not in "iu" or (self.counts.astype(np.int64) < 0).any():
            kind = f"{self.counts.dtype} of shape {self.counts.shape}"
            raise ValueError(f"unigram counts must be one row of whole numbers ≥ 0, found {kind}")
        if not self.counts.any():
            raise ValueError(f"the unigram counts of {self.corpus} are all zero; count a corpus with text in it")
        if self.counts.sum(dtype=float) >= 2**63:
            raise ValueError(f"the unigram counts of {self.corpus} add up to more than 2⁶³; expected counts of tokens")
        object.__setattr__(self, "counts", self.counts.astype(np.int64))

    @property
    def n_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def distribution(self) -> Float[np.ndarray, " d_vocab"]:
        """`u(w) = count(w) / Σ count`, float64."""
        return self.counts / self.counts.sum()

    def log_prior(self, real: Bool[np.ndarray, " d_vocab"] | None = None) -> Float[np.ndarray, " d_vocab"]:
        """Compute `log((count + 1) / Σ (count + 1))` in nats, smoothed so that the value is finite for types that do
        not occur.

        Args:
            real: which rows of the vocabulary are tokens. The others get 0 and do not count in the sum. Default: all.
        """
        smoothed = self.counts + 1.0
        real = np.ones(len(smoothed), dtype=bool) if real is None else real
        return np.where(real, np.log(smoothed / smoothed[real].sum()), 0.0)

    def merge(self, other: "Unigrams") -> "Unigrams":
        """Add up the counts of both corpora. Their tokenizer is known if both tokenizers are known.

        Raises ValueError if the tokenizers or the sizes of the vocabularies differ.
        """
        n, m = len(self.counts), len(other.counts)
        if n != m or len({self.tokenizer, other.tokenizer} - {None}) > 1:
            raise ValueError(f"cannot merge counts over {n} and {m} types: they come from different tokenizers")
        tokenizer = self.tokenizer if self.tokenizer == other.tokenizer else None
        return Unigrams(self.counts + other.counts, f"{self.corpus} + {other.corpus}", tokenizer)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file with one int64 tensor `counts`, and with the corpus and the tokenizer as metadata.

        Raises FileExistsError if there is a file of that name that does not hold such counts.
        """
        target = local_path(path)
        check_counts_file(target)
        # a single entry, because the order of several is not fixed
        description = json.dumps({"corpus": self.corpus, "tokenizer": self.tokenizer})
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            save_file({"counts": self.counts}, temporary, {"about": description})


def check_counts_file(path: Path) -> None:
    """Raise FileExistsError if a path holds anything but a file of counts. A file of counts may be replaced."""
    tensors: list[str] = []
    if path.is_file() and not path.is_symlink():
        with suppress(SafetensorError, OSError), safe_open(path, "np") as file:
            tensors = list(file.keys())
    if os.path.lexists(path) and tensors != ["counts"]:
        raise FileExistsError(f"{path} exists but does not hold token counts of interp; choose another name")


def load(path: str | os.PathLike[str]) -> Unigrams:
    """Read counts that `Unigrams.save` wrote, or a `.json` list of counts in the order of token ids.

    Raises FileNotFoundError if the file is missing, and ValueError if it does not hold counts.
    """
    source = local_path(path)
    if not source.is_file():
        raise FileNotFoundError(f"unigram counts {str(path)!r} do not exist; expected a file of counts")
    if source.suffix == ".json":
        try:
            counts = np.array(json.loads(source.read_text(encoding="utf-8")))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{source} is not a JSON list of counts: {error}") from None
        return Unigrams(counts, source.name)
    try:
        with safe_open(source, "np") as file:
            metadata = file.metadata() or {}
            counts = file.get_tensor("counts")
    except SafetensorError as error:
        reason = f"{source} is not a file of unigram counts ({error})"
        raise ValueError(f"{reason}; expected safetensors with a tensor 'counts', or .json") from None
    if "vocabulary" in metadata:
        problem = "which did not record the whole tokenizer; count again (interp unigrams)"
        raise ValueError(f"{source} was counted by an earlier version of interp, {problem}")
    description = json.loads(metadata.get("about", "{}"))
    return Unigrams(counts, description.get("corpus", source.name), description.get("tokenizer"))


def tokenizer_hash(tokenizer: Any) -> str:
    """Hash (xxh3, 128 bits) everything that decides how text becomes token ids, and ids become text.

    For a fast tokenizer these are vocabulary and merges, normaliser, pre-tokeniser, decoder and added tokens.
    Truncation, padding and the tokens that the tokenizer would add around a text are left out, because interp frames
    every row itself. For a tokenizer written in Python they are its class, vocabulary, added tokens and options.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        options = {key: str(value) for key, value in tokenizer.init_kwargs.items() if key not in _NO_OPTIONS}
        return _hash([type(tokenizer).__name__, tokenizer.get_vocab(), tokenizer.get_added_vocab(), options])
    return _backend_hash(backend.to_str())


@lru_cache(maxsize=4)  # asked for again at each reading, even of a few sentences
def _backend_hash(described: str) -> str:
    settings = json.loads(described)
    for name in _AROUND_A_TEXT:
        settings.pop(name, None)
    return _hash(settings)


def _hash(described: Any) -> str:
    return xxhash.xxh3_128(json.dumps(described, sort_keys=True).encode()).hexdigest()


def count(tokenizer: Any, texts: Iterable[str], *, corpus: str, d_vocab: int, processes: int = 1) -> Unigrams:
    """Count the tokens of all texts, without adding special tokens, in constant memory.

    Args:
        tokenizer: a transformers tokenizer.
        texts: any number of strings.
        corpus: a name for the source, saved with the counts.
        d_vocab: the size of the model's output vocabulary.
        processes: the number of worker processes, for a fast tokenizer (with a `tokenizer.json`) and more than about
            16,000 texts or 16 million characters; fewer are counted sooner in this process. With more than one, the
            calling script must be importable, with its work under `if __name__ == "__main__":`.

    Raises:
        ValueError: a token id lies outside the vocabulary, or there are no tokens.
        TypeError: the texts are a single string, a table or a mapping.
    """
    if isinstance(texts, str | bytes | Mapping | pd.DataFrame):
        raise TypeError(f"texts must be an iterable of strings, found {type(texts).__name__}; put them in a list")
    chunks = chunked(texts)
    first = list(islice(chunks, _WORTH_PROCESSES))
    chunks = chain(first, chunks)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rows = (tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"] for chunk in chunks)
        counts = total(map(_bincount, rows), d_vocab, corpus)
    elif processes == 1 or len(first) < _WORTH_PROCESSES:
        counts = total(map(partial(_count, _copy(backend.to_str())), chunks), d_vocab, corpus)
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, initializer=_start, initargs=(backend.to_str(),)) as pool:
            counts = total(_bounded_map(pool, chunks, 2 * processes), d_vocab, corpus)
    return Unigrams(counts, corpus, tokenizer_hash(tokenizer))


def chunked(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of at most 1,000 texts and about a million characters, to be tokenised at once."""
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if len(chunk) == _TEXTS_AT_ONCE or size > _CHARACTERS_AT_ONCE:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


def _bounded_map(
    pool: ProcessPoolExecutor, chunks: Iterable[list[str]], ahead: int
) -> Iterator[Int64[np.ndarray, " ids"]]:
    """Like `pool.map`, but reads at most `ahead` chunks in advance, so that memory stays constant."""
    waiting = []
    for chunk in chunks:
        waiting.append(pool.submit(_count_chunk, chunk))
        if len(waiting) > ahead:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def total(parts: Iterable[Int64[np.ndarray, " _ids"]], d_vocab: int, corpus: str) -> Int64[np.ndarray, " d_vocab"]:
    """Add up the counts of parts of a corpus. Raises ValueError for a token id outside the vocabulary, and if there are
    no tokens."""
    counts = np.zeros(d_vocab, dtype=np.int64)
    for part in parts:
        check_token_ids(len(part) - 1, d_vocab, f"{corpus} has")
        counts[: len(part)] += part
    if not counts.any():
        raise ValueError(f"corpus {corpus} is empty: there is no token to count")
    return counts


def _start(backend_json: str) -> None:
    global _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the process that adds up the counts
    _tokenizer = _copy(backend_json)


def _count_chunk(chunk: list[str]) -> Int64[np.ndarray, " ids"]:
    assert _tokenizer is not None
    return _count(_tokenizer, chunk)


def _copy(backend_json: str) -> Tokenizer:
    """A separate copy of a tokenizer, without truncation and padding."""
    tokenizer = Tokenizer.from_str(backend_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _count(tokenizer: Tokenizer, chunk: list[str]) -> Int64[np.ndarray, " ids"]:
    return _bincount([encoding.ids for encoding in tokenizer.encode_batch(chunk, add_special_tokens=False)])


def _bincount(rows: list[list[int]]) -> Int64[np.ndarray, " ids"]:
    return np.bincount(np.array(list(chain.from_iterable(rows)), dtype=np.int64))
