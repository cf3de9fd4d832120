"""Text as token ids: cutting, padding and masking."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interp.corpora.frames import Frame, frame, framed, tokenizer_of, unframed
from interp.models.sites import Model
from interp.support.checks import check_token_ids, list_of_strings
from interp.support.choices import Bos

__all__ = ["Cut", "Row", "encode", "marked", "masked_positions", "numbered", "packed_rows", "padded", "sentence_rows"]
__all__ += ["text_rows", "together"]

T = TypeVar("T")
_ENOUGH_TOKENS = 512
_ROWS_OF_A_STRETCH = 8
_COMPARED = 2**20  # texts that are remembered, about 70 MB


def encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Encode each text, without special tokens."""
    options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
    return list(tokenizer(texts, **options)["input_ids"])


def sentence_rows(
    model: Model, sentences: Sequence[str], *, bos: Bos = "auto", end: Sequence[int] = (), least: int = 1
) -> list[list[int]]:
    """Return the token ids of sentences that are read by themselves, with their frame, followed by `end`.

    Raises ValueError for a model without a tokenizer or with that of another model, and for a sentence that has no
    tokens, has fewer than `least` tokens with its frame, or is longer than the context. Raises TypeError for anything
    but a list of strings.
    """
    sentences = list_of_strings(sentences, "sentences")
    tokenizer = tokenizer_of(model)
    before, after = frame(model, bos).alone
    after = [*after, *end]
    rows = []
    for sentence, ids in zip(sentences, encode(tokenizer, sentences), strict=True):
        content = ids[unframed(ids, before, after)]
        rows.append([*before, *content, *after])
        if not content or not least <= len(rows[-1]) <= model.cfg.n_ctx:
            expected = f"{'a word' if least == 1 else f'{least} tokens'} or more and at most {model.cfg.n_ctx}"
            length = f"{len(rows[-1])} token{'s' * (len(rows[-1]) != 1)}"
            raise ValueError(f"{sentence[:60]!r} has {length}; expected {expected}")
    check_token_ids(max(map(max, rows)), model.cfg.d_vocab, "the sentences have")
    return rows


def padded(
    rows: Iterable[Sequence[int] | Int[np.ndarray, " _pos"]], pad_id: int = 0, *, left: bool = False
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Pad rows of token ids on the right or `left` to one tensor, and return it with its mask: 1 for tokens, 0 for
    padding."""
    parts = [torch.as_tensor(row, dtype=torch.int64) for row in rows]
    side = "left" if left else "right"
    tokens = pad_sequence(parts, batch_first=True, padding_value=pad_id, padding_side=side)
    return tokens, pad_sequence(list(map(torch.ones_like, parts)), batch_first=True, padding_side=side)


def together(items: Iterable[T], length: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Yield items that are read in one batch, which has as many rows as there are items and as many columns as the
    longest.

    A batch has at most `limit` tokens, padding included, and at least one item. It also ends if it has enough tokens to
    keep a machine busy and the next item would let padding be more than an eighth of it. So items should come in order
    of length.
    """
    batch: list[T] = []
    longest = real = 0
    for item in items:
        width = length(item)
        size = (len(batch) + 1) * max(longest, width)
        padding = size - real - width
        if batch and (size > limit or (real >= _ENOUGH_TOKENS and padding > size / 8)):
            yield batch
            batch = []
            longest = 0
            real = 0
        batch.append(item)
        longest = max(longest, width)
        real = real + width
    if batch:
        yield batch


class Cut(NamedTuple):
    """Token ids cut out of a corpus as a row, the positions before which a text ends, whether the row has a BOS
    although a text does not begin there, and whether any of its texts is new."""

    ids: Sequence[int] | Int[np.ndarray, " pos"]
    ends: Sequence[int]
    resumed: bool = False
    is_new: bool = True


class Row(NamedTuple):
    """A row that a model reads: its token ids, the positions before which a text ends, the numbers in the corpus of the
    row, of its *stretch*, and of the text in which it begins, and whether it is `resumed`, that is, begins with a BOS
    in the middle of a text.

    A stretch ends with a row in which a text ends, or else after eight rows; rows of nothing but texts that came before
    belong to the next one. What is read in different stretches is treated as independent (`interp.passes.groups`).
    """

    ids: Int[np.ndarray, " pos"]
    ends: Sequence[int]
    number: int
    stretch: int
    first_text: int
    resumed: bool

    @property
    def n_texts(self) -> int:
        """How many texts end in the row."""
        return len(self.ends)

    @property
    def ends_text(self) -> bool:
        """Whether a text ends with the row."""
        return bool(self.ends) and self.ends[-1] == len(self.ids)

    def text_at(self, pos: int) -> int:
        """Return the number in the corpus of the text that the token at a position belongs to."""
        return self.first_text + bisect_right(self.ends, pos)


def numbered(cuts: Iterable[Cut]) -> Iterator[Row]:
    """Number the rows of a corpus."""
    stretch = length = first_text = 0
    for number, (ids, ends, resumed, is_new) in enumerate(cuts):
        yield Row(np.asarray(ids), ends, number, stretch, first_text, resumed)
        first_text += len(ends)
        if not is_new:
            continue
        length += 1
        if ends or length == _ROWS_OF_A_STRETCH:
            stretch += 1
            length = 0


def marked(encoded: Iterable[list[int]], seen: dict[str, Any]) -> Iterator[tuple[list[int], bool]]:
    """Yield texts, each with whether it is new: not the same as one that came before (among the first million). In the
    end, `seen["repeated_texts"]` is the share of the texts with tokens that were not."""
    hashes: set[int] = set()
    n_texts = n_repeated = 0
    for ids in encoded:
        fingerprint = hash(tuple(ids))
        is_repeated = bool(ids) and fingerprint in hashes
        if len(hashes) < _COMPARED:
            hashes.add(fingerprint)
        n_texts += bool(ids)
        n_repeated += is_repeated
        yield ids, bool(ids) and not is_repeated
    seen["repeated_texts"] = n_repeated / max(n_texts, 1)


def packed_rows(encoded: Iterable[list[int]], context: int, around: Frame, seen: dict[str, Any]) -> Iterator[Cut]:
    """Yield full rows cut out of one stream of texts. In the end, `seen["tokens_left_out"]` is the number of tokens
    that did not fill another row, and `seen["repeated_texts"]` the share of texts that repeat an earlier one."""
    before, after = around.before, around.after
    buffer: list[int] = []
    ends: list[int] = []
    are_new: list[bool] = []
    fresh = True  # a text begins where the next row does
    for ids, is_new in marked(encoded, seen):
        content = ids[unframed(ids, before, after)] if after else ids
        buffer += framed(content, around.before_text, around.after_text)
        ends.append(len(buffer))
        are_new.append(is_new)
        start = 0
        while True:
            head = [] if buffer[start : start + len(before)] == before else before
            stop = start + context - len(head) - len(after)
            if stop > len(buffer):
                break
            row = [*head, *buffer[start:stop], *after]
            finished = bisect_right(ends, stop)
            shift = len(head) - start
            ended = [len(row) if end == stop else end + shift for end in ends[:finished]]
            yield Cut(row, ended, bool(head) and not fresh, any(are_new[: bisect_left(ends, stop) + 1]))
            fresh = finished > 0 and ends[finished - 1] == stop
            start = stop
            del ends[:finished], are_new[:finished]
        del buffer[:start]
        ends = [end - start for end in ends]
    seen["tokens_left_out"] = len(buffer)


def text_rows(encoded: Iterable[list[int]], context: int, around: Frame, seen: dict[str, Any]) -> Iterator[Cut]:
    """Yield one row per text. A text that is too long continues in the next row, with its own frame. A text without
    tokens ends at the beginning of the next row. In the end, `seen["repeated_texts"]` is the share of texts that repeat
    an earlier one."""
    before, after = around.alone
    room = context - len(before) - len(after)
    ends: list[int] = []
    for ids, is_new in marked(encoded, seen):
        content = ids[unframed(ids, before, after)]
        if not content:
            ends.append(0)
        for start in range(0, len(content), room):
            row = [*before, *content[start : start + room], *after]
            ended = ends + [len(row)] * (start + room >= len(content))
            yield Cut(row, ended, bool(before) and start > 0, is_new)
            ends = []


def masked_positions(rows: Sequence[Row], rate: float, special: Sequence[int], seed: int) -> Bool[Tensor, "batch pos"]:
    """Draw which tokens an encoder must predict. Each token that is not special is drawn with this probability, with a
    seed that depends on the number of the row."""
    chosen = []
    for row in rows:
        drawn = np.random.default_rng([seed, row.number]).random(len(row.ids)) < rate
        chosen.append(torch.from_numpy(drawn & ~np.isin(row.ids, special)))
    return pad_sequence(chosen, batch_first=True)
