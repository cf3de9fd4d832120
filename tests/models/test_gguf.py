"""A GGUF file loads as the model that transformers reads from it; damaged and unknown files are refused."""

import importlib.util
import json
import shutil

import gguf
import numpy as np
import pytest
import torch
import transformers
from naming import naming
from toys import run_command

import interp
from interp.models.identity import config_hash, origin, weight_hash
from interp.models.loading import conversion, drafts
from interp.models.shapes import shape
from interp.results.result import Result, provenance
from interp.support import paths

pytestmark = pytest.mark.filterwarnings("ignore:the weights of .* are quantised")

Q4, Q8, F32 = (gguf.GGMLQuantizationType[name] for name in ("Q4_1", "Q8_0", "F32"))
WIDTH, HEADS, KV_HEADS, MLP, LAYERS, CONTEXT = 64, 4, 2, 96, 2, 32
WORDS = ["<s>", "</s>", *"abcdefghij", "Ġ", "ab"]
MATRICES = {
    "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH // 2, WIDTH), "attn_v": (WIDTH // 2, WIDTH),
    "attn_output": (WIDTH, WIDTH), "ffn_gate": (MLP, WIDTH), "ffn_up": (MLP, WIDTH), "ffn_down": (WIDTH, MLP),
}  # fmt: skip


def written(path, *, architecture="llama", without=(), quantised=True):
    """A random model as a GGUF file, with a tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, *[1] * (len(WORDS) - 2)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    sizes = {"token_embd": (len(WORDS), WIDTH), "output": (len(WORDS), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        sizes |= {f"blk.{layer}.{name}": size for name, size in MATRICES.items()}
        sizes |= {f"blk.{layer}.{name}": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    draw = np.random.default_rng(0)
    for name, size in sizes.items():
        if name in without:
            continue
        values = (0.1 * draw.standard_normal(size) + (len(size) == 1)).astype(np.float32)
        kind = F32 if len(size) == 1 or not quantised else Q8 if name == "token_embd" else Q4
        data = values if kind == F32 else gguf.quants.quantize(values, kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return written(tmp_path_factory.mktemp("gguf") / "toy.Q4_1.gguf")


@pytest.fixture(scope="module")
def theirs(file):
    options = {"gguf_file": file.name, "dtype": torch.float32}
    return transformers.LlamaForCausalLM.from_pretrained(file.parent, **options).eval()


@pytest.fixture(scope="module")
def model(file):
    with pytest.warns(UserWarning, match=r"are quantised \(Q4_1, Q8_0\); what is said of the model is said of this"):
        return interp.load(file)


@torch.no_grad()
def test_the_model_is_that_of_transformers(model, theirs, file):
    tokens = torch.randint(len(WORDS), (2, 20), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(tokens).log_softmax(-1), theirs(tokens).logits.log_softmax(-1), atol=1e-5, rtol=0)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    stored = tensors["token_embd.weight"]
    np.testing.assert_array_equal(model.W_E, gguf.quants.dequantize(stored.data, stored.tensor_type))
    assert model.tokenizer("abj", add_special_tokens=False)["input_ids"] == [13, 11]


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_its_hashes_are_those_of_the_saved_directory(backend, model, theirs, file, tmp_path):
    fresh = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_plain(theirs.config)))
    fresh.load_state_dict(theirs.state_dict())
    fresh.save_pretrained(tmp_path)
    shutil.copy(file, tmp_path)  # beside safetensors, it is not read
    saved = interp.load(tmp_path, backend=backend)
    ours = interp.load(file, backend=backend)
    assert weight_hash(ours) == weight_hash(saved) == weight_hash(model)
    assert config_hash(ours) == config_hash(saved)
    assert origin(saved).quantised_from is None
    about = provenance(ours, {})
    assert about["quantised_from"] == "Q4_1, Q8_0"
    assert "what is said of the model is said of this file" in Result(about).caveats[0]


def _plain(config):
    return {name: value for name, value in config.to_dict().items() if name not in ("quantization_config", "dtype")}


def test_a_directory_with_one_file_and_types_that_are_not_quantised(tmp_path):
    written(tmp_path / "whole.gguf", quantised=False)
    (tmp_path / "tokenizer.json").write_text("{}")  # of another model
    model = interp.load(tmp_path, dtype="auto")
    assert (origin(model).quantised_from, model.W_U.dtype) == (None, torch.float32)
    assert shape(str(tmp_path)).parameters == sum(tensor.n_elements for tensor in _tensors(tmp_path / "whole.gguf"))


def _tensors(path):
    return gguf.GGUFReader(path).tensors


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_commands(file, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("abcdefghij\n" * 40)
    asked = ["--model", str(file), "--corpus", str(tmp_path / "text.txt")]
    assert run_command(["frequency", *asked, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["d_vocab"] == len(WORDS)
    assert run_command(["unigrams", *asked, "--out", str(tmp_path / "counts.safetensors")]) == 0
    assert "9 types" in capsys.readouterr().out  # "ab" is one token; the end of a line is none


def test_bad_files(file, tmp_path, monkeypatch):
    data = file.read_bytes()
    for size in (2, 20, len(data) // 2, len(data) - 8):
        (tmp_path / "short.gguf").write_bytes(data[:size])
        with pytest.raises(ValueError, match=naming("short.gguf", "GGUF")):
            interp.load(tmp_path / "short.gguf")
    shutil.copy(file, tmp_path)
    with pytest.raises(ValueError, match=naming("short.gguf, toy.Q4_1.gguf")):
        interp.load(tmp_path)
    with pytest.raises(ValueError, match=naming("unknown.gguf", "fuyu")):
        interp.load(written(tmp_path / "unknown.gguf", architecture="fuyu"))
    with pytest.raises(ValueError, match=naming("less.gguf", "model.layers.1.mlp.down_proj.weight")):
        interp.load(written(tmp_path / "less.gguf", without=["blk.1.ffn_down"]))
    monkeypatch.setattr(conversion.memory, "available", lambda device: 1000)
    with pytest.raises(interp.support.memory.DoesNotFit, match=naming(file, "KiB")):
        interp.load(file)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=naming(file, "pip install 'interp[gguf]'")):
        paths.model_directory(str(file))


def test_nothing_is_left_behind(file, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(drafts, "_laid_out", lambda *given, **named: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        interp.load(file)
    assert list(tmp_path.iterdir()) == []
