"""Equal observers are filled once, and observers that read something else are not taken for equal."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from naming import naming
from passes.test_together import CLASSES, EXAMPLES, LOG_UNIGRAM, MEANS, SHIFT, fitted

import interp
from interp.analyses.attention.ablation import KeyAblation, StreamAblation
from interp.analyses.attention.frames import FrameDraws, Removal
from interp.analyses.attention.patterns import AttentionByClass
from interp.analyses.controls.outliers import PartPredictions
from interp.analyses.directions.sources import DirectionSums
from interp.analyses.encoding.pruning import Agreements, PrunedPredictions
from interp.analyses.encoding.steering import LogOdds, SteeredMeans
from interp.analyses.encoding.twins import ScaledPredictions
from interp.analyses.sinks.shuffled import ShuffledKeys
from interp.corpora.classes import TokenClasses
from interp.instruments.logits import SiteMean
from interp.instruments.neurons import NeuronEffects
from interp.instruments.predictions import MeanPredictions, Variant
from interp.instruments.profile import DimensionCorrelations, DimensionProfile
from interp.instruments.scores import ScoreContributions
from interp.instruments.sinks import Sinks
from interp.passes import shared
from interp.passes.contexts import LargestTokens
from interp.passes.execution import Passes, Reading, execute, side_by_side
from interp.passes.observers import Observer
from interp.passes.reading import observe
from interp.passes.shared import plan
from interp.testing import assert_observer_merges, toy_decoder

OTHER = TokenClasses(("even", "odd"), lambda tokens: (tokens + 1) % 2)
SITES = {0: "blocks.0.hook_resid_pre", 1: "blocks.1.hook_resid_pre"}
PRUNED: dict[str, Any] = {"orders": ["spearman", "random"], "basis": "pca", "fractions": [0, 0.25, 0.55], "seed": 0}
SCORES: dict[str, Any] = {"layers": [0, 1]}


def pruned(model: Any, **changed: Any) -> Observer:
    return PrunedPredictions(model, fitted(model), **PRUNED | changed)


def draws(
    model: Any, classes: Any = CLASSES, dims: Sequence[int] = (3, 5), fill: float = 0.2, **changed: Any
) -> Observer:
    fills = dict.fromkeys((0, 1), np.full(16, fill))
    return FrameDraws(model, classes, Removal.of(dims, fills, tested=2, seed=0), **changed)


def effects(model: Any, **changed: Any) -> Observer:
    arguments: dict[str, Any] = {"neurons": [0, 5], "means": MEANS, "log_unigram": LOG_UNIGRAM, "exact": True}
    return NeuronEffects(model, **arguments | changed)


def parts(model: Any, dims: list[int], scale: float = 1.0, *, grouped: bool = True) -> Observer:
    return PartPredictions(model, dims, scale * torch.eye(16)[dims][None], grouped=grouped)


CHANGED: dict[str, list[Callable[[Any], Observer]]] = {
    "Agreements": [
        lambda model: Agreements(model, [[0, 3], [5, 7]]),
        lambda model: Agreements(model, [[0, 3], [5, 8]]),
    ],
    "AttentionByClass": [
        lambda model: AttentionByClass(model, CLASSES),
        lambda model: AttentionByClass(model, OTHER),
        lambda model: AttentionByClass(model, CLASSES, layers=[1]),
    ],
    "DimensionCorrelations": [
        lambda model: DimensionCorrelations(model, LOG_UNIGRAM),
        lambda model: DimensionCorrelations(model, LOG_UNIGRAM**2),
    ],
    "DirectionSums": [lambda model: DirectionSums(model, [0]), lambda model: DirectionSums(model, [1])],
    "DimensionProfile": [
        lambda model: DimensionProfile(model, CLASSES),
        lambda model: DimensionProfile(model, OTHER),
        lambda model: DimensionProfile(model, CLASSES, of="attn_input"),
    ],
    "FrameDraws": [
        draws,
        lambda model: draws(model, OTHER),
        lambda model: draws(model, dims=[3, 6]),
        lambda model: draws(model, fill=0.3),
        lambda model: draws(model, row_step=2),
        lambda model: draws(model, seed=1),
    ],
    "KeyAblation": [
        lambda model: KeyAblation(model, CLASSES, {0: {3: 0.5}, 1: {2: 0.0}}),
        lambda model: KeyAblation(model, OTHER, {0: {3: 0.5}, 1: {2: 0.0}}),
        lambda model: KeyAblation(model, CLASSES, {0: {3: 0.6}, 1: {2: 0.0}}),
        lambda model: KeyAblation(model, CLASSES, {0: {4: 0.5}, 1: {2: 0.0}}),
    ],
    "LargestTokens": [
        lambda model: LargestTokens(model),
        lambda model: LargestTokens(model, SITES),
        lambda model: LargestTokens(model, {1: SITES[0], 0: SITES[1]}),
        lambda model: LargestTokens(model, {5: SITES[0], 1: SITES[1]}),
    ],
    "LogOdds": [lambda model: LogOdds(model, [9, 10]), lambda model: LogOdds(model, [10, 9])],
    "LogProbabilities": [],
    "MassiveActivations": [],
    "MassiveWriters": [],
    "MeanParts": [],
    "MeanPredictions": [
        lambda model: MeanPredictions(model, [Variant(), Variant(shift=SHIFT)]),
        lambda model: MeanPredictions(model, [Variant(), Variant(shift=2 * SHIFT)]),
        lambda model: MeanPredictions(model, [Variant(), Variant(shift=SHIFT)], grouped=True),
        lambda model: MeanPredictions(model, [Variant(), Variant(shift=SHIFT)], classes=torch.arange(67).numpy() % 2),
        lambda model: MeanPredictions(
            model, [Variant(), Variant(shift=SHIFT)], grouped=True, bands=torch.arange(67).numpy() % 2
        ),
        lambda model: MeanPredictions(
            model, [Variant(), Variant(shift=SHIFT)], grouped=True, bands=torch.arange(67).numpy() // 2 % 2
        ),
    ],
    "NeuronEffects": [
        effects,
        lambda model: effects(model, neurons=[5, 0]),
        lambda model: effects(model, means=2 * MEANS),
        lambda model: effects(model, log_unigram=LOG_UNIGRAM.sin()),
        lambda model: effects(model, exact=False),
    ],
    "OutlierDims": [],
    "PartPredictions": [
        lambda model: parts(model, [3, 5]),
        lambda model: parts(model, [3, 6]),
        lambda model: parts(model, [3, 5], scale=2.0),
    ],
    "PrunedPredictions": [
        pruned,
        lambda model: pruned(model, orders=["reverse", "random"]),
        lambda model: pruned(model, basis="axis"),
        lambda model: pruned(model, fractions=[0, 0.5, 0.55]),
        lambda model: pruned(model, seed=1),
    ],
    "ScoreContributions": [
        lambda model: ScoreContributions(model, CLASSES, **SCORES),
        lambda model: ScoreContributions(model, OTHER, **SCORES),
        lambda model: ScoreContributions(model, CLASSES, layers=[1]),
        lambda model: ScoreContributions(model, CLASSES, **SCORES, weights="attention"),
        lambda model: ScoreContributions(model, CLASSES, **SCORES, centred=False),
        lambda model: ScoreContributions(model, CLASSES, **SCORES, average="sentence"),
    ],
    "ScaledPredictions": [
        lambda model: ScaledPredictions(model, 2.0),
        lambda model: ScaledPredictions(model, 3.0),
    ],
    "ShuffledKeys": [
        lambda model: ShuffledKeys(model, range(0, 30, 2), epsilon=0.2),
        lambda model: ShuffledKeys(model, range(0, 30, 3), epsilon=0.2),
        lambda model: ShuffledKeys(model, range(0, 30, 2), epsilon=0.3),
        lambda model: ShuffledKeys(model, range(0, 30, 2), epsilon=0.2, seed=1),
        lambda model: ShuffledKeys(model, range(0, 30, 2), epsilon=0.2, layers=[1]),
    ],
    "Sinks": [
        lambda model: Sinks(model, CLASSES),
        lambda model: Sinks(model, OTHER),
        lambda model: Sinks(model, CLASSES, layers=[1]),
        lambda model: Sinks(model, CLASSES, epsilon=0.2),
    ],
    "SiteMean": [
        lambda model: SiteMean(model, "resid_post", 16, layer=0),
        lambda model: SiteMean(model, "resid_post", 16, layer=1),
        lambda model: SiteMean(model, "attn_out", 16, layer=0),
        lambda model: SiteMean(model, "resid_post", 16, layer=0, dtype=torch.float32),
    ],
    "StreamAblation": [
        lambda model: StreamAblation(model, CLASSES, {0: {3: 0.5}}),
        lambda model: StreamAblation(model, CLASSES, {0: {3: 0.6}}),
        lambda model: StreamAblation(model, CLASSES, {1: {3: 0.5}}),
    ],
    "SteeredMeans": [
        lambda model: SteeredMeans(model, [(9, 0.5, [0.0])], torch.linspace(-1, 1, 16).numpy()[None]),
        lambda model: SteeredMeans(model, [(10, 0.5, [0.0])], torch.linspace(-1, 1, 16).numpy()[None]),
        lambda model: SteeredMeans(model, [(9, 0.5, [0.1])], torch.linspace(-1, 1, 16).numpy()[None]),
        lambda model: SteeredMeans(model, [(9, 0.5, [0.1])], torch.linspace(-1, 2, 16).numpy()[None]),
    ],
}
"""For each class of observers, an example and others that differ from it in one argument."""


@pytest.fixture(scope="module")
def model() -> Any:
    return toy_decoder().double()


@pytest.fixture
def text(model: Any, texts: list[str]) -> Any:
    return interp.corpora.batches(model, texts, context=24, batch_size=4)


def test_arguments_of_every_observer_are_changed() -> None:
    assert CHANGED.keys() == EXAMPLES.keys()


def same_states(first: Observer, second: Observer) -> bool:
    return first.state.keys() == second.state.keys() and all(
        value.numpy().tobytes() == second.state[name].numpy().tobytes() for name, value in first.state.items()
    )


@pytest.mark.e2e
@pytest.mark.parametrize("name", EXAMPLES)
def test_observers_of_equal_options_read_the_same(name: str, model: Any, text: Any) -> None:
    observers = [make(model) for make in (EXAMPLES[name], EXAMPLES[name], *CHANGED[name])]
    for observer in observers:
        observe(model, text, observer, progress=False)
    for first in observers:
        for second in observers:
            assert same_states(first, second) or first.options != second.options, second.options
    fresh = [make(model) for make in (EXAMPLES[name], EXAMPLES[name], *CHANGED[name])]
    assert [id(copy) for copy, _ in plan(model, text, fresh).copies][:1] == [id(fresh[1])]


def wants(batches: Any, *rounds: list[Observer]) -> Passes[list[Observer]]:
    """An analysis that asks for some observers in each of several rounds, and returns them."""
    for observers in rounds:
        yield [Reading("reading", batches, observers)]
    return [observer for observers in rounds for observer in observers]


class Counting(SiteMean):
    """Counts the batches that were read."""

    batches = 0

    def hooks(self, batch: Any) -> Any:
        type(self).batches += 1
        return super().hooks(batch)


def counting(model: Any, dtype: torch.dtype = torch.float64) -> Counting:
    return Counting(model, "head_input", 16, dtype=dtype)


@pytest.fixture
def n_batches(text: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(Counting, "batches", 0)
    return len(list(text))


def test_two_analyses_share_what_they_ask_for(model: Any, text: Any, n_batches: int) -> None:
    both = side_by_side(wants(text, [counting(model)]), wants(text, [counting(model)]))
    (first,), (second,) = execute(model, both, progress=False)
    assert Counting.batches == n_batches
    assert torch.equal(first.mean, second.mean)
    second.state["sum"] += 1
    assert not torch.equal(first.mean, second.mean), "states are copied, never the object"


def test_a_later_pass_is_skipped_and_keeps_its_number(model: Any, text: Any, n_batches: int, tmp_path: Any) -> None:
    last = counting(model, torch.float32)
    rounds = [counting(model)], [counting(model)], [last]
    execute(model, wants(text, *rounds), progress=False, directory=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pass-1.safetensors", "pass-3.safetensors"]
    assert Counting.batches == 2 * n_batches
    again = [counting(model)], [counting(model)], [counting(model, torch.float32)]
    observers = execute(model, wants(text, *again), progress=False, directory=tmp_path)
    assert Counting.batches == 2 * n_batches, "a run that is resumed skips the same passes"
    for before, after in zip((*rounds[0], *rounds[1], last), observers, strict=True):
        assert torch.equal(before.mean, after.mean)


def test_large_states_are_read_again(model: Any, text: Any, n_batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MOST_BYTES", 100)
    execute(model, wants(text, [counting(model)], [counting(model)]), progress=False)
    assert Counting.batches == 2 * n_batches


def test_nothing_is_shared_between_runs_texts_and_hooks(
    model: Any, text: Any, texts: list[str], n_batches: int
) -> None:
    for _ in range(2):
        execute(model, wants(text, [counting(model)]), progress=False)
    assert Counting.batches == 2 * n_batches
    other = interp.corpora.batches(model, texts, context=20, batch_size=4)
    execute(model, side_by_side(wants(text, [counting(model)]), wants(other, [counting(model)])), progress=False)
    assert Counting.batches == 3 * n_batches + len(list(other))
    Counting.batches = 0
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", lambda value, hook: value + 1)]):
        execute(model, wants(text, [counting(model)], [counting(model)]), progress=False)
    assert Counting.batches == 2 * n_batches


def test_observers_that_hold_data_read(model: Any, text: Any, n_batches: int) -> None:
    full = counting(model)
    observe(model, text, full, progress=False)
    execute(model, wants(text, [counting(model), full]), progress=False)
    assert Counting.batches == 3 * n_batches
    with pytest.raises(ValueError, match=naming(2)):
        execute(model, wants(text, [full, full]), progress=False)


class Forgetful(SiteMean):
    """An observer of another package that leaves an argument out of its options."""

    def __init__(self, model: Any, factor: float) -> None:
        super().__init__(model, "head_input", 16)
        self.factor = factor

    def hooks(self, batch: Any) -> Any:
        ((name, read),) = super().hooks(batch)
        return [(name, lambda activation, hook: read(self.factor * activation, hook))]


def test_an_observer_whose_options_omit_an_argument_is_found(model: Any) -> None:
    rows = ["w1 w2 w0", "w4 w5", "w6 w7 w8 w1"]
    make: Callable[..., Observer] = lambda model: Forgetful(model, 1.0)  # noqa: E731
    assert_observer_merges(make, model, rows, others=[make])
    with pytest.raises(AssertionError, match=naming("others[1]", "'sum'")):
        assert_observer_merges(make, model, rows, others=[make, lambda model: Forgetful(model, 2.0)])
