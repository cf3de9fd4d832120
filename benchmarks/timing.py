"""Alternating measurements: noise that comes and goes hits every contestant alike."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable


def alternate(contestants: dict[str, Callable[[], object]], *, repeats: int) -> dict[str, list[float]]:
    """Seconds of each contestant, run in turn `repeats` times after one warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for round_number in range(repeats + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if round_number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], over: str, under: str) -> str:
    """Median of the ratios within each round, with their range."""
    ratios = [a / b for a, b in zip(seconds[over], seconds[under], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def peak_memory(script: str, *arguments: str) -> float:
    """Peak resident memory in MiB of a Python script in a process of its own (Linux).

    `VmHWM` and not `ru_maxrss`: a child inherits the latter from the process that started it.
    """
    code = script + "\nprint(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(run.stdout.splitlines()[-1]) / 1024


def markdown(rows: list[dict[str, str]]) -> str:
    """Rows as a Markdown table."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([row[column] for column in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
