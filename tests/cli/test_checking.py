"""`interp check`: whether a model loads as transformers has it, and what can be asked of it."""

import json

import architectures
import pytest
import torch
import transformers

import interp
from interp.analyses.registry import OWN
from interp.cli import main
from interp.models.loading import assembly


def checked(capsys, *arguments):
    assert main(["check", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_decoder_that_answers_everything(capsys):
    about = checked(capsys, "tiny-gpt2")
    assert about["questions"] == [*OWN]
    assert about["left_out"] == {}
    assert about["sentences"] == {"sentences": "<|endoftext|> before a sentence; probes read it at <|endoftext|>"}
    assert about["special_tokens"] == {"<|endoftext|>": 0}
    assert about["fits"]
    assert about["disk_bytes"] == 2 * 7 * 192 * 4 * 4_200, "a trained and an untrained model, states, width, sentences"
    assert main(["check", "tiny-gpt2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) < 24, "on one screen"


@torch.no_grad()
def test_parity_is_the_difference_from_transformers(capsys):
    about = checked(capsys, "tiny-bert", "--dtype", "bfloat16")
    path = interp.support.paths.BUNDLED / "tiny-bert"
    plain = transformers.AutoModelForMaskedLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    batch = assembly.trial(plain.config, 32)
    ours = interp.load("tiny-bert", dtype="bfloat16")(batch.tokens, one_zero_attention_mask=batch.mask)
    theirs = plain(batch.tokens, attention_mask=batch.mask).logits
    apart = (ours.float().log_softmax(-1) - theirs.float().log_softmax(-1))[batch.mask.bool()].abs().max()
    assert about["parity"] == {"log-probabilities": pytest.approx(float(apart), rel=0.1)}
    assert apart > 0.01


@pytest.mark.parametrize("kind", ["qwen3", "gemma3_text"])
def test_a_family_that_is_asked_in_part(kind, tmp_path, capsys):
    architectures.toy(kind, tmp_path)
    about = checked(capsys, str(tmp_path))
    assert about["class"] == "TransformerBridge"
    assert "attention" in about["questions"]
    assert "queries and keys are normalised" in about["left_out"]["attention: scores by residual dimension"]
    assert about["sentences"] == {"sentences": "nothing before a sentence; probes read it at </s>"}
    assert main(["check", str(tmp_path)]) == 0
    assert "left out      attention: scores by residual dimension: " in capsys.readouterr().out


def test_what_is_no_model_or_another(tmp_path, capsys, monkeypatch):
    assert main(["check", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
    monkeypatch.setattr(assembly, "PARITY_TOLERANCE", 1e-12)
    assert main(["check", "tiny-gpt2"]) == 2
    assert "log-probabilities differ from transformers" in capsys.readouterr().err
    assert main(["check", "--model", "tiny-gpt2"]) == 2
    assert "interp check MODEL" in capsys.readouterr().err
