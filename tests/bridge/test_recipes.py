"""Recipes in other people's code: gradients, caches, nesting, subclasses, training, inference mode, adapters."""

import copy
from importlib.metadata import version

import pytest
import torch

import interp
from interp import hooks
from interp.models.sites import hook_name

BACKENDS = ["bridge"] + ["hooked"] * (int(version("transformer-lens").split(".")[0]) < 4)
TOKENS = torch.tensor([[7, 9, 30, 11, 52, 8], [20, 21, 8, 9, 60, 41]])


@pytest.fixture(params=BACKENDS)
def model(request, hf_directory):
    return interp.load(hf_directory("gpt2"), backend=request.param)


def ln_bias(model):
    """The parameter of b_LN, under its name in either model."""
    return model.ln_final.b if type(model).__name__ == "HookedTransformer" else model.ln_final.bias


def edited(model, factor):
    changed = copy.deepcopy(model)
    with torch.no_grad():
        ln_bias(changed).mul_(factor)
    return changed


def loss(model):
    return model(TOKENS).log_softmax(-1)[:, :-1].gather(-1, TOKENS[:, 1:, None]).mean()


def test_gradients_are_those_of_the_edited_parameter(model):
    """The gradient with respect to b is half of that with respect to the edited parameter, b/2."""
    other = edited(model, 0.5)
    with model.hooks(fwd_hooks=hooks.scale_bias(model, "ln", 0.5)):
        loss(model).backward()
    loss(other).backward()
    ours, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    compared = [name for name in ours if ours[name].grad is not None and theirs[name].grad is not None]
    assert len(compared) > 20
    for name in compared:
        expected = theirs[name].grad * (0.5 if theirs[name] is ln_bias(other) else 1)
        torch.testing.assert_close(ours[name].grad, expected, atol=1e-5, rtol=1e-4, msg=name)


def test_run_with_cache(model):
    name, other = hook_name(model, "logits"), edited(model, 0.0)
    with model.hooks(fwd_hooks=hooks.scale_bias(model, "ln", 0.0)):
        logits, cache = model.run_with_cache(TOKENS)
    torch.testing.assert_close(logits, other(TOKENS), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cache[name], logits)


def test_nested(model):
    zero, doubled = hooks.scale_bias(model, "ln", 0.0), hooks.scale_bias(model, "ln", 2.0)
    plain = model(TOKENS)
    with model.hooks(fwd_hooks=zero):
        outer = model(TOKENS)
        with model.hooks(fwd_hooks=doubled):
            inner = model(TOKENS)
        torch.testing.assert_close(model(TOKENS), outer)
    torch.testing.assert_close(inner, plain, atol=1e-5, rtol=1e-5)  # 1 − 1 + 1 times the bias
    torch.testing.assert_close(model(TOKENS), plain)


def test_in_a_subclass(model):
    """As in SAELens, whose HookedSAETransformer is a subclass of HookedTransformer."""
    expected = edited(model, 0.5)(TOKENS)
    model.__class__ = type("Their" + type(model).__name__, (type(model),), {})
    with model.hooks(fwd_hooks=hooks.scale_bias(model, "ln", 0.5)):
        torch.testing.assert_close(model(TOKENS), expected, atol=1e-5, rtol=1e-5)


def test_in_a_training_loop(model):
    """The recipe is relative to the bias it was made for, while the weights before it are trained."""
    model.train()
    recipe = hooks.scale_bias(model, "ln", 0.0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        with model.hooks(fwd_hooks=recipe):
            value = -loss(model)
        value.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(value.detach()))
    assert losses[-1] < losses[0]
    assert model.training


def test_inference_mode(model):
    expected = edited(model, 0.5)(TOKENS).detach()
    with torch.inference_mode(), model.hooks(fwd_hooks=hooks.scale_bias(model, "ln", 0.5)):
        torch.testing.assert_close(model(TOKENS), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_under_peft(model):
    """Adapters on the queries of the model that a bridge wraps, or on a HookedTransformer's MLP parameters."""
    peft = pytest.importorskip("peft")
    plain = model(TOKENS)
    if type(model).__name__ == "HookedTransformer":
        where, wrapped = {"target_modules": [], "target_parameters": ["mlp.W_in"]}, model
    else:
        where, wrapped = {"target_modules": r".*\.q\._original_component"}, model.original_model
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, init_lora_weights=False, **where), wrapped)
    adapted = model(TOKENS)
    assert not torch.allclose(plain, adapted, atol=1e-2)
    recipe, keys = hooks.scale_bias(model, "ln", 0.5), hooks.ablate_dims(model, 1, [3], where="keys")
    with model.hooks(fwd_hooks=keys):
        assert not torch.allclose(model(TOKENS), adapted, atol=1e-4)
    with model.hooks(fwd_hooks=recipe):
        found = model(TOKENS)
    ln_bias(model).mul_(0.5)
    torch.testing.assert_close(found, model(TOKENS), atol=1e-5, rtol=1e-5)
