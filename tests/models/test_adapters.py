"""A PEFT adapter beside the weights of a model, or without a model, is refused with commands that help."""

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
from toys import D_VOCAB

import interp

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
    return re.findall(r"mkdir .*?(?= \. If not)|python -c .*", str(error))


def run(command: str, directory: Path) -> None:
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], cwd=directory, env=offline, check=True, capture_output=True)


def refused(name) -> ValueError:
    with pytest.raises(ValueError, match="adapter") as caught:
        interp.load(name)
    return caught.value


def test_merged_weights_with_a_left_over_adapter(base, lora, tmp_path):
    lora.save_pretrained(base)
    merged = lora.merge_and_unload()
    merged.save_pretrained(base)
    twice = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    assert (log_p(twice) - log_p(merged)).abs().max() > 0.1, "transformers adds it again"
    error = refused(base)
    assert r"has an adapter (PEFT, LORA) beside its weights, which transformers would add to them" in str(error)
    run(commands(error)[0], tmp_path)
    torch.testing.assert_close(log_p(interp.load(base)), log_p(merged), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_an_adapter_that_is_not_merged_yet(base, lora, tmp_path):
    expected = log_p(lora)
    lora.save_pretrained(base)
    for command in commands(refused(base)):
        run(command, tmp_path)
    torch.testing.assert_close(log_p(interp.load(f"{base}-merged")), expected, atol=1e-4, rtol=0)
    assert interp.load(f"{base}-merged").tokenizer is not None


@pytest.mark.slow
@pytest.mark.parametrize("with_config", [False, True])
def test_an_adapter_alone(with_config, base, lora, tmp_path):
    expected = log_p(lora)
    lora.save_pretrained(tmp_path / "adapter")
    if with_config:
        shutil.copy(base / "config.json", tmp_path / "adapter")
    error = refused(tmp_path / "adapter")
    assert f"is an adapter (PEFT, LORA) of {str(base)!r} and not a model; expected a model" in str(error)
    [command] = commands(error)
    run(command, tmp_path)
    torch.testing.assert_close(log_p(interp.load(tmp_path / "adapter-merged")), expected, atol=1e-4, rtol=0)


def test_damaged_settings_of_an_adapter(base):
    (base / "adapter_config.json").write_text("{")
    assert "(PEFT, None) beside its weights" in str(refused(base))


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
    assert alone.startswith(f"owner/alone is an adapter (PEFT, LORA) of {str(base)!r} and not a model")
