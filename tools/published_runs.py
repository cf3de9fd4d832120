"""Run every command of interp on the published models at small size, and print the CPU time and peak memory of each,
and the numbers of the reports.

    .venv/bin/python tools/published_runs.py                       # after `make published` has made the models
    .venv/bin/python tools/published_runs.py docs/published.md     # and write them as a page

A command that a model has no answer for must be refused (exit code 2). The script fails, and writes no page, if a
command ends otherwise than `RUNS` says, or if `interp --help` has a command that is not in it.
"""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer
from published import MINILM, PROVENANCE, SMOLLM2, directories

from interp import load_result
from interp.analyses import registry
from interp.cli import app
from interp.results.findings import counted
from interp.results.result import Result
from interp.support.memory import shown

TEXT = "--corpus bundled --limit 40 --context 64"
FEW = {"orders": ["spearman"], "bases": ["axis"], "ratios": [0.5, 2]}
PROBES = {"states": [2, 4], "steps": 50, "seeds": [0]}
SETTINGS = shlex.quote(json.dumps({"encoding": FEW, "probing": PROBES}))
RUNS = f"""
models
corpora
check MODEL
unigrams --model MODEL --corpus bundled --limit 100 --out OUT/counts.safetensors
frequency --model MODEL {TEXT} --out OUT/frequency
controls --model MODEL {TEXT} --out OUT/controls
generation --model MODEL {TEXT} --n 4 --new-tokens 12 --decoders greedy --out OUT/generation
attention --model MODEL {TEXT} --layout texts --out OUT/attention
sinks --model MODEL {TEXT} --out OUT/sinks
encoding --model MODEL {TEXT} --orders spearman --bases axis --ratios 0.5,2 --out OUT/encoding
directions --model MODEL {TEXT} --out OUT/directions
probing --model MODEL --pairs bundled --limit 10 --states 2,4 --steps 50 --seeds 0 --out OUT/probing
units --model MODEL --pairs bundled --limit 20 --out OUT/units
attention --model MODEL {TEXT} --layout texts --no-ablation --layers 1 --shard 0/2 --out OUT/first
attention --model MODEL {TEXT} --layout texts --no-ablation --layers 1 --shard 1/2 --out OUT/second
merge OUT/first OUT/second
report --model MODEL {TEXT} --pairs bundled --pair-limit 10 --settings {SETTINGS} --out OUT/report
show OUT/report
page OUT/report
figures OUT/report --out OUT/figures
compare OUT/attention OUT/report --out OUT/compared
"""
"""The command lines, in an order in which each finds what it reads."""
SERVES = {"explore"}
"""Commands that run until they are stopped."""
REFUSED: dict[str, tuple[str, ...]] = {
    SMOLLM2: (),
    MINILM: ("frequency", "controls", "generation", "encoding", "directions"),
}
"""By model: MiniLM has no prediction head."""
MEASURED = """
import sys, time
from interp.support import memory
from interp.cli import main
code = main(sys.argv[1:])
print(f"used {time.process_time()} {memory.peak()}", flush=True)
sys.exit(code)
"""
PAGE = """---
hide:
  - toc
---

# On published models

What every command takes, and what it finds, on two models that others trained and that the Python package index holds.
`python tools/published_runs.py docs/published.md` runs the commands, which are in it, and writes this page. It is about
these files and this text: the first 40 texts of the [bundled corpus](bundled.md), in rows of 64 tokens, and 10 bundled
pairs of each task, too few for most questions about probes. Verdicts follow [one rule](findings.md). Controls are given
where the answer is yes or partly, once for a question that is asked of several dimensions or models.

{models}

## Time and memory

CPU time and the largest resident memory of each command in a process of its own, with one thread, on a machine with
{cores} cores ({machine}), with the start of Python and loading the model.

| command | {names} |
|---|{columns}
{cells}

{refusals}

"""


class Run(NamedTuple):
    """A command line and how it ended."""

    line: str
    code: int
    seconds: float
    peak: int
    error: str

    @property
    def command(self) -> str:
        """Its name, and which part of the text it read."""
        name, *words = self.line.split()
        return f"{name} --shard {words[words.index('--shard') + 1]}" if "--shard" in words else name

    @property
    def cell(self) -> str:
        """Time and peak memory, or that the command was refused."""
        return "refused" if self.code else f"{self.seconds:.0f} s, {shown(self.peak)}"

    @property
    def reason(self) -> str:
        """Why it was refused."""
        return self.error.rpartition("error: ")[2]


def run(arguments: list[str], line: str) -> Run:
    """Run a command of interp in a process of its own, with one thread."""
    command = [sys.executable, "-W", "ignore", "-c", MEASURED, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    used = re.search(r"^used (\S+) (\d+)$", process.stdout, re.MULTILINE)  # absent if it was killed
    seconds, peak = ("nan", "0") if used is None else used.groups()
    return Run(line, process.returncode, float(seconds), int(peak), process.stderr.strip().rpartition("\n")[2])


def runs(model: Path, out: Path) -> Iterator[Run]:
    """Run all commands on a model, and print how each ended."""
    for line in RUNS.strip().splitlines():
        arguments = [part.replace("OUT", str(out)) for part in shlex.split(line)]
        ended = run([str(model) if part == "MODEL" else part for part in arguments], line)
        print(f"{model.name}: interp {line}: {ended.cell} {ended.reason if ended.code else ''}", flush=True)
        yield ended


def numbers(results: Iterable[Result], explained: set[str]) -> str:
    """What results found: a list for each. The first yes or partly of a question that is asked of several dimensions or
    models has its grounds; others have the number alone."""
    lines = []
    for result in results:
        lines += [f"### {registry.load(result.analysis).title}", ""]
        if result.answer:
            lines += [f"{result.answer} Verdicts: {counted(result.findings)}.", ""]
        earlier = ""
        for finding in result.findings:
            kind = re.sub(r"\d+", "", finding.question)
            verdict = f"**{finding.answer.capitalize()}.**"
            if kind == earlier != finding.question:
                number = ", ".join(re.findall(r"\d+", finding.question))
                lines[-1] += f" {number}: {finding.number}. {verdict}"
            else:
                grounds = finding.number
                if finding.verdict in ("yes", "partly") and kind not in explained:
                    grounds = finding.grounds
                    explained.add(kind)
                lines.append(f"- *{finding.question}* {grounds}. {verdict}")
            earlier = kind
        lines += [f"- Note: {caveat}." for caveat in result.caveats]
        lines += [""]
    return "\n".join(lines)


def page(provenances: list[dict[str, Any]], runs: dict[str, list[Run]], results: dict[str, list[Result]]) -> str:
    """The page of the documentation."""
    models = [
        "- **{model}**: `{wheel}`, SHA-256 `{wheel_sha256}`; licence {licence}".format_map(wheel)
        + (f"; quantised from {wheel['quantised_from']}" if wheel["quantised_from"] else "")
        for wheel in provenances
    ]
    lines = list(zip(*runs.values(), strict=True))
    cells = []
    for ended in lines:
        cells.append(f"| `{ended[0].command}` | {' | '.join(run_of_model.cell for run_of_model in ended)} |")
    refusals = []
    for name, runs_of_model in runs.items():
        for run_of_model in runs_of_model:
            if run_of_model.code:
                refusals.append(f"- {name} refuses `{run_of_model.command}`: {run_of_model.reason}.")
    head = PAGE.format(
        models="\n".join(models), cores=os.cpu_count(), machine=platform.machine(), names=" | ".join(runs),
        columns="---|" * len(runs), cells="\n".join(cells), refusals="\n".join(refusals),
    )  # fmt: skip
    explained: set[str] = set()
    return head + "\n".join(f"## {name}\n\n{numbers(results[name], explained)}" for name in results)


def main() -> str | None:
    """What failed, or None."""
    commands = {line.split()[0] for line in RUNS.strip().splitlines()} | SERVES
    if missing := typer.main.get_command(app).commands.keys() - commands:  # type: ignore[attr-defined]
        return f"RUNS has no line for {', '.join(sorted(missing))}; add one"
    models = directories()
    ended: dict[str, list[Run]] = {}
    results: dict[str, list[Result]] = {}
    failed = []
    for name, refused in REFUSED.items():
        with tempfile.TemporaryDirectory() as out:
            ended[name] = list(runs(models[name], Path(out)))
            report = Path(out, "report")
            parts = [part for part in registry.names() if (report / part / "result.json").exists()]
            results[name] = [load_result(report, part) for part in parts]
        for run_of_model in ended[name]:
            if run_of_model.code != (2 if run_of_model.line.split()[0] in refused else 0):
                failed.append(
                    f"{name}: interp {run_of_model.line} ended with exit code {run_of_model.code}: {run_of_model.error}"
                )
    if failed:
        return "\n".join(failed)
    for name, results_of_model in results.items():
        print(f"\n{name}\n\n{numbers(results_of_model, set())}")
    if len(sys.argv) > 1:
        provenances = [json.loads((models[name] / PROVENANCE).read_text(encoding="utf-8")) for name in ended]
        Path(sys.argv[1]).write_text(page(provenances, ended, results), encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main())
