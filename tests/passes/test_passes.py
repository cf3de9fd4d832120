"""Analyses side by side: no more passes than the text needs, and the same results as each alone."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming
from toys import every_table

import interp
from interp import corpora
from interp.analyses.attention import study as attention_study
from interp.analyses.encoding.tables import study as encoding_study
from interp.models import identity
from interp.models.sites import hook_name
from interp.passes import execution
from interp.passes.execution import Reading, execute, side_by_side
from interp.passes.observers import Observer


@pytest.fixture
def observed(monkeypatch):
    """The descriptions of the forward passes over a text, in order."""
    names = []
    observe = execution.observe

    def spied(*arguments, what, **options):
        names.append(what)
        return observe(*arguments, what=what, **options)

    monkeypatch.setattr(execution, "observe", spied)
    return names


def same(one, other):
    assert one.provenance == other.provenance
    found = every_table(other)
    for name, table in every_table(one).items():
        pd.testing.assert_frame_equal(table, found[name], rtol=1e-9, atol=1e-12)


@pytest.mark.e2e
def test_three_questions_of_a_causal_model_share_their_passes(observed):
    model = interp.load("tiny-gpt2")
    text = corpora.batches(model, corpora.load("bundled", limit=20), bos=True)
    counts = corpora.counts.unigrams_of(model, text, None)
    found = execute(
        model,
        side_by_side(
            interp.frequency.study.passes(model, text, unigram=counts),
            attention_study.passes(model, text, unigram=counts, layers=[0, 3]),
            encoding_study.passes(model, text, unigram=counts, bases=["axis"]),
        ),
        progress=False,
    )
    assert observed == [
        "pass 1, word frequency + attention + attention scores + token probability",
        "pass 2, ablation + log-odds + mean neurons + largest tokens",
        "pass 3, pruning",
        "pass 4, random orders + neurons",
        "pass 5, steering",
        "pass 6, neurons, exact",
    ]
    same(found[0], interp.frequency.study(model, text, unigram=counts, progress=False))
    same(found[1], attention_study(model, text, unigram=counts, layers=[0, 3], progress=False))
    same(found[2], encoding_study(model, text, unigram=counts, bases=["axis"], progress=False))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no token of class")
def test_masked_and_plain_text_are_read_apart(load_toy, texts, observed):
    model = load_toy("bert")
    counts = np.arange(67)
    masked = corpora.batches(model, texts, mask_rate=0.3)
    plain = corpora.batches(model, texts)
    found = execute(
        model,
        side_by_side(
            interp.frequency.study.passes(model, masked, unigram=counts),
            attention_study.passes(model, plain, unigram=counts),
        ),
        progress=False,
    )
    assert observed == ["pass 1, word frequency", "pass 2, attention + attention scores", "pass 3, ablation"]
    same(found[0], interp.frequency.study(model, masked, unigram=counts, progress=False))


class MeanResidual(Observer):
    def __init__(self, model, layer):
        super().__init__(model.W_U.device, layer=layer)
        self.name = hook_name(model, "resid_post", layer)
        self.add_state("sum", (model.cfg.d_model,))
        self.add_state("n", ())

    def hooks(self, batch):
        def read(resid, hook):
            chosen = batch.select(resid)
            self.add("sum", chosen.double().sum(0))
            self.add("n", len(chosen))

        return [(self.name, read)]


def deviation(model, batches):
    """The distance between the means of layers 1 and 0, from two readings of which the second follows the first."""
    first = MeanResidual(model, 0)
    yield [Reading("first", batches, [first])]
    second = MeanResidual(model, 1)
    yield [Reading("second", batches, [second])]
    return (second.state["sum"] / second.state["n"] - first.state["sum"] / first.state["n"]).norm().item()


def test_a_users_own_analysis(load_toy, texts):
    model = load_toy("gpt2")
    batches = corpora.batches(model, texts, context=12, batch_size=4)
    tokens = torch.cat([batch.tokens for batch in batches])
    _, cache = model.run_with_cache(tokens)
    means = [cache[hook_name(model, "resid_post", layer)].double().mean((0, 1)) for layer in (0, 1)]
    expected = (means[1] - means[0]).norm().item()
    assert execute(model, deviation(model, batches), progress=False) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_what_was_read_is_not_read_again(load_toy, texts, tmp_path, monkeypatch):
    model = load_toy("gpt2")
    batches = corpora.batches(model, texts, context=12, batch_size=4)
    whole = execute(model, deviation(model, batches), progress=False)
    feed, seen = interp.passes.reading.feed, []

    def dying(*arguments):
        seen.append(1)
        if len(seen) > len(list(batches)) + 2:
            raise KeyboardInterrupt
        feed(*arguments)

    monkeypatch.setattr(interp.passes.reading, "feed", dying)
    with pytest.raises(KeyboardInterrupt):
        execute(model, deviation(model, batches), progress=False, directory=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pass-1.safetensors", "pass-2.safetensors"]
    seen.clear()
    assert execute(model, deviation(model, batches), progress=False, directory=tmp_path) == whole
    assert len(seen) == len(list(batches)) - 2, "only what was left of the second reading"
    monkeypatch.undo()
    with pytest.raises(ValueError, match=naming(tmp_path, "batches.fingerprint")):
        execute(model, deviation(model, corpora.batches(model, texts[1:])), progress=False, directory=tmp_path)


def test_a_mistake_shows_before_anything_is_read(load_toy, texts, observed):
    model = load_toy("gpt2")
    text = corpora.batches(model, texts)
    with pytest.raises(ValueError, match=naming("token id 99")):
        execute(
            model,
            side_by_side(
                interp.frequency.study.passes(model, text, unigram=np.arange(67)),
                attention_study.passes(model, text, unigram=np.arange(67), key_classes={"last": [99]}),
            ),
            progress=False,
        )
    assert observed == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_weights_are_hashed_once_for_each_call(load_toy, texts, tmp_path, monkeypatch):
    model = load_toy("gpt2")
    hashed = []

    class Counted:
        def __init__(self):
            hashed.append(1)
            self.digest = _xxh3()

        def update(self, data):
            self.digest.update(data)

        def hexdigest(self):
            return self.digest.hexdigest()

    _xxh3 = identity.xxhash.xxh3_128
    monkeypatch.setattr(
        identity, "xxhash", SimpleNamespace(xxh3_128=lambda *given: _xxh3(*given) if given else Counted())
    )
    options = {"orders": ["slope"], "bases": ["axis"], "ratios": [2.0], "progress": False}
    first = encoding_study(model, texts, directory=tmp_path / "a", **options)
    assert len(hashed) == 1
    with torch.no_grad():
        model.unembed.W_U.data += 0.01
    second = encoding_study(model, texts, directory=tmp_path / "b", **options)
    assert len(hashed) == 2
    assert (
        first.provenance["weight_hash"] != second.provenance["weight_hash"] == interp.models.identity.weight_hash(model)
    )
