"""Text files: lines, JSON, CSV, Parquet, each of them also compressed. Nothing of them is kept between readings."""

import csv
import gzip
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import TextIOBase
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from interp.checks import unicode_text
from interp.corpora.tables import SAMPLE, cell, choose, sampled
from interp.paths import text_suffix

_LONGEST_LINE = 2**28
_ROWS_AT_ONCE = 256
_KNOWN = re.compile(r"(text|sentence|content|document|label|id|idx)s?[ _]?\d?", re.IGNORECASE)
_KNOWN_ALONE = re.compile(r"((?i:text|sentence)|content|document|utterance|comment|review|prompt|body)s?_?\d?")
_NAME = re.compile(r"[^\W\d][\w.:/()#-]*( [\w.:/()#-]+){0,2}(?<![.:])")
_LONGEST_NAME = 40

Texts: TypeAlias = Callable[[], Iterator[str]]


def file_reader(path: Path, column: str | None) -> tuple[str | None, Texts]:
    """The column of a file that is read, None where its texts have no name, and a function that reads the texts.

    Raises ValueError for a damaged file and where no column can be chosen; both also while reading.
    """
    suffix = text_suffix(path)
    if suffix == ".parquet":
        return _parquet(path, column)
    if suffix in (".csv", ".tsv"):
        return _delimited(path, column)
    if suffix == ".jsonl":
        return _objects(path, lambda: _json_lines(path), column)
    if suffix == ".json":
        return _json(path, column)
    if column is not None:
        raise ValueError(f"{path} is plain text and has no columns; leave column out")
    return None, lambda: (line.strip("\r\n") for line in _lines(path) if line.strip())


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """What is wrong with a file, in one line that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); convert it to UTF-8 first") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is not a whole gzip file ({error})") from None
    except csv.Error as error:
        raise ValueError(f"{path} is not a readable {text_suffix(path)} file ({error})") from None


@contextmanager
def _opened(path: Path, newline: str = "\n") -> Iterator[TextIOBase]:
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with _explained(path), opener(path, "rt", encoding="utf-8-sig", newline=newline) as file:
        yield file


def _lines(path: Path, newline: str = "\n") -> Iterator[str]:
    """The lines of a file, none of which may fill the memory (a few MB of gzip hold a line of gigabytes)."""
    with _opened(path, newline) as file:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise ValueError(
                    f"{path}, line {number}: longer than {_LONGEST_LINE:,} characters; break it into lines"
                )
            yield line


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: found {_kind(row)}, expected an object with a field of text")
        yield f"{path}, line {number}", row


def _objects(
    path: Path, rows: Callable[[], Iterator[tuple[str, dict[str, Any]]]], column: str | None
) -> tuple[str | None, Texts]:
    columns = sampled(row for _, row in rows())
    if not columns:
        return None, lambda: iter(())
    names = list(columns)
    chosen = names[choose(names, list(columns.values()), column, str(path))]

    def read() -> Iterator[str]:
        for where, row in rows():
            yield cell(row.get(chosen), chosen, where)

    return chosen, read


def _json(path: Path, column: str | None) -> tuple[str | None, Texts]:
    data = _whole_json(path)
    if isinstance(data, dict) or not all(isinstance(item, str) for item in data):
        return _objects(path, lambda: _json_rows(path), column)
    if column is not None:
        raise ValueError(f"{path} is a list of strings and has no columns; leave column out")
    return None, lambda: (unicode_text(text, f"{path}, row {i}") for i, text in enumerate(_whole_json(path), 1))


def _whole_json(path: Path) -> Any:
    """A JSON list, or an object of lists."""
    with _opened(path) as file:
        text = file.read()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); a file with one object a line is a .jsonl") from None
    if isinstance(data, dict) and data and all(isinstance(values, list) for values in data.values()):
        lengths = {name: len(values) for name, values in data.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{path} has columns of {sorted(set(lengths.values()))} rows, expected as many in each")
    elif not isinstance(data, list):
        raise ValueError(
            f"{path} holds {_kind(data)}; expected a list of strings, a list of objects, or an object of columns that "
            "are lists"
        )
    return data


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    data = _whole_json(path)
    if isinstance(data, dict):
        rows: Iterable[Any] = (dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True))
    else:
        rows = data
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {number}: found {_kind(row)}; expected objects alone, or strings alone")
        yield f"{path}, row {number}", row


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _delimited(path: Path, column: str | None) -> tuple[str | None, Texts]:
    first = list(islice(_rows(path), SAMPLE + 1))
    if not first:
        return None, lambda: iter(())
    headed = column is not None or has_header(first)
    strings = _strings(first[headed:], len(first[0]))
    if headed:
        index = choose(first[0], strings, column, str(path), "; where its first line is no header, put one above it")
    elif len(strings) > 1 and not any(strings):
        raise ValueError(f"{path} has no column of text in its first {SAMPLE} rows; expected one")
    else:
        index = strings.index(True) if any(strings) else 0

    def read() -> Iterator[str]:
        for row in islice(_rows(path), int(headed), None):
            if row[index]:
                yield row[index]

    return (first[0][index] if headed else None), read


def has_header(rows: list[list[str]]) -> bool:
    """Whether the first row of a table names its columns; see `interp.corpora.load`."""
    names = rows[0]
    if len(names) == 1 and _KNOWN_ALONE.fullmatch(names[0]):
        return True
    labels = names[1:] if len(names) > 1 and not names[0] else names
    if labels == [str(i) for i in range(len(labels))]:
        return any(_strings(rows[1:], len(names)))
    if len(names) == 1 or len(set(labels)) < len(labels) or max(map(len, labels)) > _LONGEST_NAME:
        return False
    if all(map(str.isidentifier, labels)):
        return True
    return all(map(_NAME.fullmatch, labels)) and any(map(_KNOWN.fullmatch, labels))


def _strings(rows: list[list[str]], width: int) -> list[bool]:
    """Which columns hold more than numbers."""
    return [not all(_is_number(row[i]) for row in rows) for i in range(width)]


def _is_number(text: str) -> bool:
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True


def _rows(path: Path) -> Iterator[list[str]]:
    """The rows of a .csv or .tsv, all of one width; blank lines are left out."""
    csv.field_size_limit(2**31 - 1)
    delimiter = "\t" if text_suffix(path) == ".tsv" else ","
    rows = csv.reader(_lines(path, newline=""), delimiter=delimiter, strict=True)
    width = 0
    with _explained(path):
        for row in rows:
            width = width or len(row)
            if row and len(row) != width:
                raise ValueError(
                    f"{path}, line {rows.line_num}: {len(row)} columns, expected {width} as in the first line; a text "
                    f'with a {"tab" if delimiter == chr(9) else "comma"} in it needs quotes: "Yes, it is."'
                )
            if row:
                yield row


def _parquet(path: Path, column: str | None) -> tuple[str | None, Texts]:
    import pyarrow

    def is_text(kind: Any) -> bool:
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        tests = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
        return any(test(kind) for test in tests)

    with _parquet_file(path) as file:
        schema = file.schema_arrow
    if not schema.names:
        return None, lambda: iter(())
    chosen = schema.names[choose(schema.names, [is_text(kind) for kind in schema.types], column, str(path))]

    def read() -> Iterator[str]:
        number = 0
        with _parquet_file(path) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[chosen]):
                for value in batch.column(chosen).to_pylist():
                    number += 1
                    yield cell(value, chosen, f"{path}, row {number}")

    return chosen, read


@contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    """A Parquet file; a compressed one unpacked to a temporary file, since it is not read from front to back."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with _explained(path), _unpacked(path) as file, ParquetFile(file) as parquet:
            yield parquet
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable .parquet file ({' '.join(str(error).split())})") from None


@contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    if path.suffix != ".gz":
        with path.open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        with gzip.open(path) as packed:
            shutil.copyfileobj(packed, copy)
        copy.seek(0)
        yield copy
