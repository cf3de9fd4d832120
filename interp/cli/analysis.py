"""The commands of the analyses, made from their declarations, and `interp report`, which runs all of them."""

import inspect
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from interp.analyses.declare import Analysis
from interp.analyses.options import CORPUS, PAIRS, ModelOptions
from interp.analyses.registry import ReportOptions, analyses, remove_others
from interp.cli import dryrun, flags
from interp.cli.jobs import Job, in_parts
from interp.cli.output import check_output, check_working, is_saving, save, save_early, show, unfinished
from interp.cli.screen import echo, visible
from interp.support.disk import check_page
from interp.support.paths import bundled_models, corpus_file, model_directory, short_name
from interp.support.words import beginning_words, count, meant

__all__ = ["command_of", "report"]

_MODELS = "Hub name, local directory or bundled model; may be repeated.  [default: the bundled models]"
_NO_OUT = "--out is missing; expected a directory to write to"
_OutFlag = Annotated[
    Path | None,
    typer.Option(help="Directory to write to.", metavar="DIR", parser=flags.path, rich_help_panel="Output"),
]


def command_of(analysis: Analysis) -> flags.Command:
    """The function that `interp NAME` calls."""
    source = "pairs" if analysis.reads == "pairs" else "corpus"

    @in_parts(analysis.name)
    @flags.with_flags(*_keywords(analysis, source))
    def command(
        job: Job,
        model: flags.ModelFlag,
        out: _OutFlag = None,
        *,
        dry_run: dryrun.DryRunFlag = False,
        measure: dryrun.MeasureFlag = False,
        overwrite: flags.OverwriteFlag = False,
        as_json: flags.JsonFlag = False,
        **values: Any,
    ) -> None:
        options = _options(analysis, values, source)
        data = values.get(source) or (analysis.paper.get(source) if values.get("paper") else None)
        model_options = flags.read(ModelOptions, values)
        dryrun.check_measure(data, dry_run=dry_run, measure=measure)
        if dry_run:
            dryrun.say_one(analysis, model, data, options, model_options, measure=measure, as_json=as_json)
            return
        if data is None:
            raise ValueError(f"{flags.flag(source)} is missing; expected a file, a named corpus or 'bundled'")
        model_directory(model)
        flags.check_named(analysis.options, options)
        text = _read(analysis, data, options)
        analysis.check_options(options)
        if out is None:
            raise ValueError(_NO_OUT)
        check = partial(_check_places, out, {out: [analysis.name]}, job, overwrite=overwrite)
        check()

        from interp import models
        from interp.pages.page import written_page

        with unfinished(out, job, check) as directory:
            with _loading(model):
                loaded = models.load(model, **model_options)
            arguments = dryrun.resolved(options, loaded)
            result = resolve_name(analysis.answer)(loaded, text, **arguments, directory=directory)
            if not save({out: {analysis.name: result}}, directory, job):
                return
            page = written_page(out)
        if line := _reading(analysis, result.provenance):
            echo(line, err=True)
        show(result.shown, page.path, as_json=as_json, results=[] if page.notes else [result], notes=page.notes)

    written = f"Writes DIR/{analysis.name}/*.parquet, result.json and DIR/index.html."
    command.__doc__ = f"{analysis.title}.\n\n{analysis.help} {written} A run that was killed resumes where it stopped."
    return command


def _keywords(analysis: Analysis, source: str) -> list[inspect.Parameter]:
    """The flags of a command that are not those of all commands. `source` is what names the data."""
    help_text = PAIRS if source == "pairs" else CORPUS
    if source in analysis.paper:
        help_text += f" Default with --paper: {analysis.paper[source]!r}."
    complete = flags.complete_pairs if source == "pairs" else flags.complete_corpus
    data = flags.parameter(source, str, help_text, metavar="NAME", autocompletion=complete, rich_help_panel="Text")
    keywords = [data, *flags.parameters(analysis.options, ModelOptions)]
    if analysis.paper:
        protocol = f"The paper's protocol: {analysis.paper_help}."
        keywords.append(flags.parameter("paper", bool, protocol, "--paper", rich_help_panel="Question"))
    return keywords


def _reading(analysis: Analysis, provenance: Mapping[str, Any]) -> str:
    """What interp chose when it read the text or the sentences of a result, according to its provenance."""
    declared = {item.name for item in fields(analysis.options) if item.metadata["kind"] != item.name}
    settings = {name: value for name, value in provenance.items() if name not in declared}
    rows = ""
    if {"context", "layout"} <= {*settings}:
        left_out = settings.get("tokens_left_out")
        incomplete = f" without the last {count(left_out, 'token')}, too few for a row" if left_out else ""
        rows = f"in rows of {settings['context']:,} tokens ({settings['layout']}{incomplete})"
    begin = beginning_words(settings["bos"]) if settings.get("bos") else ""
    if perplexity := settings.get("bos_perplexity"):
        without, preceded = perplexity["without"], perplexity["with"]
        begin = f"{beginning_words(False)} (perplexity of the first rows {without:.4g}, and {preceded:.4g} with one)"
    parts = list(filter(None, (rows, begin)))
    return " ".join(["read", *parts]) if parts else ""


def _loading(model: str) -> AbstractContextManager[Any]:
    """A context in which a terminal shows that a model is being loaded."""
    from rich.console import Console
    from rich.text import Text

    return Console(stderr=True).status(Text(f"loading {visible(model)}"))


def _options(analysis: Analysis, values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The options that were given and those that `--paper` sets, which may be functions of the model. `source` is what
    names the data."""
    options = flags.read(analysis.options, values)
    if not values.get("paper"):
        return options
    protocol = dict(analysis.paper)
    protocol.pop(source, None)
    if set(protocol) & set(options):
        *sets, last = map(flags.flag, protocol)
        raise ValueError(f"--paper sets {', '.join(sets)} and {last} itself; leave them out")
    for name, value in protocol.items():
        if value is not None:
            options[name] = value
    return options


def _read(analysis: Analysis, data: str, options: dict[str, Any]) -> Any:
    """The data to read. Raises for data that does not exist, before torch is imported."""
    if analysis.reads == "pairs":
        return flags.pairs_of(data, analysis.options, options)
    corpus_file(data)
    return data


def _check_places(out: Path, places: Mapping[Path, Sequence[str]], job: Job, *, overwrite: bool) -> None:
    """Check that the page can be written to `out`, and the results of these analyses to their directories."""
    check_page(out)
    for place, names in places.items():
        for name in names:
            check_output(place, name, overwrite=overwrite or is_saving(out, job))


@in_parts("report")
@flags.with_flags(*flags.parameters(ReportOptions, ModelOptions))
def report(
    job: Job,
    out: _OutFlag = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help=_MODELS, metavar="NAME", autocompletion=flags.complete_model, rich_help_panel="Model"),
    ] = None,
    corpus: Annotated[
        str, typer.Option(help=CORPUS, metavar="NAME", autocompletion=flags.complete_corpus, rich_help_panel="Text")
    ] = "bundled",
    *,
    dry_run: dryrun.DryRunFlag = False,
    measure: dryrun.MeasureFlag = False,
    overwrite: flags.OverwriteFlag = False,
    as_json: flags.JsonFlag = False,
    **values: Any,
) -> None:
    """Ask all questions about a model and write one page.

    Analyses that read the same text in the same way share a forward pass. Writes the results of all analyses to DIR
    (with several models, to DIR/MODEL) and DIR/index.html. A run that was killed resumes where it stopped. Each result
    is written when its analysis ends (with --overwrite, all at the end); interp page DIR shows those that are finished.
    """
    options = flags.read(ReportOptions, values)
    model_options = flags.read(ModelOptions, values)
    names = model or bundled_models()
    dryrun.check_measure(corpus, dry_run=dry_run, measure=measure)
    _check_settings(options)
    if dry_run:
        dryrun.say_all(names, corpus, options, model_options, measure=measure, as_json=as_json)
        return
    if out is None:
        raise ValueError(_NO_OUT)
    places = {name: out if len(names) == 1 else out / short_name(name) for name in names}
    if len(set(places.values())) < len(names):
        raise ValueError(f"--model {', '.join(names)}: expected models with different names")
    for name in names:
        model_directory(name)
    corpus_file(corpus)
    flags.check_named(ReportOptions, options)
    for name, analysis in analyses().items():
        flags.check_named(analysis.options, options.get("settings", {}).get(name, {}), analysis=name)
    check_working(out, "report")
    questions = list(analyses())
    check = partial(_check_places, out, dict.fromkeys(places.values(), questions), job, overwrite=overwrite)
    check()
    from interp import corpora, models
    from interp.analyses.report import report as ask
    from interp.pages.page import written_page

    corpora.load(corpus, limit=options.get("limit"), column=options.get("column"))
    with unfinished(out, job, check) as directory:
        results = {}
        steps = _Steps(names)
        for name, place in places.items():
            with steps.of(name):
                loaded = models.load(name, **model_options)
                early = None if overwrite else partial(save_early, directory=place, unfinished=directory, job=job)
                parts = directory / short_name(name)
                results[place] = ask(loaded, corpus, **options, directory=parts, finished=early)
        if not save(results if overwrite else {}, directory, job):
            return
        for place, answers in results.items():
            remove_others(place, answers)
        page = written_page(out)
    show({}, page.path, as_json=as_json, results=page.results, notes=page.notes)


def _check_settings(options: Mapping[str, Any]) -> None:
    """Raise ValueError for settings of something that is not an analysis, or that an analysis does not have."""
    names = list(analyses())
    if foreign := sorted(set(options.get("settings", {})) - set(names)):
        problem = f"--settings names {foreign[0]!r}{meant(foreign[0], names)}, which is not an analysis"
        raise ValueError(f"{problem}; expected one of {', '.join(names)}")
    for analysis in analyses().values():
        analysis.reported(more=False, settings=options.get("settings"))


class _Steps:
    """Tells on stderr what a report is doing, since when, and about how much longer it will take. The estimate assumes
    that all steps of a model take the same time, and that models take time in proportion to their parameters."""

    def __init__(self, names: Sequence[str]) -> None:
        from interp.models.shapes import shape

        self.sizes = dict.fromkeys(names, 1)
        if len(names) > 1:
            with suppress(ValueError, OSError):  # an unknown kind of model; loading it says what is wrong
                self.sizes = {name: shape(name).parameters for name in names}
        self.start = time.monotonic()
        self.done = 0.0

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """A context for the time in which this model is analysed."""
        before = self.done

        def tell(record: logging.LogRecord) -> bool:
            passed = time.monotonic() - self.start
            minutes, seconds = divmod(int(passed), 60)
            progress = ""
            if steps := getattr(record, "steps", None):
                step = getattr(record, "step", 1)
                self.done = before + self.sizes[name] * (step - 1) / steps
                progress = f", step {step} of {steps}{self._left(passed)}"
            if os.environ.get("RANK", "0") == "0":
                echo(f"{minutes}:{seconds:02d} {short_name(name)}{progress}: {record.getMessage()}", err=True)
            return False

        log = logging.getLogger("interp")
        level = log.level
        log.addFilter(tell)
        log.setLevel(logging.INFO)
        try:
            yield
            self.done = before + self.sizes[name]
        finally:
            log.removeFilter(tell)
            log.setLevel(level)

    def _left(self, passed: float) -> str:
        """How much longer all models will take, or an empty string if nothing has been done yet."""
        left = sum(self.sizes.values()) - self.done
        return f", about {dryrun.duration(passed * left / self.done)} left" if self.done else ""
