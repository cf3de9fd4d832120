"""Damaged and foreign results, for which no page or comparison is made; HTML in names is shown as text."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from workshop import MISSING, Command, Workshop, check_command_refused, check_refused

from interp import pages
from interp.analyses.frequency import FrequencyStudy
from interp.analyses.registry import load_result
from interp.cli import main
from interp.pages.page import templates

WRONG: list[Any] = [None, 5, "x", [], {"a": 1}]


def page(name: str, data: bytes | str | None) -> Callable[[Workshop], list[str]]:
    return lambda w: ["page", str(w.result(name, data))]


def table(change: Callable[[pd.DataFrame], pd.DataFrame], command: str = "page") -> Callable[[Workshop], list[str]]:
    """A page or a comparison of a run whose table `kl` was changed."""

    def arguments(w: Workshop) -> list[str]:
        copied = w.result()
        path = copied / "frequency/kl.parquet"
        change(pd.read_parquet(path)).to_parquet(path)
        runs = [copied] if command == "page" else [w.run(), copied, "--out", w.root / "out"]
        return [command, *map(str, runs)]

    return arguments


CASES: dict[str, Command] = {
    "a page of a file": ("expected the --out of a run", lambda w: ["page", str(w.corpus())]),
    "a page of nothing": ("holds no result", lambda w: ["page", str(w.root)]),
    "a result cut off": ("result.json is damaged", page("result.json", '{"anal')),
    "a result of bytes": ("result.json is damaged", page("result.json", b"\xff\xfe")),
    "a result that is a list": ("holds a list, expected an object", page("result.json", "[]")),
    "a result without provenance": ("has no provenance", page("result.json", '{"analysis": "frequency"}')),
    "a result of no model": (
        "its provenance names no model and text",
        page("result.json", '{"analysis": "frequency", "provenance": {}}'),
    ),
    "another analysis": ("holds a result of 'x'", page("result.json", '{"analysis": "x", "provenance": {}}')),
    "a table that is gone": ("lacks kl", page("kl.parquet", None)),
    "a table cut off": ("kl.parquet is damaged", page("kl.parquet", b"PAR1xx")),
    "a comparison of one": ("needs two or more", lambda w: ["compare", str(w.run()), "--out", str(w.root / "out")]),
    "a comparison into a file": (
        "cannot be written",
        lambda w: ["compare", str(w.run()), str(w.result()), "--out", str(w.corpus())],
    ),
}


UNDRAWN: dict[str, Command] = {
    "a table of another version": ("KeyError: 'scale'", table(lambda kl: kl.drop(columns="scale"))),
    "a table without rows": ("ValueError", table(lambda kl: kl.iloc[:0])),
    "a bias that climbs": ("ValueError: bias", table(lambda kl: kl.assign(bias="../../../evil"))),
    "a key that is missing": ("ValueError", table(lambda kl: kl.assign(bias=None))),
    "a comparison of damaged runs": ("KeyError: ", table(lambda kl: kl.drop(columns="scale"), "compare")),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNDRAWN)
def test_what_cannot_be_drawn_is_a_note(
    name: str, workshop: Workshop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, and a page that says in place of the section what happened; an error with INTERP_STRICT=1."""
    reason, arguments = UNDRAWN[name]
    given = arguments(workshop)
    assert main(given) != 0
    assert "interp: error: " in capsys.readouterr().err
    monkeypatch.delenv("INTERP_STRICT")
    assert main(given) == 1
    captured = capsys.readouterr()
    last = captured.out.splitlines()[-1]
    assert last.startswith("written to ")
    assert last.endswith("index.html, with 1 note on what could not be drawn")
    assert "interp: note: interp frequency of " in captured.err
    assert reason in captured.err
    written = Path(last.removeprefix("written to ").partition(",")[0]).read_text()
    assert written.count("could not be drawn (") == 1
    assert "Not drawn</strong>" in written
    assert not list(workshop.root.parent.glob("evil*"))
    monkeypatch.setenv("INTERP_DEBUG", "1")
    assert main(given) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("broken", ["section", "part", "figures"])
def test_the_rest_of_a_page_is_written(
    broken: str, workshop: Workshop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runs on a page, one cannot be drawn: by its section, or by the template that shows it."""
    monkeypatch.delenv("INTERP_STRICT")
    run = shutil.copytree(workshop.run(), workshop.root / "both" / "sound")
    shutil.copytree(run, workshop.root / "both" / "broken")
    path = run.parent / "broken/frequency/kl.parquet"
    changes: dict[str, Any] = {"section": {"bias": None}, "figures": {"bias": "../x"}}
    if broken in changes:
        pd.read_parquet(path).assign(**changes[broken]).to_parquet(path)
    else:
        monkeypatch.setattr("interp.pages.page._cell", lambda value: 1 / 0)
        templates.cache_clear()
    try:
        code = main(["page", str(run.parent), "--json"])
    finally:
        templates.cache_clear()
    told = json.loads(capsys.readouterr().out)
    assert code == 1
    assert len(told["not_drawn"]) == (2 if broken == "part" else 1)
    text = (run.parent / "index.html").read_text()
    assert text.count("Not drawn</strong>") == len(told["not_drawn"])
    if broken != "part":
        assert {one["run"] for one in told["findings"]} == {FrequencyStudy.load(run).where}, "of the one that is drawn"
        assert text.count('class="plot"') > 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    check_command_refused(CASES[name], workshop, capsys)


@pytest.mark.filterwarnings("ignore")
def test_an_entry_of_another_type_is_refused_or_does_no_harm(workshop: Workshop) -> None:
    """Each entry of a result.json in turn when it is read, and those outside of provenance when it is replaced."""
    copied = workshop.result()
    path, sound = copied / "frequency/result.json", load_result(copied)
    saved = json.loads(path.read_text())
    refused, in_the_way = {}, {}
    for key, value in itertools.product([*saved, *(f"provenance.{key}" for key in saved["provenance"])], WRONG):
        outer, _, inner = key.rpartition(".")
        damaged = json.loads(json.dumps(saved))
        (damaged[outer] if outer else damaged)[inner] = value
        path.write_text(json.dumps(damaged))
        try:
            assert load_result(copied).summary()
        except ValueError as error:
            refused[key] = str(error)
        if outer:
            continue
        try:
            sound.save(copied, overwrite=True)
        except FileExistsError as error:
            in_the_way[key] = str(error)
            shutil.rmtree(path.parent)
            sound.save(copied)
    expected = {
        "analysis",
        "provenance",
        *(f"provenance.{key}" for key in ("model", "corpus", "intervals", "n_layers")),
    }
    assert expected <= set(refused)
    assert all("run the analysis again" in said or "expected 'frequency'" in said for said in refused.values())
    assert {"analysis", "tables", "arrays"} <= set(in_the_way)
    assert all("move it" in said for said in in_the_way.values())


@pytest.mark.usefixtures("untyped")
def test_a_page_of_nothing_from_python(workshop: Workshop) -> None:
    check_refused((MISSING, (workshop.root,), lambda w: pages.write_page(w.root)), workshop)


@pytest.mark.slow
def test_names_of_html_are_text_on_a_page(workshop: Workshop) -> None:
    hostile = "<script>alert(1)</script>"
    copied = workshop.result()
    path = copied / "frequency/result.json"
    result = json.loads(path.read_text())
    result["provenance"] |= {"model": hostile, "corpus": hostile, "<img src=x>": hostile}
    path.write_text(json.dumps(result))
    assert main(["page", str(copied)]) == 0
    written = (copied / "index.html").read_text()
    assert hostile not in written
    assert "<img src=x" not in written
    assert "&lt;script&gt;alert(1)" in written
