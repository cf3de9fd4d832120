"""Means over tasks and pairs of tasks: against brute force and scipy, under nulls, and with planted effects."""

import itertools
import math

import numpy as np
import pytest
from oracles import probing as oracle
from scipy import stats

from interp.instruments.over_tasks import (
    Units,
    apart,
    judged_over,
    left_out,
    mean_over,
    most_general,
    off_diagonal,
    random_signs,
)
from interp.results.verdicts import Control

ZERO = Control("", [0.0], "number")
PHENOMENA = {"a": "x", "b": "x", "c": "y", "d": "z", "e": "z", "f": "z"}


def tasks(n: int) -> Units:
    return Units(np.arange(n), "task")


def verdict(mean, s=0.02):
    return judged_over(mean, question="Is it?", measure="it is", controls=[ZERO], smallest=s).verdict


def test_units_are_phenomena_where_every_task_has_one():
    units = Units.of(list(PHENOMENA), PHENOMENA)
    values = np.arange(6.0)
    assert (units.n, units.said, units.means(values).tolist()) == (3, "3 phenomena", [0.5, 2.0, 4.0])
    assert Units.of(list(PHENOMENA), PHENOMENA | {"c": ""}).said == "6 tasks"
    assert Units.of(["a"], {}).said == "1 task"
    assert Units.of([], {}).n == 0


@pytest.mark.parametrize("n", [5, 12])
def test_a_mean_has_scipys_interval(n):
    values = np.random.default_rng(n).normal(size=n)
    mean = mean_over(values, tasks(n))
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert mean[:3] == pytest.approx((values.mean(), expected.low, expected.high))
    kin = mean_over(np.repeat(values, 3), Units(np.repeat(np.arange(n), 3), "phenomenon"))
    assert kin[:3] == pytest.approx(mean[:3]), "three equal tasks of a phenomenon are one"


def test_few_tasks_have_no_interval():
    mean = mean_over(np.array([0.3, 0.4, 0.5, 0.6]), tasks(4))
    assert math.isnan(mean.low)
    finding = judged_over(mean, question="Is it?", measure="it is", controls=[ZERO], smallest=0.02)
    assert str(finding) == (
        "Is it? It is 0.450 (no interval: fewer than 5 tasks); 5 tasks are the fewest that can decide it. Cannot tell."
    )
    assert mean_over(np.ones(1), tasks(1)).no_interval == "a single task"
    assert mean_over(np.ones(9), tasks(9)).no_interval == "the tasks do not differ"
    assert mean_over(np.ones(0), tasks(0)).n == 0
    assert "5 phenomena are the fewest" in mean_over(np.ones(9), Units(np.arange(9) // 3, "phenomenon")).because
    for n in (1, 2, 7):
        pairs = off_diagonal(np.random.default_rng(0).random((n, n)), tasks(n))
        assert math.isnan(pairs.low)
        assert pairs.because == "8 tasks are the fewest that can decide it"
    assert math.isnan(off_diagonal(np.full((8, 8), 0.25), tasks(8)).low)


@pytest.mark.parametrize("n", [5, 8, 20])
def test_means_of_normal_tasks_are_covered(n):
    rng = np.random.default_rng(n)
    means = [mean_over(0.1 + 0.1 * rng.normal(size=n), tasks(n)) for _ in range(2_000)]
    assert 0.92 < np.mean([mean.low <= 0.1 <= mean.high for mean in means]) < 0.98
    null = [verdict(mean_over(0.1 * rng.normal(size=n), tasks(n))) for _ in range(500)]
    assert null.count("yes") <= 25
    assert [verdict(mean_over(0.2 + 0.05 * rng.normal(size=n), tasks(n))) for _ in range(50)].count("yes") >= 45


def test_tasks_of_a_phenomenon_are_covered_together():
    """Over tasks, the interval of three kin of each of seven phenomena would be too narrow."""
    rng, number = np.random.default_rng(0), np.repeat(np.arange(7), 3)
    draws = [rng.normal(size=7)[number] + 0.3 * rng.normal(size=21) for _ in range(1_000)]
    inside = {}
    for name, units in (("phenomena", Units(number, "phenomenon")), ("tasks", tasks(21))):
        means = [mean_over(draw, units) for draw in draws]
        inside[name] = np.mean([mean.low <= 0 <= mean.high for mean in means])
    assert 0.92 < inside["phenomena"] < 0.98
    assert inside["tasks"] < 0.85


def test_a_mean_over_pairs_by_brute_force():
    rng = np.random.default_rng(0)
    matrix, labels = rng.random((12, 12)), list("aabbcdeffghh")
    np.fill_diagonal(matrix, np.nan)
    for names, units in (
        ([str(i) for i in range(12)], tasks(12)),
        (labels, Units.of(range(12), dict(enumerate(labels)))),
    ):
        value, error = oracle.mean_over_pairs(matrix, names)
        mean = off_diagonal(matrix, units)
        assert mean.value == pytest.approx(value)
        assert mean.high - mean.value == pytest.approx(error * stats.t.ppf(0.975, len(set(names)) - 1))
    assert left_out(np.arange(7.0)) != left_out(np.arange(7.0)), "NaN"


@pytest.mark.parametrize("n", [8, 15])
def test_means_over_pairs_are_covered(n):
    """Probes of some tasks are better, some tasks are easier, and each pair has noise of its own."""
    rng = np.random.default_rng(n)

    def drawn(mean):
        return mean + 0.05 * (rng.normal(size=(n, 1)) + rng.normal(size=n) + rng.normal(size=(n, n)))

    means = [off_diagonal(drawn(0.1), tasks(n)) for _ in range(1_000)]
    assert 0.92 < np.mean([mean.low <= 0.1 <= mean.high for mean in means]) < 0.985
    assert [verdict(off_diagonal(drawn(0.0), tasks(n))) for _ in range(500)].count("yes") <= 25
    assert [verdict(off_diagonal(drawn(0.15), tasks(n))) for _ in range(50)].count("yes") >= 45


def test_what_lies_above_its_controls():
    rng, units = np.random.default_rng(0), Units.of(list(PHENOMENA), PHENOMENA)
    own, controls = rng.random(6), rng.random((4, 6))
    mean, draws = apart(own, controls, units)
    of_phenomena = [np.mean([own[i] - controls[:, i].mean() for i in kind]) for kind in ((0, 1), (2,), (3, 4, 5))]
    assert mean.value == pytest.approx(np.mean(of_phenomena))
    assert draws == pytest.approx(units.means(controls.T).mean(0) - units.means(controls.T).mean())


def test_the_most_general_task_by_brute_force():
    matrix = np.random.default_rng(0).normal(size=(6, 6))
    names = list(PHENOMENA.values())
    by_row = oracle.generality(matrix, names)
    best, mean, draws = most_general(matrix, Units.of(list(PHENOMENA), PHENOMENA))
    assert (best, mean.value) == (int(np.argmax(by_row)), pytest.approx(max(by_row)))
    assert mean.n == 2
    possible = []
    for signs in itertools.product([1, -1], repeat=3):
        turned = matrix * np.array([dict(zip("xyz", signs, strict=True))[name] for name in names])
        possible.append(most_general(turned, Units.of(list(PHENOMENA), PHENOMENA))[1].value)
    assert len(draws) == 999
    assert np.unique(draws.round(9)).tolist() == pytest.approx(np.unique(np.round(possible, 9)))
    one = most_general(matrix, Units.of(list(PHENOMENA), dict.fromkeys(PHENOMENA, "x")))[1]
    assert one.n == 0


def generalises(matrix, units):
    _, mean, draws = most_general(matrix, units)
    control = Control("swapped", draws)
    return judged_over(mean, question="Is it?", measure="it is", controls=[control], smallest=0.02).verdict


def test_probes_that_are_alike_generalise_no_more_by_chance():
    """All probes say nearly the same, and each phenomenon happens to agree with them or not."""
    units = Units(np.arange(20) // 2, "phenomenon")

    def drawn(rng):
        of_phenomenon = rng.normal(0, 0.15, 10)[units.number]
        return of_phenomenon + rng.normal(0, 0.03, (20, 20))

    assert [generalises(drawn(np.random.default_rng(seed)), units) for seed in range(200)].count("yes") <= 10


def test_one_task_that_generalises_is_found():
    units, found = Units(np.arange(20) // 2, "phenomenon"), []
    for seed in range(20):
        matrix = np.random.default_rng(seed).normal(0, 0.08, (20, 20))
        matrix[3] += 0.2
        assert most_general(matrix, units)[0] == 3
        found.append(generalises(matrix, units))
    assert found.count("yes") >= 19


def test_random_signs_are_those_of_tasks():
    matrix = np.random.default_rng(0).normal(size=(3, 3))
    matrix += matrix.T
    possible = []
    for signs in itertools.product([1, -1], repeat=3):
        turned = matrix * np.outer(signs, signs)
        possible.append(np.mean([turned[i, j] for i in range(3) for j in range(3) if i != j]))
    assert np.unique(random_signs(matrix, tasks(3)).round(9)) == pytest.approx(np.unique(np.round(possible, 9)))
