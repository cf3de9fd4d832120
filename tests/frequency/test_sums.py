"""Sums over large vocabularies, against float64 sums of the same float32 logits."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

from interp import corpora
from interp.analyses.controls.outliers import PartPredictions
from interp.analyses.encoding import fit
from interp.analyses.encoding.pruning import PrunedPredictions
from interp.analyses.encoding.steering import SteeredMeans
from interp.analyses.probing.scores import Sentences, TokenScores
from interp.instruments.neurons import NeuronEffects
from interp.instruments.predictions import MeanPredictions, Variant
from interp.models.softmax import exponentials, log_partition, over_positions, over_types
from interp.passes.reading import observe
from interp.testing import randomise, toy_decoder

SIZES = [49_152, 262_144]
LIMIT = 1e-6


def logits_like(kind: str, n: int, d_vocab: int) -> torch.Tensor:
    """Logits of the spread of a trained model's: far below 0, with a wide range, or with one token almost certain."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(n, d_vocab, generator=generator)
    true = torch.randint(d_vocab, (n, 1), generator=generator)
    if kind == "negative":
        return 3 * drawn - 70
    if kind == "wide":
        return (8 * drawn - 5).scatter_add(1, true, torch.full((n, 1), 30.0))
    return (2 * drawn).scatter(1, true, 2 * drawn.amax(1, keepdim=True) + 8)


@pytest.fixture(scope="module")
def models() -> dict[int, HookedTransformer]:
    return {d_vocab: model_of(d_vocab) for d_vocab in SIZES}


def model_of(d_vocab: int) -> HookedTransformer:
    config = HookedTransformerConfig(
        n_layers=1, d_model=8, d_head=4, n_heads=2, d_mlp=16, n_ctx=16, d_vocab=d_vocab, act_fn="gelu", seed=0
    )
    model = HookedTransformer(config)
    randomise(model)
    return model


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def largest(values: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest relative difference."""
    return float((values / expected - 1).abs().max())


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("d_vocab", "kind"), [(SIZES[0], "negative"), (SIZES[0], "wide"), (SIZES[0], "certain"), (SIZES[1], "certain")]
)
def test_sums_equal_those_in_float64(kind: str, d_vocab: int) -> None:
    logits = logits_like(kind, 8, d_vocab)
    weights = torch.rand(3, d_vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    e, offset = exponentials(logits)
    wide = (logits.double() - offset).exp()
    expected = torch.cat([wide.sum(1)[None], weights @ wide.T])
    assert largest(over_types(e, weights), expected) < 1e-7
    assert largest(log_partition(logits).exp(), logits.double().exp().sum(1)) < 1e-7
    shares = expected.reciprocal()
    q = over_positions(e, shares, out=torch.empty(4, d_vocab, dtype=torch.float64))
    assert largest(q, shares @ wide) < LIMIT


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("d_vocab", "kind"), [(SIZES[0], "negative"), (SIZES[0], "wide"), (SIZES[0], "certain"), (SIZES[1], "certain")]
)
def test_mean_predictions_equal_those_in_float64(kind: str, d_vocab: int, models: dict[int, HookedTransformer]) -> None:
    """q and NLL of scales of a vector, of a part of it that changes next to nothing, and of the unedited model."""
    model = models[d_vocab]
    ids = torch.randint(d_vocab, (2, 8), generator=torch.Generator().manual_seed(2))
    logits = logits_like(kind, ids.numel(), d_vocab)
    c = 2 * torch.randn(d_vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    scales = [1, 0.999999, 0.5, 0, 1]
    observer = MeanPredictions(model, [Variant(shift=(scale - 1) * c) for scale in scales])
    given = lambda activation, hook: logits.view(*ids.shape, d_vocab)  # noqa: E731
    with model.hooks(fwd_hooks=[("unembed.hook_out", given)]):
        observe(model, corpora.batches(model, ids), observer, progress=False)
    scored = torch.ones_like(ids, dtype=torch.bool)
    scored[:, -1] = False
    true = ids[:, 1:].flatten()
    exact = {}
    for number, scale in enumerate(scales):
        log_p = (logits.double() + (scale - 1) * c).log_softmax(1)
        q = torch.from_numpy(observer.distributions[number])
        assert largest(q, log_p.exp().mean(0)) < LIMIT
        nll = -log_p[scored.flatten()].gather(1, true[:, None]).mean()
        assert observer.nll[number] == pytest.approx(float(nll), rel=LIMIT / 100)
        exact[scale] = log_p
    assert observer.nll[0] == observer.nll[4]
    p = exact[1][scored.flatten()].exp()
    slope = float((p @ c - c[true]).mean())
    assert (observer.nll[1] - observer.nll[0]) / -1e-6 == pytest.approx(slope, rel=1e-4)


def observer_of(name: str, model: HookedTransformer):
    d_vocab, dims = model.cfg.d_vocab, model.cfg.d_model
    generator = torch.Generator().manual_seed(4)
    if name == "parts":
        return PartPredictions(model, [1, 2], torch.eye(dims, dtype=torch.float64)[[1, 2]][None])
    if name == "steering":
        return SteeredMeans(model, [(5, 1.0, [0.0]), (9, 0.0, [0.5])], np.ones((1, dims)))
    if name == "pruning":
        text = torch.randint(d_vocab, (4, 8), generator=generator)
        return PrunedPredictions(model, fit(model, text, progress=False), ["random"], "axis", [0, 0.5], 0)
    log_u = torch.randn(d_vocab, dtype=torch.float64, generator=generator)
    return NeuronEffects(model, range(16), torch.zeros(16), log_u, exact=name == "neurons, exact")


@pytest.mark.parametrize("name", ["parts", "steering", "pruning", "neurons, exact", "neurons, roughly"])
def test_observers_of_logits_in_float32_equal_those_in_float64(name: str, models: dict[int, HookedTransformer]) -> None:
    """The same logits and activations are read in both dtypes, so that only the sums differ."""
    models = {torch.float32: models[SIZES[0]], torch.float64: model_of(SIZES[0]).to(torch.float64)}
    n, d_vocab = 8, SIZES[0]
    generator = torch.Generator().manual_seed(5)
    logits = logits_like("certain", n, d_vocab)
    true = torch.randint(d_vocab, (n,), generator=generator)
    activations = [torch.randn(n, 8, generator=generator)]
    if name.startswith("neurons"):
        activations.insert(0, torch.rand(n, 16, generator=generator) / 4)
    elif name != "steering":
        activations.append(torch.zeros(n, dtype=torch.long))
    states = {}
    for dtype, model in models.items():
        observer = observer_of(name, model)
        head = [one.to(dtype) if one.is_floating_point() else one for one in activations]
        observer.read(logits.to(dtype), true, *head)
        observer.commit()
        states[dtype] = observer.state
    for state, expected in states[torch.float64].items():
        limit = 3 * LIMIT * float(expected.abs().max().nan_to_num(0, 0))
        torch.testing.assert_close(states[torch.float32][state], expected, atol=limit, rtol=0, equal_nan=True)


def test_scores_of_sentences_equal_those_in_float64() -> None:
    model = toy_decoder(vocab_size=SIZES[0])
    sentences = Sentences(model, ["w1 w2 w3", "w4 w5"], bos=False)
    logits = logits_like("certain", 6, SIZES[0]).view(2, 3, -1)
    observer = TokenScores(sentences)
    with model.hooks(fwd_hooks=[("unembed.hook_out", lambda activation, hook: logits)]):
        observe(model, sentences.batches(), observer, progress=False)
    log_p = logits.double().log_softmax(-1)
    expected = [np.nan, log_p[0, 0, 9], log_p[0, 1, 10], np.nan, log_p[1, 0, 12]]
    np.testing.assert_allclose(observer.log_probabilities, expected, rtol=LIMIT / 10)
