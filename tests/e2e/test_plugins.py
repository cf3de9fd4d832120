"""An analysis of another package, docs/example.py, gets everything that interp's own analyses have once installed."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from processes import Command, often
from toys import ROOT

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{package}"
version = "0.1"

[project.entry-points."interp.analyses"]
{entry}

[tool.setuptools]
py-modules = ["{module}"]
"""
EXAMPLE = (ROOT / "docs" / "example.py").read_text(encoding="utf-8")
ARGUMENTS = ["previous_token", "--model", "tiny-gpt2", "--corpus", "bundled", "--limit", "80", "--bos"]
ARGUMENTS += ["--layout", "texts", "--batch-size", "8"]


def install(folder: Path, module: str, source: str, entry: str) -> Path:
    """Install a package of one module as a user would; returns the directory that contains it."""
    pytest.importorskip("setuptools", reason="pip builds the package with setuptools")
    project = folder / f"{module}-source"
    project.mkdir()
    (project / f"{module}.py").write_text(source, encoding="utf-8")
    (project / "pyproject.toml").write_text(PROJECT.format(package=module, entry=entry, module=module))
    target = folder / f"{module}-installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*pip, str(target), str(project)], check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("plugin"), "example", EXAMPLE, 'previous_token = "example:ANALYSIS"')


def interp(installed: Path, *arguments: object, code: int = 0) -> tuple[str, str]:
    return Command(arguments, packages=installed).end(code)


def heads(out: Path) -> pd.DataFrame:
    return pd.read_parquet(out / "previous_token" / "heads.parquet")


@pytest.fixture(scope="module")
def whole(example: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    interp(example, *ARGUMENTS, "--distance", 2, "--out", out)
    return out


def test_it_has_a_command_with_all_its_options(example, whole):
    assert "previous_token" in interp(example, "--help")[0]
    told, _ = interp(example, "previous_token", "--help")
    for flag in ("--distance", "--context", "--dtype", "--dry-run", "--shard", "--corpus"):
        assert flag in told
    result = json.loads((whole / "previous_token" / "result.json").read_text())
    assert result["provenance"]["distance"] == 2
    assert "Which heads attend to the token before?" in (whole / "index.html").read_text()
    assert "GFLOP per token" in interp(example, "previous_token", "--model", "tiny-gpt2", "--dry-run")[0]


@pytest.mark.slow
def test_its_parts_are_merged(example, whole, tmp_path):
    for index in range(2):
        interp(example, *ARGUMENTS, "--distance", 2, "--out", tmp_path, "--shard", f"{index}/2")
    assert not (tmp_path / "previous_token").exists()
    interp(example, "merge", tmp_path)
    pd.testing.assert_frame_equal(heads(tmp_path), heads(whole), rtol=1e-12)


@pytest.mark.slow
def test_it_resumes_after_it_was_killed(example, whole, tmp_path):
    arguments = [*ARGUMENTS, "--distance", "2", "--out", tmp_path]
    begun = Command(arguments, prepare=often, packages=example)
    begun.when(tmp_path / ".previous_token" / "pass-1.safetensors").send(signal.SIGKILL).end(-signal.SIGKILL)
    interp(example, *arguments)
    pd.testing.assert_frame_equal(heads(tmp_path), heads(whole), check_exact=True)
    assert not (tmp_path / ".previous_token").exists()


def test_it_has_a_section_of_the_report(example, hf_directory, tmp_path):
    rng = np.random.default_rng(0)
    draw = lambda n: " ".join(f"w{i}" for i in rng.integers(60, size=n))  # noqa: E731
    (tmp_path / "c.txt").write_text("\n".join(draw(40) for _ in range(80)))
    pairs = [(f"{draw(4)} w1", f"{draw(4)} w2", "a") for _ in range(12)]
    pd.DataFrame(pairs, columns=["sentence_good", "sentence_bad", "UID"]).to_csv(tmp_path / "p.csv", index=False)
    given = ["--model", hf_directory("gpt2"), "--corpus", tmp_path / "c.txt", "--pairs", tmp_path / "p.csv"]
    given += ["--settings", json.dumps({"probing": {"methods": ["dense"]}, "previous_token": {"distance": 3}})]
    interp(example, "report", *given, "--out", tmp_path / "run")
    result = json.loads((tmp_path / "run" / "previous_token" / "result.json").read_text())
    assert result["provenance"]["distance"] == 3
    assert "Previous-token heads" in (tmp_path / "run" / "index.html").read_text()


BROKEN = "raise RuntimeError('no such luck')"


@pytest.mark.parametrize(
    ("module", "source", "name", "message"),
    [
        (
            "broken_one",
            BROKEN,
            "broken",
            "the analysis 'broken' of the package 'broken_one' cannot be imported",
        ),
        ("taken_one", "ANALYSIS = 1", "frequency", "two analyses or commands are called 'frequency'"),
        ("number_one", "ANALYSIS = 1", "number", "is int, expected an interp.analyses.declare.Analysis"),
        (
            "example",
            EXAMPLE.replace("    distance:", '    measure: str = option("mean", "A measure.")\n    distance:'),
            "previous_token",
            "has an option 'measure', but commands have something of their own that is called so",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(module, source, name, message, tmp_path):
    installed = install(tmp_path, module, source, f'{name} = "{module}:ANALYSIS"')
    _, error = interp(installed, name, "--model", "tiny-gpt2", "--corpus", "bundled", "--out", tmp_path / "o", code=2)
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "o").exists()
    interp(installed, "models")
    shutil.rmtree(installed)
