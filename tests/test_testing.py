"""`interp.testing`: what it accepts, that each mistake fails and is named, and that its page runs as written."""

import re

import pytest
import torch
import transformers
from naming import naming
from toys import ROOT

from interp.corpora import token_classes
from interp.corpora.sentences import encode
from interp.corpora.unigrams import tokenizer_hash
from interp.hooks import ablate_dims, prune_output_dims, scale_bias
from interp.instruments.profile import DimensionProfile
from interp.models.sites import hook_name
from interp.passes.observers import Observer
from interp.testing import (
    WORDS,
    assert_observer_merges,
    assert_recipe,
    toy_bridge,
    toy_decoder,
    toy_encoder,
    toy_tokenizer,
)

TEXTS = [" ".join(WORDS[start : start + 1 + start % 7]) for start in range(0, 50, 4)]
PAGE = (ROOT / "docs/testing.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def decoder():
    return toy_decoder()


@pytest.fixture(scope="module")
def encoder():
    return toy_encoder()


@pytest.mark.slow
def test_toys_are_random_and_alike(decoder, encoder):
    for model in (decoder, encoder):
        constant = {name.partition(".")[0] for name, parameter in model.named_parameters() if parameter.std() < 0.1}
        assert constant <= {"unembed", "pooler", "nsp_head"}, "which these models do not have"
        assert (model.cfg.d_model, model.cfg.n_layers, model.cfg.n_ctx, model.cfg.d_vocab) == (16, 2, 24, 67)
    again, other = toy_decoder(), toy_decoder(seed=1)
    assert torch.equal(decoder.W_E, again.W_E)
    assert not torch.allclose(decoder.W_E, other.W_E)
    assert toy_decoder(n_embd=32, n_layer=1).cfg.d_model == 32
    assert toy_encoder(dtype=torch.float64).W_E.dtype == torch.float64


def test_recipes_of_interp_are_edits(decoder, encoder):
    def without_keys(copy):
        copy.blocks[1].attn.b_K += 0
        rows = copy.blocks[1].attn.W_K[:, [2, 5]]
        copy.blocks[1].attn.b_K -= torch.einsum("j,hje->he", copy.blocks[1].ln1.b[[2, 5]], rows)
        copy.blocks[1].attn.W_K[:, [2, 5]] = 0
        copy.blocks[1].attn.b_K += torch.einsum("j,hje->he", copy.blocks[1].ln1.b[[2, 5]], rows)

    def pruned(copy):
        copy.unembed.W_U = torch.nn.Parameter(copy.W_U.clone())
        copy.unembed.W_U[[0, 3]] = 0

    assert_recipe(decoder, scale_bias(decoder, "ln", 0.3), lambda copy: copy.ln_final.b.mul_(0.3))
    assert_recipe(decoder, prune_output_dims(decoder, [0, 3]), pruned)
    assert_recipe(decoder, ablate_dims(decoder, 1, [2, 5], where="keys"), without_keys)
    assert_recipe(encoder, scale_bias(encoder, "fc", 0.3), lambda copy: copy.mlm_head.b.mul_(0.3))
    assert_recipe(encoder, scale_bias(encoder, "last", 0.3), lambda copy: copy.unembed.b_U.mul_(0.3))


def _leaking(model):
    def leak(x, hook):
        model.add_hook("unembed.hook_out", lambda logits, hook: None)
        return 0.5 * x

    return [(hook_name(model, "head_input"), leak)]


def _editing(model):
    def edit(x, hook):
        model.ln_final.b.data *= 0.5

    return [(hook_name(model, "head_norm"), edit)]


def _in_batches_alone(model):
    """A recipe that is right in a batch of several rows, but has no effect on a single row."""
    [(name, halve)] = scale_bias(model, "ln", 0.5)
    return [(name, lambda x, hook: halve(x, hook) if len(x) > 1 else x)]


HALVED = lambda copy: copy.ln_final.b.mul_(0.5)  # noqa: E731


@pytest.mark.quick("changes nothing")
@pytest.mark.parametrize(
    ("recipe", "edited", "values"),
    [
        pytest.param(
            lambda model: [("ln_final.hook_normalized", lambda x, hook: x)],
            HALVED,
            ("recipe",),
            id="recipe changes nothing",
        ),
        pytest.param(
            lambda model: scale_bias(model, "ln", 0.5),
            lambda copy: None,
            ("edit", "parameters"),
            id="edit changes nothing",
        ),
        (
            lambda model: scale_bias(model, "ln", 0.6),
            HALVED,
            ("parameters", "log-probability", "token"),
        ),
        (_leaking, HALVED, ("hooks",)),
        (_editing, HALVED, ("weights",)),
    ],
)
def test_wrong_recipes_are_named(recipe, edited, values):
    model = toy_decoder()
    with pytest.raises(AssertionError, match=naming(*values)):
        assert_recipe(model, recipe(model), edited)


def test_an_edit_of_the_model_itself():
    model = toy_decoder()
    with pytest.raises(AssertionError, match=naming("edit", "edited")):
        assert_recipe(model, scale_bias(model, "ln", 0.5), lambda copy: model.ln_final.b.mul_(0.5))


def test_a_hook_point_that_is_not_there(decoder):
    with pytest.raises(ValueError, match=naming("blocks.0.hook_zz", "model.hook_dict")):
        assert_recipe(decoder, [("blocks.0.hook_zz", lambda x, hook: x)], HALVED)


def test_sizes_of_other_names_are_refused():
    with pytest.raises(TypeError, match=naming("GPT2Config", "d_model", "n_positions")):
        toy_decoder(d_model=32)
    with pytest.raises(TypeError, match=naming("BertConfig", "n_embd", "hidden_size")):
        toy_encoder(n_embd=32)


def test_a_recipe_that_composes_wrongly(decoder):
    """A recipe that keeps what it saw without the other recipe."""
    seen = []

    def once(x, hook):
        seen.append(x)
        return seen[0] if x.shape == seen[0].shape else x

    recipe = scale_bias(decoder, "ln", 0.5) + [(hook_name(decoder, "head_norm"), once)]
    with pytest.raises(AssertionError, match=naming("1.5 × the embeddings", "log-probability", 33)):
        assert_recipe(decoder, recipe, HALVED)


def test_a_recipe_that_depends_on_the_batch(decoder):
    with pytest.raises(AssertionError, match=naming("rows", "padding", "log-probability")):
        assert_recipe(decoder, _in_batches_alone(decoder), HALVED)


class Mean(Observer):
    """An observer that adds up the means of batches if `wrong`; if `differs`, no two are alike."""

    made = 0

    def __init__(self, model, wrong=False, differs=False, silent=False):
        Mean.made += 1
        super().__init__(model.W_U.device, **({"number": Mean.made} if differs else {}))
        self.site, self.wrong, self.silent = hook_name(model, "resid_post", 1), wrong, silent
        self.add_state("mean", (model.cfg.d_model,))

    def hooks(self, batch):
        def read(resid, hook):
            chosen = batch.select(resid)
            self.add("mean", chosen.mean(0) if self.wrong else chosen.sum(0))

        return [] if self.silent else [(self.site, read)]


class Last(Mean):
    """An observer that keeps only the last batch."""

    def commit(self):
        self.state["mean"] = self._scratch["mean"]
        self.discard()


@pytest.mark.slow
def test_observers_that_merge(decoder, encoder):
    assert_observer_merges(Mean, decoder, TEXTS)
    assert_observer_merges(Mean, encoder, TEXTS)
    classes = token_classes(decoder, {"first": [7, 8, 9]})
    assert_observer_merges(lambda model: DimensionProfile(model, classes), decoder, TEXTS)


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (
            lambda model: Mean(model, wrong=True),
            ("state 'mean'", "sum"),
        ),
        (Last, ("state 'mean'",)),
        (lambda model: Mean(model, differs=True), ("observers", "number", "8, here 7")),
        (lambda model: Mean(model, silent=True), ("hooks(batch)",)),
    ],
)
def test_observers_that_do_not_merge(make, values, decoder):
    with pytest.raises(AssertionError, match=naming(*values)):
        assert_observer_merges(make, decoder, TEXTS)


@pytest.mark.parametrize("texts", [TEXTS[:2], ["w1 w2", "w3 w4", "w5 w6", "w7 w8"]])
def test_texts_that_would_show_nothing(texts, decoder):
    with pytest.raises(ValueError, match=naming("texts", 3, [len(text.split()) for text in texts])):
        assert_observer_merges(Mean, decoder, texts)


def test_a_state_that_was_not_declared(decoder):
    with pytest.raises(ValueError, match=naming("state", "'maen'", "mean")):
        Mean(decoder).add("maen", 1.0)


@pytest.mark.slow
def test_the_page():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "docs/testing.md", "exec"), names)
    for name in ("test_without_positions", "test_largest_residual_merges", "test_largest_residual_is_the_largest"):
        names[name]()


@pytest.mark.parametrize("kind", ["Qwen2Config", "LlamaConfig"])
def test_every_architecture_reads_the_words(kind):
    """transformers gives a Qwen2 a tokenizer class that knows no words, whatever was saved with it."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = toy_bridge(getattr(transformers, kind)(vocab_size=67, num_key_value_heads=2, **sizes))
    toy, texts = toy_tokenizer(), [" ".join(WORDS), "W1 W2 nothing"]
    assert encode(model.tokenizer, texts) == encode(toy, texts)
    assert model.tokenizer.decode([7, 8]) == "w0 w1"
    assert tokenizer_hash(model.tokenizer) == tokenizer_hash(toy_decoder().tokenizer)
