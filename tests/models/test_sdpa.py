"""Attention without arrays of queries × keys equals what the pattern gives, and none is made unless it is read."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toys import D_VOCAB, HF_MODELS

import interp
from interp import attention, corpora
from interp.analyses.attention.ablation import KeyAblation
from interp.analyses.attention.patterns import AttentionByClass
from interp.instruments.profile import DimensionCorrelations, DimensionProfile
from interp.instruments.scores import ScoreContributions
from interp.models.running import running
from interp.models.sites import hook_name, view
from interp.passes.reading import observe
from interp.results.result import provenance
from interp.testing import toy_decoder

BOTH = ("hooked", "bridge")
TOKENS = torch.randint(D_VOCAB, (3, 20), generator=torch.Generator().manual_seed(0))
CLASSES = {"first": [7, 8], "second": [9, 10, 11]}


class Largest(TorchDispatchMode):
    """A context that records the size of the largest tensor made in it."""

    most = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        made = function(*arguments, **named or {})
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor):
                self.most = max(self.most, one.untyped_storage().nbytes() // max(one.element_size(), 1))
        return made


def untouched(model):
    """Hooks that read every pattern and change none."""
    return [(hook_name(model, "pattern", layer), lambda pattern, hook: None) for layer in range(model.cfg.n_layers)]


@pytest.mark.quick("gpt2-hooked", "llama-bridge")
@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("kind", list(HF_MODELS))
def test_both_paths_are_one_function(kind, backend, hf_directory):
    model = interp.load(hf_directory(kind), backend=backend)
    plain, read = {}, {}
    names = [hook_name(model, site, 1) for site in ("q", "k", "v", "z", "resid_post")]
    for found, more in ((plain, []), (read, untouched(model))):
        keep = [(name, lambda value, hook, name=name, found=found: found.update({name: value})) for name in names]
        with model.hooks(fwd_hooks=[*keep, *more]):
            found["logits"] = model(TOKENS)
    for name, value in read.items():
        torch.testing.assert_close(plain[name], value, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.quick("llama-hooked")
@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_gradients(kind, backend, hf_directory):
    model = interp.load(hf_directory(kind), backend=backend)
    gradients = []
    for recipe in ([], untouched(model)):
        with model.hooks(fwd_hooks=recipe):
            model.zero_grad()
            model(TOKENS).log_softmax(-1)[..., 3].sum().backward()
        gradients.append([one.grad.clone() for one in model.parameters() if one.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_an_edited_pattern_counts(load_toy):
    model = load_toy("gpt2")
    name = hook_name(model, "pattern", 0)
    with model.hooks(fwd_hooks=[(name, lambda pattern, hook: torch.zeros_like(pattern))]):
        edited = model(TOKENS)
        found = attention.attention_by_class(model, TOKENS, key_classes={"low": [*range(20)]}, progress=False)
    assert (edited - model(TOKENS)).abs().max() > 0.01
    assert found.loc[found["layer"] == 0, "sum"].eq(0).all()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BOTH)
def test_provenance_says_how_attention_ran(backend, hf_directory):
    assert provenance(interp.load(hf_directory("gpt2"), backend=backend), {})["attention"] == "sdpa"
    assert view(interp.load(hf_directory("bert"), backend="bridge")).attention_path == "eager"


def observers(model):
    classes = corpora.token_classes(model, CLASSES)
    log_u = torch.rand(D_VOCAB, generator=torch.Generator().manual_seed(0)).log()
    fills = {layer: {1: 0.2, 3: -0.1} for layer in range(model.cfg.n_layers)}
    return {
        "by class": AttentionByClass(model, classes),
        "correlations": DimensionCorrelations(model, log_u),
        "contributions": ScoreContributions(model, classes),
        "weighted": ScoreContributions(model, classes, weights="attention", average="sentence"),
        "profile": DimensionProfile(model, classes),
        "ablation": KeyAblation(model, classes, fills),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "gpt_neo", "llama", "bert"])
def test_sums_over_parts_of_the_queries_are_sums_over_the_pattern(kind, load_toy):
    model = load_toy(kind)
    texts = corpora.batches(model, ["w1 w2 w3 w4 w5 w6 w7", "w2 w3", "w4 w5 w6"] * 3, layout="texts", batch_size=3)
    ours, theirs = observers(model), observers(model)
    del theirs["ablation"]
    observe(model, texts, *ours.values(), progress=False)
    with running(model, untouched(model)):
        observe(model, texts, *theirs.values(), progress=False)
    for name, one in theirs.items():
        for state, value in one.state.items():
            near = 2e-6 * max(1.0, float(value.abs().max()))
            np.testing.assert_allclose(ours[name].state[state], value, atol=near, rtol=1e-5, err_msg=f"{name} {state}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["by class", "correlations", "contributions", "weighted", "profile", "ablation"])
def test_memory_does_not_grow_with_the_square_of_the_context(name):
    model = toy_decoder(n_positions=2_048)
    tokens = torch.randint(D_VOCAB, (1, 2_048), generator=torch.Generator().manual_seed(0))
    batches = corpora.batches(model, tokens)
    with Largest() as largest:
        observe(model, batches, observers(model)[name], progress=False)
    assert largest.most <= 2**22 < model.cfg.n_heads * 2_048**2 / 2
    with Largest() as largest, torch.no_grad():
        model(tokens)
    assert largest.most <= 2_048 * D_VOCAB
