"""The recipes against transformers with the parameter edited."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings, strategies as st
from naming import naming

from interp import hooks
from interp.corpora.unigrams import Unigrams
from interp.models.head import prediction_head
from interp.models.sites import hook_name, trunk_output

TOKENS = torch.randint(7, 60, (2, 12), generator=torch.Generator().manual_seed(3))
BIASES = {
    "gpt2": {"ln": "transformer.ln_f.bias"},
    "gpt_neox": {"ln": "gpt_neox.final_layer_norm.bias"},
    "opt": {"ln": "model.decoder.final_layer_norm.bias"},
    "gptj": {"ln": "transformer.ln_f.bias", "last": "lm_head.bias"},
    "bert": {
        "ln": "cls.predictions.transform.LayerNorm.bias",
        "fc": "cls.predictions.transform.dense.bias",
        "last": "cls.predictions.bias",
    },
}
CASES = [(kind, bias, factor) for kind, own in BIASES.items() for bias in own for factor in (0.0, 0.5, 2.0)]


def edited(directory, kind, scale):
    """Plain transformers with biases multiplied in place."""
    cls = transformers.BertForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    model = cls.from_pretrained(directory).eval()
    for bias, factor in scale.items():
        model.get_parameter(BIASES[kind][bias]).data *= factor
    with torch.no_grad():
        return model(TOKENS).logits


@torch.no_grad()
def hooked(model, recipe):
    return model.run_with_hooks(TOKENS, fwd_hooks=recipe)


@pytest.mark.parametrize(("kind", "bias", "factor"), CASES)
def test_scale_bias_equals_the_edited_parameter(kind, bias, factor, hf_directory, load_toy):
    model = load_toy(kind)
    ours = hooked(model, hooks.scale_bias(model, bias, factor))
    theirs = edited(hf_directory(kind), kind, {bias: factor})
    assert (theirs - edited(hf_directory(kind), kind, {})).abs().max() > 0.05
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "opt"])
def test_scale_bias_on_a_folded_model(kind, hf_directory, load_toy):
    model = load_toy(kind)
    model.process_weights_(fold_ln=True, center_writing_weights=True, center_unembed=True)
    head = prediction_head(model)
    assert head.folded
    assert head.biases == ("ln",)
    ours = hooked(model, hooks.scale_bias(model, "ln", 0.25)).log_softmax(-1)
    theirs = edited(hf_directory(kind), kind, {"ln": 0.25}).log_softmax(-1)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("order", [("ln", "fc", "last"), ("last", "ln", "fc"), ("fc", "last", "ln")])
def test_recipes_compose_in_any_order(order, hf_directory, load_toy):
    model = load_toy("bert")
    factors = {"ln": 0.3, "fc": 0.0, "last": 1.7}
    recipe = sum((hooks.scale_bias(model, bias, factors[bias]) for bias in order), [])
    torch.testing.assert_close(hooked(model, recipe), edited(hf_directory("bert"), "bert", factors), atol=1e-5, rtol=0)


def test_scaling_is_linear_in_lambda(load_toy):
    model = load_toy("gpt2").to(torch.float64, print_details=False)
    full, c = hooked(model, []), prediction_head(model).effect("ln")

    @settings(max_examples=20, deadline=None)
    @given(st.floats(-3, 3))
    def check(scale):
        ours = hooked(model, hooks.scale_bias(model, "ln", scale))
        torch.testing.assert_close(ours, full + (scale - 1) * c, atol=1e-12, rtol=0)

    check()


def test_adjust_logits(load_toy):
    model = load_toy("gpt2")
    counts = np.arange(67)
    prior = Unigrams(counts, "x").log_prior()
    assert prior[0] == pytest.approx(np.log(1 / (counts.sum() + 67)))
    ours = hooked(model, hooks.adjust_logits(model, prior, 0.7))
    torch.testing.assert_close(ours, hooked(model, []) - 0.7 * torch.tensor(prior, dtype=torch.float32))
    with pytest.raises(ValueError, match=naming("log_prior", 67, (5,))):
        hooks.adjust_logits(model, prior[:5], 1.0)
    with pytest.raises(ValueError, match=naming("log_prior", "NaN", "Unigrams.log_prior()")):
        hooks.adjust_logits(model, np.log(counts, where=counts > 0, out=np.full(67, -np.inf)), 1.0)
    with pytest.raises(ValueError, match=naming("tau", "nan")):
        hooks.adjust_logits(model, prior, float("nan"))
    with pytest.raises(ValueError, match=naming("log_prior", 0, "counts")):
        hooks.adjust_logits(model, counts, 1.0)
    model.cfg.output_logits_soft_cap = 5.0
    with pytest.raises(ValueError, match=naming("logits", 5)):
        hooks.adjust_logits(model, prior, 1.0)


def test_capture_keeps_the_last_activation(load_toy):
    for kind in ("gpt2", "bert"):
        model, into = load_toy(kind), {}
        hooked(model, hooks.capture(model, "head_input", into) + hooks.capture(model, "resid_post", into, layer=1))
        logits = into[hook_name(model, "head_input")] @ model.W_U + model.b_U
        torch.testing.assert_close(logits, hooked(model, []), atol=1e-5, rtol=0)
        assert into[trunk_output(model)].shape == (2, 12, 16)


def test_no_hook_is_left_after_an_exception(load_toy):
    for kind in ("gpt2", "bert"):
        model = load_toy(kind)
        recipe = hooks.scale_bias(model, "ln", 0.0)

        def boom(activation, hook):
            raise RuntimeError("boom")

        with pytest.raises(RuntimeError, match="boom"):
            hooked(model, [*recipe, (hook_name(model, "logits"), boom)])
        assert not any(point.has_hooks() for point in model.hook_dict.values())


def test_what_cannot_be_scaled_is_refused(load_toy):
    with pytest.raises(ValueError, match=naming("b_LN", "RMSNorm")):
        hooks.scale_bias(load_toy("llama"), "ln", 0.5)
    with pytest.raises(ValueError, match=naming("b_FC", "ln")):
        hooks.scale_bias(load_toy("gpt2"), "fc", 0.5)
    with pytest.raises(ValueError, match=naming("b_last", "b_U", "ln")):
        hooks.scale_bias(load_toy("gpt2"), "last", 0.5)
    with pytest.raises(ValueError, match=naming("factor", "inf")):
        hooks.scale_bias(load_toy("gpt2"), "ln", float("inf"))


def test_a_folded_head_of_unknown_bias_is_refused(load_toy):
    model = load_toy("gptj")
    model.process_weights_(fold_ln=True, center_writing_weights=False, center_unembed=False)
    for bias, name in {"ln": "b_LN", "last": "b_last"}.items():
        with pytest.raises(ValueError, match=naming(name, "b_U", "interp.load", "from_pretrained_no_processing")):
            hooks.scale_bias(model, bias, 0.5)


@pytest.mark.parametrize("where", ["keys", "queries", "residual"])
def test_no_dimensions_change_nothing(where, load_toy):
    """So that a sweep may begin at 0 %."""
    model = load_toy("gpt2")
    for more in ({}, {"mode": "mean", "means": np.ones(16)}):
        assert torch.equal(hooked(model, hooks.ablate_dims(model, 1, [], where=where, **more)), hooked(model, []))


@pytest.mark.parametrize("where", ["keys", "residual"])
def test_means_may_be_an_array_such_as_a_column_of_a_table(where, load_toy):
    model, means = load_toy("gpt2"), np.random.default_rng(0).normal(size=16)
    ours = hooked(model, hooks.ablate_dims(model, 1, [2, 5], where=where, mode="mean", means=means))
    same = hooks.ablate_dims(model, 1, [2, 5], where=where, mode="mean", means=torch.from_numpy(means).float())
    torch.testing.assert_close(ours, hooked(model, same))
    assert (ours - hooked(model, [])).abs().max() > 0.01
