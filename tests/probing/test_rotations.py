"""The top dimensions beside those of random bases: against scikit-learn, under nulls, and with planted differences."""

import math

import numpy as np
import pandas as pd
import pytest
from naming import naming
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from interp.analyses.probing.findings import concentrated
from interp.analyses.probing.rotations import ROTATED, haar, rotations
from interp.analyses.probing.shared import transfer_of_words
from interp.analyses.probing.states import States
from interp.corpora.pairs import COLUMNS
from interp.corpora.splits import split_tasks
from interp.instruments.uncertainty import share_interval


def states_of(vectors: np.ndarray, **settings: str) -> States:
    """Made from vectors `[tasks, pairs, 2, d]`."""
    n_tasks, n, _, d = vectors.shape
    rows = [(f"g{t} {i}", f"b{t} {i}", f"t{t}", str(i), "", "") for t in range(n_tasks) for i in range(n)]
    kept = {2: vectors.reshape(-1, 2, d).astype(np.float32)}
    return States(pd.DataFrame(rows, columns=list(COLUMNS)), (2,), d, dict(settings), _kept=kept)


def drawn(seed: int, d: int, share: float | None, *, size: str = "normal", mixed: bool = False, **shape: int) -> States:
    """Normal states, with a difference of 3.5 SDs along a random direction, or one confined to some coordinates."""
    n_tasks, n = shape.get("n_tasks", 7), shape.get("n", 120)
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n_tasks, n, 2, d))
    directions = rng.normal(size=(n_tasks, d))
    for direction in directions if share is not None else ():
        chosen = rng.permutation(d) < max(1, int(share * d))
        direction[:] = np.where(chosen, direction if size == "normal" else 1.0, 0.0)
    directions *= 3.5 / np.linalg.norm(directions, axis=1, keepdims=True)
    if mixed:  # dimensions of unequal variance, in a random basis
        vectors = vectors * np.exp(rng.normal(size=d)) @ haar(d, 1_000 + seed)
        directions *= vectors.std()
    vectors[:, :, 0] += directions[:, None]
    return states_of(vectors)


def verdicts(states: States) -> list[str]:
    return [one.verdict for one in concentrated(rotations(states, 2, progress=False), {})]


def test_every_accuracy_is_scikit_learns() -> None:
    d = 30
    states = drawn(0, d, None, n_tasks=2)
    table = rotations(states, 2, draws=2, progress=False)
    assert list(table) == ROTATED
    assert set(table["k"]) == {1, 3, 7, d}
    splits = split_tasks(states.pairs)
    by_hand = {}
    for task, split in splits.items():
        X, X_test = (np.concatenate([*states.load(2)[rows].swapaxes(0, 1)]) for rows in (split.train, split.test))
        y, y_test = (np.repeat([1, 0], len(x) // 2) for x in (X, X_test))
        scale = StandardScaler().fit(X)
        for draw in (-1, 0, 1):
            Z, Z_test = (scale.transform(x) @ (np.eye(d) if draw < 0 else haar(d, draw)) for x in (X, X_test))
            again = StandardScaler().fit(Z)
            Z, Z_test = again.transform(Z), again.transform(Z_test)
            t = np.abs(stats.ttest_ind(Z[y == 1], Z[y == 0], equal_var=False).statistic)
            for k in (1, 3, 7) + (d,) * (draw < 0):
                top = np.argsort(-t)[:k]
                probe = LogisticRegression(fit_intercept=False, tol=1e-9).fit(Z[:, top], y)
                control = "none" if draw < 0 else "rotation"
                by_hand[task, control, max(draw, 0), k] = probe.score(Z_test[:, top], y_test)
    for row in table.itertuples():
        assert row.accuracy == pytest.approx(by_hand[row.task, row.control, row.draw, row.k])
    able = table[table["k"] < d]["task"].unique()
    for task, split in splits.items():
        right = np.full(len(split.test), by_hand[task, "none", 0, d])
        assert share_interval(right)[0] < 0.6 or task in able


def test_a_rotation_is_a_rotation_of_any_direction() -> None:
    matrix = haar(60, 3)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(60), atol=1e-12)
    first = np.concatenate([haar(20, draw)[0] for draw in range(300)]) * math.sqrt(20)
    assert abs(first.mean()) < 0.05
    assert first.var() == pytest.approx(1, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True])
def test_states_without_a_basis_of_their_own_are_not_concentrated(mixed: bool) -> None:
    found = np.array([verdicts(drawn(seed, 64, None, mixed=mixed, n_tasks=6)) for seed in range(25)])
    assert ((found == "yes").sum(0) <= 3).all(), "more is seen in one of 30 tests at 5 %"


@pytest.mark.parametrize(("share", "size"), [(0.01, "equal"), (0.05, "normal")])
def test_a_difference_in_few_dimensions_is_found(share: float, size: str) -> None:
    assert verdicts(drawn(0, 100, share, size=size)) == ["yes"] * 3


def test_a_difference_in_a_quarter_of_the_dimensions_is_found() -> None:
    assert verdicts(drawn(1, 100, 0.25, n=150)) == ["yes"] * 3
    assert verdicts(drawn(0, 100, 0.25, size="equal", n=150))[2] == "yes", "by the top quarter alone"


def test_bad_input() -> None:
    states = drawn(0, 16, None)
    with pytest.raises(ValueError, match=naming("draws", -1)):
        rotations(states, 2, draws=-1, progress=False)
    assert rotations(states, 2, draws=0, progress=False).empty
    with pytest.raises(ValueError, match=naming("state 3", 2)):
        rotations(states, 3, draws=1, progress=False)


def test_few_constant_or_uninformative_dimensions() -> None:
    """Fewer dimensions than rotations, a dimension without variance, one task, and no task above chance."""
    few = drawn(0, 8, 0.1)
    vectors = few.load(2).reshape(7, 120, 2, 8).copy()
    vectors[..., 3] = 5
    for table in (rotations(states, 2, progress=False) for states in (few, states_of(vectors))):
        assert table["accuracy"].between(0, 1).all()
        assert table[table["control"] == "rotation"].groupby("k")["draw"].nunique().tolist() == [39, 39]
    assert set(verdicts(drawn(0, 40, 0.01, n_tasks=1))) == {"cannot tell"}
    noise = np.random.default_rng(0).normal(size=(6, 60, 2, 40))
    (nothing,) = concentrated(rotations(states_of(noise), 2, progress=False), {})
    assert nothing.verdict == "cannot tell"
    assert rotations(states_of(np.ones((1, 20, 2, 8))), 2, progress=False)["accuracy"].tolist() == [0.5]


def test_a_bag_of_words_on_other_tasks() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for task in "ab":
        for number in range(40):
            word = f"w{rng.integers(5)}"
            bad = "bad" if rng.random() < 0.8 else word
            rows.append((f"good {word} {task} {number}", f"{bad} {word} {task} {number}", task, str(number), "", ""))
    states = States(pd.DataFrame(rows, columns=list(COLUMNS)), (2,), 4, {})
    table = transfer_of_words(states).set_index(["train_task", "test_task"])
    for trained, split in split_tasks(states.pairs).items():
        words = sorted(
            {word for row in states.pairs.iloc[split.train].itertuples() for word in f"{row[1]} {row[2]}".split()}
        )

        def counted(sentences: pd.Series, words: list[str] = words) -> np.ndarray:
            return np.array([[sentence.split().count(word) for word in words] for sentence in sentences])

        train = states.pairs.iloc[split.train]
        X = np.concatenate([counted(train["sentence_good"]), counted(train["sentence_bad"])])
        probe = LogisticRegression(max_iter=1_000).fit(X, np.repeat([1, 0], len(train)))
        for tested, other in split_tasks(states.pairs).items():
            test = states.pairs.iloc[other.test]
            good, bad = (probe.decision_function(counted(test[f"sentence_{side}"])) for side in ("good", "bad"))
            pair_accuracy = np.mean((good > bad + 1e-9) + 0.5 * (abs(good - bad) < 1e-9))
            assert table.loc[(trained, tested), "pair_accuracy"] == pytest.approx(pair_accuracy)
            assert table.loc[(trained, tested), "accuracy"] == pytest.approx(
                ((good > 0).mean() + (bad <= 0).mean()) / 2
            )
