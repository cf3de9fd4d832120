"""Bad input on the command line gives exit code 2 and one line, and nothing is written."""

import re
from collections.abc import Callable

import pytest
from workshop import Command, Workshop, check_command_refused

from interp.cli import main

PAIR = "sentence_good,sentence_bad\nw1 w2,w1 w3\n"


def full(command: str, **changes: object) -> Callable[[Workshop], list[str]]:
    """A command that would run without the changes; functions of the workshop are called."""

    def arguments(w: Workshop) -> list[str]:
        good: dict[str, object] = {"model": w.directory("gpt2"), "corpus": w.corpus(), "out": w.root / "out"}
        if command == "probing":
            good = {"model": w.directory("gpt2"), "pairs": w.file("p.csv", PAIR), "out": w.root / "out"}
        given = {key: value(w) if callable(value) else value for key, value in (good | changes).items()}
        return [command, *(str(part) for key, value in given.items() for part in (f"--{key.replace('_', '-')}", value))]

    return arguments


def merge(command: str) -> Callable[[Workshop], list[str]]:
    return lambda w: ["merge", str(w.part(command))]


CASES: dict[str, Command] = {
    "no command": ("No such command '<b>'", lambda w: ["<b>"]),
    "no options": ("Missing option", lambda w: ["frequency"]),
    "a model path that climbs": ("'../../x' does not exist", full("frequency", model="../../x")),
    "HTML for a model": ("is no local directory", full("frequency", model="<b>x</b>")),
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
    "out climbs to where writing is impossible": ("cannot be written to", full("frequency", out="../" * 30 + "proc/x")),
    "out has NUL": ("has a NUL character", full("frequency", out="a\0b")),
    "out is too long": ("File name too long", full("frequency", out="x" * 5_000)),
    "out is a broken link": ("cannot be written to", full("frequency", out=lambda w: w.broken_link())),
    "a limit past 64 bits": ("Invalid value for '--limit'", full("frequency", limit=10**30)),
    "a seed past 64 bits": ("Invalid value for '--seed'", full("generation", seed=10**30)),
    "no rows": ("Invalid value for '--batch-size'", full("encoding", batch_size=0)),
    "a rate of NaN": (
        "between 0 and 1, found nan",
        full("frequency", model=lambda w: w.directory("bert"), mask_rate="nan"),
    ),
    "no scales": ("is not a list of numbers", full("frequency", scales="")),
    "scales of NaN": ("not finite", full("generation", scales="nan")),
    "infinite scales": ("not finite", full("frequency", scales="1e400")),
    "scales without numbers": ("is not a list of numbers", full("frequency", scales="::")),
    "no decoders": ("unknown ''", full("generation", decoders="")),
    "HTML for a decoder": ("unknown '<b>'", full("generation", decoders="<b>")),
    "prompts past the context": ("exceed this model's context", full("generation", prompt_tokens=10**9)),
    "an encoder that writes": (
        "does not continue text",
        full("generation", model=lambda w: w.directory("bert"), n=3, prompt_tokens=3, new_tokens=4),
    ),
    "layers that are not digits": ("is not a list of whole numbers", full("attention", layers="²")),
    "a layer past the last": ("0 … 1, found [9]", full("attention", layers=9)),
    "a part of no run": ("expected I/N", full("frequency", shard="4/2")),
    "counts of nothing": ("unigram counts", full("encoding", unigram=lambda w: w.root / "gone.safetensors")),
    "one pair": ("a split needs at least 10", full("probing")),
    "a task that climbs": ("no task '../x'", full("probing", tasks="../x")),
    "no such position": ("unknown '<b>'", full("probing", position="<b>")),
    "no such scaling": ("unknown 'sd'; expected one of standard, rms, none", full("probing", scaling="sd")),
    "a column of pairs that is not there": (
        "no column 'right'; found sentence_good, sentence_bad",
        full("probing", good="right"),
    ),
    "columns of bundled pairs": ("the columns of 'bundled' are known", full("report", pairs="bundled", task="rule")),
    "counts with another ending": ("must end in .safetensors", full("unigrams", out="u.json")),
    "a directory for counts": (
        "is a directory; expected the name of a file",
        full("unigrams", out=lambda w: w.file("u.safetensors/x").parent),
    ),
    "a directory for the page": (
        "index.html was not written by interp",
        full("frequency", out=lambda w: w.file("run/index.html/x").parents[1]),
    ),
    "counts of a text that is not there": ("gone.txt' does not exist", full("attention", unigram="gone.txt")),
    "a model in an unknown user's home": ("'~nobody0/x' does not exist", full("frequency", model="~nobody0/x")),
    "a run that is a file": ("is not a directory; expected the --out of a run", lambda w: ["show", str(w.corpus())]),
    "settings that an analysis does not have": (
        "settings of frequency have 'scale' (did you mean 'scales'?); expected options by name: batch_size",
        full("report", settings='{"frequency": {"scale": [0]}}'),
    ),
    "settings that are a list": (
        "settings of encoding have [1]; expected options by name",
        full("report", settings='{"encoding": [1]}'),
    ),
    "no blocks to count": (
        "n_layer",
        lambda w: ["attention", "--model", str(w.config(n_layer=0)), "--dry-run"],
    ),
    "weights cut off, of which sizes are asked": (
        "cannot be read as a transformers model",
        lambda w: ["attention", "--model", str(w.truncated("gpt2")), "--dry-run"],
    ),
    "a measure without a dry run": ("--measure needs --dry-run", lambda w: [*full("frequency")(w), "--measure"]),
    "a measure of no text": (
        "--measure reads a batch of text; name a text with --corpus",
        lambda w: ["frequency", "--model", str(w.directory("gpt2")), "--dry-run", "--measure"],
    ),
    "a row longer than the model reads": (
        "context must be 2 … 24 tokens for this model, found 25; choose one within this range",
        full("frequency", context=25),
    ),
    "a dry run of a row longer than the model reads": (
        "context must be 2 … 24 tokens for this model, found 25; choose one within this range",
        lambda w: ["report", "--model", str(w.directory("gpt2")), "--context", "25", "--dry-run"],
    ),
    "a dry run of no text": (
        "gone.txt' does not exist",
        lambda w: ["encoding", "--model", str(w.directory("gpt2")), "--corpus", "gone.txt", "--dry-run"],
    ),
    "a dry run in whole numbers": (
        "unknown 'int8'; expected one of float32",
        lambda w: ["frequency", "--model", str(w.directory("gpt2")), "--dtype", "int8", "--dry-run"],
    ),
    "a dry run of one band": (
        "'--bands': found 1, expected 2 or more",
        lambda w: ["controls", "--model", str(w.directory("gpt2")), "--bands", "1", "--dry-run"],
    ),
    "a dry run of a sink that draws more than all attention": (
        "epsilon is a share of attention and must lie between 0 and 1, found 2.0",
        lambda w: ["sinks", "--model", str(w.directory("gpt2")), "--epsilon", "2", "--dry-run"],
    ),
    "a dry run of factors that are not positive": (
        "each ratio must be a positive number",
        lambda w: ["encoding", "--model", str(w.directory("gpt2")), "--ratios", "0", "--dry-run"],
    ),
    "a dry run of a factor near zero": (
        "at least 1e-20, found [1e-300]",
        lambda w: ["encoding", "--model", str(w.directory("gpt2")), "--ratios", "1e-300", "--dry-run"],
    ),
    "a dry run of no dimensions": (
        "ks must be 1 or more dimensions, found [0]",
        lambda w: ["probing", "--model", str(w.directory("gpt2")), "--ks", "0", "--dry-run"],
    ),
    "a dry run of gates beyond their range": (
        "l0_strengths (λ) must lie in (0, 1]",
        lambda w: ["probing", "--model", str(w.directory("gpt2")), "--l0-strengths", "2", "--dry-run"],
    ),
    "a dry run of a report with too few controls": (
        "draws must be at least 39, found 5",
        lambda w: [
            "report",
            "--model",
            str(w.directory("gpt2")),
            "--settings",
            '{"controls": {"draws": 5}}',
            "--dry-run",
        ],
    ),
    "a report without --out": ("--out is missing", lambda w: ["report", "--model", str(w.directory("gpt2"))]),
    "an empty --out": ("'--out': the path is empty", full("frequency", out="")),
    "a page of an empty path": ("'RUN': the path is empty", lambda w: ["page", ""]),
    "counts without --out": (
        "--out is missing",
        lambda w: ["unigrams", "--model", str(w.directory("gpt2")), "--corpus", str(w.corpus())],
    ),
    "a merge of nothing": ("found no parts of a run", lambda w: ["merge", str(w.root)]),
    "a merge with a damaged command": ("command.json is damaged", merge("{")),
    "a merge with numbers for a command": ("does not name a command", merge("[1, 2]")),
    "a merge of another command": ("holds the command 'report'", merge('{"command": "report", "options": {}}')),
    "a merge of a merge": ("holds the command 'merge'", merge('{"command": "merge", "options": {}}')),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    check_command_refused(CASES[name], workshop, capsys)


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("frequency --model tiny-gtp2 --corpus bundled", "tiny-gpt2"),
        ("frequency --model tiny-gpt2 --corpus bundeld", "bundled"),
        ("probing --model tiny-gpt2 --pairs bundle", "bundled"),
        ("probing --model tiny-gpt2 --pairs bundled --tasks reflexive_numbers", "reflexive_number"),
        ("frequency --model tiny-gpt2 --corpus texts.csv --column setence", "sentence"),
        ("probing --model tiny-gpt2 --pairs pairs.csv --good goods --bad wrong", "good"),
        ("frequency --model tiny-gpt2 --corpus bundled --biases lns", "ln"),
        ('report --settings {"frequncy":{}}', "frequency"),
        ('report --settings {"frequency":{"scale":[0]}}', "scales"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(line, suggestion, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.csv").write_text("id,sentence\n1,The cat sat.\n", encoding="utf-8")
    (tmp_path / "pairs.csv").write_text("good,wrong\nThe cat sat.,The cat sit.\n", encoding="utf-8")
    assert main([*line.split(), "--out", "run"]) == 2
    assert f"did you mean '{suggestion}'" in capsys.readouterr().err


def test_help_has_its_options_in_sections(capsys):
    assert main(["frequency", "--help"]) == 0
    sections = re.split(r"^(\w+):$", capsys.readouterr().out, flags=re.M)
    options = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert list(options) == ["Model", "Text", "Question", "Running", "Output"]
    examples = {
        "Model": "--dtype",
        "Text": "--mask-rate",
        "Question": "--paper",
        "Running": "--shard",
        "Output": "--out",
    }
    for section, option in examples.items():
        assert [name for name, text in options.items() if f"  {option} " in text] == [section]
