"""Unigram counts of a corpus: how often each token of a vocabulary occurs.

Light on purpose (no torch): counting runs in worker processes that import only this module.
"""

import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

_CHUNK = 2_000
_PARALLEL_FROM = 200_000
_tokenizer: Tokenizer | None = None


@dataclass(frozen=True, eq=False)
class Unigrams:
    """Token counts over a vocabulary, `counts[token_id]`, and the name of the corpus they come from.

    Tokens that the batching adds (BOS, `[CLS]` …) are not in the counts; special tokens that stand in the text
    are.
    """

    counts: Int[np.ndarray, " d_vocab"]
    corpus: str

    def __post_init__(self) -> None:
        if self.counts.ndim != 1 or self.counts.dtype.kind not in "iu" or (self.counts < 0).any():
            raise ValueError(
                f"unigram counts must be one row of whole numbers ≥ 0, found {self.counts.dtype} of shape "
                f"{self.counts.shape}"
            )
        if not self.counts.any():
            raise ValueError(f"the unigram counts of {self.corpus} are all zero; count a corpus with text in it")

    @property
    def n_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def distribution(self) -> Float[np.ndarray, " d_vocab"]:
        """`u(w) = count(w) / Σ count`, float64."""
        return self.counts / self.counts.sum()

    def log_prior(self) -> Float[np.ndarray, " d_vocab"]:
        """`log((count + 1) / Σ (count + 1))` in nats: add-one smoothed, so that unseen types stay finite."""
        smoothed = self.counts + 1.0
        return np.log(smoothed / smoothed.sum())

    def merge(self, other: "Unigrams") -> "Unigrams":
        """Counts of both corpora together. Raises ValueError where the vocabularies differ in size."""
        if len(self.counts) != len(other.counts):
            raise ValueError(
                f"cannot merge counts over {len(self.counts)} types with counts over {len(other.counts)}: they "
                "come from different tokenizers"
            )
        return Unigrams(self.counts + other.counts, f"{self.corpus} + {other.corpus}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file with one int64 tensor `counts` and the corpus name as metadata."""
        target = Path(path)
        temporary = target.with_name(target.name + f".{os.getpid()}.tmp")
        try:
            save_file({"counts": self.counts.astype(np.int64)}, temporary, {"corpus": self.corpus})
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> Unigrams:
    """Read counts that `Unigrams.save` wrote, or a `.json` list of counts in the order of token ids.

    Raises FileNotFoundError for a missing file and ValueError for one that holds no counts.
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"unigram counts {str(path)!r} do not exist; expected a file of counts")
    if source.suffix == ".json":
        try:
            counts = np.array(json.loads(source.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{source} is not a JSON list of counts: {error}") from None
        return Unigrams(counts, source.name)
    try:
        with safe_open(source, "np") as file:
            return Unigrams(file.get_tensor("counts"), (file.metadata() or {}).get("corpus", source.name))
    except SafetensorError as error:
        raise ValueError(
            f"{source} is not a file of unigram counts ({error}); expected safetensors with a tensor 'counts', or .json"
        ) from None


def count(tokenizer: Any, texts: Iterable[str], *, corpus: str, d_vocab: int, processes: int | None = None) -> Unigrams:
    """Count the tokens of all texts, without special tokens added, in constant memory.

    Args:
        tokenizer: a transformers tokenizer; fast ones (a `tokenizer.json`) are counted in parallel processes.
        texts: any number of strings.
        corpus: a name for the source, kept with the counts.
        d_vocab: the size of the model's output vocabulary.
        processes: worker processes; by default all cores for a corpus of more than 200,000 texts, else one.

    Raises:
        ValueError: a token id outside the vocabulary, or no token at all.
    """
    counts = np.zeros(d_vocab, dtype=np.int64)
    chunks = _chunks(iter(texts))
    head = list(islice(chunks, _PARALLEL_FROM // _CHUNK)) if processes is None else []
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if processes is None:
        more = len(head) == _PARALLEL_FROM // _CHUNK
        processes = (os.cpu_count() or 1) if more else 1
    chunks = (chunk for part in (head, chunks) for chunk in part)
    if backend is None:
        partial: Iterable[NDArray[np.int64]] = (
            np.bincount(np.concatenate([np.array(ids, int) for ids in _encode_slow(tokenizer, chunk)]))
            for chunk in chunks
        )
        return _total(partial, counts, corpus)
    backend_json = backend.to_str()
    if processes == 1:
        _start(backend_json)
        return _total(map(_count_chunk, chunks), counts, corpus)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_start, initargs=(backend_json,)) as pool:
        return _total(_bounded_map(pool, chunks, 2 * processes), counts, corpus)


def _encode_slow(tokenizer: Any, chunk: list[str]) -> list[list[int]]:
    return tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]


def _chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(islice(texts, _CHUNK)):
        yield chunk


def _bounded_map(pool: ProcessPoolExecutor, chunks: Iterable[list[str]], ahead: int) -> Iterator[NDArray[np.int64]]:
    """`pool.map` that reads at most `ahead` chunks before their turn, so memory stays constant."""
    waiting = []
    for chunk in chunks:
        waiting.append(pool.submit(_count_chunk, chunk))
        if len(waiting) > ahead:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def _total(partial: Iterable[NDArray[np.int64]], counts: NDArray[np.int64], corpus: str) -> Unigrams:
    for part in partial:
        if len(part) > len(counts):
            raise ValueError(
                f"{corpus} has token id {len(part) - 1}, beyond the model's vocabulary of {len(counts)}: this "
                "tokenizer does not belong to this model"
            )
        counts[: len(part)] += part
    if not counts.any():
        raise ValueError(f"corpus {corpus} is empty: no token to count")
    return Unigrams(counts, corpus)


def _start(backend_json: str) -> None:
    global _tokenizer
    _tokenizer = Tokenizer.from_str(backend_json)
    _tokenizer.no_truncation()
    _tokenizer.no_padding()


def _count_chunk(chunk: list[str]) -> NDArray[np.int64]:
    assert _tokenizer is not None
    encodings = _tokenizer.encode_batch(chunk, add_special_tokens=False)
    ids = [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]
    return np.bincount(np.concatenate(ids)) if ids else np.zeros(0, np.int64)
