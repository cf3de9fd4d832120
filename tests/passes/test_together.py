"""Any set of observers in one pass gives what each gives alone, whatever the batches."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from toys import toy

from interp import corpora, encoding
from interp.analyses.attention.ablation import KeyAblation, StreamAblation
from interp.analyses.attention.frames import FrameDraws, Removal
from interp.analyses.attention.patterns import AttentionByClass
from interp.analyses.controls.outliers import OutlierDims, PartPredictions
from interp.analyses.directions.sources import DirectionSums
from interp.analyses.encoding.pruning import Agreements, PrunedPredictions
from interp.analyses.encoding.steering import LogOdds, SteeredMeans
from interp.analyses.encoding.theory import LogProbabilities
from interp.analyses.encoding.twins import ScaledPredictions
from interp.analyses.frequency.components import MeanParts
from interp.analyses.sinks.shuffled import ShuffledKeys
from interp.analyses.sinks.writers import MassiveWriters
from interp.corpora.classes import TokenClasses
from interp.instruments.logits import SiteMean
from interp.instruments.massive import MassiveActivations
from interp.instruments.neurons import NeuronEffects
from interp.instruments.predictions import MeanPredictions, Variant
from interp.instruments.profile import DimensionCorrelations, DimensionProfile
from interp.instruments.regression import raw_head
from interp.instruments.scores import ScoreContributions
from interp.instruments.sinks import Sinks
from interp.passes.contexts import LargestTokens
from interp.passes.observers import Observer
from interp.passes.reading import observe

CLASSES = TokenClasses(("even", "odd"), lambda tokens: tokens % 2)
LOG_UNIGRAM = torch.linspace(-9, -1, 67, dtype=torch.float64)
MEANS = torch.linspace(-1, 1, 64)
SHIFT = torch.linspace(-2, 2, 67, dtype=torch.float64)

TOKENS = torch.randint(7, 67, (8, 20), generator=torch.Generator().manual_seed(0))


@functools.cache
def fitted(model: Any) -> encoding.regression.Fit:
    return encoding.fit(model, TOKENS, progress=False)


EXAMPLES: dict[str, Callable[[Any], Observer]] = {
    "Agreements": lambda model: Agreements(model, [[0, 3], [5, 7]]),
    "AttentionByClass": lambda model: AttentionByClass(model, CLASSES),
    "DimensionCorrelations": lambda model: DimensionCorrelations(model, LOG_UNIGRAM),
    "DirectionSums": lambda model: DirectionSums(model, [0, 1]),
    "DimensionProfile": lambda model: DimensionProfile(model, CLASSES),
    "FrameDraws": lambda model: FrameDraws(
        model, CLASSES, Removal.of([3, 5], dict.fromkeys((0, 1), np.full(16, 0.2)), tested=2, seed=0)
    ),
    "KeyAblation": lambda model: KeyAblation(model, CLASSES, {0: {3: 0.5}, 1: {2: 0.0}}),
    "LargestTokens": lambda model: LargestTokens(model),
    "LogProbabilities": lambda model: LogProbabilities(model),
    "LogOdds": lambda model: LogOdds(model, [9, 10]),
    "MassiveActivations": lambda model: MassiveActivations(model),
    "MassiveWriters": lambda model: MassiveWriters(model),
    "MeanParts": lambda model: MeanParts(model, raw_head(model)),
    "MeanPredictions": lambda model: MeanPredictions(
        model, [Variant(), Variant(shift=SHIFT), Variant(shift=40 * SHIFT)]
    ),
    "NeuronEffects": lambda model: NeuronEffects(model, [0, 5], MEANS, LOG_UNIGRAM, exact=True),
    "OutlierDims": lambda model: OutlierDims(model),
    "PartPredictions": lambda model: PartPredictions(model, [3, 5], torch.eye(16)[[3, 5]][None], grouped=True),
    "PrunedPredictions": lambda model: PrunedPredictions(
        model, fitted(model), ["spearman", "reverse"], "pca", [0, 0.25, 0.55], 0
    ),
    "ShuffledKeys": lambda model: ShuffledKeys(model, range(0, 30, 2), epsilon=0.2),
    "ScaledPredictions": lambda model: ScaledPredictions(model, 2.0),
    "ScoreContributions": lambda model: ScoreContributions(model, CLASSES),
    "Sinks": lambda model: Sinks(model, CLASSES),
    "SiteMean": lambda model: SiteMean(model, "resid_post", 16, layer=0),
    "StreamAblation": lambda model: StreamAblation(model, CLASSES, {0: {3: 0.5}, 1: {2: 0.0, 7: 0.1}}),
    "SteeredMeans": lambda model: SteeredMeans(
        model, [(9, 0.5, [0.0]), (10, 0.0, [0.7])], np.linspace(-1, 1, 16)[None]
    ),
}
FOR_DECODERS = {"MassiveWriters", "MeanParts", "NeuronEffects"}
ELSEWHERE = {"HeadInputs", "Scale", "TokenScores", "UnitSums"}
"""Observers that keep every row, or read batches of their own: see tests/explorer/test_panels.py,
tests/units/test_units.py and test_scores.py."""


def all_observers() -> set[str]:
    def below(kind: type) -> set[type]:
        return {kind for one in kind.__subclasses__() for kind in (one, *below(one))}

    ours = {kind for kind in below(Observer) if kind.__module__.startswith("interp.")}
    return {kind.__name__ for kind in ours if not kind.__subclasses__()}


def test_every_observer_has_an_example() -> None:
    assert all_observers() - ELSEWHERE <= set(EXAMPLES)


@pytest.fixture(scope="module")
def toys(hf_directory: Any) -> dict[str, Any]:
    import interp

    tokenizer = interp.load(hf_directory("gpt2")).tokenizer
    return {"decoder": toy(tokenizer).double(), "encoder": toy(tokenizer, encoder=True).double()}


def read(model: Any, batches: corpora.Batches, names: list[str]) -> list[dict[str, torch.Tensor]]:
    observers = [EXAMPLES[name](model) for name in names]
    observe(model, batches, *observers, progress=False)
    return [observer.state for observer in observers]


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_together_equals_alone(kind: str, toys: dict[str, Any], texts: list[str]) -> None:
    model = toys[kind]
    able = sorted(set(EXAMPLES) - (FOR_DECODERS if kind == "encoder" else set()))
    alone: dict[tuple[str, str, float | None], dict[str, torch.Tensor]] = {}

    @settings(
        max_examples=25,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=True,
    )
    @given(
        names=st.lists(st.sampled_from(able), min_size=1, max_size=5),
        batch_size=st.integers(1, 40),
        layout=st.sampled_from(["packed", "texts"]),
        mask_rate=st.sampled_from([None, 0.3] if kind == "encoder" else [None]),
    )
    def check(names: list[str], batch_size: int, layout: Any, mask_rate: float | None) -> None:
        options: dict[str, Any] = {"layout": layout, "mask_rate": mask_rate}
        batches = corpora.batches(model, texts, batch_size=batch_size, **options)
        for name, state in zip(names, read(model, batches, names), strict=True):
            key = (name, layout, mask_rate)
            if key not in alone:
                (alone[key],) = read(model, corpora.batches(model, texts, batch_size=7, **options), [name])
            assert state.keys() == alone[key].keys()
            torch.testing.assert_close(state, alone[key], rtol=1e-6, atol=1e-6)

    check()
