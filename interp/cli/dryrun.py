"""`--dry-run`: estimates what a command needs from a model's config and headers; `--measure` also runs one batch."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interp.analyses.declare import Analysis, Options, kinds, named, taken
from interp.analyses.options import ModelOptions, PairColumns
from interp.analyses.registry import BUNDLED_PAIRS, ReportOptions, analyses
from interp.cli import flags
from interp.cli.errors import TOO_LARGE
from interp.cli.screen import echo
from interp.support.choices import Backend
from interp.support.memory import shown
from interp.support.paths import corpus_file, model_directory

__all__ = ["DryRunFlag", "MeasureFlag", "budget_of", "budget_of_all", "check_measure", "duration", "say_all"]
__all__ += ["say_one"]

if TYPE_CHECKING:
    from interp.passes.budget import Budget, Cost
    from interp.passes.measure import Measured

DryRunFlag = Annotated[
    bool, typer.Option("--dry-run", help="Only estimate memory and work, from the model's config and file headers.")
]
MeasureFlag = Annotated[bool, typer.Option("--measure", help="With --dry-run: also load the model and time one batch.")]

_UNDECLARED = "interp.passes.budget:cost"


def check_measure(data: str | None, *, dry_run: bool, measure: bool) -> None:
    """Raise ValueError for `--measure` without `--dry-run`, or with nothing to read."""
    if measure and not dry_run:
        raise ValueError("--measure needs --dry-run; add --dry-run, or leave --measure out")
    if measure and data is None:
        raise ValueError("--measure reads a batch of text; name a text with --corpus (or --pairs)")


def say_one(
    analysis: Analysis,
    name: str,
    data: str | None,
    options: Mapping[str, Any],
    model_options: Mapping[str, Any],
    *,
    measure: bool,
    as_json: bool,
) -> None:
    """Print what one analysis of a model would need, given its options and those of the model (`model_options`)."""
    budget = budget_of(analysis, name, data, dict(options, **model_options))
    left_out = _left_out(name, model_options, [(analysis, options)])
    if left_out and analysis.name in left_out:
        raise ValueError(f"{name}: {left_out[analysis.name]}")
    measured = {name: _measured(analysis, name, str(data), options, model_options)} if measure else {}
    _show({name: budget}, {name: left_out}, measured, as_json=as_json)


def say_all(
    names: Sequence[str],
    corpus: str,
    options: Mapping[str, Any],
    model_options: Mapping[str, Any],
    *,
    measure: bool,
    as_json: bool,
) -> None:
    """Print what a report on each model would need."""
    requests = [(analysis, _in_report(analysis, options)) for analysis in _reported(options)]
    left_out = {}
    budgets = {}
    measured = {}
    for name in names:
        left_out[name] = _left_out(name, model_options, requests)
        budgets[name] = budget_of_all(name, corpus, dict(options, **model_options), left_out[name] or {})
        if measure:
            measured[name] = _measured(None, name, corpus, options, model_options)
    _show(budgets, left_out, measured, as_json=as_json)


def budget_of(analysis: Analysis, name: str, data: str | None, options: Mapping[str, Any]) -> "Budget":
    """What one analysis of a model needs, given its options and those of the model."""
    model_directory(name, weights=False)
    if data is not None and analysis.reads != "pairs":
        corpus_file(data)
    analysis.check_options(_known(options, analysis.options))
    return _budget(name, {analysis.name: _cost(analysis, name, data, options)}, options, analysis.options)


def budget_of_all(
    name: str, corpus: str, options: Mapping[str, Any], left_out: Mapping[str, str] = MappingProxyType({})
) -> "Budget":
    """What a report on a model needs, given the options of the report and of the model, and the analyses that are left
    out. Analyses of the text share passes; the others follow one after another."""
    model_directory(name, weights=False)
    corpus_file(corpus)
    pairs = options.get("pairs", "bundled")
    limit = options.get("pair_limit") or (BUNDLED_PAIRS if pairs == "bundled" else None)
    by_kind = {}
    for option, kind in kinds(ReportOptions).items():
        if option in options:
            by_kind[kind] = options[option]
    of_pairs = {"limit": limit}
    for kind in kinds(PairColumns).values():
        if kind in by_kind:
            of_pairs[kind] = by_kind[kind]
    costs = {}
    later = 0
    for analysis in _reported(options):
        if analysis.name in left_out:
            continue
        of_reads = {"pairs": (pairs, of_pairs), "prompts": (corpus, {})}
        data, shared = of_reads.get(analysis.reads, (corpus, by_kind))
        arguments = _known(options, ModelOptions)
        arguments.update(named(analysis.options, shared))
        arguments.update(_in_report(analysis, options))
        cost = _cost(analysis, name, data, arguments)
        if analysis.reads in ("pairs", "prompts"):
            later += 1
            cost = replace(cost, passes=tuple(replace(work, step=100 * later + work.step) for work in cost.passes))
        costs[analysis.name] = cost
    return _budget(name, costs, options, ReportOptions)


def _budget(name: str, costs: Mapping[str, "Cost"], options: Mapping[str, Any], declared: type[Options]) -> "Budget":
    from interp.passes.budget import budget

    names = {}
    settings = _known(options, ModelOptions)
    for option, kind in kinds(declared).items():
        if kind in ("batch_size", "context"):
            names[kind] = option
            if option in options:
                settings[kind] = options[option]
    return budget(name, costs, settings, names)


def _reported(options: Mapping[str, Any]) -> list[Analysis]:
    """The analyses of a report with these options."""
    settings: Any = {"more": options.get("more", False), "settings": options.get("settings")}
    return [analysis for analysis in analyses().values() if analysis.is_reported(**settings)]


def _in_report(analysis: Analysis, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an analysis in a report with these options."""
    return analysis.reported(more=options.get("more", False), settings=options.get("settings"))


def _left_out(
    name: str, model_options: Mapping[str, Any], requests: Iterable[tuple[Analysis, Mapping[str, Any]]]
) -> dict[str, str] | None:
    """What analyses with these options leave out, as `left_out` says it of a small random model of the
    same kind; None if none can be made."""
    from interp.models.loading.pretrained import on_hub, read_config
    from interp.testing import toy_like

    directory = model_directory(name, weights=False)
    if directory:
        place = str(directory)
        revision = None
    else:
        place, revision = on_hub(name, model_options.get("revision"), model_options.get("checkpoint"))
    backend: Backend | None = "bridge" if model_options.get("device_map") else model_options.get("backend")
    try:
        model = toy_like(read_config(place, revision), backend=backend)
    except Exception:  # whatever a config of an unknown kind leads to; loading the model says what is wrong
        return None
    left_out: dict[str, str] = {}
    for analysis, options in requests:
        settled = {key: value for key, value in options.items() if not callable(value)}
        left_out.update(analysis.left_out(model, settled))
    return left_out


def _cost(analysis: Analysis, name: str, data: str | None, options: Mapping[str, Any]) -> "Cost":
    cost: Cost = resolve_name(analysis.cost or _UNDECLARED)(name, data, options)
    return cost


def _known(options: Mapping[str, Any], declared: type) -> dict[str, Any]:
    """Those of the options that are declared here."""
    names = [item.name for item in fields(declared)]
    return {key: value for key, value in options.items() if key in names}


def resolved(options: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return options with their values; those that depend on the model are functions of it and of the options."""
    return {name: value(model, options) if callable(value) else value for name, value in options.items()}


def _measured(
    analysis: Analysis | None, name: str, data: str, options: Mapping[str, Any], model_options: Mapping[str, Any]
) -> "Measured":
    """Run the first batch of an analysis, or of a report (None), on a model loaded with these options."""
    from interp import corpora, models
    from interp.analyses import report
    from interp.passes.measure import first_batch

    loaded = models.load(name, **model_options)
    answer = report.report if analysis is None else resolve_name(analysis.answer)
    arguments = resolved(options, loaded)
    declared = ReportOptions if analysis is None else analysis.options
    text = taken(declared, dict(arguments), ("limit", "column"))
    source: Any = data
    if analysis is not None and analysis.reads == "pairs":
        source = flags.pairs_of(data, declared, arguments)
        plain = corpora.batches(loaded, corpora.pairs.sentences_of(source.table), layout="texts")
    else:
        plain = corpora.batches(loaded, data, **text)
    measured = first_batch(loaded, answer.passes(loaded, source, **arguments), plain)
    reads_text = analysis is None or analysis.reads not in ("pairs", "prompts")
    return measured if reads_text else replace(measured, n_batches=None)


def _show(
    budgets: Mapping[str, "Budget"],
    left_out: Mapping[str, dict[str, str] | None],
    measured: Mapping[str, "Measured"],
    *,
    as_json: bool,
) -> None:
    """Print whether each model fits, how long it takes, what is stored and left out, and then how this was estimated;
    with several models, one JSON object for each.

    Raises `typer.Exit` with the exit code for it if one of them does not fit.
    """
    numbers = {}
    texts = []
    for name, budget in budgets.items():
        verdict, fits = budget.verdict(budget.run.available)
        numbers[name] = dict(budget.numbers, **fits, left_out=left_out[name])
        if name in measured:
            numbers[name].update(_in_numbers(measured[name], budget))
        answer = [verdict, _time(budget, measured.get(name)), _disk(budget), *_exclusions(left_out[name])]
        texts.append("\n".join([f"{name}: {answer[0]}", *answer[1:], "in detail:", *budget.lines]))
    if as_json:
        echo(json.dumps(numbers if len(numbers) > 1 else next(iter(numbers.values()))))
    else:
        echo("\n\n".join(texts))
    if not all(number["fits"] for number in numbers.values()):
        raise typer.Exit(TOO_LARGE)


def _in_numbers(measured: "Measured", budget: "Budget") -> dict[str, Any]:
    """What was measured, for `--json`."""
    return {
        "seconds_per_batch": measured.seconds, "measured_peak_bytes": measured.peak, "batches": measured.n_batches,
        "seconds": _total_seconds(measured, budget),
    }  # fmt: skip


def _time(budget: "Budget", measured: "Measured | None") -> str:
    """How long it takes, if a batch was timed."""
    if measured is None:
        return "time: known with --measure, which loads the model and times one batch"
    batch = f"{measured.seconds:,.2f} s for the first batch, with {shown(measured.peak)} of memory at most"
    seconds = _total_seconds(measured, budget)
    whole = "" if seconds is None else f"about {duration(seconds)} for all passes over the text; "
    return f"time: {whole}{batch}"


def _disk(budget: "Budget") -> str:
    return f"disk: about {shown(budget.disk)} until it is finished, so that it can be resumed, then tables and page"


def _exclusions(left_out: Mapping[str, str] | None) -> list[str]:
    """What the model cannot be asked, and why."""
    if left_out is None:
        return ["left out: known once the model is loaded"]
    if not left_out:
        return ["left out: nothing, unless the text is too short"]
    return [f"left out: {part}: {reason}" for part, reason in left_out.items()]


def _total_seconds(measured: "Measured", budget: "Budget") -> float | None:
    """Seconds for the whole text, if its length is known. The time of what follows the passes that were timed is scaled
    up by its number of operations."""
    if measured.n_batches is None:
        return None
    return measured.seconds * measured.n_batches * budget.text_flops / budget.first_flops


def duration(seconds: float) -> str:
    """A number of seconds in readable form."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s"
