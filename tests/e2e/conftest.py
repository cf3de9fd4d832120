"""The run that tests of results, pages and comparisons read, made once per session."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from filelock import FileLock

from interp.cli import main
from interp.corpora import pairs
from interp.pages.page import find_runs

SETTINGS = {
    "encoding": {"orders": ["spearman", "random"], "ratios": [0.5, 2]},
    "frequency": {"scales": [0, 0.5, 1]},
    "generation": {
        "n": 20, "prompt_tokens": 5, "new_tokens": 12, "scales": [0, 0.25, 0.5, 1], "decoders": ["beam", "top_k"],
        "features": "tiny-gpt2",
    },
    "probing": {"states": [0, 3, 6], "l0_strengths": [0.4, 0.7, 1.0], "ks": [1, 4, 16]},
}  # fmt: skip
TASKS = ["reflexive_number", "reflexive_gender", "left_branch"]


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `interp report` writes for the bundled models on little text; tests must not change it. It is made once in
    a session, or once in the directory $INTERP_TEST_REPORT for several sessions of the same checkout."""
    home = tmp_path_factory.getbasetemp()
    if shared := os.environ.get("INTERP_TEST_REPORT"):
        home = Path(shared)
    elif "PYTEST_XDIST_WORKER" in os.environ:
        home = home.parent
    with FileLock(home / "report.lock"):
        if not (home / "report").exists():
            pairs.generate(n_per_task=60, tasks=TASKS).to_csv(home / "pairs.csv", index=False)
            data = ["--corpus", "bundled", "--limit", "30", "--pairs", str(home / "pairs.csv")]
            assert main(["report", *data, "--settings", json.dumps(SETTINGS), "--out", str(home / "made")]) == 0
            (home / "made").rename(home / "report")
    return home / "report"


@pytest.fixture(scope="session")
def reported(report: Path) -> dict[str, dict[str, Any]]:
    """The results of `reported`, by model and analysis."""
    return {run.directory.name: run.results for run in find_runs(report)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium; .ci/run installs it")
    with Browser() as one:
        yield one
