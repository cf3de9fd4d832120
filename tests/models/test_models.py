import json
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
import transformers
from naming import naming
from torch.utils._python_dispatch import TorchDispatchMode
from toys import D_VOCAB, HF_MODELS

import interp
from interp.models.identity import origin, weight_hash
from interp.models.sites import check_model, depth, hook_name
from interp.support import paths
from interp.testing import randomise, toy_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CAUSAL = [kind for kind in HF_MODELS if kind != "bert"]


@pytest.mark.quick("gpt2", "llama")
@pytest.mark.parametrize("kind", CAUSAL)
def test_causal_models_equal_transformers(kind, hf_directory):
    tokens = torch.randint(60, (3, 20), generator=torch.Generator().manual_seed(1))
    hf = transformers.AutoModelForCausalLM.from_pretrained(hf_directory(kind)).eval()
    with torch.no_grad():
        ours = interp.load(hf_directory(kind))(tokens)
        torch.testing.assert_close(ours, hf(tokens).logits, atol=1e-5, rtol=1e-5)


def test_bert_equals_transformers_with_padding(hf_directory):
    tokens = torch.randint(60, (2, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[1, 12:] = 0
    hf = transformers.BertForMaskedLM.from_pretrained(hf_directory("bert")).eval()
    with torch.no_grad():
        ours = interp.load(hf_directory("bert"))(tokens, one_zero_attention_mask=mask)
        theirs = hf(tokens, attention_mask=mask).logits
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["gpt2-yelp", "llama-stories260k"])
def test_trained_models_equal_transformers(name, shared):
    hf = transformers.AutoModelForCausalLM.from_pretrained(shared / "models" / name).eval().double()
    tokens = torch.randint(500, (2, 60), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours = interp.load(shared / "models" / name, dtype=torch.float64)(tokens)
        torch.testing.assert_close(ours, hf(tokens).logits, atol=1e-5, rtol=0)


def test_nothing_is_copied_at_a_call(load_toy):
    for kind in ("gpt2", "llama", "bert"):
        model = load_toy(kind)
        attention = model.blocks[0].attn
        assert model.W_U.T.is_contiguous()
        for name in ("W_Q", "_W_K" if kind == "llama" else "W_K", "_W_V" if kind == "llama" else "W_V"):
            assert getattr(attention, name).mT.is_contiguous(), name
        assert attention.W_O.permute(2, 0, 1).is_contiguous()
        if kind == "llama":
            assert model.blocks[0].mlp.W_gate.T.is_contiguous()


def test_dtype_device_and_origin(hf_directory):
    model = interp.load(hf_directory("gpt2"), dtype=torch.float64, device="cpu")
    assert model.W_U.dtype == torch.float64
    assert model.cfg.dtype == torch.float64
    assert origin(model).directory == hf_directory("gpt2")
    assert model.tokenizer("w1 w2", add_special_tokens=False)["input_ids"] == toy_tokenizer()("w1 w2")["input_ids"]


@pytest.mark.slow
def test_weight_hash_sees_every_parameter(hf_directory):
    model = interp.load(hf_directory("bert"))
    before = weight_hash(model)
    assert before == weight_hash(interp.load(hf_directory("bert")))
    for name, parameter in model.named_parameters():
        if name.startswith(("pooler.", "nsp_head.")):  # nothing reads these, and a bridge does not have them
            continue
        with torch.no_grad():
            parameter[(-1,) * parameter.ndim] += 1
        assert weight_hash(model) != before
        before = weight_hash(model)


@pytest.mark.e2e
def test_hub_names_from_the_cache(hf_directory, tmp_path, monkeypatch):
    """A fake hub cache, offline, as it is after a download; a checkpoint is a revision."""
    for repo, revision in (("models--gpt2", "main"), ("models--EleutherAI--pythia-70m", "step1000")):
        snapshot = tmp_path / "hub" / repo / "snapshots" / COMMIT
        shutil.copytree(hf_directory("gpt2" if repo == "models--gpt2" else "gpt_neox"), snapshot)
        (tmp_path / "hub" / repo / "refs").mkdir()
        (tmp_path / "hub" / repo / "refs" / revision).write_text(COMMIT)
    code = (
        "import interp, warnings; warnings.simplefilter('ignore');"
        "from interp.models.identity import origin;"
        "m = interp.load('gpt2-small'); print(type(m).__name__, origin(m).revision);"
        "m = interp.load('pythia-70m', checkpoint=1000); print(m.cfg.positional_embedding_type)\n"
        "try: interp.load('gpt2-medium')\n"
        "except FileNotFoundError as error: print(error)"
    )
    environment = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    lines = run.stdout.splitlines()
    assert lines[:2] == [f"HookedTransformer {COMMIT}", "rotary"], run.stderr
    assert "model 'gpt2-medium' is no local directory, and its safetensors could not be" in lines[2]


def saved(kind, tmp_path, **config):
    model = HF_MODELS[kind]()
    for key, value in config.items():
        setattr(model.config, key, value)
    model = type(model)(model.config)
    randomise(model)
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "config", "values"),
    [
        ("bert", {"hidden_act": "relu"}, ("hidden_act='relu'",)),
        ("bert", {"hidden_act": "gelu_new"}, ("hidden_act='gelu_new'",)),
        ("llama", {"attention_bias": True}, ("attention_bias=True",)),
        ("llama", {"mlp_bias": True}, ("mlp_bias=True",)),
        ("gpt2", {"n_inner": 40}, ("n_inner=40",)),
        ("qwen2", {"use_sliding_window": True}, ("use_sliding_window=True",)),
        ("opt", {"do_layer_norm_before": False}, ("TransformerLens",)),
    ],
)
def test_wrong_conversions_are_refused(kind, config, values, tmp_path):
    with pytest.raises(ValueError, match=naming(tmp_path, *values)):
        interp.load(saved(kind, tmp_path, **config), backend="hooked")


@pytest.mark.quick("llama")
@pytest.mark.parametrize(("kind", "config"), [("llama", {"attention_bias": True}), ("gpt2", {"n_inner": 40})])
def test_what_cannot_be_converted_is_a_bridge(kind, config, tmp_path):
    model = interp.load(saved(kind, tmp_path, **config))
    assert type(model).__name__ == "TransformerBridge"


def test_bad_directories(hf_directory, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "hub_answers", lambda: True)
    with pytest.raises(FileNotFoundError, match=naming(tmp_path / "nowhere")):
        interp.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=naming(tmp_path, "config.json")):
        interp.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=naming(tmp_path / "config.json", "JSON")):
        interp.load(tmp_path)
    shutil.copy(hf_directory("gpt2") / "config.json", tmp_path / "config.json")
    with pytest.raises(FileNotFoundError, match=naming(tmp_path, "weights")):
        interp.load(tmp_path)
    torch.save({"x": torch.zeros(2)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=naming(tmp_path, "pytorch_model.bin")):
        interp.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ValueError, match=naming(tmp_path, "transformers")):
        interp.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=naming(tmp_path / "config.json")):
        interp.load(tmp_path / "config.json")
    with pytest.raises(ValueError, match=naming("directory", "revision")):
        interp.load(hf_directory("gpt2"), revision="main")
    with pytest.raises(ValueError, match=naming("gpt2", "checkpoints")):
        interp.load("gpt2", checkpoint=3)


def test_unsupported_architecture(tmp_path):
    transformers.MT5ForConditionalGeneration(
        transformers.MT5Config(d_model=8, d_ff=8, num_layers=1, num_heads=2, vocab_size=20, d_kv=4)
    ).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=naming("mt5")):
        interp.load(tmp_path)


def test_nan_weights(hf_directory, tmp_path):
    model = HF_MODELS["gpt2"]()
    model.transformer.h[1].mlp.c_fc.bias.data[3] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=naming("transformer.h.1.mlp.c_fc.bias", "NaN")):
        interp.load(tmp_path)


def test_a_model_that_lacks_the_head_of_its_config_is_refused(tmp_path):
    bert = HF_MODELS["bert"]()
    bert.bert.save_pretrained(tmp_path)
    bert.config.architectures = ["BertForMaskedLM"]
    bert.config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=naming(tmp_path, "cls.predictions.bias")):
        interp.load(tmp_path)


def test_no_remote_code_is_run(hf_directory, tmp_path):
    shutil.copytree(hf_directory("gpt2"), tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    (tmp_path / "m/evil.py").write_text("raise SystemExit('remote code was run')")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert interp.load(tmp_path / "m").cfg.n_layers == 2


def test_a_model_of_another_library_is_refused():
    expected = ("HookedTransformer", "HookedEncoder", "TransformerBridge")
    with pytest.raises(TypeError, match=naming(*expected, "torch.nn.modules.linear.Linear", "interp.load")):
        check_model(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=naming(*expected, "GPT2LMHeadModel", "interp.models.as_model")):
        check_model(HF_MODELS["gpt2"]())


def test_a_directory_without_tokenizer(tmp_path):
    HF_MODELS["gpt2"]().save_pretrained(tmp_path)
    model = interp.load(tmp_path)
    assert model.tokenizer is None
    with pytest.raises(ValueError, match=naming("device", "'cudaa'")):
        interp.load(tmp_path, device="cudaa")


def test_rows_are_as_long_as_the_config_says(tmp_path):
    """TransformerLens assumes a context of 2,048 for every Mistral."""
    model = HF_MODELS["mistral"]()
    randomise(model)
    model.save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    loaded = interp.load(tmp_path)
    assert loaded.cfg.n_ctx == 24
    assert interp.corpora.batches(loaded, "bundled").settings["context"] == 24
    with pytest.raises(ValueError, match=naming("context", "2 … 24", 25)):
        interp.corpora.batches(loaded, "bundled", context=25)


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returns, including temporary ones."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.numel = max(self.numel, value.numel())
        return result


def test_a_long_context_takes_no_memory_until_it_is_read(tmp_path):
    n_ctx, length, width = 131_072, 3_000, 32
    sizes = {"vocab_size": D_VOCAB, "hidden_size": width, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, **heads, max_position_embeddings=n_ctx, initializer_range=0.1)
    hf = transformers.LlamaForCausalLM(config).eval()
    hf.save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)

    with LargestTensor() as largest:
        model = interp.load(tmp_path)
        model(torch.zeros(1, 64, dtype=torch.long))
    assert model.cfg.n_ctx == n_ctx
    assert largest.numel < 1_000_000
    assert max(tensor.numel() for tensor in (*model.parameters(), *model.buffers())) < 1_000_000

    tokens = torch.randint(60, (1, length), generator=torch.Generator().manual_seed(1))
    wrapped = (torch.arange(length) % 2_048)[None]
    with torch.no_grad():
        before = model(tokens[:, :100])
        ours, theirs = model(tokens), hf(tokens).logits
        elsewhere = hf(tokens, position_ids=wrapped).logits
        assert torch.equal(model(tokens[:, :100]), before)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert (elsewhere - theirs)[:, 2_048:].abs().max() > 0.1, "positions must matter to these weights"
    assert max(tensor.numel() for tensor in model.buffers()) < 1_000_000


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.uint8, torch.complex64, torch.float8_e4m3fn])
@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.self_attn.q_proj.weight"])
def test_weights_that_are_not_plain_numbers_are_refused(name, dtype, hf_directory, tmp_path):
    """Without a quantisation config, transformers reads their codes as if they were the weights."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(hf_directory("llama"), tmp_path / "m")
    state = load_file(tmp_path / "m" / "model.safetensors")
    state[name] = (10 * state[name]).to(dtype)
    save_file(state, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=naming(name, "F64, F32, F16, BF16")):
        interp.load(tmp_path / "m")


def test_buffers_and_other_files_may_hold_integers(hf_directory, tmp_path):
    """Old GPT-2 checkpoints store attention masks with the weights, and counts are stored beside a bundled model."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(hf_directory("gpt2"), tmp_path / "m")
    state = load_file(tmp_path / "m" / "model.safetensors")
    state = {key.removeprefix("transformer."): value.half() for key, value in state.items()}
    state["h.0.attn.bias"] = torch.ones(1, 1, 24, 24, dtype=torch.uint8)
    save_file(state, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    save_file({"counts": torch.arange(9)}, tmp_path / "m" / "unigram.safetensors")
    assert type(interp.load(tmp_path / "m")).__name__ == "HookedTransformer"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", "opt"])
def test_names_of_folders_do_not_matter(kind, hf_directory, tmp_path, monkeypatch):
    """TransformerLens looks for "llama" and "gemma" in paths, and temporary paths may contain them."""
    import tempfile

    expected = interp.load(hf_directory(kind))
    for name in ("llama", "gemma-2-", "gemma-3-medgemma", "wav2vec2-base"):
        place = tmp_path / f"{name}-scratch"
        place.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        model = interp.load(hf_directory(kind))
        assert weight_hash(model) == weight_hash(expected)
        assert interp.models.identity.config_hash(model) == interp.models.identity.config_hash(expected)
        assert kind == "bert" or model.tokenizer.name_or_path == kind
        assert list(place.iterdir()) == []


def test_an_unknown_activation_is_refused(tmp_path):
    with pytest.raises(ValueError, match=naming("gpt2", "activation_function='quick_gelu'")):
        interp.load(saved("gpt2", tmp_path, activation_function="quick_gelu"), backend="hooked")


@pytest.mark.e2e
def test_a_hub_name_without_a_network(tmp_path):
    """There is one line and none of huggingface_hub's retries, and torch is not even imported."""
    code = (
        "import sys, interp.cli; from huggingface_hub import constants;"
        "constants.ENDPOINT = 'http://127.0.0.1:9';"  # where nothing listens
        "code = interp.cli.main(sys.argv[1:]); print(code, 'torch' in sys.modules)"
    )
    for arguments in (
        ["frequency", "--model", "owner/model", "--corpus", "bundled"],
        ["frequency", "--model", "tiny-gpt2", "--corpus", "openwebtext"],
        ["frequency", "--model", "tiny-gpt2", "--corpus", "owner/dataset"],
        ["attention", "--model", "gpt2", "--dry-run"],
    ):
        run = subprocess.run(
            [sys.executable, "-c", code, *arguments, "--out", str(tmp_path / "out")],
            env={"HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.stdout == "2 False\n", run.stderr
        assert run.stderr.count("\n") == 1, run.stderr
        assert (
            "it is not in the hub's cache and the hub cannot be reached; connect to the network, or give a"
            in run.stderr
        )
    assert list(tmp_path.iterdir()) == []


def test_sites(load_toy):
    gpt2, bert = load_toy("gpt2"), load_toy("bert")
    assert hook_name(gpt2, "embed") in gpt2.hook_dict
    assert hook_name(bert, "embed") in bert.hook_dict
    assert depth([hook_name(gpt2, "resid_post", 0)]) == 1
    assert depth([hook_name(gpt2, "resid_post", 1), hook_name(gpt2, "logits")]) is None
    for call, values in (
        (lambda: hook_name(gpt2, "resid_post", 2), ("'resid_post'", "0 … 1", 2)),
        (lambda: hook_name(gpt2, "resid_post"), ("'resid_post'", "0 … 1", "None")),
        (lambda: hook_name(gpt2, "logits", 1), ("'logits'", "layer=1")),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            call()
