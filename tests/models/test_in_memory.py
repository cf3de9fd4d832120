"""A model of transformers in memory: every public function answers as for the saved model and leaves it as it was."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import peft
import pytest
import torch
import transformers
from accelerate import cpu_offload
from bridge.test_seq2seq import KINDS as ENCODER_DECODERS
from naming import naming
from test_matrix import ANALYSES, NO_LN, Subject, tables_of
from toys import D_VOCAB, HF_MODELS

import interp
from interp.models import as_model
from interp.models.identity import origin, weight_hash
from interp.models.sites import view
from interp.testing import randomise, toy_tokenizer

RMS = {"hooks.scale_bias": NO_LN}
IDS = torch.arange(7, 19)[None]
SLOW = ("study", "frequency_neurons")
"""Endings of functions that take seconds: for one kind only, because they ask what the others ask."""
FUNCTIONS = [name for name in ANALYSES if name != "report.report"]  # which asks the others
CELLS: list[Any] = [(kind, name) for kind in ("gpt2", "llama") for name in FUNCTIONS if not name.endswith(SLOW)]
CELLS += [pytest.param("gpt2", name, marks=pytest.mark.slow) for name in FUNCTIONS if name.endswith(SLOW)]


def made(kind: str) -> Any:
    """A random model in training mode, one of whose weights is frozen."""
    torch.manual_seed(0)
    model = HF_MODELS[kind]().train()
    randomise(model)
    next(model.parameters()).requires_grad_(False)
    return model


def state(model: Any) -> dict[str, Any]:
    """Everything of a model that interp must leave as it is, and its logits in eval mode."""
    found: dict[str, Any] = {"settings": repr(model.config.to_dict()), "kernel": model.config._attn_implementation}
    for name, one in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        where = id(one), one.data_ptr(), one.dtype, one.device
        found[name] = (*where, one._version, one.requires_grad, one.grad)
    for name, one in model.named_modules():
        hooks = len(one._forward_hooks) + len(one._forward_pre_hooks)
        found[f"{name}, the module"] = id(one), one.training, hooks, sorted(vars(one))
    with torch.no_grad():
        found["logits"] = copy.deepcopy(model).eval()(IDS.to(model.device)).logits.cpu().numpy().tobytes()
    return found


def assert_unchanged(model: Any, before: dict[str, Any]) -> None:
    after = state(model)
    assert not [name for name in after.keys() | before.keys() if after.get(name) != before.get(name)]


class Both:
    """The subjects of one kind: the model in memory, and the same model saved and loaded."""

    def __init__(self, kind: str, directory: Any, texts: list[str]) -> None:
        self.hf = made(kind)
        self.before = state(self.hf)
        self.in_memory = Subject(as_model(self.hf, toy_tokenizer()), texts)
        made(kind).save_pretrained(directory)  # which changes the config of a model
        toy_tokenizer().save_pretrained(directory)
        self.loaded = Subject(interp.load(directory, backend="bridge"), texts)


@pytest.fixture(scope="module")
def subjects() -> dict[str, Both]:
    return {}


@pytest.fixture
def both(request: Any, subjects: dict[str, Both], tmp_path: Any, texts: list[str]) -> Both:
    if request.param not in subjects:
        subjects[request.param] = Both(request.param, tmp_path, texts)
    return subjects[request.param]


def assert_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(found, torch.Tensor | np.ndarray):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
    for name, table in tables_of(expected).items():
        pd.testing.assert_frame_equal(tables_of(found)[name], table, rtol=1e-6)


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize(("both", "analysis"), CELLS, indirect=["both"])
def test_every_function(both: Both, analysis: str) -> None:
    if both.hf.config.model_type == "llama" and analysis in RMS:
        with pytest.raises(ValueError, match=naming(*RMS[analysis])):
            ANALYSES[analysis](both.in_memory)
    else:
        assert_equal(ANALYSES[analysis](both.in_memory), ANALYSES[analysis](both.loaded))
    assert_unchanged(both.hf, both.before)


@pytest.mark.e2e
@pytest.mark.parametrize("both", ["gpt2"], indirect=True)
@pytest.mark.parametrize("analysis", FUNCTIONS)
def test_every_function_says_how_to_take_it(both: Both, analysis: str) -> None:
    subject = copy.copy(both.in_memory)
    subject._made = {name: getattr(subject, name) for name in ("fit", "probe") if name != analysis.split(".")[-1]}
    subject.model = both.hf
    with pytest.raises(TypeError, match=naming("interp.models.as_model(model, tokenizer)")):
        ANALYSES[analysis](subject)


def changed(edit: Any, kind: str = "gpt2") -> Any:
    model = made(kind)
    edit(model)
    return model


def adapted() -> Any:
    return peft.get_peft_model(made("llama"), peft.LoraConfig(r=2, target_modules=["q_proj"]))


def with_adapter(model: Any) -> None:
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]))


def quantised(model: Any) -> None:
    model.is_quantized = True


def encoder_decoder() -> Any:
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": D_VOCAB}
    return transformers.MBartForConditionalGeneration(transformers.MBartConfig(**sizes))


REFUSED: dict[str, tuple[type[Exception], str, Any]] = {
    "a name": (TypeError, ("str", "interp.load"), str),
    "a loaded model": (TypeError, ("TransformerBridge", "interp.load"), interp.testing.toy_bridge),
    "without its head": (
        TypeError,
        ("GPT2LMHeadModel", "GPT2Model"),
        lambda: made("gpt2").transformer,
    ),
    "another head": (
        TypeError,
        ("GPT2LMHeadModel", "GPT2ForSequenceClassification"),
        lambda: transformers.GPT2ForSequenceClassification(made("gpt2").config),
    ),
    "an encoder-decoder": (
        TypeError,
        ("BART", "T5", "MBartForConditionalGeneration"),
        encoder_decoder,
    ),
    "without an adapter": (
        ValueError,
        ("TransformerLens", "BioGptForCausalLM"),
        lambda: transformers.BioGptForCausalLM(
            transformers.BioGptConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=D_VOCAB)
        ),
    ),
    "of PEFT": (TypeError, ("PeftModel", "model.merge_and_unload()"), adapted),
    "with an adapter": (
        ValueError,
        ("LlamaForCausalLM", "model.layers.0.self_attn.q_proj"),
        lambda: changed(with_adapter, "llama"),
    ),
    "in 4 bits": (ValueError, ("GPT2LMHeadModel", "quantised"), lambda: changed(quantised)),
    "offloaded": (
        ValueError,
        ("GPT2LMHeadModel", "accelerate", "device_map"),
        lambda: cpu_offload(made("gpt2")),
    ),
    "on meta": (ValueError, ("GPT2LMHeadModel", "meta"), lambda: made("gpt2").to("meta")),
    "on two devices": (
        ValueError,
        ("GPT2LMHeadModel", "meta"),
        lambda: changed(lambda model: model.lm_head.to("meta")),
    ),
    "of two types": (
        ValueError,
        ("GPT2LMHeadModel", "bfloat16", "float32"),
        lambda: changed(lambda model: model.transformer.h[0].to(torch.bfloat16)),
    ),
    "with a hook": (
        ValueError,
        ("GPT2LMHeadModel", "transformer.h.0"),
        lambda: changed(lambda model: model.transformer.h[0].register_forward_hook(lambda *given: None)),
    ),
    "with another module": (
        ValueError,
        ("GPT2LMHeadModel", "transformer.h.0.mlp.act"),
        lambda: changed(lambda model: setattr(model.transformer.h[0].mlp, "act", torch.nn.ReLU())),
    ),
    "with NaN": (
        ValueError,
        ("transformer.h.1.attn.c_attn.bias", "NaN"),
        lambda: changed(lambda model: model.transformer.h[1].attn.c_attn.bias.data.fill_(torch.nan)),
    ),
}
if "t5" not in ENCODER_DECODERS:
    t5 = transformers.T5Config(vocab_size=D_VOCAB, d_model=16, d_ff=32, num_layers=2, num_heads=4, d_kv=4)
    REFUSED["T5"] = (
        ValueError,
        ("TransformerLens", "T5ForConditionalGeneration"),
        lambda: transformers.T5ForConditionalGeneration(t5),
    )


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str) -> None:
    error, values, make = REFUSED[kind]
    with pytest.raises(error, match=naming(*values)):
        as_model(make())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled() -> None:
    """A compiled module is refused; one that calls compiled code itself is read as it was before."""
    with pytest.raises(TypeError, match=naming("torch.compile", "model._orig_mod")):
        as_model(torch.compile(made("gpt2"), backend="eager"))
    hf = made("gpt2").eval()
    hf.compile(backend="eager")
    torch.testing.assert_close(as_model(hf)(IDS), hf(IDS).logits, atol=1e-4, rtol=0)


def test_what_is_done_to_the_bridge_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the last check or in a hook, gradients, and another dtype."""
    hf = made("gpt2")
    before, drawn = state(hf), torch.get_rng_state()
    with monkeypatch.context() as patch:
        patch.setattr("interp.models.loading.assembly.PARITY_TOLERANCE", 0.0)
        with pytest.raises(ValueError, match=naming("GPT2LMHeadModel", "log-probabilities")):
            as_model(hf, toy_tokenizer())
    model = as_model(hf, toy_tokenizer())
    assert torch.equal(torch.get_rng_state(), drawn)
    with pytest.raises(ZeroDivisionError), model.hooks(fwd_hooks=[("unembed.hook_out", lambda *given, hook: 1 / 0)]):
        model(IDS)
    model(IDS).sum().backward()
    view(model).to(torch.float64)
    assert model(IDS).dtype == torch.float64
    assert_unchanged(hf, before)


def test_the_bias_of_a_bart() -> None:
    """TransformerLens adds it to the unembedding and sets it to zero in the model that it wraps."""
    sizes = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    hf = transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=D_VOCAB, **sizes, **heads))
    torch.nn.init.normal_(hf.final_logits_bias)
    before = hf.final_logits_bias.clone()
    with pytest.warns(UserWarning, match="all weights were copied"):
        bias = as_model(hf).b_U
    assert torch.equal(hf.final_logits_bias, before)
    assert torch.equal(bias, before[0])


def test_tokenizers() -> None:
    hf, larger, other = made("gpt2"), toy_tokenizer(), toy_tokenizer()
    larger.add_tokens(["w60"])
    with pytest.raises(ValueError, match=naming("tokenizer", 68, 67)):
        as_model(hf, larger)
    with pytest.raises(TypeError, match=naming("tokenizer", "str")):
        as_model(hf, "gpt2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=naming("TokenizersBackend", "Qwen2Tokenizer", "AutoTokenizer")):
        as_model(made("qwen2"), other)
    with pytest.raises(ValueError, match=naming("tokenizer", "interp.models.as_model(model, tokenizer)")):
        interp.frequency.study(as_model(hf), ["w1 w2"], progress=False)


@pytest.mark.parametrize("kind", ["gpt2", "opt", "bert", "gpt_neox", "llama"])
@torch.no_grad()
def test_a_training_step(kind: str, recwarn: pytest.WarningsRecorder) -> None:
    """Shared weights change with the model. Those of GPT-NeoX are all copied, with a warning, so none of them does."""
    dtype = torch.bfloat16 if kind == "llama" else torch.float32
    hf = made(kind).to(dtype)
    model = as_model(hf)
    shared = kind != "gpt_neox"
    assert shared != any("so all weights were copied" in str(each.message) for each in recwarn)
    before, first = weight_hash(model), model(IDS)
    assert origin(model).name == f"{type(hf).__name__} in memory"
    assert view(model).wrapped.dtype == dtype
    for part in hf.parameters():
        part.mul_(1.5)
    assert (weight_hash(model) != before) == shared
    expected = hf.eval()(IDS).logits if shared else first
    torch.testing.assert_close(model(IDS).log_softmax(-1), expected.log_softmax(-1), atol=1e-4, rtol=0)
    assert not model.training
