"""The places of tokens in a text, and the words that they belong to."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from interp.corpora.sentences import encode
from interp.models.spelling import Spelling

__all__ = ["Aligned", "aligned", "cuts_words"]

_MARK = "##"  # begins a WordPiece that continues a word


@dataclass(frozen=True)
class Aligned:
    """Where each token of a text begins and ends, in characters, and the number of its word (-1 for none)."""

    offsets: list[tuple[int, int]]
    words: list[int]


def aligned(tokenizer: Any, texts: Sequence[str]) -> list[Aligned]:
    """Find the places and words of the tokens of each text, without the tokens that frame it.

    A fast tokenizer reports both. For a `BertJapaneseTokenizer`, words are those of MeCab (or Sudachi, or Juman++). For
    a tokenizer of bytes, such as ByT5's, words are separated by spaces, and each includes the spaces before it.

    Raises ValueError for other tokenizers, and for a text in which the tokens cannot be found.

    Examples:
        >>> from transformers import ByT5Tokenizer
        >>> [found] = aligned(ByT5Tokenizer(), ["é ?"])  # é is two bytes
        >>> found
        Aligned(offsets=[(0, 1), (0, 1), (1, 2), (2, 3)], words=[0, 0, 1, 1])
    """
    if tokenizer.is_fast:
        options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
        encodings = tokenizer(list(texts), return_offsets_mapping=True, **options).encodings
        alignments = []
        for encoding in encodings:
            words = [-1 if word is None else word for word in encoding.word_ids]
            alignments.append(Aligned(encoding.offsets, words))
        return alignments
    rows = encode(tokenizer, texts)
    if cuts_words(tokenizer):
        return [_of_words(tokenizer, text, ids) for text, ids in zip(texts, rows, strict=True)]
    spelling = Spelling(tokenizer)
    return [_of_bytes(tokenizer, text, spelling.said(ids)) for text, ids in zip(texts, rows, strict=True)]


def cuts_words(tokenizer: Any) -> bool:
    """Whether a tokenizer cuts text without spaces into words, as `BertJapaneseTokenizer` does."""
    return getattr(tokenizer, "word_tokenizer", None) is not None


def _of_bytes(tokenizer: Any, text: str, token_bytes: Sequence[bytes | None]) -> Aligned:
    """Alignment by the text of each token, if all texts together give the original text."""
    pieces = [piece or b"" for piece in token_bytes]
    if b"".join(pieces) != text.encode():
        expected = "a fast one, BertJapaneseTokenizer or a tokenizer of bytes"
        problem = f"{type(tokenizer).__name__}, which does not say where the tokens of {text[:60]!r} are"
        raise ValueError(f"words need a tokenizer that says where they are ({expected}); found {problem}")
    character = np.repeat(np.arange(len(text)), [len(letter.encode()) for letter in text])
    ends = np.cumsum(list(map(len, pieces)))
    numbers = _spaced(text)
    offsets, words = [], []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        offsets.append((int(character[start]), int(character[end - 1]) + 1) if start < end else (0, 0))
        words.append(int(numbers[character[start]]) if start < end else -1)
    return Aligned(offsets, words)


def _spaced(text: str) -> Int[np.ndarray, " character"]:
    """The number of each character's word. Spaces belong to the next word, and spaces at the end to the last one."""
    space = np.array(list(map(str.isspace, text)), dtype=bool)
    begins = ~space & np.concatenate([[True], space[:-1]])
    started = np.cumsum(begins)
    return np.minimum(np.where(space, started, started - 1), max(started[-1] - 1, 0))


def _of_words(tokenizer: Any, text: str, ids: Sequence[int]) -> Aligned:
    """Alignment by the words that a tokenizer first cuts the text into, whose characters it may normalise (NFKC)."""
    cutter = tokenizer.word_tokenizer

    def as_read(part: str) -> str:
        part = unicodedata.normalize("NFKC", part) if getattr(cutter, "normalize_text", False) else part
        return part.lower() if tokenizer.do_lower_case else part

    read = as_read(text)
    position = 0
    tokens: list[str] = []
    places: list[tuple[int, int]] = []
    words: list[int] = []
    for number, word in enumerate(cutter.tokenize(text, never_split=tokenizer.all_special_tokens)):
        start = read.find(word, position)
        if start < 0 or read[position:start].strip():
            break
        pieces = tokenizer.subword_tokenizer.tokenize(word) if tokenizer.do_subword_tokenize else [word]
        tokens += pieces
        for first, last in _places(tokenizer, word, pieces):
            places.append((start + first, start + last))
        words += [number] * len(pieces)
        position = start + len(word)
    if tokenizer.convert_tokens_to_ids(tokens) != list(ids):
        problem = f"{type(tokenizer).__name__} does not say where its tokens are in {text[:60]!r}"
        raise ValueError(f"{problem}; remove special tokens, and characters that it rewrites")
    ends = np.array([len(as_read(text[:end])) for end in range(len(text) + 1)])
    firsts, lasts = np.reshape(places, (-1, 2)).T
    starts = np.searchsorted(ends, firsts, side="right") - 1
    stops = (
        np.searchsorted(ends, lasts, side="right") - 1
    )  # with combining marks, which form one character with what precedes them
    stops += ends[stops] < lasts
    return Aligned([*zip(starts.tolist(), stops.tolist(), strict=True)], words)


def _places(tokenizer: Any, word: str, pieces: Sequence[str]) -> list[tuple[int, int]]:
    """The place of each piece in its word. A piece that is unknown, or spelled differently from the text, takes the
    whole word."""
    sizes = [len(piece.removeprefix(_MARK)) for piece in pieces]
    if tokenizer.subword_tokenizer_type == "character":
        sizes = [1] * len(pieces)
    if sum(sizes) != len(word):
        return [(0, len(word))] * len(pieces)
    ends = np.cumsum(sizes)
    return list(zip((ends - sizes).tolist(), ends.tolist(), strict=True))
