"""Tables of texts: which column is read, and the texts of a DataFrame or of a dataset of the library `datasets`."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pandas as pd

from interp.checks import unicode_text

SAMPLE = 100
"""Rows that are looked at to see which columns hold strings, where no schema says it."""
STRINGS = ("string", "large_string", "string_view")
"""The types of Arrow that hold text."""
_NETWORK = re.compile(r"\b(hf|https?|ftp|s3|gs|gcs|az|abfss?)://")


def choose(names: Sequence[str], strings: Sequence[bool], column: str | None, where: str, hint: str = "") -> int:
    """The number of the column to read: `column`; else the only one, the one called `text`, or the only one that holds
    strings (`strings` says which do).

    Raises ValueError where that is none, or several.
    """
    shown = ", ".join(" ".join(name.split())[:60] for name in names[:20]) + ", …" * (len(names) > 20)
    if column is not None and column not in names:
        raise ValueError(f"{where} has no column {column!r}; found {shown}")
    found = [column] if column is not None else names if len(names) == 1 else ["text"] if "text" in names else None
    found = [name for name, of_strings in zip(names, strings, strict=True) if of_strings] if found is None else found
    if len(found) != 1:
        what = "several columns" if found else "no column"
        raise ValueError(f"{where} has {what} of text; found {shown}; name one with column= (--column){hint}")
    if names.count(found[0]) > 1:
        raise ValueError(f"{where} has several columns {found[0]!r}; found {shown}; give each a name of its own")
    return names.index(found[0])


def sampled(rows: Iterable[Mapping[str, Any]]) -> dict[str, bool]:
    """The columns of the first rows, and which of them hold strings."""
    columns: dict[str, bool] = {}
    for row in islice(rows, SAMPLE):
        for name, value in row.items():
            columns[name] = columns.get(name, False) or isinstance(value, str)
    return columns


def cell(value: Any, column: str, where: str) -> str:
    """A text of a table. Raises ValueError for what is no text."""
    if not isinstance(value, str):
        found = "no value" if pd.api.types.is_scalar(value) and pd.isna(value) else type(value).__name__
        raise ValueError(f"{where}: no text in column {column!r} (found: {found}); leave out rows without text")
    return unicode_text(value, where)


def frame_texts(table: pd.DataFrame | pd.Series, column: str | None) -> list[str]:
    """The texts of a column of a DataFrame, or of a Series. Raises ValueError for what is no text."""
    what = f"the {type(table).__name__}"
    frame = table.to_frame() if isinstance(table, pd.Series) else table
    if frame.empty:
        return []
    names = [str(name) for name in frame.columns]
    strings = [any(isinstance(value, str) for value in frame.iloc[:SAMPLE, i]) for i in range(len(names))]
    index = choose(names, strings, column, what)
    values = frame.iloc[:, index].tolist()
    return [cell(value, names[index], f"{what}, row {number}") for number, value in enumerate(values, 1)]


def is_dataset(source: object, *classes: str) -> bool:
    """Whether something is of one of these classes of `datasets`, which is not imported for that."""
    module = sys.modules.get("datasets")
    return any(isinstance(source, getattr(module, name, ())) for name in classes)


def dataset_reader(dataset: Any, column: str | None, where: str) -> tuple[str, Callable[[], Iterator[str]]]:
    """The column of a `datasets.Dataset` or `IterableDataset` that is read, and a function that reads its texts.

    Raises ValueError where no column can be chosen; while reading, for what is no text.
    """
    dataset = dataset.with_format(None)
    if dataset.features:
        columns = {name: getattr(kind, "dtype", None) in STRINGS for name, kind in dataset.features.items()}
    else:
        columns = sampled(dataset)
    if not columns:
        raise ValueError(f"{where} is empty; expected at least one text")
    names = list(columns)
    chosen = names[choose(names, list(columns.values()), column, where)]
    if dataset.features:
        dataset = dataset.select_columns([chosen])  # nothing else is decoded

    def read() -> Iterator[str]:
        if is_dataset(dataset, "Dataset"):
            values = (value for batch in dataset.iter(1_000) for value in batch[chosen])
        else:
            values = (row.get(chosen) for row in dataset)
        for number, value in enumerate(values, 1):
            yield cell(value, chosen, f"{where}, row {number}")

    return chosen, read


def reads_network(part: Any) -> bool:
    """Whether an IterableDataset, or what it is made of, names files on a network."""
    if isinstance(part, str):
        return bool(_NETWORK.search(part))
    if isinstance(part, Mapping):
        return any(map(reads_network, part.values()))
    if isinstance(part, list | tuple):
        return any(map(reads_network, part))
    return "Iterable" in type(part).__name__ and reads_network(getattr(part, "__dict__", {}))
