"""Options of an analysis of another package: what they are says their kind, and their names are their own."""

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import typer
from naming import naming
from toys import ROOT

import interp
from interp.analyses import registry
from interp.analyses.declare import Analysis, Options, option
from interp.analyses.frequency.options import ANALYSIS as FREQUENCY
from interp.analyses.registry import OWN, RESERVED, ReportOptions, load
from interp.cli import main
from interp.cli.analysis import _reading, command_of
from interp.passes.budget import Cost, Pass, budget
from interp.passes.execution import asks
from interp.results.result import provenance
from interp.testing import toy_decoder

SOURCE = (ROOT / "docs" / "example.py").read_text(encoding="utf-8")
DECLARED = [ReportOptions, *(load(name).options for name in OWN)]
NAMES = sorted({item.name for declared in DECLARED for item in dataclasses.fields(declared)} - {*RESERVED})
TEXT = "\n".join(["the cat sat on the mat and looked at the other cats"] * 30)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Have an object as the only analysis of another package, as an entry point would."""

    def registered(analysis: Any) -> None:
        entry = SimpleNamespace(name="previous_token", value="example:ANALYSIS", dist=None, load=lambda: analysis)
        monkeypatch.setattr(registry, "entry_points", lambda **_: [entry])
        for cached in (registry.others, registry.load):
            cached.cache_clear()

    yield registered
    monkeypatch.undo()
    for cached in (registry.others, registry.load):
        cached.cache_clear()


@pytest.fixture
def example(register: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Register docs/example.py with more options, whose values its result records, alone or beside interp's analyses.

    If it reads anything but text, its numbers are those of a text of its own."""

    def registered(options: dict[str, str], reads: str = "text") -> None:
        lines = "".join(f"    {name}: {declared}\n" for name, declared in options.items())
        source = SOURCE.replace("    distance: int", f"{lines}    distance: int")
        recorded = f"own={{name: getattr(options, name) for name in {[*options]}}}, distance=options.distance"
        source = source.replace("distance=options.distance, ", f"{recorded}, ").replace("import option", "import *")
        source = source.replace("from typing import", "from interp.support.choices import Several\nfrom typing import")
        if reads != "text":
            source = source.replace("model, text, **options.text", 'model, ["the cat sat"] * 200')
        (tmp_path / "example.py").write_text(source.replace('reads="text"', f"reads={reads!r}"))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "example", raising=False)
        monkeypatch.setattr(registry, "OWN", ())
        register(__import__("example").ANALYSIS)

    return registered


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text(TEXT)
    return str(tmp_path / "text.txt")


def own(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "previous_token" / "result.json").read_text())["provenance"]["own"]
    assert "Previous-token heads" in (out / "index.html").read_text()
    return found


def heads(out: Path) -> pd.DataFrame:
    return pd.read_parquet(out / "previous_token" / "heads.parquet")


@pytest.mark.quick("text")
@pytest.mark.parametrize("reads", ["text", "pairs", "prompts"])
def test_an_option_may_have_the_name_of_another(reads, example, text, tmp_path, monkeypatch):
    names = [name for name in NAMES if (name, reads) != ("pairs", "pairs")]
    example({name: f'str = option("usual {name}", "An option of no kind.")' for name in names}, reads)
    given = {name: f"{name} of its own" for name in names}
    line = ["previous_token", "--model", "tiny-gpt2"]
    line += ["--pairs", "bundled"] if reads == "pairs" else ["--corpus", text]
    line += [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]

    loaded = interp.load("tiny-gpt2")
    monkeypatch.setattr("interp.models.load", lambda *_, **__: loaded)
    assert main([*line, "--dry-run"]) == 0
    assert main([*line, "--out", str(tmp_path / "whole")]) == 0
    assert own(tmp_path / "whole") == given
    for part in ("0/2", "1/2"):
        assert main([*line, "--out", str(tmp_path / "parts"), "--shard", part]) == 0
    assert main(["merge", str(tmp_path / "parts")]) == 0
    assert own(tmp_path / "parts") == given
    pd.testing.assert_frame_equal(heads(tmp_path / "parts"), heads(tmp_path / "whole"), rtol=1e-12)
    again = ["previous_token", "--config", str(tmp_path / "whole" / "previous_token" / "options.yaml")]
    assert main([*again, "--out", str(tmp_path / "again")]) == 0
    assert own(tmp_path / "again") == given

    def made(model: Any, source: Any, *, bos: Any, seed: int) -> list[str]:
        return ["a prompt"]

    monkeypatch.setattr("interp.analyses.report.prompts", made)
    report = ["report", "--model", "tiny-gpt2", "--corpus", text, "--pair-limit", "10", "--seed", "3"]
    assert main([*report, "--dry-run"]) == 0
    assert main([*report, "--out", str(tmp_path / "usual")]) == 0
    assert own(tmp_path / "usual") == {name: f"usual {name}" for name in names}
    settings = ["--settings", json.dumps({"previous_token": given})]
    assert main([*report, *settings, "--out", str(tmp_path / "set")]) == 0
    assert own(tmp_path / "set") == given


def test_an_option_of_a_kind_may_have_any_name(example, text, tmp_path, capsys):
    example(
        {
            "against": 'Several[str] | None = option(None, "Other texts.", kind="corpus")',
            "judge": 'str | None = option(None, "A model.", kind="model")',
            "rarity": 'Any = option(None, "Counts.", kind="counts", cli=str)',
            "draws": 'Several[int] = option((0, 1), "Seeds.", kind="seed")',
            "row": 'int | None = option(None, "Tokens per row.", kind="context")',
            "context": 'str = option("none", "An option of no kind.")',
        }
    )
    line = ["previous_token", "--model", "tiny-gpt2", "--corpus", text, "--out", str(tmp_path / "out")]
    for flag, value, message in (
        ("--against", f"{text},gone.txt", "--against: corpus 'gone.txt' does not exist"),
        ("--judge", "./gone", "--judge: model './gone' does not exist"),
        ("--rarity", "gone.json", "--rarity: unigram counts 'gone.json' do not exist"),
    ):
        assert main([*line, flag, value]) == 2
        assert message in capsys.readouterr().err
        settings = json.dumps({"previous_token": {flag[2:]: value.split(",") if "," in value else value}})
        report = ["report", "--model", "tiny-gpt2", "--corpus", text, "--out", str(tmp_path / "out")]
        assert main([*report, "--settings", settings]) == 2
        assert f"--settings, previous_token: {message[2:]}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

    assert main([*line, "--row", "16", "--against", text, "--judge", "tiny-gpt2", "--rarity", text]) == 0
    found = own(tmp_path / "out")
    assert found == {
        "against": [text], "judge": "tiny-gpt2", "rarity": text, "draws": [0, 1], "row": 16, "context": "none"
    }  # fmt: skip
    saved = json.loads((tmp_path / "out" / "previous_token" / "result.json").read_text())
    assert saved["provenance"]["context"] == 16

    example({"draws": 'Several[int] = option((0, 1), "Seeds.", kind="seed")'})
    report = ["report", "--model", "tiny-gpt2", "--corpus", text, "--pair-limit", "10", "--seed", "3"]
    assert main([*report, "--out", str(tmp_path / "report")]) == 0
    assert own(tmp_path / "report") == {"draws": [3]}


@pytest.mark.parametrize("name", [*RESERVED, "pairs"])
def test_a_name_that_is_taken_is_refused(name, register):
    made = dataclasses.make_dataclass(
        "Made", [(name, int, option(1, "A number."))], bases=(Options,), frozen=True, kw_only=True
    )
    reads = "pairs" if name == "pairs" else "text"
    rest = dict.fromkeys(("title", "help", "answer", "result"), "example:none")
    register(Analysis(name="previous_token", reads=reads, options=made, **rest))
    with pytest.raises(ValueError, match=naming("option", name)):
        load("previous_token")


def test_every_name_that_is_taken_is_known():
    analysis = load("frequency")
    command = inspect.signature(command_of(analysis)).parameters
    options = {item.name for item in dataclasses.fields(analysis.options)}
    app = typer.Typer(add_completion=False)
    app.command()(command_of(analysis))
    flags = {name[2:].replace("-", "_") for one in typer.main.get_command(app).params for name in one.opts}
    assert {*command, *flags} - options <= {*RESERVED}
    about = provenance(toy_decoder(), {})
    assert {*about} <= {*RESERVED}
    assert not {item.name for declared in DECLARED[1:] for item in dataclasses.fields(declared)} & (
        {*RESERVED} - {item.name for item in dataclasses.fields(Options)}
    )


def test_a_result_records_no_option_over_what_was_read():
    with pytest.raises(ValueError, match=naming("context=8", "context='mine'")):
        provenance(toy_decoder(), {"context": 8}, context="mine")
    assert provenance(toy_decoder(), {"context": 8}, context=8)["context"] == 8


def test_an_unknown_kind_and_a_name_of_an_argument_are_refused():
    with pytest.raises(ValueError, match=naming("corpora", "corpus, counts")):
        option(1, "A number.", kind="corpora")  # type: ignore[arg-type]

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Made(Options):
        text: str = option("", "A text.")

    def answer(model: Any, text: Any, options: Made) -> interp.passes.execution.Passes[None]:
        yield []

    with pytest.raises(ValueError, match=naming("Made", "text", "answer")):
        asks(Made)(answer)


def test_only_options_that_a_command_has_are_proposed():
    cost = {"one": Cost(passes=(Pass(what="reading", per_token=10_000_000),))}
    proposed = {"batch_size": "rows", "context": "length"}
    both = budget("tiny-gpt2", cost, {}, proposed)
    needed = budget("tiny-gpt2", cost, {"batch_size": 1, "context": 64}).needed
    assert "try --rows 1 --length 64" in both.verdict(needed)[0]
    assert both.verdict(needed)[1]["advice"] == {"rows": 1, "length": 64}
    assert budget("tiny-gpt2", cost, {}, {}).verdict(needed)[1]["advice"] is None


def test_an_option_is_not_told_as_how_a_text_was_read(example):
    example({name: f'str = option("{name}", "An option of no kind.")' for name in ("bos", "layout", "context")})
    found = load("previous_token")
    assert _reading(found, {"bos": "texts", "layout": "packed", "context": 1_000}) == ""
    assert "rows of 1,000 tokens" in _reading(FREQUENCY, {"layout": "packed", "context": 1_000})
