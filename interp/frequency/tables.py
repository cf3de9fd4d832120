"""Question 1: what do the biases of the prediction head do to word frequency?

Source: Kobayashi, Kuribayashi, Yokoi, Inui, "Transformer Language Models Handle Word Frequency in Prediction
Head", Findings of ACL 2023.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import stats

from interp.checks import warn
from interp.corpora import Text, shipped_counts, unigrams_of
from interp.corpora.batching import Batches, predicted_batches
from interp.corpora.counts import Counts
from interp.corpora.unigrams import Unigrams
from interp.frequency.distributions import MeanPredictions, Variant, js, kl, kl_where_seen, perplexity
from interp.frequency.options import FrequencyOptions
from interp.models.head import Bias, PredictionHead, prediction_head, token_names
from interp.models.sites import Model
from interp.results import Result, provenance
from interp.run.passes import Passes, Reading, asks

_ENOUGH_TOKENS = 10_000_000
_BINS = 25
_SHOWN = ["bias", "scale", "kl_unigram_model", "kl_model_unigram", "js", "perplexity", "balanced_nll", "n_tokens"]


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

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        return {"kl": (self.where, self.kl[_SHOWN])}


def why_impossible(model: Model) -> str | None:
    """Why there is nothing to ask of a model, None where there is."""
    return None if prediction_head(model).biases else "this model's prediction head has no bias to scale"


@asks(FrequencyOptions)
def bias_effect(model: Model, text: Text, options: FrequencyOptions) -> Passes[BiasEffect]:
    """Scale each bias of the prediction head and compare what the model predicts with word frequency.

    For each bias and scale λ: `q(w)`, the mean over positions of the predicted probability with λ times the bias;
    `KL(u‖q) = Σ u log(u/q)` against the unigram distribution u; perplexity on the same text (Kobayashi et al.
    2023, §4). All of it from one forward pass: b_LN and b_last add `(λ − 1) b_LN W_U` and `(λ − 1) b_last` to the
    logits, and only b_FC needs the head again.

    `text` is anything `interp.corpora.batches` takes, or its batches. Where the word frequencies are those of this text
    (all of it, `limit` aside) and it has fewer than ten million tokens, there is a warning: sampling error raises the
    KL.

    Raises:
        ValueError: a bias the model does not have, scales that are not finite or repeated, unigram counts of
            another vocabulary, a text without a single position to read.
    """
    head = prediction_head(model)
    chosen = _check_biases(head, options.biases)
    scales = _check_scales(options.scales)
    prepared = predicted_batches(model, text, **options.text, mask_rate=options.mask_rate, seed=options.seed)
    counts = word_frequencies(model, prepared, options.unigram, column=options.column)
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
    model: Model, prepared: Batches, given: Counts | None = None, *, column: str | None = None
) -> Unigrams:
    """`interp.corpora.unigrams_of`; warns where the counts are the text's own and few."""
    counts = unigrams_of(model, prepared, given, column=column)
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
