"""Export of tables to the formats of other programs: spreadsheets, LaTeX, JSON."""

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import pandas as pd
from pandas.api.types import is_numeric_dtype

from interp.results.latex import latex
from interp.support.disk import replacing
from interp.support.paths import local_path

__all__ = ["FORMATS", "Format", "check_formats", "export", "written_as"]
__dir__ = __all__.copy

Format: TypeAlias = Literal["csv", "xlsx", "latex", "json"]
FORMATS: tuple[str, ...] = get_args(Format)
_ENDINGS = {"latex": "tex"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes these for the beginning of a formula
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_SHEET_ROWS = 1_048_575  # rows of an Excel sheet below its header
_SHEET_NAME = 31


def written_as(table: pd.DataFrame, form: str, **look: Any) -> str:
    """Write a table as text in one of the formats csv, latex and json (a list of rows).

    `look` has arguments of `interp.results.latex.latex`. They matter only for LaTeX, which is for reading and not for
    computing. In csv, an apostrophe is put before text that a spreadsheet would run as a formula.

    Examples:
        >>> print(written_as(pd.DataFrame({"token": ["=1", "a"], "count": [2, 3]}), "csv"), end="")
        token,count
        '=1,2
        a,3
    """
    if form == "csv":
        return _harmless(table).to_csv(index=False)
    if form == "latex":
        return latex(table, **look)
    return f"{table.to_json(orient='records', force_ascii=False, double_precision=15)}\n"


def check_formats(formats: list[str]) -> None:
    """Raise ValueError for an unknown format, and for xlsx without openpyxl, which is optional."""
    if unknown := [form for form in formats if form not in FORMATS]:
        raise ValueError(f"unknown format {unknown[0]!r}; expected one or more of {', '.join(FORMATS)}")
    if "xlsx" in formats and importlib.util.find_spec("openpyxl") is None:
        raise ValueError("xlsx needs openpyxl, which is not installed; pip install 'interp[xlsx]'")


def export(
    tables: Mapping[str, pd.DataFrame],
    directory: str | os.PathLike[str],
    name: str,
    formats: list[str],
    looks: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Path]:
    """Write tables to `directory`: each as `NAME_TABLE.csv`, `.tex` or `.json`, and as the sheets of one `NAME.xlsx`.

    `looks` has the arguments of `interp.results.latex.latex` for each table.

    Raises FileExistsError before anything is written if one of these files exists. Raises ValueError as `check_formats`
    does, and for a table with more rows than fit on a sheet.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     [path] = export({"kl": pd.DataFrame({"bias": ["ln"]})}, directory, "frequency", ["csv"])
        ...     print(path.name, path.read_text().split())
        frequency_kl.csv ['bias', 'ln']
    """
    check_formats(formats)
    place = local_path(directory)
    paths = {}
    for form in formats:
        for table in tables if form != "xlsx" else ():
            paths[place / f"{name}_{table}.{_ENDINGS.get(form, form)}"] = (form, table)
    book = [place / f"{name}.xlsx"] if "xlsx" in formats else []
    for path in (*paths, *book):
        if os.path.lexists(path):
            raise FileExistsError(f"{path} already exists; choose another directory, or move it")
    for table, rows in tables.items():
        if book and len(rows) > _SHEET_ROWS:
            problem = f"{table} has {len(rows):,} rows, a sheet at most {_SHEET_ROWS:,}"
            raise ValueError(f"{problem}; write it as csv, or name other tables")
    place.mkdir(parents=True, exist_ok=True)
    for path, (form, table) in paths.items():
        with replacing(path) as temporary:
            temporary.write_text(written_as(tables[table], form, **(looks or {}).get(table, {})), encoding="utf-8")
    for path in book:
        with replacing(path) as temporary, pd.ExcelWriter(temporary, engine="openpyxl") as writer:
            for table, rows in tables.items():
                _harmless(rows, controls=False).to_excel(writer, sheet_name=table[:_SHEET_NAME], index=False)
    return [*paths, *book]


def _harmless(table: pd.DataFrame, *, controls: bool = True) -> pd.DataFrame:
    """A table with an apostrophe before each formula, and (unless `controls`) without control characters, which a
    sheet cannot hold."""

    def safe(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        readable = value if controls else _CONTROL.sub("\ufffd", value)
        return f"'{readable}" if readable.startswith(_FORMULA) else readable

    safe_table = table.apply(lambda column: column if is_numeric_dtype(column) else column.map(safe))
    return safe_table.set_axis(list(map(safe, map(str, table.columns))), axis=1)
