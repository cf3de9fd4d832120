"""Where commands write, and what they print on a terminal and elsewhere."""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from interp.cli.config import keep
from interp.cli.errors import FAILED
from interp.cli.jobs import COMMAND, Job
from interp.cli.screen import echo, on_terminal, visible
from interp.support.disk import FULL, check_own, occupied, remove, result_names, tidy, uninterrupted
from interp.support.words import count

if TYPE_CHECKING:
    from interp.results.findings import Answer
    from interp.results.result import Result

__all__ = ["Stopped", "check_output", "check_working", "check_writable", "is_saving", "resumable", "save"]
__all__ += ["save_early", "show", "unfinished"]

_STARTED = "started.json"  # marks a directory that `unfinished` made
_SAVING = "saving"  # holds the command from the moment its results are being saved
_SHOWN_FINDINGS = 4  # of one result
_NOTHING_DONE = {_STARTED, _SAVING, COMMAND}  # these files only say whose directory it is


class Stopped(Exception):
    """Ctrl-C in a run that can be resumed."""


@contextmanager
def resumable(directory: Path) -> Iterator[None]:
    """On Ctrl-C, raise `Stopped`, which says where the run resumes from."""
    try:
        yield
    except KeyboardInterrupt:
        if _keeps(directory):
            raise Stopped(f"stopped; the same command resumes from {directory}") from None
        raise Stopped("stopped with nothing to resume from; the same command starts from the beginning") from None


@contextmanager
def unfinished(out: Path, job: Job, check: Callable[[], None]) -> Iterator[Path]:
    """The directory in which a run keeps its work in case it is killed. It is removed when all output is written, if
    it holds nothing to resume from, and when the run is refused that began it.

    Args:
        check: raises if `out` cannot be written to, because another process may have written to it since the command
            looked.

    Raises FileExistsError while another process runs the same command in the same place, unless both are parts of it.
    """
    from interp.passes import distributed

    directory = out / f".{job.command}"
    begins = not _keeps(directory)
    with ExitStack() as lock:
        if distributed.writes():
            does = f"runs interp {job.command} in {out}"
            lock.enter_context(occupied(directory, does, shared=distributed.is_shard()))
        try:
            if distributed.writes():
                check()
            with resumable(directory):
                directory.mkdir(parents=True, exist_ok=True)
                job.save(directory / _STARTED)
                if distributed.is_shard():
                    job.save(directory / COMMAND)
                yield directory
        except BaseException as error:
            is_refused = begins and isinstance(error, ValueError)
            if distributed.part().of == 1 and directory.exists() and (is_refused or not _keeps(directory)):
                remove(directory)
            raise
        try:
            if distributed.writes():  # the other ranks end while this one still writes the page
                with uninterrupted():
                    remove(directory)
        except KeyboardInterrupt:
            raise Stopped(f"stopped when everything had been written to {out}") from None


def _keeps(directory: Path) -> bool:
    """Whether a working directory holds something to resume from."""
    return any(path.is_file() and path.name not in _NOTHING_DONE for path in directory.rglob("*"))


def check_output(directory: Path, analysis: str, *, overwrite: bool) -> None:
    """Check that a result can be written to `directory` before hours are spent on it. Writes nothing.

    Temporary files that killed runs left behind are removed.

    Raises:
        FileExistsError: the directory holds a result of this analysis and `overwrite` is off; or, whatever the flags,
            something that interp did not write would be replaced.
        PermissionError: the directory cannot be written to.
    """
    check_working(directory, analysis)
    result = directory / analysis
    if os.path.lexists(result) and not overwrite:
        raise FileExistsError(f"{directory} already holds {analysis}; choose another --out or add --overwrite")
    check_own(result, result_names)


def check_working(directory: Path, name: str) -> None:
    """Check that `unfinished` can work in `directory`, as `check_output` does, and remove leftovers of killed runs."""
    check_writable(directory)
    working = directory / f".{name}"
    check_own(working, lambda folder: os.listdir(folder) if (folder / _STARTED).is_file() else [])
    with suppress(OSError):
        tidy(working)


def check_writable(directory: Path) -> None:
    """Raise PermissionError for a directory that cannot be written to or created. Writes nothing."""
    try:
        places = (directory, *directory.absolute().parents)
        existing = next(path for path in places if path.exists() or path.is_symlink())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        if error.errno in FULL:
            raise
        raise PermissionError(f"output directory {directory} cannot be written to: {error.strerror}") from None


def is_saving(directory: Path, job: Job) -> bool:
    """Whether this same command was killed while it was saving its results there, and may continue."""
    try:
        return Job.load(directory / f".{job.command}" / _SAVING) == job
    except (OSError, ValueError):
        return False


def save(results: Mapping[Path, Mapping[str, Any]], unfinished: Path, job: Job) -> bool:
    """Save the results of a run, by directory and name, and return whether this process is the one that saved them.

    Raises `Unmerged` for one of several parts (`--shard`), even if all other parts are done.
    """
    from interp.passes import distributed

    if distributed.is_shard():
        raise distributed.Unmerged("every part is there")
    for directory, answers in results.items():
        for result in answers.values():
            save_early(result, directory, unfinished, job)
    distributed.meet([])
    return distributed.writes()


def save_early(result: Any, directory: Path, unfinished: Path, job: Job) -> None:
    """Save a result of a run that goes on: by the process that writes, unless this is one of several parts."""
    from interp.passes import distributed

    if distributed.writes() and not distributed.is_shard():
        job.save(unfinished / _SAVING)
        keep(job, result.save(directory, overwrite=True))


def show(
    tables: Mapping[str, tuple[str, Any]],
    *written: Path,
    as_json: bool,
    results: Iterable["Result"] = (),
    notes: Sequence[str] = (),
) -> None:
    """Print what a command has to say on stdout: its tables `{name: (title, table)}`, the findings of results and the
    files it wrote, with the number of notes on what could not be drawn; as text or as one JSON object.

    Raises `typer.Exit` with the exit code for it if there are such notes.
    """
    _show(tables, written, list(results), notes, as_json=as_json)
    if notes:
        raise typer.Exit(FAILED)


def _show(
    tables: Mapping[str, tuple[str, Any]],
    written: Sequence[Path],
    results: Sequence["Result"],
    notes: Sequence[str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        records: dict[str, Any] = {name: _records(table) for name, (_, table) in tables.items()}
        if results:
            from interp.results.findings import findings_table

            records.update(notes=[], left_out=[], answers=[], findings=[])
            for result in results:
                run = {"run": result.where, "analysis": result.analysis}
                for caveat in result.caveats:
                    records["notes"].append(dict(run, note=caveat))
                if result.answer:
                    records["answers"].append(dict(run, answer=result.answer.text, values=_values(result.answer)))
                for finding in _records(findings_table(result.findings)):
                    records["findings"].append(dict(run, **finding))
            for (model, part), reason in _left_out(results).items():
                records["left_out"].append({"model": model, "what": part, "why": reason})
        if written:
            records["written"] = str(written[0]) if len(written) == 1 else [*map(str, written)]
        if notes:
            records["not_drawn"] = list(notes)
        echo(json.dumps(records))
        return
    for title, table in tables.values():
        _print_table(table, title)
    for where, group in groupby(results, key=lambda result: result.where):
        lines: list[str] = []
        caveats: list[str] = []
        for result in group:
            lines.extend(_answer_lines(result))
            for caveat in result.caveats:
                if caveat not in caveats:
                    caveats.append(caveat)
        for caveat in caveats:
            lines.append(f"Note: {caveat}.")
        if lines:
            echo("\n".join([_heading(f"findings: {where}"), *lines]))
    for (model, part), reason in _left_out(results).items():
        if ": " not in part:  # parts of a question are among its notes
            echo(f"left out: {part} of {model}: {reason}")
    missing = f", with {count(len(notes), 'note')} on what could not be drawn" if notes else ""
    for path in written:
        echo(f"written to {path}{missing}")


def _left_out(results: Sequence["Result"]) -> dict[tuple[str, str], str]:
    """What was not asked of each model, and why."""
    left_out = {}
    for result in results:
        model = Path(result.provenance["model"]).name
        for part, reason in result.left_out.items():
            left_out[model, part] = reason
    return left_out


def _records(table: Any) -> list[Any]:
    records: list[Any] = json.loads(table.to_json(orient="records", double_precision=15))
    return records


def _values(answer: "Answer") -> dict[str, Any]:
    import pandas as pd

    values: dict[str, Any] = json.loads(pd.Series(dict(answer.values), dtype=object).to_json(double_precision=15))
    return values


def _answer_lines(result: "Result") -> Iterator[str]:
    """The answer of a result, with the number of its verdicts of each kind, and as many findings as a page shows."""
    from interp.analyses.registry import load
    from interp.results.findings import counted

    if answer := result.answer:
        verdicts = f" Verdicts: {counted(result.findings)}." if result.findings else ""
        yield f"{load(result.analysis).title}: {answer}{verdicts}"
    yield from map(str, result.findings[:_SHOWN_FINDINGS])
    if more := result.findings[_SHOWN_FINDINGS:]:
        yield f"{count(len(more), 'more answer')} on the page: {counted(more)}."


def _heading(title: str) -> str:
    """A title, marked with # if another program reads the output, so that it can skip the title."""
    return title if on_terminal() else f"# {title}"


_HEADINGS = {
    "kl_unigram_model": "KL(u‖q)", "kl_model_unigram": "KL(q‖u)", "js": "JS",
    "balanced_nll": "bal. NLL", "n_tokens": "tokens",
}  # fmt: skip


def _print_table(table: Any, title: str) -> None:
    """On a terminal, print ruled tables with short headings, as many as are needed to fit its width; elsewhere, one
    tab-separated table with the columns' own names."""
    rows = table.map(_cell).to_numpy().tolist()
    if not on_terminal():
        echo("\n".join([_heading(title), *map("\t".join, [list(table.columns), *rows])]))
        return
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    rows = [list(map(visible, row)) for row in rows]
    console = Console(markup=False, highlight=False)
    console.print(visible(title))
    headings = [_HEADINGS.get(column, column) for column in table.columns]
    widths = [max(map(cell_len, column)) + 3 for column in zip(headings, *rows, strict=True)]
    numbers = [column for column, kind in enumerate(table.dtypes) if kind.kind == "f"]
    for columns in _side_by_side(widths, min(numbers, default=0), console.width):
        ruled = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            words = all(isinstance(value, str) for value in table.iloc[:, column])
            ruled.add_column(headings[column], justify="left" if words else "right", no_wrap=True)
        for row in rows:
            ruled.add_row(*(row[column] for column in columns))
        console.print(ruled)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if 0 < abs(value) < 0.001 else f"{value:.4f}"


def _side_by_side(widths: Sequence[int], labels: int, room: int) -> Iterator[list[int]]:
    """The columns of each table that fits: the first `labels` columns, and as many others as there is room for."""
    first = list(range(labels))
    columns = [*first]
    free = room - sum(widths[:labels])
    for column in range(labels, len(widths)):
        if widths[column] > free and len(columns) > labels:
            yield columns
            columns = [*first]
            free = room - sum(widths[:labels])
        columns.append(column)
        free -= widths[column]
    yield columns
