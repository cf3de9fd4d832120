"""`--dry-run`: the memory and time a command would take, from config.json and headers, and whether it fits."""

import json
import re
import shutil

import pytest
import torch
import transformers
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from interp.analyses.registry import OWN
from interp.cli import main
from interp.models.footprint import PROCESS
from interp.models.shapes import shape
from interp.support import memory

SIZES = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80}
LLAMA_70B = {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}


@pytest.fixture
def large(tmp_path):
    """The config of a 70B-parameter model, without weights."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B | SIZES | {"tie_word_embeddings": False}))
    return tmp_path


def told(capsys, *arguments):
    """The numbers that a dry run prints."""
    code = main([*arguments, "--dry-run", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found.get("fits", True) else 3)
    return found


def test_every_analysis_says_what_it_takes(capsys):
    for name in OWN:
        data = ["--pairs", "bundled", "--limit", "10"] if name in ("probing", "units") else []
        found = told(capsys, name, "--model", "tiny-gpt2", *data)
        assert found["fits"]
        assert found["peak_bytes"] > PROCESS + found["weights_bytes"]
        assert found["passes"] >= 1
        assert found["flops"] > found["forward"] > 0
        assert (found["parameters"], found["stored"]) == (3_480_576, "float16"), "by the headers"


def test_the_answer_comes_first(capsys):
    assert main(["frequency", "--model", "tiny-gpt2", "--corpus", "bundled", "--dry-run"]) == 0
    fits, time, disk, left_out, detail, *lines = capsys.readouterr().out.splitlines()
    assert fits.startswith("tiny-gpt2: fits in memory: ")
    assert "--measure" in time
    assert disk.startswith(
        f"disk: about {memory.shown(told(capsys, 'frequency', '--model', 'tiny-gpt2')['disk_bytes'])}"
    )
    assert (left_out, detail) == ("left out: nothing, unless the text is too short", "in detail:")
    assert not any("groups" in line for line in lines), "how many there are depends on the text"
    assert main(["sinks", "--model", "tiny-bert", "--corpus", "bundled", "--dry-run"]) == 0
    assert "left out: sinks: writers: hidden states of an encoder" in capsys.readouterr().out.splitlines()[3]


@pytest.mark.slow
def test_a_report_shares_passes(capsys):
    found = told(capsys, "report", "--model", "tiny-gpt2", "--model", "tiny-bert", "--limit", "10")
    gpt2, bert = found["tiny-gpt2"], found["tiny-bert"]
    alone = [told(capsys, name, "--model", "tiny-gpt2")["passes"] for name in ("frequency", "attention", "encoding")]
    assert alone == [1, 2, 7]
    assert gpt2["passes"] == 7 + 2 + 3, "those of the text, of generated text and of sentences"
    assert bert["passes"] == 4 + 1 + 2 + 3, "an encoder reads its text both masked and unmasked"
    assert main(["report", "--model", "tiny-gpt2", "--dry-run"]) == 0
    assert "pass 1: word frequency + attention + attention scores + token probability" in capsys.readouterr().out


def test_settings_of_a_report_count(capsys):
    few = json.dumps({"encoding": {"orders": ["random"], "ratios": [2]}, "probing": {"states": [1]}})
    found = told(capsys, "report", "--model", "tiny-gpt2", "--settings", few)
    assert (found["steered"], found["n_states"]) == (15 * 3, 1)
    weights = ["--ratios", "2", "--weights", "least_norm,weighted,top"]
    assert told(capsys, "encoding", "--model", "tiny-gpt2", *weights)["steered"] == 15 * 5
    assert told(capsys, "encoding", "--model", "tiny-gpt2", *weights, "--shifts", "exact")["steered"] == 15
    alone, beside = (told(capsys, "encoding", "--model", "tiny-gpt2", *more) for more in ((), ("--steps", "0,10")))
    assert beside["passes"] == alone["passes"] + 2


def test_what_does_not_fit(large, capsys, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device="cpu": 64 * memory.GIB)
    arguments = ["attention", "--model", str(large), "--dry-run"]
    assert main(arguments) == 3
    text = capsys.readouterr().out
    assert "does not fit in memory: at least " in text
    assert (
        " of 64.0 GiB available, weights 262.8 GiB; --backend bridge --dtype auto leaves the weights in their files"
        in text
    )
    assert "70,553,706,496 numbers in float32" in text, "from the config if there are no weights"
    found = told(capsys, "attention", "--model", str(large))
    assert (found["fits"], found["advice"]) == (False, None)

    monkeypatch.setattr(memory, "available", lambda device="cpu": 172 * memory.GIB)
    found = told(capsys, "attention", "--model", str(large), "--dtype", "bfloat16", "--batch-size", "64")
    assert not found["fits"]
    assert 1 <= found["advice"]["batch_size"] < 64
    advised = str(found["advice"]["batch_size"])
    assert told(capsys, "attention", "--model", str(large), "--dtype", "bfloat16", "--batch-size", advised)["fits"]


WRONG = {
    "no transformer": ({"model_type": "mamba"}, "is a 'mamba' model without attention heads"),
    "an unknown activation": (LLAMA_70B | {"hidden_act": "foo"}, "cannot make a model of it: KeyError"),
    "quantised weights": (
        LLAMA_70B | SIZES | {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        "has quantised weights, of which interp cannot tell the memory; give the same model in a floating-point type",
    ),
    "fewer than no key heads": (LLAMA_70B | {"num_key_value_heads": -1}, "num_key_value_heads in the config.json"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_config_of_no_model_is_refused(case, tmp_path, capsys):
    config, said = WRONG[case]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["attention", "--model", str(tmp_path), "--dry-run"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "bogus"], "device 'bogus' cannot be used here"),
        (["--device-map", "bogus"], "--device-map 'bogus': unknown 'bogus'"),
        (["--device-map", "auto", "--device", "cpu"], "leave device out"),
        (["--device-map", "auto", "--backend", "hooked"], "leave backend='hooked' out"),
    ],
)
def test_what_the_run_would_refuse_is_refused(options, said, capsys):
    assert main(["attention", "--model", "tiny-gpt2", "--dry-run", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["frequency", "controls", "encoding"])
def test_an_impossible_share_of_masked_tokens_is_refused(command, capsys):
    assert main([command, "--model", "tiny-bert", "--corpus", "bundled", "--dry-run", "--mask-rate", "2"]) == 2
    assert "mask_rate must lie between 0 and 1, found 2" in capsys.readouterr().err


def test_what_no_model_can_be_asked_is_refused_before_loading(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("interp.models.load", lambda *_, **__: pytest.fail("a model was loaded"))
    line = ["controls", "--model", "tiny-gpt2", "--corpus", "bundled", "--out", str(tmp_path / "out")]
    assert main([*line, "--draws", "5"]) == 2
    assert "'--draws': found 5, expected 39 or more" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_weights_that_are_not_read_do_not_count(tmp_path, hf_directory, capsys):
    copied = shutil.copytree(hf_directory("llama"), tmp_path / "model")
    before = told(capsys, "attention", "--model", str(copied))["parameters"]
    tensors = {f"other.{name}": one for name, one in load_file(copied / "model.safetensors").items()}
    save_file(tensors, copied / "consolidated.safetensors")
    assert told(capsys, "attention", "--model", str(copied))["parameters"] == before


def test_a_limit_beyond_the_text_is_the_text(capsys):
    whole = told(capsys, "unigrams", "--model", "tiny-gpt2", "--corpus", "bundled")["n_tokens"]
    beyond = told(capsys, "unigrams", "--model", "tiny-gpt2", "--corpus", "bundled", "--limit", "100000000")
    assert beyond["n_tokens"] == whole


def test_counting_says_what_it_would_count(capsys):
    assert main(["unigrams", "--model", "tiny-gpt2", "--corpus", "bundled", "--dry-run"]) == 0
    assert "over 4,096 types; reads no weights" in capsys.readouterr().out
    found = told(capsys, "unigrams", "--model", "tiny-gpt2", "--corpus", "bundled", "--limit", "10")
    assert found["passes"] == 0
    assert 100 < found["n_tokens"] < 10_000


@pytest.mark.quick("arguments0")
@pytest.mark.e2e
@pytest.mark.parametrize(
    "arguments",
    [
        ["frequency", "--corpus", "bundled", "--limit", "20"],
        ["probing", "--pairs", "bundled", "--limit", "10"],
        ["generation", "--corpus", "bundled", "--n", "2"],
        ["report", "--corpus", "bundled", "--limit", "100"],
    ],
)
def test_the_first_batch_is_timed(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = told(capsys, *arguments, "--model", "tiny-gpt2", "--measure")
    assert 0 < found["seconds_per_batch"] < 100
    assert found["measured_peak_bytes"] > 2**26
    assert not list(tmp_path.iterdir()), "nothing is written"
    if arguments[0] == "frequency":
        assert 0 < found["batches"] < 5
        assert main([*arguments, "--model", "tiny-gpt2", "--dry-run", "--measure"]) == 0
        text = capsys.readouterr().out
        assert "s for the first batch" in text
        assert "for all passes over the text" in text


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_both_stacks_of_an_encoder_decoder_count(kind, tmp_path):
    """They are counted from the config alone; the decoder has different blocks from the encoder, and more of them."""
    sizes = {
        "t5": {"num_layers": 5, "num_decoder_layers": 7, "d_kv": 4, "num_heads": 2, "d_ff": 24},
        "bart": {"encoder_layers": 5, "decoder_layers": 7, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
        | {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32},
    }
    config = {"t5": transformers.T5Config, "bart": transformers.BartConfig}[kind](
        d_model=8, vocab_size=50, **sizes[kind]
    )
    config.save_pretrained(tmp_path)
    found = shape(str(tmp_path))
    with torch.device("meta"):
        model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    matrices = {name: one.numel() for name, one in model.named_parameters() if one.ndim > 1}
    in_blocks = sum(size for name, size in matrices.items() if re.search(r"\.\d+\.", name) and "bias" not in name)
    assert found.parameters == sum(one.numel() for one in model.parameters())
    assert found.block_weights * found.n_layers == pytest.approx(in_blocks, rel=1e-3)


@pytest.fixture
def cached_gpt2(tmp_path, monkeypatch):
    """A hub cache in which a branch of gpt2 has three layers, while main has two."""
    folder = tmp_path / "hub" / "models--gpt2"
    (folder / "refs").mkdir(parents=True)
    for revision, layers in {"main": 2, "wider": 3}.items():
        commit = f"{layers}" * 40
        (folder / "refs" / revision).write_text(commit)
        config = transformers.GPT2Config(n_layer=layers, n_embd=8, n_head=2, vocab_size=50, n_positions=64)
        config.save_pretrained(folder / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(transformers.utils.hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_short_names_and_revisions_of_the_hub(cached_gpt2, capsys):
    assert told(capsys, "frequency", "--model", "gpt2")["parameters"] == (sized := shape("gpt2").parameters)
    assert told(capsys, "attention", "--model", "gpt2-small")["parameters"] == sized
    assert told(capsys, "frequency", "--model", "gpt2-small", "--revision", "wider")["parameters"] > sized
    assert main(["frequency", "--model", "gpt2", "--checkpoint", "10", "--dry-run"]) != 0
    assert "gpt2 has no numbered checkpoints" in capsys.readouterr().err
