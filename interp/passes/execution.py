"""Running analyses side by side: each says what it needs to read, and equal texts are read only once.

An analysis is a generator. It yields `Reading`s, finds their observers filled when it goes on, and returns its result:

    def mean_residual(model, text):
        batches = interp.corpora.batches(model, text)
        observer = MeanResidual(model, layer=0)
        yield [Reading("mean residual", batches, [observer])]
        return observer.mean

    execute(model, mean_residual(model, text))

So the same analysis can run alone, together with others, and in a run that was killed and resumed.
"""

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import filterfalse
from pathlib import Path
from typing import (
    Any,
    Concatenate,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    runtime_checkable,
)

from interp.analyses.declare import Options
from interp.analyses.registry import load, names
from interp.corpora import Batches
from interp.models.identity import reading_once
from interp.models.sites import Model
from interp.passes import distributed
from interp.passes.beginnings import compare_bos
from interp.passes.checkpoint import is_finished
from interp.passes.observers import Observer
from interp.passes.reading import observe, observe_parts, part_of
from interp.passes.shared import Filled, plan, remember
from interp.support import memory
from interp.support.checks import collecting, warn
from interp.support.paths import local_path

__all__ = ["Asked", "Passes", "Reading", "Runs", "asks", "execute", "merged", "runs", "side_by_side"]
__dir__ = __all__.copy

_P = ParamSpec("_P")
_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)
_O = TypeVar("_O", bound=Options)


class Reading(NamedTuple):
    """What an analysis needs to read: batches, the observers that listen, and a name for the progress bar."""

    what: str
    batches: Batches
    observers: Sequence[Observer]


Passes: TypeAlias = Generator[list[Reading], None, _R]
"""An analysis, which yields readings and returns its result."""


def side_by_side(*analyses: Passes[Any]) -> Passes[list[Any]]:
    """Combine several analyses into one that returns the list of their results. All first readings come together, then
    all second readings, and so on."""
    results: list[Any] = [None] * len(analyses)
    going = dict(enumerate(analyses))
    while going:
        readings: list[Reading] = []
        for number, analysis in list(going.items()):
            try:
                readings += next(analysis)
            except StopIteration as end:
                results[number] = end.value
                del going[number]
        if readings:
            yield readings
    return results


@runtime_checkable
class Runs(Protocol[_P, _R_co]):
    """A function that reads what it needs for its result, with the analysis itself as an attribute."""

    def __call__(self, model: Model, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...

    def passes(self, model: Model, *args: _P.args, **kwargs: _P.kwargs) -> Passes[_R_co]: ...


def runs(analysis: Callable[Concatenate[Model, _P], Passes[_R]]) -> Runs[_P, _R]:
    """Turn an analysis into a function that executes it. The analysis itself is the function's attribute `passes`.

    The keywords `progress` and `directory` of the analysis are passed to `execute`.
    """
    signature = inspect.signature(analysis)
    *_, result = get_args(signature.return_annotation)

    @functools.wraps(analysis)
    def read(model: Model, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        options: Any = {name: kwargs[name] for name in ("progress", "directory") if name in kwargs}
        return execute(model, analysis(model, *args, **kwargs), **options)

    read.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    read.passes = analysis  # type: ignore[attr-defined]
    return cast("Runs[_P, _R]", read)


class _Signature(inspect.Signature):
    """A signature of (model, data, keywords) that `help` shows with one argument a line."""

    def __str__(self) -> str:
        model, data, *keywords = map(str, self.parameters.values())
        arguments = ",\n    ".join([model, data, "*", *keywords])
        return f"(\n    {arguments},\n) -> {inspect.formatannotation(self.return_annotation)}"


Asked: TypeAlias = Runs[Concatenate[Any, _P], _R]
"""A function of a model and its data, with declared options."""


def asks(options: Callable[_P, _O]) -> Callable[[Callable[[Model, Any, _O], Passes[_R]]], Asked[_P, _R]]:
    """Turn an analysis of (model, data, options), see `interp.passes.execution`, into a function that takes the options
    as keywords (those common to all analyses last) and returns the result."""

    def decorate(answer: Callable[[Model, Any, _O], Passes[_R]]) -> Asked[_P, _R]:
        shared = {item.name for item in dataclasses.fields(Options)}
        keywords = sorted(inspect.signature(options).parameters.values(), key=lambda option: option.name in shared)
        answer_signature = inspect.signature(answer)
        model, data, _ = answer_signature.parameters.values()
        for option in keywords:
            if option.name in (model.name, data.name):
                problem = f"{options.__name__} has an option {option.name!r}, as {answer.__name__} calls an argument"
                raise ValueError(f"{problem}; give one of the two another name")
        signature = _Signature([model, data, *keywords], return_annotation=answer_signature.return_annotation)

        @functools.wraps(answer)
        def passes(*values: Any, **named: Any) -> Passes[_R]:
            bound = signature.bind(*values, **named)
            bound.apply_defaults()
            analysis = answer(*bound.args, options(**bound.kwargs))  # type: ignore[call-arg]
            return _with_caveats(bound.args[0], bound.kwargs, analysis)

        passes.__signature__ = signature  # type: ignore[attr-defined]
        passes.__doc__ = _described(answer.__doc__ or "", options, keywords)
        return cast("Asked[_P, _R]", runs(passes))

    return decorate


def _with_caveats(model: Model, options: Mapping[str, Any], analysis: Passes[_R]) -> Passes[_R]:
    """The analysis, whose result also records the warnings that were given while it was made, such as that of a text
    which is much more likely after the BOS that is left out, and what was left out because of the model."""
    caveats: list[str] = []
    while True:
        try:
            with collecting(caveats):
                readings = next(analysis)
                for reading in readings:
                    compare_bos(model, reading.batches)
        except StopIteration as end:
            result: Any = end.value
            if caveats and hasattr(result, "provenance"):
                result.provenance["caveats"] = caveats
            name = getattr(result, "analysis", None)
            if name in names() and (left_out := load(name).left_out(model, options)):
                result.provenance["left_out"] = left_out
                for subject, reason in left_out.items():
                    warn(f"no {subject.partition(': ')[2]}: {reason}")
            return cast("_R", result)
        yield readings


def _described(doc: str, options: Any, keywords: Sequence[inspect.Parameter]) -> str:
    """A docstring with the options inserted before the sections on returns, errors and examples."""
    help_of = {item.name: item.metadata["help"] for item in dataclasses.fields(options)}
    lines = [f"        {keyword.name}: {help_of[keyword.name]}" for keyword in keywords]
    head, *tail = re.split(r"(?=\n    (?:Returns|Raises|Examples))", doc, maxsplit=1)
    return "\n".join([f"{head.rstrip()}\n\n    Args:", *lines, "".join(tail)])


def execute(
    model: Model, analysis: Passes[_R], *, progress: bool = True, directory: str | os.PathLike[str] | None = None
) -> _R:
    """Execute an analysis until it has its result. Readings that it yields together, and whose batches are the same
    (their `settings` are equal), share one forward pass, and equal observers are filled once (`interp.passes.shared`).

    Args:
        progress: whether to show a progress bar for each pass.
        directory: a directory for the checkpoints of all passes. A run that was killed and is started again with the
            same directory resumes from it and gives the same result. Remove it when the result is saved.

    With several processes (`interp.passes.distributed`) each pass is divided among them, and its sums are reduced. A
    part that has no directory to leave its sums in reads everything.

    Raises the errors of the analysis, and ValueError for a directory of another run (see `interp.observe`).
    """
    number = 0
    filled: list[Filled] = []
    with reading_once():
        while True:
            try:
                readings = next(analysis)
            except StopIteration as end:
                return end.value
            for title, batches, observers in merged(readings):
                number += 1
                path = None if directory is None else local_path(directory) / f"pass-{number}.safetensors"
                needed = plan(model, batches, observers, filled)
                if needed.reading:
                    _read(model, Reading(f"pass {number}, {title}", batches, needed.reading), path, progress)
                needed.copy()
                filled += remember(batches, needed.reading)
                memory.give_back()


def _read(model: Model, reading: Reading, path: Path | None, progress: bool) -> None:
    """Run one pass, either completely or this process's part, merged with what the others have read."""
    title, batches, observers = reading
    options: dict[str, Any] = {"what": title, "progress": progress}
    here = distributed.part()
    parts = [] if path is None else distributed.parts_of(path)
    if here.of > 1 and (here.grouped or parts):
        mine = None if path is None else here.name(path)
        observe(model, part_of(batches, here.index, here.of), *observers, checkpoint=mine, **options)
        distributed.meet(list(filterfalse(is_finished, parts)))
    if here.grouped:
        for observer in observers:
            observer.all_reduce()
    elif parts:
        observe_parts(model, batches, *observers, checkpoints=parts, **options)
    else:
        observe(model, batches, *observers, checkpoint=path, **options)


def merged(readings: list[Reading]) -> Iterator[Reading]:
    """Merge all readings of the same batches, in order of appearance."""
    for reading in readings:
        settings = reading.batches.settings
        group = [other for other in readings if other.batches.settings == settings]
        if group[0] is reading:
            title = " + ".join(dict.fromkeys(other.what for other in group))
            observers: list[Observer] = []
            for other in group:
                observers.extend(other.observers)
            yield Reading(title, reading.batches, observers)
