"""Perplexity with its interval: the losses of rows against plain logits, and how often the interval holds the truth."""

import numpy as np
import pytest
import torch
from scipy import stats

from interp import corpora, hooks
from interp.frequency import bias_effect
from interp.generation.perplexity import RowLosses
from interp.run.observers import observe

SCALES = [1.0, 0.5, -2.0]


@pytest.fixture
def model(load_toy):
    return load_toy("gpt2", dtype=torch.float64)


def rows_of(model, batches, scale):
    """Loss and length of each row, from the logits of the model with the bias multiplied."""
    found = []
    for batch in batches:
        with torch.no_grad(), model.hooks(fwd_hooks=hooks.scale_bias(model, "ln", scale)):
            log_p = model(batch.tokens).log_softmax(-1)
        for row, targets in zip(log_p, batch.targets, strict=True):
            scored = targets >= 0
            found.append((-row[scored, targets[scored]].sum().item(), int(scored.sum())))
    return np.array(found).T


@pytest.mark.parametrize("options", [{"context": 9}, {"layout": "texts"}, {"context": 12, "batch_size": 1}])
def test_the_losses_of_rows(options, model, texts):
    batches = corpora.batches(model, texts, **options)
    observer = RowLosses(model, SCALES)
    observe(model, batches, observer, progress=False)
    assert len(observer.table) == len(SCALES)
    for found in observer.table.itertuples():
        losses, lengths = rows_of(model, batches, found.scale)
        keep = lengths > 0
        losses, lengths = losses[keep], lengths[keep]
        n, mean = len(losses), losses.sum() / lengths.sum()
        error = np.sqrt(n * np.var(losses - mean * lengths, ddof=1)) / lengths.sum()
        reach = stats.t(n - 1).ppf(0.975) * error
        expected = np.exp([mean, mean - reach, mean + reach])
        np.testing.assert_allclose([found.perplexity, found.perplexity_low, found.perplexity_high], expected, rtol=1e-9)
    effect = bias_effect(model, batches, unigram=np.ones(67, int), biases=["ln"], scales=SCALES, progress=False)
    np.testing.assert_allclose(observer.table["perplexity"], effect.kl["perplexity"], rtol=1e-9)


def test_one_row_has_no_interval(model):
    observer = RowLosses(model, [1.0])
    observe(model, corpora.batches(model, torch.arange(10, 30)[None]), observer, progress=False)
    assert observer.state["rows"] == 1
    assert np.isnan(observer.table.loc[0, ["perplexity_low", "perplexity_high"]]).all()
    assert observer.table["perplexity"].item() > 1


def test_the_interval_holds_the_perplexity_of_all_rows(model):
    """Rows of a population, some hard and some easy, of different lengths that go with it."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 60, size=20_000)
    losses = lengths * (3 + rng.normal(size=20_000) + 0.01 * lengths)
    truth = np.exp(losses.sum() / lengths.sum())
    observer, inside = RowLosses(model, [1.0]), 0
    for _ in range(300):
        drawn = rng.integers(20_000, size=40)
        s, n = losses[drawn], lengths[drawn]
        sums = {"losses": [s.sum()], "squares": [s @ s], "products": [s @ n], "squared_lengths": n @ n}
        sums |= {"rows": 40, "n_scored": n.sum()}
        observer.state = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in sums.items()}
        [low], [high] = observer.table["perplexity_low"], observer.table["perplexity_high"]
        inside += low < truth < high
    assert 0.91 < inside / 300 < 0.985
