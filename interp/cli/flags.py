"""Flags of a command, from the fields of its options."""

import dataclasses
import glob
import inspect
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from interp.paths import HUB_CORPORA, bundled_models, cached

_LARGEST = 2**63 - 1


def complete_model(incomplete: str) -> list[str]:
    """Bundled models, those in the hub's cache, and directories."""
    directories = [path for path in _paths(incomplete) if path.endswith("/")]
    return [name for name in (*bundled_models(), *cached("models"), *directories) if name.startswith(incomplete)]


def complete_corpus(incomplete: str) -> list[str]:
    """The bundled text, named corpora, and files."""
    return [name for name in ("bundled", *HUB_CORPORA, *_paths(incomplete)) if name.startswith(incomplete)]


def _paths(incomplete: str) -> list[str]:
    """Files, and directories with a slash, that begin like this; as a shell does, hidden ones only when asked for."""
    found = [path + "/" * Path(path).is_dir() for path in sorted(glob.glob(f"{glob.escape(incomplete)}*"))]
    return [path for path in found if not path.startswith(".") or incomplete.startswith(".")]


ModelFlag = Annotated[
    str,
    typer.Option(
        help="Hub name, local directory or bundled model.",
        metavar="NAME",
        show_default=False,
        autocompletion=complete_model,
    ),
]
OutFlag = Annotated[Path, typer.Option(help="Directory to write to.", metavar="DIR", show_default=False)]
OverwriteFlag = Annotated[bool, typer.Option("--overwrite", help="Replace earlier results in --out.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def parameters(options: type, *, without: Collection[str] = ()) -> list[inspect.Parameter]:
    """A keyword for each field, as typer reads them: None where the flag was not given."""
    return [_parameter(item) for item in _shown(options) if item.name not in without]


def _shown(options: type) -> list[dataclasses.Field[Any]]:
    """The fields with a flag, an analysis's own first."""
    fields = [item for item in dataclasses.fields(options) if item.metadata["has_flag"]]
    return sorted(fields, key=lambda item: item.name not in options.__annotations__)


def parameter(name: str, annotation: Any, *default: Any) -> inspect.Parameter:
    """A keyword; without a default it must be given."""
    value = default[0] if default else inspect.Parameter.empty
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=annotation)


def _parameter(item: dataclasses.Field[Any]) -> inspect.Parameter:
    kind, known = _kind(item)
    names = [flag(item.name)]
    given: dict[str, Any] = {"help": _help(item, known), "show_default": False, "metavar": _metavar(kind, known)}
    if kind is bool:
        del given["metavar"]
        names = [flag(item.name) if item.default is False else f"{flag(item.name)}/--no-{item.name.replace('_', '-')}"]
    read = kind if kind in (int, float, bool) else str
    return parameter(item.name, Annotated[read | None, typer.Option(*names, **given)], None)


def _metavar(kind: Any, known: Sequence[str]) -> str:
    if kind is Literal:
        return "|".join(known)
    return {int: "N", float: "X", dict: "JSON"}.get(kind, "A,B,…" if get_origin(kind) is list else "TEXT")


def _kind(item: dataclasses.Field[Any]) -> tuple[Any, tuple[str, ...]]:
    """What a flag reads: int, float, bool, str, dict, a function of a string, or a list of one of the first two or of
    names; and the names that are known."""
    annotation = item.metadata["cli"] or item.type
    options = [one for one in get_args(annotation) if one is not NoneType]
    if get_origin(annotation) in (Union, UnionType):
        annotation = float if set(options) == {int, float} else options[0]
    if get_origin(annotation) is Literal:
        return Literal, get_args(annotation)
    if get_origin(annotation) in (Sequence, Iterable):
        (of,) = get_args(annotation)
        if get_origin(of) is Literal:
            return list[str], get_args(of)
        return {int: list[int], str: list[str]}.get(of, list[float]), ()
    return annotation, ()


def _help(item: dataclasses.Field[Any], known: Sequence[str]) -> str:
    text = item.metadata["help"]
    if known and get_origin(_kind(item)[0]) is list:
        text += f" Of {','.join(known)}."
    if item.default is None or item.default is False:
        return text
    shown = item.default if isinstance(item.default, tuple) else [item.default]
    values = ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in shown)
    return f"{text}  [default: {values}]"


def read(options: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, as the options take them, by name.

    Raises ValueError for what a flag cannot be.
    """
    return {item.name: _read(item, given[item.name]) for item in _shown(options) if given.get(item.name) is not None}


def _read(item: dataclasses.Field[Any], value: Any) -> Any:
    kind, known = _kind(item)
    name = flag(item.name)
    if kind is int:
        least = item.metadata["least"]
        if not (least if least is not None else -_LARGEST) <= value <= _LARGEST:
            expected = f"{least} or more" if value < 0 or least is None or value < least else f"{_LARGEST} or less"
            raise ValueError(f"Invalid value for '{name}': found {value}, expected {expected}")
    if kind is Literal:
        return one_of(value, name, known)
    if kind is dict:
        return _mapping(value, name)
    if kind == list[str]:
        return items(value, name, known or None)
    if kind == list[int]:
        return _whole_numbers(value, name)
    if kind == list[float]:
        return numbers(value, name)
    if item.name == "separator":
        return value.replace("\\n", "\n").replace("\\t", "\t")
    return kind(value) if isinstance(value, str) else value


def _list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


def one_of(text: str, name: str, known: Sequence[str]) -> str:
    if text not in known:
        raise ValueError(f"{name} {text!r}: unknown {text!r}; expected one of {', '.join(known)}")
    return text


def items(text: str, name: str, known: Sequence[str] | None = None) -> list[str]:
    """Names separated by commas, each once and, where they are given, of the known ones."""
    found = _list(text)
    for item in found:
        if known is not None and item not in known:
            raise ValueError(f"{name} {text!r}: unknown {item!r}; expected of {', '.join(known)}")
    if len(set(found)) < len(found):
        raise ValueError(f"{name} {text!r} names one twice")
    return found


def _whole_numbers(text: str, name: str) -> list[int]:
    if not all(item.isdecimal() for item in _list(text)):
        raise ValueError(f"{name} {text!r} is not a list of numbers; write 0,5")
    return [int(item) for item in _list(text)]


def _mapping(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f'{name} {text!r} is not JSON ({error}); write {{"name": [1, 2]}}') from None
    if not isinstance(found, dict):
        raise ValueError(f'{name} {text!r} is no JSON object; write {{"name": [1, 2]}}')
    return found


def numbers(text: str, name: str = "--scales") -> list[float]:
    """`0,0.5,1`, or `0:1:0.1` with both ends included."""
    parts = text.split(":")
    try:
        found = [float(item) for item in (parts if len(parts) == 3 else _list(text))]
    except ValueError:
        raise ValueError(f"{name} {text!r} is not a list of numbers; write 0,0.5,1 or 0:1:0.1") from None
    if not all(map(math.isfinite, found)):
        raise ValueError(f"{name} {text!r} has a number that is not finite")
    if len(parts) != 3:
        if len(set(found)) < len(found):
            raise ValueError(f"{name} {text!r} names a number twice")
        return found
    start, stop, step = found
    if step <= 0 or stop < start or (stop - start) / step > 1_000:
        raise ValueError(
            f"{name} {text!r}: expected start:stop:step with start ≤ stop, a step above 0 and at most 1,000 steps"
        )
    n = round((stop - start) / step)
    if abs(start + n * step - stop) > 1e-9 * max(1.0, abs(stop)):
        raise ValueError(f"{name} {text!r}: {stop:g} is not a whole number of steps of {step:g} away from {start:g}")
    return [round(start + i * step, 12) for i in range(n + 1)]


def with_signature(function: Callable[..., None], name: str, help: str, given: Sequence[inspect.Parameter]) -> Any:
    """A function of keywords as typer wants to see it; those without a default come first."""
    ordered = sorted(given, key=lambda one: one.default is not inspect.Parameter.empty)
    function.__name__, function.__doc__ = name, help
    function.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in ordered}
    return function
