"""Make small faults in the code that measures, one at a time, and list those that no test notices.

    python tools/mutate.py runs/mutants                          # 300 faults in instruments, passes and hooks
    python tools/mutate.py runs/mutants --count 20 --seed 1

Each mutant is the project with one operator, comparison, number, condition or returned value changed. The tests that
execute the changed line run until one fails, quickest first, for `--seconds`. Types are not checked, so that
a wrong number has to be noticed as such. Everything happens in a copy of the project in `runs/mutants`. Beside it are
the lines that each test executes, measured once with coverage, and `results.jsonl` with a line for each mutant; a run
that was stopped continues there. `tools/survivors.txt` lists survivors that are understood, each with the reason.

mutmut and cosmic-ray fit badly: neither draws a sample, mutmut runs all tests twice before its first mutant and renames
the functions that tests inspect, and cosmic-ray runs the same tests for every mutant.
"""

import argparse
import ast
import importlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest
from size import ROOT

MEASURING = ["interp/hooks.py", "interp/instruments", "interp/passes"]
ROOMS = ["hooks", "passes", "frequency", "controls", "sinks", "attention", "encoding", "generation", "probing"]
ROOMS += ["corpora", "cli/test_dry_run.py", "house/test_examples.py"]
"""Where the tests of measures are."""
OPTIONS = ["-x", "-p", "no:cacheprovider", "-m", "not slow and not e2e and not published", "--jaxtyping-packages="]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that are imported with the libraries
LIBRARIES = [
    "torch",
    "transformers.models.gpt2.modeling_gpt2",
    "transformer_lens",
    "sklearn.decomposition",
    "scipy.stats",
]
LIBRARIES += ["pandas", "plotly.graph_objects", "hypothesis", "nbmake.pytest_plugin", "xdist.plugin"]
"""Imported once, before the processes that run tests are forked."""
SURVIVORS = Path(__file__).with_name("survivors.txt")
SWAPS: dict[type[ast.AST], Any] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A file with one change."""

    path: str
    lines: range
    """The lines of the statement that is changed."""
    change: str
    source: bytes

    @property
    def name(self) -> str:
        return f"{self.path} {self.change}"


def replacements(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Parts of a node, or the node itself, with what takes their place."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
            yield node, ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in SWAPS:
            yield node, ast.AugAssign(target, SWAPS[type(op)](), value)
        case ast.BoolOp(op=op, values=values):
            yield node, ast.BoolOp(SWAPS[type(op)](), values)
        case ast.Compare(left=left, ops=[op], comparators=comparators):
            yield node, ast.Compare(left, [SWAPS[type(op)]()], comparators)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, operand
        case ast.Constant(value=bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, ast.Constant(value + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield node, ast.Return(ast.Constant(None))
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            if isinstance(test, ast.Name | ast.Attribute | ast.Call) and ast.unparse(test) != "TYPE_CHECKING":
                yield test, ast.UnaryOp(ast.Not(), test)


def mutants(path: Path, root: Path) -> list[Mutant]:
    """All mutants of a file; messages of errors, annotations, decorators and `strict` of zip are left as they are."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    changed: list[Mutant] = []

    def walk(node: ast.AST, parent: ast.AST, lines: range, function: str) -> None:
        if isinstance(node, ast.Raise | ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "strict"):
            return
        if isinstance(node, ast.stmt):
            inside = [part for part in ast.walk(node) if isinstance(part, ast.stmt) and part is not node]
            end = min((part.lineno - 1 for part in inside), default=node.end_lineno or node.lineno)
            lines = range(node.lineno, max(end, node.lineno) + 1)
        for part, other in replacements(node):
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[(part.end_lineno or part.lineno) - 1] + (part.end_col_offset or 0)
            text = ast.unparse(other) if isinstance(other, ast.stmt) else f"({ast.unparse(other)})"
            near = f" in {ast.unparse(parent)}"[:80].split("\n")[0] if isinstance(part, ast.Constant) else ""
            change = f"{function}: {ast.unparse(part)}{near} → {ast.unparse(other)}"
            edited = source[:start] + text.encode() + source[end:]
            changed.append(Mutant(path.relative_to(root).as_posix(), lines, change, edited))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".strip(".")
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list"):
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, ast.AST):
                        walk(part, node, lines, function)

    tree = ast.parse(source)
    walk(tree, tree, range(0), "")
    return changed


def sources(root: Path, places: list[str]) -> list[Path]:
    """These files, and those in these folders."""
    return [path for place in places for path in sorted((root / place).rglob("*.py")) or [root / place]]


def sample(root: Path, places: list[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants drawn at random from all in these files and folders."""
    every = [mutant for path in sources(root, places) for mutant in mutants(path, root)]
    return random.Random(seed).sample(every, min(count, len(every)))


class Recorder:
    """Tells coverage which test is running, and notes how long each took that passed."""

    def __init__(self, measured: coverage.Coverage):
        self.measured = measured
        self.setup: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.measured.switch_context(item.nodeid.split("::")[0])  # all tests of the file may share what fixtures make

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self.measured.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self.setup[report.nodeid] = report.duration
        elif report.when == "call" and report.passed:
            self.seconds[report.nodeid] = self.setup[report.nodeid] + report.duration


def record(out: Path, files: list[str]) -> None:
    """Run the tests of measures once, and keep which lines of these files each executes."""
    measured = coverage.Coverage(data_file=str(out / "executed"), include=files, config_file=False)
    recorder = Recorder(measured)
    measured.start()
    pytest.main([*OPTIONS[1:], *(f"tests/{room}" for room in ROOMS)], plugins=[recorder])
    measured.stop()
    measured.save()
    (out / "seconds.json").write_text(json.dumps(recorder.seconds))


def selected(mutant: Mutant, executed: dict[int, list[str]], seconds: dict[str, float], budget: float) -> list[str]:
    """The tests that execute the mutant's lines, quickest first, and refusals last, as many as the budget allows."""
    contexts = {context for line in mutant.lines for context in executed.get(line, [])}
    if contexts == {""}:  # executed when the module is imported
        contexts = {context for line in executed.values() for context in line}
    tests = [test for test in seconds if test in contexts or test.split("::")[0] in contexts]
    chosen: list[str] = []
    for test in sorted(tests, key=lambda test: ("refus" in test, seconds[test])):
        budget -= seconds[test]
        if budget < 0 and chosen:
            break
        chosen.append(test)
    return chosen


def in_a_process(function: object, *arguments: object, log: Path, limit: float | None = None) -> int | None:
    """The exit status of a function in a process of its own, or None if it ran out of time."""

    def run() -> None:
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.exit(function(*arguments))  # type: ignore[operator]

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    return process.exitcode


def copied(out: Path) -> Path:
    """A copy of the project as it was when the run began, without a mutant that a killed run may have left in it."""
    original, copy = out / "original", out / "copy"
    if not original.exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in listed.stdout.split("\0"):
            if (ROOT / name).is_file():
                (original / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, original / name)
    shutil.copytree(original, copy, dirs_exist_ok=True)  # with the times of files, so that compiled ones remain valid
    return copy


def outcome(mutant: Mutant, copy: Path, tests: list[str], limit: float) -> str:
    """What becomes of a mutant."""
    if not tests:
        return "not executed"
    file = copy / mutant.path
    original, stat = file.read_bytes(), file.stat()
    file.write_bytes(mutant.source)
    try:
        status = in_a_process(pytest.main, [*OPTIONS, *tests], log=copy.parent / "log", limit=limit)
    finally:
        file.write_bytes(original)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return "survived" if status == 0 else "killed" if status is not None else "too slow"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("places", nargs="*", default=MEASURING)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30, help="of tests for each mutant")
    options = parser.parse_args()
    out = options.out.resolve()
    copy = copied(out)
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(copy))
    for library in LIBRARIES:
        importlib.import_module(library)
    if not (out / "seconds.json").exists():
        in_a_process(record, out, [str(path) for path in sources(copy, options.places)], log=out / "log")
    sys.dont_write_bytecode = True  # a mutant's would be taken for the original's
    seconds = json.loads((out / "seconds.json").read_text())
    data = coverage.CoverageData(str(out / "executed"))
    data.read()
    results = out / "results.jsonl"
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    for mutant in sample(copy, options.places, options.count, options.seed)[len(done) :]:
        executed = data.contexts_by_lineno(str(copy / mutant.path))
        tests = selected(mutant, executed, seconds, options.seconds)
        limit = 60 + 5 * sum(seconds[test] for test in tests)
        done.append({"mutant": mutant.name, "line": mutant.lines.start, "outcome": outcome(mutant, copy, tests, limit)})
        with results.open("a") as file:
            print(json.dumps(done[-1], ensure_ascii=False), file=file)
    report(done)


def report(done: list[dict[str, str]]) -> None:
    """Print how many mutants were killed, and the survivors that `survivors.txt` does not explain."""
    counts = Counter(result["outcome"] for result in done)
    killed = counts["killed"] + counts["too slow"]
    print(f"{killed} of {len(done)} killed ({killed / max(len(done), 1):.0%}):", dict(counts))
    explained = SURVIVORS.read_text(encoding="utf-8") if SURVIVORS.exists() else ""
    for result in done:
        if result["outcome"] in ("survived", "not executed") and result["mutant"] not in explained:
            print(f"{result['outcome']}: {result['mutant']} (line {result['line']})")


if __name__ == "__main__":
    main()
