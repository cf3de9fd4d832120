"""Text that a study continues without some dimensions, against brute force and the function that generates it."""

import numpy as np
import pandas as pd
import pytest
from naming import naming
from oracles.intervals import half_width, pseudo_values

from interp import corpora, encoding, generation, plots
from interp.analyses.encoding.pruning import removal_order
from interp.cli import main
from interp.hooks import prune_output_dims
from interp.instruments.decoding import resolved
from interp.instruments.prompts import Prompts
from interp.testing import toy_decoder, toy_encoder

N, NEW = 20, 5
FRACTIONS = [0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5]
SMALL = {"orders": ["random"], "shifts": ["constant"], "ratios": [2.0], "progress": False}


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{number}" for number in row) for row in rng.integers(0, 60, (30, 16))]
    model = toy_decoder(dtype="float64")
    prompts = generation.prompts(model, texts, n=N, prompt_tokens=4, new_tokens=NEW)
    return model, texts, prompts, encoding.study(model, texts, prompts=prompts, **SMALL)


def test_a_study_writes_what_pruned_text_does(drawn):
    model, texts, prompts, study = drawn
    fit = encoding.fit(model, texts, progress=False)
    how = {"fit": fit, "progress": False}
    tables = []
    for basis in ("axis", "pca"):
        curve = encoding.pruning_curve(model, texts, basis=basis, order="random", fractions=FRACTIONS, **how)
        tables.append(encoding.writing.pruned_text(model, prompts, curve=curve, **how))
    pd.testing.assert_frame_equal(study.pruned_texts, pd.concat(tables, ignore_index=True), rtol=1e-9)
    assert study.provenance["prompts"] == prompts.settings
    assert {"texts_axis", "texts_pca"} <= set(study.figures())
    title, shown = study.shown["pruned_texts"]
    assert (title, shown["basis"].tolist()) == ("text continued without 30% of the dimensions", ["axis", "pca"])


def test_intervals_leave_out_each_prompt(drawn):
    """Student's interval of a mean, and the jackknife of a diversity, from texts that are decoded again."""
    model, texts, prompts, study = drawn
    order = removal_order(encoding.fit(model, texts, progress=False), "random", "axis")

    def written(n_dims):
        recipe = prune_output_dims(model, order[:n_dims]) if n_dims else []
        config = resolved(model, "greedy", NEW)
        config.min_new_tokens = NEW
        rows = prompts.ids.tolist()
        return [one.token_ids for one in generation.generate(model, rows, hooks=recipe, decoder=config, progress=False)]

    row = study.pruned_texts.query("basis == 'axis' and order == 'random' and fraction == 0.5").iloc[0]
    found = written(row["n_dims"])
    same = (np.array(found) == np.array(written(0))).mean(1)
    ends = row[["agreement_low", "agreement_high"]].tolist()
    half = half_width(same)
    assert ends == pytest.approx(np.clip([same.mean() - half, same.mean() + half], 0, 1).tolist())
    without = [generation.text_metrics(found[:i] + found[i + 1 :])["diversity"] for i in range(N)]
    value = generation.text_metrics(found)["diversity"]
    half = half_width(pseudo_values(value, without))
    assert row["diversity"] == pytest.approx(value)
    assert row[["diversity_low", "diversity_high"]].tolist() == pytest.approx([max(value - half, 0), value + half])


def test_a_number_of_prompts_takes_them_from_the_text():
    model = toy_decoder(n_positions=61)
    texts = [" ".join(f"w{(i * j) % 60}" for j in range(60)) for i in range(3)]
    study = encoding.study(model, texts, prompts=2, seed=2, bos=True, bases=["axis"], **SMALL)
    assert study.provenance["prompts"] == generation.prompts(model, texts, n=2, bos=True, seed=2).settings
    assert set(study.pruned_texts["n_tokens"]) == {2 * 50}
    assert study.pruned_texts["diversity_low"].isna().all(), "of fewer than 20 prompts"


def test_what_cannot_be_continued_is_refused_before_a_pass(drawn, load_toy, monkeypatch):
    model, texts, prompts, _ = drawn
    for reads in ("observe", "observe_parts"):
        monkeypatch.setattr(f"interp.passes.execution.{reads}", None)
    other = Prompts(prompts.ids, prompts.human, prompts.corpus, {"tokenizer": "another"})
    ids = corpora.batches(model, texts)
    by_hand = next(iter(ids)).tokens
    for on, text, asked, values in (
        (toy_encoder(), texts, 3, ("BERT",)),
        (model, texts, 3, ("prompts", 10, 50, 24)),
        (model, texts, other, ("prompts", "tokenizer")),
        (model, by_hand, 3, ("prompts", "token ids")),
        (model, texts, 0, ("n", 1, 0)),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            encoding.study(on, text, prompts=asked, unigram=np.arange(67), **SMALL)


def test_without_being_asked(load_toy):
    study = encoding.study(load_toy("gpt2"), ["w1 w2 w3 w4"] * 20, bases=["axis"], **SMALL)
    assert study.pruned_texts.empty
    assert list(study.pruned_texts) == encoding.writing.COLUMNS
    assert "prompts" not in study.provenance
    with pytest.raises(ValueError, match=naming("prompts=100")):
        plots.pruned_texts(study.pruned_texts)


def test_a_dry_run_says_how_much_is_written(capsys):
    asked = ["encoding", "--model", "tiny-gpt2", "--dry-run", "--prompts", "10", "--orders", "random"]
    assert main(asked) == 0
    told = capsys.readouterr().out
    assert "text without some dimensions: 13 settings, 6,500 new tokens" in told
