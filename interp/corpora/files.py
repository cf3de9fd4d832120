"""Text files: lines, JSON, CSV, Parquet, each of them also compressed. Nothing of them is kept between readings."""

import csv
import gzip
import io
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow
import xxhash
from pyarrow.parquet import ParquetFile

from interp.checks import unicode_text
from interp.corpora.tables import SAMPLE, STRINGS, cell, choose, sampled
from interp.paths import text_suffix

_LONGEST_LINE = 2**28
_ROWS_AT_ONCE = 256
_KNOWN = re.compile(r"(text|sentence|content|document|label|id|idx)s?[ _]?\d?", re.IGNORECASE)
_KNOWN_ALONE = re.compile(r"((?i:text|sentence)|content|document|utterance|comment|review|prompt|body)s?_?\d?")
_NAME = re.compile(r"[^\W\d][\w.:/()#-]*( [\w.:/()#-]+){0,2}(?<![.:])")
_LONGEST_NAME = 40

Column: TypeAlias = tuple[str | None, Iterator[str]]
"""The column that is read, None where its texts have no name, and its texts."""


@contextmanager
def opened(path: Path, column: str | None, digest: xxhash.xxh3_128 | None = None) -> Iterator[Column]:
    """The texts of a file, which is open while they are read; a digest is updated with its bytes before.

    Raises ValueError for a damaged file and where no column can be chosen; both also while reading.
    """
    with path.open("rb") as packed, _explained(path), ExitStack() as stack:
        while digest is not None and (block := packed.read(2**20)):
            digest.update(block)
        packed.seek(0)
        file: Any = gzip.GzipFile(fileobj=packed) if path.suffix == ".gz" else packed
        suffix = text_suffix(path)
        if suffix == ".parquet":
            if file is not packed:  # it is not read from front to back
                copy = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(file, copy)
                file = copy
            yield _parquet(ParquetFile(file), path, column)
            return
        text = io.TextIOWrapper(file, "utf-8-sig", newline="" if suffix in (".csv", ".tsv") else "\n")
        if suffix == ".json":
            yield _json(text.read(), path, column)
            return
        lines = _lines(text, path)
        if suffix == ".jsonl":
            yield _fields(_json_lines(lines, path), path, column, ", expected an object with a field of text")
        elif suffix in (".csv", ".tsv"):
            yield _cells(_rows(lines, path), path, column)
        elif column is not None:
            raise ValueError(f"{path} is plain text and has no columns; leave column out")
        else:
            yield None, (line.strip("\r\n") for line in lines if line.strip())


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """What is wrong with a file, in one line that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); convert it to UTF-8 first") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is not a whole gzip file ({error})") from None
    except (csv.Error, pyarrow.ArrowException, OSError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{path} is not a readable {text_suffix(path)} file ({why})") from None


def _lines(file: io.TextIOWrapper, path: Path) -> Iterator[str]:
    """The lines of a file, none of which may fill the memory (a few MB of gzip hold a line of gigabytes)."""
    for number, line in enumerate(iter(partial(file.readline, _LONGEST_LINE), ""), 1):
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"{path}, line {number}: longer than {_LONGEST_LINE:,} characters; break it into lines")
        yield line


def _json_lines(lines: Iterable[str], path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield f"{path}, line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from None


def _json(text: str, path: Path, column: str | None) -> Column:
    """The texts of a JSON list, or of an object of lists."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); a file with one object a line is a .jsonl") from None
    rows: Iterable[Any] = data
    if isinstance(data, dict) and data and all(isinstance(values, list) for values in data.values()):
        lengths = sorted({len(values) for values in data.values()})
        if len(lengths) > 1:
            raise ValueError(f"{path} has columns of {lengths} rows, expected as many in each")
        rows = (dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True))
    elif not isinstance(data, list):
        raise ValueError(f"{path} holds {_kind(data)}; expected a list of strings or of objects, or an object of lists")
    elif all(isinstance(item, str) for item in data):
        if column is not None:
            raise ValueError(f"{path} is a list of strings and has no columns; leave column out")
        return None, (unicode_text(text, f"{path}, row {number}") for number, text in enumerate(data, 1))
    numbered = ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))
    return _fields(numbered, path, column, "; expected objects alone, or strings alone")


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _fields(rows: Iterator[tuple[str, Any]], path: Path, column: str | None, expected: str) -> Column:
    """The texts of objects, each after the place where it stands."""

    def objects() -> Iterator[tuple[str, dict[str, Any]]]:
        for where, row in rows:
            if not isinstance(row, dict):
                raise ValueError(f"{where}: found {_kind(row)}{expected}")
            yield where, row

    below = objects()
    first = list(islice(below, SAMPLE))
    columns = sampled(row for _, row in first)
    if not columns:
        return None, iter(())
    chosen = list(columns)[choose(list(columns), list(columns.values()), column, str(path))]
    return chosen, (cell(row.get(chosen), chosen, where) for where, row in chain(first, below))


def _rows(lines: Iterable[str], path: Path) -> Iterator[list[str]]:
    """The rows of a .csv or .tsv, all of one width; blank lines are left out."""
    csv.field_size_limit(2**31 - 1)
    delimiter, called = ("\t", "tab") if text_suffix(path) == ".tsv" else (",", "comma")
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    width = 0
    for row in filter(None, rows):
        width = width or len(row)
        if len(row) != width:
            what = f"{path}, line {rows.line_num}: {len(row)} columns, expected {width} as in the first line"
            raise ValueError(f'{what}; a text with a {called} in it needs quotes: "Yes, it is."')
        yield row


def _cells(rows: Iterator[list[str]], path: Path, column: str | None) -> Column:
    """The texts of the rows of a .csv or .tsv."""
    first = list(islice(rows, SAMPLE + 1))
    if not first:
        return None, iter(())
    names, headed = first[0], column is not None or has_header(first)
    below = first[headed:]
    strings = _strings(below, len(names))
    if headed:
        index = choose(names, strings, column, str(path), "; where its first line is no header, put one above it")
    elif len(strings) > 1 and not any(strings):
        raise ValueError(f"{path} has no column of text in its first {SAMPLE} rows; expected one")
    else:
        index = strings.index(True) if any(strings) else 0
    return (names[index] if headed else None), (row[index] for row in chain(below, rows) if row[index])


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


def _parquet(file: ParquetFile, path: Path, column: str | None) -> Column:
    names, kinds = file.schema_arrow.names, file.schema_arrow.types
    if not names:
        return None, iter(())
    kinds = [kind.value_type if pyarrow.types.is_dictionary(kind) else kind for kind in kinds]
    chosen = names[choose(names, [str(kind) in STRINGS for kind in kinds], column, str(path))]
    batches = file.iter_batches(_ROWS_AT_ONCE, columns=[chosen])
    values = chain.from_iterable(batch.column(chosen).to_pylist() for batch in batches)
    return chosen, (cell(value, chosen, f"{path}, row {number}") for number, value in enumerate(values, 1))
