"""Token classes: the kind of key that a token is, by its text, its id or its position."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
import xxhash
from jaxtyping import Int
from torch import Tensor

from interp.corpora.characters import UNICODE_CLASSES, is_comma_or_period, unicode_class
from interp.models.sites import Model, check_model, is_encoder
from interp.models.spelling import Spelling
from interp.support.checks import list_of_strings, whole_number

__all__ = ["KeyClasses", "Says", "TokenClasses", "n_classes", "token_classes"]
__dir__ = __all__.copy

_POSITIONS = 1_024  # the number of positions at which a checkpoint compares the classes of some tokens


@dataclass(frozen=True, eq=False)
class TokenClasses:
    """Named classes and a function from token ids to class numbers, both `[batch, pos]` and on the CPU.

    Every token has exactly one class: the function returns numbers from 0 to `len(names) − 1`.

    Raises ValueError for a name that occurs twice or is `all`, and TypeError for names that are not strings.
    """

    names: tuple[str, ...]
    assign: Callable[[Int[Tensor, "batch pos"]], Int[Tensor, "batch pos"]] = field(repr=False)

    def __post_init__(self) -> None:
        names = list_of_strings(self.names, "class names")
        if len(set(names)) < len(names) or "all" in names:
            listing = ", ".join(names)
            raise ValueError(
                f"class names must be different, and not 'all', which interp adds; found {listing}; rename one of them"
            )
        object.__setattr__(self, "names", tuple(names))

    def __call__(self, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
        """The class number of each token. Raises ValueError if a user's function returns something invalid."""
        numbers = self.assign(tokens.cpu())
        if not isinstance(numbers, Tensor) or numbers.shape != tokens.shape or numbers.dtype != torch.int64:
            kind = f"{numbers.dtype} {tuple(numbers.shape)}" if isinstance(numbers, Tensor) else type(numbers).__name__
            expected = f"a class number for each token, int64 {tuple(tokens.shape)}"
            raise ValueError(f"the class function must return {expected}; found {kind}")
        if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self.names):
            number_range = f"{int(numbers.min())} … {int(numbers.max())}"
            class_range = f"0 … {len(self.names) - 1} ({', '.join(self.names)})"
            raise ValueError(f"the class function must return numbers in {class_range}, found {number_range}")
        return numbers.to(tokens.device)

    def describe(self, d_vocab: int, n_ctx: int) -> dict[str, str]:
        """Return what identifies these classes in a checkpoint: their names, and a hash of each token's class at the
        first and second position, and of some tokens' classes at the first 1,024 positions."""
        numbers = self(torch.arange(d_vocab)[:, None].repeat(1, 2))
        sample = torch.arange(0, d_vocab, -(-d_vocab // 16))
        further = self(sample[:, None].repeat(1, min(n_ctx, _POSITIONS)))
        hashed = xxhash.xxh3_64(numbers.numpy().tobytes() + further.numpy().tobytes()).hexdigest()
        return {"names": ",".join(self.names), "classes": hashed}


Says: TypeAlias = Callable[[str, int], bool]
"""Whether a token belongs to a class, given its text (with spaces) and its position in the row."""

KeyClasses: TypeAlias = TokenClasses | Mapping[str, Iterable[int] | str | Iterable[str] | Says] | None
"""What `token_classes` takes: classes, a mapping from names to the members of each class, or None for the defaults."""


def n_classes(classes: KeyClasses) -> int:
    """Count the classes that `token_classes` returns, of which there are four by default. Needs no model.

    Examples:
        >>> n_classes(None), n_classes({"some": [7, 8]})  # the other tokens have a class, too
        (4, 2)
    """
    if isinstance(classes, TokenClasses):
        return len(classes.names)
    return len({*classes, "other"}) if classes else 4


def token_classes(model: Model, classes: KeyClasses = None) -> TokenClasses:
    """Return the classes of a model's tokens: the default ones, or a user's.

    The default classes are `cls`, `sep`, `comma_period` and `other` for encoders, and `first`, `bos`, `comma_period`
    and `other` for causal models. `bos` is the beginning-of-sequence token, and `first` any other token at the first
    position of a row: it draws much attention (a sink), which would otherwise count as attention to the class of
    whatever token is there. `comma_period` has the tokens
    whose text is one comma or one period of any script (`,`, `.`, `、`, `。`, `،`, `।` …), with or without spaces.

    A mapping defines other classes, and all other tokens are in `other`. A class is given by token ids; by a class of
    text, which is `"comma_period"` or one or more values of `interp.corpora.characters.unicode_class` (`"hiragana"`,
    `["han", "mixed"]`); or by a function that takes a token's text and its position in the row (0, 1, …) and returns a
    bool. If several classes match, a token belongs to the one that lists its id, or else to the first in the mapping.
    Figures and pages call the default classes `[CLS]`, `the first token`, `commas and periods` and so on; classes of
    your own keep their names.

    The text of a token counts, however the vocabulary spells it. A token with some of the bytes of a character has that
    character as its text if the other bytes are next to it. A token without text (a special token, a stray byte) can
    only be in a class by its id.

    Raises ValueError for a class of text if the model has no tokenizer, for an unknown class of text, and for ids that
    are outside the vocabulary or in two classes. Raises TypeError for ids that are not whole numbers, for a function
    that does not return a bool, and if `model` is not a model.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> classes = token_classes(toy_decoder(), {"mine": [7, 8]})
        >>> classes.names, classes(torch.tensor([[8, 9]])).tolist()
        (('mine', 'other'), [[0, 1]])
        >>> ends = {"one": lambda text, position: text.endswith("1"), "second": lambda text, position: position == 1}
        >>> token_classes(toy_decoder(), ends)(torch.tensor([[8, 9, 18]])).tolist()  # "w1 w2 w11"
        [[0, 1, 0]]
    """
    check_model(model)
    if isinstance(classes, TokenClasses):
        return classes
    if classes is not None and not isinstance(classes, Mapping):
        expected = "a mapping from names to token ids, classes of text or functions, or TokenClasses"
        raise TypeError(f"key classes must be {expected}; found {type(classes).__name__}")
    mapping = _defaults(model) if classes is None else dict(classes)
    if not mapping or {"other", "all"} & set(mapping):
        class_names = ", ".join(map(repr, mapping)) or "none"
        expected = "at least one, and none called 'other' or 'all', which interp adds"
        raise ValueError(f"key classes are {class_names}; expected {expected}")
    classes_of = _Assigned(model, mapping)
    names = *mapping, "other"
    if classes is not None or is_encoder(model):
        return TokenClasses(names, classes_of)
    return TokenClasses(("first", *names), lambda tokens: _first_separate(classes_of(tokens), names.index("bos")))


def _first_separate(numbers: Int[Tensor, "batch pos"], bos: int) -> Int[Tensor, "batch pos"]:
    """Class 0 at the first position, unless there is a BOS, and the other classes after it."""
    first = torch.arange(numbers.shape[1], device=numbers.device) == 0
    return (numbers + 1).masked_fill(first & (numbers != bos), 0)


class _Assigned:
    """The number of each token's class, from a table of ids if possible, otherwise from its text in context."""

    def __init__(self, model: Model, mapping: Mapping[str, Any]) -> None:
        self.rules = {}
        self.other = len(mapping)
        self.table = torch.full((model.cfg.d_vocab,), self.other, dtype=torch.int64)
        for number, (name, within) in enumerate(mapping.items()):
            if _is_text(within):
                self.rules[number] = _rule(name, within)
            else:
                self._put(number, name, _ids(name, within))
        self.where_it_stands = torch.zeros(len(self.table), dtype=torch.bool)
        if self.rules:
            if model.tokenizer is None:
                remedy = "give key_classes={'name': [ids]}"
                raise ValueError(f"this model has no tokenizer to find token classes with; {remedy}")
            self.spelling = Spelling(model.tokenizer)
            self._read_vocabulary(by_position=any(map(callable, mapping.values())))

    def _put(self, number: int, name: str, ids: list[int]) -> None:
        d_vocab = len(self.table)
        for token_id in ids:
            if not 0 <= token_id < d_vocab:
                raise ValueError(f"class {name!r} has token id {token_id}; expected 0 … {d_vocab - 1}")
            if self.table[token_id] != self.other:
                raise ValueError(f"token id {token_id} is in two classes; put it in only one of them")
            self.table[token_id] = number

    def _read_vocabulary(self, *, by_position: bool) -> None:
        free = (self.table == self.other).nonzero().flatten().tolist()
        texts = self.spelling.texts(free)
        for token_id, text, token_bytes in zip(free, texts, self.spelling.said(free), strict=True):
            if text is None or by_position:
                self.where_it_stands[token_id] = token_bytes is not None  # otherwise it has no text anywhere
            else:
                self.table[token_id] = self._number(text, 0)

    def _number(self, text: str, position: int) -> int:
        for number, rule in self.rules.items():
            if rule(text, position):
                return number
        return self.other

    def __call__(self, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
        numbers, contextual = self.table[tokens], self.where_it_stands[tokens]
        for row in contextual.any(1).nonzero().flatten().tolist():
            texts = self.spelling.texts_in_row(tokens[row].tolist())
            for position in contextual[row].nonzero().flatten().tolist():
                if (text := texts[position]) is not None:
                    numbers[row, position] = self._number(text, position)
        return numbers


def _is_text(within: Any) -> bool:
    """Whether a class is given by the text of its tokens."""
    several = isinstance(within, list | tuple | set | frozenset) and any(isinstance(item, str) for item in within)
    return callable(within) or isinstance(within, str) or several


def _rule(name: str, within: Any) -> Says:
    """A function that says, from text and position, whether a token is in a class."""
    if callable(within):

        def says(text: str, position: int) -> bool:
            answer = within(text, position)
            if not isinstance(answer, bool | np.bool_):
                raise TypeError(f"the function of class {name!r} must return True or False, found {answer!r}")
            return bool(answer)

        return says
    classes = {within} if isinstance(within, str) else set(list_of_strings(list(within), f"classes of class {name!r}"))
    if unknown := sorted(classes - {*UNICODE_CLASSES, "comma_period"}):
        choices = f"comma_period, {', '.join(UNICODE_CLASSES)}"
        ids = "for a token, give its id (tokenizer.convert_tokens_to_ids)"
        raise ValueError(
            f"class {name!r} has {unknown[0]!r}, which is not a class of text; {ids}; expected one of {choices}"
        )
    return lambda text, position: (
        unicode_class(text) in classes or ("comma_period" in classes and is_comma_or_period(text))
    )


def _ids(name: str, ids: Iterable[int]) -> list[int]:
    """The token ids of a user's class, without repetition."""
    if not isinstance(ids, Iterable):
        problem = f"class {name!r} must be a list of token ids, a class of text or a function of text and position"
        raise TypeError(f"{problem}; found {ids!r}")
    token_ids = ids.tolist() if isinstance(ids, np.ndarray | Tensor) else list(ids)
    if any(isinstance(token_id, bool) for token_id in token_ids):
        raise TypeError(f"class {name!r} has True or False for a token id; give the ids that a mask marks")
    description = f"a token id of class {name!r} (tokenizer.convert_tokens_to_ids gives it)"
    return sorted({whole_number(token_id, description) for token_id in token_ids})


def _defaults(model: Model) -> dict[str, Any]:
    special = ("cls", "sep") if is_encoder(model) else ("bos",)
    classes: dict[str, Any] = {}
    for name in special:
        token_id = getattr(model.tokenizer, f"{name}_token_id", None)
        classes[name] = [] if token_id is None or token_id >= model.cfg.d_vocab else [token_id]
    classes["comma_period"] = "comma_period"
    return classes
