"""The command of an analysis, from its declaration."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from interp.cli import flags
from interp.cli.jobs import Job, in_parts
from interp.cli.output import check_output, is_saving, save, show, unfinished
from interp.declare import Analysis, find
from interp.disk import check_page
from interp.options import CORPUS, PAIRS, ModelOptions
from interp.paths import check_mauve, corpus_file, is_counts, model_directory

__all__ = ["command_of"]

_DryRunFlag = Annotated[bool, typer.Option("--dry-run", help="Print sizes and costs from the model's config alone.")]
_OutFlag = Annotated[Path | None, typer.Option(help="Directory to write to.", metavar="DIR")]


def command_of(analysis: Analysis) -> flags.Command:
    """What `interp NAME` calls."""
    source = "pairs" if analysis.reads == "pairs" else "corpus"
    described = PAIRS if source == "pairs" else CORPUS
    if source in analysis.paper:
        described += f" --paper takes {analysis.paper[source]!r} if it is left out."
    own = [flags.parameter(source, str, described, metavar="NAME", autocompletion=flags.complete_corpus)]
    own += flags.parameters(analysis.options, ModelOptions)
    if analysis.paper:
        own.append(flags.parameter("paper", bool, f"The paper's protocol: {analysis.paper_help}.", "--paper"))

    @in_parts(analysis.name)
    @flags.with_flags(*own)
    def command(
        job: Job,
        model: flags.ModelFlag,
        out: _OutFlag = None,
        *,
        dry_run: _DryRunFlag = False,
        overwrite: flags.OverwriteFlag = False,
        as_json: flags.JsonFlag = False,
        **given: Any,
    ) -> None:
        options = _options(analysis, given)
        data = given.get(source)
        if dry_run:
            model_directory(model, weights=False)
            cost = find(analysis.cost or "interp.models.shapes:cost")(model, data, options)
            lines = "\n".join(cost.lines)
            typer.echo(json.dumps(cost.numbers) if as_json else f"{model}: {lines}")
            return
        if data is None and given.get("paper"):
            data = analysis.paper.get(source)
        if data is None:
            raise ValueError(f"{flags.flag(source)} is missing; expected a file, a named corpus or 'bundled'")
        if out is None:
            raise ValueError("--out is missing; expected a directory to write to")
        model_directory(model)
        text = _checked(analysis, data, options)
        check_output(out, analysis.name, overwrite=overwrite or is_saving(out, job))
        check_page(out)

        from rich.console import Console

        from interp import models, pages

        with Console(stderr=True).status(f"loading {model}"):
            loaded = models.load(model, **flags.read(ModelOptions, given))
        asked = {name: value(loaded, options) if callable(value) else value for name, value in options.items()}
        with unfinished(out, job) as directory:
            found = find(analysis.answer)(loaded, text, **asked, directory=directory)
            if not save({out: [found]}, directory, job):
                return
            page = pages.write_page(out)
        if "context" in (about := found.provenance):
            typer.echo(f"read in rows of {about['context']:,} tokens ({about['layout']})", err=True)
        show(found.shown, page, as_json=as_json)

    written = f"Writes DIR/{analysis.name}/*.parquet, result.json and DIR/index.html."
    going_on = "A run that was killed goes on where it was."
    command.__doc__ = f"{analysis.title}.\n\n{analysis.help} {written} {going_on}"
    return command


def _options(analysis: Analysis, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, and those that `--paper` sets; these may be functions of the model."""
    options = flags.read(analysis.options, given)
    if not given.get("paper"):
        return options
    protocol = {name: value for name, value in analysis.paper.items() if name not in ("corpus", "pairs")}
    if set(protocol) & set(options):
        *sets, last = map(flags.flag, protocol)
        raise ValueError(f"--paper sets {', '.join(sets)} and {last} itself; leave them out")
    return options | {name: value for name, value in protocol.items() if value is not None}


def _checked(analysis: Analysis, data: str, options: dict[str, Any]) -> Any:
    """What is read, with an error for what is not there before torch is imported."""
    if (counts := options.get("unigram")) is not None and not is_counts(counts):
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
