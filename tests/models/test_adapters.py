"""A PEFT adapter is merged on request; beside the weights of a model, or without a model, it is refused with advice."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import torch
import transformers
from naming import naming
from toys import D_VOCAB

import interp
from interp import encoding
from interp.models.identity import weight_hash
from interp.models.loading import conversion
from interp.models.loading.conversion import adapter_hash
from interp.results.result import provenance

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # in PEFT

TOKENS = torch.randint(D_VOCAB, (2, 20), generator=torch.Generator().manual_seed(0))
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def base(hf_directory, tmp_path) -> Path:
    return Path(shutil.copytree(hf_directory("gpt2"), tmp_path / "it's a base"))


@pytest.fixture
def lora(base):
    """A LoRA of `base` that changes it."""
    torch.manual_seed(0)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True
    )
    return peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), config).eval()


@torch.no_grad()
def log_p(model) -> torch.Tensor:
    output = model(TOKENS)
    return getattr(output, "logits", output).log_softmax(-1)


def commands(error: Exception) -> list[str]:
    """The commands in an error message."""
    return re.findall(r"mkdir .*?(?= \. If not| and then load)", str(error))


def run(command: str, directory: Path) -> None:
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], cwd=directory, env=offline, check=True, capture_output=True)


def refused(name) -> ValueError:
    with pytest.raises(ValueError, match=naming("adapter")) as caught:
        interp.load(name)
    return caught.value


def test_merged_weights_with_a_left_over_adapter(base, lora, tmp_path):
    lora.save_pretrained(base)
    merged = lora.merge_and_unload()
    merged.save_pretrained(base)
    twice = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    assert (log_p(twice) - log_p(merged)).abs().max() > 0.1, "transformers adds it again"
    error = refused(base)
    assert "(PEFT, LORA)" in str(error)
    run(commands(error)[0], tmp_path)
    torch.testing.assert_close(log_p(interp.load(base)), log_p(merged), atol=1e-4, rtol=0)


def test_an_adapter_that_is_not_merged_yet(base, lora, tmp_path):
    expected = log_p(lora)
    lora.save_pretrained(base)
    error = refused(base)
    run(commands(error)[1], tmp_path)
    assert f"adapter={f'{base}-adapter'!r}" in str(error)
    torch.testing.assert_close(log_p(interp.load(base, adapter=f"{base}-adapter")), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("with_config", [False, True])
def test_an_adapter_alone(with_config, base, lora, tmp_path):
    lora.save_pretrained(tmp_path / "adapter")
    if with_config:
        shutil.copy(base / "config.json", tmp_path / "adapter")
    error = str(refused(tmp_path / "adapter"))
    assert re.search(naming("(PEFT, LORA)", repr(str(base)), "adapter="), error)


ALL = ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]
CAUSAL = {"task_type": "CAUSAL_LM", "init_lora_weights": False, "r": 4}
KINDS = {
    "LoRA of queries, values and MLPs": ("llama", peft.LoraConfig(**CAUSAL, target_modules=ALL)),
    "DoRA": ("llama", peft.LoraConfig(**CAUSAL, target_modules=ALL, use_dora=True)),
    "LoRA of a joint matrix": ("gpt2", peft.LoraConfig(**CAUSAL, target_modules=["c_attn", "c_proj"])),
    "a head": ("llama", peft.LoraConfig(**CAUSAL, target_modules=["q_proj"], modules_to_save=["lm_head"])),
    "BERT": ("bert", peft.LoraConfig(init_lora_weights=False, target_modules=["query", "value"])),
}


def adapted(base, config, directory, **changes) -> torch.nn.Module:
    """A model with a random adapter, which is saved in a directory."""
    torch.manual_seed(0)
    kind = transformers.AutoModelForMaskedLM if "bert" in base.name else transformers.AutoModelForCausalLM
    model = peft.get_peft_model(kind.from_pretrained(base, **changes), config).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name or "prompt" in name:
            parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    return model


@pytest.mark.quick("DoRA")
@pytest.mark.filterwarnings("ignore:.*fan_in_fan_out")
@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_adapter_predicts_what_peft_does(kind, hf_directory, tmp_path):
    base, config = hf_directory(KINDS[kind][0]), KINDS[kind][1]
    expected = log_p(adapted(base, config, tmp_path))
    assert (log_p(interp.load(base)) - expected).abs().max() > 0.1
    model = interp.load(base, adapter=tmp_path)
    torch.testing.assert_close(log_p(model), expected, atol=1e-5, rtol=0)
    about = provenance(model, {})["adapter"]
    assert about["path"] == str(tmp_path)
    assert about["hash"] == adapter_hash(tmp_path)
    assert weight_hash(model) != weight_hash(interp.load(base))
    with pytest.raises(ValueError, match=naming("steps", "adapter")):
        encoding.study(model, ["w1 w2 w3"] * 20, steps=[1], progress=False)


@pytest.mark.filterwarnings("ignore:.*(save_embedding_layers|fan_in_fan_out)")
def test_adapters_that_do_not_fit(hf_directory, tmp_path):
    base = hf_directory("llama")
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    plain = peft.LoraConfig(**CAUSAL, target_modules=["q_proj"])
    adapted(base, prompt, tmp_path / "prompt")
    adapted(base, plain, tmp_path / "deep", num_hidden_layers=3, ignore_mismatched_sizes=True)
    adapted(base, plain, tmp_path / "wide", intermediate_size=32, hidden_size=8, ignore_mismatched_sizes=True)
    adapted(hf_directory("gpt2"), KINDS["LoRA of a joint matrix"][1], tmp_path / "other")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(D_VOCAB + 3)
    wider = peft.LoraConfig(**CAUSAL, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    peft.get_peft_model(model, wider).save_pretrained(tmp_path / "vocabulary")
    for name, values in {
        "prompt": ("PROMPT_TUNING", "LoRA"),
        "deep": ("LORA", "layers.2"),
        "wide": ("LORA", "size mismatch"),
        "other": ("random-gpt2", "random-llama", "adapter_config.json"),
        "vocabulary": ("LORA", "vocabulary"),
        "nothing": ("adapter", "PEFT"),
    }.items():
        with pytest.raises((ValueError, FileNotFoundError), match=naming(name, *values)):
            interp.load(base, adapter=tmp_path / name)
    (tmp_path / "deep" / "adapter_model.safetensors").rename(tmp_path / "deep" / "adapter_model.bin")
    with pytest.raises(ValueError, match=naming("adapter_model.bin", "PEFT")):
        interp.load(base, adapter=tmp_path / "deep")


def test_an_adapter_that_merging_changes(hf_directory, tmp_path, monkeypatch):
    adapted(hf_directory("llama"), KINDS["DoRA"][1], tmp_path)
    merged = conversion._merged

    def other(model, adapter):
        weights = merged(model, adapter)
        weights.lm_head.weight.data *= 1.01
        return weights

    monkeypatch.setattr(conversion, "_merged", other)
    with pytest.raises(ValueError, match=naming(tmp_path, "PEFT", "1e-04")):
        interp.load(hf_directory("llama"), adapter=tmp_path)


def test_damaged_settings_of_an_adapter(base):
    (base / "adapter_config.json").write_text("{")
    assert "(PEFT, None)" in str(refused(base))


def test_a_dry_run_refuses_it_too(base, lora, capsys):
    from interp.cli import main

    lora.save_pretrained(base)
    assert main(["frequency", "--model", str(base), "--corpus", "bundled", "--dry-run"]) == 2
    assert "beside its weights" in " ".join(capsys.readouterr().err.split())


@pytest.mark.e2e
def test_hub_names(base, lora, tmp_path):
    """A fake hub cache, offline, as it is after a download."""
    for name in ("whole", "alone"):
        place = tmp_path / "hub" / f"models--owner--{name}"
        lora.save_pretrained(place / "snapshots" / COMMIT)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(COMMIT)
    shutil.copytree(base, tmp_path / "hub" / "models--owner--whole" / "snapshots" / COMMIT, dirs_exist_ok=True)
    code = (
        "import interp\n"
        "for name in ('owner/whole', 'owner/alone'):\n"
        "    try: interp.load(name)\n"
        "    except ValueError as error: print(error)"
    )
    environment = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    whole, alone = done.stdout.splitlines()
    assert whole.startswith("owner/whole has an adapter (PEFT, LORA) beside its weights")
    assert "hf download owner/whole --exclude 'adapter_*' --local-dir whole" in whole
    assert alone.startswith(f"owner/alone is an adapter (PEFT, LORA) of {str(base)!r} and not a model; load that model")
    assert "after: hf download owner/alone --include 'adapter_*' --local-dir alone-adapter" in alone
