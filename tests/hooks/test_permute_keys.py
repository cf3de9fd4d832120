"""Keys permuted by the recipe against plain transformers whose key projections are permuted, in float64."""

import pytest
import torch
import transformers

import interp
from interp import hooks
from interp.testing import toy_decoder, toy_encoder

TOKENS = torch.randint(7, 67, (3, 11), generator=torch.Generator().manual_seed(0))
ORDER = torch.stack([torch.randperm(11, generator=torch.Generator().manual_seed(i)) for i in range(3)])


def permuted(output, order):
    """The projections of a row's tokens at other positions."""
    return torch.stack([row[places] for row, places in zip(output, order, strict=True)])


@torch.no_grad()
def plainly(directory, kind, order, layers=(0, 1)):
    """The logits of transformers, in which a hook permutes what the key projection of some blocks returns: for GPT-2
    after learnt positions, for Llama before RoPE, where two query heads share each key."""
    cls = transformers.BertForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    model = cls.from_pretrained(directory, dtype=torch.float64).eval()
    for layer in layers:
        if kind == "gpt2":

            def move(module, given, output):
                q, k, v = output.split(16, dim=2)
                return torch.cat([q, permuted(k, order), v], 2)

            model.transformer.h[layer].attn.c_attn.register_forward_hook(move)
            continue
        if kind == "bert":
            projection = model.bert.encoder.layer[layer].attention.self.key
        else:
            projection = model.model.layers[layer].self_attn.k_proj
        projection.register_forward_hook(lambda module, given, output: permuted(output, order))
    return model(TOKENS).logits


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_logits_are_those_of_permuted_projections(kind, backend, hf_directory):
    model = interp.load(hf_directory(kind), backend=backend, dtype=torch.float64)
    for order, layers in ((ORDER, None), (ORDER[0].expand(3, -1), [1])):
        expected = plainly(hf_directory(kind), kind, order, layers or (0, 1))
        given = order if layers is None else ORDER[0]
        with torch.no_grad(), model.hooks(fwd_hooks=hooks.permute_keys(model, given, layers=layers)):
            logits = model(TOKENS)
        digits = 1e-5 if (kind, backend) == ("llama", "hooked") else 1e-9  # TransformerLens rotates in float32
        torch.testing.assert_close(logits.log_softmax(-1), expected.log_softmax(-1), atol=digits, rtol=0)
        assert (expected - plainly(hf_directory(kind), kind, torch.arange(11).expand(3, -1))).abs().max() > 1e-3


def test_the_identity_changes_nothing():
    for model in (toy_decoder(), toy_encoder()):
        with torch.no_grad(), model.hooks(fwd_hooks=hooks.permute_keys(model, range(11))):
            logits = model(TOKENS)
        assert torch.equal(logits, model(TOKENS))


def test_it_composes_with_an_ablation_of_keys_in_any_order(load_toy):
    model = load_toy("gpt2", dtype=torch.float64)
    recipes = hooks.permute_keys(model, ORDER), hooks.ablate_dims(model, 1, [2, 5], where="keys")
    one, other = (model.run_with_hooks(TOKENS, fwd_hooks=first + second) for first, second in (recipes, recipes[::-1]))
    torch.testing.assert_close(one, other, atol=1e-10, rtol=0)
    assert (one - model.run_with_hooks(TOKENS, fwd_hooks=recipes[0])).abs().max() > 1e-3


def test_two_permutations_follow_one_another(load_toy):
    model = load_toy("gpt2", dtype=torch.float64)
    first, second = ORDER[0], ORDER[1]
    twice = hooks.permute_keys(model, first) + hooks.permute_keys(model, second)
    once = hooks.permute_keys(model, first[second])
    torch.testing.assert_close(
        model.run_with_hooks(TOKENS, fwd_hooks=twice), model.run_with_hooks(TOKENS, fwd_hooks=once), atol=1e-12, rtol=0
    )


def test_gradients_flow_to_the_key_that_was_moved(load_toy):
    model = load_toy("gpt2", dtype=torch.float64)
    weight = model.blocks[1].attn.W_K

    def value():
        with model.hooks(fwd_hooks=hooks.permute_keys(model, ORDER)):
            return model(TOKENS)[:, -1, 9].sum()

    value().backward()
    gradient, step = weight.grad[2, 3, 1].item(), 1e-5
    with torch.no_grad():
        weight[2, 3, 1] += step
        above = value().item()
        weight[2, 3, 1] -= 2 * step
        below = value().item()
    assert gradient == pytest.approx((above - below) / (2 * step), rel=1e-5)


@pytest.mark.parametrize(
    ("order", "error"),
    [([0, 0, 2], ValueError), ([1, 2, 3], ValueError), (torch.tensor(0), ValueError), ([True, False], TypeError),
     (torch.tensor([0.0, 1.0]), TypeError), (torch.zeros(1, 1, 1, dtype=torch.int64), ValueError)],
)  # fmt: skip
def test_what_is_no_permutation_is_refused(order, error):
    with pytest.raises(error, match="permutation must"):
        hooks.permute_keys(toy_decoder(), order)


@pytest.mark.parametrize("order", [range(10), ORDER[:2]])
def test_rows_that_it_cannot_order_are_refused(order):
    model = toy_decoder()
    with model.hooks(fwd_hooks=hooks.permute_keys(model, order)), pytest.raises(ValueError, match="cannot order 3 row"):
        model(TOKENS)
