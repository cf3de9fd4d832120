"""Analyses do not depend on torch's default type, and a model whose config has another type than its weights is
refused."""

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming
from toys import every_table

import interp
from interp import attention, probing
from interp.corpora import pairs
from interp.testing import WORDS

TOKENS = torch.randint(7, 67, (12, 20), generator=torch.Generator().manual_seed(0))
QUIET = {"progress": False}


def states(model):
    rng = np.random.default_rng(0)
    rows = [[" ".join([first, *rng.choice(WORDS, 3)]) for first in ("w1", "w2")] for _ in range(20)]
    return probing.collect(model, pairs.load(pd.DataFrame(rows, columns=["sentence_good", "sentence_bad"])), **QUIET)


def collected(model):
    found = states(model)
    return {str(state): pd.DataFrame(found.load(state).reshape(40, -1)) for state in found.states}


def studied(model):
    return every_table(attention.study(model, TOKENS, key_classes={"first": [7, 8]}, **QUIET))


def ablated(model):
    outliers = pd.DataFrame({"state": [1], "dim": [3], "z": [4.0]})
    how = {"key_classes": {"first": [7, 8]}, "where": "residual", "layers": [1]}
    return {"effect": attention.ablation_effect(model, TOKENS, outliers, **how, **QUIET)}


def probed(model):
    how = {"states": [1], "l0_strengths": [0.7], "ks": [2], "seeds": [0], "steps": 50}
    return {"probes": probing.sweep(states(model), controls=("none", "flip", "rotation"), **how, **QUIET).probes}


@pytest.fixture
def default_type():
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("analysis", [collected, studied, ablated, probed])
def test_the_default_type_changes_nothing(analysis, dtype, load_toy, default_type):
    model = load_toy("gpt2")
    expected = analysis(model)
    default_type(dtype)
    found = analysis(model)
    for name, table in expected.items():
        pd.testing.assert_frame_equal(found[name], table, rtol=1e-9, obj=name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_a_model_is_loaded_the_same_under_any_default_type(dtype, hf_directory, default_type):
    expected = interp.load(hf_directory("gpt2"))
    default_type(dtype)
    found = interp.load(hf_directory("gpt2"))
    assert found.W_U.dtype == torch.float32
    assert all(torch.equal(one, other) for one, other in zip(found.parameters(), expected.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_weights_that_are_converted_without_their_config_are_refused(kind, hf_directory):
    model = interp.load(hf_directory(kind)).half()
    for analysis in (studied, states):
        with pytest.raises(ValueError, match=naming("float16", "float32", "model.to(torch.float16)")):
            analysis(model)
    with torch.no_grad():
        assert torch.isfinite(model.to(torch.float16)(TOKENS[:1])).all()
