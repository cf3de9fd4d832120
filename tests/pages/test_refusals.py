"""Damaged and foreign results, for which no page or comparison is made; HTML in names is shown as text."""

import json
from collections.abc import Callable

import pandas as pd
import pytest
from workshop import MISSING, Command, Workshop, check_command_refused, check_refused

from interp import pages
from interp.cli import main


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
    "a result of no model": ("KeyError: 'model'", page("result.json", '{"analysis": "frequency", "provenance": {}}')),
    "another analysis": ("holds a result of 'x'", page("result.json", '{"analysis": "x", "provenance": {}}')),
    "a table that is gone": ("lacks kl", page("kl.parquet", None)),
    "a table cut off": ("kl.parquet is damaged", page("kl.parquet", b"PAR1xx")),
    "a table of another version": ("is not a result of this version", table(lambda kl: kl.drop(columns="scale"))),
    "a table without rows": ("is not a result of this version", table(lambda kl: kl.iloc[:0])),
    "a bias that climbs": ("is not a result of this version", table(lambda kl: kl.assign(bias="../../../evil"))),
    "a comparison of damaged runs": (
        "is not a result of this version",
        table(lambda kl: kl.drop(columns="scale"), "compare"),
    ),
    "a comparison of one": ("needs two or more", lambda w: ["compare", str(w.run()), "--out", str(w.root / "out")]),
    "a comparison into a file": (
        "cannot be written",
        lambda w: ["compare", str(w.run()), str(w.result()), "--out", str(w.corpus())],
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    check_command_refused(CASES[name], workshop, capsys)


@pytest.mark.usefixtures("untyped")
def test_a_page_of_nothing_from_python(workshop: Workshop) -> None:
    check_refused((MISSING, "holds no result", lambda w: pages.write_page(w.root)), workshop)


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
