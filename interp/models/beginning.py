"""The beginning-of-sequence token (BOS) of a tokenizer, and where its model expects it."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import transformers

__all__ = ["Beginning", "beginning", "remember_beginning"]


class Beginning(NamedTuple):
    """The id of a tokenizer's BOS, None if it has none, and where the model expects it: at the start of each row
    (`"rows"`), before each text (`"texts"`), or nowhere."""

    token_id: int | None
    bos: Literal["rows", "texts", False]

    @classmethod
    def of(cls, tokenizer: Any) -> "Beginning":
        """Return what the tokenizer does by itself: at the start of each row if its encoding of a text begins with the
        BOS."""
        token_id = getattr(tokenizer, "bos_token_id", None)
        puts_bos = token_id is not None and list(tokenizer("a")["input_ids"][:1]) == [token_id]
        return cls(token_id, "rows" if puts_bos else False)


_READ_AGAIN: WeakKeyDictionary[Any, Beginning] = WeakKeyDictionary()


def remember_beginning(tokenizer: Any, original: Any, source: str) -> None:
    """Record how a model's texts begin.

    Args:
        tokenizer: the model's tokenizer, as TransformerLens has changed it; None is left alone.
        original: the tokenizer as it was read from `source`.
        source: the model's directory or hub name.
    """
    if tokenizer is not None:
        read = Beginning.of(original)
        tokenizer.interp_beginning = read._replace(bos="texts") if _trained_with_bos(Path(source)) else read


def _trained_with_bos(directory: Path) -> bool:
    """Whether tools/train.py trained the model in this directory with a BOS before each text."""
    with suppress(OSError, ValueError, AttributeError):  # no such file, or one of another program
        training = json.loads((directory / "training.json").read_text(encoding="utf-8"))
        return bool(training.get("settings", {}).get("separator") == "end of text")
    return False


def beginning(tokenizer: Any) -> Beginning:
    """Return how the texts of a tokenizer's model begin.

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
