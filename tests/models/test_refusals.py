"""Names, directories, settings and weights of models that are refused, and model code that is never run."""

import pytest
import torch
import transformers
from workshop import BAD, DEEP, MISSING, TYPE, Case, Workshop, check_refused

import interp

load = interp.load


CASES: dict[str, Case] = {
    "a directory that climbs": (MISSING, "'../nowhere' does not exist; expected a Hug", lambda w: load("../nowhere")),
    "no name": (MISSING, "model '' does not exist", lambda w: load("")),
    "a blank name": (MISSING, "model ' ' does not exist", lambda w: load(" ")),
    "HTML for a name": (
        MISSING,
        "'<script>x</script>' is no local directory",
        lambda w: load("<script>x</script>"),
    ),
    "a name with a newline": (MISSING, "is no local directory", lambda w: load("a\nb")),
    "a name with NUL": (MISSING, "is no local directory", lambda w: load("a\0b")),
    "an overlong name": (MISSING, "is no local directory", lambda w: load("x" * 5_000)),
    "a broken link": (MISSING, "does not exist; expected", lambda w: load(w.broken_link())),
    "a number for a name": (TYPE, "a model is a name or a path, found int", lambda w: load(5)),
    "a model of transformers": (
        TYPE,
        "found GPT2LMHeadModel; call interp.models.as_model(model, tokenizer) once and give what it returns",
        lambda w: load(transformers.AutoModelForCausalLM.from_pretrained(w.directory("gpt2"))),
    ),
    "a file": (MISSING, "is a file, not a directory", lambda w: load(w.directory("gpt2") / "config.json")),
    "an empty directory": (MISSING, "has no config.json", lambda w: load(w.root)),
    "a config that is a list": (BAD, "names no model_type", lambda w: load(w.with_file("config.json", "[]"))),
    "a config without a kind": (BAD, "names no model_type", lambda w: load(w.with_file("config.json", "{}"))),
    "a config cut off": (BAD, "is not valid JSON", lambda w: load(w.with_file("config.json", '{"model'))),
    "a deeply nested config": (BAD, "is not valid JSON", lambda w: load(w.with_file("config.json", DEEP))),
    "a config of bytes": (BAD, "is not valid JSON", lambda w: load(w.with_file("config.json", b"\xff\xfe"))),
    "an unknown architecture": (
        BAD,
        "is a '../../x' model, which is not sup",
        lambda w: load(w.config(model_type="../../x")),
    ),
    "no blocks": (BAD, "has 0 blocks according to its config.json", lambda w: load(w.config(n_layer=0))),
    "fewer than no blocks": (BAD, "has -1 blocks", lambda w: load(w.config(n_layer=-1))),
    "fewer blocks than weights": (BAD, "has weights of block 1, but", lambda w: load(w.config(n_layer=1))),
    "more blocks than weights": (
        BAD,
        "lacks weights that a GPT2LMHeadModel needs",
        lambda w: load(w.config(n_layer=3)),
    ),
    "another width": (
        BAD,
        "weight transformer.h.0.attn.c_attn.bias of shape (48,), but its config.json says (96,); one is of another",
        lambda w: load(w.config(n_embd=32)),
    ),
    "an unknown activation": (
        BAD,
        "'mine' is unknown; is it a value of its config.json?",
        lambda w: load(w.config(activation_function="mine")),
    ),
    "text for a number": (
        BAD,
        "Validation error for field 'n_positions': TypeError",
        lambda w: load(w.config(n_positions="24")),
    ),
    "heads that do not divide": (BAD, "must be divisible by num_heads", lambda w: load(w.config(n_head=3))),
    "a negative vocabulary": (BAD, "cannot be read as a transformers model", lambda w: load(w.config(vocab_size=-1))),
    "an epsilon of NaN": (
        BAD,
        "differs from transformers by nan",
        lambda w: load(w.config(layer_norm_epsilon=float("nan"))),
    ),
    "the config of a Llama": (BAD, "lacks weights that a LlamaForC", lambda w: load(w.other_config("llama"))),
    "sizes left out": (BAD, "describes a model far larger", lambda w: load(w.config(model_type="llama"))),
    "far too many blocks": (BAD, "describes a model far larger", lambda w: load(w.config(n_layer=10**9))),
    "a far too large vocabulary": (BAD, "describes a model far larger", lambda w: load(w.config(vocab_size=10**12))),
    "pickled weights": (BAD, "has only pickled weights (pytorch_model.bin)", lambda w: load(w.pickled())),
    "code of its own": (BAD, "is a 'evil' model, which is not supp", lambda w: load(w.remote_code("evil"))),
    "a tokenizer of its own": (
        BAD,
        "has a tokenizer that cannot be read",
        lambda w: load(w.with_file("tokenizer.json", "{")),
    ),
    "another's tokenizer": (
        BAD,
        "has a tokenizer that cannot be",
        lambda w: load(w.with_file("tokenizer.json", '{"model": 3}')),
    ),
    "tokenizer settings cut off": (
        BAD,
        "has a tokenizer that cannot",
        lambda w: load(w.with_file("tokenizer_config.json", "{")),
    ),
    "weights cut off": (BAD, "cannot be read as a transformers model", lambda w: load(w.truncated("gpt2"))),
    "BERT's weights cut off": (BAD, "cannot be read as a transformers model", lambda w: load(w.truncated("bert"))),
    "a far too large header": (
        BAD,
        "header too large",
        lambda w: load(w.with_file("model.safetensors", b"\xff" * 7 + b"\x7f" + b"x" * 99)),
    ),
    "a shard that is missing": (MISSING, "lacks model-00002-of-00002.safetensors, of", lambda w: load(w.sharded())),
    "a shard that climbs": (BAD, "names weights outside", lambda w: load(w.sharded("../elsewhere.safetensors"))),
    "an index cut off": (BAD, "index.json is damaged", lambda w: load(w.sharded(None))),
    "an infinite weight": (BAD, "ln_1.bias has NaN or infinite values", lambda w: load(w.infinite())),
    "whole numbers": (BAD, "dtype must be a floating-point", lambda w: load(w.directory("gpt2"), dtype=torch.int64)),
    "a device that holds no numbers": (
        BAD,
        "device 'meta' holds no numbers",
        lambda w: load(w.directory("gpt2"), device="meta"),
    ),
    "a device that is not there": (
        BAD,
        "'cuda:99' cannot be used",
        lambda w: load(w.directory("gpt2"), device="cuda:99"),
    ),
    "a model in an unknown user's home": (MISSING, "'~nobody0/x' does not exist", lambda w: load("~nobody0/x")),
    "untrained from a name": (TYPE, "expected a Hooked", lambda w: interp.models.untrained("gpt2")),
    "untrained from a negative seed": (
        BAD,
        "seed must be",
        lambda w: interp.models.untrained(w.model("gpt2"), seed=-1),
    ),
    "untrained from a seed of 2⁶⁴": (
        BAD,
        "seed must be",
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
