"""Compare what two versions of interp wrote, bit for bit: tables, arrays, findings and captions of figures.

    .venv/bin/python tools/same_tables.py A B                # A is older: names in it are renamed by tools/renames.txt
    .venv/bin/python tools/same_tables.py A B --rtol 1e-12   # and floats may differ by that much, relatively

A and B are results of one analysis, runs, or directories of runs. The exit code is 0 if they are the same, 1 if
anything differs or has no partner, and 2 if they cannot be compared. Provenance is not compared.

A result holds no findings and no captions: they are made from its tables by the code that reads it. `keep_said` writes
those of a run to `said.json` in it, as `tools/golden.py` does. Without that file, the present code makes them.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from safetensors import safe_open

from interp import load_result

RENAMES = Path(__file__).with_name("renames.txt")
SAID = "said.json"
FIGURES = "figures"


class Column(NamedTuple):
    """A column of a table, or an array, with its type in the table."""

    dtype: str
    values: np.ndarray


Columns: TypeAlias = dict[str, Column]


@dataclass
class Run:
    """What one run holds, by name: tables as "analysis.table", figures as "analysis.figures.figure"."""

    tables: dict[str, Columns] = field(default_factory=dict)
    captions: dict[str, Any] = field(default_factory=dict)
    findings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By analysis."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Caveats by analysis."""


@dataclass
class Comparison:
    """What differs, in lines to print, and what was the same only within the tolerance."""

    rtol: float = 0.0
    differences: list[str] = field(default_factory=list)
    tolerated: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def keep_said(run: Path) -> Path:
    """Write the findings, notes and captions of a run to `said.json` in it."""
    statements = {path.parent.name: _statements(path.parent) for path in sorted(run.glob("*/result.json"))}
    (run / SAID).write_text(json.dumps(statements, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return run / SAID


def _statements(folder: Path) -> dict[str, Any]:
    """What a result says, as the present code reads it."""
    result = load_result(folder)
    captions = {}
    for name, figure in result.figures().items():
        title = figure.layout.title
        captions[name] = {"title": title.text, "subtitle": title.subtitle.text}
    findings = [asdict(finding) for finding in result.findings]
    statements = {"findings": findings, "notes": list(result.caveats), "captions": captions}
    plain: dict[str, Any] = json.loads(json.dumps(statements, default=lambda number: number.item()))
    return plain


def read_runs(root: Path) -> dict[str, Run]:
    """The runs in a directory, by their path in it. A directory that is one run, or one result, is called "."."""
    runs: dict[str, Run] = defaultdict(Run)
    for path in sorted(root.rglob("result.json")):
        inside = path.parent.relative_to(root).parts
        if not any(part.startswith(".") for part in inside):
            _read_result(path.parent, runs["/".join(inside[:-1]) or "."])
    if not runs:
        raise FileNotFoundError(f"{root} holds no result of interp; expected a result, a run or a directory of runs")
    return dict(runs)


def _read_result(folder: Path, run: Run) -> None:
    analysis = json.loads((folder / "result.json").read_text(encoding="utf-8"))["analysis"]
    for path in sorted(folder.glob("*.parquet")):
        table = pd.read_parquet(path).reset_index()
        columns = {str(name): Column(str(table[name].dtype), table[name].to_numpy()) for name in table}
        run.tables[f"{analysis}.{path.stem}"] = columns
    for path in sorted(folder.glob("*.safetensors")):
        run.tables[f"{analysis}.{path.stem}"] = _arrays(path)
    record = folder.parent / SAID
    statements = json.loads(record.read_text(encoding="utf-8"))[analysis] if record.exists() else _statements(folder)
    run.findings[analysis] = statements["findings"]
    run.notes[analysis] = statements["notes"]
    for name, caption in statements["captions"].items():
        run.captions[f"{analysis}.{FIGURES}.{name}"] = caption


def _arrays(path: Path) -> Columns:
    """The arrays in a file, and their labels, which are text in its header."""
    with safe_open(path, "np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        arrays["(header)"] = np.array(file.metadata()["arrays"], dtype=object)
    return {name: Column(str(values.dtype), values) for name, values in arrays.items()}


def read_renames(path: Path) -> list[tuple[list[str], list[str]]]:
    """The pairs of old and new name in a file, each divided at its dots. What is gone has no new name."""
    renames = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        old, arrow, new = (part.strip() for part in text.partition("->"))
        names = old.split("."), new.split(".") if new else []
        is_gone = arrow and not new and len(names[0]) in (2, 3)
        if not arrow or not all(map(str.isidentifier, names[0] + names[1])) or not (is_gone or _fit(*names)):
            raise ValueError(f"line {number} of {path} is {line!r}; its first lines say what a rename looks like")
        renames.append(names)
    return renames


def _fit(old: list[str], new: list[str]) -> bool:
    """Whether something with the old name can have the new one: both are of the same kind, and a column stays in its
    table."""
    if len(old) != len(new) or len(old) > 3:
        return False
    figures = [len(name) == 3 and name[1] == FIGURES for name in (old, new)]
    return all(figures) or (not any(figures) and (len(old) < 3 or old[:2] == new[:2]))


def rename(run: Run, renames: list[tuple[list[str], list[str]]]) -> None:
    """Give what is in a run its new names, line after line."""
    for old, new in renames:
        before, after = ".".join(old), ".".join(new)
        if not new:
            run.tables.pop(before, None)
            run.captions.pop(before, None)
            run.tables.get(".".join(old[:2]), {}).pop(old[-1], None)
        elif len(old) == 1:
            run.tables = {_renamed(name, before, after): table for name, table in run.tables.items()}
            run.captions = {_renamed(name, before, after): caption for name, caption in run.captions.items()}
            run.findings = {_renamed(name, before, after): findings for name, findings in run.findings.items()}
            run.notes = {_renamed(name, before, after): notes for name, notes in run.notes.items()}
        elif len(old) == 2 or old[1] == FIGURES:
            for kind in (run.tables, run.captions):
                if before in kind:
                    kind[after] = kind.pop(before)
        elif table := run.tables.get(".".join(old[:2])):
            columns = {new[2] if name == old[2] else name: column for name, column in table.items()}
            run.tables[".".join(old[:2])] = columns


def _renamed(name: str, old: str, new: str) -> str:
    analysis, dot, part = name.partition(".")
    return f"{new if analysis == old else analysis}{dot}{part}"


def compare(a: dict[str, Run], b: dict[str, Run], rtol: float) -> Comparison:
    """Compare runs with runs of the same name."""
    out = Comparison(rtol)
    for name in _partners("run", a, b, out):
        place = "" if name == "." else f"{name}: "
        for table in _partners(f"{place}table", a[name].tables, b[name].tables, out):
            _compare_tables(f"{place}{table}", a[name].tables[table], b[name].tables[table], out)
            out.counts["tables"] += 1
        for figure in _partners(f"{place}figure", a[name].captions, b[name].captions, out):
            _compare_records(f"{place}{figure}", a[name].captions[figure], b[name].captions[figure], out)
            out.counts["captions"] += 1
        _compare_findings(place, a[name].findings, b[name].findings, out)
        for analysis in sorted(a[name].notes.keys() & b[name].notes.keys()):
            before, after = ({"notes": run[name].notes[analysis]} for run in (a, b))
            _compare_records(f"{place}{analysis}", before, after, out)
    return out


def _partners(label: str, a: dict[str, Any], b: dict[str, Any], out: Comparison) -> Iterator[str]:
    """The names that both have. A name that only one has is a difference."""
    out.differences += [f"{label} {name} is only in A" for name in a if name not in b]
    out.differences += [f"{label} {name} is only in B" for name in b if name not in a]
    yield from (name for name in a if name in b)


def _compare_tables(name: str, a: Columns, b: Columns, out: Comparison) -> None:
    shared = [*_partners(f"{name}: column", a, b, out)]
    if shared != [column for column in b if column in a]:
        out.differences.append(f"{name}: the columns are in another order")
    rows = [len(columns["index"].values) for columns in (a, b) if "index" in columns]
    if len(set(rows)) > 1:
        out.differences.append(f"{name} has {rows[0]:,} rows in A, and {rows[1]:,} in B")
        return
    before = len(out.tolerated)
    for column in shared:
        _compare_columns(f"{name}.{column}", a[column], b[column], out)
    if len(out.tolerated) > before:
        out.tolerated[before:] = [name]


def _compare_columns(name: str, a: Column, b: Column, out: Comparison) -> None:
    if a.dtype != b.dtype:
        out.differences.append(f"{name} is {a.dtype} in A, and {b.dtype} in B")
        return
    x, y = a.values, b.values
    if x.shape != y.shape:
        out.differences.append(f"{name} has the shape {x.shape} in A, and {y.shape} in B")
        return
    equal = _equal_bits(x, y)
    if equal.all():
        return
    if out.rtol and x.dtype.kind == "f" and (equal | _close(x, y, out.rtol)).all():
        out.tolerated.append(name)
        return
    first = tuple(np.argwhere(~equal)[0].tolist())
    place = f"row {first[0]}" if len(first) == 1 else f"cell {[*first]}"
    cells = f"{_digits(x[first])} in A, {_digits(y[first])} in B"
    count = f"{np.count_nonzero(~equal):,} of {x.size:,}"
    out.differences.append(f"{name}: {count} values differ, first in {place}: {cells}{_sizes(x, y)}")


def _equal_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two arrays have the same bits, or both NaN."""
    if a.dtype.kind in "iub":
        return a == b
    if a.dtype.kind == "f":
        bits = f"u{a.dtype.itemsize}"
        return (a.view(bits) == b.view(bits)) | (np.isnan(a) & np.isnan(b))
    equal = [_digits(x) == _digits(y) for x, y in zip(a.flat, b.flat, strict=True)]
    return np.array(equal, dtype=bool).reshape(a.shape)


def _digits(value: Any) -> str:
    """A value with all digits of the numbers in it."""
    return repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)


def _close(a: Any, b: Any, rtol: float) -> Any:
    return np.isclose(a, b, rtol=rtol, atol=0.0) | np.isclose(b, a, rtol=rtol, atol=0.0)


def _sizes(a: np.ndarray, b: np.ndarray) -> str:
    """The largest differences of numbers that are finite in both arrays."""
    if a.dtype.kind not in "fiu":
        return ""
    x = a.astype(np.float64)
    y = b.astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    difference = np.abs(x - y)[finite]
    size = np.maximum(np.abs(x), np.abs(y))[finite]
    relative = difference[size > 0] / size[size > 0]
    return f"; at most {difference.max(initial=0):.3g}, relatively {relative.max(initial=0):.3g}"


def _compare_findings(place: str, a: dict[str, Any], b: dict[str, Any], out: Comparison) -> None:
    """Compare findings with those of the same question, which may be in another analysis."""
    before, after = _by_question(a), _by_question(b)
    for question in _partners(f"{place}finding", before, after, out):
        _compare_records(f"{place}{question}", before[question], after[question], out)
        out.counts["findings"] += 1
    for analysis in sorted(a.keys() & b.keys()):
        orders = [[finding["question"] for finding in findings[analysis]] for findings in (a, b)]
        if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
            out.differences.append(f"{place}{analysis}: the findings are in another order")


def _by_question(findings: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Findings by question. A question that is asked again has its number after it."""
    by_question: dict[str, dict[str, Any]] = {}
    times: dict[str, int] = defaultdict(int)
    for finding in (finding for of_analysis in findings.values() for finding in of_analysis):
        question = finding["question"]
        times[question] += 1
        by_question[question if times[question] == 1 else f"{question} ({times[question]})"] = finding
    return by_question


def _compare_records(name: str, a: dict[str, Any], b: dict[str, Any], out: Comparison) -> None:
    """Compare findings, captions or notes."""
    tolerated = False
    for part in _partners(f"{name}:", a, b, out):
        x, y = a[part], b[part]
        if repr(x) == repr(y):
            continue
        if out.rtol and isinstance(x, float) and isinstance(y, float) and _close(x, y, out.rtol):
            tolerated = True
        else:
            out.differences.append(f"{name}: {part} is {x!r} in A, and {y!r} in B")
    if tolerated:
        out.tolerated.append(name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare what two versions of interp wrote, bit for bit.")
    parser.add_argument("a", type=Path, help="the older directory")
    parser.add_argument("b", type=Path, help="the newer directory")
    parser.add_argument("--renames", type=Path, default=RENAMES, help="what has another name in B")
    parser.add_argument("--rtol", type=float, default=0.0, help="relative tolerance for floats")
    options = parser.parse_args(arguments)
    try:
        renames = read_renames(options.renames)
        a, b = read_runs(options.a), read_runs(options.b)
    except (OSError, ValueError, KeyError) as error:
        print(error, file=sys.stderr)
        return 2
    for run in a.values():
        rename(run, renames)
    out = compare(a, b, options.rtol)
    for line in out.differences:
        print(line)
    for name in out.tolerated:
        print(f"{name}: the same within {options.rtol:g}")
    counts = ", ".join(f"{number:,} {kind}" for kind, number in out.counts.items())
    differences = f"{len(out.differences):,} differences" if out.differences else "all the same"
    print(f"compared {counts or 'nothing'}: {differences}")
    return 1 if out.differences else 0


if __name__ == "__main__":
    sys.exit(main())
