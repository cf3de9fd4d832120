"""Cross-validated R² against scikit-learn on the same folds, and its interval against the true value."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from interp import encoding
from interp.instruments.decomposition import decompose
from interp.instruments.validation import cross_validated, folds
from interp.models.embeddings import Embeddings


def planted(d=12, n=400, seed=0, noise=1.0):
    """Embeddings, and a target that is linear in them apart from noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.geomspace(1, 100, d) + rng.normal(size=d)
    return X, X @ (rng.normal(size=d) / np.geomspace(1, 100, d)) + noise * rng.normal(size=n)


def ours(X, y, at_once=2**22):
    embeddings = Embeddings(torch.from_numpy(X.T.copy()), at_once=at_once)
    return cross_validated(embeddings, decompose(embeddings, y[:, None]), y[:, None]).iloc[0]


def by_sklearn(X, y):
    split = PredefinedSplit(folds(len(y)))
    return r2_score(y, cross_val_predict(LinearRegression(), X, y, cv=split))


@pytest.mark.parametrize("at_once", [2**22, 100])
@pytest.mark.parametrize(
    ("d", "n", "noise"), [(12, 400, 1.0), (12, 400, 0.01), (50, 70, 1.0), (3, 8, 1.0), (1, 101, 9.0)]
)
def test_equals_scikit_learn(d, n, noise, at_once):
    X, y = planted(d, n, noise=noise)
    found = ours(X, y, at_once)
    assert found["cv_r2"] == pytest.approx(by_sklearn(X, y), abs=1e-9)
    assert found["cv_r2_low"] < found["cv_r2"] < found["cv_r2_high"] < 1


def test_embeddings_of_any_unit_and_condition():
    X, y = planted()
    expected = by_sklearn(X, y)
    for unit in (1e-150, 1e-8, 1e8, 1e150):
        assert ours(unit * X, y)["cv_r2"] == pytest.approx(expected, abs=1e-9)
    badly = X * np.geomspace(1, 1e-7, 12)
    assert ours(badly, y)["cv_r2"] == pytest.approx(expected, abs=1e-9), "least squares has no units"


def test_dimensions_that_follow_from_others_change_nothing():
    X, y = planted()
    more = np.column_stack([X, X[:, :3] + X[:, 3:6], np.ones(len(y))])
    assert ours(more, y)["cv_r2"] == pytest.approx(by_sklearn(X, y), abs=1e-9)


def test_a_slope_that_depends_on_one_fold_alone_is_left_open():
    X, y = planted()
    X[:, 0] = np.arange(len(y)) == 7
    assert np.isnan(ours(X, y)).all()


def test_folds_are_even_mixed_and_the_same_every_time():
    fold = folds(50_257)
    assert np.bincount(fold).tolist() == [5_026] * 7 + [5_025] * 3
    np.testing.assert_array_equal(fold, folds(50_257))
    assert abs(np.corrcoef(fold, np.arange(len(fold)))[0, 1]) < 0.02
    assert len(set(fold[:30].tolist())) > 5, "not one after the other in the vocabulary"


def test_noise_explains_nothing_of_unseen_types():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 100)), rng.normal(size=300)
    assert LinearRegression().fit(X, y).score(X, y) > 0.25
    assert ours(X, y)["cv_r2_high"] < 0


@pytest.mark.slow
def test_the_interval_holds_what_new_types_give():
    """It contains the population's R² in about 95 of 100 draws of types, with noise of heavier tails than normal."""
    d, n, slope = 5, 400, np.ones(5)
    inside = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        X, noise = rng.normal(size=(n, d)), rng.standard_t(8, size=n) * np.sqrt(6 / 8)
        found = ours(X, X @ slope + noise)
        truth = 1 - (1 + d / n) / (d + 1)  # the share that a regression on n types explains of other types
        inside += found["cv_r2_low"] < truth < found["cv_r2_high"]
    assert 0.90 < inside / 200 < 0.99


def test_the_table_of_a_fit(load_toy, texts):
    model = load_toy("gpt2", dtype=torch.float64)
    fit = encoding.fit(model, texts, progress=False)
    X, y = model.W_U.detach().numpy().T[fit.used], -np.log(fit.alpha[fit.used])
    row, shuffled = fit.regression.to_dict("records")
    assert row["cv_r2"] == pytest.approx(by_sklearn(X, y), abs=1e-9)
    assert shuffled["cv_r2"] < shuffled["adj_r2"] < row["cv_r2"]
    assert list(fit.regression.columns[:6]) == ["target", "r2", "adj_r2", "cv_r2", "cv_r2_low", "cv_r2_high"]
