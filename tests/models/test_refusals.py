"""Names, directories, settings and weights of models that are refused, and model code that is never run."""

import pytest
import torch
import transformers
from workshop import BAD, DEEP, MISSING, TYPE, Case, Workshop, check_refused

import interp

load = interp.load


CASES: dict[str, Case] = {
    "a directory that climbs": (MISSING, ("'../nowhere'",), lambda w: load("../nowhere")),
    "no name": (MISSING, ("model", "''"), lambda w: load("")),
    "a blank name": (MISSING, ("model", "' '"), lambda w: load(" ")),
    "HTML for a name": (
        MISSING,
        ("'<script>x</script>'",),
        lambda w: load("<script>x</script>"),
    ),
    "a name with a newline": (MISSING, (r"'a\nb'",), lambda w: load("a\nb")),
    "a name with NUL": (MISSING, (r"'a\x00b'",), lambda w: load("a\0b")),
    "an overlong name": (MISSING, ("x" * 5_000,), lambda w: load("x" * 5_000)),
    "a broken link": (MISSING, ("link",), lambda w: load(w.broken_link())),
    "a number for a name": (TYPE, ("model", "int"), lambda w: load(5)),
    "a model of transformers": (
        TYPE,
        ("GPT2LMHeadModel", "interp.models.as_model(model, tokenizer)"),
        lambda w: load(transformers.AutoModelForCausalLM.from_pretrained(w.directory("gpt2"))),
    ),
    "a file": (MISSING, ("config.json", "file"), lambda w: load(w.directory("gpt2") / "config.json")),
    "an empty directory": (MISSING, ("config.json",), lambda w: load(w.root)),
    "a config that is a list": (BAD, ("model_type",), lambda w: load(w.with_file("config.json", "[]"))),
    "a config without a kind": (BAD, ("model_type",), lambda w: load(w.with_file("config.json", "{}"))),
    "a config cut off": (BAD, ("JSON",), lambda w: load(w.with_file("config.json", '{"model'))),
    "a deeply nested config": (BAD, ("JSON",), lambda w: load(w.with_file("config.json", DEEP))),
    "a config of bytes": (BAD, ("JSON",), lambda w: load(w.with_file("config.json", b"\xff\xfe"))),
    "an unknown architecture": (
        BAD,
        ("'../../x'",),
        lambda w: load(w.config(model_type="../../x")),
    ),
    "no blocks": (BAD, (0, "config.json"), lambda w: load(w.config(n_layer=0))),
    "fewer than no blocks": (BAD, (-1, "config.json"), lambda w: load(w.config(n_layer=-1))),
    "fewer blocks than weights": (BAD, ("block 1",), lambda w: load(w.config(n_layer=1))),
    "more blocks than weights": (
        BAD,
        ("weights", "GPT2LMHeadModel"),
        lambda w: load(w.config(n_layer=3)),
    ),
    "another width": (
        BAD,
        ("transformer.h.0.attn.c_attn.bias", (48,), (96,), "config.json"),
        lambda w: load(w.config(n_embd=32)),
    ),
    "an unknown activation": (
        BAD,
        ("'mine'", "config.json"),
        lambda w: load(w.config(activation_function="mine")),
    ),
    "text for a number": (
        BAD,
        ("'n_positions'",),
        lambda w: load(w.config(n_positions="24")),
    ),
    "heads that do not divide": (BAD, ("num_heads",), lambda w: load(w.config(n_head=3))),
    "a negative vocabulary": (BAD, ("transformers",), lambda w: load(w.config(vocab_size=-1))),
    "an epsilon of NaN": (
        BAD,
        ("transformers", "nan"),
        lambda w: load(w.config(layer_norm_epsilon=float("nan"))),
    ),
    "the config of a Llama": (BAD, ("weights", "LlamaForCausalLM"), lambda w: load(w.other_config("llama"))),
    "sizes left out": (BAD, ("model", "larger"), lambda w: load(w.config(model_type="llama"))),
    "far too many blocks": (BAD, ("model", "larger"), lambda w: load(w.config(n_layer=10**9))),
    "a far too large vocabulary": (BAD, ("model", "larger"), lambda w: load(w.config(vocab_size=10**12))),
    "pickled weights": (BAD, ("pytorch_model.bin",), lambda w: load(w.pickled())),
    "code of its own": (BAD, ("'evil'",), lambda w: load(w.remote_code("evil"))),
    "a tokenizer of its own": (
        BAD,
        ("tokenizer",),
        lambda w: load(w.with_file("tokenizer.json", "{")),
    ),
    "another's tokenizer": (
        BAD,
        ("tokenizer",),
        lambda w: load(w.with_file("tokenizer.json", '{"model": 3}')),
    ),
    "tokenizer settings cut off": (
        BAD,
        ("tokenizer",),
        lambda w: load(w.with_file("tokenizer_config.json", "{")),
    ),
    "weights cut off": (BAD, ("transformers",), lambda w: load(w.truncated("gpt2"))),
    "BERT's weights cut off": (BAD, ("transformers",), lambda w: load(w.truncated("bert"))),
    "a far too large header": (
        BAD,
        ("header",),
        lambda w: load(w.with_file("model.safetensors", b"\xff" * 7 + b"\x7f" + b"x" * 99)),
    ),
    "a shard that is missing": (MISSING, ("model-00002-of-00002.safetensors",), lambda w: load(w.sharded())),
    "a shard that climbs": (BAD, ("weights",), lambda w: load(w.sharded("../elsewhere.safetensors"))),
    "an index cut off": (BAD, ("index.json",), lambda w: load(w.sharded(None))),
    "an infinite weight": (BAD, ("ln_1.bias", "NaN"), lambda w: load(w.infinite())),
    "whole numbers": (BAD, ("dtype", "torch.int64"), lambda w: load(w.directory("gpt2"), dtype=torch.int64)),
    "a device that holds no numbers": (
        BAD,
        ("device", "'meta'"),
        lambda w: load(w.directory("gpt2"), device="meta"),
    ),
    "a device that is not there": (
        BAD,
        ("'cuda:99'",),
        lambda w: load(w.directory("gpt2"), device="cuda:99"),
    ),
    "a model in an unknown user's home": (MISSING, ("'~nobody0/x'",), lambda w: load("~nobody0/x")),
    "untrained from a name": (TYPE, ("HookedTransformer",), lambda w: interp.models.untrained("gpt2")),
    "untrained from a negative seed": (
        BAD,
        ("seed", -1),
        lambda w: interp.models.untrained(w.model("gpt2"), seed=-1),
    ),
    "untrained from a seed of 2⁶⁴": (
        BAD,
        ("seed", 2**64),
        lambda w: interp.models.untrained(w.model("gpt2"), seed=2**64),
    ),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)


def test_code_of_a_known_kind_is_not_run_either(workshop: Workshop) -> None:
    model = interp.load(workshop.remote_code("gpt2"))
    assert model.cfg.n_layers == 2
    assert not (workshop.root / "ran").exists()
