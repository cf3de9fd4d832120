"""Token classes: what kind of key a token is, by its id or its position."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
import xxhash
from jaxtyping import Int
from torch import Tensor

from interp.checks import list_of_strings, whole_number
from interp.models.sites import Model, check_model, is_encoder

__all__ = ["KeyClasses", "TokenClasses", "token_classes"]


@dataclass(frozen=True, eq=False)
class TokenClasses:
    """Named classes and a function from token ids to class numbers, both `[batch, pos]` and on the CPU.

    Every token has one class: the function returns numbers from 0 to `len(names) − 1`.

    Raises ValueError for a name that is there twice or is `all`, TypeError for names that are no strings.
    """

    names: tuple[str, ...]
    assign: Callable[[Int[Tensor, "batch pos"]], Int[Tensor, "batch pos"]] = field(repr=False)

    def __post_init__(self) -> None:
        names = list_of_strings(self.names, "class names")
        if len(set(names)) < len(names) or "all" in names:
            found = ", ".join(names)
            raise ValueError(f"class names must be different, and 'all' is made of all; found {found}; rename one")
        object.__setattr__(self, "names", tuple(names))

    def __call__(self, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
        """The class number of each token. Raises ValueError for what a user's function may get wrong."""
        numbers = self.assign(tokens.cpu())
        if not isinstance(numbers, Tensor) or numbers.shape != tokens.shape or numbers.dtype != torch.int64:
            what = f"{numbers.dtype} {tuple(numbers.shape)}" if isinstance(numbers, Tensor) else type(numbers).__name__
            expected = f"a class number for each token, int64 {tuple(tokens.shape)}"
            raise ValueError(f"the class function must return {expected}; found {what}")
        if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self.names):
            found = f"{int(numbers.min())} … {int(numbers.max())}"
            known = f"0 … {len(self.names) - 1} ({', '.join(self.names)})"
            raise ValueError(f"the class function must return numbers in {known}, found {found}")
        return numbers.to(tokens.device)

    def describe(self, d_vocab: int) -> dict[str, str]:
        """What tells these classes from others in a checkpoint: their names, and a hash of each token's class at the
        first position and at the second."""
        numbers = self(torch.arange(d_vocab)[:, None].repeat(1, 2))
        return {"names": ",".join(self.names), "classes": xxhash.xxh3_64(numbers.numpy().tobytes()).hexdigest()}


KeyClasses: TypeAlias = TokenClasses | Mapping[str, Iterable[int]] | None
"""What `token_classes` takes: classes, `{'name': [token ids]}`, or None for the model's own."""


def token_classes(model: Model, classes: KeyClasses = None) -> TokenClasses:
    """The classes of a model's tokens: its own by default, or a user's.

    By default `cls`, `sep`, `comma_period` and `other` for encoders; `first`, `bos`, `comma_period` and `other` for
    causal models, where `first` is the first position of each row, whatever token is there: much attention goes to it
    (a sink), which would otherwise count as attention to that token's class. A mapping from names to token ids makes
    those classes, and `other` of the rest.

    Raises ValueError for a model without tokenizer where none are given, and for ids outside the vocabulary or in
    two classes; TypeError for ids that are no whole numbers, and for what is no model.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> classes = token_classes(toy_decoder(), {"first": [7, 8]})
        >>> classes.names, classes(torch.tensor([[8, 9]])).tolist()
        (('first', 'other'), [[0, 1]])
    """
    check_model(model)
    if isinstance(classes, TokenClasses):
        return classes
    if classes is not None and not isinstance(classes, Mapping):
        raise TypeError(f"key classes are {{'name': [token ids]}} or TokenClasses, found {type(classes).__name__}")
    by_name = _defaults(model) if classes is None else {name: _ids(name, ids) for name, ids in classes.items()}
    if not by_name or {"other", "all"} & set(by_name):
        raise ValueError("key classes must name at least one class; 'other' is made of the rest, 'all' of all")
    d_vocab = model.cfg.d_vocab
    table = torch.full((d_vocab,), len(by_name), dtype=torch.int64)
    for number, (name, ids) in enumerate(by_name.items()):
        for token_id in ids:
            if not 0 <= token_id < d_vocab:
                raise ValueError(f"class {name!r} has token id {token_id}; expected 0 … {d_vocab - 1}")
            if table[token_id] != len(by_name):
                raise ValueError(f"token id {token_id} is in two classes; every token has one")
            table[token_id] = number
    names = *by_name, "other"
    if classes is not None or is_encoder(model):
        return TokenClasses(names, lambda tokens: table.to(tokens.device)[tokens])
    return TokenClasses(("first", *names), lambda tokens: _first_apart(table.to(tokens.device)[tokens]))


def _first_apart(numbers: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """Class 0 at the first position, and the others after it."""
    return (numbers + 1).masked_fill(torch.arange(numbers.shape[1], device=numbers.device) == 0, 0)


def _ids(name: str, ids: Iterable[int]) -> list[int]:
    """The token ids of a user's class, each once."""
    given = ids.tolist() if isinstance(ids, np.ndarray | Tensor) else list(ids)
    if any(isinstance(token_id, bool) for token_id in given):
        raise TypeError(f"class {name!r} has True or False for a token id; give the ids that a mask marks")
    what = f"a token id of class {name!r} (tokenizer.convert_tokens_to_ids gives it)"
    return sorted({whole_number(token_id, what) for token_id in given})


def _defaults(model: Model) -> dict[str, list[int]]:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError("this model has no tokenizer to tell token classes by; give key_classes={'name': [ids]}")
    special = ("cls", "sep") if is_encoder(model) else ("bos",)
    classes = {name: [getattr(tokenizer, f"{name}_token_id", None)] for name in special}
    classes["comma_period"] = sorted(
        i for token, i in tokenizer.get_vocab().items() if token.strip("Ġ▁ ") in (",", ".")
    )
    return {name: [i for i in ids if i is not None and i < model.cfg.d_vocab] for name, ids in classes.items()}
