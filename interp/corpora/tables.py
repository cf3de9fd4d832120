"""Tables of texts: their columns, which of them is read, and the rows of DataFrames and of datasets."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import pandas as pd

from interp.checks import unicode_text

__all__ = ["SAMPLE", "STRINGS", "UNNAMED", "Columns", "Row", "Table", "dataset_table", "frame_table", "is_dataset"]
__all__ += ["numbered", "reads_network", "sampled"]

SAMPLE = 100
"""Rows that are looked at to see which columns hold strings, where no schema says it."""
STRINGS = ("string", "large_string", "string_view")
"""The types of Arrow that hold text."""
UNNAMED = ""
"""The only column of a text that has no columns: lines, a list of strings, cells without a header."""
_NETWORK = re.compile(r"\b(hf|https?|ftp|s3|gs|gcs|az|abfss?)://")

Row: TypeAlias = tuple[str, Mapping[str, Any]]
"""The place of a row, such as "a.csv, line 3", and its cells by column."""
Columns: TypeAlias = list[tuple[str, bool]]
"""The columns of a table, and whether they hold strings."""


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a table that is called `name`, and a function that reads the rows, at least the columns asked for.

    An empty cell is no text where the table is `separated` by commas or tabs.
    """

    name: str
    columns: Columns
    read: Callable[[Sequence[str]], Iterable[Row]]
    separated: bool = False

    def choose(self, column: str | None) -> str:
        """The column to read: `column`; else the only one, the one called `text`, or the only one that holds strings.

        Raises ValueError where that is none, or several.
        """
        names = [name for name, _ in self.columns]
        shown = ", ".join(" ".join(name.split())[:60] for name in names[:20]) + ", …" * (len(names) > 20)
        if not names:
            raise ValueError(f"{self.name} is empty: it has no text in it")
        if column is not None and column not in names:
            if names == [UNNAMED]:
                raise ValueError(f"{self.name} has texts and no columns, so no column {column!r}; name none")
            raise ValueError(f"{self.name} has no column {column!r}; found {shown}")
        found = [column] if column is not None else names if len(names) == 1 else ["text"] * ("text" in names)
        found = found or [name for name, of_strings in self.columns if of_strings]
        if len(found) != 1:
            what = "several columns" if found else "no column"
            hint = "; where its first line is no header, put one above it" if self.separated else ""
            raise ValueError(f"{self.name} has {what} of text; found {shown}; name one with column= (--column){hint}")
        if names.count(found[0]) > 1:
            several = f"several columns {found[0]!r}; found {shown}"
            raise ValueError(f"{self.name} has {several}; give each a name of its own")
        return found[0]

    def texts(self, column: str) -> Iterator[str]:
        """The texts of a column. Raises ValueError while reading for what is no text."""
        for place, row in self.read([column]):
            value = row.get(column)
            if not isinstance(value, str):
                found = "no value" if pd.api.types.is_scalar(value) and pd.isna(value) else type(value).__name__
                raise ValueError(f"{place}: no text in column {column!r} (found: {found}); leave out rows without text")
            if value or not self.separated:
                yield unicode_text(value, place)


def sampled(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """The columns of the first rows."""
    columns: dict[str, bool] = {}
    for row in islice(rows, SAMPLE):
        for name, value in row.items():
            columns[name] = columns.get(name, False) or isinstance(value, str)
    return list(columns.items())


def numbered(name: str, rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The rows of a table, each after its place."""
    return ((f"{name}, row {number}", row) for number, row in enumerate(rows, 1))


def frame_table(source: pd.DataFrame | pd.Series, name: str) -> Table:
    """A DataFrame or a Series as a table."""
    frame = pd.DataFrame(source)
    frame = frame.set_axis([str(column) for column in frame.columns], axis=1)
    cells = [(column, frame.iloc[:SAMPLE, i]) for i, column in enumerate(frame.columns) if len(frame)]
    columns = [(column, any(isinstance(value, str) for value in values)) for column, values in cells]

    def read(chosen: Sequence[str]) -> Iterator[Row]:
        cells = zip(*(frame[column].tolist() for column in chosen), strict=True)
        return numbered(name, (dict(zip(chosen, row, strict=True)) for row in cells))

    return Table(name, columns, read)


def is_dataset(source: object, *classes: str) -> bool:
    """Whether something is of one of these classes of `datasets`, which is not imported for that."""
    module = sys.modules.get("datasets")
    return any(isinstance(source, getattr(module, name, ())) for name in classes)


def dataset_table(dataset: Any, name: str) -> Table:
    """A `datasets.Dataset` or `IterableDataset` as a table."""
    dataset = dataset.with_format(None)
    kinds = {column: getattr(kind, "dtype", None) for column, kind in (dataset.features or {}).items()}

    def read(chosen: Sequence[str]) -> Iterator[Row]:
        rows = dataset.select_columns(list(chosen)) if kinds else dataset  # nothing else is decoded
        if is_dataset(dataset, "Dataset"):
            parts = ((part.keys(), zip(*part.values(), strict=True)) for part in rows.iter(1_000))
            rows = (dict(zip(names, row, strict=True)) for names, part in parts for row in part)
        return numbered(name, rows)

    return Table(name, [(column, kind in STRINGS) for column, kind in kinds.items()] or sampled(dataset), read)


def reads_network(part: Any) -> bool:
    """Whether an IterableDataset, or what it is made of, names files on a network."""
    if isinstance(part, str):
        return bool(_NETWORK.search(part))
    if isinstance(part, Mapping):
        return any(map(reads_network, part.values()))
    if isinstance(part, list | tuple):
        return any(map(reads_network, part))
    return "Iterable" in type(part).__name__ and reads_network(getattr(part, "__dict__", {}))
