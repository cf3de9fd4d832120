"""Text generated with E[h] scaled, against plain transformers with a vector added to the input of its unembedding."""

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

import interp
from interp.analyses.generation import prompts, study
from interp.analyses.generation.tables import why_impossible


@pytest.fixture
def peer(hf_directory):
    return transformers.AutoModelForCausalLM.from_pretrained(hf_directory("llama")).eval()


@torch.no_grad()
def mean_input(hf, batches):
    """E[h], from the final hidden states of single rows."""
    states = []
    for batch in batches:
        for tokens, mask, read in zip(batch.tokens, batch.mask, batch.read, strict=True):
            length = int(mask.sum())
            hidden = hf.base_model(tokens[None, :length]).last_hidden_state[0]
            states.append(hidden[read[:length]].double())
    return torch.cat(states).mean(0)


@torch.no_grad()
def perplexity(hf, batches):
    losses = []
    for batch in batches:
        for tokens, mask in zip(batch.tokens, batch.mask, strict=True):
            row = tokens[None, : int(mask.sum())]
            losses.append(torch.nn.functional.cross_entropy(hf(row).logits[0, :-1], row[0, 1:], reduction="none"))
    return float(torch.cat(losses).double().mean().exp())


def test_texts_are_those_of_transformers_with_its_mean_input_scaled(peer, load_toy, texts):
    model = load_toy("llama")
    some = prompts(model, texts, n=5, prompt_tokens=4, new_tokens=6)
    found = study(model, some, scales=[1, 0.5, -1], decoders=["greedy"], context=12, progress=False)
    assert found.scaled == found.provenance["scaled"] == "mean"
    assert str(found.answer).startswith("With −1 times E[h] (the mean input of the unembedding), the diversity of text")
    batches = interp.corpora.batches(model, some.corpus, bos=some.settings["bos"], context=12)
    mean = mean_input(peer, batches).float()
    for scale, table in found.texts.dropna(subset="scale").groupby("scale"):
        added = (scale - 1) * mean
        handle = peer.lm_head.register_forward_pre_hook(lambda module, inputs, added=added: (inputs[0] + added,))
        expected = peer.generate(
            torch.from_numpy(some.ids), do_sample=False, max_new_tokens=6, min_new_tokens=6, pad_token_id=0,
            attention_mask=torch.ones_like(torch.from_numpy(some.ids)), eos_token_id=model.tokenizer.eos_token_id,
        )[:, some.ids.shape[1] :]  # fmt: skip
        assert np.array_equal(np.stack(table["token_ids"].tolist()), expected.numpy())
        row = found.metrics[(found.metrics["scale"] == scale) & (found.metrics["decoder"] == "greedy")]
        assert row["perplexity"].item() == pytest.approx(perplexity(peer, batches), rel=1e-4)
        handle.remove()


def test_the_mean_input_of_a_model_with_a_bias_is_scaled_on_request(load_toy, texts):
    model = load_toy("gpt2")
    short = {"n": 4, "prompt_tokens": 3, "new_tokens": 4, "scales": [1, 0], "decoders": ["greedy"], "progress": False}
    by_bias, by_mean = (study(model, texts, scaled=scaled, **short) for scaled in (None, "mean"))
    assert (by_bias.scaled, by_mean.scaled) == ("ln", "mean")
    at_one, at_zero = (by_bias.metrics["scale"] == scale for scale in (1, 0))
    pd.testing.assert_frame_equal(by_bias.metrics[at_one], by_mean.metrics[at_one])
    assert by_bias.metrics.loc[at_zero, "perplexity"].item() != by_mean.metrics.loc[at_zero, "perplexity"].item()


def test_what_cannot_be_scaled_is_said(load_toy, texts):
    llama = load_toy("llama")
    assert why_impossible(llama) is None
    assert "it has no b_LN to scale: its final norm is an RMSNorm" in str(why_impossible(llama, scaled="ln"))
    with pytest.raises(ValueError, match="b_LN"):
        study(llama, texts, scaled="ln", progress=False)
    with pytest.raises(ValueError, match="expected one of ln, mean"):
        study(llama, texts, scaled="fc", progress=False)
