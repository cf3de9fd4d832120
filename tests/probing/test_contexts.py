"""The tokens at which neurons that probes read are largest, against sorting transformers' hidden states."""

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming
from transformers import AutoModel

from interp import probing
from interp.analyses.probing import states as collecting
from interp.analyses.probing.contexts import NEURON_TOKENS, neuron_tokens
from interp.corpora import pairs
from interp.passes.contexts import KEPT

OPTIONS = {"methods": ["l0"], "l0_strengths": (0.2,), "seeds": (0,), "controls": ["none"], "steps": 300}


def table_of_pairs(n=14):
    rng = np.random.default_rng(0)
    rows = []
    for task in "ab":
        for i in range(n):
            words = [f"w{j}" for j in rng.integers(5, 60, int(rng.integers(2, 7)))]
            rows.append((" ".join(["w1", *words]), " ".join([*words, "w2"]), task, str(i), "", ""))
    return pd.DataFrame(rows, columns=list(pairs.COLUMNS))


def every_token(directory, model, states):
    """For every token of every sentence: pair, sentence, position, name, and the state after the first block."""
    hf = AutoModel.from_pretrained(directory).eval()
    for number, row in enumerate(states.rows):
        with torch.no_grad():
            values = hf(torch.tensor(row)[None], output_hidden_states=True).hidden_states[1][0].double().numpy()
        names = model.tokenizer.convert_ids_to_tokens(list(row))
        for position, (name, value) in enumerate(zip(names, values, strict=True)):
            yield number // 2, ["good", "bad"][number % 2], position, name, value


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_they_are_those_of_a_sort_of_all(kind, load_toy, hf_directory):
    model, table = load_toy(kind), table_of_pairs()
    states = probing.collect(model, table, states=[1], largest=True, progress=False)
    every = list(every_token(hf_directory(kind), model, states))
    assert len(every) > 5 * KEPT
    found = neuron_tokens(states, [(dim, 1) for dim in (0, 7, 15)])
    assert list(found.columns) == NEURON_TOKENS
    for dim, part in found.groupby("dim"):
        sizes = sorted((abs(values[dim]) for *_, values in every), reverse=True)
        np.testing.assert_allclose(part["activation"].abs(), sizes[:KEPT], rtol=3e-4)
        by_place = {place: (name, values[dim]) for *place, name, values in every for place in [tuple(place)]}
        for one in part.itertuples():
            name, value = by_place[one.pair, one.sentence, one.position]
            assert (one.token, one.activation) == (name, pytest.approx(value, rel=1e-3, abs=1e-5))
            assert one.task == table["UID"][one.pair]
            words = f"{one.before.strip()} {one.token} {one.after.strip()}".split()
            said = " ".join(word for word in words if word.startswith("w"))
            assert said in table.loc[one.pair, f"sentence_{one.sentence}"]


def test_shards_and_stops_do_not_matter(load_toy, tmp_path, monkeypatch):
    model, table = load_toy("gpt2"), table_of_pairs()
    units = [(dim, at) for dim in range(16) for at in range(2)]
    monkeypatch.setattr(collecting, "TOKENS_AT_ONCE", 60)
    whole = neuron_tokens(probing.collect(model, table, largest=True, progress=False), units)
    with monkeypatch.context() as patch:
        patch.setattr(collecting, "SENTENCES_PER_SHARD", 20)
        calls = stop_in_the_third_batch(patch)
        with pytest.raises(KeyboardInterrupt):
            probing.collect(model, table, largest=True, directory=tmp_path, progress=False)
        calls[0] = 10
        states = probing.collect(model, table, largest=True, directory=tmp_path, progress=False)
    pd.testing.assert_frame_equal(neuron_tokens(states, units), whole, rtol=1e-4)


def stop_in_the_third_batch(patch):
    """Ctrl-C after the hooks have fired in the third batch; returns a list with the number of batches."""
    calls, forward = [0], collecting.forward

    def stopping(*given):
        forward(*given)
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt

    patch.setattr(collecting, "forward", stopping)
    return calls


@pytest.mark.slow
def test_a_study_has_those_of_the_neurons_that_probes_read(load_toy):
    table = table_of_pairs(20)
    study = probing.study(load_toy("gpt2"), table, states=[1], position="mean", progress=False, **OPTIONS)
    at = study.neurons[(study.neurons["state"] == study.provenance["state"]) & (study.neurons["gate"] > 0)]
    assert 1 < at["dim"].nunique() < 16
    assert study.contexts["dim"].unique().tolist() == sorted(at["dim"].unique())
    assert set(study.contexts["state"]) == {study.provenance["state"]}
    read = study.neurons_read.set_index("dim")
    assert read["read_by"].to_dict() == at.groupby("dim")["task"].count().to_dict()
    for one in at.itertuples():
        assert abs(read["t"][one.dim]) >= abs(one.t)
    assert read["read_by"].is_monotonic_decreasing


def test_without_them(load_toy):
    model, table = load_toy("gpt2"), table_of_pairs()
    with pytest.raises(ValueError, match=naming("largest=True")):
        neuron_tokens(probing.collect(model, table, progress=False), [(0, 0)])
    options = OPTIONS | {"methods": ["dense"]}
    study = probing.study(model, table, states=[1], progress=False, **options)
    assert study.contexts.empty
    assert list(study.contexts.columns) == NEURON_TOKENS
