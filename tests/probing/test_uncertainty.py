"""Intervals, tests and the worth of the top neurons: against scipy, brute force, pure noise and planted truth."""

import itertools
import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from naming import naming
from oracles.intervals import benjamini_hochberg
from scipy import stats
from sklearn.linear_model import LogisticRegression

from interp import probing
from interp.analyses.probing import equivalence
from interp.analyses.probing.group import Group
from interp.analyses.probing.sparse import SparseProbe
from interp.analyses.probing.states import States
from interp.analyses.probing.sweeps import Sweep
from interp.analyses.probing.untrained import worth
from interp.corpora.pairs import COLUMNS
from interp.corpora.splits import Split
from interp.instruments import uncertainty

# Proportions and differences


@pytest.mark.parametrize(("right", "n"), [(0, 10), (3, 10), (10, 10), (150, 200), (1, 1)])
@pytest.mark.parametrize("confidence", [0.95, 0.98])
def test_wilson_is_scipys(right: int, n: int, confidence: float) -> None:
    expected = stats.binomtest(right, n).proportion_ci(confidence, method="wilson")
    pairs = np.repeat([1.0, 0.0], [right, n - right])
    for found in (
        uncertainty.wilson(np.array(right / n), n, confidence),
        uncertainty.share_interval(pairs, sentences=1, confidence=confidence),
    ):
        assert [float(end) for end in found] == pytest.approx([expected.low, expected.high])


def test_sentences_of_a_pair_count_as_far_as_they_are_independent() -> None:
    """Twins that always agree count as one observation; sentences drawn independently count as two."""
    rng = np.random.default_rng(0)
    twins = (rng.random((2_000, 60)) < 0.8).astype(float)
    alone = (rng.random((2_000, 60, 2)) < 0.8).mean(2)
    for right in (twins, alone):
        low, high = uncertainty.share_interval(right)
        assert 0.925 < ((low <= 0.8) & (high >= 0.8)).mean() < 0.975
    per_sentence = uncertainty.wilson(twins.mean(1), 120)
    covered = ((per_sentence[0] <= 0.8) & (per_sentence[1] >= 0.8)).mean()
    assert covered < 0.9, "what counting the sentences of twins would give"
    one = uncertainty.share_interval(np.full(30, 0.5))
    assert one == pytest.approx(stats.binomtest(30, 60).proportion_ci(method="wilson"))


def test_mcnemar_is_scipys_exact_binomial_test() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 3, (2, 40, 25)) / 2
    for row, p in enumerate(uncertainty.mcnemar(a, b)):
        above, below = int((a[row] > b[row]).sum()), int((a[row] < b[row]).sum())
        assert p == pytest.approx(stats.binomtest(above, above + below).pvalue)
    assert uncertainty.mcnemar(a[0], a[0]) == 1


def test_a_difference_of_few_pairs_is_covered() -> None:
    """For accuracies near 1 on 20 pairs, a percentile bootstrap covers the true difference in only 81 of 100 draws."""
    rng = np.random.default_rng(0)
    right = rng.random((2_000, 20, 2, 2)) < np.array([0.97, 0.93])
    difference = right[..., 0].mean(-1) - right[..., 1].mean(-1)
    low, high = uncertainty.difference_interval(difference)
    assert 0.94 < ((low <= 0.04) & (high >= 0.04)).mean() < 0.99
    at_once = [uncertainty.difference_interval(row) for row in difference[:3]]
    np.testing.assert_allclose(np.transpose([low[:3], high[:3]]), at_once)
    assert [float(end) for end in uncertainty.difference_interval(np.ones(3))][1] == 1


def made_hits(n_tasks: int, n_pairs: int, seed: int = 0, gap: float = 0.0) -> pd.DataFrame:
    rng, parts = np.random.default_rng(seed), []
    for task in range(n_tasks):
        level = rng.uniform(0.55, 0.75)
        right = {name: rng.random((n_pairs, 2)) < level + shift for name, shift in (("dense", gap), ("words", 0.0))}
        about = {"task": f"t{task}", "state": 3, "pair": np.arange(n_pairs)}
        parts.append(pd.DataFrame(about | {name: values.mean(1) for name, values in right.items()}))
    return pd.concat(parts, ignore_index=True)


def test_comparisons_are_corrected_over_tasks() -> None:
    hits = made_hits(12, 50, gap=0.15)
    table = uncertainty.compared(hits, [("dense", "words"), ("dense", "nothing")])
    assert set(table["against"]) == {"words"}
    np.testing.assert_allclose(table["p_adjusted"], benjamini_hochberg(table["p"].to_numpy()))
    for _, row in table.iterrows():
        part = hits[hits["task"] == row["task"]]
        difference = (part["dense"] - part["words"]).to_numpy()
        error = difference.std() / math.sqrt(len(difference))
        assert row["difference"] == pytest.approx(difference.mean())
        assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * error, rel=0.1)
    above = ((table["p_adjusted"] < 0.05) & (table["difference"] > 0)).sum()
    assert 1 < above < (table["difference"] > 0).sum(), "fewer than a bare count"


@pytest.mark.slow
def test_probes_without_difference_are_above_on_no_task() -> None:
    found = [uncertainty.compared(made_hits(20, 40, seed), [("dense", "words")]) for seed in range(20)]
    assert sum((table["p_adjusted"] < 0.05).any() for table in found) <= 3, "one of twenty is expected"


@pytest.mark.parametrize("phenomena", [{}, {f"t{i}": f"p{i // 2}" for i in range(12)}])
def test_means_over_tasks_by_brute_force(phenomena: dict[str, str]) -> None:
    hits = made_hits(12, 30)
    means, differences = uncertainty.averaged(hits, [("dense", "words"), ("dense", "nothing")], phenomena)
    by_task = hits.groupby("task")[["dense", "words"]].mean()
    by_unit = by_task.groupby(lambda task: phenomena.get(task, task)).mean()
    values = {"dense": by_unit["dense"], "words": by_unit["words"], "gap": by_unit["dense"] - by_unit["words"]}
    rows = {**means.set_index("probe").T.drop("state").to_dict("list"), "gap": differences.iloc[0, 3:].tolist()}
    for name, row in rows.items():
        expected = stats.ttest_1samp(values[name], 0).confidence_interval()
        assert row == pytest.approx([values[name].mean(), expected.low, expected.high])
    assert len(differences) == 1


def test_one_task_has_wilsons_interval() -> None:
    hits = made_hits(1, 200).assign(dense=1.0)
    means, differences = uncertainty.averaged(hits, [("dense", "words")], {})
    expected = stats.binomtest(200, 200).proportion_ci(method="wilson")
    of = means.set_index("probe")
    assert of.loc["dense", ["low", "high"]].tolist() == pytest.approx([expected.low, expected.high])
    assert differences["difference"].item() == pytest.approx((hits["dense"] - hits["words"]).mean())
    assert differences[["low", "high"]].isna().all(axis=None), "one task says nothing about others"


# Random neurons worth the top ones


def group_of(vectors: np.ndarray, n_train: int) -> Group:
    """Made from states `[tasks, pairs, 2, d]`; the first pairs of each task are for training."""
    n_tasks, n = vectors.shape[:2]
    rows = np.arange(n_tasks * n).reshape(n_tasks, n)
    alone = np.ones(n - n_train, dtype=int)
    parts = [(one[:n_train], one[n_train : n_train + 2], one[n_train:], alone) for one in rows]
    splits = {f"t{i}": Split(*part) for i, part in enumerate(parts)}
    flat = vectors.reshape(-1, *vectors.shape[2:]).astype(np.float32)
    return Group(flat, splits, scaling="standard", device="cpu")


def test_the_top_one_per_cent() -> None:
    assert [equivalence.n_top(d) for d in (4_096, 768, 192, 16)] == [40, 7, 1, 1]


@pytest.mark.parametrize(("first", "last"), [(1, 191), (7, 761), (40, 4_056), (1, 1), (3, 2)])
def test_the_grid_is_fine(first: int, last: int) -> None:
    ks = equivalence.grid(first, last)
    assert ks[:1] == [first][: len(ks)]
    assert ks[-1:] == [last][: len(ks)]
    assert all(b <= max(a + 1, 1.25 * a) for a, b in itertools.pairwise(ks))
    assert {first * 2**i for i in range(20) if first * 2**i <= last} <= set(ks)


def test_where_a_curve_reaches_a_level() -> None:
    ks = [1, 2, 4, 8]
    assert equivalence.reach(ks, np.array([0.5, 0.6, 0.7, 0.8]), 0.65) == pytest.approx(2 * math.sqrt(2))
    assert equivalence.reach(ks, np.array([0.5, 0.7, 0.6, 0.8]), 0.65) == 2, "the fit is isotonic: .65 at 2 and 4"
    assert equivalence.reach(ks, np.array([0.5, 0.6, 0.7, 0.8]), 0.4) == 1
    assert math.isinf(equivalence.reach(ks, np.array([0.5, 0.6, 0.7, 0.8]), 0.9))


@pytest.mark.parametrize("shared", [0.0, 3.0])
def test_noise_has_no_ratio(shared: float) -> None:
    """100 tasks without a difference, with twins that are largely alike, or not."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(100, 70, 2, 40)) + shared * rng.normal(size=(100, 70, 1, 40))
    random_k, found = equivalence.random_sets(group_of(vectors, 30))
    assert found["ratio"].isna().sum() >= 95
    assert found["top_accuracy"].mean() == pytest.approx(0.5, abs=0.02)
    known = found["ratio"].notna()
    assert not found.loc[~known, "censored"].any()
    assert set(random_k["k"]) >= {1, 2, 4, 8, 16, 32}


def test_random_sets_are_fitted_one_by_one_or_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every accuracy is that of scikit-learn's probe of the same dimensions, with two draws in a fit."""
    rng, k = np.random.default_rng(0), 4
    vectors = rng.normal(size=(3, 50, 2, 12))
    vectors[:, :, 0] += np.array([0.1, 0.4, 0.8])[:, None, None]
    group = group_of(vectors, 30)
    monkeypatch.setattr(equivalence, "_AT_ONCE", 2 * group.X.numel())
    random_k, _ = equivalence.random_sets(group)
    accuracy = random_k[random_k["k"] == k].set_index(["task", "draw"])["accuracy"]
    X, X_test = group.X.numpy(), group.X_test.numpy()
    y, y_test = (np.repeat([1, 0], len(x[0]) // 2) for x in (X, X_test))
    top = np.abs(stats.ttest_ind(X[:, y == 1], X[:, y == 0], axis=1, equal_var=False).statistic).argmax(1)
    rest = np.stack([np.delete(np.arange(12), dim) for dim in top])
    for draw in range(20):
        dims = np.random.default_rng(draw).permuted(rest, axis=1)[:, :k]
        for task, name in enumerate(group.tasks):
            probe = LogisticRegression(fit_intercept=False, tol=1e-8).fit(X[task][:, dims[task]], y)
            assert accuracy[name, draw] == pytest.approx(probe.score(X_test[task][:, dims[task]], y_test))


@pytest.mark.slow
@pytest.mark.parametrize("times", [3, 6])
def test_a_planted_ratio_is_found(times: int) -> None:
    """The squared mean differences of independent dimensions of SD 1 add up; those of the top are `times` as large."""
    n_train, n_test, d, distance = 700, 1_000, 300, 2.5
    rng, top = np.random.default_rng(times), 3
    vectors = rng.normal(size=(2, n_train + n_test, 2, d))
    each = distance / math.sqrt(top * times)
    vectors[:, :, 0] += each
    vectors[:, :, 0, :top] += each * (math.sqrt(times) - 1)
    _, found = equivalence.random_sets(group_of(vectors, n_train))
    assert (found["n_top"] == top).all()
    assert ((found["ratio"] / times).between(0.75, 1.25)).all(), found["ratio"].tolist()
    assert ((found["low"] <= times) & (times <= found["high"])).all()
    assert (found["low"] <= found["ratio"]).all()
    assert (found["ratio"] <= found["high"]).all()
    assert (found["high"] / found["low"] < 2).all()
    assert not found["censored"].any()


@pytest.mark.slow
def test_where_the_dimensions_end_first() -> None:
    """All the other neurons together do not reach the top ones."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2, 160, 2, 24))
    vectors[:, :, 0, 5] += 3
    _, found = equivalence.random_sets(group_of(vectors, 80))
    assert found["censored"].all()
    assert (found[["ratio", "high"]] == 23).all(axis=None)


@pytest.mark.slow
def test_many_small_tasks_have_their_point_inside() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 50, 2, 30))
    vectors[:, :, 0, :12] += rng.uniform(0.2, 1.2, (40, 1, 12))
    _, found = equivalence.random_sets(group_of(vectors, 30))
    known = found.dropna(subset="ratio")
    assert len(known) > 10
    assert ((known["low"] <= known["ratio"]) & (known["ratio"] <= known["high"])).all()
    assert (known["top_low"] > 0.5).all()
    assert (found.loc[found["ratio"].isna(), "top_low"] <= 0.5).all()


# Units


def planted_states(scale: float, n: int = 150, d: int = 60) -> States:
    vectors = np.random.default_rng(0).normal(size=(n, 2, d)) * np.linspace(0.2, 3, d)
    vectors[:, 0, :5] += 0.6
    vectors[:, 0, -5:] += 1.5
    rows = [(f"g{i}", f"b{i}", "t", str(i), "", "") for i in range(n)]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return States(table, (2,), d, {}, _kept={2: (scale * vectors).astype(np.float32)})


RAW: dict[str, Any] = {
    "methods": ["l0", "dense"],
    "l0_strengths": [0.2, 0.4],
    "seeds": [0, 1],
    "steps": 300,
    "controls": ["none"],
}


@pytest.mark.slow
def test_probes_of_raw_states_do_not_depend_on_their_unit() -> None:
    found = {}
    for scale in (0.01, 0.1, 1, 10):
        states = planted_states(scale)
        found[scale] = probing.sweep(states, scaling="rms", **RAW, progress=False)
        one = found[scale].probes
        split = np.sort(np.random.default_rng(0).permutation(150)[:90])
        rms = math.sqrt((states.load(2)[split].astype(np.float64) ** 2).mean())
        np.testing.assert_allclose(one["rms"], rms)
        np.testing.assert_allclose(found[scale].neurons["scale"], rms)
        assert (found[scale].neurons["mean"] == 0).all()
    for scale in (0.01, 0.1, 10):
        same = ["method", "l0_strength", "seed", "n_open", "accuracy", "pair_accuracy"]
        pd.testing.assert_frame_equal(found[scale].probes[same], found[1].probes[same])
        np.testing.assert_allclose(found[scale].neurons["gate"], found[1].neurons["gate"], atol=1e-3)
    assert found[1].probes.query("l0_strength == 0.4")["n_open"].between(1, 59).all()


@pytest.mark.slow
def test_the_models_own_unit_warns() -> None:
    n_open = {}
    for scale, message in ((0.003, "no gate opens for λ = 0.2 at state 2"), (10, "depend on the unit of the residual")):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = probing.sweep(planted_states(scale), scaling="none", **RAW, progress=False)
        assert any(message in str(one.message) for one in seen), [str(one.message) for one in seen]
        n_open[scale] = found.probes.query("method == 'l0' and l0_strength == 0.4")["n_open"].max()
        assert (found.neurons["scale"] == 1).all()
    assert n_open[0.003] < n_open[10]
    with pytest.raises(ValueError, match=naming("scaling", "'sd'", "standard, rms, none")):
        SparseProbe().set_params(scaling="sd").fit(np.eye(4), np.arange(4) % 2)


@pytest.mark.slow
def test_a_single_raw_probe_does_not_depend_on_its_unit() -> None:
    vectors = planted_states(1).load(2)
    X, y = vectors.reshape(-1, 60), np.tile([1, 0], 150)
    fitted = [SparseProbe(l0_strength=0.2, scaling="rms", steps=300).fit(scale * X, y) for scale in (0.01, 1)]
    np.testing.assert_array_equal(fitted[0].predict(0.01 * X), fitted[1].predict(X))
    assert fitted[0].n_open_ == fitted[1].n_open_ > 0
    assert fitted[1].scale_[0] == pytest.approx(math.sqrt((X.astype(np.float64) ** 2).mean()))


# Beside the untrained model


def test_no_ratio_where_the_untrained_models_top_is_as_good() -> None:
    columns = {"state": 1, "n_top": 2, "low": 2.0, "high": 5.0, "censored": True, "top_accuracy": 0.8}
    table = pd.DataFrame([{"task": task, "ratio": 3.0, "top_low": 0.7} | columns for task in "ab"])
    chance = pd.DataFrame({"task": ["a", "b", "a", "b"], "state": 1, "k": [2, 2, 9, 9], "method": "topk:welch"})
    chance["accuracy"] = [0.65, 0.75, 0.9, 0.1]
    nothing = pd.DataFrame()
    found = Sweep({}, nothing, nothing, nothing, table, nothing, nothing)
    told = worth(found, replace(found, probes=chance)).set_index("task")
    assert told["untrained_accuracy"].tolist() == [0.65, 0.75]
    assert told.loc["a", ["ratio", "low", "high", "censored"]].tolist() == [3, 2, 5, True]
    assert told.loc["b", ["ratio", "low", "high"]].isna().all()
    assert not told.loc["b", "censored"]
