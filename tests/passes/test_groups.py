"""Sums per group of texts: groups are the same however a corpus is divided, and sums add up to the whole."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from naming import naming
from scipy import stats

from interp import corpora
from interp.passes import reading
from interp.passes.groups import coarser, fitting
from interp.passes.observers import Observer
from interp.passes.reading import observe, part_of
from interp.results.intervals import FEWEST_TEXTS, about, jackknife


class TokenSums(Observer):
    """The sum of the token ids per group of texts, and over all texts."""

    def __init__(self, model, most=4):
        super().__init__(model.W_U.device, most=most)
        self.name = "hook_embed"
        self.add_state("tokens", (most,), "groups")
        self.add_state("rows", (most, 2), "groups")
        self.add_state("all", ())

    def hooks(self, batch):
        def read(_, hook):
            ids = (batch.tokens * batch.mask).sum(1)
            self.add("all", ids.sum())
            self.add_rows("tokens", ids, batch)
            for group, one in zip(self.groups_of(batch), ids, strict=True):
                self.add("rows", torch.stack([one, one**2]), group=group)

        return [(self.name, read)]


def numbered(n, width=5):
    generator = torch.Generator().manual_seed(n)
    return torch.randint(7, 67, (n, width), generator=generator)


def expected(ids, most):
    """Sums of groups of 2ᵏ consecutive rows, for the smallest k with no more than `most` groups."""
    sums, size = ids.sum(1).tolist(), 1
    while -(-len(sums) // size) > most:
        size *= 2
    groups = [sum(sums[start : start + size]) for start in range(0, len(sums), size)]
    return groups + [0] * (most - len(groups)), size


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 9, 31])
@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_groups_are_consecutive_texts(n, batch_size, load_toy):
    model, ids = load_toy("gpt2"), numbered(n)
    observer = TokenSums(model)
    observe(model, corpora.batches(model, ids, batch_size=batch_size), observer, progress=False)
    sums, size = expected(ids, 4)
    assert observer.state["tokens"].tolist() == sums
    assert observer.state["rows"][:, 0].tolist() == sums
    assert observer.stretches_per_group == size
    assert observer.state["all"] == ids.sum()


@pytest.mark.quick("order0")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_parts_in_any_order_have_the_groups_of_the_whole(order, load_toy):
    model, ids = load_toy("gpt2"), numbered(23)
    batches = corpora.batches(model, ids, batch_size=2)
    parts = [TokenSums(model) for _ in order]
    for index, observer in enumerate(parts):
        observe(model, part_of(batches, index, 3), observer, progress=False)
    whole = TokenSums(model)
    for index in order:
        whole.merge(parts[index])
    assert whole.state["tokens"].tolist() == expected(ids, 4)[0]
    assert whole.stretches_per_group == 8


def test_groups_survive_a_checkpoint(load_toy, tmp_path, monkeypatch):
    model, ids = load_toy("gpt2"), numbered(23)
    batches = corpora.batches(model, ids, batch_size=2)
    monkeypatch.setattr(reading, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)

    class Stopped(Exception):
        pass

    def broken():
        for number, batch in enumerate(batches):
            if number == 7:
                raise Stopped
            yield batch

    kept = {"progress": False, "checkpoint": tmp_path / "kept.safetensors"}
    with pytest.raises(Stopped):
        observe(model, replace(batches, read=broken), TokenSums(model), **kept)
    resumed = TokenSums(model)
    observe(model, batches, resumed, **kept)
    assert resumed.state["tokens"].tolist() == expected(ids, 4)[0]


def test_a_batch_that_failed_leaves_nothing(load_toy):
    model, observer = load_toy("gpt2"), TokenSums(load_toy("gpt2"))
    batch = next(iter(corpora.batches(model, numbered(3))))
    observer.add_rows("tokens", batch.tokens.sum(1), batch)
    observer.discard()
    observer.commit()
    assert observer.is_empty


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_a_batch_that_is_added_in_parts_has_the_same_groups(rows, load_toy):
    model, ids = load_toy("gpt2"), numbered(9)
    observer = TokenSums(model)
    for part in corpora.batches(model, ids, batch_size=rows):
        observer.add_rows("tokens", part.tokens.sum(1), part)
    observer.commit()
    assert observer.state["tokens"].tolist() == expected(ids, 4)[0]


def test_asking_for_groups_adds_nothing(load_toy):
    observer = TokenSums(load_toy("gpt2"))
    [batch] = corpora.batches(load_toy("gpt2"), numbered(9), batch_size=9)
    assert observer.groups_of(batch) == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    observer.commit()
    assert observer.is_empty


def test_what_is_added_needs_its_group(load_toy):
    observer = TokenSums(load_toy("gpt2"))
    with pytest.raises(ValueError, match=naming("'tokens'", "groups", "groups_of")):
        observer.add("tokens", 1.0)
    with pytest.raises(ValueError, match=naming("'all'", "sum")):
        observer.add("all", 1.0, group=0)
    with pytest.raises(ValueError, match=naming("'all'", "sum")):
        observer.add_to_groups("all", torch.ones(2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=naming("'tokens'", "()", "(3,)")):
        observer.add_to_groups("tokens", torch.ones(2, 3), torch.tensor([0, 1]))


def test_batches_made_by_hand_are_one_group(load_toy):
    model, observer = load_toy("gpt2"), TokenSums(load_toy("gpt2"))
    batches = corpora.batches(model, numbered(9), batch_size=2)
    unsaid = replace(batches, read=lambda: (replace(batch, stretches=None) for batch in batches))
    observe(model, unsaid, observer, progress=False)
    assert observer.state["tokens"].count_nonzero() == 1


def test_sizes_of_groups():
    assert [fitting(stretch, 4, 1) for stretch in (0, 3, 4, 7, 8, 63)] == [1, 1, 2, 2, 4, 16]
    assert coarser(torch.arange(6.0), 4).tolist() == [6.0, 9.0, 0.0, 0.0, 0.0, 0.0]


def sample(sizes, seed):
    rng = np.random.default_rng(seed)
    return [rng.gamma(2.0, size=size) for size in sizes]


def test_jackknife_of_a_mean_is_students_interval():
    """For values with tails no heavier than normal."""
    x = np.random.default_rng(0).random(24)
    found = jackknife(x.mean(), np.array([np.delete(x, i).mean() for i in range(24)]), np.ones(24), 1)
    assert stats.kurtosis(x) < 0
    low, high = stats.t.interval(0.95, 23, loc=x.mean(), scale=stats.sem(x))
    np.testing.assert_allclose([found.low, found.high], [low, high], rtol=1e-12)
    assert found.corrected == pytest.approx(x.mean(), rel=1e-12)


def test_heavy_tails_widen_the_interval():
    x = np.random.default_rng(0).lognormal(size=24)
    found = jackknife(x.mean(), np.array([np.delete(x, i).mean() for i in range(24)]), np.ones(24), 1)
    centred = x - x.mean()
    excess = (centred**4).mean() / (centred**2).mean() ** 2 - 3
    assert excess > 0
    degrees = 2 / (2 / 23 + excess / 24)
    assert found.half == pytest.approx(stats.t.ppf(0.975, degrees) * stats.sem(x), rel=1e-12)


@pytest.mark.slow
def test_jackknife_removes_the_bias_of_a_variance():
    """The biased variance becomes the unbiased one: exactly, or nearly if groups are of unequal size."""
    (x,) = sample([24], 1)
    found = jackknife(np.var(x), np.array([np.var(np.delete(x, i)) for i in range(24)]), np.ones(24), 1)
    assert found.corrected == pytest.approx(np.var(x, ddof=1), rel=1e-12)
    biased, corrected = [], []
    for seed in range(2_000):
        groups = sample([1, 2, 3] * 4, seed)
        without = np.array([np.var(np.concatenate([*groups[:i], *groups[i + 1 :]])) for i in range(12)])
        found = jackknife(np.var(np.concatenate(groups)), without, np.array([1.0, 2.0, 3.0] * 4), 2)
        biased.append(found.value)
        corrected.append(found.corrected)
    assert np.mean(biased) < 1.95, "of a variance of 2"
    assert np.mean(corrected) == pytest.approx(2.0, abs=0.04)


@pytest.mark.parametrize(
    ("groups", "texts_per_group", "why"),
    [
        (FEWEST_TEXTS, 1, None),
        (11, 2, None),
        (
            FEWEST_TEXTS - 1,
            1,
            "what was read is 19 different texts, or pieces of longer ones; intervals need 20 (more text, shorter rows "
            "or a row per text)",
        ),
        (9, 4, "what was read is from 9 groups of texts; intervals need 10"),
    ],
)
def test_too_few_texts_have_no_interval(groups, texts_per_group, why):
    values = np.random.default_rng(0).random(groups)
    found = jackknife(1.0, values, np.ones(groups), texts_per_group)
    assert np.isnan([found.corrected, found.half]).all() == (why is not None)
    assert about(groups, texts_per_group).get("none") == why


def test_constant_values_have_an_interval_of_zero_width():
    found = jackknife(0.25, np.full(20, 0.25), np.ones(20), 1)
    np.testing.assert_allclose([found.low, found.high], 0.25, rtol=1e-12)
