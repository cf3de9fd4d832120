"""The list of all analyses. Other packages add theirs through the entry point `interp.analyses`."""

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from interp.analyses.declare import Analysis, Options, option, option_class
from interp.analyses.options import PAIRS, CountsOptions, ModelOptions, PairColumns, Pairs, TextOptions
from interp.results.earlier import saved_in
from interp.support.disk import check_own, remove, result_names
from interp.support.paths import local_path

if TYPE_CHECKING:
    from interp.results.result import Result

__all__ = ["BUNDLED_PAIRS", "GROUP", "OWN", "RESERVED", "ReportOptions", "analyses", "left_out", "load", "load_result"]
__all__ += ["names", "others", "remove_others", "saved_names"]
__dir__ = __all__.copy

GROUP = "interp.analyses"
BUNDLED_PAIRS = 100
"""Bundled pairs of each task that a report reads: enough for 60 to fit on."""
OWN = ("frequency", "generation", "controls", "attention", "sinks", "encoding", "directions", "probing", "units")
_OF_RESULTS = (
    "weight_hash architecture attention n_layers n_parameters active_hooks versions commit date caveats left_out "
    "quantised_from"
)
_OF_COMMANDS = "model corpus out paper dry_run measure overwrite as_json json shard config command job help"
RESERVED = dict.fromkeys(_OF_RESULTS.split(), "results have")
RESERVED.update(dict.fromkeys(_OF_COMMANDS.split(), "commands have"))
for _option in fields(ModelOptions):
    RESERVED[_option.name] = "commands have"
for _option in fields(Options):
    RESERVED[_option.name] = "every analysis has"
"""Names that an option of an analysis cannot have, and what has them already. If it reads pairs, `pairs` is another."""
_COMMANDS = ("report", "merge", "show", "page", "figures", "compare", "unigrams", "models", "corpora")


@cache
def others() -> dict[str, EntryPoint]:
    """The analyses of other packages, not yet imported, by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


@cache
def load(name: str) -> Analysis:
    """An analysis by its name.

    Raises ValueError if an analysis of another package cannot be imported, is not an `Analysis`, or has a name that is
    already taken, as one of its options may have.
    """
    entry = others().get(name)
    if entry is None:
        bundled: Analysis = resolve_name(f"interp.analyses.{name}.options:ANALYSIS")
        return bundled
    source = f"the package {entry.dist.name!r}" if entry.dist else f"the entry point {entry.value!r}"
    subject = f"the analysis {name!r} of {source}"
    if name in (*OWN, *_COMMANDS) or len(entry_points(group=GROUP, name=name)) > 1:
        raise ValueError(f"two analyses or commands are called {name!r}, one of {source}; uninstall it, or rename it")
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise ValueError(f"{subject} needs a name of lower-case letters, digits and _")
    try:
        analysis = entry.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{subject} cannot be imported ({reason}); fix or uninstall it") from error
    if not isinstance(analysis, Analysis) or analysis.name != name:
        description = (
            f"an Analysis called {analysis.name!r}" if isinstance(analysis, Analysis) else type(analysis).__name__
        )
        raise ValueError(f"{subject} is {description}, expected an interp.analyses.declare.Analysis of that name")
    _check_options(subject, analysis)
    return analysis


def _check_options(subject: str, analysis: Analysis) -> None:
    """Raise ValueError for an option with the name of something else."""
    reserved = RESERVED | ({"pairs": "commands have"} if analysis.reads == "pairs" else {})
    for item in fields(analysis.options):
        if item.name in reserved and item not in fields(Options):
            reason = f"{reserved[item.name]} something of their own that is called so"
            raise ValueError(f"{subject} has an option {item.name!r}, but {reason}; give the option another name")


def names() -> tuple[str, ...]:
    """The names of all analyses, in the order of the page."""
    return tuple(dict.fromkeys((*OWN, *others())))


def analyses() -> dict[str, Analysis]:
    """All analyses, by name and in the order of the page. Raises ValueError if one cannot be used (see `load`)."""
    return {name: load(name) for name in names()}


def left_out(model: Any, options: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, str]:
    """What cannot be asked of a model, and why: an analysis, by its name, or a part of one, as `"name: part"`.

    This is the list that reports, pages and `--dry-run` show.

    Args:
        options: those of each analysis to ask, by name. Default: all analyses, with their defaults.

    Examples:
        >>> from interp.testing import toy_encoder
        >>> why = left_out(toy_encoder())
        >>> list(why)[:2], why["generation"]
        (['generation', 'sinks: writers'], 'an encoder (BERT) does not continue text; expected a causal model')
    """
    reasons: dict[str, str] = {}
    for name, analysis in analyses().items():
        if options is None or name in options:
            reasons |= analysis.left_out(model, {} if options is None else options[name])
    return reasons


def saved_names(run: Path) -> list[str]:
    """The names of the results in the directory of a run, in the order of the page."""
    return [name for name in names() if saved_in(run, name)]


def remove_others(run: Path, results: Collection[str]) -> None:
    """Remove the results of earlier runs from a directory, except those of these analyses.

    Raises FileExistsError for one in which there is anything that interp did not write.
    """
    for name in set(names()) - set(results):
        if (run / name).exists():
            check_own(run / name, result_names)
            remove(run / name)


def load_result(directory: str | os.PathLike[str], analysis: str | None = None) -> "Result":
    """Load a saved result, from the directory of a run or from the result's own folder in it.

    Args:
        analysis: which result to load if the run has several: `"frequency"`, `"attention"`, ….

    Raises FileNotFoundError if there is no result. Raises ValueError if there are several and none is named, or if the
    result cannot be read.

    Examples:
        >>> import interp, tempfile
        >>> from interp.testing import toy_decoder
        >>> classes = {"first": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     saved = study.save(directory)
        ...     print(type(load_result(directory)).__name__, type(load_result(saved)).__name__)
        AttentionStudy AttentionStudy
    """
    run = local_path(directory)
    if (run / "result.json").is_file():
        analysis = analysis or run.resolve().name
        run = run.resolve().parent
    saved = saved_names(run)
    loadable = [name for name in saved if (run / name / "result.json").is_file()]
    if analysis is None and len(loadable) > 1:
        raise ValueError(f"{run} holds {', '.join(loadable)}; say which: load_result({str(run)!r}, {loadable[0]!r})")
    if not saved or analysis not in (None, *saved):
        inside = sorted({path.parts[-3] for path in run.glob("*/*/result.json")})
        contents = f"its runs are {', '.join(inside)}" if inside else "found none"
        if not run.is_dir():
            contents = "there is no such directory"
        elif saved:
            contents = f"found {', '.join(saved)}"
        raise FileNotFoundError(f"{run} holds no result{f' of {analysis}' if analysis else ''}; {contents}")
    return load(analysis or loadable[0]).kind.load(run)


@option_class
class ReportOptions(PairColumns, CountsOptions, TextOptions):
    pairs: Pairs = option(default="bundled", help=PAIRS, cli=str)
    pair_limit: int | None = option(
        default=None,
        help="Read only the first N pairs of each task. Default: 100 for bundled pairs, otherwise all.",
        least=10,
    )
    seed: int = option(default=0, help="Seed for masks, samples, null distributions and probes.", kind="seed", least=0)
    more: bool = option(
        default=False, help="Also run what each analysis offers beyond the four papers. This takes longer."
    )
    settings: Mapping[str, Mapping[str, Any]] | None = option(
        default=None, help='Options for single analyses, such as {"frequency": {"scales": [0, 1]}}.', cli=dict
    )
    out: str | os.PathLike[str] | None = option(
        default=None,
        help="Directory to write the results and their page to. Default: nothing is written.",
        has_flag=False,
    )
    overwrite: bool = option(default=False, help="Replace earlier results in `out`.", has_flag=False)
    finished: Callable[[Any], None] | None = option(
        default=None, help="Function that is called with each result as soon as there is one.", has_flag=False
    )
