"""A bridge on several devices gives the same numbers as on one; tests/support/devices.py imitates several devices."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import pytest
import torch
import transformers
from devices import device_of, several_devices
from naming import naming
from packaging.version import Version

import interp
from interp.corpora import pairs
from interp.hooks import ablate_dims, capture, prune_output_dims, scale_bias
from interp.models.loading import initial, spread
from interp.models.loading.spread import Placement, check_device_map, own_gpus, placed
from interp.models.running import running
from interp.models.sites import view
from interp.support import memory

CLASSES = {"first": [7, 8]}
ASKED: dict[str, dict[str, Any]] = {
    "frequency.study": {"scales": [0, 1]},
    "attention.study": {"key_classes": CLASSES},
    "encoding.study": {"orders": ["random"], "ratios": [2]},
    "generation.study": {"n": 2, "prompt_tokens": 2, "new_tokens": 4, "decoders": ["greedy", "beam"]},
}
GPUS = (torch.device("cuda:0"), torch.device("cuda:1"))


def halves(model: Any) -> dict[str, torch.device]:
    """A device map with the first half of a transformers model's blocks on one device and the rest on another; the
    head is with the embeddings if they are one matrix."""
    blocks = [name for name, one in model.named_modules() if name.rpartition(".")[2].isdigit()]
    blocks = [name for name in blocks if sum(name.startswith(f"{other}.") for other in blocks) == 0]
    head = 0 if model.config.tie_word_embeddings else 1
    inner = model.base_model_prefix
    outside = {
        f"{inner}.{name}": GPUS[int("norm" in name or "ln_f" in name)]
        for name, _ in getattr(model, inner).named_children()
    }
    parts = {name: device for name, device in outside.items() if not any(one.startswith(f"{name}.") for one in blocks)}
    parts |= {name: GPUS[int(2 * number >= len(blocks))] for number, name in enumerate(blocks)}
    return parts | {"lm_head": GPUS[head]}


@pytest.fixture
def plain(hf_directory):
    """A transformers GPT-2."""
    return transformers.AutoModelForCausalLM.from_pretrained(hf_directory("gpt2"))


@pytest.fixture
def on_two(load_toy, monkeypatch):
    """A context with two devices that gives a bridge of a kind on both of them."""
    monkeypatch.setattr(memory, "available", lambda device="cpu": 2**33)
    monkeypatch.setattr(memory, "total", lambda device="cpu": 2**34)
    monkeypatch.setattr(initial, "available", lambda device: 2**33)
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.default_generator,) * 2)

    @contextmanager
    def load(kind: str) -> Iterator[Any]:
        model = load_toy(kind, backend="bridge")
        with several_devices():
            Placement(halves(model.original_model)).finish(model, torch.float32, {})
            yield model

    return load


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox"])
def test_its_parts_are_where_they_were_put(kind, on_two, load_toy):
    tokens = torch.arange(7, 15)[None]
    expected = load_toy(kind, backend="bridge")(tokens)
    with on_two(kind) as model:
        first, last = (model.blocks[layer].attn.W_Q for layer in (0, model.cfg.n_layers - 1))
        assert (device_of(first), device_of(last)) == GPUS
        assert (model.cfg.device, model.cfg.n_devices) == ("cuda:0", 2)
        with torch.no_grad():
            for device in ("cpu", *GPUS):
                torch.testing.assert_close(model(tokens.to(device)).cpu(), expected, atol=1e-6, rtol=1e-6)


def test_mixed_devices_are_noticed():
    with several_devices(), pytest.raises(RuntimeError, match=naming("cuda:0", "cuda:1")):
        torch.ones(2, device="cuda:0") + torch.ones(2).to("cuda:1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt2", "frequency.study"),
        ("llama", "attention.study"),
        pytest.param("gpt2", "attention.study", marks=pytest.mark.slow),
        pytest.param("gpt2", "encoding.study", marks=pytest.mark.slow),
        pytest.param("llama", "encoding.study", marks=pytest.mark.slow),
        pytest.param("gpt2", "generation.study", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_analyses_give_the_numbers_of_one_device(kind, name, on_two, load_toy, texts):
    module, function = name.split(".")
    answer = getattr(getattr(interp, module), function)
    if module == "encoding":  # every operation on imitated devices is slow, and it has many
        texts = texts[:8]
    expected = answer(load_toy(kind, backend="bridge"), texts, **ASKED[name], progress=False)
    with on_two(kind) as model:
        found = answer(model, texts, **ASKED[name], progress=False)
    assert_same(found, expected)


def assert_same(found: Any, expected: Any) -> None:
    assert set(found.tables) == set(expected.tables)
    for name, table in expected.tables.items():
        numbers = table.select_dtypes("number").columns
        ours, theirs = (one[numbers].astype(float).to_numpy() for one in (found.tables[name], table))
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=1e-6, rtol=1e-6, equal_nan=True)


@pytest.mark.slow
def test_probing_gives_the_numbers_of_one_device(on_two, load_toy):
    table = pairs.generate(n_per_task=12)
    table = table[table["UID"] == table["UID"].iloc[0]]
    table["sentence_good"], table["sentence_bad"] = ("w1 w2 w3", "w1 w3 w2")
    table["sentence_good"] += [f" w{number}" for number in range(len(table))]
    table["sentence_bad"] += [f" w{number}" for number in range(len(table))]
    expected = interp.probing.study(load_toy("llama", backend="bridge"), table, methods=["dense"], progress=False)
    with on_two("llama") as model:
        assert_same(interp.probing.study(model, table, methods=["dense"], progress=False), expected)


@pytest.mark.slow
@pytest.mark.parametrize("inside_of_interp", [True, False])
def test_recipes_act_where_the_activations_are(inside_of_interp, on_two, load_toy):
    tokens, logits = torch.arange(7, 15)[None], []
    with on_two("gpt2") as spread_out:
        for model in (load_toy("gpt2"), spread_out):
            last = model.cfg.n_layers - 1
            recipe = ablate_dims(model, last, [1, 3], where="keys", mode="mean", means=torch.ones(16))
            recipe += ablate_dims(model, last, [2], where="residual") + scale_bias(model, "ln", 0.5)
            recipe += prune_output_dims(model, [4]) + capture(model, "resid_post", {}, layer=last)
            hooked = running(model, recipe) if inside_of_interp else model.hooks(fwd_hooks=recipe)
            with torch.no_grad(), hooked:
                logits.append(model(tokens).cpu())
    torch.testing.assert_close(*logits, atol=1e-6, rtol=1e-6)


@pytest.mark.slow
def test_a_map_of_one_device_is_that_device(hf_directory):
    for device_map in ("auto", {"": "cpu"}, {"transformer": "cpu:0", "lm_head": torch.device("cpu")}):
        model = interp.load(hf_directory("gpt2"), device_map=device_map)
        assert view(model).wrapped is not None, "a bridge"
        assert model.W_U.device.type == "cpu"


@pytest.mark.parametrize(
    ("way", "room"), [("auto", 0.8), ("balanced", 0.8), ("balanced_low_0", 1.2), ("sequential", 0.8)]
)
def test_accelerate_divides_blocks_among_the_gpus_of_the_process(way, room, monkeypatch):
    if way != "sequential" and Version(version("accelerate")) < Version("1.15"):
        pytest.skip("accelerate below 1.15 balances only over GPUs that exist")
    config = transformers.GPT2Config(n_embd=32, n_layer=12, n_head=4, vocab_size=67, n_positions=24)
    plain = transformers.GPT2LMHeadModel(config)
    monkeypatch.setattr(spread, "own_gpus", lambda: [2, 3])
    monkeypatch.setattr(spread, "find_device", torch.device)
    size = sum(one.numel() for one in plain.parameters()) * 4
    monkeypatch.setattr(memory, "available", lambda device: room * size)
    found = placed(plain, way, torch.float32)
    expected = {"cuda:3"} if way == "balanced_low_0" else {"cuda:2", "cuda:3"}
    assert expected <= {str(one) for one in found.devices} <= {"cuda:2", "cuda:3"}
    monkeypatch.setattr(memory, "available", lambda device: 0.3 * size)
    with pytest.raises(ValueError, match=naming("KiB", "GPUs 2, 3", "dtype")):
        placed(plain, way, torch.float32)


WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "an unknown way": ("all", ("device_map", "'all'", "auto, balanced")),
    "a device that is not there": ({"": "cuda:7"}, ("'cuda:7'",)),
    "a GPU by number": ({"": 7}, ("'cuda:7'",)),
    "a part of no model": ({"model": "cpu"}, ("device_map", "'model'", "lm_head")),
    "a tied head left out": ({"transformer": "cpu"}, ("device_map", "lm_head.weight")),
    "too little": ({"lm_head": "cpu", "transformer.h": "cpu"}, ("device_map", "transformer.wte.weight")),
}


@pytest.mark.parametrize("case", WRONG)
def test_refuses(case, hf_directory):
    device_map, values = WRONG[case]
    with pytest.raises(ValueError, match=naming(*values)):
        interp.load(hf_directory("gpt2"), device_map=device_map)


def test_refuses_what_cannot_be_divided(plain, hf_directory, monkeypatch):
    monkeypatch.setattr(spread, "find_device", torch.device)
    for changed, values in [
        ({"transformer.h.1.mlp": "cuda:1"}, ("transformer.h.1", "cuda:0, cuda:1")),
        ({"lm_head": "cuda:1"}, ("transformer.wte.weight", "lm_head.weight")),
        ({"transformer.h.1": "cpu"}, ("cpu, cuda:0",)),
    ]:
        with pytest.raises(ValueError, match=naming("device_map", *values)):
            placed(plain, {"": "cuda:0"} | changed, torch.float32)
    with pytest.raises(TypeError, match=naming("device_map", "auto, balanced, balanced_low_0, sequential", 0)):
        check_device_map(0, None, None)
    with pytest.raises(TypeError, match=naming("device_map", "device(type='cpu')", "device=")):
        check_device_map(torch.device("cpu"), None, None)
    with pytest.raises(ValueError, match=naming("device_map", "TransformerBridge", "device")):
        interp.load(hf_directory("gpt2"), device="cpu", device_map="auto")
    with pytest.raises(ValueError, match=naming("device_map", "TransformerBridge", "backend='hooked'")):
        interp.load(hf_directory("gpt2"), backend="hooked", device_map="auto")


def test_processes_of_a_machine_divide_its_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert own_gpus() == list(range(8))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    shares = []
    for rank in range(3):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        shares.append(own_gpus())
    assert shares == [[0, 1], [2, 3, 4], [5, 6, 7]]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "9")
    with pytest.raises(ValueError, match=naming(9, 8, "device='cpu'")):
        own_gpus()
