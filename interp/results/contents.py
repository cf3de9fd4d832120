"""The tables of a result and their columns, which the docstring of its class lists."""

import inspect
import re
import textwrap
from collections.abc import Mapping

from interp.results.columns import Column, column

__all__ = ["columns_of_tables", "with_meanings"]
__dir__ = __all__.copy

_TABLE = re.compile(r"^((?:- )?`(\w+)`) \(([^)]+)\)(:.*(?:\n +.+)*)", re.M)
_COLUMN = re.compile(r"\w+±?")
_WIDTH = 116


def columns_of_tables(docstring: str) -> dict[str, list[str]]:
    """Return the columns of each table that a docstring lists as ``- `table` (column, column, …): description``.

    `name±` is a column with the ends of its interval, whose names are without `_corrected`.

    Examples:
        >>> columns_of_tables("- `kl` (bias, kl_corrected±): one row per bias.")
        {'kl': ['bias', 'kl_corrected', 'kl_low', 'kl_high']}
    """
    tables = {}
    for _, table, listed, _ in _TABLE.findall(inspect.cleandoc(docstring)):
        tables[table] = [name for entry in _COLUMN.findall(listed) for name in _names(entry)]
    return tables


def with_meanings(docstring: str, headings: Mapping[str, Column]) -> str:
    """Return a docstring in which the columns of each table are a list with their meanings.

    Examples:
        >>> from interp.results.columns import COMMON
        >>> print(with_meanings("- `rates` (layer, spearman±): one row per layer.", COMMON))
        - `rates`: one row per layer.
            - `layer`: Number of the block, counted from 0 as in TransformerLens.
            - `spearman`, `spearman_low`, `spearman_high`: Spearman's rank correlation.
    """

    def described(found: re.Match[str]) -> str:
        start, _, listed, description = found.groups()
        items = [textwrap.fill(" ".join(f"{start}{description}".split()), _WIDTH, subsequent_indent="  ")]
        for entry in _COLUMN.findall(listed):
            names = _names(entry)
            item = f"    - `{'`, `'.join(names)}`: {column(names[0], headings).meaning}"
            items.append(textwrap.fill(item.rstrip(": "), _WIDTH, subsequent_indent="      "))
        return "\n".join(items)

    return _TABLE.sub(described, inspect.cleandoc(docstring))


def _names(entry: str) -> list[str]:
    name = entry.removesuffix("±")
    base = name.removesuffix("_corrected")
    return [name] if name == entry else [name, f"{base}_low", f"{base}_high"]
