"""What an analysis declares: its options, each once, and where the rest of it is. Imports nothing heavy.

    @dataclass(frozen=True, kw_only=True)
    class FrequencyOptions(TextOptions):
        scales: Sequence[float] = option((0.0, 0.5, 1.0), "The λ to scale each bias by.")

From the options come the keywords of the function, with their types, and the flags of its command.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from numbers import Real
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

__all__ = ["Analysis", "Options", "Several", "listed", "option"]

_T = TypeVar("_T")
Several: TypeAlias = _T | Sequence[_T]
"""One of something, or a list of them; in an option it becomes a tuple."""

if TYPE_CHECKING:
    from interp.results import Result

Reads: TypeAlias = Literal["text", "masked text", "prompts", "pairs"]
"""What an analysis reads: text, text of which an encoder predicts masked tokens, beginnings of texts, minimal pairs."""
Layout: TypeAlias = Literal["packed", "texts"]
"""Rows of a batch: texts joined, or one text each."""
Bias: TypeAlias = Literal["ln", "fc", "last"]
"""The biases of a prediction head: that of its last norm, of the dense layer before it (BERT), of the logits."""
Direction: TypeAlias = Literal["mean", "slope"]
"""Directions of a prediction head's input: its mean, and the slope of log-probability on the output embeddings."""
Backend: TypeAlias = Literal["hooked", "bridge"]
"""TransformerLens' own implementation of a model, or that of transformers in a `TransformerBridge`."""
Mode: TypeAlias = Literal["zero", "mean"]
"""What a removed dimension is set to."""


def listed(values: Any) -> list[Any]:
    """A list of what is given: of several things, or of one name or number.

    Examples:
        >>> listed("ln"), listed(3), listed((1, 2))
        (['ln'], [3], [1, 2])
    """
    return [values] if isinstance(values, str | Real) else list(values)


def option(default: Any, help: str, *, least: int | None = None, has_flag: bool = True, cli: Any = None) -> Any:
    """A field of `Options`.

    Args:
        default: as in Python.
        help: one line.
        least: the smallest whole number that is allowed.
        has_flag: whether the command has it too.
        cli: what the command reads, where it is not the annotation: a type, or a function of a string.

    Examples:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class NeighbourOptions(Options):
        ...     k: int = option(3, "How many neighbours.", least=1)
        >>> NeighbourOptions().k
        3
    """
    return field(default=default, metadata={"help": help, "least": least, "has_flag": has_flag, "cli": cli})


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of an analysis: keywords in Python, flags on the command line."""

    progress: bool = option(True, "Show a progress bar.", has_flag=False)
    directory: str | os.PathLike[str] | None = option(
        None, "Keep checkpoints here; a run that was killed resumes from them.", has_flag=False
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Iterator) or (isinstance(value, str | Real) and _takes_several(item.type)):
                object.__setattr__(self, item.name, tuple(listed(value)))


def _takes_several(annotation: Any) -> bool:
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return any(get_origin(one) in (Sequence, Iterable) for one in parts)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The declaration of an analysis: from it come its command, its place in `interp report`, and its section.

    Functions and classes are named as `"module:name"`, so that they are imported only when they are needed.

    Args:
        name: of the command and of the folder of its result.
        title: of its section of a page.
        question: what it answers; None where it belongs to the question of another analysis, `part_of`.
        help: of the command, in one line.
        reads: what comes after the model.
        options: the class of its options.
        answer: the function, made by `interp.run.passes.asks`.
        result: the class that it returns.
        section: result → `Section`, which has the definitions too.
        sides: {run: result} → `Sides`, for `interp compare`; None where it is left out there.
        impossible: model, and those of the options that it takes by name → why the question cannot be asked so, or
            None; for `interp report`.
        in_report: options of its own in `interp report`.
        more: options of its own that `interp report --more` sets besides: its further analyses, off by default.
        cost: (name of a model, what is read or None, options) → `interp.run.budget.Cost`, for `--dry-run`; the options
            are those that were given, of the analysis and of the model, by name. None for one pass that holds nothing.
        paper: the options that `--paper` sets, under the names of the flags; a function is called with the model.
        paper_help: what `--paper` stands for.
    """

    name: str
    title: str
    help: str
    reads: Reads
    options: type[Options]
    answer: str
    result: str
    section: str
    question: str | None = None
    part_of: str | None = None
    sides: str | None = None
    impossible: str | None = None
    cost: str | None = None
    in_report: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)
    paper_help: str = ""

    @property
    def group(self) -> str:
        """The analysis under whose question it stands."""
        return self.part_of or self.name

    def reported(self, *, more: bool, settings: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
        """The options of its own in `interp report`, with `--more` or without, and with `--settings`."""
        return {**self.in_report, **(self.more if more else {}), **(settings or {}).get(self.name, {})}

    @property
    def kind(self) -> "type[Result]":
        found: type[Result] = find(self.result)
        return found


def find(place: str) -> Any:
    """What `"module:name"` names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
