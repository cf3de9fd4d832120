"""What a bfloat16 model computes is summed in at least float32, against float64 on the same activations."""

import numpy as np
import pandas as pd
import pytest
import torch

from interp import attention, corpora, encoding, plots, probing
from interp.analyses.encoding.steering import SteeredMeans
from interp.corpora import pairs
from interp.instruments.neurons import _LastMLP
from interp.passes.reading import observe

TOKENS = torch.randint(7, 67, (40, 20), generator=torch.Generator().manual_seed(0))
ONE_ROUNDING = 1e-5  # bfloat16 rounds by up to 4e-3


def activation(model, name, tokens):
    """The activation at one hook point, read alone, because attention rounds differently under hooks on its pattern."""
    found = {}
    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=[(name, lambda value, hook: found.update(value=value.clone()))])
    return found["value"].double()


@pytest.fixture
def model(load_toy):
    return load_toy("gpt2", dtype=torch.bfloat16)


def test_the_mean_input_of_the_head(model):
    fit = encoding.fit(model, TOKENS, progress=False)
    exact = activation(model, "unembed.hook_in", TOKENS).mean((0, 1)).numpy()
    assert fit.mean_input == pytest.approx(exact, rel=ONE_ROUNDING, abs=1e-5)


def test_steered_means(model):
    batches = corpora.batches(model, TOKENS)
    observer = SteeredMeans(model, [(9, 0.0, [0.0])], np.zeros((1, model.cfg.d_model), np.float32))
    observe(model, batches, observer, progress=False)
    exact = model(TOKENS).double().softmax(-1).mean((0, 1))
    for name in ("plain", "steered"):
        mean = torch.from_numpy(observer.mean_of(name).ravel())
        torch.testing.assert_close(mean, exact, rtol=ONE_ROUNDING, atol=0)


def test_the_closed_form_of_neurons(model):
    exact = model.b_U.double() + model.ln_final.b.double() @ model.W_U.double()
    torch.testing.assert_close(_LastMLP(model).constant.double(), exact, rtol=0, atol=1e-5)


def test_the_mean_over_a_sentence(model):
    table = pd.DataFrame([("w1 w2 w3 w4 w5 w6 w7", "w8 w9", "t", "0", "", "")], columns=list(pairs.COLUMNS))
    found = probing.collect(model, table, states=[1], position="mean", bos=False, progress=False).load(1)[0]
    for sentence, ours in zip(table.loc[0, ["sentence_good", "sentence_bad"]], found, strict=True):
        ids = torch.tensor(model.tokenizer(sentence, add_special_tokens=False)["input_ids"])[None]
        exact = activation(model, "blocks.0.hook_resid_post", ids).mean((0, 1)).numpy()
        assert ours == pytest.approx(exact, abs=2e-3 * np.abs(exact).max())


def test_attention_is_drawn(model):
    assert "dim 3" in str(plots.attention_view(attention.attention_in_text(model, "w1 w2 w3 w4", 1, 3)))
