"""All questions at once: the same numbers as one at a time, a page, and a run that goes on."""

import json
import logging

import numpy as np
import pandas as pd
import pytest

import interp
from interp import corpora, pairs
from interp.cli import main
from interp.survey import survey

TASKS = ["reflexive_number", "left_branch"]


@pytest.fixture(scope="module")
def texts():
    return list(corpora.load("bundled", limit=25))


@pytest.fixture(scope="module")
def table():
    return pairs.load("bundled", tasks=TASKS, limit=15)


def same(one, other):
    for name, expected in other.tables.items():
        pd.testing.assert_frame_equal(one.tables[name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:no generated text")
def test_a_survey_is_its_questions(texts, table, caplog):
    model = interp.load("tiny-gpt2")
    with caplog.at_level(logging.INFO, "interp"):
        found = survey(model, texts, pairs=table, scales=(0, 1), progress=False)
    assert [result.analysis for result in found] == ["frequency", "attention", "encoding", "probing"]
    assert caplog.messages == ["reading texts", "probing 30 minimal pairs"]
    batches = corpora.batches(model, texts, bos=True)
    same(found[0], interp.frequency.bias_effect(model, batches, scales=(0, 1), progress=False))
    same(found[1], interp.outliers.study(model, batches, progress=False))
    same(found[2], interp.encoding.study(model, batches, progress=False))
    same(found[3], interp.probing.study(model, table, bos=True, progress=False))
    assert found[3].provenance["corpus"] == "bundled pairs"


@pytest.mark.filterwarnings("ignore:no generated text")
def test_what_cannot_be_asked_is_said_and_left_out(load_toy, shared, texts, table):
    llama = interp.load(shared / "models" / "llama-stories260k")
    counts = np.ones(llama.cfg.d_vocab, int)
    with pytest.warns(UserWarning, match="no word frequency: this model's prediction head has no bias"):
        found = survey(llama, texts, pairs=table, unigram=counts, bos=True, progress=False)
    assert [result.analysis for result in found] == ["attention", "encoding", "probing"]


def test_report_is_a_directory_and_a_page(texts, tmp_path, capsys):
    corpus = tmp_path / "c.txt"
    corpus.write_text("\n".join(texts), encoding="utf-8")
    table = tmp_path / "p.csv"
    pairs.load("bundled", tasks=TASKS, limit=15).to_csv(table, index=False)
    out = tmp_path / "out"
    arguments = ["report", "--corpus", str(corpus), "--pairs", str(table), "--out", str(out), "--json"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"written": str(out / "index.html")}
    assert "0:00 tiny-bert: reading c.txt" in captured.err
    for model, analyses in {"tiny-bert": 4, "tiny-gpt2": 4}.items():
        assert len(list((out / model).glob("*/result.json"))) == analyses
    assert not (out / ".report").exists()
    assert main(arguments) == 2
    assert "already holds frequency" in capsys.readouterr().err
    assert main(["report", "--model", "tiny-bert", "--model", "./tiny-bert", "--out", str(tmp_path / "o")]) == 2
    assert main(["report", "--pairs", "missing.csv", "--out", str(tmp_path / "o")]) == 2
    assert not (tmp_path / "o").exists()
