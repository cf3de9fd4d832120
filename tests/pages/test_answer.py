"""Findings as a page and a notebook show them."""

from pathlib import Path
from types import SimpleNamespace

from interp.pages.page import _repeat, templates
from interp.results.findings import Finding


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
        .module.answer("", SimpleNamespace(findings=found, contexts={}, caveats=(), answer=""))
    )
    for told in ("b_LN is", "b_last is", "α is", "Its mean is", 'class="verdict no">No, the opposite<'):
        assert told in page
    assert "B_" not in page


def test_the_first_answer_says_what_because_it_as_the_others_do() -> None:
    known = {"question": "Is it so?", "verdict": "cannot tell", "measure": "its mean is", "value": 1.0}
    found = [Finding(low=-1.0, high=3.0, rule="", because=f"{n} pairs would decide it", **known) for n in (30, 40)]
    section = SimpleNamespace(findings=found, contexts={}, caveats=(), answer="")
    page = str(templates().get_template("answer.html").module.answer("", section))
    assert "; 30 pairs would decide it." in page
    assert "; 40 pairs would decide it" in page


def test_a_page_names_the_command_that_repeats_a_run_if_its_options_can_be_read(tmp_path: Path) -> None:
    options = tmp_path / "run" / "frequency" / "options.yaml"
    options.parent.mkdir(parents=True)
    assert _repeat(options, tmp_path) == ""
    for damaged in ("", "[]", "corpus: bundled", "a: [", "\0"):
        options.write_text(damaged, encoding="utf-8")
        assert _repeat(options, tmp_path) == ""
    options.write_text("command: report\ncorpus: bundled\n", encoding="utf-8")
    assert _repeat(options, tmp_path) == "interp report --config run/frequency/options.yaml --out DIR"
