"""Families whose attention scores are no sums over residual dimensions, or that have no b_LN: what can be asked of them
equals transformers' own numbers."""

import json
from functools import partial

import architectures
import numpy as np
import pandas as pd
import pytest
import torch

import interp
from interp import attention, corpora, sinks
from interp.analyses.attention import tables
from interp.analyses.attention.page import section, sides
from interp.analyses.registry import left_out
from interp.cli import main
from interp.instruments import keys

pytestmark = pytest.mark.e2e
WITHOUT_SCORES = ("qwen3", "gemma3_text", "olmo2")
COUNTS = np.arange(1, 68)
OPTIONS = {"key_classes": {"odd": architectures._CLASS.tolist()}, "unigram": COUNTS, "k": 1.5, "progress": False}
SCORES = "attention: scores by residual dimension"
OF_SCORES = {"totals", "largest_gaps"}
ODD = torch.isin(architectures._IDS, architectures._CLASS)


@pytest.fixture(params=WITHOUT_SCORES)
def family(request, tmp_path):
    """A random model of a family, and transformers' own."""
    architectures.toy(request.param, tmp_path)
    return interp.load(tmp_path, device="cpu"), architectures.Plain(tmp_path, request.param)


def attended(plain, layer):
    """Mean attention to the odd tokens."""
    pattern = plain.run(architectures._IDS, output_attentions=True).attentions[layer]
    return float(torch.einsum("bhqk,bk->bhq", pattern, ODD.float()).mean())


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:no scores by residual dimension")
def test_what_needs_no_decomposition(family, tmp_path):
    model, plain = family
    study = attention.study(model, corpora.batches(model, architectures._IDS), **OPTIONS)
    architectures.attention_by_class(model, plain)
    inputs = []
    with plain.edited(plain.part(1, "Attention$"), lambda x: inputs.append(x) or x):
        run = plain.run(architectures._IDS, output_hidden_states=True, output_attentions=True)
    states = run.hidden_states
    means = study.dims.query("key_class == 'all' and state < 2").pivot(index="state", columns="dim", values="mean")
    expected = torch.stack(states[:2]).mean((1, 2))
    np.testing.assert_allclose(means, expected, atol=1e-5 * float(expected.abs().max()))
    viewers = torch.arange(architectures._IDS.shape[1], 0, -1)
    received = run.attentions[1].mean(1).sum(1) / viewers
    r = [np.corrcoef(column, received.flatten())[0, 1] for column in inputs[0].flatten(0, 1).T.numpy()]
    np.testing.assert_allclose(study.correlations.query("layer == 1")["attention_received"], r, atol=1e-5)
    for row in study.ablation.query("key_class == 'odd'").groupby(["layer", "set"]).head(1).itertuples():
        assert row.attention_before == pytest.approx(attended(plain, row.layer), abs=1e-6)
        removed, mean = torch.arange(expected.shape[-1]) == row.dim, expected[row.layer]
        with plain.edited(plain.blocks[row.layer], partial(torch.where, removed, mean)):
            assert row.attention_after == pytest.approx(attended(plain, row.layer), abs=1e-6)
    assert study.changes["change"].abs().max() > 1e-4
    assert not len(study.scores) + len(study.gaps)
    assert all(study.tables[name].empty for name in OF_SCORES)

    assert {what: why for what, why in left_out(model).items() if what.startswith("attention")} == study.left_out
    assert "queries and keys are normalised" in study.left_out[SCORES]
    assert any(caveat.startswith("scores by residual dimension are left out: ") for caveat in study.caveats)
    study.save(tmp_path)
    again = interp.load_result(tmp_path)
    pd.testing.assert_frame_equal(again.ablation, study.ablation)
    assert list(section(again).figures) == list(section(study).figures)


def test_without_a_decomposition_the_rest_is_the_same(load_toy, texts, monkeypatch):
    """Patterns and what is computed from queries and keys agree, and no table depends on the other."""
    model = load_toy("llama")
    options = {"key_classes": {"some": [7, 8]}, "unigram": COUNTS, "ablation": False, "progress": False}
    found = attention.study(model, texts, bos=False, **options)

    def refused(*_):
        raise ValueError("no scores")

    monkeypatch.setattr(tables, "why_no_scores", lambda model: "no scores")
    monkeypatch.setattr(keys, "qk_circuit", refused)
    with pytest.warns(UserWarning, match="no scores by residual dimension: no scores"):
        without = attention.study(model, texts, bos=False, **options)
    for name in set(found.tables) - OF_SCORES:
        pd.testing.assert_frame_equal(found.tables[name], without.tables[name], rtol=1e-5, atol=1e-6)
    compared = sides({"with": found, "without": without})
    assert compared.numbers["share_for_90"].notna().tolist() == [True, False]
    assert {"attention_0", "spread"} <= set(compared.figures)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:no what is made of scores")
def test_sinks_need_no_decomposition(family):
    """Patterns are read, and there is no control, so there is no verdict."""
    model, plain = family
    ids = architectures._IDS.repeat(1, 2)[:, :24]
    study = sinks.study(model, ids, progress=False, epsilon=0.1)
    run = plain.run(ids, output_attentions=True)
    expected = torch.stack(run.attentions)[..., 8:, 0].mean((1, 3))
    first = study.heads.query("first_position == 0")
    seen = (expected > 0).any(1)  # in a local window no such query sees the first position
    assert first["layer"].unique().tolist() == seen.nonzero()[:, 0].tolist()
    np.testing.assert_allclose(first["attention"], expected[seen].flatten(), atol=1e-6)
    assert study.heads["by_norm"].isna().all()
    assert study.draws.empty
    assert study.findings[0].verdict == "cannot tell"


@torch.no_grad()
def test_the_mean_input_stands_in_for_b_ln(family):
    architectures.word_frequency(*family)
    model, _ = family
    effect = interp.frequency.study(model, architectures._IDS, unigram=COUNTS, scales=(0, 1), progress=False)
    assert effect.kl["bias"].unique().tolist() == ["mean"]
    figures = effect.figures()
    named = "the mean input of the unembedding"
    assert figures["ratio_mean"].layout.title.text == f"How scaling {named} changes predictions"
    assert all(named in one.question for one in effect.findings)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_report_of_all_that_can_be_asked(tmp_path, capsys):
    """One list in every result, on the page, on the terminal and in a dry run, where nothing is loaded."""
    model, corpus, pairs = tmp_path / "model", tmp_path / "c.txt", tmp_path / "p.csv"
    architectures.toy("qwen3", model)
    rng = np.random.default_rng(0)
    corpus.write_text("\n".join(" ".join(f"w{n}" for n in rng.integers(60, size=20)) for _ in range(40)))
    pairs.write_text("sentence_good,sentence_bad\n" + "\n".join(f"w{n} w1 w2,w{n} w2 w1" for n in range(20)))
    quick = {"probing": {"methods": ["dense"]}, "encoding": {"orders": ["random"], "bases": ["axis"]}}
    given = ["report", "--model", str(model), "--corpus", str(corpus), "--pairs", str(pairs), "--json"]
    given += ["--settings", json.dumps(quick), "--no-bos"]
    assert main([*given, "--dry-run"]) == 0
    planned = json.loads(capsys.readouterr().out)["left_out"]
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    said = {one["what"]: one["why"] for one in json.loads(capsys.readouterr().out)["left_out"]}
    results = {path.parent.name: interp.load_result(path.parent) for path in tmp_path.glob("out/*/result.json")}
    assert set(results) == {"frequency", "attention", "encoding", "probing"}
    assert list(said) == ["generation", SCORES]
    assert all(found == said for found in (planned, *(result.left_out for result in results.values())))
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert all(page.count(f'id="{question}"') == 1 for question in results)
    assert all(f"{why[1:]}.</dd>" in page.replace("&#39;", "'") for why in said.values())
    assert main(["generation", "--model", str(model), "--scaled", "ln", "--dry-run"]) == 2
    assert said["generation"] in capsys.readouterr().err
