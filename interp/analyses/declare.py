"""The declaration of an analysis: its options, each stated once, and where its code is. Imports nothing heavy.

    @option_class
    class FrequencyOptions(TextOptions):
        scales: Sequence[float] = option(default=(0.0, 0.5, 1.0), help="The λ to scale each bias by.")

The keywords of the function, with their types, and the flags of its command are made from the options.
"""

import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from numbers import Real
from pkgutil import resolve_name
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from interp.support.choices import listed
from interp.support.words import meant

__all__ = ["Analysis", "Options", "option", "option_class"]
__dir__ = __all__.copy

if TYPE_CHECKING:
    from interp.results.result import Result

_T = TypeVar("_T")
Reads: TypeAlias = Literal["text", "masked text", "prompts", "pairs"]
"""What an analysis reads: text, text in which an encoder predicts masked tokens, prompts, or minimal pairs."""
Kind: TypeAlias = Literal[
    "corpus", "counts", "model", "seed",
    "limit", "column", "separator", "bos", "layout", "context", "batch_size",
    "tasks", "good", "bad", "task",
    "n", "prompt_tokens", "new_tokens",
]  # fmt: skip
"""What an option is to commands and reports, which know none by its name.

They look for a text, token counts and a model before they load anything. A report gives its own counts and seed to the
options of these kinds. The other kinds are arguments of the functions that read text, pairs and prompts:
`interp.corpora.batches`, `interp.corpora.pairs.load` and `interp.generation.prompts`.
"""


def option(
    default: Any,
    help: str,
    *,
    kind: Kind | None = None,
    least: int | None = None,
    has_flag: bool = True,
    cli: Any = None,
) -> Any:
    """A field of `Options`.

    Args:
        default: the default in Python.
        help: one line of help.
        kind: what commands and reports do with it, whatever its name is. None leaves it to the analysis alone.
        least: the smallest whole number that is allowed.
        has_flag: whether the command has a flag for it too.
        cli: how the command reads it, if not as the annotation says: a type, or a function of a string.

    Raises ValueError for an unknown kind.

    Examples:
        >>> @option_class
        ... class NeighbourOptions(Options):
        ...     k: int = option(default=3, help="How many neighbours.", least=1)
        >>> NeighbourOptions().k
        3
    """
    if kind not in (None, *get_args(Kind)):
        raise ValueError(f"an option cannot be of kind {kind!r}; expected one of {', '.join(get_args(Kind))}, or none")
    metadata = {"help": help, "kind": kind, "least": least, "has_flag": has_flag, "cli": cli}
    return field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
def option_class(cls: type[_T]) -> type[_T]:
    """Make a frozen dataclass of keywords from a class of options. Editors then show their types and defaults.

    Examples:
        >>> @option_class
        ... class NeighbourOptions(Options):
        ...     k: int = option(default=3, help="How many neighbours.", least=1)
        >>> NeighbourOptions(k=5).k
        5
    """
    return dataclass(frozen=True, kw_only=True)(cls)


def kinds(options: "type[Options]") -> dict[str, str]:
    """The kinds of those options that have one, by name.

    Examples:
        >>> @option_class
        ... class SampleOptions(Options):
        ...     draws: Several[int] = option(default=(0,), help="Seeds for the sample.", kind="seed")
        ...     seed: str = option(default="w0", help="Token to begin with.")
        >>> kinds(SampleOptions)
        {'draws': 'seed'}
    """
    return {item.name: item.metadata["kind"] for item in dataclasses.fields(options) if item.metadata["kind"]}


def named(options: "type[Options]", values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by kind, under the names of the options of these kinds.

    Examples:
        >>> from interp.analyses.probing.options import ProbingOptions
        >>> named(ProbingOptions, {"seed": 3, "counts": "wikipedia"})
        {'seeds': 3}
    """
    return {name: values[kind] for name, kind in kinds(options).items() if kind in values}


def taken(options: "type[Options]", values: dict[str, Any], chosen: Collection[str]) -> dict[str, Any]:
    """The values of those options in a dict that are of these kinds, by kind. They are removed from the dict.

    Examples:
        >>> from interp.analyses.probing.options import ProbingOptions
        >>> values = {"limit": 20, "seeds": [0]}
        >>> taken(ProbingOptions, values, ["limit", "tasks"]), values
        ({'limit': 20}, {'seeds': [0]})
    """
    return {kind: values.pop(name) for name, kind in kinds(options).items() if kind in chosen and name in values}


@option_class
class Options:
    """The options of an analysis: keywords in Python, flags on the command line."""

    progress: bool = option(default=True, help="Show a progress bar.", has_flag=False)
    directory: str | os.PathLike[str] | None = option(
        default=None, help="Directory for checkpoints. A run that was killed resumes from them.", has_flag=False
    )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Those of the values that are options of this class and do not depend on the model.

        Examples:
            >>> Options.of({"progress": False, "layers": [0]}).progress
            False
        """
        names = {item.name for item in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names and not callable(value)})

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Iterator) or (isinstance(value, str | Real) and takes_several(item.type)):
                object.__setattr__(self, item.name, tuple(listed(value)))


def takes_several(annotation: Any) -> bool:
    """Whether an option of this type is a list of values.

    Examples:
        >>> takes_several(Several[int] | None), takes_several(int)
        (True, False)
    """
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return any(get_origin(part) in (Sequence, Iterable) for part in parts)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The declaration of an analysis. Its command, its place in `interp report` and its section are made from it.

    Functions and classes are given as `"module:name"`, so that they are imported only when they are needed.

    Args:
        name: the name of the command, and of the folder of the result.
        title: the title of the section on a page.
        question: the question it answers. None if it belongs to the question of another analysis, `part_of`.
        help: one line of help for the command.
        reads: what the function takes after the model.
        options: the class of the options.
        answer: the function, made by `interp.passes.execution.asks`.
        result: the class that the function returns, which names its page.
        check: options → None. Raises ValueError or TypeError for values that are impossible for every model. Called by
            the function first of all, by the command before it loads the model, and by `--dry-run`.
        impossible: (model, and any of the options, by name) → the reason why the question cannot be asked of this
            model with these options, or None. See `left_out`.
        unsuited: (model, batches of the text or `PairTable`, and any of the options, by name) → the reason why the
            question cannot be asked of what is read, or None. The function raises ValueError with it; a report leaves
            the question out.
        lacks: (model, and any of the options, by name) → {part: reason} of what the result of a question that can be
            asked lacks, because of the model. See `left_out`.
        only_more: whether it is no part of a report without `--more`, unless `--settings` has options for it.
        in_report: options that `interp report` sets for this analysis.
        more: options that `interp report --more` sets in addition: further analyses, which are off by default.
        cost: (name of a model, what is read or None, options) → `interp.passes.budget.Cost`, for `--dry-run`. The
            options are those of the analysis and of the model that were given, by name. None means one pass that holds
            nothing.
        paper: the options that `--paper` sets, under the names of the flags. Functions are called with the model.
        paper_help: what `--paper` stands for.
    """

    name: str
    title: str
    help: str
    reads: Reads
    options: type[Options]
    answer: str
    result: str
    question: str | None = None
    part_of: str | None = None
    check: str | None = None
    impossible: str | None = None
    unsuited: str | None = None
    lacks: str | None = None
    only_more: bool = False
    cost: str | None = None
    in_report: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)
    paper_help: str = ""

    @property
    def group(self) -> str:
        """The name of the analysis whose question this one belongs to."""
        return self.part_of or self.name

    def reported(self, *, more: bool, settings: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
        """The options of this analysis in `interp report`, with or without `--more`, and with `--settings`.

        Raises ValueError for settings that are not options of this analysis, and the errors of its `check`.
        """
        own_settings = (settings or {}).get(self.name, {})
        names = sorted(item.name for item in dataclasses.fields(self.options))
        if not isinstance(own_settings, Mapping) or not set(own_settings) <= set(names):
            value = repr(own_settings)
            if isinstance(own_settings, Mapping):
                unknown = next(name for name in own_settings if name not in names)
                value = f"{unknown!r}{meant(unknown, names)}"
            raise ValueError(f"settings of {self.name} have {value}; expected options by name: {', '.join(names)}")
        options = dict(self.in_report)
        options.update(self.more if more else {})
        options.update(own_settings)
        if own_settings:
            self.check_options(options)
        return options

    def is_reported(self, *, more: bool, settings: Mapping[str, Mapping[str, Any]] | None) -> bool:
        """Whether `interp report` asks it, with or without `--more`, and with `--settings`."""
        return more or not self.only_more or self.name in (settings or {})

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise the errors of `check` for the options that do not depend on the model (`paper`)."""
        if self.check:
            resolve_name(self.check)(self.options.of(options))

    def left_out(self, model: Any, options: Mapping[str, Any]) -> dict[str, str]:
        """What cannot be asked of a model with these options, and why: `{name: reason}` if it is the whole question,
        else `{"name: part": reason}` for each part that the result lacks.

        Examples:
            >>> from interp.analyses.attention.options import ANALYSIS
            >>> from interp.testing import toy_decoder
            >>> ANALYSIS.left_out(toy_decoder(), {})
            {}
        """

        if reason := _statement(self.impossible, options, model):
            return {self.name: reason}
        absent = {}
        for part, reason in (_statement(self.lacks, options, model) or {}).items():
            absent[f"{self.name}: {part}"] = reason
        return absent

    def why_unsuited(self, model: Any, data: Any, options: Mapping[str, Any]) -> str | None:
        """Why the question cannot be asked of a text or of pairs, or None if it can."""
        reason: str | None = _statement(self.unsuited, options, model, data)
        return reason

    @property
    def kind(self) -> "type[Result]":
        result: type[Result] = resolve_name(self.result)
        return result


def _statement(place: str | None, options: Mapping[str, Any], *subjects: Any) -> Any:
    """What a declared function says of a model or a text and of those options that it takes; None if there is none."""
    if place is None:
        return None
    function = resolve_name(place)
    return function(*subjects, **{name: options[name] for name in signature(function).parameters if name in options})
