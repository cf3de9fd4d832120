"""Text as token ids: framing, cutting, padding and masking.

What is put before and after a text:

- An encoder always reads `[CLS] … [SEP]`.
- A sentence that is read by itself (minimal pairs, probes) begins with the beginning-of-sequence token if the model was
  trained in this way, according to TransformerLens (`cfg.default_prepend_bos`).
- Running text and prompts, which are cut out of longer text, begin without such a token.
- `bos=True` and `bos=False` override this. Token ids are read as they are.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interp.checks import check_token_ids, list_of_strings
from interp.models.sites import Model, check_model, is_encoder

__all__ = ["Row", "encode", "frame", "masked_positions", "numbered", "packed_rows", "padded", "sentence_rows"]
__all__ += ["text_rows", "tokenizer_of"]

_ROWS_OF_A_STRETCH = 8
_NAMES = {"bos": "beginning-of-sequence token", "eos": "end-of-sequence token", "cls": "[CLS]", "sep": "[SEP]"}


def tokenizer_of(model: Model) -> Any:
    """The model's tokenizer. Raises ValueError if it has none."""
    check_model(model)
    if model.tokenizer is None:
        how = "set model.tokenizer, or give a causal model token ids [rows, pos]"
        raise ValueError(f"this model has no tokenizer, so it cannot read or mask text; {how}")
    return model.tokenizer


def encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of each text, without special tokens."""
    options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
    return list(tokenizer(texts, **options)["input_ids"])


def frame(model: Model, bos: bool = False, eos: bool = False) -> tuple[list[int], list[int]]:
    """The token ids before and after a text: the requested tokens, or `[CLS]` and `[SEP]` for an encoder.

    Raises ValueError for a token that the tokenizer or the model's vocabulary does not have.
    """
    tokenizer = tokenizer_of(model)
    framed = []
    for name, wanted in {"cls": True, "sep": True}.items() if is_encoder(model) else {"bos": bos, "eos": eos}.items():
        token_id = getattr(tokenizer, f"{name}_token_id")
        if wanted and (token_id is None or token_id >= model.cfg.d_vocab):
            needed = ", which an encoder reads" if is_encoder(model) else f"; read without it ({name}=False)"
            raise ValueError(f"this model's tokenizer has no {_NAMES[name]}{needed}")
        framed.append([token_id] if wanted else [])
    return framed[0], framed[1]


def sentence_rows(
    model: Model, sentences: Sequence[str], *, bos: bool | None = None, end: Sequence[int] = (), least: int = 1
) -> list[list[int]]:
    """Token ids of sentences that are read by themselves, with their frame, followed by `end`.

    Raises ValueError for a model without a tokenizer or with that of another model, and for a sentence that has no
    tokens, has fewer than `least` tokens with its frame, or is longer than the context. Raises TypeError for anything
    but a list of strings.
    """
    sentences = list_of_strings(sentences, "sentences")
    tokenizer = tokenizer_of(model)
    before, after = frame(model, bos=model.cfg.default_prepend_bos if bos is None else bos)
    rows = []
    for sentence, ids in zip(sentences, encode(tokenizer, sentences), strict=True):
        rows.append([*before, *ids, *after, *end])
        if not ids or not least <= len(rows[-1]) <= model.cfg.n_ctx:
            wanted = f"{'a word' if least == 1 else f'{least} tokens'} or more and at most {model.cfg.n_ctx}"
            found = f"{len(rows[-1])} token{'s' * (len(rows[-1]) != 1)}"
            raise ValueError(f"{sentence[:60]!r} has {found}; expected {wanted}")
    check_token_ids(max(map(max, rows)), model.cfg.d_vocab, "the sentences have")
    return rows


def padded(
    rows: Iterable[Sequence[int] | Int[np.ndarray, " _pos"]], pad_id: int = 0, *, left: bool = False
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Rows of token ids as one tensor, padded on the right or `left`, and its mask: 1 for tokens, 0 for padding."""
    parts = [torch.as_tensor(row, dtype=torch.int64) for row in rows]
    side = "left" if left else "right"
    tokens = pad_sequence(parts, batch_first=True, padding_value=pad_id, padding_side=side)
    return tokens, pad_sequence([torch.ones_like(part) for part in parts], batch_first=True, padding_side=side)


class Row(NamedTuple):
    """A row that a model reads: its token ids, the positions before which a text ends, and the numbers in the corpus of
    the row, of its *stretch*, and of the text in which it begins.

    A stretch ends with a row in which a text ends, or else after eight rows. What is read in different stretches is
    treated as independent (`interp.run.groups`).
    """

    ids: Int[np.ndarray, " pos"]
    ends: Sequence[int]
    number: int
    stretch: int
    first_text: int

    @property
    def n_texts(self) -> int:
        """How many texts end in the row."""
        return len(self.ends)

    def text_at(self, pos: int) -> int:
        """The number in the corpus of the text that the token at a position belongs to."""
        return self.first_text + bisect_right(self.ends, pos)


def numbered(rows: Iterable[tuple[Sequence[int] | Int[np.ndarray, " pos"], Sequence[int]]]) -> Iterator[Row]:
    """Number rows of token ids, each given with the positions before which a text ends."""
    stretch = length = first_text = 0
    for number, (ids, ends) in enumerate(rows):
        yield Row(np.asarray(ids), ends, number, stretch, first_text)
        length, first_text = length + 1, first_text + len(ends)
        if ends or length == _ROWS_OF_A_STRETCH:
            stretch, length = stretch + 1, 0


def packed_rows(
    encoded: Iterable[list[int]], context: int, frame: tuple[list[int], list[int]], *, each_row: bool
) -> Iterator[tuple[list[int], list[int]]]:
    """Full rows cut out of one stream, each with the positions before which a text ends. Each text has the frame around
    it, or, with `each_row`, each row."""
    before, after = frame
    room = context - len(before) - len(after) if each_row else context
    buffer: list[int] = []
    ends: list[int] = []
    for ids in encoded:
        buffer += ids if each_row else before + ids + after
        ends.append(len(buffer))
        start = 0
        while len(buffer) - start >= room:
            piece, first, start = buffer[start : start + room], start, start + room
            row = before + piece + after if each_row else piece
            finished = bisect_right(ends, start)
            shift = len(before) * each_row - first
            yield row, [len(row) if end == start else end + shift for end in ends[:finished]]
            del ends[:finished]
        del buffer[:start]
        ends = [end - start for end in ends]


def text_rows(
    encoded: Iterable[list[int]], context: int, frame: tuple[list[int], list[int]]
) -> Iterator[tuple[list[int], list[int]]]:
    """One row per text, with the positions before which a text ends. A text that is too long continues in the next row,
    with its own frame. A text without tokens ends at the beginning of the next row."""
    before, after = frame
    room = context - len(before) - len(after)
    ends: list[int] = []
    for ids in encoded:
        if not ids:
            ends.append(0)
        for start in range(0, len(ids), room):
            row = before + ids[start : start + room] + after
            yield row, ends + [len(row)] * (start + room >= len(ids))
            ends = []


def masked_positions(rows: Sequence[Row], rate: float, special: Sequence[int], seed: int) -> Bool[Tensor, "batch pos"]:
    """Which tokens an encoder must predict. Each token that is not special is drawn with this probability, with a seed
    that depends on the number of the row."""
    chosen = [
        (np.random.default_rng([seed, row.number]).random(len(row.ids)) < rate) & ~np.isin(row.ids, special)
        for row in rows
    ]
    return pad_sequence([torch.from_numpy(row) for row in chosen], batch_first=True)
