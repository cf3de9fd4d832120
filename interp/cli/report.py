"""`interp report`."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from interp.analyses import ReportOptions, analyses
from interp.cli import flags
from interp.cli.jobs import Job, in_parts
from interp.cli.output import check_output, check_working, is_saving, save, show, unfinished
from interp.disk import check_own, check_page, remove, result_names
from interp.options import CORPUS, ModelOptions
from interp.paths import bundled_models, corpus_file, is_counts, model_directory, short_name

__all__ = ["report"]

_MODELS = "Hub name, local directory or bundled model; again for another.  [default: the bundled ones]"


@in_parts("report")
@flags.with_flags(*flags.parameters(ReportOptions, ModelOptions))
def report(
    job: Job,
    out: flags.OutFlag,
    model: Annotated[
        list[str] | None, typer.Option(help=_MODELS, metavar="NAME", autocompletion=flags.complete_model)
    ] = None,
    corpus: Annotated[str, typer.Option(help=CORPUS, metavar="NAME", autocompletion=flags.complete_corpus)] = "bundled",
    *,
    overwrite: flags.OverwriteFlag = False,
    as_json: flags.JsonFlag = False,
    **given: Any,
) -> None:
    """All questions about a model, on one page.

    What reads the same text in the same way shares a forward pass. Writes the results of all analyses to DIR (with
    several models, to DIR/MODEL) and DIR/index.html. A run that was killed goes on where it was.
    """
    options = flags.read(ReportOptions, given)
    names = model or bundled_models()
    places = {name: out if len(names) == 1 else out / short_name(name) for name in names}
    if len(set(places.values())) < len(names):
        raise ValueError(f"--model {', '.join(names)}: expected models with different names")
    for name in names:
        model_directory(name)
    corpus_file(corpus)
    if (counts := options.get("unigram")) is not None and not is_counts(counts):
        corpus_file(counts)
    check_page(out)
    check_working(out, "report")
    known = list(analyses())
    if foreign := sorted(set(options.get("settings", {})) - set(known)):
        raise ValueError(f"--settings names {foreign[0]!r}, which is no analysis; expected of {', '.join(known)}")
    for place in places.values():
        for analysis in known:
            check_output(place, analysis, overwrite=overwrite or is_saving(out, job))

    from interp import corpora, models, pages
    from interp.survey import ask_all

    corpora.load(corpus, limit=options.get("limit"), column=options.get("column"))
    with unfinished(out, job) as directory:
        results = {}
        for name, place in places.items():
            with _steps(short_name(name)):
                loaded = models.load(name, **flags.read(ModelOptions, given))
                results[place] = ask_all(loaded, corpus, **options, directory=directory / short_name(name))
        if not save(results, directory, job):
            return
        for place, found in results.items():
            for analysis in set(known) - {result.analysis for result in found}:
                if (place / analysis).exists():
                    check_own(place / analysis, result_names)
                    remove(place / analysis)
        page = pages.write_page(out)
    show({}, page, as_json=as_json)


@contextmanager
def _steps(name: str) -> Iterator[None]:
    """Say on stderr what a survey of one model is doing, and since when."""
    start = time.monotonic()

    def tell(record: logging.LogRecord) -> bool:
        minutes, seconds = divmod(int(time.monotonic() - start), 60)
        if os.environ.get("RANK", "0") == "0":
            typer.echo(f"{minutes}:{seconds:02d} {name}: {record.getMessage()}", err=True)
        return False

    log = logging.getLogger("interp")
    level = log.level
    log.addFilter(tell)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeFilter(tell)
        log.setLevel(level)
