"""The tokens at which neurons of the last MLP are largest, against sorting what transformers gives for each row."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from interp import corpora, encoding
from interp.passes.contexts import CONTEXTS, KEPT

QUIET = {"unigram": np.arange(67), "orders": ["random"], "bases": ["axis"], "ratios": [2], "progress": False}


def activations(directory, kind, batches):
    """For every token: its text, position, name, and the neurons of the last MLP."""
    hf, found = AutoModelForCausalLM.from_pretrained(directory).eval(), []
    out = hf.transformer.h[-1].mlp.c_proj if kind == "gpt2" else hf.model.layers[-1].mlp.down_proj
    out.register_forward_pre_hook(lambda module, given: found.append(given[0].detach()[0].double().numpy()))
    for row in batches.rows():
        with torch.no_grad():
            hf(torch.tensor(row.ids)[None])
        for position, values in enumerate(found.pop()):
            yield row.text_at(position), position, int(row.ids[position]), values


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_study_has_those_of_the_neurons_whose_effects_are_exact(kind, load_toy, hf_directory, texts):
    model = load_toy(kind)
    short = [" ".join(text.split()[:20]) for text in texts]  # one row each
    batches = corpora.batches(model, short, layout="texts", batch_size=7)
    study = encoding.study(model, batches, **QUIET)
    assert list(study.contexts.columns) == ["neuron", "layer", *CONTEXTS[2:]]
    exact = study.neurons.loc[study.neurons["exact"], "neuron"].tolist()
    assert study.contexts["neuron"].unique().tolist() == exact
    assert set(study.contexts["layer"]) == {1}
    every = list(activations(hf_directory(kind), kind, batches))
    by_place = {place: (token_id, values) for *place, token_id, values in every for place in [tuple(place)]}
    for neuron in exact[:5]:
        part = study.contexts[study.contexts["neuron"] == neuron]
        sizes = sorted((abs(values[neuron]) for *_, values in every), reverse=True)
        np.testing.assert_allclose(part["activation"].abs(), sizes[:KEPT], rtol=3e-4)
        for one in part.itertuples():
            token_id, values = by_place[one.text, one.position]
            assert one.token == model.tokenizer.convert_ids_to_tokens(token_id)
            assert one.activation == pytest.approx(values[neuron], rel=1e-3, abs=1e-5)


def test_encoders_have_none(load_toy, texts):
    study = encoding.study(load_toy("bert"), texts, **QUIET)
    assert study.contexts.empty
    assert list(study.contexts.columns) == ["neuron", "layer", *CONTEXTS[2:]]
