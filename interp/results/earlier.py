"""Results that an earlier version of interp saved as tables of another analysis. Imports nothing heavy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["MOVED", "Moved", "file_of", "moved_from", "of_today", "saved_in"]


class Moved(NamedTuple):
    """Where an earlier version saved a result.

    Attributes:
        analysis: the analysis that it was part of.
        tables: the names that its tables had there. The first has no rows if it was not asked for.
        columns: the columns that tables have today. A table that was not saved is empty.
        renamed: values that have another name now, by table and column.
        caveat: how its numbers differ from those of today.
        entries: where entries of its provenance stood, such as `intervals.fitted`.
    """

    analysis: str
    tables: Mapping[str, str]
    columns: Mapping[str, Sequence[str]]
    renamed: Mapping[str, Mapping[str, Mapping[str, str]]]
    caveat: str
    entries: Mapping[str, str] = {}

    def brought_up_to_date(self, tables: dict[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the result, from the tables that were saved."""
        import pandas as pd

        values: dict[str, Any] = {}
        for name, table in tables.items():
            values[name] = table.replace(self.renamed.get(name, {}))
        for name, columns in self.columns.items():
            values[name] = values.get(name, pd.DataFrame()).reindex(columns=list(columns))
        caveats = [*provenance.get("caveats", []), self.caveat]
        values["provenance"] = dict(provenance, caveats=caveats)
        for name, place in self.entries.items():
            outer, _, inner = place.partition(".")
            values["provenance"][name] = provenance.get(outer, {}).get(inner, {})
        return values


MOVED = {
    "controls": Moved(
        analysis="frequency",
        tables={
            "controls": "controls", "kl": "kl", "bands": "bands", "outlier_dims": "outlier_dims",
            "outliers": "outliers",
        },
        columns={},
        renamed={},
        caveat="these random directions are from an earlier version of interp, which did not draw sums of output "
        "embeddings; run interp controls for a verdict",
    ),
    "sinks": Moved(
        analysis="attention",
        tables={
            "heads": "sinks", "rates": "sink_rates", "measures": "sink_summary", "dims": "sink_dims",
            "writers": "writers",
        },
        columns={"draws": ["draw", "rate"]},
        renamed={"measures": {"measure": {"direction_share": "direction_ratio"}}},
        caveat="these sinks are from an earlier version of interp, in which all queries counted and keys were not "
        "shuffled; run interp sinks for a verdict",
    ),
    "directions": Moved(
        analysis="encoding",
        tables={"overlaps": "subspaces", "cosines": "directions", "rotations": "rotations"},
        columns={"rotations": ["name_a", "name_b", "draw", "value"]},
        renamed={},
        caveat="these directions are from an earlier version of interp; if there are no random rotations, run "
        "interp directions for a verdict",
        entries={"intervals": "intervals.fitted", "absent": "atlas.absent"},
    ),
    "units": Moved(
        analysis="probing",
        tables={
            "consistency": "consistency", "units": "units", "shared_units": "shared_units", "phenomena": "phenomena",
            "separability": "separability", "similarity": "similarity", "tasks": "tasks",
        },
        columns={
            "units": ["task", "control", "of", "at", "unit", "t", "auc", "auc_error", "parts"],
            "tasks": ["task", "field", "linguistics_term", "n_pairs"],
        },
        renamed={},
        caveat="these units are from an earlier version of interp; in version 0.2 the intervals of the table phenomena "
        "were bootstraps over tasks",
    ),
}  # fmt: skip
"""What was moved to an analysis of its own, by the name of that analysis."""


_RENAMED = {("encoding", "directions"): "atlas"}
"""Tables that had another name, by analysis and table."""


def file_of(source: Path, table: str) -> Path:
    """Return the Parquet file of a table in the folder of a result, under its present or an earlier name."""
    earlier = source / f"{_RENAMED.get((source.name, table), table)}.parquet"
    return earlier if earlier.is_file() else source / f"{table}.parquet"


_ONE_KIND = {"consistency": ("score", "paired")}
"""Columns that tables had, with the value whose rows are those of today."""


def of_today(name: str, table: Any) -> Any:
    """Return a table as it is today, from one that may be of an earlier version."""
    if name not in _ONE_KIND or _ONE_KIND[name][0] not in table:
        return table
    column, value = _ONE_KIND[name]
    return table[table[column] == value].drop(columns=column).reset_index(drop=True)


def moved_from(run: Path, analysis: str) -> Moved | None:
    """Return where an earlier version saved a result in a run, or None if it has its own folder or was not asked
    for."""
    moved = MOVED.get(analysis)
    if (
        moved is None
        or (run / analysis / "result.json").is_file()
        or not (run / moved.analysis / "result.json").is_file()
    ):
        return None
    files = {}
    for name, saved_as in moved.tables.items():
        file = file_of(run / moved.analysis, saved_as)
        if file.is_file():
            files[name] = file
    if not files.keys() | moved.columns.keys() >= moved.tables.keys():
        return None
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import read_metadata

    try:
        has_rows = bool(read_metadata(next(iter(files.values()))).num_rows)
    except ArrowInvalid:  # reading the table says what is wrong
        has_rows = True
    return moved._replace(tables={name: moved.tables[name] for name in files}) if has_rows else None


def saved_in(run: Path, analysis: str) -> bool:
    """Whether a run has a result of an analysis."""
    return (run / analysis / "result.json").is_file() or moved_from(run, analysis) is not None
