"""What a `TransformerBridge` shows, what is refused, and that a user's own bridge works like a loaded one."""

import atexit
import contextlib
import gc
import io
import shutil
import tempfile
import warnings

import numpy as np
import pytest
import torch
import transformers
from bridge.answers import answer, assert_same, toy
from naming import naming
from toys import HF_MODELS, SIZES
from transformer_lens.model_bridge import TransformerBridge

import interp
from interp import attention, encoding, hooks
from interp.analyses.attention.patterns import AttentionByClass
from interp.corpora import batches
from interp.corpora.batching import Batch
from interp.models.head import prediction_head
from interp.models.identity import config_hash, weight_hash
from interp.models.qk import qk_circuit
from interp.models.running import active_hooks, head_is_hooked, running
from interp.models.sites import hook_name, is_encoder, view
from interp.models.verify import verify_scores
from interp.passes.reading import forward
from interp.testing import randomise, toy_tokenizer

KINDS = [kind for kind in HF_MODELS if kind != "qwen2"]
IDS = torch.from_numpy(np.random.default_rng(0).integers(7, 67, size=(8, 12)))


@pytest.fixture
def load_bridge(hf_directory):
    return lambda kind, **options: interp.load(hf_directory(kind), backend="bridge", **options)


def booted(kind, **how):
    """A bridge booted by hand, as a user would do it."""
    torch.manual_seed(0)
    hf = HF_MODELS[kind]().eval()
    randomise(hf)
    hf.config.architectures = [type(hf).__name__]
    hf.set_attn_implementation("eager")
    directory = tempfile.mkdtemp()  # the tokenizer is asked there how it begins a text
    atexit.register(shutil.rmtree, directory)
    with warnings.catch_warnings(action="ignore"):
        hf.config.save_pretrained(directory)
        toy_tokenizer().save_pretrained(directory)
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        bridge = TransformerBridge.boot_transformers(directory, hf_model=hf, tokenizer=tokenizer, device="cpu")
        if how.pop("compatible", False):
            with contextlib.redirect_stdout(io.StringIO()):
                bridge.enable_compatibility_mode(disable_warnings=True, **how)
    return bridge.eval()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_sites_show_what_they_say_or_are_refused(kind, load_bridge):
    """The softmax of the scores is the pattern, the queries are the rotated ones, and every site fires."""
    model = load_bridge(kind)
    seen, refused = {}, {}
    for site in ("attn_scores", "rotated_q"):
        try:
            recipe = hooks.capture(model, site, seen, layer=1)
        except ValueError as error:
            refused[site] = str(error)
            continue
        with running(
            model, [*recipe, *hooks.capture(model, "q", seen, layer=1)] + hooks.capture(model, "pattern", seen, layer=1)
        ):
            forward(model, Batch.of(IDS.tolist()))
        if site == "attn_scores":
            scores, pattern = seen[recipe[0][0]], seen[hook_name(model, "pattern", 1)]
            torch.testing.assert_close(scores.softmax(-1), pattern, atol=1e-5, rtol=0)
        else:
            q, rotated = seen[hook_name(model, "q", 1)], seen[recipe[0][0]]
            torch.testing.assert_close(qk_circuit(model, 1).rotate(q), rotated, atol=1e-5, rtol=0)
    assert ("attn_scores" in refused) == (kind in ("gpt_neo", "gptj", "opt", "bert"))
    assert ("rotated_q" in refused) == (kind not in ("llama", "mistral"))
    assert all("TransformerBridge" in why for why in refused.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_a_bridge_booted_by_hand_is_as_good(kind, load_bridge, tmp_path):
    loaded, own = interp.load(toy(kind, tmp_path / kind), backend="bridge"), booted(kind)
    assert weight_hash(loaded) == weight_hash(own)
    assert view(own).attention_path == "eager"
    assert (config_hash(loaded) == config_hash(own)) == (view(loaded).attention_path == "eager")
    for question in ("word_frequency", "attention_study", "token_probability", "states", "recipes"):
        assert_same(answer(question, own), answer(question, loaded), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox"])
def test_compatibility_mode(kind):
    plain, compatible = booted(kind), booted(kind, compatible=True, no_processing=True)
    for question in ("word_frequency", "attention_study", "token_probability", "recipes"):
        assert_same(answer(question, compatible), answer(question, plain), 1e-6)
    folded = booted(kind, compatible=True)
    with pytest.raises(ValueError, match=naming("layer norms", "weights")):
        qk_circuit(folded, 1)
    with pytest.raises(ValueError, match=naming("norm", "W_U")):
        encoding.fit(folded, IDS, progress=False)
    if kind != "llama":
        assert prediction_head(folded).folded
        assert_same(answer("word_frequency", folded)[:1], answer("word_frequency", plain)[:1], 1e-4)


def test_what_a_view_says_must_make_the_models_numbers(load_bridge):
    """A view of the head or of attention that does not reproduce the model's numbers is refused by name."""
    model = load_bridge("llama")
    fresh = booted("llama")
    fresh.original_model.config.logit_scale = 2.0
    with pytest.raises(ValueError, match=naming("head", "LlamaForCausalLM")):
        prediction_head(fresh)
    fresh = booted("gpt_neo")
    fresh.original_model.config.attention_layers = ["global", "global"]
    with pytest.raises(ValueError, match=naming("attention scores", "GPTNeoForCausalLM")):
        attention.score_contributions(fresh, IDS, key_classes={"odd": [9]}, progress=False)
    attention.attention_by_class(model, IDS, key_classes={"odd": [9]}, progress=False)


def test_a_bridge_that_was_not_checked_is_not_used_under_hooks():
    model = booted("gpt2")
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", lambda resid, hook: 2 * resid)]):
        assert active_hooks(model) == ["blocks.0.hook_in"]
        with pytest.raises(RuntimeError, match=naming("TransformerBridge", "hooks")):
            prediction_head(model)
    prediction_head(model)
    verify_scores(model)
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", lambda resid, hook: 2 * resid)]):
        qk_circuit(model, 0)


def test_a_training_bridge_stays_one():
    model = booted("gpt2")
    model.train()
    prediction_head(model)
    assert model.training
    assert model.original_model.transformer.training


def test_neurons_behind_a_norm_are_refused(tmp_path):
    """In Gemma, a norm follows the MLP, so a neuron does not simply add its row of W_out."""
    config = transformers.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=4, final_logit_softcapping=None)
    hf = transformers.Gemma2ForCausalLM(config)
    randomise(hf)
    hf.save_pretrained(tmp_path)
    model = interp.load(tmp_path)
    assert type(model).__name__ == "TransformerBridge"
    with pytest.raises(ValueError, match=naming("neuron", "Gemma2ForCausalLM")):
        encoding.frequency_neurons(model, IDS, unigram=np.ones(67, int), progress=False)


def test_a_mixture_of_experts_has_no_neurons(tmp_path):
    hf = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4)
    )
    randomise(hf)
    hf.save_pretrained(tmp_path)
    model = interp.load(tmp_path)
    with pytest.raises(ValueError, match=naming("mlp_post", "MLPs")):
        hook_name(model, "mlp_post", 0)


NO_ADAPTER = {
    "distilbert": ("DistilBertForMaskedLM", {"dim": 16, "n_heads": 4, "n_layers": 1, "hidden_dim": 32}),
    "electra": ("ElectraForMaskedLM", SIZES | {"embedding_size": 16}),
    "modernbert": ("ModernBertForMaskedLM", SIZES | {"pad_token_id": 0}),
    "deberta-v2": ("DebertaV2ForMaskedLM", SIZES),
    "mt5": ("MT5ForConditionalGeneration", {"d_model": 8, "d_ff": 8, "num_layers": 1, "num_heads": 2, "d_kv": 4}),
    "mbart": ("MBartForConditionalGeneration", {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1}),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
@pytest.mark.parametrize("kind", NO_ADAPTER)
def test_architectures_that_are_not_supported(kind, tmp_path):
    name, sizes = NO_ADAPTER[kind]
    cls = getattr(transformers, name)
    cls(cls.config_class(**({"vocab_size": 67} | sizes))).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=naming(kind)):
        interp.load(tmp_path)


def test_an_architecture_without_an_adapter(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 67}
    transformers.BioGptForCausalLM(transformers.BioGptConfig(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=naming("TransformerLens", "BioGptForCausalLM")):
        interp.load(tmp_path)


def test_unknown_backend(hf_directory, untyped):
    with pytest.raises(ValueError, match=naming("backend", "bridged", "hooked, bridge")):
        interp.load(hf_directory("gpt2"), backend="bridged")


def test_a_remote_bridge_is_refused():
    remote = type("RemoteBridge", (), {})()
    with pytest.raises(TypeError, match=naming("RemoteBridge")):
        view(remote)


def test_a_quantised_bridge_is_refused():
    model = booted("gpt2")
    model.original_model.config.quantization_config = {"load_in_4bit": True}
    with pytest.raises(ValueError, match=naming("TransformerBridge", "quantised")):
        prediction_head(model)


def test_another_vocabulary_is_refused(load_bridge):
    model = load_bridge("gpt2")
    model.tokenizer.add_tokens(["w99"])
    with pytest.raises(ValueError, match=naming("token id", 67)):
        list(batches(model, ["w1 w99 w2"] * 10))


def test_untrained(load_bridge):
    """Norms are 1, biases 0, matrices have SD .02, and there are no hooks."""
    model = load_bridge("llama")
    fresh = interp.models.untrained(model)
    assert bool((fresh.ln_final.weight == 1).all())
    assert float(fresh.blocks[1].mlp.W_in.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert weight_hash(fresh) != weight_hash(model)
    bias = interp.models.untrained(load_bridge("gpt2"))
    assert not bool(bias.ln_final.bias.any())


def test_half_precision(load_bridge):
    model = load_bridge("llama", dtype="bfloat16")
    assert model.W_U.dtype == torch.bfloat16
    single = load_bridge("llama")
    classes = {"key_classes": {"odd": range(7, 67, 2)}, "progress": False}
    half, whole = (attention.attention_by_class(one, IDS, **classes) for one in (model, single))
    np.testing.assert_allclose(half["sum"], whole["sum"], atol=0.05)


def test_encoders_are_recognised(load_bridge):
    assert is_encoder(load_bridge("bert"))
    assert not is_encoder(load_bridge("opt"))


@pytest.mark.parametrize("config", [None, transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=4)])
def test_toys_and_their_checks(config):
    """Recipes and observers pass the checks of `interp.testing` on bridges."""
    model = interp.testing.toy_bridge(config)

    def pruned(copy):
        copy.original_model.lm_head.weight = torch.nn.Parameter(copy.W_U.detach().T.clone())
        copy.original_model.lm_head.weight[:, [0, 3]] = 0

    interp.testing.assert_recipe(model, hooks.prune_output_dims(model, [0, 3]), pruned)
    texts = ["w1 w2 w0", "w4 w5", "w6 w7 w8 w9"]
    classes = interp.corpora.token_classes(model, {"first": [7, 8]})
    interp.testing.assert_observer_merges(lambda one: AttentionByClass(one, classes), model, texts)


def test_a_copy_works_without_its_original(load_bridge):
    model = load_bridge("gpt2")
    before = model(IDS).detach()
    copied, fresh = view(model).copied(), interp.models.untrained(model)
    del model
    gc.collect()
    torch.testing.assert_close(copied(IDS).detach(), before)
    assert torch.isfinite(fresh(IDS)).all()


def test_later_positions_that_are_treated_differently():
    """Chunks of 20 positions, and queries rescaled after 18, are refused, although 16 positions do not show them."""
    rope = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "llama_4_scaling_beta": 0.5,
        "original_max_position_embeddings": 18,
    }
    sizes = SIZES | {"num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64}
    model = interp.testing.toy_bridge(transformers.Ministral3Config(**sizes, rope_parameters=rope))
    with pytest.raises(ValueError, match=naming("queries", "position")):
        qk_circuit(model, 0)
    model = interp.testing.toy_bridge(
        transformers.Llama4TextConfig(
            **sizes, intermediate_size_mlp=64, attention_chunk_size=20, use_qk_norm=False, no_rope_layers=[0, 0],
            layer_types=["chunked_attention", "full_attention"], attn_temperature_tuning=False, num_local_experts=2,
        )
    )  # fmt: skip
    with pytest.raises(ValueError, match=naming("chunked_attention")):
        attention.attention_by_class(model, IDS, key_classes={"odd": [9]}, progress=False)


def test_values_behind_a_norm_have_no_norm_weighted_attention(load_bridge):
    sizes = SIZES | {"num_key_value_heads": 2}
    model = interp.testing.toy_bridge(transformers.BitNetConfig(**sizes))
    table = attention.attention_by_class(model, IDS, key_classes={"odd": [9]}, progress=False)
    assert table["norm_weighted"].isna().all()
    assert table["sum"].notna().all()


def test_frequencies_of_rope_stay_in_single_precision(load_bridge):
    model = load_bridge("llama", dtype="bfloat16")
    buffers = {name: buffer.dtype for name, buffer in model.original_model.named_buffers() if "inv_freq" in name}
    assert buffers
    assert set(buffers.values()) == {torch.float32}


def test_adapters_are_another_model():
    peft = pytest.importorskip("peft")
    model = interp.testing.toy_bridge()
    before = weight_hash(model)
    qk_circuit(model, 0)
    adapters = peft.LoraConfig(r=2, target_modules=r".*\.k\._original_component", init_lora_weights=False)
    peft.inject_adapter_in_model(adapters, model.original_model)
    assert weight_hash(model) != before
    with pytest.raises(ValueError, match=naming("attention scores")):
        qk_circuit(model, 0)


def test_a_gate_bias_counts():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, mlp_bias=True)
    model = interp.testing.toy_bridge(config)
    before = weight_hash(model)
    model.blocks[0].mlp.b_gate.data[0] += 1
    assert weight_hash(model) != before


def test_a_training_bridge_is_not_read():
    """Dropout would draw other numbers each time, so nothing is read; recipes can still be made."""
    model = booted("gpt2")
    model.original_model.transformer.h[0].eval()
    model.train()
    frozen = model.original_model.transformer.h[0].eval()
    hooks.scale_bias(model, "ln", 0.5)
    assert model.training
    assert not frozen.training
    with pytest.raises(RuntimeError, match=naming("model.eval")):
        attention.attention_by_class(model, IDS, key_classes={"odd": [9]}, progress=False)


def test_attention_that_shows_no_pattern():
    model = booted("opt")
    model.original_model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match=naming("set_attn_implementation")):
        attention.attention_by_class(model, IDS, key_classes={"odd": [9]}, progress=False)


def test_hook_points_by_a_function_of_their_usual_names(load_bridge):
    model, seen = load_bridge("gpt2"), []
    with running(model, [(lambda name: name.endswith("hook_resid_post"), lambda resid, hook: seen.append(1))]):
        forward(model, Batch.of(IDS.tolist()))
    assert len(seen) == 2


def test_hooks_on_the_logits_in_compatibility_mode():
    model = booted("bert", compatible=True, no_processing=True)
    prediction_head(model)
    with model.hooks(fwd_hooks=hooks.scale_bias(model, "last", 0.0)):
        assert head_is_hooked(model)
