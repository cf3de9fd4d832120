"""Question 1: what do the biases of the prediction head do to word frequency?

Source: Kobayashi, Kuribayashi, Yokoi, Inui, "Transformer Language Models Handle Word Frequency in Prediction
Head", Findings of ACL 2023.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import spearmanr

from interp.checks import warn
from interp.corpora.batching import Batches, Text, predicted_batches
from interp.corpora.counts import Counts, shipped_counts, unigrams_of
from interp.corpora.unigrams import Unigrams
from interp.dense import Dense
from interp.findings import Finding
from interp.frequency.distributions import MeanPredictions, Variant
from interp.frequency.findings import findings
from interp.frequency.measures import CORRELATIONS, correlations, measures, with_ends
from interp.frequency.options import FrequencyOptions
from interp.models.head import Bias, PredictionHead, prediction_head, token_names
from interp.models.sites import Model
from interp.results import Result, provenance
from interp.run.passes import Passes, Reading, asks

__all__ = ["BiasEffect", "Effects", "Numbers", "bias_effect", "why_impossible", "word_frequencies"]

Numbers: TypeAlias = Float[np.ndarray, " d_vocab"]
Effects: TypeAlias = dict[Bias, Numbers]
"""What each bias adds to every logit; not b_FC, whose effect is no constant."""

_ENOUGH_TOKENS = 10_000_000
_BINS = 25
_CONTROLS = 39  # so that a bias that is one of 40 alike is above all others in 1 of 40
_FEWEST_TYPES = 3  # for a line through them
_SHOWN = ["bias", "scale", "kl_unigram_model", *with_ends(["delta_kl"]), "js", "perplexity", "balanced_nll", "n_tokens"]


@dataclass(frozen=True, eq=False)
class BiasEffect(Result):
    """What `bias_effect` found.

    - `kl` (bias, scale, kl_unigram_model, kl_corrected, delta_kl, kl_model_unigram, dropped_mass, js, perplexity,
      delta_perplexity, balanced_nll, n_tokens, n_scored): one row for each bias and scale. KL and JS in nats;
      `delta_…` is the difference from λ = 1; `n_tokens` positions read, `n_scored` of them with a known target.
      `kl_corrected` is KL(u‖q) without the bias of a mean over so few positions. Beside them the ends of their 95 %
      intervals (`kl_low`, `kl_high`, `delta_kl_low`, …), NaN of fewer than 20 texts.
    - `types` (token_id, token, count, unigram, projection_ln, bias_last): one row for each token.
    - `probabilities` (token_id, bias, scale, probability): mean predicted probability of each token; an
      `interp.dense.Dense`, of which `probabilities(bias="ln", scale=0)` is a table and `probabilities.table` the whole.
    - `curve` (bias, scale, bin, unigram_low, unigram_high, geometric_mean, geometric_sd, n_types): mean predicted
      probability of the types in bins of equal width of log u.
    - `projection` (bias, pearson, spearman, slope, with `_low` and `_high` of each, n_types, n_controls,
      control_spearman): what the bias adds to the logits against log u; the slope is the τ of an equivalent logit
      adjustment. The intervals are over types. `control_spearman` is the largest correlation that any of 39 random
      directions has in place of b_LN, or b_last with its values in random order.
    - `adjustment` (tau, and the columns of `kl` from kl_unigram_model on): logit adjustment `logits − τ log u`
      for comparison (Menon et al. 2021), at the τ that b_LN amounts to, and at 1.
    """

    analysis: ClassVar[str] = "frequency"

    kl: pd.DataFrame
    types: pd.DataFrame
    probabilities: Dense = field(metadata={"dims": ("bias", "scale", "token_id")})
    curve: pd.DataFrame
    projection: pd.DataFrame
    adjustment: pd.DataFrame

    @property
    def findings(self) -> tuple[Finding, ...]:
        return findings(self.kl, self.projection)

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

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> text = interp.corpora.batches(model, "bundled", limit=30, bos=True)
        >>> effect = bias_effect(model, text, scales=[0, 1], progress=False)
        >>> effect.kl["scale"].tolist()
        [0.0, 1.0]
    """
    head = prediction_head(model)
    chosen, scales = _check_biases(head, options.biases), _check_scales(options.scales)
    prepared = predicted_batches(model, text, **options.text, mask_rate=options.mask_rate, seed=options.seed)
    counts = word_frequencies(model, prepared, options.unigram, column=options.column)
    u, real = counts.distribution, head.real.cpu().numpy()

    effects: Effects = {bias: head.effect(bias).cpu().double().numpy() for bias in head.biases if bias != "fc"}
    projection = _projection(head, {bias: effects[bias] for bias in chosen if bias in effects}, u, real)
    edits = pd.DataFrame(itertools.product(chosen, scales), columns=["bias", "scale"])
    variants = [_variant(effects, bias, scale) for bias, scale in edits.itertuples(index=False)]
    taus = [*projection.loc[projection["bias"] == "ln", "slope"].dropna(), 1.0]
    log_prior = torch.from_numpy(counts.log_prior(real))
    variants += [Variant(shift=-tau * log_prior, name=f"logit adjustment by τ = {tau:g}") for tau in taus]
    if 1.0 not in scales:
        variants.append(Variant(name="unedited"))
    predictions = MeanPredictions(model, variants, grouped=True)
    yield [Reading("word frequency", prepared, [predictions])]

    unedited = scales.index(1.0) if 1.0 in scales else len(variants) - 1
    measured = measures(predictions, u, unedited)
    q = predictions.distributions[: len(edits)]
    types = _types(model, np.flatnonzero(real), counts, effects)
    tables: dict[str, Any] = {"kl": edits.join(measured), "types": types}
    tables |= {"curve": _curve(edits, q, u), "projection": projection}
    labels = {"token_id": types["token_id"], "bias": chosen, "scale": scales}
    means = q[:, real].reshape(len(chosen), len(scales), -1)
    tables["probabilities"] = Dense.of(labels | {"probability": means}, ("bias", "scale", "token_id"))
    tables["adjustment"] = pd.DataFrame({"tau": taus}).join(measured[len(edits) :].reset_index(drop=True))
    unigram = {"corpus": counts.corpus, "n_tokens": counts.n_tokens}
    asked = {"unigram": unigram, "scales": scales, "intervals": predictions.intervals}
    about = provenance(model, prepared.about, **asked, n_tokens=predictions.n_tokens)
    return BiasEffect(provenance=about, **tables)


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
    """`interp.corpora.counts.unigrams_of`; warns where the counts are the text's own and few."""
    counts = unigrams_of(model, prepared, given, column=column)
    if given is None and shipped_counts(model) is None and counts.n_tokens < _ENOUGH_TOKENS:
        found = f"word frequencies come from {counts.corpus}, {counts.n_tokens:,} tokens"
        why = f"sampling error raises the KL below about {_ENOUGH_TOKENS:,}"
        warn(f"{found}; {why}. Give counts of a larger corpus (unigram=, --unigram)")
    return counts


def _variant(effects: Effects, bias: Bias, scale: float) -> Variant:
    shift = None if bias == "fc" else torch.from_numpy((scale - 1) * effects[bias])
    return Variant(shift, fc=scale if bias == "fc" else 1.0, name=f"{bias} × {scale:g}")


def _types(model: Model, ids: Int[np.ndarray, " types"], counts: Unigrams, effects: Effects) -> pd.DataFrame:
    known = {"token_id": ids, "token": token_names(model, ids)}
    known |= {"count": counts.counts[ids], "unigram": counts.distribution[ids]}
    known |= {"projection_ln": effects["ln"][ids] if "ln" in effects else np.nan}
    return pd.DataFrame(known | {"bias_last": effects["last"][ids] if "last" in effects else np.nan})


def _curve(edits: pd.DataFrame, q: Float[np.ndarray, "edits d_vocab"], u: Numbers) -> pd.DataFrame:
    """Geometric mean and SD of q over the types in each bin of equal width of log u."""
    seen = u > 0
    log_u, log_q = np.log(u[seen]), np.log(q[:, seen])
    edges = np.linspace(log_u.min(), log_u.max(), _BINS + 1)
    bins = np.clip(np.searchsorted(edges, log_u, side="right") - 1, 0, _BINS - 1)
    groups = pd.DataFrame(log_q.T).groupby(bins)
    n_types = groups.size()
    low, high = np.exp(edges[n_types.index]), np.exp(edges[n_types.index + 1])
    table = edits.merge(pd.DataFrame({"bin": n_types.index, "unigram_low": low, "unigram_high": high}), how="cross")
    table["geometric_mean"] = np.exp(groups.mean().to_numpy().T.ravel())
    table["geometric_sd"] = np.exp(groups.std(ddof=0).to_numpy().T.ravel())
    table["n_types"] = np.tile(n_types, len(edits))
    return table


def _projection(head: PredictionHead, effects: Effects, u: Numbers, real: Bool[np.ndarray, " d_vocab"]) -> pd.DataFrame:
    """Correlations and least-squares slope of each constant effect on log u, over real types with u > 0, and the
    largest Spearman correlation of its controls."""
    keep = (u > 0) & real
    log_u = np.log(u[keep])
    enough = len(log_u) >= _FEWEST_TYPES and np.ptp(log_u) > 0
    rows = []
    for bias, effect in effects.items():
        row: dict[str, Any] = {"bias": bias, "n_controls": _CONTROLS}
        if enough and np.ptp(effect[keep]) > 0:
            others = _controls(head, bias, effect, keep)
            row |= correlations(log_u, effect[keep])
            row["control_spearman"] = max(float(spearmanr(log_u, other).statistic) for other in others)
        rows.append(row)
    columns = ["bias", *CORRELATIONS, "n_types", "n_controls", "control_spearman"]
    return pd.DataFrame(rows, columns=columns).assign(n_types=len(log_u))


def _controls(
    head: PredictionHead, bias: Bias, effect: Numbers, keep: Bool[np.ndarray, " d_vocab"]
) -> Float[np.ndarray, "controls types"]:
    """What random directions add to the logits in place of b_LN; of b_last, its values in random order."""
    rng = np.random.default_rng(0)
    if bias == "last":
        return np.stack([rng.permutation(effect[keep]) for _ in range(_CONTROLS)])
    directions = rng.standard_normal((_CONTROLS, head.embeddings.d_model), dtype=np.float32)
    found: Float[np.ndarray, "controls types"] = head.embeddings.of(keep).dot(torch.from_numpy(directions)).numpy()
    return found
