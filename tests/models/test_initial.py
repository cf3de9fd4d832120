"""An untrained model that does not fit in memory: blocks are drawn when they run, and weights cannot be read."""

import copy

import pytest
import torch
from naming import naming

import interp
from interp.models import untrained
from interp.models.loading import initial
from interp.models.sites import view


@pytest.fixture(params=["hooked", "bridge"])
def lean(request, load_toy, monkeypatch):
    """Such a model, and the one it would be if it fitted."""
    model = load_toy("gpt2", backend=request.param)
    whole = untrained(model, seed=3)
    monkeypatch.setattr(initial, "available", lambda device: 0)
    return untrained(model, seed=3), whole


def logits(model):
    with torch.no_grad():
        return model(torch.arange(7, 15)[None])


def test_copies_draw_the_same(lean):
    model, whole = lean
    copies = [view(model).copied()] + ([copy.deepcopy(model)] if view(model).wrapped is None else [])
    for one in (model, *copies, model):
        torch.testing.assert_close(logits(one), logits(whole), atol=1e-6, rtol=1e-6)


def test_converts_to_another_type(lean):
    model, whole = (view(one) for one in lean)
    for one in (model, whole):
        one.to(torch.bfloat16)
    for _ in range(2):
        torch.testing.assert_close(logits(model.model), logits(whole.model), atol=0.02, rtol=0.02)


def test_refuses_to_show_weights(lean, texts):
    model, _ = lean
    for ask in (
        lambda: interp.attention.study(model, texts, key_classes={"first": [7]}, progress=False),
        lambda: interp.encoding.study(model, texts, progress=False),
        lambda: interp.models.qk.qk_circuit(model, 0),
    ):
        with pytest.raises(ValueError, match=naming("memory", "weights")):
            ask()
