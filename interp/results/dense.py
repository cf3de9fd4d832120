"""Tables with one row per combination of labels, kept as labelled arrays that store each label once.

A tidy table of the attention scores of a 70B model takes 72 bytes per row, of which only four hold the number itself.
A `Dense` has one array per column instead (xarray), and makes rows only when they are asked for. On disk it is a
safetensors file that is mapped rather than read: it opens in milliseconds whatever its size, and a slice reads only
its own pages. NetCDF-3, which scipy writes, cannot hold a column beyond 2 GiB and is built whole in memory.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from interp.support.checks import check_choice

if TYPE_CHECKING:
    import xarray

__all__ = ["MOST_ROWS", "Dense", "number_types"]
__dir__ = __all__.copy

MOST_ROWS = 5_000_000
"""Up to this many rows, a result is saved as a tidy table, and kept in float64 while it is made."""
_AT_ONCE = 2_000_000  # rows in each of `Dense.parts`


def number_types(rows: int) -> tuple[type[np.floating], type[np.signedinteger]]:
    """Choose the number types for a result with this many rows: 64 bits up to `MOST_ROWS`, 32 bits beyond."""
    return (np.float64, np.int64) if rows <= MOST_ROWS else (np.float32, np.int32)


@dataclass(frozen=True, eq=False, repr=False)
class Dense:
    """A table with one row per combination of its labels, kept as one array per column.

    Call it to get the rows with some labels as a tidy `pandas.DataFrame`: `scores(layer=3, head=2)`, or
    `scores(layer=3, dim=[48, 97])`. `table` has all rows, and `len` gives their number.

    - `arrays`: the columns as an `xarray.Dataset`. A column that is constant along a dimension does not have it.
    - `dims`: the names of the labels in the order of the rows; the last one changes fastest.
    - `columns`: the names of the table's columns in order, labels included.

    Examples:
        >>> of = {"layer": [0, 1], "key_class": ["comma", "other"], "mean": np.array([[1.0, 2.0], [3.0, 4.0]])}
        >>> means = Dense.of(of | {"n_pairs": (("key_class",), np.array([5, 7]))}, dims=("layer", "key_class"))
        >>> means
        Dense(layer 2 × key_class 2: mean, n_pairs)
        >>> means(layer=1)
           layer key_class  mean  n_pairs
        0      1     comma   3.0        5
        1      1     other   4.0        7
        >>> means.arrays["mean"].sel(key_class="other").max().item()
        4.0
    """

    arrays: "xarray.Dataset"
    dims: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, columns: Mapping[str, Any], dims: Sequence[str]) -> "Dense":
        """Make one from the columns of the table, in order. They are not copied.

        Args:
            columns: the labels of each of `dims`. Any other column is an array over `dims`, or a tuple of fewer dims
                and an array over these.
            dims: the names of the labels, in the order of the rows.

        Raises ValueError if labels are missing or repeated, or if the shape of an array does not fit its labels.
        """
        from xarray import Dataset

        if missing := [dim for dim in dims if dim not in columns]:
            raise ValueError(f"the labels of {', '.join(missing)} are missing; found the columns {', '.join(columns)}")
        labels = {dim: pd.Index(columns[dim]) for dim in dims}
        if twice := [dim for dim, index in labels.items() if not index.is_unique]:
            raise ValueError(f"the labels of {', '.join(twice)} must be different; some occur twice")
        arrays = {}
        for name, value in columns.items():
            if name not in labels:
                arrays[name] = value if isinstance(value, tuple) else (dims, value)
        return cls(Dataset(arrays, labels), tuple(dims), tuple(columns))

    @classmethod
    def of_table(
        cls, table: pd.DataFrame, dims: Sequence[str], fewer: Mapping[str, Sequence[str]] | None = None
    ) -> "Dense":
        """Make one from a tidy table, whose rows may be in any order.

        Args:
            dims: the columns that are labels.
            fewer: for columns that depend on only some of the labels, the names of these.

        Raises ValueError if the table lacks a column or does not have exactly one row per combination of labels, and
        if a column depends on more labels than `fewer` says.
        """
        fewer = fewer or {}
        if missing := [name for name in (*dims, *fewer) if name not in table]:
            raise ValueError(f"the columns {', '.join(missing)} are missing; found {', '.join(map(str, table))}")
        labels = {dim: pd.Index(table[dim].unique()) for dim in dims}
        shape = list(map(len, labels.values()))
        row = np.zeros(len(table), dtype=np.int64)
        for dim, index in labels.items():
            row = row * len(index) + index.get_indexer(table[dim])
        order = np.argsort(row, kind="stable")
        if not np.array_equal(row[order], np.arange(math.prod(shape))):
            expected = f"one for each of {' × '.join(f'{len(index)} {dim}' for dim, index in labels.items())}"
            raise ValueError(f"found {len(table)} rows, expected {expected}; give a complete table, with each row once")
        columns: dict[str, Any] = {}
        for name in map(str, table):
            if name in labels:
                columns[name] = labels[name]
            else:
                values = table[name].to_numpy()[order].reshape(shape)
                columns[name] = _without(values, dims, fewer.get(name, dims), name)
        return cls.of(columns, dims)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Dense":
        """Map a file that `save` wrote. Nothing is read until it is used.

        Raises ValueError if the file is damaged or of another kind.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:  # tensors of "pt" are mapped from the file, those of "np" are copies
                described = json.loads(file.metadata()["arrays"])
                tensors = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118
            labels = {dim: described["labels"].get(dim, tensors.get(dim)) for dim in described["dims"]}
            columns: dict[str, Any] = {}
            for name, dims in described["columns"].items():
                shape = [len(labels[dim]) for dim in dims]
                columns[name] = labels[name] if name in labels else (dims, np.broadcast_to(tensors[name], shape))
            return cls.of(columns, described["dims"])
        except (SafetensorError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged, or not a file of labelled arrays ({error}); run the analysis again"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, with one tensor per column and per numeric label. Other labels go to its metadata.

        An array made by `numpy.broadcast_to` takes one number along the dimensions over which it is constant.
        """
        from safetensors.numpy import save_file

        words = {}
        tensors = {}
        for dim in self.dims:
            index = self.arrays.indexes[dim]
            if pd.api.types.is_numeric_dtype(index):
                tensors[dim] = index.to_numpy()
            else:
                words[dim] = index.tolist()
        for name, array in self.arrays.data_vars.items():
            values = array.to_numpy()
            once = tuple(slice(1) if step == 0 else slice(None) for step in values.strides)
            tensors[str(name)] = np.ascontiguousarray(values[once])
        described = {
            "dims": self.dims,
            "columns": {name: self.arrays[name].dims for name in self.columns},
            "labels": words,
        }
        file = Path(path)
        file.touch()
        mode = file.stat().st_mode
        save_file(tensors, file, {"arrays": json.dumps(described)})
        file.chmod(mode)  # safetensors makes the file readable only for its owner

    def __call__(self, **labels: Any) -> pd.DataFrame:
        """The rows with these labels. For each dim, give one label or a list of several.

        Raises ValueError for an unknown dim or label.
        """
        places = {}
        for dim, wanted_labels in labels.items():
            check_choice("label", dim, self.dims)
            index = self.arrays.indexes[dim]
            several = (
                [wanted_labels]
                if isinstance(wanted_labels, str) or not isinstance(wanted_labels, Iterable)
                else [*wanted_labels]
            )
            places[dim] = index.get_indexer(pd.Index(several))
            if unknown := [label for label, place in zip(several, places[dim], strict=True) if place < 0]:
                present = list(map(str, index)) if len(index) < 10 else [*map(str, index[:2]), "…", str(index[-1])]
                raise ValueError(f"{dim} {unknown[0]!r} is not in this result; found {', '.join(present) or 'none'}")
        return self._selection(places).table

    @property
    def table(self) -> pd.DataFrame:
        """All rows as a tidy table. For a large model this takes many times the memory of the arrays, so select labels
        instead."""
        return self.arrays.to_dataframe(dim_order=[*self.dims]).reset_index()[[*self.columns]]

    @property
    def is_large(self) -> bool:
        """Whether there are more than `MOST_ROWS` rows. A result then saves the arrays, otherwise the table."""
        return len(self) > MOST_ROWS

    def parts(self) -> Iterator["Dense"]:
        """Yield views of a few labels of the first dim at a time, each with about two million rows or a single
        label."""
        first = self.arrays.sizes[self.dims[0]]
        step = max(1, _AT_ONCE * first // max(len(self), 1))
        for start in range(0, max(first, 1), step):
            yield self._selection({self.dims[0]: slice(start, start + step)})

    def mean(self, over: str, columns: Sequence[str]) -> pd.DataFrame:
        """Compute the means of columns over one dim (not the first), in float64 and without NaN, as a tidy table of the
        others.

        Examples:
            >>> of = {"layer": [0, 1], "head": [0, 1, 2], "gap": np.array([[1.0, 2.0, 6.0], [0.0, 0.0, np.nan]])}
            >>> Dense.of(of, dims=("layer", "head")).mean("head", ["gap"])
               layer  gap
            0      0  3.0
            1      1  0.0
        """
        check_choice("dim to take the mean over", over, self.dims[1:])
        remaining = [dim for dim in self.dims if dim != over]
        tables = []
        for part in self.parts():
            means = part.arrays[[*columns]].astype(np.float64).mean(over)
            tables.append(means.to_dataframe(dim_order=remaining))
        return pd.concat(tables).reset_index()

    def _selection(self, places: Mapping[str, Any]) -> "Dense":
        return Dense(self.arrays.isel(places), self.dims, self.columns)

    def __len__(self) -> int:
        return math.prod(self.arrays.sizes.values())

    def __repr__(self) -> str:
        size = " × ".join(f"{dim} {self.arrays.sizes[dim]:,}" for dim in self.dims)
        return f"Dense({size}: {', '.join(name for name in self.columns if name not in self.dims)})"


def _without(
    values: np.ndarray, dims: Sequence[str], varying: Sequence[str], name: str
) -> tuple[Sequence[str], np.ndarray]:
    """An array with the dims that it depends on. Raises ValueError if it depends on more."""
    if len(varying) == len(dims):
        return dims, values
    slices = values[tuple(slice(None) if dim in varying else slice(1) for dim in dims)]
    if not (values == slices).all():
        raise ValueError(f"{name} differs within one {', '.join(varying)}; give the unmodified table of one run")
    return varying, slices.reshape([size for size, dim in zip(values.shape, dims, strict=True) if dim in varying])
