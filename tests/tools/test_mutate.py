"""Mutants of made-up code, and which tests they are tried on."""

import subprocess
import sys

import mutate
import pytest
from toys import ROOT

CODE = '''"""λ is a letter of two bytes, before what is changed."""

LIMIT = 3


def mean(values: list[float], at: int = 1) -> float:
    """The mean."""
    if not values:
        raise ValueError(f"values needs {1 + 1} numbers, found {len(values)}")
    total = sum(values) if at else λ(values)
    return total / len(values) + LIMIT * (at > 2 and True)
'''
CHANGES = {
    ": 3 in LIMIT = 3 → 4",
    "mean: 1 in values: list[float], at: int=1 → 2",
    "mean: not values → values",
    "mean: at → not at",
    "mean: return total / len(values) + LIMIT * (at > 2 and True) → return None",
    "mean: total / len(values) + LIMIT * (at > 2 and True) → total / len(values) - LIMIT * (at > 2 and True)",
    "mean: total / len(values) → total * len(values)",
    "mean: LIMIT * (at > 2 and True) → LIMIT / (at > 2 and True)",
    "mean: at > 2 and True → at > 2 or True",
    "mean: at > 2 → at >= 2",
    "mean: 2 in at > 2 → 3",
    "mean: True in at > 2 and True → False",
}


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "mean.py"
    path.write_text(CODE, encoding="utf-8")
    return path


def test_one_thing_is_changed_and_no_message_or_type(code):
    every = mutate.mutants(code, code.parent)
    assert {mutant.change for mutant in every} == CHANGES
    for mutant in every:
        lines = mutant.source.decode().splitlines()
        changed = [n for n, (new, old) in enumerate(zip(lines, CODE.splitlines(), strict=True), 1) if new != old]
        assert len(changed) == 1
        assert changed[0] in mutant.lines


def test_a_sample_is_that_of_its_seed(code):
    drawn = [mutate.sample(code.parent, ["mean.py"], 5, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({mutant.change for mutant in drawn[0]}) == 5
    assert len(mutate.sample(code.parent, ["."], 100, 0)) == len(CHANGES)


def test_tests_that_execute_the_line_run_quickest_first(code):
    seconds = {"a.py::slow": 5.0, "a.py::quick": 1.0, "b.py::refused": 0.1, "c.py::other": 0.1, "b.py::same": 2.0}
    at = {mutant.change: mutant for mutant in mutate.mutants(code, code.parent)}
    executed = {3: [""], 11: ["a.py", "b.py::refused", "b.py::same"], 99: ["c.py::other"]}
    by_line = mutate.selected(at["mean: at > 2 → at >= 2"], executed, seconds, 60)
    assert by_line == ["a.py::quick", "b.py::same", "a.py::slow", "b.py::refused"]
    assert mutate.selected(at["mean: at > 2 → at >= 2"], executed, seconds, 3.5) == by_line[:2]
    assert mutate.selected(at["mean: at > 2 → at >= 2"], executed, seconds, 0.5) == by_line[:1]
    assert mutate.selected(at["mean: not values → values"], executed, seconds, 60) == []
    assert len(mutate.selected(at[": 3 in LIMIT = 3 → 4"], executed, seconds, 60)) == 5


@pytest.mark.slow
def test_mutants_live_die_or_hang_and_the_file_stays(code):
    code.with_name("test_mean.py").write_text("from mean import mean\n\ndef test():\n    assert mean([2]) == 2\n")
    script = f"""
import os, sys, mutate
from pathlib import Path

copy = Path({str(code.parent)!r})
os.chdir(copy)
sys.path.insert(0, str(copy))
sys.dont_write_bytecode = True
mutate.OPTIONS = ["-x", "-p", "no:cacheprovider", "-p", "no:jaxtyping"]
every = {{mutant.change: mutant for mutant in mutate.mutants(copy / "mean.py", copy)}}
for change, limit in (("at > 2 → at >= 2", 60), ("not values → values", 60), ("not values → values", 0.001)):
    print(mutate.outcome(every["mean: " + change], copy, ["test_mean.py::test"], limit))
"""
    environment = {"PYTHONPATH": str(ROOT / "tools")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:3] == ["survived", "killed", "too slow"]
    assert code.read_text(encoding="utf-8") == CODE
