"""All measurements of speed, as a Markdown table, and one of how time grows.

`python benchmarks [--quick] [--only NAME…]`. Prints the table, and writes it to benchmarks/RESULTS.md with the machine
and the versions, unless only some were asked for. Every file is a process of its own, one after the other.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch
from timing import AXES, Row, markdown

from interp.disk import replacing
from interp.results import versions

HERE = Path(__file__).parent
NAMES = (
    "backends", "together", "frequency", "attention", "sinks", "encoding", "states", "sentences", "probing", "atlas",
    "generation", "report", "arrays", "size", "scaling", "growth", "dryrun",
)  # fmt: skip
PACKAGES = (
    "interp", "torch", "transformer-lens", "transformers", "scikit-learn", "minicons", "nnsight", "numpy", "pandas",
)  # fmt: skip
PAGE = """\
# Results

<!-- docs/speed.md shows what stands between: --8<-- [start:table] -->
{about}

Made by `make bench`. Ratios are medians of rounds in which the contestants take turns, with their range: *it / interp*
says how many times longer the other code takes for the same, *interp / forward* how many times longer interp takes than
a plain forward pass on the same tokens. HookedTransformer is the model as `interp.load` lays it out. Where only a part
of the other code was timed, the factor stands with it. MiB are the peak that a first call adds to the process. *∝* are
exponents of growth, with the range over rounds.

{table}
<!-- --8<-- [end:table] -->
"""


def machine() -> str:
    """Processor, memory and the versions of what is installed."""
    about = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = {line.split(":", 1)[1].strip() for line in about.splitlines() if line.startswith("model name")}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version}" for name, version in versions(*PACKAGES).items() if version)
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return (
        f"{datetime.date.today()}, commit {commit}. {', '.join(sorted(models)) or platform.processor()}; "
        f"{os.cpu_count()} processors, {memory:.0f} GiB; "
        f"{torch.get_num_threads()} threads, float32, CPU. Python {platform.python_version()}, {packages}."
    )


def measured(name: str, quick: bool) -> list[Row]:
    """The rows that a file prints."""
    began = time.monotonic()
    command = [sys.executable, "-W", "ignore", str(HERE / f"{name}.py"), "--json", *(["--quick"] if quick else [])]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def tables(found: list[Row]) -> str:
    """What was timed, and below it what grows."""
    grows = [any(row[axis] for axis in AXES) for row in found]
    parts = [[row for row, one in zip(found, grows, strict=True) if one is kind] for kind in (False, True)]
    return "\n\n".join(markdown(part) for part in parts if part)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small inputs and few rounds, to see that all of it runs")
    parser.add_argument("--only", nargs="+", choices=NAMES, help="these, and write nothing")
    chosen = parser.parse_args()
    about = machine()
    found: list[Row] = []
    try:
        for name in chosen.only or NAMES:
            found += measured(name, chosen.quick)
    except subprocess.CalledProcessError as error:
        print(tables(found))
        sys.exit(f"{error.cmd[3]} failed; what was measured before it stands above, and nothing was written")
    print(tables(found))
    if not chosen.quick and not chosen.only:
        with replacing(HERE / "RESULTS.md") as path:
            page = PAGE.format(about=about, table=tables(found))
            path.write_text(page, encoding="utf-8")
