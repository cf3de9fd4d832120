"""The prediction head: which of its biases can be distinguished, and what each adds to the logits."""

import copy

import pytest
import torch
from naming import naming
from transformer_lens import HookedTransformer, HookedTransformerConfig

from interp.models.head import prediction_head, real_tokens


def test_what_has_no_effect_of_its_own_is_refused(load_toy):
    with pytest.raises(ValueError, match=naming("'b_ln'", "ln, fc, last")):
        prediction_head(load_toy("gpt2")).require("b_ln")
    with pytest.raises(ValueError, match=naming("b_FC", "hooks.scale_bias")):
        prediction_head(load_toy("bert")).effect("fc")


def test_an_ambiguous_head_is_refused():
    cfg = HookedTransformerConfig(
        n_layers=1, d_model=8, n_ctx=8, d_head=4, n_heads=2, d_vocab=11, act_fn="gelu", normalization_type="LN", seed=0
    )
    model = HookedTransformer(cfg)
    assert prediction_head(model).biases == ("ln",)
    model.unembed.b_U.data += torch.arange(11.0)
    assert prediction_head(model).biases == ()
    with pytest.raises(ValueError, match=naming("b_last", "b_U", "from_pretrained_no_processing")):
        prediction_head(model).effect("last")
    model.ln_final.b.data += 0.1
    assert prediction_head(model).biases == ("ln", "last")
    folded = HookedTransformer(cfg.__class__.from_dict(cfg.to_dict() | {"normalization_type": "LNPre"}))
    assert prediction_head(folded).why_absent["ln"].endswith("b_U is zero, so no bias is left")
    bare = HookedTransformer(cfg.__class__.from_dict(cfg.to_dict() | {"normalization_type": None}))
    assert prediction_head(bare).why_absent["ln"] == "there is no final norm"


def test_effects_keep_their_precision_in_bfloat16(load_toy):
    model = load_toy("gpt2").to(torch.bfloat16, print_details=False)
    exact = model.ln_final.b.double() @ model.W_U.double()
    torch.testing.assert_close(prediction_head(model).effect("ln").double(), exact, atol=1e-5, rtol=0)


def test_effects_are_the_projections(load_toy):
    head = prediction_head(load_toy("gptj"))
    model = load_toy("gptj")
    torch.testing.assert_close(head.effect("ln"), model.ln_final.b @ model.W_U)
    torch.testing.assert_close(head.effect("last"), model.b_U)


def test_real_tokens_leave_padded_rows_out(load_toy):
    model = load_toy("gpt2")
    assert real_tokens(model).all()
    small = copy.deepcopy(model)
    small.unembed.W_U.data = torch.cat([small.W_U.data, torch.zeros(16, 3)], 1)
    assert real_tokens(small).tolist() == [True] * 67 + [False] * 3
    small.tokenizer = None
    assert real_tokens(small).all()
