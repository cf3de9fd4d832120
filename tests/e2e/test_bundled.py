"""The models that ship with the package, and what they show."""

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from naming import naming

import interp
from interp import corpora, encoding
from interp.analyses.frequency import study
from interp.analyses.probing import minimal_pair_accuracy, sentence_scores
from interp.corpora import pairs, unigrams
from interp.support.paths import BUNDLED, bundled_models


@pytest.fixture(scope="module")
def gpt2():
    return interp.load("tiny-gpt2")


@pytest.fixture(scope="module")
def bert():
    return interp.load("tiny-bert")


def test_what_ships():
    assert bundled_models() == ["tiny-bert", "tiny-gpt2"]
    assert sum(path.stat().st_size for path in BUNDLED.rglob("*") if path.is_file()) < 16e6
    texts = list(corpora.load("bundled"))
    assert len(texts) > 390
    assert len(set(texts)) == len(texts)


def test_they_load_in_float32_and_equal_transformers(gpt2, bert):
    assert gpt2.W_U.dtype == bert.W_U.dtype == torch.float32
    tokens = torch.randint(4096, (2, 60), generator=torch.Generator().manual_seed(0))
    for model, cls in ((gpt2, transformers.GPT2LMHeadModel), (bert, transformers.BertForMaskedLM)):
        hf = cls.from_pretrained(model.interp_origin.directory, dtype=torch.float32).eval()
        with torch.no_grad():
            torch.testing.assert_close(model(tokens), hf(tokens).logits, atol=1e-4, rtol=0)


def test_tiny_gpt2_uses_its_bias_for_word_frequency(gpt2):
    batches = corpora.batches(gpt2, "bundled", bos=True)
    effect = study(gpt2, batches, scales=(0, 0.5, 1), progress=False)
    kl = effect.kl.set_index("scale")["kl_unigram_model"]
    assert kl[0] > 1.5 * kl[1]
    assert kl[0] > kl[0.5] > kl[1]
    assert effect.projection["spearman"][0] > 0.6
    assert effect.provenance["unigram"]["n_tokens"] > 10_000_000


def test_tiny_bert_needs_its_layer_norm_bias(bert):
    effect = study(bert, corpora.load("bundled"), scales=(0, 1), progress=False)
    kl = effect.kl.set_index(["bias", "scale"])["kl_unigram_model"]
    assert kl["ln", 0] > 1.05 * kl["ln", 1]


def test_they_have_learned_something(gpt2, bert):
    for model, layout in ((gpt2, {"bos": True}), (bert, {"mask_rate": 0.12})):
        counts = unigrams.load(BUNDLED / model.interp_origin.name / "unigram.safetensors")
        batches = corpora.batches(model, "bundled", **layout)
        effect = study(model, batches, unigram=counts, scales=(1,), progress=False)
        targets = torch.cat([batch.read_targets for batch in batches])
        unigram_nll = -counts.log_prior()[targets[targets > 0].numpy()].mean()
        assert np.log(effect.kl["perplexity"][0]) < unigram_nll - 1


def test_dynamics_shipped_and_measured(gpt2):
    for name in bundled_models():
        table = pd.read_csv(BUNDLED / name / "dynamics.csv")
        assert list(table.columns) == ["step", "adj_r2", "spearman", "kl_unigram_model", "loss"]
        assert len(table) >= 8
        assert table["step"].is_monotonic_increasing
        assert table["loss"].iloc[-1] < table["loss"].iloc[0] - 3
    counts = unigrams.load(BUNDLED / "tiny-gpt2/unigram.safetensors")
    last = pd.read_csv(BUNDLED / "tiny-gpt2/dynamics.csv").iloc[-1]
    again = encoding.dynamics(
        [(int(last["step"]), gpt2)], "bundled", unigram=counts, settings={"bos": False}, progress=False
    ).iloc[0]
    for column in last.index:
        assert again[column] == pytest.approx(last[column], rel=1e-3)


def test_dynamics_refuses_nonsense(gpt2):
    with pytest.raises(ValueError, match=naming("checkpoint", "(step, model)")):
        encoding.dynamics([], "bundled", unigram=unigrams.Unigrams(np.arange(5), "x"))
    with pytest.raises(ValueError, match=naming(5, "types", "4,096")):
        encoding.dynamics([(3, gpt2)], "bundled", unigram=unigrams.Unigrams(np.arange(5), "x"))


def test_minimal_pairs_refuse_nonsense(gpt2):
    table = pairs.generate(n_per_task=2)
    with pytest.raises(ValueError, match=naming("UID")):
        minimal_pair_accuracy(gpt2, table.drop(columns="UID"))
    with pytest.raises(ValueError, match=naming(128, "tokens")):
        sentence_scores(gpt2, ["the " * 200], progress=False)


def test_tiny_gpt2_knows_some_grammar(gpt2):
    tasks = ["determiner_noun", "determiner_irregular", "reflexive_number", "irregular_participle", "much_many"]
    table = pairs.generate(n_per_task=100, tasks=tasks)
    assert (minimal_pair_accuracy(gpt2, table, bos=True, progress=False)["accuracy"] > 0.65).all()
