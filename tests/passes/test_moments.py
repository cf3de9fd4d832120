"""Merged centred moments against exact fractions, however the sample is divided."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import interp
from interp.instruments.profile import DimensionProfile
from interp.passes import moments


def exact(values):
    """The mean and population variance of numbers, rounded only at the end."""
    numbers = [Fraction(float(value)) for value in values]
    mean = sum(numbers) / len(numbers)
    return float(mean), float(sum((number - mean) ** 2 for number in numbers) / len(numbers))


@st.composite
def samples(draw):
    """Float64 numbers with a mean up to 1e4 and an SD down to 1e-3, the class of each, and where they are divided."""
    n = draw(st.integers(2, 40))
    mean = draw(st.floats(-1e4, 1e4))
    sd = draw(st.sampled_from([1e-3, 1e-2, 1.0, 100.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=8)))
    return mean + sd * rng.standard_normal((n, 3)), rng.integers(0, 2, n), [0, *cuts, n]


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(samples())
def test_any_division_gives_the_variance(sample):
    x, classes, cuts = sample
    x[:, 2] = x[0, 2]
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(classes), 2).double()
    values = torch.from_numpy(x)
    parts = list(itertools.pairwise(cuts))
    found = reduce(moments.merged, [moments.by_group(values[i:j].clone(), one_hot[i:j]) for i, j in parts])
    for group in (0, 1):
        members = x[classes == group]
        assert int(found[0, group, 0]) == len(members)
        for column in range(3 if len(members) else 0):
            mean, variance = exact(members[:, column])
            assert moments.mean(found)[group, column].item() == pytest.approx(mean, rel=1e-15)
            rounding = np.finfo(float).eps * abs(mean) * variance**0.5  # of the means of the parts
            assert moments.variance(found)[group, column].item() == pytest.approx(variance, rel=1e-9, abs=rounding)
    assert (moments.variance(found)[:, 2] == 0).all(), "a constant has none"


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(samples())
def test_any_division_gives_the_correlation(sample):
    x, _, cuts = sample
    y = x[:, :2] * [1, -2] + 1e4 + np.random.default_rng(1).standard_normal((len(x), 2)) * x.std()
    x[:, 2] = 7.0
    values, others = torch.from_numpy(x), torch.from_numpy(y)
    parts = [moments.of_pairs(values[i:j].clone(), others[i:j]) for i, j in itertools.pairwise(cuts)]
    found = moments.correlation(reduce(moments.merged, parts)).numpy()
    assert np.isnan(found[:, 2]).all()
    for row in range(2):
        for column in range(2):
            a, b = ([Fraction(float(v)) for v in values] for values in (x[:, column], y[:, row]))
            covariance = sum((p - sum(a) / len(a)) * (q - sum(b) / len(b)) for p, q in zip(a, b, strict=True)) / len(a)
            expected = float(covariance) / np.sqrt(exact(x[:, column])[1] * exact(y[:, row])[1])
            assert found[row, column] == pytest.approx(expected, abs=1e-9)


def test_the_correlation_is_that_of_numpy():
    x, y = (np.random.default_rng(seed).normal(size=(50, n)) * 3 + 1 for seed, n in ((0, 3), (1, 2)))
    found = moments.correlation(moments.of_pairs(torch.from_numpy(x.copy()), torch.from_numpy(y)))
    np.testing.assert_allclose(found, np.corrcoef(x, y, rowvar=False)[3:, :3], rtol=1e-12)


def test_processes_reduce_to_the_moments_of_all(monkeypatch):
    """Threads in place of processes; means are far from zero, and one process has nothing of the second group."""
    barrier, tensors = threading.Barrier(3), {}

    def all_reduce(tensor, operation):
        tensors[threading.get_ident()] = tensor.clone()
        barrier.wait()
        stacked = torch.stack(list(tensors.values()))
        barrier.wait()
        tensor.copy_(stacked.amax(0) if operation == torch.distributed.ReduceOp.MAX else stacked.sum(0))

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    rng = np.random.default_rng(0)
    x, y = -1e14 + 10 * rng.normal(size=(30, 4)), rng.normal(size=(30, 4))
    group = np.repeat([0, 1, 0], [10, 10, 10])
    one_hot = torch.eye(3, dtype=torch.float64)[torch.from_numpy(group)]
    values, others = torch.from_numpy(x), torch.from_numpy(y)

    def of_all(make):
        parts = [slice(0, 8), slice(8, 15), slice(15, 30)]
        with ThreadPoolExecutor(3) as threads:
            first, *rest = threads.map(lambda part: moments.all_reduce(make(part)), parts)
        assert all(torch.equal(first, reduced) for reduced in rest)
        return first

    reduced = of_all(lambda part: moments.by_group(values[part].clone(), one_hot[part]))
    expected = np.array([[exact(x[group == n, column]) for column in range(4)] for n in (0, 1)])
    np.testing.assert_allclose(moments.mean(reduced)[:2], expected[..., 0], rtol=1e-15)
    np.testing.assert_allclose(moments.variance(reduced)[:2], expected[..., 1], rtol=1e-9)
    assert not reduced[:, 2].any(), "no process has any of the third group"
    reduced = of_all(lambda part: moments.of_pairs(values[part].clone(), others[part]))
    np.testing.assert_allclose(moments.correlation(reduced), np.corrcoef(x + 1e14, y, rowvar=False)[4:, :4], rtol=1e-9)


def test_nothing_merges_with_nothing():
    nothing = torch.zeros(moments.ROWS[1], 2, 3, dtype=torch.float64)
    some = moments.by_group(torch.ones(1, 3, dtype=torch.float64), torch.tensor([[1.0, 0.0]]).double())
    assert torch.equal(moments.merged(nothing, nothing), nothing)
    assert torch.equal(moments.merged(nothing, some), some)
    assert torch.equal(moments.merged(some, nothing), some)
    assert torch.equal(moments.variance(nothing), torch.zeros(2, 3).double())


@pytest.mark.slow
def test_the_first_token_does_not_vary_at_the_embeddings(load_toy, texts):
    """`[CLS]` is one vector at state 0: its SD is 0, in one process and in parts, and other SDs are those of numpy."""
    model = load_toy("bert")
    classes = interp.corpora.token_classes(model)
    batches = interp.corpora.batches(model, texts, batch_size=4)
    whole = DimensionProfile(model, classes)
    interp.observe(model, batches, whole, progress=False)
    of_cls = whole.table.query("state == 0 and key_class == 'cls'")
    assert (of_cls["sd"] == 0).all()
    parts = [DimensionProfile(model, classes) for _ in range(3)]
    for index, part in enumerate(parts):
        interp.observe(model, interp.passes.reading.part_of(batches, index, 3), part, progress=False)
        if index:
            parts[0].merge(part)
    np.testing.assert_allclose(parts[0].table["sd"], whole.table["sd"], rtol=1e-12, atol=0)
    np.testing.assert_allclose(parts[0].table["mean"], whole.table["mean"], rtol=1e-12, atol=1e-15)
