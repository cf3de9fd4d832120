"""The command of an analysis, from its declaration."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli.flags import (
    JsonFlag,
    ModelFlag,
    OverwriteFlag,
    complete_corpus,
    flag,
    parameter,
    parameters,
    read,
    with_signature,
)
from interp.cli.jobs import Job, ShardFlag, part
from interp.cli.output import check_output, progress, save, show, unfinished
from interp.corpora.options import CORPUS, PAIRS
from interp.declare import Analysis, find
from interp.disk.marks import check_page
from interp.models.options import ModelOptions
from interp.paths import check_mauve, corpus_file, is_counts, model_directory


def source_of(analysis: Analysis) -> str:
    """The name of the flag for what an analysis reads."""
    return "pairs" if analysis.reads == "pairs" else "corpus"


def command_of(analysis: Analysis) -> Callable[..., None]:
    """What `interp NAME` calls: keywords as typer reads them."""

    def command(**given: Any) -> None:
        with part(given.pop("shard", None), given.get("device")):
            _run(analysis, Job.of(analysis.name, given))

    source = source_of(analysis)
    described = PAIRS if source == "pairs" else CORPUS
    if source in analysis.paper:
        described += f" --paper takes {analysis.paper[source]!r} if it is left out."
    corpus = typer.Option(help=described, metavar="NAME", show_default=False, autocompletion=complete_corpus)
    paper = typer.Option("--paper", help=f"The paper's protocol: {analysis.paper_help}.")
    dry_run = typer.Option("--dry-run", help="Print sizes and costs from the model's config alone.")
    given = [
        parameter("model", ModelFlag),
        parameter(source, Annotated[str | None, corpus], None),
        parameter(
            "out",
            Annotated[Path | None, typer.Option(help="Directory to write to.", metavar="DIR", show_default=False)],
            None,
        ),
        *parameters(analysis.options),
        *parameters(ModelOptions),
        *([parameter("paper", Annotated[bool, paper], False)] if analysis.paper else []),
        parameter("dry_run", Annotated[bool, dry_run], False),
        parameter("overwrite", OverwriteFlag, False),
        parameter("as_json", JsonFlag, False),
        parameter("shard", ShardFlag, None),
    ]
    help = (
        f"{analysis.title}.\n\n{analysis.help} Writes DIR/{analysis.name}/*.parquet, result.json and DIR/index.html. A "
        "run that was killed goes on where it was."
    )
    return with_signature(command, analysis.name, help, given)


def _run(analysis: Analysis, job: Job) -> None:
    given, source = job.options, source_of(analysis)
    options = _options(analysis, given)
    model, data = given["model"], given[source]
    if given["dry_run"]:
        model_directory(model, weights=False)
        _dry_run(analysis, model, data, options, as_json=given["as_json"])
        return
    if data is None:
        data = analysis.paper.get(source) if given.get("paper") else None
    if data is None:
        raise ValueError(f"{flag(source)} is missing; expected a file, a named corpus or 'bundled'")
    if given["out"] is None:
        raise ValueError("--out is missing; expected a directory to write to")
    out = Path(given["out"])
    model_directory(model)
    data = _checked(analysis, data, options)
    check_output(out, analysis.name, overwrite=given["overwrite"], job=job)
    check_page(out)

    from interp import models, pages

    with progress(f"loading {model}"):
        loaded = models.load(model, **read(ModelOptions, given))
    found_with = {name: value(loaded, options) if callable(value) else value for name, value in options.items()}
    with unfinished(out, job) as directory:
        found = analysis.ask(loaded, data, **found_with, directory=directory)
        if not save({out: [found]}, directory, job):
            return
        page = pages.write_page(out)
    if "context" in (about := found.provenance):
        typer.echo(f"read in rows of {about['context']:,} tokens ({about['layout']})", err=True)
    show(found.shown, page, as_json=given["as_json"])


def _options(analysis: Analysis, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, and those that `--paper` sets; these may be functions of the model."""
    options = read(analysis.options, given)
    if not given.get("paper"):
        return options
    protocol = {name: value for name, value in analysis.paper.items() if name != source_of(analysis)}
    if set(protocol) & set(options):
        sets = [flag(name) for name in protocol]
        raise ValueError(f"--paper sets {', '.join(sets[:-1])} and {sets[-1]} itself; leave them out")
    return options | {name: value for name, value in protocol.items() if value is not None}


def _checked(analysis: Analysis, data: str, options: dict[str, Any]) -> Any:
    """What is read, with an error for what is not there before torch is imported."""
    counts = options.get("unigram")
    if counts is not None and not is_counts(counts):
        corpus_file(counts)
    if options.get("other") is not None:
        corpus_file(options["other"])
    if options.get("features") is not None:
        check_mauve()
        model_directory(options["features"])
    if analysis.reads == "pairs":
        from interp.corpora import pairs

        return pairs.load(data, tasks=options.pop("tasks", None), limit=options.pop("limit", None))
    corpus_file(data)
    return data


def _dry_run(analysis: Analysis, model: str, data: str | None, options: dict[str, Any], *, as_json: bool) -> None:
    cost = find(analysis.cost or "interp.models.shapes:cost")(model, data, options)
    typer.echo(json.dumps(cost.numbers) if as_json else "\n".join([f"{model}: {cost.lines[0]}", *cost.lines[1:]]))
