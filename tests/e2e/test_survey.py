"""All questions at once: the same numbers as one at a time, a page, and runs that resume."""

import json
import logging
import re

import numpy as np
import pandas as pd
import pytest
from naming import naming
from toys import every_table

import interp
from interp import corpora
from interp.analyses.frequency import tables
from interp.analyses.frequency.page import section
from interp.analyses.registry import left_out
from interp.analyses.report import report
from interp.cli import main

COUNTS = np.arange(1, 68)
pytestmark = pytest.mark.filterwarnings("ignore:no token of class", "ignore:no generation")


SHORT = {"probing": {"steps": 10}}
QUICK = {"probing": {"methods": ["dense"]}, "encoding": {"orders": ["random"], "bases": ["axis"]}}
SCALES = SHORT | {"frequency": {"scales": (0, 1)}}


@pytest.fixture
def table():
    """Two tasks of twelve pairs each: which of two words comes first, and whether there is a third word."""
    rng = np.random.default_rng(0)
    words = [[f"w{i}" for i in rng.permutation(60)[:4]] for _ in range(24)]
    rows = [("order", f"w1 w2 {' '.join(w)}", f"w2 w1 {' '.join(w)}") for w in words[:12]]
    rows += [("third", f"{' '.join(w)} w3 w4", f"{' '.join(w)} w4") for w in words[12:]]
    return pd.DataFrame(rows, columns=["UID", "sentence_good", "sentence_bad"])


def same(one, other):
    found = every_table(one)
    for name, expected in every_table(other).items():
        pd.testing.assert_frame_equal(found[name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_survey_is_its_questions(kind, load_toy, texts, table, caplog):
    model = load_toy(kind)
    with caplog.at_level(logging.INFO, "interp"):
        found = report(model, texts, pairs=table, unigram=COUNTS, settings=SCALES, bos=False, progress=False)
    assert list(found) == ["frequency", "attention", "encoding", "probing"]
    begin = " without a beginning-of-sequence token" if kind == "gpt2" else ""
    assert caplog.messages == [f"reading texts in rows of 24 tokens{begin}", "Sparse probes for grammar"]
    plain = corpora.batches(model, texts)
    predicted = corpora.batches(model, texts, mask_rate=0.12) if kind == "bert" else plain
    options = {"unigram": COUNTS, "progress": False}
    same(found["frequency"], interp.frequency.study(model, predicted, scales=(0, 1), **options))
    same(found["attention"], interp.attention.study(model, plain, **options))
    same(found["encoding"], interp.encoding.study(model, predicted, **options))
    same(
        found["probing"],
        interp.probing.study(model, table, bos=False, steps=10, seeds=[0], controls=["none", "flip"], progress=False),
    )


def test_bundled_models_are_read_as_they_were_trained(table, monkeypatch):
    class Stopped(Exception):
        pass

    def stop(*analyses):
        raise Stopped(next(analyses[0])[0].batches.settings["bos"])

    monkeypatch.setattr("interp.analyses.report.side_by_side", stop)
    for name, bos in (("tiny-gpt2", "texts"), ("tiny-bert", "False")):
        with pytest.raises(Stopped, match=naming(bos)):
            report(interp.load(name), "bundled", pairs=table, progress=False)


def test_questions_that_cannot_be_asked_are_named_and_left_out(load_toy, texts, table):
    with pytest.warns(UserWarning, match="no generation: it has no b_LN to scale: its final norm is an RMSNorm"):
        found = report(load_toy("llama"), texts, pairs=table, unigram=COUNTS, bos=True, settings=SHORT, progress=False)
    assert list(found) == ["frequency", "attention", "encoding", "probing"]
    assert found["frequency"].kl["bias"].unique().tolist() == ["mean"]
    assert not left_out(load_toy("llama"))  # interp generation scales E[h], which takes too long for a report
    why = left_out(load_toy("llama"), {"generation": {"scaled": "ln"}})
    assert list(why) == ["generation"]
    assert all(result.provenance["left_out"] == why for result in found.values())


def test_settings_that_are_not_options_are_refused(tmp_path, capsys):
    for wrong in ('{"generation": {"prompts": 5}}', '{"frequency": {"scalez": [0]}}'):
        assert main(["report", "--settings", wrong, "--out", str(tmp_path / "out")]) == 2
        [(analysis, given)] = json.loads(wrong).items()
        said = capsys.readouterr().err
        assert f"settings of {analysis} have {next(iter(given))!r} (did you mean " in said
        assert "; expected options by name: " in said
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:these pairs have no control pairs")
def test_more_asks_what_each_analysis_declares(load_toy, texts, table, monkeypatch):
    """A model without biases is asked about its mean input; options in `settings` override those of `more`."""
    asked = {}

    def noted(name, analysis):
        def passes(model, data, **options):
            asked[name] = options
            return analysis(model, data, **options)

        return passes

    monkeypatch.setattr(tables.study, "passes", noted("frequency", tables.study.passes))
    settings = SHORT | {"frequency": {"scales": (0, 1)}, "controls": {"bands": 3}}
    how = {"pairs": table, "unigram": COUNTS, "bos": True, "settings": settings, "progress": False}
    found = report(load_toy("llama"), texts, more=True, **how)
    assert list(found) == [
        "frequency",
        "controls",
        "attention",
        "sinks",
        "encoding",
        "directions",
        "probing",
        "units",
    ]
    assert asked["frequency"]["directions"] == ("mean", "slope")
    effect, drawn = found["frequency"], found["controls"]
    assert effect.kl["bias"].unique().tolist() == ["mean", "slope"]
    assert {"curve_mean", "projection_slope"} <= set(section(effect).figures)
    assert drawn.bands["band"].nunique() == 3
    assert drawn.controls.groupby("kind").size().eq(39 * 2).all()
    assert {"controls", "bands"} <= set(drawn.section.figures)


def test_report_is_a_directory_and_a_page(hf_directory, texts, table, tmp_path, capsys):
    corpus, pairs = tmp_path / "c.txt", tmp_path / "p.csv"
    corpus.write_text("\n".join(texts), encoding="utf-8")
    table.to_csv(pairs, index=False)
    out = tmp_path / "out"
    arguments = ["report", "--corpus", str(corpus), "--pairs", str(pairs), "--no-bos", "--json"]
    arguments += ["--settings", json.dumps(QUICK)]
    models = [part for kind in ("gpt2", "bert") for part in ("--model", str(hf_directory(kind)))]
    assert main([*arguments, *models, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told["written"] == str(out / "index.html")
    assert {one["analysis"] for one in told["findings"]} >= {"frequency", "attention", "encoding", "probing"}
    said = r"^\d+:\d\d random-bert, step 1 of 2, about [\d.]+ \w+ left: reading c.txt in rows of 24 tokens$"
    assert re.search(said, captured.err, re.M)
    for kind in ("gpt2", "bert"):
        assert len(list((out / f"random-{kind}").glob("*/result.json"))) == 4
    assert not (out / ".report").exists()
    assert main([*arguments, *models, "--out", str(out)]) == 2
    assert "already holds frequency" in capsys.readouterr().err
    assert main([*arguments, *models[:2], "--out", str(tmp_path / "one")]) == 0
    assert (tmp_path / "one/frequency/kl.parquet").is_file()
    nowhere = ["--out", str(tmp_path / "o")]
    assert main([*arguments, "--model", "tiny-bert", "--model", "./tiny-bert", *nowhere]) == 2
    assert main(["report", "--pairs", "missing.csv", *nowhere]) == 2
    assert not (tmp_path / "o").exists()


def test_an_interrupted_report_keeps_what_is_finished(hf_directory, texts, table, tmp_path, monkeypatch, capsys):
    corpus, pairs, out = tmp_path / "c.txt", tmp_path / "p.csv", tmp_path / "out"
    corpus.write_text("\n".join(texts), encoding="utf-8")
    table.to_csv(pairs, index=False)
    arguments = ["report", "--corpus", str(corpus), "--pairs", str(pairs), "--no-bos", "--settings", json.dumps(QUICK)]
    arguments += ["--model", str(hf_directory("gpt2")), "--out", str(out)]

    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("interp.analyses.probing.tables.sweep", stopped)
        assert main(arguments) != 0
    kept = {path.parent.name for path in out.glob("*/result.json")}
    assert kept == {"frequency", "attention", "encoding"}
    assert not (out / "index.html").exists()
    assert main(["show", str(out)]) == 0
    assert main([*arguments, "--limit", "5"]) == 2, "other options are another run"
    assert "already holds frequency" in capsys.readouterr().err
    before = {path: path.read_bytes() for path in out.glob("*/*.parquet")}
    assert main(arguments) == 0
    assert {path.parent.name for path in out.glob("*/result.json")} == kept | {"probing"}
    assert {path: path.read_bytes() for path in before} == before
    assert not (out / ".report").exists()
