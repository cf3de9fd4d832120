"""`interp report`."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.analyses import ReportOptions, analyses
from interp.cli.flags import (
    JsonFlag,
    OutFlag,
    OverwriteFlag,
    complete_corpus,
    complete_model,
    parameter,
    parameters,
    read,
    with_signature,
)
from interp.cli.jobs import Job, ShardFlag, part
from interp.cli.output import check_output, check_working, is_saving, save, show, unfinished
from interp.corpora.options import CORPUS
from interp.disk.files import remove
from interp.disk.marks import check_own, check_page, result_names
from interp.models.options import ModelOptions
from interp.paths import bundled_models, corpus_file, is_counts, model_directory, short_name

_HELP = """All questions about a model, on one page.

What reads the same text in the same way shares a forward pass. Writes the results of all analyses to DIR (with several
models, to DIR/MODEL) and DIR/index.html. A run that was killed goes on where it was.
"""
_ModelsFlag = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Hub name, local directory or bundled model; again for another.  [default: the bundled ones]",
        autocompletion=complete_model,
    ),
]


def report_command() -> Callable[..., None]:
    """What `interp report` calls."""

    def command(**given: Any) -> None:
        with part(given.pop("shard", None), given.get("device")):
            _run(Job.of("report", given))

    corpus = Annotated[str, typer.Option(help=CORPUS, metavar="NAME", autocompletion=complete_corpus)]
    given = [
        parameter("out", OutFlag),
        parameter("model", _ModelsFlag, None),
        parameter("corpus", corpus, "bundled"),
        *parameters(ReportOptions),
        *parameters(ModelOptions),
        parameter("overwrite", OverwriteFlag, False),
        parameter("as_json", JsonFlag, False),
        parameter("shard", ShardFlag, None),
    ]
    return with_signature(command, "report", _HELP, given)


def _run(job: Job) -> None:
    given, out = job.options, Path(job.options["out"])
    options = read(ReportOptions, given)
    names = given["model"] or bundled_models()
    places = {name: out if len(names) == 1 else out / short_name(name) for name in names}
    if len(set(places.values())) < len(names):
        raise ValueError(f"--model {', '.join(names)}: expected models with different names")
    for name in names:
        model_directory(name)
    corpus_file(given["corpus"])
    if (counts := options.get("unigram")) is not None and not is_counts(counts):
        corpus_file(counts)
    check_page(out)
    check_working(out, "report")
    known = list(analyses())
    if foreign := sorted(set(options.get("settings", {})) - set(known)):
        raise ValueError(f"--settings names {foreign[0]!r}, which is no analysis; expected of {', '.join(known)}")
    for place in places.values():
        for analysis in known:
            check_output(place, analysis, overwrite=given["overwrite"] or is_saving(out, job))

    from interp import corpora, models, pages
    from interp.survey import ask_all

    corpora.load(given["corpus"], limit=options.get("limit"), column=options.get("column"))
    with unfinished(out, job) as directory:
        results = {}
        for name, place in places.items():
            with _steps(short_name(name)):
                loaded = models.load(name, **read(ModelOptions, given))
                results[place] = ask_all(loaded, given["corpus"], **options, directory=directory / short_name(name))
        if not save(results, directory, job):
            return
        for place, found in results.items():
            for analysis in set(known) - {result.analysis for result in found}:
                if (place / analysis).exists():
                    check_own(place / analysis, result_names)
                    remove(place / analysis)
        page = pages.write_page(out)
    show({}, page, as_json=given["as_json"])


@contextmanager
def _steps(name: str) -> Iterator[None]:
    """Say on stderr what a survey of one model is doing, and since when."""
    start = time.monotonic()

    class Steps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            minutes, seconds = divmod(int(time.monotonic() - start), 60)
            if os.environ.get("RANK", "0") == "0":
                typer.echo(f"{minutes}:{seconds:02d} {name}: {record.getMessage()}", err=True)

    log, handler = logging.getLogger("interp"), Steps(logging.INFO)
    level, log.propagate = log.level, False
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = True
