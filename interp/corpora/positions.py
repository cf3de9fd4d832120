"""Where a sentence is read: the special tokens around it, and the position of the vector that stands for it."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Int
from torch import Tensor

from interp.corpora.frames import frame, tokenizer_of
from interp.corpora.sentences import sentence_rows
from interp.models.identity import check_weights
from interp.models.sites import Model, is_encoder
from interp.support.checks import warn
from interp.support.choices import Bos, Position

__all__ = ["frame_of", "read_at", "state_rows"]


def state_rows(model: Model, sentences: Sequence[str], position: Position, *, bos: Bos = "auto") -> list[list[int]]:
    """The token ids of every sentence, with the special tokens that its states are read with.

    Raises the errors of `collect`.
    """
    check_weights(model)
    if position == "cls" and not is_encoder(model):
        raise ValueError("position 'cls' is for encoders; a causal model's first token does not see the sentence")
    end = [_end(tokenizer_of(model))] if position == "eos" and not is_encoder(model) else []
    return sentence_rows(model, sentences, bos=bos, end=end)


def frame_of(model: Model, row: list[int], position: Position, bos: Bos) -> dict[str, str | None]:
    """The tokens before each sentence, and the token at which it is read: a special one, or that of its position."""
    name = tokenizer_of(model).convert_ids_to_tokens
    begins = row[: len(frame(model, bos).alone[0])]
    index = {"cls": 0, "eos": -1}.get(position)
    read_at = {"last": "the last token of the sentence", "mean": "the mean over all tokens"}
    return {
        "begins_with": " ".join(name(begins)) or None,
        "read_at": read_at.get(position) or name([row[index or 0]])[0],
    }


def read_at(model: Model, mask: Int[Tensor, "batch pos"], position: Position) -> Int[Tensor, " batch"]:
    """The position at which each row is read; for `mean`, its last position."""
    last = mask.sum(1) - 1
    return {"cls": 0 * last, "last": last - int(is_encoder(model))}.get(position, last)


def _end(tokenizer: Any) -> int:
    for name in ("eos", "sep", "bos", "pad"):
        if (token_id := getattr(tokenizer, f"{name}_token_id")) is not None:
            if name != "eos":
                token = getattr(tokenizer, f"{name}_token")
                warn(f"this tokenizer has no end-of-sequence token; {token} is appended instead")
            return int(token_id)
    raise ValueError("this tokenizer has no token to append; choose position='last' or 'mean'")
