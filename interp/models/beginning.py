"""The beginning-of-sequence token (BOS) of a tokenizer, and whether the tokenizer puts it before a text itself."""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import transformers

__all__ = ["Beginning", "beginning", "remember_beginning"]


class Beginning(NamedTuple):
    """The id of a tokenizer's BOS, None if it has none, and whether its own encoding of a text begins with it."""

    token_id: int | None
    put: bool

    @classmethod
    def of(cls, tokenizer: Any) -> "Beginning":
        token_id = getattr(tokenizer, "bos_token_id", None)
        return cls(token_id, token_id is not None and list(tokenizer("a")["input_ids"][:1]) == [token_id])


_READ_AGAIN: WeakKeyDictionary[Any, Beginning] = WeakKeyDictionary()


def remember_beginning(tokenizer: Any, original: Any) -> None:
    """Record how the `original` of a model's tokenizer begins a text, before TransformerLens has changed it."""
    if tokenizer is not None:
        tokenizer.interp_beginning = Beginning.of(original)


def beginning(tokenizer: Any) -> Beginning:
    """How a tokenizer begins a text.

    TransformerLens reads the tokenizer of a model again such that it puts a BOS before every text, and takes the
    end-of-sequence token for a BOS if there is none. So a tokenizer of a model that interp has not loaded and that puts
    one is read once more, from where it came from and without the network. It is believed as it is if it is not there.
    """
    recorded = getattr(tokenizer, "interp_beginning", None)
    if isinstance(recorded, Beginning):
        return recorded
    if tokenizer not in _READ_AGAIN:
        _READ_AGAIN[tokenizer] = Beginning.of(_original(tokenizer))
    return _READ_AGAIN[tokenizer]


def _original(tokenizer: Any) -> Any:
    if not getattr(tokenizer, "init_kwargs", {}).get("add_bos_token"):
        return tokenizer
    try:
        return transformers.AutoTokenizer.from_pretrained(tokenizer.name_or_path, local_files_only=True)
    except (OSError, ValueError):
        return tokenizer
