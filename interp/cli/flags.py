"""The flags of a command, made from the fields of its options."""

import dataclasses
import glob
import inspect
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import typer
import typer.core

from interp.analyses.declare import Options, kinds, taken, takes_several
from interp.analyses.options import CountsOptions, ModelOptions, PairOptions, TextOptions
from interp.support.paths import (
    HUB_CORPORA,
    HUB_PAIRS,
    bundled_models,
    cached,
    corpus_file,
    is_counts,
    local_path,
    model_directory,
)
from interp.support.words import meant

__all__ = ["Command", "JsonFlag", "ModelArgument", "ModelFlag", "OutFlag", "OverwriteFlag", "RunArgument"]
__all__ += ["Sectioned", "check_named", "complete_corpus", "complete_model", "complete_pairs", "flag", "numbers"]
__all__ += ["pairs_of", "parameter", "parameters", "path", "read", "signed", "with_flags"]

Command: TypeAlias = Callable[..., None]
_SECTIONS = ("Model", "Text", "Question", "Running", "Output")
_OF_TEXT = {*kinds(TextOptions).values(), *kinds(PairOptions).values(), *kinds(CountsOptions).values(), "tasks"}
_LARGEST = 2**63 - 1
_NAMED: dict[str, Callable[[str], Any]] = {
    "corpus": corpus_file, "model": model_directory, "counts": lambda name: is_counts(name) or corpus_file(name)
}  # fmt: skip


class Sectioned(typer.core.TyperCommand):
    """A command whose `--help` has its options in sections: those of the model, of the text …"""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records: dict[str, list[tuple[str, str]]] = {section: [] for section in _SECTIONS}
        for option in self.get_params(ctx):
            if record := option.get_help_record(ctx):
                records[getattr(option, "rich_help_panel", None) or "Running"].append(record)
        for section, lines in records.items():
            if lines:
                with formatter.section(section):
                    formatter.write_dl(lines)


def complete_model(incomplete: str) -> list[str]:
    """Bundled models, those in the hub's cache, and directories."""
    directories = [path for path in _paths(incomplete) if path.endswith("/")]
    return _completions(incomplete, [*bundled_models(), *cached("models"), *directories])


def complete_corpus(incomplete: str) -> list[str]:
    """The bundled text, named corpora, and files."""
    return _completions(incomplete, ["bundled", *HUB_CORPORA, *_paths(incomplete)])


def complete_pairs(incomplete: str) -> list[str]:
    """The bundled minimal pairs, published ones, and files."""
    return _completions(incomplete, ["bundled", *HUB_PAIRS, *_paths(incomplete)])


def _completions(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _paths(incomplete: str) -> list[str]:
    """Files and directories (with a slash) whose names begin like this. As in a shell, hidden ones need a dot."""
    return [path + "/" * os.path.isdir(path) for path in sorted(glob.glob(f"{glob.escape(incomplete)}*"))]


def path(text: str | Path) -> Path:
    """A path on the command line. Many shells leave a `~` after `=` as it is, and read a variable that is not set as
    nothing, which would stand for the working directory."""
    if not str(text):
        raise typer.BadParameter("the path is empty, perhaps because a variable is not set; write . for this directory")
    if "\0" in str(text):
        raise typer.BadParameter(f"the path {str(text)!r} has a NUL character; leave it out")
    return local_path(text)


ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Hub name, local directory, GGUF file or bundled model.", autocompletion=complete_model,
        rich_help_panel="Model",
    ),
]  # fmt: skip
ModelFlag = Annotated[
    str,
    typer.Option(
        help="Hub name, local directory or bundled model.", metavar="NAME", autocompletion=complete_model,
        rich_help_panel="Model",
    ),
]  # fmt: skip
RunArgument = Annotated[
    Path, typer.Argument(help="A run directory, or one that holds several.", metavar="RUN", parser=path)
]
OutFlag = Annotated[
    Path, typer.Option(help="Directory to write to.", metavar="DIR", parser=path, rich_help_panel="Output")
]
OverwriteFlag = Annotated[
    bool, typer.Option("--overwrite", help="Replace earlier results in --out.", rich_help_panel="Output")
]
JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of tables.", rich_help_panel="Output")
]


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def parameter(name: str, kind: Any, help: str, *names: str, **settings: Any) -> inspect.Parameter:
    """A keyword as typer reads it, with a flag of that name or of `names`. It is None if the flag was not given."""
    annotation = Annotated[kind | None, typer.Option(*(names or [flag(name)]), help=help, **_checked(kind), **settings)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def parameters(*options: type, without: Collection[str] = ()) -> list[inspect.Parameter]:
    """A keyword for each field of the options."""
    keywords = []
    for declared in options:
        for item in _shown(declared):
            if item.name not in without:
                keywords.append(_parameter(item, _section(declared, item)))
    return keywords


def _section(options: type, item: dataclasses.Field[Any]) -> str:
    """The section of `--help` that has this option."""
    if options is ModelOptions:
        return "Model"
    is_own = item.name in options.__annotations__ and item.metadata["kind"] not in _OF_TEXT
    return "Question" if is_own else "Text"


def with_flags(*flags: inspect.Parameter) -> Callable[[Command], Command]:
    """Show typer these flags in place of a command's `**values`, before its keyword-only parameters."""

    def decorate(command: Command) -> Command:
        keywords = inspect.signature(command).parameters.values()
        first = [keyword for keyword in keywords if keyword.kind is keyword.POSITIONAL_OR_KEYWORD]
        last = [keyword for keyword in keywords if keyword.kind is keyword.KEYWORD_ONLY]
        return signed(command, [*first, *flags, *last])

    return decorate


def signed(command: Command, arguments: Iterable[inspect.Parameter]) -> Command:
    """A function of keywords, with the signature that typer should see."""
    keywords = [argument.replace(kind=argument.KEYWORD_ONLY) for argument in arguments]
    command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    command.__annotations__ = {argument.name: argument.annotation for argument in keywords}
    return command


def read(options: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, by name, converted to what the options take.

    Raises ValueError for a value that a flag cannot have.
    """
    return {item.name: _read(item, values[item.name]) for item in _shown(options) if values.get(item.name) is not None}


def pairs_of(data: str, declared: type[Options], options: dict[str, Any]) -> Any:
    """Minimal pairs, read as some of the options say. Those options are removed."""
    from interp.corpora import pairs

    return pairs.read(data, **taken(declared, options, ("tasks", "limit", "good", "bad", "task")))


def check_named(declared: type[Options], options: Mapping[str, Any], analysis: str = "") -> None:
    """Raise FileNotFoundError or ValueError if an option names a text, token counts or a model that does not exist.

    Args:
        analysis: the analysis, if its options were given with `--settings`.
    """
    for item in dataclasses.fields(declared):
        value = options.get(item.name)
        names = value if isinstance(value, list) and takes_several(item.type) else [value]
        for name in [name for name in names if isinstance(name, str) and item.metadata["kind"] in _NAMED]:
            try:
                _NAMED[item.metadata["kind"]](name)
            except (FileNotFoundError, ValueError) as error:
                where = f"--settings, {analysis}: {item.name}" if analysis else flag(item.name)
                raise type(error)(f"{where}: {error}") from None


def _shown(options: type) -> list[dataclasses.Field[Any]]:
    """The fields that have a flag, those of the analysis itself first."""
    fields = [item for item in dataclasses.fields(options) if item.metadata["has_flag"]]
    return sorted(fields, key=lambda item: item.name not in options.__annotations__)


def _type(item: dataclasses.Field[Any]) -> tuple[Any, bool, tuple[str, ...]]:
    """What a flag reads (int, float, bool, str, dict or a function of a string), whether it is a list of these, and
    the known names if only certain names are allowed."""
    kind = _single_type(item.metadata["cli"] or item.type)
    several = get_origin(kind) in (Sequence, Iterable)
    if several:
        kind = _single_type(get_args(kind)[0])
    return (str, several, get_args(kind)) if get_origin(kind) is Literal else (kind, several, ())


def _single_type(annotation: Any) -> Any:
    """One type in place of a union: its first part, or float for int and float."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    parts = [part for part in get_args(annotation) if part is not NoneType]
    lists = [part for part in parts if get_origin(part) in (Sequence, Iterable)]
    return lists[0] if lists else float if {int, float} <= set(parts) else parts[0]


def _parameter(item: dataclasses.Field[Any], section: str) -> inspect.Parameter:
    kind, several, choices = _type(item)
    text = item.metadata["help"] + f" Of {','.join(choices)}." * (several and bool(choices))
    if item.default is not None and item.default is not False:
        defaults = item.default if isinstance(item.default, tuple) else [item.default]
        default = ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in defaults)
        text += f"  [default: {default}]"
    if kind is bool:
        opposite = "" if item.default is False else f"/--no-{flag(item.name)[2:]}"
        return parameter(item.name, bool, text, flag(item.name) + opposite, rich_help_panel=section)
    metavar = "A,B,…" if several else "|".join(choices) or {int: "N", float: "X", dict: "JSON"}.get(kind, "TEXT")
    read = kind if kind in (int, float) and not several else str
    return parameter(item.name, read, text, metavar=metavar, rich_help_panel=section)


def _checked(kind: Any) -> dict[str, Any]:
    """How typer reads a number: in the digits 0 to 9, of which Python's own `int` and `float` accept many others."""
    parsers = {int: _whole_number, float: _number}
    return {"parser": parsers[kind]} if kind in parsers else {}


def _whole_number(text: str | int) -> int:
    if not re.fullmatch("[+-]?[0-9]{1,400}", str(text)):
        raise typer.BadParameter(f"{text!r} is not a whole number; write it in digits, such as 100")
    return int(text)


def _number(text: str | float) -> float:
    try:
        if not str(text).isascii() or "_" in str(text):
            raise ValueError
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number; write it in digits, such as 0.5") from None


def _read(item: dataclasses.Field[Any], value: Any) -> Any:
    kind, several, choices = _type(item)
    name = flag(item.name)
    if choices or (several and kind is str):
        return _names(value, name, choices, several=several)
    if several:
        return _whole_numbers(value, name) if kind is int else numbers(value, name)
    if kind is int:
        least = item.metadata["least"] if item.metadata["least"] is not None else -_LARGEST
        if not least <= value <= _LARGEST:
            expected = f"{least:,} or more" if value < least else "a smaller number"
            raise ValueError(f"Invalid value for '{name}': found {value}, expected {expected}")
    if kind is dict:
        return _mapping(value, name)
    return kind(value) if isinstance(value, str) else value


def separated(text: str) -> list[str]:
    """Return the parts of a text between commas."""
    return list(map(str.strip, text.split(",")))


def _names(text: str, name: str, choices: Collection[str], *, several: bool) -> str | list[str]:
    """A name, or several names separated by commas, without repetition and, if there are `choices`, among these."""
    names = separated(text) if several else [text]
    if choices and (unknown := [item for item in names if item not in choices]):
        quantity = "one or more" if several else "one"
        problem = f"{name} {text!r}: unknown {unknown[0]!r}{meant(unknown[0], choices)}"
        raise ValueError(f"{problem}; expected {quantity} of {', '.join(choices)}")
    if len(set(names)) < len(names):
        raise ValueError(f"{name} {text!r} has a name twice; give each name once")
    return names if several else text


def _whole_numbers(text: str, name: str) -> list[int]:
    try:
        return list(map(_whole_number, separated(text)))
    except typer.BadParameter:
        raise ValueError(f"{name} {text!r} is not a list of whole numbers; write for example 0,5") from None


def _mapping(text: str, name: str) -> dict[str, Any]:
    try:
        mapping = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{name} {text!r} is not JSON ({error}); write for example {{"name": [1, 2]}}') from None
    if not isinstance(mapping, dict):
        raise ValueError(f'{name} {text!r} is not a JSON object; write for example {{"name": [1, 2]}}')
    return mapping


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these pairs. Raises ValueError for a key that is there twice."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("it has a key twice")
    return mapping


def numbers(text: str, name: str = "--scales") -> list[float]:
    """`0,0.5,1`, or `0:1:0.1` with both ends included."""
    parts = text.split(":")
    try:
        values = list(map(_number, parts if len(parts) == 3 else separated(text)))
    except typer.BadParameter:
        raise ValueError(f"{name} {text!r} is not a list of numbers; write 0,0.5,1 or 0:1:0.1") from None
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{name} {text!r} has a number that is not finite")
    if len(parts) != 3:
        if len(set(values)) < len(values):
            raise ValueError(f"{name} {text!r} has a number twice; give each number once")
        return values
    start, stop, step = values
    if step <= 0 or stop < start or (stop - start) / step > 1_000:
        raise ValueError(f"{name} {text!r}: expected start:stop:step with start ≤ stop, step > 0, at most 1,000 steps")
    n = round((stop - start) / step)
    if abs(start + n * step - stop) > 1e-9 * max(1.0, abs(stop)):
        raise ValueError(f"{name} {text!r}: {stop:g} is not a whole number of steps of {step:g} away from {start:g}")
    return [round(start + i * step, 12) for i in range(n + 1)]
