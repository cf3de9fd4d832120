"""Run all benchmarks and print two Markdown tables: the measurements, and how time grows.

`python benchmarks [--quick] [--only NAME…] [--tl4 PYTHON]`. The tables are also written to benchmarks/RESULTS.md, with
the machine and the versions, unless `--quick` or `--only` is given. Each file runs in its own process, one after the
other, which takes 1 to 2 hours in all. Its rows are kept in benchmarks/.measured until the whole is written, so that
an interrupted run of the same commit resumes. `--tl4` is the Python of an environment with TransformerLens 4.3; without
it, `topk`, which needs it, is left out.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
from timing import AXES, Row, markdown

from interp.results.result import versions
from interp.support.disk import replacing

HERE = Path(__file__).parent
KEPT = HERE / ".measured"
NAMES = (
    "backends", "together", "frequency", "attention", "sinks", "encoding", "states", "sentences", "probing", "units",
    "generation", "report", "arrays", "size", "scaling", "growth", "dryrun", "topk", "published_models",
)  # fmt: skip
NEED_TL4 = ("topk",)
PACKAGES = (
    "interp", "torch", "transformer-lens", "transformers", "scikit-learn", "skglm", "minicons", "nnsight", "numpy",
    "pandas",
)  # fmt: skip
PAGE = """\
# Results

<!-- docs/speed.md includes everything up to the end marker: --8<-- [start:table] -->
{about}

Made by `make bench`. Ratios are medians over rounds in which the contestants take turns, with their range. *it /
interp* is the time of the other code divided by that of interp for the same task. *interp / forward* is the time of
interp divided by that of a plain forward pass on the same tokens. HookedTransformer is the model with its weights in
the memory order that `interp.load` gives them. If only a part of the other code was timed, the factor is given next
to it. MiB is the peak memory that a first call adds to the process. Columns with *∝* are exponents of growth, with
their range over rounds.

{table}
<!-- --8<-- [end:table] -->
"""


def commit() -> str:
    """The commit of the code, with "-dirty" if files have been changed since."""
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def machine() -> str:
    """The processor, the memory and the versions of the packages."""
    cpu_info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = {line.split(":", 1)[1].strip() for line in cpu_info.splitlines() if line.startswith("model name")}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version}" for name, version in versions(*PACKAGES).items() if version)
    return (
        f"{datetime.date.today()}, commit {commit()}. {', '.join(sorted(models)) or platform.processor()}; "
        f"{os.cpu_count()} processors, {memory:.0f} GiB; "
        f"{torch.get_num_threads()} threads, float32, CPU. Python {platform.python_version()}, {packages}."
    )


def measured(name: str, quick: bool, python: str) -> list[Row]:
    """The rows that a benchmark file prints."""
    began = time.monotonic()
    command = [python, "-W", "ignore", str(HERE / f"{name}.py"), "--json", *(["--quick"] if quick else [])]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def measured_once(name: str, python: str) -> list[Row]:
    """The rows that a benchmark file prints, unless an interrupted run of this commit has kept them."""
    commit_id = commit()
    path = KEPT / commit_id / f"{name}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    rows = measured(name, quick=False, python=python)
    if not commit_id.endswith("-dirty"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(rows), encoding="utf-8")
    return rows


def tables(rows: list[Row]) -> str:
    """The table of measurements and, below it, the table of growth."""
    grows = [any(row[axis] for axis in AXES) for row in rows]
    parts = [[row for row, is_growth in zip(rows, grows, strict=True) if is_growth is kind] for kind in (False, True)]
    return "\n\n".join(markdown(part) for part in parts if part)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use small inputs and few rounds, to check that all runs")
    parser.add_argument("--only", nargs="+", choices=NAMES, help="run only these, and write no file")
    parser.add_argument("--tl4", metavar="PYTHON", help="a Python that has TransformerLens 4.3, for: topk")
    chosen = parser.parse_args()
    pythons = dict.fromkeys(NAMES, sys.executable) | dict.fromkeys(NEED_TL4, chosen.tl4)
    about = machine()
    found: list[Row] = []
    try:
        for name in chosen.only or NAMES:
            if not (python := pythons[name]):
                print(f"{name} needs TransformerLens 4.3 (--tl4 PYTHON) and was left out", file=sys.stderr)
            elif chosen.quick or chosen.only:
                found += measured(name, chosen.quick, python)
            else:
                found += measured_once(name, python)
    except subprocess.CalledProcessError as error:
        print(tables(found))
        sys.exit(f"{error.cmd[3]} failed; earlier measurements are shown above, and RESULTS.md was not written")
    print(tables(found))
    if not chosen.quick and not chosen.only:
        with replacing(HERE / "RESULTS.md") as path:
            page = PAGE.format(about=about, table=tables(found))
            path.write_text(page, encoding="utf-8")
        shutil.rmtree(KEPT, ignore_errors=True)
