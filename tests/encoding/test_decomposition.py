"""The decomposition in blocks of types, against numpy's least squares, scikit-learn and scipy on whole matrices."""

import sys

import numpy as np
import pytest
import torch
from processes import Script
from scipy import stats
from sklearn.decomposition import PCA

from interp.analyses.encoding.regression import dimensions
from interp.instruments.decomposition import decompose
from interp.instruments.regression import fit_arrays, regressions
from interp.models.embeddings import Embeddings

N, D = 1_003, 24
CASES = ("well conditioned", "condition 1e6", "far from zero", "of rank 9", "bfloat16", "fewer types than dimensions")
RTOL = 1e-9


def embeddings_of(case):
    """`W_U` `[d_model, d_vocab]` whose principal axes have different variances."""
    rng = np.random.default_rng(0)
    spectrum = np.geomspace(1, 1e-6 if case == "condition 1e6" else 0.1, D)
    E = rng.normal(size=(N, D)) @ np.diag(spectrum) @ np.linalg.qr(rng.normal(size=(D, D)))[0]
    match case:
        case "far from zero":
            E += 1e3 * rng.normal(size=D)
        case "of rank 9":
            E = E[:, :9] @ rng.normal(size=(9, D))
        case "fewer types than dimensions":
            E = E[:20, :9] @ rng.normal(size=(9, D))
        case "bfloat16":
            return torch.from_numpy(E).bfloat16().T  # stored with the vocabulary as the first axis
    return E.T


def whole(W_U):
    return W_U.double().numpy().T if isinstance(W_U, torch.Tensor) else W_U.T


@pytest.mark.parametrize("at_once", [11 * D, 100 * D, 2**22])
@pytest.mark.parametrize("case", CASES)
def test_least_squares_and_principal_components(case, at_once):
    W_U = embeddings_of(case)
    E, rng = whole(W_U), np.random.default_rng(1)
    n, X = len(E), E - E.mean(0)
    Y = np.column_stack([X @ rng.normal(size=D) + rng.normal(size=n) * 1e-3, rng.normal(size=n)])
    found = decompose(Embeddings(W_U, at_once=at_once), Y)
    slopes, _, rank, _ = np.linalg.lstsq(X, Y - Y.mean(0))
    assert found.rank == rank == {"of rank 9": 9, "fewer types than dimensions": 9}.get(case, D)
    ours = np.ldexp(found.slopes, -found.exponent)
    expected = X @ slopes
    for i in range(2):
        np.testing.assert_allclose(X @ ours[:, i], expected[:, i], rtol=0, atol=RTOL * np.abs(expected[:, i]).max())
    if case != "condition 1e6":
        np.testing.assert_allclose(ours, slopes, rtol=0, atol=RTOL * np.abs(slopes).max())
    left = ((Y - Y.mean(0) - expected) ** 2).sum(0)
    np.testing.assert_allclose(found.r2, 1 - left / ((Y - Y.mean(0)) ** 2).sum(0), rtol=RTOL)
    np.testing.assert_allclose(np.ldexp(found.mean, found.exponent), E.mean(0), rtol=RTOL, atol=1e-15)
    pca = PCA(svd_solver="full").fit(E)
    share = np.ldexp(found.singular, found.exponent)[: len(pca.components_)] ** 2 / (n - 1)
    np.testing.assert_allclose(share, pca.explained_variance_, rtol=RTOL, atol=1e-15 * share[0])
    np.testing.assert_allclose(found.components[:rank], pca.components_[:rank], rtol=0, atol=RTOL)
    np.testing.assert_allclose(found.components @ found.components.T, np.eye(D), atol=1e-13)
    np.testing.assert_allclose(np.ldexp(found.sizes, found.exponent), np.linalg.norm(X, axis=0), rtol=RTOL)


@pytest.mark.parametrize("at_once", [11 * D, 3 * N, 2**22])
@pytest.mark.parametrize("case", ["well conditioned", "far from zero", "bfloat16"])
def test_dimensions_of_some_types(case, at_once):
    W_U = embeddings_of(case)
    rng = np.random.default_rng(2)
    use = rng.random(N) < 0.7
    E = whole(W_U)[use]
    y, other = E @ rng.normal(size=D) + rng.normal(size=len(E)), rng.normal(size=len(E))
    embeddings = Embeddings(W_U, use=use, at_once=at_once)
    found = decompose(embeddings, np.column_stack([y, other]))
    slope = np.ldexp(found.slopes[:, 0], -found.exponent)
    table = dimensions(embeddings, found, slope, np.stack([y, other]))
    for basis, turn in (("axis", np.eye(D)), ("pca", PCA(svd_solver="full").fit(E).components_)):
        part, x = table[table["basis"] == basis], E @ turn.T
        assert part["dim"].tolist() == list(range(D))
        expected = {
            "slope": turn @ slope,
            "standardised_slope": turn @ slope * x.std(0),
            "spearman": [stats.spearmanr(column, y).statistic for column in x.T],
            "spearman_shuffled": [stats.spearmanr(column, other).statistic for column in x.T],
            "explained_variance": x.var(0) / x.var(0).sum(),
        }
        for name, values in expected.items():
            np.testing.assert_allclose(part[name], values, rtol=RTOL, atol=RTOL, err_msg=name)


def test_several_targets_over_different_types():
    """Each has the same fit as alone, although targets over the same types share a decomposition."""
    rng = np.random.default_rng(3)
    W_U, alphas = embeddings_of("well conditioned"), [*rng.dirichlet(np.ones(N), size=3)]
    alphas[1][5:9] = 0
    together = regressions(Embeddings(W_U, at_once=100 * D), alphas)
    assert [one.n_types for one in together] == [N, N - 4, N]
    for one, alpha in zip(together, alphas, strict=True):
        alone = fit_arrays(W_U, alpha)
        np.testing.assert_allclose(one.slope, alone.slope, rtol=RTOL, atol=RTOL)
        assert (one.intercept, one.r2) == pytest.approx((alone.intercept, alone.r2), rel=RTOL)


def test_a_tensor_is_fitted_as_an_array():
    alpha = np.random.default_rng(4).dirichlet(np.ones(N))
    W_U = embeddings_of("bfloat16")
    one, other = fit_arrays(torch.nn.Parameter(W_U), alpha), fit_arrays(W_U.double().numpy(), alpha)
    np.testing.assert_allclose(one.slope, other.slope, rtol=RTOL)


MEASURED = """
import pathlib
import numpy as np
import torch
from interp.instruments.decomposition import decompose
from interp.analyses.encoding.regression import dimensions
from interp.models.embeddings import Embeddings

def resident(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024

torch.set_num_threads(1)
rng = np.random.default_rng(0)
W_U, targets = torch.randn(n, d).mT, rng.normal(size=(n, 2))
warm = Embeddings(W_U[:, :1000])
dimensions(warm, decompose(warm, targets[:1000]), np.ones(d), targets[:1000].T)
embeddings = Embeddings(W_U, at_once=2**18)
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
found = decompose(embeddings, targets)
if with_ranks:
    dimensions(embeddings, found, np.ones(d), targets.T)
print(resident("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("with_ranks", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_copy_of_the_embeddings_is_made(with_ranks):
    """A float64 copy of 60,000 types in 512 dimensions takes 234 MiB, and a block here takes 2 MiB."""
    out, _ = Script(MEASURED, n=60_000, d=512, with_ranks=with_ranks).end()
    assert float(out) < 100
