"""Minus log mean output probability as a linear function of the output embedding, and the directions it gives."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy import stats
from sklearn.decomposition import PCA

from interp.checks import check_seed
from interp.corpora import Batches
from interp.corpora.batching import Text, predicted_batches
from interp.corpora.counts import Counts, unigrams_of
from interp.frequency.distributions import Distribution, MeanPredictions, SiteMean, Variant
from interp.models.head import PredictionHead, prediction_head
from interp.models.identity import weight_hash
from interp.models.sites import Model
from interp.run.observers import observe
from interp.run.passes import Passes, Reading, runs

__all__ = ["Fit", "Regression", "directions", "few_shot", "fit", "fit_arrays", "raw_head"]

_DRAWS = 1_000
_OUTLIERS = 3


def raw_head(model: Model) -> PredictionHead:
    """The prediction head; raises ValueError for a folded one, whose W_U is not the output embeddings."""
    head = prediction_head(model)
    if head.folded or head.norm == "folded rms":
        raise ValueError("the final norm of this model is folded into W_U; load it raw (interp.load)")
    return head


@dataclass(frozen=True, eq=False)
class Regression:
    """`−log α_w ≈ A·E_w + B` by ordinary least squares over token types, float64.

    `slope` A `[d_model]` (the least one where the embeddings leave it open), `intercept` B (nats), `r2`,
    `adj_r2 = 1 − (1 − R²)(n − 1)/(n − r − 1)`, the number of types n and dimensions d, and the rank r of the centred
    embeddings, d where no dimension follows from others.
    """

    slope: Float[np.ndarray, " d_model"]
    intercept: float
    r2: float
    adj_r2: float
    n_types: int
    n_dims: int
    rank: int


def fit_arrays(
    W_U: Float[np.ndarray, "d_model d_vocab"], alpha: Distribution, *, use: Bool[np.ndarray, " d_vocab"] | None = None
) -> Regression:
    """Regress minus the log of mean output probability on the output embeddings (the columns of `W_U`).

    Args:
        alpha: mean output probability of each type over a corpus.
        use: which types take part; all with a probability above 0.

    Raises:
        ValueError: no more types than independent dimensions, so that the fit would be exact and say nothing; an α that
            is negative, not finite or the same for every type; embeddings that are not finite, are all the same, or so
            small that float64 has no slope for them; a `use` that is not one bool for each type.
    """
    return _least_squares(*_types(W_U, alpha, use))[0]


def _types(
    W_U: Float[np.ndarray, "d_model d_vocab"], alpha: Distribution, use: Bool[np.ndarray, " d_vocab"] | None
) -> tuple[Float[np.ndarray, "types d_model"], Float[np.ndarray, " types"]]:
    """Embeddings and −log α of the types that take part; raises ValueError as `fit_arrays` does."""
    if not np.isfinite(alpha).all() or (alpha < 0).any():
        raise ValueError("alpha must hold probabilities; found negative, infinite or NaN values")
    if W_U.shape[1:] != alpha.shape or not np.isfinite(W_U).all():
        what = "has NaN or infinite values" if W_U.shape[1:] == alpha.shape else f"is over {W_U.shape[1:]} types"
        raise ValueError(f"W_U {what}; expected finite embeddings of the {len(alpha)} types of alpha")
    use = np.ones(len(alpha), dtype=bool) if use is None else np.asarray(use)
    if use.dtype != bool or use.shape != alpha.shape:
        raise ValueError(f"use must be a bool for each of the {len(alpha)} types, found {use.dtype} {use.shape}")
    keep = use & (alpha > 0)
    return W_U.T[keep].astype(np.float64), -np.log(alpha[keep].astype(np.float64))


def _least_squares(E: Float[np.ndarray, "types d_model"], *targets: Float[np.ndarray, " types"]) -> list[Regression]:
    """Each target regressed on E and a constant, from one decomposition of the centred embeddings.

    They are divided by a power of two before, and the slopes after, so that no unit of E overflows.
    """
    n, d = E.shape
    _, exponent = np.frexp(np.abs(E).max(initial=0.0))
    scaled, Y = np.ldexp(E, -exponent), np.column_stack(targets)
    if n < 2:
        raise ValueError(f"{n} usable types; a regression needs more types than dimensions")
    middle, level = scaled.mean(0), Y.mean(0)
    X, centred = scaled - middle, Y - level
    slopes, _, rank, _ = np.linalg.lstsq(X, centred)
    if n <= rank + 1:
        raise ValueError(f"{n} usable types for {rank} independent dimensions fit exactly; give text with more types")
    if not (np.ptp(Y, axis=0) > 0).all():
        raise ValueError("alpha is the same for every type; there is nothing for the embeddings to explain")
    if not rank:
        raise ValueError("the output embeddings of all types are the same; expected embeddings that differ")
    r2 = 1 - ((centred - X @ slopes) ** 2).sum(0) / (centred**2).sum(0)
    intercepts = level - middle @ slopes
    with np.errstate(over="ignore"):
        slopes = np.ldexp(slopes, -exponent)
    if not np.isfinite(slopes).all():
        raise ValueError(f"the output embeddings are at most {np.abs(E).max():.0e}, too small for a slope in float64")
    adjusted = 1 - (1 - r2) * (n - 1) / (n - rank - 1)
    numbers = zip(slopes.T, intercepts.tolist(), r2.tolist(), adjusted.tolist(), strict=True)
    return [Regression(*one, n_types=n, n_dims=d, rank=int(rank)) for one in numbers]


@dataclass(frozen=True, eq=False)
class Fit:
    """What the output embeddings of a model say about token probability on a text.

    `alpha` `[d_vocab]` is the mean output probability α, `used` marks the types that took part (tokens that were ever
    predicted), `fitted` their regression, `components` `[d_model, d_model]` the principal axes of the used embeddings
    (rows, orthonormal, by falling variance), `mean_input` `[d_model]` the mean input of the unembedding E[h] over the
    `n_tokens` positions of `batches`. `regression` and `dims` are the tables that `fit` describes.
    """

    alpha: Distribution
    used: Bool[np.ndarray, " d_vocab"]
    fitted: Regression
    components: Float[np.ndarray, "d_model d_model"]
    mean_input: Float[np.ndarray, " d_model"]
    n_tokens: int
    batches: Batches
    weight_hash: str
    regression: pd.DataFrame
    dims: pd.DataFrame

    @property
    def slope(self) -> Float[np.ndarray, " d_model"]:
        """A of `−log α ≈ A·E + B`."""
        return self.fitted.slope

    @property
    def intercept(self) -> float:
        """B of `−log α ≈ A·E + B`, in nats."""
        return self.fitted.intercept

    def require(self, model: Model) -> None:
        """Raise ValueError for a fit of another model."""
        if weight_hash(model) != self.weight_hash:
            raise ValueError("this fit belongs to a model with other weights; fit this model (interp.encoding.fit)")


@runs
def fit(
    model: Model,
    text: Text,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
    directory: str | os.PathLike[str] | None = None,
) -> Passes[Fit]:
    """Regress minus log mean output probability on the output embeddings, from one forward pass.

    `−log α_w ≈ A·E_w + B` by ordinary least squares in float64 (Cho et al. 2025, §3), `α_w` the mean over positions of
    the predicted probability (masked positions for an encoder), `E_w` the output embedding, a column of `W_U`.
    Padded rows of the vocabulary and types that were never predicted (α = 0) are left out and counted.

    Args:
        text: anything `interp.corpora.batches` takes, or its batches.
        seed: of the shuffles that the nulls come from.
        directory: see `interp.run.passes.execute`.

    Returns a `Fit` with the tables `regression` (target, r2, adj_r2, n_types, n_dims, rank, n_not_tokens,
    n_never_predicted), target `-log alpha` and the same with α `shuffled` over types; and `dims` (basis, dim, slope,
    standardised_slope, spearman, spearman_shuffled, explained_variance), basis `axis` or `pca`: slope A_j and
    A_j·SD(E_j), Spearman of the embeddings' coordinate with −log α, and its share of the embeddings' variance.

    Raises ValueError for no more usable types than dimensions, a folded model, an encoder without masked positions, a
    seed below 0.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> found = fit(model, text, progress=False)
        >>> found.regression["target"].tolist()
        ['-log alpha', 'shuffled']
    """
    prepared = predicted_batches(model, text, batch_size=batch_size)
    seed = check_seed(seed)
    head = raw_head(model)
    wide = torch.promote_types(head.W_U.dtype, torch.float32)
    predictions = MeanPredictions(model, [Variant()])
    inputs = SiteMean(model, "head_input", model.cfg.d_model, dtype=wide)
    yield [Reading("token probability", prepared, [predictions, inputs])]
    alpha = predictions.distributions[0]
    real = head.real.cpu().numpy()
    used = real & (alpha > 0)
    E, y = _types(head.W_U.double().cpu().numpy(), alpha, used)
    null = np.random.default_rng(seed).permutation(y)
    fitted, by_chance = _least_squares(E, y, null)
    numbers = pd.DataFrame([fitted, by_chance]).drop(columns=["slope", "intercept"])
    numbers.insert(0, "target", ["-log alpha", "shuffled"])
    pca = PCA(svd_solver="covariance_eigh").fit(E)
    ranks = _centred_ranks(np.stack([y, null]))
    axis = _dims("axis", E, fitted.slope, ranks)
    principal = _dims("pca", pca.transform(E), pca.components_ @ fitted.slope, ranks)
    return Fit(
        alpha=alpha,
        used=used,
        fitted=fitted,
        components=pca.components_,
        mean_input=inputs.mean.cpu().numpy(),
        n_tokens=predictions.n_tokens,
        batches=prepared,
        weight_hash=weight_hash(model),
        regression=numbers.assign(n_not_tokens=(~real).sum(), n_never_predicted=(real & ~used).sum()),
        dims=pd.concat([axis, principal], ignore_index=True),
    )


def _dims(
    basis: str,
    coordinates: Float[np.ndarray, "types d_model"],
    slope: Float[np.ndarray, " d_model"],
    ranks: Float[np.ndarray, "2 types"],
) -> pd.DataFrame:
    """The table `dims` in one basis, from the centred ranks of −log α and of its shuffle."""

    def spearman(column: Float[np.ndarray, " types"]) -> Float[np.ndarray, "2"]:
        own = _centred_ranks(column)
        size = np.sqrt((own**2).sum() * (ranks**2).sum(1))
        # sums and not products of matrices, whose last bits depend on what other threads do
        return np.divide((ranks * own).sum(1), size, out=np.full(2, np.nan), where=size > 0)

    table = pd.DataFrame({"basis": basis, "dim": np.arange(len(slope)), "slope": slope})
    table["standardised_slope"] = slope * coordinates.std(0)
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        found = pd.DataFrame(threads.map(spearman, coordinates.T), columns=["spearman", "spearman_shuffled"])
    variance = coordinates.var(0)
    return table.join(found).assign(explained_variance=variance / variance.sum())


def _centred_ranks(values: Float[np.ndarray, "*rows types"]) -> Float[np.ndarray, "*rows types"]:
    return np.asarray(stats.rankdata(values, axis=-1)) - (values.shape[-1] + 1) / 2


def few_shot(model: Model, fit: Fit, *, tokens: Sequence[int] = (500, 1_000, 2_000, 5_000, 10_000)) -> pd.DataFrame:
    """How much text does the regression need: fits on the first tokens of the fitted text, against the whole fit.

    Returns a table (n_tokens, adj_r2, cosine, r2_of_whole): the cosine of the slope with the whole text's, and the R²
    with which the small fit predicts the whole text's −log α. Budgets beyond the text are left out.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> whole = fit(model, text, progress=False)
        >>> table = few_shot(model, whole, tokens=[60, whole.n_tokens])
        >>> table["cosine"].round(6).tolist()[-1]  # all of the text gives the slope of the fit
        1.0
    """
    fit.require(model)
    W_U = raw_head(model).W_U.double().cpu().numpy()
    y = -np.log(fit.alpha[fit.used])
    rows: list[tuple[float, ...]] = []
    predictions = MeanPredictions(model, [Variant()])
    budgets = sorted(tokens)
    for batch in fit.batches:
        if len(rows) == len(budgets):
            break
        number = predictions.n_tokens + batch.read.flatten().cumsum(0).view_as(batch.read)
        for budget in budgets[len(rows) :]:
            part = replace(batch, read=batch.read & (number > predictions.n_tokens) & (number <= budget))
            if part.n_read:
                observe(model, replace(fit.batches, read=partial(iter, [part])), predictions, progress=False)
            if predictions.n_tokens < budget:
                break
            small = fit_arrays(W_U, predictions.distributions[0], use=fit.used)
            guess = small.slope @ W_U[:, fit.used] + small.intercept
            cosine = small.slope @ fit.slope / np.linalg.norm(small.slope) / np.linalg.norm(fit.slope)
            r2 = 1 - ((y - guess) ** 2).sum() / ((y - y.mean()) ** 2).sum()
            rows.append((budget, small.adj_r2, cosine, r2))
    return pd.DataFrame(rows, columns=["n_tokens", "adj_r2", "cosine", "r2_of_whole"])


def directions(model: Model, fit: Fit, *, unigram: Counts | None = None, seed: int = 0) -> pd.DataFrame:
    """Cosines of the directions that carry word frequency in the space that the unembedding reads.

    | name | direction |
    |---|---|
    | `b_LN` | the bias of the final layer norm (left out where there is none) |
    | `-A` | the slope of log α on the output embeddings |
    | `E[h]` | the mean input of the unembedding; to first order `A ≈ −E[h]` |
    | `unigram` | the slope of log u on the output embeddings, over types that occur, if enough of them do |
    | `PC1` | the first principal axis of the embeddings, turned towards `-A` |
    | `dim j` | at most three dimensions of E[h] further than 3 SD from their mean, turned towards it |

    Returns the table `directions` (name_a, name_b, cosine, null_95): `null_95` is the 95th percentile of |cosine|
    when the coordinates of the second are shuffled (1,000 times), so what is large at this width.

    Raises ValueError for a fit of another model, counts of another vocabulary, a folded model, a seed below 0.
    """
    seed = check_seed(seed)
    fit.require(model)
    head = raw_head(model)
    W_U = head.W_U.double().cpu().numpy()
    u = unigrams_of(model, fit.batches, unigram).distribution
    found: dict[str, Float[np.ndarray, " d_model"]] = {}
    if head.b_ln is not None and bool(head.b_ln.any()):
        found["b_LN"] = head.b_ln.double().cpu().numpy()
    found["-A"] = -fit.slope
    found["E[h]"] = fit.mean_input
    seen = head.real.cpu().numpy() & (u > 0)
    if seen.sum() > len(W_U) + 1:
        found["unigram"] = -fit_arrays(W_U, u, use=seen).slope
    first = fit.components[0]
    found["PC1"] = first * np.sign(first @ found["-A"] or 1.0)
    z = (fit.mean_input - fit.mean_input.mean()) / fit.mean_input.std()
    for dim in np.argsort(-np.abs(z))[:_OUTLIERS]:
        if abs(z[dim]) > 3:
            found[f"dim {dim}"] = np.sign(z[dim]) * np.eye(len(z))[dim]
    rng = np.random.default_rng(seed)
    unit = {name: vector / np.linalg.norm(vector) for name, vector in found.items()}
    rows = []
    for (a, one), (b, other) in product(unit.items(), repeat=2):
        shuffled = rng.permuted(np.tile(other, (_DRAWS, 1)), axis=1)
        rows.append((a, b, one @ other, np.quantile(np.abs(shuffled @ one), 0.95)))
    return pd.DataFrame(rows, columns=["name_a", "name_b", "cosine", "null_95"])
