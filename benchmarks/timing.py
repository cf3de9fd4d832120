"""Measurements in which contestants take turns, and the table rows made from them."""

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # all contestants run on the CPU
Row = dict[str, str]
AXES = ("∝ corpus", "∝ context", "∝ layers", "∝ vocabulary")  # exponents of growth


class Measured(NamedTuple):
    """The seconds of each round, the peak memory in MiB above what the process held before the first call, and the
    factor by which the seconds were scaled up because only a part was run."""

    seconds: list[float]
    memory: float = float("nan")
    factor: float = 1.0

    def times(self, factor: float) -> "Measured":
        return Measured([factor * second for second in self.seconds], self.memory, factor)


def alternate(
    contestants: dict[str, Callable[[], object]], *, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Measured]:
    """Run the contestants in turn, `repeats` times after a warm-up round, so that noise affects all of them alike."""
    memory = {name: _added(run) for name, run in contestants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            gc.collect()
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return {name: Measured(seconds[name], memory[name]) for name in contestants}


def _added(run: Callable[[], object]) -> float:
    """Peak memory in MiB that a call adds (Linux; elsewhere NaN)."""
    gc.collect()
    if sys.platform != "linux":
        run()
        return float("nan")
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024


def ratio(over: Measured, under: Measured) -> str:
    """The median of the ratios within each round, with their range."""
    ratios = [a / b for a, b in zip(over.seconds, under.seconds, strict=True)]
    ends = [f"{value:.0f}" if value >= 100 else f"{value:.3g}" for value in (min(ratios), max(ratios))]
    middle = statistics.median(ratios)
    return f"{middle:.0f} ({'–'.join(ends)})" if middle >= 100 else f"{middle:.2f} ({'–'.join(ends)})"


def row(
    title: str,
    workload: str,
    ours: Measured,
    *,
    other: tuple[str, Measured] | None = None,
    floor: tuple[str, Measured] | None = None,
    note: str = "",
) -> Row:
    """A table row: what interp did, on what, compared with other code that does the same and with a forward pass."""
    return {
        "what": title,
        "on": workload,
        "compared with": _named(*other) if other else "",
        "it / interp": ratio(other[1], ours) if other else "",
        "forward": floor[0] if floor else "",
        "interp / forward": ratio(ours, floor[1]) if floor else "",
        "interp, s": f"{statistics.median(ours.seconds):.3g}",
        "it, MiB": _mebibytes(other[1]) if other else "",
        "interp, MiB": _mebibytes(ours),
        "note": note,
        **dict.fromkeys(AXES, ""),
    }


def _named(name: str, measured: Measured) -> str:
    return name if measured.factor == 1 else f"{name} (a part timed, × {measured.factor:,.0f})"


def agrees(title: str, difference: float, tolerance: float) -> str:
    """The difference in words. Exits if it is too large: a contestant with other results must not enter the table."""
    if not difference <= tolerance:
        sys.exit(f"{title} differs by {difference:.1e}, more than {tolerance:.0e}")
    return f"{title}: {difference:.0e}"


def note_only(title: str, workload: str, note: str) -> Row:
    """A row for something that was counted, not timed."""
    return dict(dict.fromkeys(row("", "", Measured([1.0])), ""), what=title, on=workload, note=note)


def _mebibytes(measured: Measured) -> str:
    return "" if measured.memory != measured.memory else f"{measured.memory:,.0f}"


def peak_memory(script: str, *arguments: str) -> float:
    """Peak resident memory in MiB of a Python script in a process of its own (Linux; NaN elsewhere).

    Reads `VmHWM` rather than `ru_maxrss`, which a child inherits from the process that started it.
    """
    if sys.platform != "linux":
        return float("nan")
    code = script + "\nprint(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(run.stdout.splitlines()[-1]) / 1024


def markdown(rows: list[Row]) -> str:
    """Rows as a Markdown table; columns that are empty throughout are left out."""
    head = [column for column in rows[0] if any(row[column] for row in rows)]
    lines = [head, ["---"] * len(head), *([row[column] for column in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def command(rows: Callable[[bool], Iterable[Row]], description: str) -> None:
    """Measure, and print a Markdown table, or one JSON object per row."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="use small inputs and few rounds, to check that it runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row, as soon as it is measured")
    chosen = parser.parse_args()
    table = []
    for row in rows(chosen.quick):
        table.append(row)
        if chosen.json:
            print(json.dumps(row), flush=True)
    if not chosen.json:
        print(markdown(table))
