"""The negative log mean output probability as a linear function of the output embedding."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy import stats

from interp.analyses.encoding.theory import LogProbabilities, theory_table
from interp.corpora import Batches
from interp.corpora.batching import Text, predicted_batches
from interp.instruments.decomposition import Decomposition
from interp.instruments.divergences import Distribution
from interp.instruments.logits import SiteMean
from interp.instruments.predictions import MeanPredictions, Variant
from interp.instruments.regression import Regression, least_squares, minus_log, raw_head, regressions, taking_part
from interp.instruments.validation import errors_on_unseen, r2_on_unseen
from interp.models.embeddings import Embeddings
from interp.models.identity import weight_hash
from interp.models.sites import Model
from interp.passes.execution import Passes, Reading, runs
from interp.passes.reading import observe
from interp.support.checks import check_seed, whole_number
from interp.support.choices import Several, listed

__all__ = ["Fit", "dimensions", "few_shot", "fit"]
__dir__ = __all__.copy


@dataclass(frozen=True, eq=False)
class Fit:
    """What the output embeddings of a model say about token probability on a text.

    `alpha`, `[d_vocab]`, is the mean output probability α. `used` marks the types that were used (tokens that were ever
    predicted), and `fitted` is their regression. `components`, `[d_model, d_model]`, has the principal axes of the used
    embeddings as orthonormal rows in order of decreasing variance. `mean_input`, `[d_model]`, is the mean input of the
    unembedding, E[h], over the `n_tokens` positions of `batches`. `regression` and `dims` are the tables described in
    `fit`, and `intervals` says what those of `theory` are over (`interp.results.intervals.about`).
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
    theory: pd.DataFrame
    intervals: Mapping[str, Any]

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
    """Regress the negative log mean output probability on the output embeddings, from one forward pass.

    `−log α_w ≈ A·E_w + B` is fitted by ordinary least squares in float64 (Cho et al. 2025, §3). `α_w` is the mean of
    the predicted probability over positions (masked positions for an encoder), and `E_w` is the output embedding, a
    column of `W_U`. Padded rows of the vocabulary and types that were never predicted (α = 0) are left out and counted.

    Args:
        text: anything `interp.corpora.batches` takes, or its batches.
        seed: the seed for shuffling, from which the nulls come.
        directory: see `interp.passes.execution.execute`.

    Returns a `Fit` with the tables `regression`, `theory` and `dims` of an `EncodingStudy`. The targets are `-log
    alpha`, and the same with α `shuffled` over types. `cv_r2` is ten-fold, with its 95 % interval over types; see
    `interp.instruments.validation.cross_validated`. The predictors are the fit on unseen types, and what is known
    without a fit; see `interp.analyses.encoding.theory`. The bases are `axis` and `pca`, and `spearman` correlates the
    embeddings' coordinate with −log α.

    Raises ValueError if there are no more usable types than dimensions, for a folded model, for an encoder without
    masked positions, and for a seed below 0.

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
    predictions = LogProbabilities(model)
    inputs = SiteMean(model, "head_input", model.cfg.d_model, dtype=head.wide)
    yield [Reading("token probability", prepared, [predictions, inputs])]
    alpha = predictions.distributions[0]
    real = head.real.cpu().numpy()
    used = real & (alpha > 0)
    embeddings = head.embeddings.of(taking_part(head.embeddings, alpha, used))
    y = minus_log(alpha[used])
    null = np.random.default_rng(seed).permutation(y)
    targets = np.column_stack([y, null, *_without_each_group(predictions, used)])
    decomposition, (fitted, by_chance, *_) = least_squares(embeddings, *targets.T, n_real=int(real.sum()))
    errors = errors_on_unseen(embeddings, decomposition, targets)
    numbers = pd.DataFrame([fitted, by_chance]).drop(columns=["slope", "intercept"])
    numbers.insert(0, "target", ["-log alpha", "shuffled"])
    unseen = r2_on_unseen(targets[:, :2], errors[:, :2])
    numbers = numbers.join(unseen)[["target", "r2", "adj_r2", *unseen, "n_types", "n_dims", "rank"]]
    left_out = {"n_not_tokens": (~real).sum(), "n_never_predicted": (real & ~used).sum()}
    of_model = {"spread": y.std(), "logit_scale": 1.0, "seed": pd.array([pd.NA, seed], dtype="Int64")}
    of_text = [0, *range(2, targets.shape[1])]
    return Fit(
        alpha=alpha,
        used=used,
        fitted=fitted,
        components=decomposition.components,
        mean_input=inputs.mean.cpu().numpy(),
        n_tokens=predictions.n_tokens,
        batches=prepared,
        weight_hash=weight_hash(model),
        regression=numbers.assign(**left_out, **of_model),
        dims=dimensions(embeddings, decomposition, fitted.slope, np.stack([y, null])),
        theory=theory_table(predictions, used, targets.T[of_text], errors.T[of_text]),
        intervals=predictions.intervals,
    )


def dimensions(
    embeddings: Embeddings,
    decomposition: Decomposition,
    slope: Float[np.ndarray, " d_model"],
    targets: Float[np.ndarray, "2 types"],
) -> pd.DataFrame:
    """The table `dims` of `interp.encoding.fit`, from −log α, its shuffled values, and the slope for −log α."""
    tables = []
    for basis, along, sizes in (
        ("axis", slope, decomposition.sizes),
        ("pca", decomposition.components @ slope, decomposition.singular),
    ):
        table = pd.DataFrame({"basis": basis, "dim": np.arange(len(along)), "slope": along})
        table["standardised_slope"] = along * np.ldexp(sizes / np.sqrt(decomposition.n_types), decomposition.exponent)
        rows = _spearman(embeddings, None if basis == "axis" else decomposition.components, _centred_ranks(targets))
        table = table.join(pd.DataFrame(rows, columns=["spearman", "spearman_shuffled"]))
        tables.append(table.assign(explained_variance=sizes**2 / (sizes**2).sum()))
    return pd.concat(tables, ignore_index=True)


def _spearman(
    embeddings: Embeddings, axes: Float[np.ndarray, "d_model d_model"] | None, ranks: Float[np.ndarray, "2 types"]
) -> list[list[float]]:
    """Correlations of centred ranks with the ranks of each dimension, or of the coordinate along each axis."""

    def of_column(column: Float[np.ndarray, " types"]) -> list[float]:
        column_ranks = _centred_ranks(column)
        size = np.sqrt((column_ranks**2).sum() * (ranks**2).sum(1))
        # sums instead of matrix products, whose last bits depend on what other threads do
        return np.divide((ranks * column_ranks).sum(1), size, out=np.full(2, np.nan), where=size > 0).tolist()

    def of_some(dims: slice) -> list[list[float]]:
        coordinates = embeddings.coordinates(dims) if axes is None else embeddings.dot(torch.from_numpy(axes[dims]))
        return list(threads.map(of_column, coordinates.numpy()))

    step = max(1, 4 * embeddings.at_once // len(embeddings))  # along axes, each step reads all embeddings
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        correlations = []
        for start in range(0, embeddings.d_model, step):
            correlations.extend(of_some(slice(start, start + step)))
        return correlations


def _centred_ranks(values: Float[np.ndarray, "*rows types"]) -> Float[np.ndarray, "*rows types"]:
    return np.asarray(stats.rankdata(values, axis=-1)) - (values.shape[-1] + 1) / 2


def _without_each_group(
    predictions: LogProbabilities, used: Bool[np.ndarray, " d_vocab"]
) -> list[Float[np.ndarray, " types"]]:
    """−log α without each group of texts; empty if there are too few for intervals, or some type is predicted in a
    single group."""
    if "none" in predictions.intervals:
        return []
    without = []
    for means in predictions.leaving_out(0):
        alpha = means.distribution[used]
        if not (alpha > 0).all():
            return []
        without.append(minus_log(alpha))
    return without


def few_shot(model: Model, fit: Fit, *, tokens: Several[int] = (500, 1_000, 2_000, 5_000, 10_000)) -> pd.DataFrame:
    """How much text the regression needs: fits on the first tokens of the fitted text, compared with the whole fit.

    Returns the table `few_shot` of an `EncodingStudy`: the cosine is that between the slope and the one of the whole
    text. Budgets larger than the text are left out.

    Raises ValueError for a fit of another model and for fewer tokens than one, and TypeError for numbers of tokens that
    are not whole.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> whole = fit(model, text, progress=False)
        >>> table = few_shot(model, whole, tokens=[60, whole.n_tokens])
        >>> table["cosine"].round(6).tolist()[-1]  # all of the text gives the slope of the fit
        1.0
    """
    fit.require(model)
    requested = sorted(whole_number(budget, "a number of tokens", least=1) for budget in listed(tokens))
    budgets, alphas = _of_first_tokens(model, fit, requested)
    embeddings = raw_head(model).embeddings
    y = minus_log(fit.alpha[fit.used])
    fits = regressions(embeddings, alphas, use=fit.used)
    slopes = np.array([small.slope for small in fits]).reshape(len(fits), embeddings.d_model)
    guesses = embeddings.of(fit.used).dot(torch.from_numpy(slopes)).numpy()
    rows = []
    for budget, small, guess in zip(budgets, fits, guesses, strict=True):
        cosine = small.slope @ fit.slope / np.linalg.norm(small.slope) / np.linalg.norm(fit.slope)
        r2 = 1 - ((y - guess - small.intercept) ** 2).sum() / ((y - y.mean()) ** 2).sum()
        rows.append((budget, small.adj_r2, cosine, r2))
    return pd.DataFrame(rows, columns=["n_tokens", "adj_r2", "cosine", "r2_of_whole"])


def _of_first_tokens(model: Model, fit: Fit, budgets: Sequence[int]) -> tuple[list[int], list[Distribution]]:
    """Mean output probability over the first tokens of the fitted text, for each of the increasing budgets that the
    text reaches.
    """
    alphas: list[Distribution] = []
    predictions = MeanPredictions(model, [Variant()])
    for batch in fit.batches:
        if len(alphas) == len(budgets):
            break
        number = predictions.n_tokens + batch.read.flatten().cumsum(0).view_as(batch.read)
        for budget in budgets[len(alphas) :]:
            part = replace(batch, read=batch.read & (number > predictions.n_tokens) & (number <= budget))
            if part.n_read:
                observe(model, replace(fit.batches, read=partial(iter, [part])), predictions, progress=False)
            if predictions.n_tokens < budget:
                break
            alphas.append(predictions.distributions[0])
    return list(budgets[: len(alphas)]), alphas
