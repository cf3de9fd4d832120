"""Findings as a page and a notebook show them."""

from types import SimpleNamespace

from interp.findings import Finding
from interp.pages.page import templates


def test_a_symbol_keeps_its_letter_at_the_beginning_of_a_sentence() -> None:
    known = {
        "question": "Is it so?",
        "verdict": "no",
        "value": -1.0,
        "low": -1.5,
        "high": -0.5,
        "rule": "",
        "towards": 1,
    }
    found = [Finding(measure=measure, **known) for measure in ("b_LN is", "b_last is", "α is", "its mean is")]
    page = str(
        templates()
        .get_template("answer.html")
        .module.answer("", SimpleNamespace(findings=found, contexts={}, caveats=()))
    )
    for told in ("b_LN is", "b_last is", "α is", "Its mean is", 'class="verdict no">No, the opposite<'):
        assert told in page
    assert "B_" not in page
