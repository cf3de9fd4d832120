"""The memory a command takes, by formula, against what its observers and models hold, and whether it fits."""

from pkgutil import resolve_name
from typing import Any

import pytest
from naming import naming

import interp
from interp.analyses.attention.options import OUTLIERS
from interp.analyses.probing.states import collect
from interp.analyses.registry import load
from interp.corpora import pairs
from interp.models.footprint import PROCESS, Widths, default_rows, weights_of, widths
from interp.models.shapes import shape
from interp.passes.budget import Budget, Cost, Pass, budget, setup
from interp.passes.execution import execute, merged
from interp.passes.measure import first_batch
from interp.support import memory

CLASSES = {"first": [7, 8]}
ASKED: dict[str, dict[str, Any]] = {
    "frequency": {"scales": [0, 0.5, 1]},
    "attention": {"key_classes": CLASSES},
    "sinks": {"key_classes": CLASSES},
    "encoding": {"ratios": [2, 0.5], "orders": ["random", "slope"]},
    "directions": {},
}
AT_MOST = {"ablation", "steering"}
"""Passes whose size depends on earlier results: how many dimensions are outliers, and which ratios are possible."""


def held(model: Any, analysis: Any, text: Any, options: dict[str, Any]) -> dict[str, int]:
    """The bytes of the observers' states in each pass."""
    found: dict[str, int] = {}
    generator = resolve_name(analysis.answer).passes(model, text, **options)
    try:
        while True:
            for reading in next(generator):
                states = [state for observer in reading.observers for state in observer.state.values()]
                found[reading.what] = sum(state.numel() * state.element_size() for state in states)
                execute(model, iter_of(reading), progress=False)
    except StopIteration:
        return found


def iter_of(reading: Any) -> Any:
    yield [reading]


@pytest.mark.quick("frequency-llama")
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("name", ASKED)
@pytest.mark.filterwarnings("ignore:word frequencies come from")
@pytest.mark.filterwarnings("ignore:no frequency neurons")
@pytest.mark.filterwarnings("ignore:no (writers|neurons|outlier dimensions|sink keys)")
def test_sums_are_those_of_the_observers(name, kind, hf_directory, texts, monkeypatch):
    monkeypatch.setitem(OUTLIERS, "keys", 3)  # a toy has fewer outliers than the 16 that are estimated
    model, analysis = interp.load(hf_directory(kind)), load(name)
    cost = resolve_name(analysis.cost)(str(hf_directory(kind)), None, ASKED[name])
    expected: dict[str, int] = {}
    for one in cost.passes:
        expected[one.what] = expected.get(one.what, 0) + one.sums
    found = held(model, analysis, texts, ASKED[name])
    assert set(found) == set(expected)
    for what, size in found.items():
        assert size == expected[what] or (what in AT_MOST and 0.2 * expected[what] < size <= expected[what]), what


@pytest.mark.slow
def test_states_of_sentences_are_counted():
    table = pairs.generate(n_per_task=10)[:40]
    states = collect(interp.load("tiny-gpt2"), table, largest=True, progress=False)
    found = sum(states.load(state).nbytes for state in states.states)
    cost = resolve_name(load("probing").cost)("tiny-gpt2", "bundled", {"limit": 10})
    of_states = cost.numbers["states_bytes"] / 2  # the states of an untrained model take as much
    assert found == of_states / cost.numbers["n_sentences"] * 2 * len(table)
    assert cost.passes[0].sums == of_states + sum(one.nbytes for one in states.tokens.state.values())


@pytest.mark.quick("hooked-gpt2", "bridge-llama")
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "gpt_neox", "opt", "mistral"])
@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_weights_are_those_of_the_model(kind, backend, hf_directory):
    model, said = interp.load(hf_directory(kind), backend=backend), shape(str(hf_directory(kind)))
    expected = sum(weights_of(model).values())
    assert said.weights_bytes(said.dtype(None), backend) == pytest.approx(expected, rel=0.2)
    known = vars(widths(model))
    run = setup(str(hf_directory(kind)), {"backend": backend, "context": 8}).shape
    assert {name: getattr(run, name) for name in known} == known


@pytest.mark.parametrize(("kind", "biases"), [("gpt2", ("ln",)), ("llama", ()), ("gptj", ("ln", "last"))])
def test_biases_of_the_head_are_known_from_the_config(kind, biases, hf_directory):
    from interp.models.head import prediction_head

    assert shape(str(hf_directory(kind))).biases == biases
    assert prediction_head(interp.load(hf_directory(kind))).biases == biases


def made(**options: Any) -> Budget:
    one = Pass(what="reading", sums=1_000, per_token=100_000, head=True)
    return budget("tiny-gpt2", {"one": Cost(passes=(one,))}, options)


def test_the_peak_adds_up():
    found = made(batch_size=2, context=64)
    tokens, run = 128, found.run
    logits = tokens * 4 * (run.shape.d_vocab + 3 * run.shape.d_model)
    assert found.reading == 2 * 1_000 + logits + 2 * 100_000 * tokens
    few = budget("tiny-gpt2", {"one": Cost(passes=(Pass(what="reading"),))}, {"batch_size": 2, "context": 64})
    assert few.reading == 2 * tokens * 4 * (6 * 192 + 2 * 768), "a block, and what is kept of it"
    assert found.peak == PROCESS + run.weights + max(found.loading, found.reading, found.results)
    assert found.flops == pytest.approx(
        run.shape.forward + run.shape.attention(64) + 2.0 * run.shape.d_model * run.shape.d_vocab
    )


def test_copies_are_held_once_and_sums_twice():
    """A batch needs the room of the sums again, while copies of weights stay as they are."""
    plain, with_sums, with_copies = (
        budget("tiny-gpt2", {"one": Cost(passes=(Pass(what="reading", **more),))}, {}).reading
        for more in ({}, {"sums": 1_000}, {"copies": 1_000})
    )
    assert (with_sums - plain, with_copies - plain) == (2_000, 1_000)


def test_passes_of_the_same_text_are_one():
    same, other = Pass(what="a", sums=10, flops=1.0), Pass(what="b", sums=20, flops=2.0)
    one = budget("tiny-gpt2", {"a": Cost(passes=(same,)), "b": Cost(passes=(other,))}, {})
    assert [[each.what for each in group] for group in one.passes] == [["a", "b"]]
    apart = Cost(passes=(Pass(what="b", sums=20, flops=2.0, text="masked text"),))
    two = budget("tiny-gpt2", {"a": Cost(passes=(same,)), "b": apart}, {})
    assert len(two.passes) == 2
    assert two.flops - one.flops == one.flops - 3.0, "the blocks run twice"
    again = budget("tiny-gpt2", {"a": Cost(passes=(same,)), "b": Cost(passes=(other, same))}, {})
    assert again.passes == one.passes, "equal observers are filled once"


def test_operations_of_the_text_and_of_the_first_passes():
    passes = Pass(what="a"), Pass(what="b", step=1), Pass(what="c", text="sentences", step=1)
    found, one = (budget("tiny-gpt2", {"one": Cost(passes=some)}, {}) for some in (passes, passes[:1]))
    assert (found.flops, found.text_flops, found.first_flops) == (3 * one.flops, 2 * one.flops, one.flops)


def test_the_verdict_proposes_what_fits():
    found = made(batch_size=32, context=128)
    assert found.verdict(2**40) == (
        f"fits in memory: {memory.shown(found.peak)} of 1,024.0 GiB available",
        {"available_bytes": 2**40, "fits": True},
    )
    for wanted in ({"batch_size": 8, "context": 128}, {"batch_size": 1, "context": 64}):
        there = made(**wanted).needed
        text, numbers = found.verdict(there)
        proposed = {"batch_size": 1, **{"context": 128}} | numbers["advice"]
        assert not numbers["fits"]
        assert made(**proposed).needed <= there
        for name, value in numbers["advice"].items():
            assert f"--{name.replace('_', '-')} {value}" in text
    assert found.verdict(made(batch_size=8, context=128).needed)[1]["advice"] == {"batch_size": 8}
    text, numbers = found.verdict(2**20)
    least = memory.shown(made(batch_size=1, context=64).needed)
    assert text == f"does not fit in memory: at least {least} of 1 MiB available, weights 16 MiB", "and at no dtype"
    assert numbers["advice"] is None


def test_the_verdict_proposes_lighter_weights():
    found = made(batch_size=1, context=64)
    light = made(batch_size=1, context=64, dtype="bfloat16")
    files = made(batch_size=1, context=64, dtype="auto", backend="bridge")
    assert found.needed > light.needed > files.needed
    assert found.verdict(light.needed)[0].endswith("; with --dtype bfloat16 they take 8 MiB")
    in_files = "; --backend bridge --dtype auto leaves the weights in their files, which is slow"
    assert found.verdict(files.needed)[0].endswith(in_files)
    assert light.verdict(files.needed)[0].endswith(in_files)


def test_weights_that_stay_in_their_files_need_no_memory():
    mapped = made(dtype="auto", backend="bridge")
    assert mapped.run.mapped
    assert mapped.needed == mapped.peak - mapped.run.weights
    assert not made(backend="bridge").run.mapped, "the files are float16"


def test_an_untrained_model_without_room_takes_a_block(monkeypatch):
    run = setup("tiny-gpt2", {})
    monkeypatch.setattr(memory, "available", lambda device="cpu": PROCESS + 2 * run.weights)
    assert run.copied == run.weights
    monkeypatch.setattr(memory, "available", lambda device="cpu": PROCESS + 2 * run.weights - 1)
    one_block = 4 * 12 * 192**2
    assert run.copied == run.weights - 5 * one_block, "blocks that do not run are left out of the six"


def test_a_context_beyond_the_models_is_refused():
    with pytest.raises(ValueError, match=naming("context", "2 … 128", 129)):
        setup("tiny-gpt2", {"context": 129})
    with pytest.raises(ValueError, match=naming("dtype", "int8")):
        setup("tiny-gpt2", {"dtype": "int8"})


def test_rows_by_default_obey_memory(monkeypatch, texts, load_toy):
    model = load_toy("gpt2")
    assert interp.corpora.batches(model, texts, context=24).settings["tokens_per_batch"] == 170 * 24
    sizes = widths(model)
    enough = sizes.block_bytes(40, 24, 4)
    monkeypatch.setattr(memory, "total", lambda device="cpu": PROCESS + sum(weights_of(model).values()) + 2 * enough)
    found = interp.corpora.batches(model, texts, context=24).settings["tokens_per_batch"]
    assert found == 32 * 24, "the largest power of two"
    monkeypatch.setattr(memory, "total", lambda device="cpu": 0)
    assert interp.corpora.batches(model, texts, context=24).settings["tokens_per_batch"] == 24


def test_rows_by_default_never_exceed_what_they_were():
    gpt2 = Widths(n_heads=12, n_key_value_heads=12, d_model=768, d_head=64, d_mlp=3072, d_vocab=50257, gated=False)
    for context in (16, 128, 1_024):
        for room in (2**20, 2**28, 2**40):
            rows = default_rows(gpt2, context, itemsize=4, room=room)
            assert 1 <= rows <= max(1, min(4_096 // context, 2**26 // (context * 50_257)))


def test_the_first_batch_is_measured(load_toy, texts):
    model = load_toy("gpt2")
    text = interp.corpora.batches(model, texts, context=12, batch_size=3)
    passes = interp.attention.study.passes(model, text, key_classes=CLASSES)
    found = first_batch(model, passes, text)
    assert found.seconds > 0
    assert found.peak > 2**20
    assert found.n_batches == pytest.approx(len(list(text)), abs=1)
    own = interp.generation.study.passes(model, texts, n=2, prompt_tokens=2, new_tokens=4)
    assert first_batch(model, own, text).seconds > 0, "a plain forward pass"
    assert list(merged([])) == []
