"""Question 1: what do the biases of the prediction head do to word frequency?

Source: Kobayashi, Kuribayashi, Yokoi, Inui, "Transformer Language Models Handle Word Frequency in Prediction
Head", Findings of ACL 2023.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Integer
from numpy.typing import NDArray
from scipy import stats

from interp.checks import warn
from interp.corpora import Batches, Text, as_batches, shipped_counts, unigrams_of
from interp.corpora.unigrams import Unigrams
from interp.frequency.distributions import MeanPredictions, Variant, js, kl, kl_where_seen, perplexity
from interp.models.head import Bias, PredictionHead, prediction_head, token_names
from interp.models.sites import Model, is_encoder
from interp.results import Result, provenance
from interp.run.passes import Passes, Reading, run

_ENOUGH_TOKENS = 10_000_000
_BINS = 25
MASK_RATE = 0.12
"""Share of tokens that an encoder reads as `[MASK]`, as in the paper."""


@dataclass(frozen=True, eq=False)
class BiasEffect(Result):
    """What `bias_effect` found.

    - `kl` (bias, scale, kl_unigram_model, kl_model_unigram, dropped_mass, js, perplexity, balanced_nll, n_tokens,
      n_scored): one row for each bias and scale. KL and JS in nats; `n_tokens` positions read, `n_scored` of them
      with a known target.
    - `types` (token_id, token, count, unigram, projection_ln, bias_last): one row for each token.
    - `probabilities` (token_id, bias, scale, probability): mean predicted probability of each token.
    - `curve` (bias, scale, bin, unigram_low, unigram_high, geometric_mean, geometric_sd, n_types): mean predicted
      probability of the types in bins of equal width of log u.
    - `projection` (bias, pearson, spearman, slope, n_types): what the bias adds to the logits against log u; the
      slope is the τ of an equivalent logit adjustment.
    - `adjustment` (tau, and the columns of `kl` from kl_unigram_model on): logit adjustment `logits − τ log u`
      for comparison (Menon et al. 2021), at the τ that b_LN amounts to, and at 1.
    """

    analysis: ClassVar[str] = "frequency"

    kl: pd.DataFrame
    types: pd.DataFrame
    probabilities: pd.DataFrame
    curve: pd.DataFrame
    projection: pd.DataFrame
    adjustment: pd.DataFrame


def bias_effect(
    model: Model,
    text_or_batches: Text,
    *,
    unigram: Unigrams | Integer[np.ndarray, " d_vocab"] | str | os.PathLike[str] | None = None,
    biases: Sequence[Bias] | None = None,
    scales: Iterable[float | int] = (0.0, 0.5, 1.0),
    batch_size: int | None = None,
    mask_rate: float | int | None = None,
    seed: int | None = None,
    progress: bool = True,
    directory: str | os.PathLike[str] | None = None,
) -> BiasEffect:
    """Scale each bias of the prediction head and compare what the model predicts with word frequency.

    For each bias and scale λ: `q(w)`, the mean over positions of the predicted probability with λ times the bias;
    `KL(u‖q) = Σ u log(u/q)` against the unigram distribution u; perplexity on the same text (Kobayashi et al.
    2023, §4). All of it from one forward pass: b_LN and b_last add `(λ − 1) b_LN W_U` and `(λ − 1) b_last` to the
    logits, and only b_FC needs the head again.

    Args:
        text_or_batches: anything `interp.corpora.batches` takes, or its batches.
        unigram: counts with this model's tokenizer, or a file of them. None takes the counts that ship with the
            model, or else counts this text (all of it, `limit` aside) and warns below ten million tokens, where
            sampling error raises the KL.
        biases: of `"ln"`, `"fc"`, `"last"`; all that the model has.
        scales: the λ.
        batch_size: rows in a forward pass; by default about 4,096 tokens.
        mask_rate: share of tokens an encoder reads and predicts as `[MASK]`; 0.12 as in the paper.
        seed: of the masking; 0.
        progress: show a progress bar.
        directory: see `interp.run.passes.run`.

    Raises:
        ValueError: a bias the model does not have, scales that are not finite or repeated, unigram counts of
            another vocabulary, a text without a single position to read.
    """
    analysis = bias_effect_passes(
        model, text_or_batches, unigram=unigram, biases=biases, scales=scales, batch_size=batch_size,
        mask_rate=mask_rate, seed=seed,
    )  # fmt: skip
    return run(model, analysis, progress=progress, directory=directory)


def bias_effect_passes(
    model: Model,
    text_or_batches: Text,
    *,
    unigram: Unigrams | Integer[np.ndarray, " d_vocab"] | str | os.PathLike[str] | None = None,
    biases: Sequence[Bias] | None = None,
    scales: Iterable[float | int] = (0.0, 0.5, 1.0),
    batch_size: int | None = None,
    mask_rate: float | int | None = None,
    seed: int | None = None,
) -> Passes[BiasEffect]:
    """`bias_effect` for `interp.run.passes`: one reading."""
    head = prediction_head(model)
    chosen = _check_biases(head, biases)
    scales = _check_scales(scales)
    if is_encoder(model) and mask_rate is None and not isinstance(text_or_batches, Batches):
        mask_rate = MASK_RATE
    prepared = as_batches(model, text_or_batches, batch_size=batch_size, mask_rate=mask_rate, seed=seed)
    if is_encoder(model) and prepared.settings.get("mask_rate") is None:
        raise ValueError("an encoder predicts masked tokens only; make the batches with a mask_rate (the paper: 0.12)")
    counts = word_frequencies(model, prepared, unigram)
    u = counts.distribution

    edits = [(bias, scale) for bias in chosen for scale in scales]
    projection = _projection(head, chosen, u)
    taus = _taus(projection)
    log_prior = torch.from_numpy(counts.log_prior(head.real.cpu().numpy())).to(head.W_U.device)
    variants = [_variant(head, bias, scale) for bias, scale in edits]
    variants += [Variant(shift=-tau * log_prior, name=f"logit adjustment by τ = {tau:g}") for tau in taus]
    predictions = MeanPredictions(model, variants)
    yield [Reading("word frequency", prepared, [predictions])]

    q = predictions.distributions
    _check_seen_are_predicted(predictions, u)
    measures = _measures(predictions, u)
    n = len(edits)
    where = pd.DataFrame(edits, columns=["bias", "scale"])
    return BiasEffect(
        provenance=provenance(
            model,
            prepared.about,
            unigram={"corpus": counts.corpus, "n_tokens": counts.n_tokens},
            scales=scales,
            n_tokens=predictions.n_tokens,
        ),
        kl=pd.concat([where, measures[:n]], axis=1),
        types=_types(model, head, counts),
        probabilities=_probabilities(head, edits, q),
        curve=_curve(edits, q, u),
        projection=projection,
        adjustment=pd.concat([pd.DataFrame({"tau": taus}, dtype=float), measures[n:].reset_index(drop=True)], axis=1),
    )


def _check_biases(head: PredictionHead, biases: Sequence[Bias] | None) -> tuple[Bias, ...]:
    if biases is None:
        if not head.biases:
            reasons = "; ".join(f"{bias}: {why}" for bias, why in head.why_absent.items())
            raise ValueError(f"this model's prediction head has no bias to scale ({reasons})")
        return head.biases
    if isinstance(biases, str) or not biases or len(set(biases)) < len(biases):
        raise ValueError(f"biases must be a list of different biases of {', '.join(head.biases)}, found {biases!r}")
    for bias in biases:
        head.require(bias)
    return tuple(biases)


def _check_scales(scales: Iterable[float | int]) -> list[float]:
    numbers = [] if isinstance(scales, str) else [float(scale) for scale in scales]
    if not numbers or len(set(numbers)) < len(numbers) or not np.isfinite(numbers).all():
        raise ValueError(f"scales must be different finite numbers, at least one, found {scales!r}")
    return numbers


def word_frequencies(
    model: Model,
    prepared: Batches,
    given: Unigrams | Integer[np.ndarray, " d_vocab"] | str | os.PathLike[str] | None = None,
) -> Unigrams:
    """`interp.corpora.unigrams_of`; warns where the counts are the text's own and few."""
    counts = unigrams_of(model, prepared, given)
    if given is None and shipped_counts(model) is None and counts.n_tokens < _ENOUGH_TOKENS:
        warn(
            f"word frequencies come from {counts.corpus}, {counts.n_tokens:,} tokens; sampling error raises the KL "
            f"below about {_ENOUGH_TOKENS:,}. Give counts of a larger corpus (unigram=, --unigram)"
        )
    return counts


def _variant(head: PredictionHead, bias: Bias, scale: float) -> Variant:
    name = f"{bias} × {scale:g}"
    if bias == "fc":
        return Variant(fc=scale, name=name)
    return Variant(shift=(scale - 1) * head.effect(bias).double(), name=name)


def _check_seen_are_predicted(predictions: MeanPredictions, u: NDArray[np.float64]) -> None:
    """Raise ValueError where a type of the corpus has no predicted probability, so that KL(u‖q) is not finite."""
    foreign = np.flatnonzero((u > 0) & ~predictions.head.real.cpu().numpy())
    if len(foreign):
        raise ValueError(
            f"the unigram counts have {len(foreign)} types at rows of the vocabulary that are no tokens of this model "
            f"(the first is {foreign[0]}); count with this model's tokenizer"
        )
    for variant, q in zip(predictions.variants, predictions.distributions, strict=True):
        if ((q == 0) & (u > 0)).any():
            raise ValueError(
                f"with {variant.name} the model gives {((q == 0) & (u > 0)).sum()} types of the corpus probabilities "
                "below 1e-308 everywhere, which float64 does not hold; leave this scale out"
            )


def _measures(predictions: MeanPredictions, u: NDArray[np.float64]) -> pd.DataFrame:
    rows = []
    for q, nll, balanced in zip(predictions.distributions, predictions.nll, predictions.balanced_nll, strict=True):
        back, dropped = kl_where_seen(q, u)
        rows.append(
            {
                "kl_unigram_model": kl(u, q),
                "kl_model_unigram": back,
                "dropped_mass": dropped,
                "js": js(u, q),
                "perplexity": perplexity(nll),
                "balanced_nll": balanced,
                "n_tokens": predictions.n_tokens,
                "n_scored": predictions.n_scored,
            }
        )
    return pd.DataFrame(rows)


def _taus(projection: pd.DataFrame) -> list[float]:
    of_ln = projection.loc[projection["bias"] == "ln", "slope"]
    return [float(slope) for slope in of_ln if np.isfinite(slope)] + [1.0]


def _real(head: PredictionHead) -> NDArray[np.intp]:
    return np.flatnonzero(head.real.cpu().numpy())


def _effect(head: PredictionHead, bias: Bias) -> Float[np.ndarray, " d_vocab"]:
    return head.effect(bias).double().cpu().numpy()


def _types(model: Model, head: PredictionHead, counts: Unigrams) -> pd.DataFrame:
    ids = _real(head)
    columns = {"projection_ln": "ln", "bias_last": "last"}
    effects: dict[str, Any] = {
        column: _effect(head, bias)[ids] if bias in head.biases else np.nan for column, bias in columns.items()
    }
    return pd.DataFrame(
        {
            "token_id": ids,
            "token": token_names(model, ids),
            "count": counts.counts[ids],
            "unigram": counts.distribution[ids],
        }
        | effects
    )


def _probabilities(head: PredictionHead, edits: list[tuple[Bias, float]], q: NDArray[np.float64]) -> pd.DataFrame:
    ids = _real(head)
    table = pd.DataFrame(edits, columns=["bias", "scale"]).loc[np.repeat(np.arange(len(edits)), len(ids))]
    table = table.reset_index(drop=True).assign(probability=q[: len(edits), ids].ravel())
    table.insert(0, "token_id", np.tile(ids, len(edits)))
    return table


def _curve(edits: list[tuple[Bias, float]], q: NDArray[np.float64], u: NDArray[np.float64]) -> pd.DataFrame:
    """Geometric mean and SD of q over the types in each bin of equal width of log u."""
    seen = u > 0
    log_u = np.log(u[seen])
    edges = np.linspace(log_u.min(), log_u.max(), _BINS + 1)
    bins = np.clip(np.searchsorted(edges, log_u, side="right") - 1, 0, _BINS - 1)
    rows = []
    for (bias, scale), probability in zip(edits, q, strict=False):
        with np.errstate(divide="ignore"):
            log_q = np.log(probability[seen])
        for number in np.unique(bins):
            logs = log_q[bins == number]
            rows.append(
                {
                    "bias": bias,
                    "scale": scale,
                    "bin": int(number),
                    "unigram_low": np.exp(edges[number]),
                    "unigram_high": np.exp(edges[number + 1]),
                    "geometric_mean": np.exp(logs.mean()),
                    "geometric_sd": np.exp(logs.std()),
                    "n_types": len(logs),
                }
            )
    return pd.DataFrame(rows)


def _projection(head: PredictionHead, biases: tuple[Bias, ...], u: NDArray[np.float64]) -> pd.DataFrame:
    """Pearson, Spearman and least-squares slope of each constant effect on log u, over real types with u > 0."""
    keep = (u > 0) & head.real.cpu().numpy()
    log_u = np.log(u[keep])
    rows = []
    for bias in biases:
        if bias == "fc":
            continue
        effect = _effect(head, bias)[keep]
        varies = len(effect) > 2 and np.ptp(effect) > 0 and np.ptp(log_u) > 0
        rows.append(
            {
                "bias": bias,
                "pearson": stats.pearsonr(log_u, effect).statistic if varies else np.nan,
                "spearman": stats.spearmanr(log_u, effect).statistic if varies else np.nan,
                "slope": stats.linregress(log_u, effect).slope if varies else np.nan,
                "n_types": int(keep.sum()),
            }
        )
    return pd.DataFrame(rows, columns=["bias", "pearson", "spearman", "slope", "n_types"])
