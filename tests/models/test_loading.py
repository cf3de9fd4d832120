"""Loading block by block: each is checked against transformers, and memory holds no more than the model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from naming import naming
from toys import D_VOCAB, HF_MODELS

import interp
from interp.models.identity import weight_hash
from interp.models.loading import loader
from interp.models.sites import view
from interp.support import memory
from interp.testing import randomise

BOTH = ("hooked", "bridge")
TOKENS = torch.randint(D_VOCAB, (2, 20), generator=torch.Generator().manual_seed(0))
PEAK = """
import sys, torch, transformer_lens, transformer_lens.model_bridge, interp
def held(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])
interp.load("tiny-gpt2", backend=sys.argv[2], dtype=sys.argv[3])  # what is imported and prepared for it
start = held("VmRSS")
interp.load(sys.argv[1], backend=sys.argv[2], dtype=sys.argv[3])
print((held("VmHWM") - start) * 1024)
"""


@pytest.fixture(scope="module", params=["llama", "gpt2", "gpt_neox"])
def half(request, tmp_path_factory) -> Path:
    """A model whose weights are stored in bfloat16; some kinds have one matrix for queries, keys and values."""
    directory = tmp_path_factory.mktemp("half")
    hf = HF_MODELS[request.param]()
    randomise(hf)
    hf.to(torch.bfloat16).save_pretrained(directory)
    return directory


@pytest.mark.quick("llama-bfloat16-bridge", "gpt2-bfloat16-hooked")
@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("dtype", ["auto", "bfloat16", torch.bfloat16])
def test_a_dtype_with_fewer_digits(dtype, backend, half):
    model = interp.load(half, dtype=dtype, backend=backend)
    hf = transformers.AutoModelForCausalLM.from_pretrained(half, dtype=torch.bfloat16).eval()
    assert model.W_U.dtype == model.cfg.dtype == torch.bfloat16
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), hf(TOKENS).logits, atol=0.15, rtol=0)
    for name, weight in view(model).parameters():
        assert weight.dtype == torch.bfloat16, name


@pytest.mark.quick("llama-hooked", "llama-bridge")
@pytest.mark.parametrize("backend", BOTH)
def test_a_wider_type_than_the_stored_one_has_the_stored_numbers(backend, half):
    model = interp.load(half, backend=backend)
    hf = transformers.AutoModelForCausalLM.from_pretrained(half, dtype=torch.float32).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), hf(TOKENS).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BOTH)
def test_types_may_be_mixed_in_a_file(backend, tmp_path):
    hf = HF_MODELS["llama"]()
    exact = {name: value.clone() for name, value in hf.state_dict().items()}
    for name, parameter in hf.named_parameters():
        if "mlp" in name:
            parameter.data = exact[name] = parameter.data.bfloat16()
    hf.save_pretrained(tmp_path)
    ours = dict(view(interp.load(tmp_path, backend=backend)).parameters())
    torch.testing.assert_close(ours["ln_final.w"], exact["model.norm.weight"], atol=0, rtol=0)
    torch.testing.assert_close(
        ours["blocks.0.mlp.W_in"], exact["model.layers.0.mlp.up_proj.weight"].float().T, atol=0, rtol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_that_is_converted_wrongly_is_named(dtype, hf_directory, monkeypatch):
    from transformer_lens import loading_from_pretrained as conversions

    right = conversions.convert_gpt2_weights

    def wrong(hf, cfg):
        state = right(hf, cfg)
        return state | {"blocks.1.mlp.b_out": state["blocks.1.mlp.b_out"] + 0.003}

    monkeypatch.setattr(conversions, "convert_gpt2_weights", wrong)
    with pytest.raises(ValueError, match=naming("transformer.h.1", "transformers")):
        interp.load(hf_directory("gpt2"), backend="hooked", dtype=dtype)


def test_an_unknown_dtype_is_refused(half):
    with pytest.raises(ValueError, match=naming("dtype", "'auto'", "torch.int8")):
        interp.load(half, dtype="int8")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A Llama in bfloat16 that is much larger than what a process needs anyway, and its number of weights."""
    directory = tmp_path_factory.mktemp("large")
    config = transformers.LlamaConfig(
        vocab_size=16_000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=16, num_attention_heads=8
    )
    hf = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    hf.save_pretrained(directory)
    return directory, sum(weight.numel() for weight in hf.parameters())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_peak_memory(dtype, backend, large):
    directory, n_weights = large
    size = n_weights * (2 if dtype == "auto" else 4)
    run = [sys.executable, "-W", "ignore", "-c", PEAK, str(directory), backend, dtype]
    freed_at_once = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc otherwise keeps freed memory
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=freed_at_once)
    peak = int(done.stdout.splitlines()[-1])
    assert peak < 1.25 * size


@pytest.mark.quick("llama-hooked")
@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_an_untrained_model_without_room_for_it(kind, backend, hf_directory, monkeypatch):
    """Drawn block by block, it has the numbers of the model drawn at once: before, during and after a forward pass."""
    from interp.models import untrained
    from interp.models.loading import initial

    model = interp.load(hf_directory(kind), backend=backend)
    whole = untrained(model, seed=3)
    monkeypatch.setattr(initial, "available", lambda device: 0)
    lean, other = untrained(model, seed=3), untrained(model, seed=4)
    held = {name for name, one in lean.blocks[0].named_parameters() if one.ndim > 1 and 0 in one.stride()}
    assert held  # matrices stored as a single number
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(lean(TOKENS), whole(TOKENS), atol=1e-6, rtol=1e-5)
    assert held == {name for name, one in lean.blocks[0].named_parameters() if one.ndim > 1 and 0 in one.stride()}
    assert len({weight_hash(one) for one in (model, lean, other)}) == 3


def test_weights_larger_than_the_memory_are_refused_before_they_are_read(hf_directory, monkeypatch):
    def read(*_: object) -> None:
        raise AssertionError("the weights were read before the refusal")

    monkeypatch.setattr(loader, "assembled", read)
    directory = hf_directory("gpt2")
    size = os.path.getsize(directory / "model.safetensors")
    monkeypatch.setattr(memory, "available", lambda device="cpu": 3 * size // 4)
    advice = ("cpu", "dtype='auto'", "backend='bridge'")
    values = (directory, "float32", *advice)
    with pytest.raises(ValueError, match=naming(*values, f"{3 * size // 4 // 1024} KiB", "bfloat16")):
        interp.load(directory)
    monkeypatch.setattr(memory, "available", lambda device="cpu": 1_000)
    with pytest.raises(ValueError, match=naming(*values, "1 KiB")):
        interp.load(directory)
    with pytest.raises(ValueError, match=naming(directory, "bfloat16", "1 KiB", *advice)):
        interp.load(directory, dtype="bfloat16", backend="bridge")


@pytest.mark.slow
def test_weights_that_stay_in_their_files_are_warned_of(hf_directory, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device="cpu": 1_000)
    with pytest.warns(UserWarning, match="they stay in their files and are read from there whenever"):
        interp.load(hf_directory("gpt2"), dtype="auto", backend="bridge")
