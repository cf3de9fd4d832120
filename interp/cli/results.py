"""`interp show`: what a run found, and its tables, as text or in the formats of other programs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interp.cli import flags
from interp.cli.output import check_writable, show as say
from interp.cli.screen import echo, on_terminal
from interp.support.words import meant

if TYPE_CHECKING:
    import pandas as pd

    from interp.results.result import Result

__all__ = ["results_of", "show"]

_OUT = typer.Option(help="With --format: directory to write files to.", metavar="DIR", parser=flags.path)
_ROWS = 20  # the number of rows of a table that a terminal shows


def show(
    directory: flags.RunArgument,
    table: Annotated[str | None, typer.Argument(help="Name of a table, such as kl or frequency/kl.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="csv, latex or json; with --out also xlsx.", metavar="A,B,…")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Columns of TABLE, by their Python names; an interval comes with its value.", metavar="A,B,…"
        ),
    ] = None,
    out: Annotated[Path | None, _OUT] = None,
    as_json: flags.JsonFlag = False,
) -> None:
    """Show the findings and tables of a run.

    Without TABLE, prints the findings and the names of the tables. With TABLE, prints that table (on a terminal, only
    its first rows). --format prints the table as csv, latex or json. With --out it writes files instead, for all
    tables if none is named. latex has the headings of the HTML page and the columns of most interest; --columns
    chooses others.
    """
    from interp.results.exports import export, written_as

    formats = [] if form is None else flags.separated(form)
    _check_formats(formats, table, out, columns)
    check_runs([directory])
    if out is not None:
        check_writable(out)
    results = results_of(directory)
    if table is None and out is None:
        say({"tables": ("tables", _listed(results))}, as_json=as_json, results=results.values())
        return
    named = None if columns is None else flags.separated(columns)
    chosen = _chosen(results, table, named, directory)
    looks: dict[str, dict[str, Any]] = {}
    for place, tables in chosen.items():
        looks[place] = {name: results[place].look(name, named) for name in tables}
    if out is not None:
        written: list[Path] = []
        for place, tables in chosen.items():
            written.extend(export(tables, out, place, formats, looks[place]))
        say({}, *written, as_json=as_json)
    elif formats:
        if len(chosen) > 1:
            places = ", ".join(chosen)
            raise ValueError(f"{places} each have a table {table!r}; name ANALYSIS/TABLE of one run, or add --out")
        [(place, tables)] = chosen.items()
        [(name, rows)] = tables.items()
        echo(written_as(rows, formats[0], **looks[place][name]), end="")
    else:
        heads = {}
        for place, tables in chosen.items():
            for name, rows in tables.items():
                heads[f"{place}/{name}"] = _first(rows, f"{place}/{name}: {results[place].where}")
        say(heads, as_json=as_json)


def check_runs(directories: Sequence[Path]) -> None:
    """Raise FileNotFoundError for anything but a directory."""
    for directory in directories:
        if not directory.is_dir():
            name = repr(str(directory))
            problem = f"{name} is not a directory" if directory.exists() else f"directory {name} does not exist"
            raise FileNotFoundError(f"{problem}; expected the --out of a run")


def _check_formats(formats: list[str], table: str | None, out: Path | None, columns: str | None) -> None:
    """Raise ValueError for formats that are unknown, and for options that do not fit together."""
    from interp.results.exports import check_formats

    check_formats(formats)
    if formats and out is None and (table is None or len(formats) > 1 or formats == ["xlsx"]):
        problem = f"--format {','.join(formats)} writes files: add --out"
        raise ValueError(f"{problem}. To print one table, name it and csv, latex or json")
    if out is not None and not formats:
        raise ValueError("--out writes files; choose their --format: csv, xlsx, latex, json, or several of these")
    if columns is not None and table is None:
        raise ValueError("--columns chooses columns of one table; name it")


def results_of(directory: Path) -> dict[str, "Result"]:
    """The results of a run by the name of the analysis; if there are several runs, with the run's name in front."""
    from interp.pages.page import find_runs

    results = {}
    for run in find_runs(directory):
        prefix = "" if run.directory == directory else f"{run.directory.name}_"
        for name, result in run.results.items():
            results[prefix + name] = result
    return results


def _chosen(
    results: Mapping[str, "Result"], table: str | None, columns: Sequence[str] | None, directory: Path
) -> dict[str, dict[str, "pd.DataFrame"]]:
    """The tables of each result in a directory, without results that have none. Raises ValueError if none has any."""
    chosen = {}
    for place, result in results.items():
        if tables := _tables(result, table, columns):
            chosen[place] = tables
    if not chosen:
        names = _listed(results)["table"].unique()
        suggestion = meant(table, [*names, *(name.partition("/")[2] for name in names)])
        raise ValueError(f"{directory} has no table {table!r}{suggestion}; expected one of {', '.join(names)}")
    return chosen


def _tables(result: "Result", table: str | None, columns: Sequence[str] | None) -> dict[str, "pd.DataFrame"]:
    """All tables of a result, or the one called `table`, with or without the name of the analysis in front. If columns
    are named, the table has only these."""
    from interp.results.columns import with_columns

    tables = {}
    for name in (*result.tables, *result.dense):
        if table in (None, name, f"{result.analysis}/{name}"):
            rows = result.dense[name].table if name in result.dense else result.tables[name]
            tables[name] = rows if columns is None else with_columns(rows, columns, result.columns)
    return tables


def _listed(results: Mapping[str, "Result"]) -> "pd.DataFrame":
    """The tables that have rows; of several runs, each with its run."""
    import pandas as pd

    rows = []
    for place, result in results.items():
        run = place.removesuffix(result.analysis).rstrip("_")
        tables: dict[str, Any] = dict(result.tables, **result.dense)
        for name, table in tables.items():
            if len(table):
                rows.append((run, f"{result.analysis}/{name}", len(table)))
    table = pd.DataFrame(rows, columns=["run", "table", "rows"])
    return table if table["run"].any() else table.drop(columns="run")


def _first(rows: "pd.DataFrame", title: str) -> tuple[str, "pd.DataFrame"]:
    """A table with its title; on a terminal, only the first rows."""
    if len(rows) <= _ROWS or not on_terminal():
        return title, rows
    return f"{title} ({_ROWS} of {len(rows):,} rows; --format csv prints all of them)", rows.head(_ROWS)
