"""Every public recipe wherever TransformerLens takes hooks: threads, gradients, edited weights, adapters, copies."""

import copy
import itertools
import pickle
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch
from naming import naming
from torch.nn.utils import parametrize

import interp
from interp import encoding, hooks, probing
from interp.analyses.encoding.regression import Fit
from interp.analyses.probing.probes import Probe
from interp.models.sites import Recipe, hook_name, view
from interp.testing import assert_recipe_exact, randomise

BACKENDS = ["bridge"] + ["hooked"] * (int(version("transformer-lens").split(".")[0]) < 4)
pytestmark = pytest.mark.filterwarnings("ignore:A forward hook edited")  # TransformerBridge's, of edited norms
TOKENS = torch.tensor([[7, 9, 30, 11, 52, 8], [20, 21, 8, 9, 60, 41]])
MEANS = np.linspace(-1, 1, 16)
BASIS = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0]
PRIOR = np.log(np.arange(1, 68) / np.arange(1, 68).sum())

RECIPES: dict[str, Callable[[Any], Recipe]] = {
    "scale ln": lambda model: hooks.scale_bias(model, "ln", 0.5),
    "scale fc": lambda model: hooks.scale_bias(model, "fc", 0.5),
    "scale last": lambda model: hooks.scale_bias(model, "last", 0.5),
    "adjust": lambda model: hooks.adjust_logits(model, PRIOR, 0.5),
    "keys": lambda model: hooks.ablate_dims(model, 1, [2, 5], where="keys"),
    "means of keys": lambda model: hooks.ablate_dims(model, 0, [2, 5], where="keys", mode="mean", means=MEANS),
    "queries": lambda model: hooks.ablate_dims(model, 1, [2, 5], where="queries"),
    "residual": lambda model: hooks.ablate_dims(model, 1, [2, 5], where="residual"),
    "prune": lambda model: hooks.prune_output_dims(model, [1, 2]),
    "shift": lambda model: hooks.shift_head_input(model, torch.linspace(-1, 1, model.cfg.d_model)),
    "prune in a basis": lambda model: hooks.prune_output_dims(model, [1, 2], basis=BASIS),
    "capture": lambda model: hooks.capture(model, "resid_post", {}, layer=0),
    "probe": lambda model: probing.steer(model, Probe("a task", 1, np.arange(16.0), 0.0), 2),
    "no dimensions": lambda model: [
        *hooks.ablate_dims(model, 1, [], where="keys"),
        *hooks.ablate_dims(model, 1, [], where="residual"),
        *hooks.prune_output_dims(model, []),
    ],
}
ABSENT: dict[str, set[str]] = {
    "gpt2": {"scale fc", "scale last"},
    "bert": set(),
    "llama": {"scale ln", "scale fc", "scale last"},
}
MODELS = [(kind, backend) for kind in ABSENT for backend in BACKENDS]
QUICK = [("gpt2", backend) for backend in BACKENDS] + [("bert", BACKENDS[-1])]
CASES = [
    pytest.param(*model, name, marks=[] if model in QUICK else pytest.mark.slow)
    for model in MODELS
    for name in RECIPES
    if name not in ABSENT[model[0]]
]


@pytest.fixture(scope="module")
def loaded(hf_directory):
    return {(kind, backend): interp.load(hf_directory(kind), backend=backend) for kind, backend in MODELS}


@pytest.fixture(params=BACKENDS)
def model(request, hf_directory):
    return interp.load(hf_directory("gpt2"), backend=request.param)


@torch.no_grad()
def logits(model, recipe=()):
    return model.run_with_hooks(TOKENS, fwd_hooks=list(recipe))


@pytest.mark.parametrize(("kind", "backend", "name"), CASES)
def test_threads_gradients_edited_weights_and_inference_mode(loaded, kind, backend, name):
    assert_recipe_exact(RECIPES[name], loaded[kind, backend])


@pytest.mark.parametrize("shift", ["constant", "regression"])
def test_a_steered_token(shift, model, monkeypatch):
    """A fit belongs to its weights, which a copy in float64 does not have; the recipe reads no parameter."""
    fit = encoding.fit(model, ["w0 w1 w2 w3 w4 w5"] * 20, progress=False)
    monkeypatch.setattr(Fit, "require", lambda fit, model: None)
    assert_recipe_exact(lambda model: encoding.steer(model, "w3", 2, fit, shift=shift, progress=False), model)


def test_the_check_finds_what_is_not_exact(model):
    """State that threads share, a detached tensor, a parameter that was copied, and what is added to padding alone."""
    name = hook_name(model, "head_input")

    def with_state(model: Any) -> Recipe:
        seen: dict[str, Any] = {}

        def add(logits: Any, hook: Any) -> Any:
            return logits + seen["h"].sum(-1, keepdim=True) * torch.linspace(0, 1, 67, dtype=logits.dtype)

        return [(name, lambda h, hook: seen.update(h=h)), (hook_name(model, "logits"), add)]

    def detached(model: Any) -> Recipe:
        return [(name, lambda h, hook: h + 0.5 * h.detach())]

    def stale(model: Any) -> Recipe:
        bias = view(model).head().b_ln.clone()
        return [(name, lambda h, hook: h + bias)]

    def stale_from_the_first_call(model: Any) -> Recipe:
        kept: dict[str, Any] = {}
        return [(name, lambda h, hook: h + kept.setdefault("bias", view(model).head().b_ln.clone().detach()))]

    def of_row(model: Any) -> Recipe:
        return [(name, lambda h, hook: h - h.mean(1, keepdim=True))]

    for recipe, values in [
        (with_state, ("threads",)),
        (detached, ("gradient",)),
        (stale, ("parameters",)),
        (stale_from_the_first_call, ("parameters",)),
        (of_row, ("row", "token")),
    ]:
        with pytest.raises(AssertionError, match=naming(*values)):
            assert_recipe_exact(recipe, model)


@pytest.mark.parametrize(("kind", "backend", "name"), CASES)
def test_another_model_is_refused(loaded, kind, backend, name):
    """Also a deep copy and an unpickled one, and after the recipe has acted on its own model."""
    model = loaded[kind, backend]
    recipe = RECIPES[name](model)
    copies = [view(model).copied()]
    if backend == "hooked":  # a bridge cannot be pickled
        copies.append(pickle.loads(pickle.dumps(model)))
    expected = logits(model, recipe)
    for other in copies:
        if recipe:
            with pytest.raises(ValueError, match=naming("recipe", "model")):
                logits(other, recipe)
        torch.testing.assert_close(logits(other, RECIPES[name](other)), expected, atol=1e-5, rtol=0)
    if name != "capture":
        assert torch.equal(expected, logits(model)) == (name == "no dimensions")


def test_a_copy_made_while_a_recipe_is_active(model):
    """Its hooks are TransformerLens' own copies of those on the model."""
    recipe = hooks.scale_bias(model, "ln", 0.5)
    with model.hooks(fwd_hooks=recipe):
        other = copy.deepcopy(model) if type(model).__name__ == "HookedTransformer" else view(model).copied()
    other.reset_hooks()
    with pytest.raises(ValueError, match=naming("recipe", "model")):
        logits(other, recipe)


def in_three_ways(model, first, second):
    """The logits with two recipes added, in nested contexts, and in one list, in both orders."""
    found = []
    for one, other in ((first, second), (second, first)):
        found.append(logits(model, one + other))
        with model.hooks(fwd_hooks=one), model.hooks(fwd_hooks=other):
            found.append(logits(model))
        with interp.models.running.running(model, [*one, *other]):
            found.append(logits(model))
    return found


ORDERS = {
    "ln": lambda model: hooks.scale_bias(model, "ln", 0.0),
    "ln of another factor": lambda model: hooks.scale_bias(model, "ln", 3.0),
    "residual": lambda model: hooks.ablate_dims(model, 2, [2, 5], where="residual"),
    "keys": lambda model: hooks.ablate_dims(model, 1, [2, 5], where="keys"),
    "adjust": lambda model: hooks.adjust_logits(model, PRIOR, 0.5),
    "prune": lambda model: hooks.prune_output_dims(model, [3, 5]),
}


@pytest.mark.parametrize("dims", [{"dims": [1, 2]}, {"dims": [1, 2], "basis": BASIS}], ids=["axes", "basis"])
@pytest.mark.parametrize("name", ORDERS)
def test_what_is_zero_in_the_input_of_the_unembedding_stays_zero(name, dims, model):
    if name == "prune" and "basis" in dims:
        pytest.skip("projections in different bases do not commute")
    prune, other = hooks.prune_output_dims(model, **dims), ORDERS[name](model)
    first, *others = in_three_ways(model, prune, other)
    for found in others:
        torch.testing.assert_close(found, first, atol=1e-6, rtol=0)
    edited = view(model).copied()  # with a matrix whose rows along these directions are zero
    W_U = view(edited).head().unscaled.double()
    removed = torch.from_numpy(dims.get("basis", np.eye(16))[dims["dims"]])
    seen: dict[str, torch.Tensor] = {}
    logits(model, other + hooks.capture(model, "head_input", seen))
    (h,) = seen.values()
    if name == "prune":
        h = h.index_fill(-1, torch.tensor([3, 5]), 0)
    h = h.double() - h.double() @ removed.T @ removed
    expected = h @ W_U - (0.5 * torch.from_numpy(PRIOR) if name == "adjust" else 0)
    torch.testing.assert_close(first.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_and_the_residual_stream_they_are_read_from(kind, backend, loaded):
    model = loaded[kind, backend]
    for layer in (0, 1):
        keys = hooks.ablate_dims(model, layer, [2, 5], where="keys", mode="mean", means=MEANS)
        resid = hooks.ablate_dims(model, layer, [5, 7], where="residual", mode="mean", means=MEANS[::-1].copy())
        first, *others = in_three_ways(model, keys, resid)
        for found in others:
            torch.testing.assert_close(found, first, atol=1e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_b_fc_and_the_residual_stream_it_is_added_to(backend, loaded):
    model = loaded["bert", backend]
    first, *others = in_three_ways(
        model, hooks.scale_bias(model, "fc", 0.0), hooks.ablate_dims(model, 2, [5, 7], where="residual")
    )
    for found in others:
        torch.testing.assert_close(found, first, atol=1e-6, rtol=0)


def test_of_two_recipes_for_a_dimension_of_the_keys_the_last_counts(model):
    zero = hooks.ablate_dims(model, 1, [2, 5], where="keys")
    mean = hooks.ablate_dims(model, 1, [5, 7], where="keys", mode="mean", means=MEANS)
    fill = np.where(np.arange(16) == 2, 0, MEANS)
    both = hooks.ablate_dims(model, 1, [2, 5, 7], where="keys", mode="mean", means=fill)
    torch.testing.assert_close(logits(model, zero + mean), logits(model, both), atol=1e-6, rtol=0)
    with pytest.raises(RuntimeError, match=naming("recipe")):
        logits(model, zero + zero)


class LowRank(torch.nn.Module):
    """`W + A B`, as a parametrisation."""

    def __init__(self, W):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shapes = (*W.shape[:-1], 2), (*W.shape[:-2], 2, W.shape[-1])
        self.A, self.B = (torch.nn.Parameter(0.5 * torch.randn(shape, generator=generator)) for shape in shapes)

    def forward(self, W):
        return W + self.A @ self.B


def is_hooked(model):
    return type(model).__name__ == "HookedTransformer"


def attach(model, pattern, parameters):
    """LoRA by peft on modules of the model that a bridge wraps, or on parameters of a HookedTransformer's blocks."""
    if is_hooked(model):
        for block, name in itertools.product(model.blocks, parameters):
            path, _, leaf = name.partition(".")
            module = getattr(block, path)
            parametrize.register_parametrization(module, leaf, LowRank(getattr(module, leaf)))
        return
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=2, lora_alpha=8, init_lora_weights=False, target_modules=pattern, fan_in_fan_out="c_fc" in pattern
    )
    peft.inject_adapter_in_model(config, model.original_model)


def merge(model):
    """Merge all adapters into the weights and remove them."""
    if is_hooked(model):
        for module in [module for module in model.modules() if parametrize.is_parametrized(module)]:
            for name in list(module.parametrizations):
                parametrize.remove_parametrizations(module, name)
        return
    from peft.tuners.lora import LoraLayer

    wrapped = model.original_model
    for name, module in [(name, one) for name, one in wrapped.named_modules() if isinstance(one, LoraLayer)]:
        module.merge()
        parent, _, leaf = name.rpartition(".")
        setattr(wrapped.get_submodule(parent), leaf, module.get_base_layer())


READ = {"keys": (r".*\.k\._original_component", ["attn.W_K"]), "queries": (r".*\.q\._original_component", ["attn.W_Q"])}


@pytest.mark.parametrize("where", ["keys", "queries"])
@torch.no_grad()
def test_adapters_on_what_a_recipe_reads(where, model):
    """Attached afterwards: refused. Attached before: exact, or refused. Merged: exact, whenever the recipe was made."""
    recipe, plain = RECIPES[where](model), logits(model)
    attach(model, *READ[where])
    adapted = logits(model)
    assert (adapted - plain).abs().max() > 0.05
    with pytest.raises(ValueError, match=naming("recipe", "modules")):
        logits(model, recipe)
    attached = None
    if is_hooked(model):
        attached = logits(model, RECIPES[where](model))
    else:
        with pytest.raises(ValueError, match=naming("GPT2LMHeadModel", "1e-03")):
            RECIPES[where](model)
    merge(model)
    torch.testing.assert_close(logits(model), adapted, atol=1e-5, rtol=0)
    expected = logits(model, RECIPES[where](model))
    assert (expected - adapted).abs().max() > 0.01
    torch.testing.assert_close(logits(model, recipe), expected, atol=1e-6, rtol=0)
    if attached is not None:
        torch.testing.assert_close(attached, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["scale ln", "keys", "residual", "prune", "adjust", "probe"])
@torch.no_grad()
def test_adapters_elsewhere(name, model):
    """On the MLPs, which no recipe reads: attached and merged adapters give the same."""
    recipe = RECIPES[name](model)
    attach(model, r".*\.c_fc\._original_component", ["mlp.W_in"])
    attached = logits(model, recipe)
    merge(model)
    torch.testing.assert_close(logits(model, recipe), attached, atol=1e-5, rtol=0)
    torch.testing.assert_close(logits(model, RECIPES[name](model)), attached, atol=1e-5, rtol=0)


def test_a_recipe_follows_a_training_step(model):
    """As one made after the step, and with the gradient of the parameter that it scales."""
    before = hooks.scale_bias(model, "ln", 0.0)
    randomise(model, seed=4)
    assert torch.equal(logits(model, before), logits(model, hooks.scale_bias(model, "ln", 0.0)))
    with model.hooks(fwd_hooks=before):
        model(TOKENS).square().sum().backward()
    bias = view(model).live_head().b_ln
    assert bias.grad is not None
    assert not bias.grad.any()
