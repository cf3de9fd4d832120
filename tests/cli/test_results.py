"""What commands print about their results, `interp show`, and options in a file."""

import io
import json
import logging
import re
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from naming import naming

from interp.analyses.frequency import FrequencyStudy
from interp.cli import main
from interp.cli.analysis import _Steps
from interp.cli.app import app
from interp.cli.config import expanded
from interp.cli.output import _cell
from interp.corpora.unigrams import Unigrams
from interp.results.findings import counted


@pytest.fixture(scope="module")
def run(hf_directory: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of one analysis, and the command that made it."""
    place = tmp_path_factory.mktemp("run")
    (place / "corpus.txt").write_text("\n".join(f"w{i % 50} w{i % 7} w{i % 13} w2 w1" for i in range(200)))
    Unigrams(np.arange(1, 68), "counts").save(place / "u.safetensors")
    command = ["frequency", "--model", str(hf_directory("gpt2")), "--corpus", str(place / "corpus.txt")]
    command += ["--unigram", str(place / "u.safetensors"), "--scales", "0:1:0.5"]
    assert main([*command, "--out", str(place / "out")]) == 0
    return SimpleNamespace(command=command, out=place / "out", found=FrequencyStudy.load(place / "out"))


@pytest.mark.slow
def test_a_command_ends_with_what_was_found(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*run.command, "--out", str(tmp_path / "a")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# random-gpt2 on corpus.txt"
    assert lines[1].startswith("bias\tscale\t")
    assert len(run.found.findings) >= 2
    head = lines.index("# findings: random-gpt2 on corpus.txt")
    answer = f"Word frequency in the prediction head: {run.found.answer} Verdicts: {counted(run.found.findings)}."
    said = [answer, *map(str, run.found.findings), *(f"Note: {caveat}." for caveat in run.found.caveats)]
    assert lines[head + 1 :] == [*said, f"written to {tmp_path / 'a' / 'index.html'}"]
    assert main([*run.command, "--json", "--out", str(tmp_path / "b")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["note"] for one in printed["notes"]] == [*run.found.caveats]
    told = printed["findings"]
    assert [one["question"] for one in told] == [one.question for one in run.found.findings]
    assert told[0]["value"] == pytest.approx(run.found.findings[0].value)
    assert {one["run"] for one in told} == {"random-gpt2 on corpus.txt"}
    assert {one["analysis"] for one in told} == {"frequency"}


# interp show


def test_show(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run.out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "frequency/kl\t3" in lines
    assert f"frequency/probabilities\t{3 * 67}" in lines
    assert not any(line.startswith("frequency/controls") for line in lines), "a table without rows"
    *_, last, caveat = lines
    assert last == str(run.found.findings[-1])
    assert caveat.startswith("Note: the model's perplexity on this text is")
    for name in ("kl", "frequency/kl"):
        assert main(["show", str(run.out), name]) == 0
        title, *rows = capsys.readouterr().out.splitlines()
        assert title == "# frequency/kl: random-gpt2 on corpus.txt"
        assert [row.split("\t")[1] for row in rows] == ["scale", "0.0000", "0.5000", "1.0000"]
    assert main(["show", str(run.out), "types"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 67, "the whole table, for other programs"


def test_show_lists_the_tables_of_several_runs(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one_a", "b"):
        shutil.copytree(run.out / "frequency", tmp_path / name / "frequency")
    assert main(["show", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"one_a\tfrequency/kl\t3", "b\tfrequency/kl\t3"} <= set(lines)
    assert main(["show", str(tmp_path), "x"]) == 2
    assert capsys.readouterr().err.count("frequency/kl") == 1


def test_show_on_a_terminal(run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["show", str(run.out), "types"]) == 0
    shown = capsys.readouterr().out
    assert "20 of 67 rows" in shown
    assert not shown.startswith("#")
    assert len(shown.splitlines()) < 30


def test_a_table_wider_than_the_terminal(
    run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is printed in several parts, each with the labels of its rows; no name or number is cut."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["show", str(run.out), "kl"]) == 0
    shown = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    heads = [line.split() for line in shown.splitlines() if line.split()[:1] == ["bias"]]
    assert len(heads) > 1
    assert {"kl_corrected", "delta_perplexity_high", "balanced_nll_low"} <= {name for head in heads for name in head}


def test_small_numbers_are_not_zero() -> None:
    assert [_cell(value) for value in (0.5, 0.0, 0.00012345, -1e-9, 3, "a")] == [
        "0.5000", "0.0000", "0.000123", "-1e-09", "3", "a"
    ]  # fmt: skip


def test_formats(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run.out), "kl", "--format", "csv"]) == 0
    kl = pd.read_csv(io.StringIO(capsys.readouterr().out))
    pd.testing.assert_frame_equal(kl, run.found.kl, check_dtype=False)
    assert main(["show", str(run.out), "kl", "--format", "latex"]) == 0
    assert capsys.readouterr().out == run.found.to_latex("kl")
    of_one = ["show", str(run.out), "kl", "--columns", "scale, delta_kl_corrected", "--format"]
    assert main([*of_one, "latex"]) == 0
    assert capsys.readouterr().out == run.found.to_latex("kl", columns=["scale", "delta_kl_corrected"])
    assert main([*of_one, "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "scale,delta_kl_corrected,delta_kl_low,delta_kl_high"
    assert main([*of_one, "latex", "--out", str(tmp_path / "tex")]) == 0
    assert (tmp_path / "tex" / "frequency_kl.tex").read_text() == run.found.to_latex(
        "kl", columns=["scale", "delta_kl_corrected"]
    )
    capsys.readouterr()
    assert main(["show", str(run.out), "--format", "csv,json", "--out", str(tmp_path / "new")]) == 0
    written = [Path(line.removeprefix("written to ")) for line in capsys.readouterr().out.splitlines()]
    assert sorted(written) == sorted((tmp_path / "new").iterdir())
    names = {*run.found.tables, *run.found.dense}
    assert {path.name for path in written} == {f"frequency_{name}.{end}" for name in names for end in ("csv", "json")}
    assert len(pd.read_csv(tmp_path / "new" / "frequency_probabilities.csv")) == 3 * 67


def test_show_of_several_runs(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        run.found.save(tmp_path / "runs" / name)
    assert main(["show", str(tmp_path / "runs"), "kl"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("#")]
    where = "random-gpt2 on corpus.txt"
    assert titles == [f"# a_frequency/kl: {where}", f"# b_frequency/kl: {where}"]
    assert main(["show", str(tmp_path / "runs"), "kl", "--format", "csv", "--out", str(tmp_path / "new")]) == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a_frequency_kl.csv", "b_frequency_kl.csv"]
    capsys.readouterr()
    assert main(["show", str(tmp_path / "runs"), "kl", "--format", "csv"]) == 2
    told = "a_frequency, b_frequency each have a table 'kl'; name ANALYSIS/TABLE of one run, or add --out"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["no_table"], "has no table 'no_table'; expected one of frequency/kl, "),
        (["--format", "csv"], "--format csv writes files: add --out. To print one table, name it"),
        (["kl", "--format", "csv,json"], "--format csv,json writes files: add --out"),
        (["kl", "--format", "doc"], "unknown format 'doc'; expected one or more of csv, xlsx, latex, json"),
        (["--out", "new"], "choose their --format"),
        (["--columns", "scale"], "--columns chooses columns of one table; name it"),
        (["kl", "--columns", "lambda"], "columns are ['lambda']; expected a list of some of bias, scale, "),
    ],
)
def test_what_show_refuses(run: Any, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run.out), *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_show_of_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path / "gone")]) == 2
    assert "does not exist; expected the --out of a run" in capsys.readouterr().err
    assert main(["show", str(tmp_path)]) == 2
    assert "holds no result that can be read" in capsys.readouterr().err


# --config


@pytest.mark.slow
def test_a_result_has_the_options_that_repeat_it(run: Any, tmp_path: Path) -> None:
    kept = run.out / "frequency" / "options.yaml"
    head = kept.read_text(encoding="utf-8").splitlines()[0]
    assert head == (
        f"# interp {metadata.version('interp')}. To repeat the run from the same place: "
        "interp frequency --config FILE --out DIR"
    )
    given = dict(zip(run.command[1::2], run.command[2::2], strict=True))
    expected = {name.removeprefix("--"): value for name, value in given.items()}
    assert yaml.safe_load(kept.read_text(encoding="utf-8")) == {"command": "frequency", **expected}
    assert main(["frequency", "--config", str(kept), "--out", str(tmp_path / "again")]) == 0
    pd.testing.assert_frame_equal(FrequencyStudy.load(tmp_path / "again").kl, run.found.kl)
    assert (tmp_path / "again/frequency/options.yaml").read_text() == kept.read_text()
    assert main(["frequency", f"--config={kept}", "--scales", "0,1", "--out", str(tmp_path / "other")]) == 0
    assert FrequencyStudy.load(tmp_path / "other").kl["scale"].tolist() == [0, 1], "a flag overrides the file"
    assert main(["frequency", "--config", str(kept), "--overwrite", "--out", str(tmp_path / "other")]) == 0


def test_options_as_people_write_them(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("model: [a, b]\nlimit: 5\nbos: false\nmore: true\nsettings:\n  frequency: {scales: [0]}\n")
    assert expanded(["report", "--config", str(file), "--limit", "7"], app) == [
        "report", "--model", "a", "--model", "b", "--no-bos", "--more", '--settings={"frequency": {"scales": [0]}}',
        "--limit", "7",
    ]  # fmt: skip
    file.write_text("scales: [0, 0.5]\nmask-rate: 0.2\nnull_texts: 3\n".replace("null_texts: 3\n", "batch_size: 3\n"))
    assert expanded(["frequency", f"--config={file}"], app) == [
        "frequency", "--scales=0,0.5", "--mask-rate=0.2", "--batch-size=3"
    ]  # fmt: skip
    assert expanded(["frequency", "--limit", "3"], app) == ["frequency", "--limit", "3"]
    other = ["page", "--config", str(file), "run"]
    assert expanded(other, app) == other, "typer refuses it as an unknown option"


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))


def test_values_are_those_of_the_flags(tmp_path: Path) -> None:
    """YAML 1.1 reads 0:1:0.1 as 60.1, 010 as 8, 1_000 as 1000, and no, on and ~ as something else than text."""
    file = tmp_path / "my.yaml"
    for text in ("0:1:0.1", "010", "1_000", "1e3", "no", "on", "~", "null", "2001-01-01", "0x10", "--seed"):
        file.write_text(f"column: {text}\n")
        assert expanded(["frequency", "--config", str(file)], app) == ["frequency", f"--column={text}"]
    for text, flags in {"yes": ["--bos"], "On": ["--bos"], "no": ["--no-bos"], "'false'": ["--no-bos"]}.items():
        file.write_text(f"bos: {text}\n")
        assert expanded(["frequency", "--config", str(file)], app) == ["frequency", *flags]
    file.write_text("settings:\n  a: {b: [0.5, 1e-3, 010, 1:30, no, true, null, '2']}\n")
    (_, flag) = expanded(["report", "--config", str(file)], app)
    expected = {"a": {"b": [0.5, 0.001, "010", "1:30", "no", True, None, "2"]}}
    assert json.loads(flag.removeprefix("--settings=")) == expected
    file.write_text("settings: {a: 1, a: 2}\n")
    with pytest.raises(ValueError, match=naming("settings", "a", 1)):
        expanded(["report", "--config", str(file)], app)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour: red\n", "has the option 'colour'"),
        ("config: x\n", "has the option 'config'"),
        ("command: attention\n", "is for interp attention; run that, or remove the line 'command'"),
        ("- a\n- b\n", "has no options; write one per line"),
        ("a: [\n", "is not YAML"),
        ("limit: many\nmodel: tiny-gpt2\n", "Invalid value for '--limit'"),
        ("seed: 1:30\n", "Invalid value for '--seed': '1:30' is not a whole number"),
        ("seed: yes\n", "Invalid value for '--seed': 'yes' is not a whole number"),
        ("limit: １２\n", "Invalid value for '--limit': '１２' is not a whole number"),
        ("limit:\nmodel: tiny-gpt2\n", "my.yaml, line 1: limit has no value; give one, or remove the line"),
        ("bos: maybe\n", "my.yaml, line 1: bos is a switch; expected true or false, found 'maybe'"),
        ("scales: [[0, 1]]\n", "my.yaml, line 1: scales has a list or mapping inside a list"),
        ("biases: ['ln,fc']\n", "has 'ln,fc', but a comma separates the values"),
        ("seed: 1\nlimit: 2\nseed: 3\n", "my.yaml has 'seed' twice, in lines 1 and 3; keep one of them"),
        ("batch_size: 1\nbatch-size: 2\n", "my.yaml has 'batch-size' twice"),
        ("seed: &a 1\nlimit: *a\n", "my.yaml, line 2: found the alias *a; write out what it names"),
        (BOMB, "found the alias *a0"),
        (None, "does not exist; expected a YAML file of options"),
    ],
)
def test_files_that_are_not_options(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.yaml"
    if text is not None:
        file.write_text(text)
    assert main(["frequency", "--config", str(file), "--out", str(tmp_path / "o")]) == 2
    error = capsys.readouterr().err
    assert message.replace("expected one of add, ", "expected one of ") in error
    assert error.count("\n") == 1
    assert not (tmp_path / "o").exists()


# A report


def test_a_report_says_how_far_it_has_got(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two models, the second has three times as many parameters; a step of the first takes a minute."""
    now = [0.0]
    monkeypatch.setattr("interp.cli.analysis.time.monotonic", lambda: now[0])
    sizes = {"org/one": 100, "two": 300}
    monkeypatch.setattr("interp.models.shapes.shape", lambda name: SimpleNamespace(parameters=sizes[name]))
    steps, log = _Steps([*sizes]), logging.getLogger("interp")
    for name in sizes:
        with steps.of(name):
            for step in (1, 2):
                log.info("reading %s", "text", extra={"step": step, "steps": 2})
                now[0] += 60 * sizes[name] / 100
    assert capsys.readouterr().err.splitlines() == [
        "0:00 one, step 1 of 2: reading text",
        "1:00 one, step 2 of 2, about 7.0 min left: reading text",
        "2:00 two, step 1 of 2, about 6.0 min left: reading text",
        "5:00 two, step 2 of 2, about 3.0 min left: reading text",
    ]
