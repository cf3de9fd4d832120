"""What commands print: in every encoding, without control characters on a terminal, and with the right exit code."""

import ast
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from naming import naming
from workshop import Workshop

import interp.cli
from interp.cli import errors, main
from interp.cli.app import run
from interp.cli.screen import visible
from interp.support.memory import DoesNotFit

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202egpj.exe\u2066\x9b31m\x00"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", ["show", "table", "json", "page", "error"])
def test_a_terminal_gets_no_control_characters_from_a_run(
    command: str, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich and tqdm may style what they print; nothing that a run holds may."""
    copied = workshop.result()
    path = copied / "frequency/result.json"
    result = json.loads(path.read_text())
    result["provenance"] |= {"model": HOSTILE, "corpus": HOSTILE, "caveats": [HOSTILE]}
    path.write_text(json.dumps(result))
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "dumb")
    given = {"show": ["show"], "table": ["show"], "json": ["show", "--json"], "page": ["page"], "error": ["show"]}
    arguments = [*given[command], str(copied), *{"table": ["kl"], "error": [HOSTILE]}.get(command, [])]
    assert main(arguments) == (2 if command == "error" else 0)
    printed = out.getvalue() + err.getvalue()
    assert "owned" in printed
    assert not [character for character in printed if visible(character, lines=True) != character]


def test_only_one_module_prints() -> None:
    """Everything that a command prints is made visible in one place."""
    for path in Path(interp.cli.__file__).parent.glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {ast.unparse(function) for function in calls}
        assert path.name == "screen.py" or not names & {"print", "typer.echo", "sys.stdout.write", "sys.stderr.write"}


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1:strict", "utf-8", "utf-16"])
def test_any_encoding_of_the_output(encoding: str, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    codec, _, errors = encoding.partition(":")

    def shown(*arguments: str) -> str:
        buffer = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding=codec, errors=errors or "strict"))
        assert main(["show", str(workshop.run()), *arguments]) == 0
        sys.stdout.flush()
        return buffer.getvalue().decode(codec)

    assert shown("kl").splitlines()[1].startswith("bias\tscale\t")
    measures = [finding["measure"] for finding in json.loads(shown("--json"))["findings"]]
    assert any("KL(u‖q)" in measure for measure in measures), "whole, though the encoding may not have it"


def failing(error: Callable[[], object]) -> Callable[..., Any]:
    def application(given: list[str], **_: Any) -> None:
        error()

    return application


def _raise(error: Exception) -> None:
    raise error


CODES: dict[str, tuple[Callable[[], object], int, str]] = {
    "an option": (lambda: _raise(ValueError("n must be above 0")), 2, "n must be above 0"),
    "a type": (lambda: _raise(TypeError("n must be a number")), 2, "n must be a number"),
    "a path": (lambda: Path("/nowhere/at/all").read_text(), 2, "No such file"),
    "numpy": (lambda: __import__("numpy").zeros(2) + __import__("numpy").zeros(3), 1, "ValueError: operands could not"),
    "None": (lambda: float(None), 1, "TypeError: float() argument must be"),  # type: ignore[arg-type]
    "a key": (lambda: {}["gone"], 1, "KeyError: 'gone'"),
    "an assertion": (lambda: _raise(AssertionError("never")), 1, "AssertionError: never"),
    "memory": (lambda: _raise(DoesNotFit("16 GiB of 8 GiB")), 3, "16 GiB of 8 GiB"),
    "no memory": (lambda: _raise(MemoryError()), 3, "--dry-run says what would fit"),
    "Ctrl-C": (lambda: _raise(KeyboardInterrupt()), 130, "stopped"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CODES)
def test_exit_codes(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the input is told from one of interp by who raised it; its own is told with where, and one line."""
    error, code, message = CODES[name]
    own = __name__.partition(".")[0]
    assert run(failing(error), [], packages=[own]) == code
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert ("please report it" in said) == (code == 1)
    assert (f"({__name__}, line " in said) == (code == 1)
    monkeypatch.setenv("INTERP_DEBUG", "1")
    assert run(failing(error), [], packages=[own]) == code
    assert ("Traceback" in capsys.readouterr().err) == (code != 130)


def test_a_value_error_of_another_package_is_none_of_the_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(CODES["an option"][0]), []) == 1
    assert "please report it" in capsys.readouterr().err


def test_the_exit_codes_are_documented_once() -> None:
    text = (Path(interp.__file__).parents[1] / "docs/command-line.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    listed = [int(line.split("|")[1]) for line in rows]
    assert listed == [0, errors.FAILED, errors.BAD_INPUT, errors.TOO_LARGE, errors.STOPPED]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["frequency", "--dtype", "int8"], "--dtype 'int8'"),
        (["frequency", "--scales", "0,0"], "has a number twice"),
        (["report", "--settings", '{"controls": {"draws": 5}}'], "draws must be at least 39"),
        (["report", "--settings", '{"frequency": {}, "frequency": {}}'], "it has a key twice"),
    ],
)
def test_options_are_checked_before_out(
    command: list[str], message: str, workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = command
    given = ["--model", str(workshop.directory("gpt2")), "--corpus", str(workshop.corpus()), "--out"]
    assert main([name, *given, str(workshop.run()), *options]) == 2
    assert message in capsys.readouterr().err
    assert main([name, *given, str(workshop.run())]) == 2
    assert "already holds frequency" in capsys.readouterr().err


def test_a_hint_names_a_flag_in_a_command_and_an_argument_in_python(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    path = workshop.root / "two.jsonl"
    path.write_text(json.dumps({"a": "w1 w2", "b": "w3"}), encoding="utf-8")
    with pytest.raises(ValueError, match=naming(path, "a, b", "column=")):
        interp.corpora.load(path)
    command = ["unigrams", "--model", str(workshop.directory("gpt2")), "--corpus", str(path)]
    assert main([*command, "--out", str(workshop.root / "u.safetensors")]) == 2
    assert capsys.readouterr().err.endswith("name one with --column\n")
