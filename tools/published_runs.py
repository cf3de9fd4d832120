"""Run every command of interp on the published models at small size, and print how long each took and its peak memory.

    .venv/bin/python tools/published_runs.py        # after `make published` has made the models

A command that a model has no answer for must be refused (exit code 2). The script fails if a command ends otherwise
than `RUNS` says, and if `interp --help` has a command that is not in it.
"""

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import typer
from published import MINILM, SMOLLM2, directories

from interp.cli import app
from interp.memory import shown

TEXT = "--corpus bundled --limit 12 --context 64"
PAIRS = "--pairs bundled --pair-limit 10"
FEW = {"orders": ["spearman"], "bases": ["axis"], "ratios": [0.5, 2]}
PROBES = {"states": [2, 4], "steps": 50, "seeds": [0]}
SETTINGS = shlex.quote(json.dumps({"encoding": FEW, "probing": PROBES}))
RUNS = f"""
models
corpora
check MODEL
unigrams --model MODEL --corpus bundled --limit 100 --out OUT/counts.safetensors
frequency --model MODEL {TEXT} --out OUT/frequency
generation --model MODEL --corpus bundled --limit 12 --n 4 --new-tokens 12 --decoders greedy --out OUT/generation
attention --model MODEL {TEXT} --layout texts --out OUT/attention
encoding --model MODEL {TEXT} --orders spearman --bases axis --ratios 0.5,2 --out OUT/encoding
probing --model MODEL --pairs bundled --limit 20 --states 2,4 --steps 50 --seeds 0 --out OUT/probing
attention --model MODEL {TEXT} --layout texts --no-ablation --layers 1 --shard 0/2 --out OUT/first
attention --model MODEL {TEXT} --layout texts --no-ablation --layers 1 --shard 1/2 --out OUT/second
merge OUT/first OUT/second
report --model MODEL {TEXT} {PAIRS} --settings {SETTINGS} --out OUT/report
show OUT/report
page OUT/report
figures OUT/report --out OUT/figures
compare OUT/attention OUT/report --out OUT/compared
"""
"""The command lines, in an order in which each finds what it reads."""
REFUSED = {SMOLLM2: ("generation",), MINILM: ("frequency", "generation", "encoding")}
"""SmolLM2 has no b_LN to scale while it writes, and MiniLM no prediction head."""
MEASURED = """
import sys
from interp import memory
from interp.cli import main
code = main(sys.argv[1:])
print(f"peak {memory.peak()}", flush=True)
sys.exit(code)
"""


class Run(NamedTuple):
    code: int
    seconds: float
    peak: int
    said: str


def run(arguments: list[str]) -> Run:
    """Run a command of interp in a process of its own."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", MEASURED, *arguments], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    peak = done.stdout.rpartition("peak ")[2] if "peak " in done.stdout else "0"
    return Run(done.returncode, seconds, int(peak), done.stderr.strip().rpartition("\n")[2])


def failures(model: Path, out: Path) -> Iterator[str]:
    """Run all commands on a model, print a line for each, and yield what did not end as it should."""
    for line in RUNS.strip().splitlines():
        arguments = [part.replace("OUT", str(out)) for part in shlex.split(line)]
        arguments = [str(model) if part == "MODEL" else part for part in arguments]
        refusal = arguments[0] in REFUSED[model.name]
        found = run(arguments)
        outcome = f"refused: {found.said}" if refusal else ""
        print(
            f"| {arguments[0]} | {model.name} | {found.seconds:.0f} s | {shown(found.peak)} | {outcome} |", flush=True
        )
        if found.code != (2 if refusal else 0):
            yield f"interp {shlex.join(arguments)} ended with exit code {found.code}: {found.said}"


def main() -> str | None:
    """What failed, or None."""
    commands = {line.split()[0] for line in RUNS.strip().splitlines()}
    if missing := typer.main.get_command(app).commands.keys() - commands:  # type: ignore[attr-defined]
        return f"RUNS has no line for {', '.join(sorted(missing))}; add one"
    models = directories()
    failed: list[str] = []
    print("| command | model | time | peak memory | |\n|---|---|---|---|---|")
    for name in (SMOLLM2, MINILM):
        with tempfile.TemporaryDirectory() as out:
            failed += failures(models[name], Path(out))
    return "\n".join(failed) or None


if __name__ == "__main__":
    sys.exit(main())
