"""Tables of texts: files (lines, JSON, CSV, Parquet, also compressed), DataFrames and datasets.

No part of a file is kept between readings.
"""

import csv
import gzip
import io
import json
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeAlias

import pandas as pd
import pyarrow
import xxhash
from pyarrow.parquet import ParquetFile

from interp.support.checks import unicode_text
from interp.support.paths import text_suffix
from interp.support.words import argument, meant

__all__ = ["SAMPLE", "STRINGS", "UNNAMED", "Columns", "Table", "TableRow", "dataset_table", "frame_table", "has_header"]
__all__ += ["is_dataset", "numbered", "opened", "reads_network", "sampled", "shortened"]

LONGEST_LINE = 2**28
ROWS_AT_ONCE = 256
_DELIMITERS = {".csv": (",", "comma"), ".tsv": ("\t", "tab")}
_KNOWN = re.compile(r"(text|sentence|content|document|label|id|idx)s?[ _]?\d?", re.IGNORECASE)
_KNOWN_ALONE = re.compile(r"((?i:text|sentence)|content|document|utterance|comment|review|prompt|body)s?_?\d?")
_NAME = re.compile(r"[^\W\d][\w.:/()#-]*( [\w.:/()#-]+){0,2}(?<![.:])")
_LONGEST_NAME = 40
_NETWORK = re.compile(r"\b(hf|https?|ftp|s3|gs|gcs|az|abfss?)://")
SAMPLE = 100
"""The number of rows used to find out which columns hold strings if there is no schema."""
STRINGS = ("string", "large_string", "string_view")
"""The Arrow types of text."""
UNNAMED = ""
"""The name of the only column of data without named columns: lines, a list of strings, cells without a header."""

TableRow: TypeAlias = tuple[str, Mapping[str, Any]]
"""The place of a row, such as "a.csv, line 3", and its cells by column."""
Columns: TypeAlias = list[tuple[str, bool]]
"""The columns of a table, and whether each holds strings."""


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of the table `name`, and a function that reads its rows with (at least) the columns asked for.

    If the table is `separated` by commas or tabs, empty cells do not count as texts. `unnamed` are the columns that
    cannot be read because no header names them.
    """

    name: str
    columns: Columns
    read: Callable[[Sequence[str]], Iterable[TableRow]]
    separated: bool = False
    unnamed: Columns = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [name for name, _ in self.columns]

    @property
    def shown(self) -> str:
        """The names of the columns, for an error."""
        return shortened(self.names)

    def choose(self, column: str | None) -> str:
        """Choose the column to read: `column` if given, else the only column, the one called `text`, or the only one
        with strings.

        Raises ValueError if there is no such column, or more than one.
        """
        names = self.names
        columns = self.shown
        if not names:
            raise ValueError(f"{self.name} is empty: it has no text in it")
        if column is not None and column not in names:
            if names == [UNNAMED]:
                raise ValueError(f"{self.name} has texts but no columns, so no column {column!r}; leave column out")
            raise ValueError(f"{self.name} has no column {column!r}{meant(column, names)}; found {columns}")
        candidates = [column] if column is not None else names if len(names) == 1 else ["text"] * ("text" in names)
        candidates = candidates or [name for name, of_strings in self.columns if of_strings]
        if len(candidates) != 1:
            n_columns = "several columns" if candidates else "no column"
            hint = "; if its first line is not a header, add one above it" if self.separated else ""
            raise ValueError(
                f"{self.name} has {n_columns} of text; found {columns}; name one with {argument('column')}{hint}"
            )
        if names.count(candidates[0]) > 1:
            several = f"several columns {candidates[0]!r}; found {columns}"
            raise ValueError(f"{self.name} has {several}; give each a different name")
        return candidates[0]

    def not_read(self, column: str) -> Columns:
        """Return all columns but the one that is read."""
        columns = [column_type for column_type in self.columns if column_type[0] != column]
        return [*columns, *self.unnamed]

    def texts(self, column: str) -> Iterator[str]:
        """Yield the texts of a column. While reading, raises ValueError for a value that is not text."""
        for place, row in self.read([column]):
            value = row.get(column)
            if not isinstance(value, str):
                kind = "no value" if pd.api.types.is_scalar(value) and pd.isna(value) else type(value).__name__
                raise ValueError(f"{place}: no text in column {column!r} (found: {kind}); leave out rows without text")
            if value or not self.separated:
                yield unicode_text(value, place)


def shortened(names: Sequence[str]) -> str:
    """List the names of columns, for a message."""
    return ", ".join(" ".join(name.split())[:60] for name in names[:20]) + ", …" * (len(names) > 20)


def sampled(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """Find the columns in the first rows."""
    columns: dict[str, bool] = {}
    for row in islice(rows, SAMPLE):
        for name, value in row.items():
            columns[name] = columns.get(name, False) or isinstance(value, str)
    return list(columns.items())


def numbered(name: str, rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a table, each preceded by its place."""
    for number, row in enumerate(rows, 1):
        yield f"{name}, row {number}", row


def named(columns: Iterable[str], rows: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table by the names of its columns."""
    names = list(columns)
    for row in rows:
        yield dict(zip(names, row, strict=True))


def frame_table(source: pd.DataFrame | pd.Series, name: str) -> Table:
    """Return a DataFrame or a Series as a table."""
    frame = pd.DataFrame(source)
    frame = frame.set_axis(list(map(str, frame.columns)), axis=1)
    columns = []
    for i, column in enumerate(frame.columns if len(frame) else ()):
        columns.append((column, any(isinstance(value, str) for value in frame.iloc[:SAMPLE, i])))

    def read(chosen: Sequence[str]) -> Iterator[TableRow]:
        values = [frame[column].tolist() for column in chosen]
        return numbered(name, named(chosen, zip(*values, strict=True)))

    return Table(name, columns, read)


def is_dataset(source: object, *classes: str) -> bool:
    """Whether something is an instance of one of these classes of `datasets`, without importing that library."""
    module = sys.modules.get("datasets")
    return any(isinstance(source, getattr(module, name, ())) for name in classes)


def dataset_table(dataset: Any, name: str) -> Table:
    """Return a `datasets.Dataset` or `IterableDataset` as a table, with the rows and columns that iterating over it
    gives.

    What makes tensors or arrays of its numbers is left out, because texts are the same in any format.
    """
    look = getattr(dataset, "format", {})  # a streamed dataset has none
    if look.get("type") == "custom":  # with_transform or set_transform
        return Table(name, sampled(dataset), lambda _: numbered(name, dataset))
    if look and not look["output_all_columns"]:
        dataset = dataset.select_columns(look["columns"])
    dataset = dataset.with_format(None)
    columns = []
    for column, kind in (dataset.features or {}).items():
        columns.append((column, getattr(kind, "dtype", None) in STRINGS))

    def read(chosen: Sequence[str]) -> Iterator[TableRow]:
        rows = dataset.select_columns(list(chosen)) if columns else dataset  # other columns are not decoded
        if is_dataset(dataset, "Dataset"):
            batches = rows.iter(1_000)
            rows = chain.from_iterable(named(batch, zip(*batch.values(), strict=True)) for batch in batches)
        return numbered(name, rows)

    return Table(name, columns or sampled(dataset), read)


def reads_network(part: Any) -> bool:
    """Whether an IterableDataset, or one of its parts, refers to files on a network."""
    if isinstance(part, str):
        return bool(_NETWORK.search(part))
    if isinstance(part, Mapping):
        return any(map(reads_network, part.values()))
    if isinstance(part, list | tuple):
        return any(map(reads_network, part))
    return "Iterable" in type(part).__name__ and reads_network(getattr(part, "__dict__", {}))


@contextmanager
def opened(path: Path, *, header: bool = False, digest: xxhash.xxh3_128 | None = None) -> Iterator[Table]:
    """The table in a file, which is open during the context and can be read once.

    Args:
        header: whether the first line of a `.csv` or `.tsv` certainly names the columns. Otherwise this is guessed.
        digest: a hash that is first updated with the bytes of the file.

    Raises ValueError for a damaged file, also while reading, and for a file that is written to meanwhile.
    """
    suffix = text_suffix(path)
    name = str(path)
    with path.open("rb") as packed, _readable_errors(path, suffix), _unwritten(packed, name), ExitStack() as stack:
        while digest is not None and (block := packed.read(2**20)):
            digest.update(block)
        packed.seek(0)
        file: Any = gzip.GzipFile(fileobj=packed) if path.suffix == ".gz" else packed
        if suffix == ".parquet":
            if file is not packed:  # this format is not read from front to back
                copy = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(file, copy)
                file = copy
            yield _parquet(ParquetFile(file), name)
            return
        content = io.TextIOWrapper(file, "utf-8-sig", newline="" if suffix in _DELIMITERS else "\n")
        if suffix == ".json":
            yield _json(content.read(), name)
            return
        lines = _lines(content, name)
        if suffix == ".jsonl":
            yield _objects(_json_lines(lines, name), name)
        elif suffix in _DELIMITERS:
            yield _separated(_rows(lines, name, *_DELIMITERS[suffix]), name, header)
        else:
            yield Table(name, [(UNNAMED, True)], lambda _: _texts(lines, name))


@contextmanager
def _unwritten(file: IO[bytes], name: str) -> Iterator[None]:
    """Raise ValueError at the end of the context if the open file was written to in it."""
    before = os.fstat(file.fileno())
    yield
    after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ValueError(f"{name} was written to while it was read; read it again when it is complete")


@contextmanager
def _readable_errors(path: Path, suffix: str) -> Iterator[None]:
    """Turn errors of reading a file into one line that names the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); convert it to UTF-8 first") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is not a complete gzip file ({error}); copy or compress it again") from None
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not a readable {suffix} file ({reason})") from None


def _lines(file: io.TextIOWrapper, name: str) -> Iterator[str]:
    """The lines of a file. Very long lines are refused, because a few MB of gzip can hold a line of gigabytes."""
    for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), ""), 1):
        if len(line) == LONGEST_LINE:
            raise ValueError(f"{name}, line {number}: longer than {LONGEST_LINE:,} characters; break it into lines")
        yield line


def _json_lines(lines: Iterable[str], name: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{name}, line {number}"
            try:
                yield place, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place}: not JSON ({error})") from None


def _json(text: str, name: str) -> Table:
    """A JSON list of strings or of objects, or an object of lists."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON ({error}); a file with one object per line is a .jsonl") from None
    rows: Iterable[Any] = data
    if isinstance(data, dict) and data and all(isinstance(values, list) for values in data.values()):
        lengths = sorted({len(values) for values in data.values()})
        if len(lengths) > 1:
            raise ValueError(f"{name} has columns of {lengths} rows, expected columns of equal length")
        rows = named(data, zip(*data.values(), strict=True))
    elif not isinstance(data, list):
        raise ValueError(f"{name} holds {_kind(data)}; expected a list of strings or of objects, or an object of lists")
    elif all(isinstance(item, str) for item in data):
        rows = ({UNNAMED: text} for text in data)
    return _objects(numbered(name, rows), name)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _objects(rows: Iterable[tuple[str, Any]], name: str) -> Table:
    """A table of objects, each preceded by its place."""

    def objects() -> Iterator[TableRow]:
        for place, row in rows:
            if not isinstance(row, dict):
                raise ValueError(f"{place}: found {_kind(row)}, expected an object of named fields")
            yield place, row

    below = objects()
    first = list(islice(below, SAMPLE))
    return Table(name, sampled(row for _, row in first), lambda _: chain(first, below))


def _rows(lines: Iterable[str], name: str, delimiter: str, called: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of a .csv or .tsv, all with the same number of cells, each preceded by its place. Blank lines are
    skipped."""
    csv.field_size_limit(2**31 - 1)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    width = last = 0
    try:
        for row in filter(None, rows):
            last = rows.line_num
            if not width:
                _check_delimiter(row, name, called)
            place = f"{name}, line {last}"
            width = width or len(row)
            if len(row) != width:
                problem = f"{place}: {len(row)} columns, expected {width} as in the first line"
                raise ValueError(f'{problem}; a text with a {called} in it needs quotes: "Yes, it is."')
            yield place, row
    except csv.Error as error:
        problem = f"{name}, after line {last}: {error}; is a quote not closed?"
        raise ValueError(f'{problem} A text with quotes in it is written as """Yes"", she said."') from None


def _check_delimiter(first: list[str], name: str, called: str) -> None:
    """Raise ValueError if a first row of a single cell has the names of several columns, separated by something
    else."""
    for delimiter, delimiter_name in ((";", "semicolon"), ("\t", "tab")):
        names = first[0].split(delimiter)
        if len(first) == 1 and len(names) > 1 and all(map(str.isidentifier, names)):
            problem = f"{name} has a {delimiter_name} between the names of its columns ({', '.join(names)})"
            raise ValueError(f"{problem}, expected a {called}; save it as a .csv with commas or a .tsv with tabs")


def _separated(rows: Iterator[tuple[str, list[str]]], name: str, header: bool) -> Table:
    """The rows of a .csv or .tsv as a table. Without a header, only the first column that holds more than numbers can
    be read."""
    first = list(islice(rows, SAMPLE + 1))
    if not first:
        return Table(name, [], lambda _: [])
    cells = [row for _, row in first]
    names = cells[0]
    headed = header or has_header(cells)
    strings = _strings(cells[headed:], len(names))
    if headed:
        below = ((place, dict(zip(names, row, strict=True))) for place, row in chain(first[1:], rows))
        return Table(name, list(zip(names, strings, strict=True)), lambda _: below, separated=True)
    if len(strings) > 1 and not any(strings):
        raise ValueError(f"{name} has no column of text in its first {SAMPLE} rows; expected one")
    index = strings.index(True) if any(strings) else 0
    unnamed = ((place, {UNNAMED: row[index]}) for place, row in chain(first, rows))
    unread = [(f"column {i}", of_strings) for i, of_strings in enumerate(strings, 1) if i != index + 1]
    return Table(name, [(UNNAMED, True)], lambda _: unnamed, separated=True, unnamed=unread)


def _texts(lines: Iterable[str], name: str) -> Iterator[TableRow]:
    """The lines of a file that are not empty, each preceded by its place."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{name}, line {number}", {UNNAMED: line.strip("\r\n")}


def has_header(rows: list[list[str]]) -> bool:
    """Whether the first row of a table names its columns; see `interp.corpora.load`."""
    names = rows[0]
    if len(names) == 1 and _KNOWN_ALONE.fullmatch(names[0]):
        return True
    labels = names[1:] if len(names) > 1 and not names[0] else names
    if labels == list(map(str, range(len(labels)))):
        return any(_strings(rows[1:], len(names)))
    if len(names) == 1 or len(set(labels)) < len(labels) or max(map(len, labels)) > _LONGEST_NAME:
        return False
    if all(map(str.isidentifier, labels)):
        return True
    return all(map(_NAME.fullmatch, labels)) and any(map(_KNOWN.fullmatch, labels))


def _strings(rows: list[list[str]], width: int) -> list[bool]:
    """Whether each column holds more than numbers."""
    of_strings = []
    for i in range(width):
        of_strings.append(not all(_is_number(row[i]) for row in rows))
    return of_strings


def _is_number(text: str) -> bool:
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True


def _parquet(file: ParquetFile, name: str) -> Table:
    if not file.metadata.num_rows:  # its columns may have no type
        return Table(name, [], lambda _: [])
    columns = []
    for column, kind in zip(file.schema_arrow.names, file.schema_arrow.types, strict=True):
        values = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        columns.append((column, str(values) in STRINGS))

    def read(chosen: Sequence[str]) -> Iterator[TableRow]:
        batches = file.iter_batches(ROWS_AT_ONCE, columns=list(chosen))
        return numbered(name, chain.from_iterable(batch.to_pylist() for batch in batches))

    return Table(name, columns, read)
