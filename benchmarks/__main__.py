"""All measurements of speed, as one Markdown table.

`python benchmarks [--quick] [--only NAME…]`. Prints the table, and writes it to benchmarks/RESULTS.md with the machine
and the versions, unless only some were asked for. Every file is a process of its own, one after the other.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch
from timing import AXES, Row, markdown

HERE = Path(__file__).parent
NAMES = (
    "together", "frequency", "attention", "encoding", "states", "probing", "generation", "report", "scaling", "growth",
)  # fmt: skip
PACKAGES = (
    "interp", "torch", "transformer-lens", "transformers", "scikit-learn", "minicons", "nnsight", "numpy", "pandas",
)  # fmt: skip
READING = """\
Made by `make bench`. Ratios are medians of alternating rounds, each of one process after the other, with their range;
above 1, *it / interp* says how many times longer the other code takes, *interp / forward* what interp adds to a plain
forward pass on the same tokens. MiB are the peak that a call adds to the process. *∝* are exponents: how time grows
with corpus, context, layers and vocabulary, of a small model (the row of the forward pass stands at the end).
"""


def machine() -> str:
    """Processor, memory and versions."""
    about = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = {line.split(":", 1)[1].strip() for line in about.splitlines() if line.startswith("model name")}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return (
        f"{', '.join(sorted(models)) or platform.processor()}; {os.cpu_count()} processors, {memory:.0f} GiB; "
        f"{torch.get_num_threads()} threads, float32. Python {platform.python_version()}, {versions}."
    )


def measured(name: str, quick: bool) -> list[Row]:
    """The rows that a file prints."""
    began = time.monotonic()
    command = [sys.executable, "-W", "ignore", str(HERE / f"{name}.py"), "--json", *(["--quick"] if quick else [])]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def with_growth(rows: list[Row], growth: list[Row]) -> list[Row]:
    """Exponents beside the claims that they are of; what has no claim has a row of its own."""
    exponents = {row["what"]: {axis: row[axis] for axis in AXES} for row in growth}
    claims = {row["what"] for row in rows}
    return [row | exponents.get(row["what"], {}) for row in rows] + [row for row in growth if row["what"] not in claims]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small inputs and few rounds, to see that all of it runs")
    parser.add_argument("--only", nargs="+", choices=NAMES, help="these, and write nothing")
    chosen = parser.parse_args()
    found = {name: measured(name, chosen.quick) for name in chosen.only or NAMES}
    growth = found.pop("growth", [])
    table = markdown(with_growth([row for rows in found.values() for row in rows], growth))
    print(table)
    if not chosen.quick and not chosen.only:
        (HERE / "RESULTS.md").write_text(f"# Results\n\n{machine()}\n\n{READING}\n{table}\n", encoding="utf-8")
