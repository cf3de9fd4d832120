"""Bad input at the command line: exit code 2, one line, nothing written."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from toys import run_command
from workshop import Workshop

from interp.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, hf_directory: Callable[[str], Path]) -> Path:
    """A sound run of `interp frequency`."""
    root = tmp_path_factory.mktemp("sound")
    (root / "text.txt").write_text("w1 w2 w3 w1 w2\n" * 50)
    arguments = ["--model", str(hf_directory("gpt2")), "--corpus", str(root / "text.txt"), "--out", str(root / "run")]
    assert main(["frequency", *arguments]) == 0
    return root / "run"


def full(command: str, **changes: object) -> Callable[[Workshop, Path], list[str]]:
    """A command that would run, but for the changes; a function of the workshop is called."""

    def arguments(w: Workshop, run: Path) -> list[str]:
        good: dict[str, object] = {"model": w.directory("gpt2"), "corpus": w.corpus(), "out": w.root / "out"}
        if command == "train":
            good = {"kind": "gpt2", "corpus": w.corpus(), "tokens": "1e3", "out": w.root / "out"}
        if command == "probing":
            good = {"model": w.directory("gpt2"), "pairs": w.file("p.csv", PAIR), "out": w.root / "out"}
        given = {key: value(w) if callable(value) else value for key, value in (good | changes).items()}
        return [command, *(str(part) for key, value in given.items() for part in (f"--{key.replace('_', '-')}", value))]

    return arguments


def page(name: str, data: bytes | str | None) -> Callable[[Workshop, Path], list[str]]:
    return lambda w, run: ["page", str(w.result(run, name, data))]


def table(
    change: Callable[[pd.DataFrame], pd.DataFrame], command: str = "page"
) -> Callable[[Workshop, Path], list[str]]:
    """A page, or a comparison, of a run whose table `kl` somebody changed."""

    def arguments(w: Workshop, run: Path) -> list[str]:
        copied = w.result(run)
        path = copied / "frequency/kl.parquet"
        change(pd.read_parquet(path)).to_parquet(path)
        return (
            ["page", str(copied)]
            if command == "page"
            else ["compare", str(run), str(copied), "--out", str(w.root / "out")]
        )

    return arguments


def merge(command: str) -> Callable[[Workshop, Path], list[str]]:
    return lambda w, run: ["merge", str(w.part(command))]


def broken_link(w: Workshop) -> Path:
    (w.root / "link").symlink_to(w.root / "gone")
    return w.root / "link"


PAIR = "sentence_good,sentence_bad\nw1 w2,w1 w3\n"

CASES: dict[str, tuple[str, Callable[[Workshop, Path], list[str]]]] = {
    "no command": ("No such command '<b>'", lambda w, run: ["<b>"]),
    "no options": ("Missing option", lambda w, run: ["frequency"]),
    "a model that climbs": ("'../../x' does not exist", full("frequency", model="../../x")),
    "a model of HTML": ("is no local directory", full("frequency", model="<b>x</b>")),
    "a model with a newline": ("is no local directory", full("encoding", model="a\nb")),
    "pickled weights": ("only pickled weights", full("attention", model=lambda w: w.pickled())),
    "code of its own": ("is a 'evil' model", full("frequency", model=lambda w: w.remote_code("evil"))),
    "weights cut off": ("cannot be read as a transformers model", full("report", model=lambda w: w.truncated("gpt2"))),
    "a tokenizer cut off": (
        "cannot be read",
        full("unigrams", model=lambda w: w.with_file("tokenizer.json", "{"), out="u.safetensors"),
    ),
    "out is a file": ("cannot be written to: Not a directory", full("frequency", out=lambda w: w.corpus())),
    "out is in a file": ("cannot be written to", full("attention", out=lambda w: w.corpus() / "x")),
    "out is a device": ("cannot be written to", full("frequency", out="/dev/null")),
    "out climbs to where nobody writes": ("cannot be written to", full("frequency", out="../" * 30 + "proc/x")),
    "out has NUL": ("null byte", full("frequency", out="a\0b")),
    "out is too long": ("File name too long", full("frequency", out="x" * 5_000)),
    "out is a broken link": ("cannot be written to", full("frequency", out=broken_link)),
    "a limit past 64 bits": ("Invalid value for '--limit'", full("frequency", limit=10**30)),
    "a seed past 64 bits": ("Invalid value for '--seed'", full("generation", seed=10**30)),
    "no rows": ("Invalid value for '--batch-size'", full("encoding", batch_size=0)),
    "a rate of NaN": (
        "between 0 and 1, found nan",
        full("frequency", model=lambda w: w.directory("bert"), mask_rate="nan"),
    ),
    "no scales": ("is not a list of numbers", full("frequency", scales="")),
    "scales of NaN": ("not finite", full("generation", scales="nan")),
    "scales past all bounds": ("not finite", full("frequency", scales="1e400")),
    "scales without end": ("is not a list of numbers", full("frequency", scales="::")),
    "no decoders": ("unknown ''", full("generation", decoders="")),
    "a decoder of HTML": ("unknown '<b>'", full("generation", decoders="<b>")),
    "prompts past the context": ("past this model's context", full("generation", prompt_tokens=10**9)),
    "an encoder that writes": (
        "does not continue text",
        full("generation", model=lambda w: w.directory("bert"), n=3, prompt_tokens=3, new_tokens=4),
    ),
    "layers of no digit": ("is not a list of numbers", full("attention", layers="²")),
    "a layer past the last": ("0 … 1, found [9]", full("attention", layers=9)),
    "a part of no run": ("expected I/N", full("frequency", shard="4/2")),
    "counts of nothing": ("unigram counts", full("encoding", unigram=lambda w: w.root / "gone.safetensors")),
    "one pair": ("a split needs at least 10", full("probing")),
    "a task that climbs": ("no task '../x'", full("probing", tasks="../x")),
    "no such position": ("unknown '<b>'", full("probing", position="<b>")),
    "counts of another ending": ("must end in .safetensors", full("unigrams", out="u.json")),
    "a directory for counts": (
        "is a directory; expected the name of a file",
        full("unigrams", out=lambda w: w.file("u.safetensors/x").parent),
    ),
    "a directory for the page": (
        "index.html was not written by interp",
        full("frequency", out=lambda w: w.file("run/index.html/x").parents[1]),
    ),
    "counts of a text that is not there": ("gone.txt' does not exist", full("attention", unigram="gone.txt")),
    "a model at nobody's home": ("'~nobody0/x' does not exist", full("frequency", model="~nobody0/x")),
    "no blocks to count": (
        "n_layer",
        lambda w, run: ["attention", "--model", str(w.config(n_layer=0)), "--dry-run"],
    ),
    "tokens without end": ("expected a finite number of tokens", full("train", tokens="inf")),
    "a rate of learning of NaN": ("expected a number above 0", full("train", learning_rate="nan")),
    "a share of NaN": ("expected a share between 0 and 1", full("train", held_out="nan")),
    "a kind of no model": ("expected gpt2 or bert", full("train", kind="../x")),
    "a page of a file": ("expected the --out of a run", lambda w, run: ["page", str(w.corpus())]),
    "a page of nothing": ("holds no result", lambda w, run: ["page", str(w.root)]),
    "a result cut off": ("result.json is damaged", page("result.json", '{"anal')),
    "a result of bytes": ("result.json is damaged", page("result.json", b"\xff\xfe")),
    "a result that is a list": ("holds a list, expected an object", page("result.json", "[]")),
    "a result from nowhere": ("says nothing of where", page("result.json", '{"analysis": "frequency"}')),
    "a result of no model": ("KeyError: 'model'", page("result.json", '{"analysis": "frequency", "provenance": {}}')),
    "another analysis": ("holds a result of 'x'", page("result.json", '{"analysis": "x", "provenance": {}}')),
    "a table that is gone": ("lacks kl", page("kl.parquet", None)),
    "a table cut off": ("kl.parquet is damaged", page("kl.parquet", b"PAR1xx")),
    "a table of another version": ("is no result of this version", table(lambda kl: kl.drop(columns="scale"))),
    "a table without rows": ("is no result of this version", table(lambda kl: kl.iloc[:0])),
    "a bias that climbs": ("is no result of this version", table(lambda kl: kl.assign(bias="../../../evil"))),
    "a comparison of damage": ("is no result of this version", table(lambda kl: kl.drop(columns="scale"), "compare")),
    "a comparison of one": ("needs two or more", lambda w, run: ["compare", str(run), "--out", str(w.root / "out")]),
    "a comparison into a file": (
        "cannot be written",
        lambda w, run: ["compare", str(run), str(w.result(run)), "--out", str(w.corpus())],
    ),
    "a merge of nothing": ("found no parts of a run", lambda w, run: ["merge", str(w.root)]),
    "a merge of damage": ("command.json is damaged", merge("{")),
    "a merge of numbers": ("holds no command", merge("[1, 2]")),
    "a merge of another command": ("holds the command 'report'", merge('{"command": "report", "options": {}}')),
    "a merge of a merge": ("holds the command 'merge'", merge('{"command": "merge", "options": {}}')),
}


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(
    name: str, workshop: Workshop, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message, arguments = CASES[name]
    monkeypatch.chdir(workshop.root)
    given = arguments(workshop, run)
    before = files(workshop.root)
    assert run_command(given) == 2, capsys.readouterr().err
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("interp: note")]
    assert captured.out == ""
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("interp: error: ")
    assert message in " ".join(captured.err.split()), "in the line, or in a note before it"
    assert files(workshop.root) == before, "something was written"


def test_a_line_without_end(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    from interp.corpora import files, load

    monkeypatch.setattr(files, "_LONGEST_LINE", 1_000)
    for name in ("a.txt", "a.csv", "a.jsonl"):
        with pytest.raises(ValueError, match="line 2: longer than 1,000 characters; break it into lines"):
            load(workshop.file(name, '{"text": "w"}\n' + "w" * 5_000))


def test_names_of_html_are_text_on_a_page(workshop: Workshop, run: Path) -> None:
    hostile = "<script>alert(1)</script>"
    copied = workshop.result(run)
    path = copied / "frequency/result.json"
    result = json.loads(path.read_text())
    result["provenance"] |= {"model": hostile, "corpus": hostile, "<img src=x>": hostile}
    path.write_text(json.dumps(result))
    assert main(["page", str(copied)]) == 0
    written = (copied / "index.html").read_text()
    assert hostile not in written
    assert "<img src=x" not in written
    assert "&lt;script&gt;alert(1)" in written


def test_models_called_by_dots_stay_in_their_directory(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    from interp.paths import short_name

    monkeypatch.chdir(workshop.root)
    names = [short_name(name) for name in (".", "..", "./", "a/..", "../..", "owner/model")]
    assert all(name not in (".", "..") and "/" not in name for name in names)
    assert names[0] == workshop.root.name
    assert names[5] == "model"
