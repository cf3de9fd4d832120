"""What is read before and after a text.

- An encoder always reads `[CLS] … [SEP]`.
- A causal model reads a beginning-of-sequence token (BOS) at the start of each row (`bos="rows"`), before each text in
  it (`"texts"`), both (True) or nowhere (False).
- `bos="auto"` is `"rows"` if the tokenizer itself puts a BOS before a text, `"texts"` if tools/train.py trained the
  model on a stream of texts with a BOS before each, and else False. What TransformerLens would put first
  (`cfg.default_prepend_bos`) does not count.
- A text that already begins or ends with these tokens is not framed twice. Token ids are read as they are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from interp.models.beginning import beginning
from interp.models.sites import Model, check_model, is_encoder
from interp.support.choices import Bos

__all__ = ["Frame", "frame", "framed", "left_out_bos", "settled_bos", "tokenizer_of", "unframed"]

_NAMES = {"bos": "beginning-of-sequence token", "eos": "end-of-sequence token", "cls": "[CLS]", "sep": "[SEP]"}


class Frame(NamedTuple):
    """The token ids before and after each row, and those before and after each text in it."""

    before: list[int]
    after: list[int]
    before_text: list[int]
    after_text: list[int]

    @property
    def alone(self) -> tuple[list[int], list[int]]:
        """The token ids before and after a text that has a row of its own."""
        return self.before or self.before_text, [*self.after, *self.after_text]


def tokenizer_of(model: Model) -> Any:
    """Return the model's tokenizer. Raises ValueError if it has none."""
    check_model(model)
    if model.tokenizer is None:
        remedy = "set model.tokenizer (for a model of transformers, call interp.models.as_model(model, tokenizer))"
        remedy += ", or give a causal model token ids [rows, pos]"
        raise ValueError(f"this model has no tokenizer, so it cannot read or mask text; {remedy}")
    return model.tokenizer


def settled_bos(model: Model, bos: Bos) -> Bos:
    """Return what `bos` stands for with this model: anything but `"auto"`. For encoders it is False.

    Raises ValueError for anything but True, False, `"auto"`, `"rows"` and `"texts"`.
    """
    if not isinstance(bos, bool) and bos not in ("auto", "rows", "texts"):
        raise ValueError(f"bos must be True, False, 'auto', 'rows' or 'texts', found {bos!r}")
    if is_encoder(model):
        return False
    if bos != "auto":
        return bos
    return False if model.tokenizer is None else beginning(model.tokenizer).bos


def left_out_bos(model: Model, bos: Bos) -> int | None:
    """Return the id of the BOS that the tokenizer of a causal model has and `bos="auto"` does not put, or None."""
    if bos != "auto" or model.tokenizer is None or is_encoder(model) or settled_bos(model, bos):
        return None
    token_id = beginning(model.tokenizer).token_id
    return None if token_id is None or token_id >= model.cfg.d_vocab else token_id


def frame(model: Model, bos: Bos = "auto", eos: bool = False) -> Frame:
    """Return the token ids around rows and texts: `[CLS]` and `[SEP]` around each row of an encoder; for a causal model
    a BOS as `settled_bos` says, and with `eos` the end-of-sequence token after each text.

    Raises ValueError for a token that the tokenizer or the model's vocabulary does not have.
    """
    tokenizer_of(model)
    if is_encoder(model):
        return Frame(_ids(model, "cls"), _ids(model, "sep"), [], [])
    settled = settled_bos(model, bos)
    token = _ids(model, "bos") if settled else []
    before = token if settled in (True, "rows") else []
    before_text = token if settled in (True, "texts") else []
    return Frame(before, [], before_text, _ids(model, "eos") if eos else [])


def _ids(model: Model, name: str) -> list[int]:
    tokenizer = tokenizer_of(model)
    token_id = getattr(tokenizer, f"{name}_token_id")
    invented = name == "bos" and beginning(tokenizer).token_id is None  # by TransformerLens
    if invented or token_id is None or token_id >= model.cfg.d_vocab:
        needed = ", which an encoder reads" if is_encoder(model) else f"; read without it ({name}=False)"
        raise ValueError(f"this model's tokenizer has no {_NAMES[name]}{needed}")
    return [token_id]


def unframed(ids: Sequence[int], before: Sequence[int], after: Sequence[int]) -> slice:
    """Return where the token ids of a text are without a frame that they already carry."""
    start = len(before) * (bool(before) and list(ids[: len(before)]) == list(before))
    stop = len(ids) - len(after) * (bool(after) and list(ids[start:][-len(after) :]) == list(after))
    return slice(start, stop)


def framed(ids: list[int], before: list[int], after: list[int]) -> list[int]:
    """Put the token ids of a text in its frame, but not twice."""
    return [*before, *ids[unframed(ids, before, after)], *after]
