"""Checks of arguments, made before anything is read or computed."""

import json
import math
import operator
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import pandas as pd

from interp.support.choices import listed
from interp.support.words import meant

__all__ = ["check_choice", "check_mask_rate", "check_mode", "check_same", "check_scales", "check_seed", "check_table"]
__all__ += ["check_token_ids", "collecting", "finite_number", "list_of_strings", "refuse"]
__all__ += ["unicode_text", "warn", "whole_number"]
__dir__ = __all__.copy

_INSIDE = {"interp", "torch", "jaxtyping"}  # the last two wrap functions of this package
_CAVEATS: ContextVar[list[str] | None] = ContextVar("caveats", default=None)


def whole_number(value: Any, name: str, *, least: int | None = None) -> int:
    """Return a whole number as an int. numpy's integers are accepted; 1.5, "1" and True are not.

    Raises TypeError if the value is not a whole number, and ValueError if it is below `least`.
    """
    try:
        if isinstance(value, bool):  # which Python counts among the whole numbers
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, found {value!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, found {number}")
    return number


def finite_number(value: Any, name: str) -> float:
    """Return a finite number as a float. True, "1" and 1j are not accepted.

    Raises TypeError if the value is not a real number, and ValueError if it is not finite, or too large for a float.
    """
    if isinstance(value, bool | np.bool_ | str | bytes | complex):
        raise TypeError(f"{name} must be a number, found {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, found {value!r:.40}")
    return number


def check_seed(seed: Any) -> int:
    """Return a seed that numpy and torch accept.

    Raises TypeError if it is not a whole number, and ValueError if it lies outside 0 … 2**63 − 1.
    """
    number = whole_number(seed, "seed", least=0)
    if number >= 2**63:
        raise ValueError(f"seed must be at most 2**63 − 1, found {number}")
    return number


def list_of_strings(values: Any, name: str) -> list[str]:
    """Return a list of one or more strings of Unicode text.

    Raises TypeError for a single string, a table or a mapping, which would be read letter by letter or by their keys,
    and for elements that are not strings. Raises ValueError for an empty list, and for half of a surrogate pair, which
    no tokenizer can read.
    """
    if isinstance(values, str | bytes | Mapping | pd.DataFrame) or not isinstance(values, Iterable):
        kind = f"the string {values[:40]!r}" if isinstance(values, str) else type(values).__name__
        raise TypeError(f"{name} must be a list of strings, found {kind}; put them in a list")
    strings = list(values)
    if not strings:
        raise ValueError(f"{name} is empty; expected at least one string")
    for number, string in enumerate(strings):
        if not isinstance(string, str):
            raise TypeError(f"{name} must be a list of strings, found {type(string).__name__} in it")
        unicode_text(string, f"{name}, number {number},")
    return strings


def unicode_text(text: str, where: str) -> str:
    """Return a text if it is Unicode. Raises ValueError if it contains half of a surrogate pair, which no tokenizer can
    read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        lone = text[error.start]
        place = error.start
        raise ValueError(f"{where} has the lone surrogate {lone!r} at character {place}; replace it") from None
    return text


@contextmanager
def collecting(caveats: list[str]) -> Iterator[None]:
    """A context in which the messages of `warn` are also added to a list, each once."""
    token = _CAVEATS.set(caveats)
    try:
        yield
    finally:
        _CAVEATS.reset(token)


def warn(message: str) -> None:
    """Give a `UserWarning` that points at the line outside this package that led here."""
    caveats = _CAVEATS.get()
    if caveats is not None and message not in caveats:
        caveats.append(message)
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame = frame.f_back
        level = level + 1
    warnings.warn(message, stacklevel=level)


def check_mask_rate(mask_rate: float | None) -> None:
    """Raise ValueError for a share of masked tokens that is not between 0 and 1."""
    if mask_rate is not None and not 0 < mask_rate < 1:
        raise ValueError(f"mask_rate must lie between 0 and 1, found {mask_rate}")


def check_mode(mode: str) -> None:
    """Raise ValueError unless dimensions are to be set to `zero` or to their `mean`."""
    check_choice("mode", mode, ("zero", "mean"))


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise ValueError for a value that is not among the known ones."""
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}{meant(value, choices)}; expected one of {', '.join(choices)}")


def check_choices(name: str, values: Sequence[str], choices: Collection[str]) -> None:
    """Raise ValueError unless these are one or more different ones of the choices."""
    if not values or len(set(values)) < len(values) or not set(values) <= set(choices):
        raise ValueError(f"{name} must be one or more different ones of {', '.join(choices)}; found {values!r}")


def refuse(problems: Mapping[str, object]) -> None:
    """Raise ValueError with the first message whose problem exists, that is, whose value is true."""
    for message, problem in problems.items():
        if problem:
            raise ValueError(message)


def check_token_ids(largest: int, d_vocab: int, who: str) -> None:
    """Raise ValueError if the largest token id of `who` ("the text has") has no embedding."""
    if largest >= d_vocab:
        vocabulary = f"the model's vocabulary of {d_vocab}"
        raise ValueError(f"{who} token id {largest}, beyond {vocabulary}; use the tokenizer that belongs to this model")


def check_table(table: pd.DataFrame, name: str, columns: Sequence[str], key: Sequence[str]) -> None:
    """Raise ValueError for a table that lacks these columns, has missing values in them, or has two rows for one key.
    Raise TypeError for anything that is not a table."""
    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"{name} must be a pandas.DataFrame, found {type(table).__name__}")
    if missing := [column for column in columns if column not in table]:
        raise ValueError(f"{name} lacks the columns {', '.join(missing)}; found {', '.join(map(str, table))}")
    if (empty := table[list(columns)].isna().any()).any():
        raise ValueError(f"{name} has missing values in {', '.join(empty[empty].index)}; expected a complete table")
    if (twice := table.duplicated(list(key))).any():
        row = table.loc[twice, list(key)].iloc[0].to_dict()
        raise ValueError(f"{name} has two rows for {row}; give the table of one run, as it was made")


def check_same(subject: str, stored: dict[str, Any], expected: dict[str, Any], *, rel_tol: float = 0.0) -> None:
    """Raise ValueError naming the differences between two JSON-able descriptions; floats may differ by `rel_tol`."""
    old = dict(_leaves(json.loads(json.dumps(stored))))
    new = dict(_leaves(json.loads(json.dumps(expected))))
    differences = []
    for key in sorted({*old, *new}):
        if not _is_same(old.get(key), new.get(key), rel_tol):
            differences.append(f"{key}: {old.get(key)!r:.80}, here {new.get(key)!r:.80}")
    if differences:
        remainder = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise ValueError(f"{subject}: {'; '.join(differences[:3])}{remainder}")


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a JSON value, each with its path."""
    if not value or not isinstance(value, dict | list):
        yield name, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(part, f"{name}.{key}" if name else str(key))


def _is_same(x: Any, y: Any, rel_tol: float) -> bool:
    floats = isinstance(x, float) and isinstance(y, float)
    return math.isclose(x, y, rel_tol=rel_tol) if floats else bool(x == y)


def check_scales(scales: Any) -> None:
    """Raise ValueError unless these are one or more different finite numbers."""
    values = listed(scales)
    numbers = {float(value) for value in values if not isinstance(value, str)}
    if not numbers or len(numbers) < len(values) or not all(map(math.isfinite, numbers)):
        raise ValueError(f"scales must be one or more different finite numbers, found {values!r}")
