"""Directions in the head's input against plain transformers with a vector added to it."""

import json
import math

import numpy as np
import pytest
import torch
import transformers
from head_input import COUNTS, inputs_of, kl_and_nll, log_p_of
from naming import naming

import interp
from interp import corpora
from interp.analyses.encoding import fit
from interp.analyses.frequency import study

quiet = {"progress": False, "unigram": COUNTS}


@pytest.fixture
def ids():
    return torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2"])
def test_directions_are_vectors_added_in_transformers(kind, hf_directory, load_toy, ids):
    model = load_toy(kind)
    hf = transformers.AutoModelForCausalLM.from_pretrained(hf_directory(kind)).eval()
    effect = study(model, ids, directions=["slope", "mean"], scales=[0.5, 0], **quiet)
    slope = torch.from_numpy(fit(model, ids, progress=False).slope)
    vectors = {"mean": inputs_of(hf, ids).mean((0, 1)), "slope": -slope}
    assert effect.kl["bias"].drop_duplicates().tolist()[-2:] == ["mean", "slope"]
    for name, vector in vectors.items():
        for scale in (0.5, 0.0):
            kl, nll = kl_and_nll(log_p_of(hf, ids, (scale - 1) * vector), ids)
            row = effect.kl[(effect.kl["bias"] == name) & (effect.kl["scale"] == scale)].iloc[0]
            assert row["kl_unigram_model"] == pytest.approx(kl, rel=1e-3)
            assert row["perplexity"] == pytest.approx(math.exp(nll.mean()), rel=1e-3)


def test_trained_llama_with_its_mean_scaled(shared):
    """KL(u‖q) at λ = 1, ½ and 0 from plain transformers, on forty stories whose BOS counts as a word."""
    model = interp.load(shared / "models/llama-stories260k")
    stories = json.loads((shared / "data/tinystories/tinystories_1000.json").read_text(encoding="utf-8"))[:40]
    text = [f"<s>{story}" for story in stories]
    counts = corpora.count_unigrams(model, text)
    with pytest.warns(UserWarning, match="special tokens are written out in texts and are read as such: <s> 40 ×"):
        effect = study(model, text, unigram=counts, directions=["mean"], bos=False, progress=False)
    found = effect.kl.set_index("scale")["kl_unigram_model"]
    np.testing.assert_allclose(found[[1.0, 0.5, 0.0]], [0.0123, 0.0717, 0.2637], atol=2e-4)


def test_directions_of_a_head_with_hooks_are_refused(load_toy, texts):
    model = load_toy("gpt2")
    with model.hooks(fwd_hooks=interp.hooks.scale_bias(model, "ln", 0.5)):
        with pytest.raises(RuntimeError, match=naming("hooks", "head")):
            study(model, texts, directions=["mean"], **quiet)


def test_directions_of_a_folded_model_are_refused(load_toy, texts):
    model = load_toy("gpt2")
    model.process_weights_()
    with pytest.raises(ValueError, match=naming("W_U", "interp.load")):
        study(model, texts, directions=["mean"], **quiet)
