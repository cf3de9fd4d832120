"""`interp report`."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from interp.cli.options import (
    MAX_SEED,
    ColumnOption,
    JsonOption,
    LimitOption,
    OutOption,
    SeparatorOption,
    UnigramOption,
    check_counts,
    complete_corpus,
    complete_model,
    unescaped,
)
from interp.cli.output import check_output, check_working, is_saving, save, show, unfinished
from interp.disk.files import remove
from interp.disk.marks import check_own, check_page, result_names
from interp.paths import bundled_models, corpus_file, model_directory, short_name

_ANALYSES = ("frequency", "generation", "attention", "encoding", "probing")
_BUNDLED_PAIRS = 100  # a task: enough for 60 to fit on


def report(
    out: OutOption,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Hub name, local directory or bundled model; again for another.  [default: the bundled ones]",
            autocompletion=complete_model,
        ),
    ] = None,
    corpus: Annotated[str, typer.Option(help="As for the other commands.", autocompletion=complete_corpus)] = "bundled",
    pairs: Annotated[str, typer.Option(help="Minimal pairs, as for probe.")] = "bundled",
    unigram: UnigramOption = None,
    limit: LimitOption = None,
    pair_limit: Annotated[
        int | None, typer.Option(help="Pairs a task.  [default: 100 of the bundled ones, all of others]", min=10)
    ] = None,
    column: ColumnOption = None,
    separator: SeparatorOption = "",
    bos: Annotated[
        bool | None,
        typer.Option("--bos/--no-bos", help="A token before each text and sentence.  [default: as trained, if known]"),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows in a forward pass.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of masks, samples, nulls and probes.", min=0, max=MAX_SEED)] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …  [default: cuda if there is one]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace earlier results in --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """All questions about a model, on one page.

    What reads the same text in the same way shares a forward pass. Writes the results of frequency, generate,
    attention, encoding and probe to DIR (with several models, to DIR/MODEL) and DIR/index.html. A run that was
    killed goes on where it was.
    """
    names = model or bundled_models()
    places = {name: out if len(names) == 1 else out / short_name(name) for name in names}
    if len(set(places.values())) < len(names):
        raise ValueError(f"--model {', '.join(names)}: expected models with different names")
    for name in names:
        model_directory(name)
    corpus_file(corpus)
    check_counts(unigram)
    check_page(out)
    check_working(out, "report")
    for place in places.values():
        for analysis in _ANALYSES:
            check_output(place, analysis, overwrite=overwrite or is_saving(out, "report"))

    from interp import corpora, models, pages
    from interp.corpora import pairs as minimal_pairs
    from interp.survey import survey

    table = minimal_pairs.load(pairs, limit=pair_limit or (_BUNDLED_PAIRS if pairs == "bundled" else None))
    text = corpora.load(corpus, limit=limit, column=column, separator=unescaped(separator))
    with unfinished(out, "report") as directory:
        results = {}
        for name, place in places.items():
            with _steps(short_name(name)):
                loaded = models.load(name, device=device)
                results[place] = survey(
                    loaded, text, pairs=table, unigram=unigram, bos=bos, batch_size=batch_size, seed=seed,
                    directory=directory / short_name(name),
                )  # fmt: skip
        save(results, directory)
        for place, found in results.items():
            for analysis in set(_ANALYSES) - {result.analysis for result in found}:
                if (place / analysis).exists():
                    check_own(place / analysis, result_names)
                    remove(place / analysis)
        page = pages.write_page(out)
    show({}, page, as_json=as_json)


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
