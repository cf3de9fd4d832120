"""The harness of the benchmarks, on contestants whose times are known, and the figures that the README quotes."""

import json
import re
import subprocess
import sys
import time

import pytest
from toys import ROOT

RATIO = re.compile(r"[\d.,]+ \([\d.,]+–[\d.,]+\)")


@pytest.fixture
def timing(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    import timing

    yield timing
    sys.modules.pop("timing")


def test_ratios_are_of_rounds(timing):
    slow, fast = timing.Measured([3.0, 8.0, 10.0]), timing.Measured([1.0, 2.0, 5.0])
    assert timing.ratio(slow, fast) == "3.00 (2–4)"
    assert timing.ratio(slow.times(100), fast) == "300 (200–400)"


@pytest.mark.e2e
def test_contestants_take_turns(timing):
    order: list[str] = []
    seconds = timing.alternate({name: lambda name=name: order.append(name) for name in "ab"}, repeats=2)
    assert "".join(order) == "ab" * 3, "a round to warm up"
    assert [len(one.seconds) for one in seconds.values()] == [2, 2]


@pytest.mark.e2e
def test_time_and_memory_are_measured(timing):
    def sleeps_and_holds() -> None:
        held = bytearray(b"x") * 50_000_000
        time.sleep(0.05)
        del held

    found = timing.alternate({"both": sleeps_and_holds}, repeats=1)["both"]
    assert found.seconds[0] >= 0.05
    if sys.platform == "linux":
        assert 45 < found.memory < 80


def test_rows(timing):
    ours = timing.Measured([1.0, 1.0])
    line = timing.row("what", "on", ours, other=("naive", timing.Measured([2.0, 2.0]).times(10)), note="n")
    assert line["it / interp"] == "20.00 (20–20)"
    assert line["compared with"] == "naive (a part timed, × 10)"
    table = timing.markdown([line, timing.note_only("counted", "there", "5 of 6")])
    assert table.splitlines()[0] == "| what | on | compared with | it / interp | interp, s | note |"
    assert table.splitlines()[-1] == "| counted | there |  |  |  | 5 of 6 |"


def test_what_disagrees_has_no_row(timing):
    assert timing.agrees("difference", 1e-7, 1e-6) == "difference: 1e-07"
    for difference in (1e-5, float("nan")):
        with pytest.raises(SystemExit, match="difference differs by"):
            timing.agrees("difference", difference, 1e-6)


@pytest.mark.e2e
@pytest.mark.matrix
def test_a_benchmark_prints_its_rows():
    command = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "probing.py"), "--quick", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert {row["what"] for row in rows} == {"240 L0 probes side by side"}
    assert all(RATIO.fullmatch(row["it / interp"]) for row in rows)


def test_quoted_ratios_were_measured():
    """Those of the README stand in benchmarks/RESULTS.md, which `make bench` writes."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    quoted = RATIO.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert quoted
    assert not [ratio for ratio in quoted if ratio not in results]
