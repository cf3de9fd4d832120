"""Question 1: what do the biases of the prediction head do to word frequency?

Source: Kobayashi, Kuribayashi, Yokoi, Inui, "Transformer Language Models Handle Word Frequency in Prediction
Head", Findings of ACL 2023.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int

from interp.analyses.frequency.columns import IN_PAPER, MEANINGS
from interp.analyses.frequency.findings import answer, findings, misfit
from interp.analyses.frequency.options import DRAWS, FrequencyOptions
from interp.corpora.batching import Text, predicted_batches
from interp.corpora.counts import word_frequencies
from interp.corpora.unigrams import Unigrams
from interp.instruments.controls import MOST_NUMBERS, DirectionKind, random_directions, rank_correlations, spearman_of
from interp.instruments.directions import check_directions, directions_cost, head_directions, why_no_directions
from interp.instruments.measures import CORRELATIONS, correlations, measures
from interp.instruments.predictions import MeanPredictions, Variant
from interp.models.head import Bias, PredictionHead, prediction_head
from interp.models.shapes import shape_with
from interp.models.sites import Model
from interp.models.spelling import token_names
from interp.passes.budget import Cost
from interp.passes.execution import Passes, Reading, asks
from interp.passes.groups import MOST
from interp.results.dense import Dense
from interp.results.findings import Answer, Finding, over_texts
from interp.results.result import Result, provenance
from interp.support.checks import check_mask_rate, check_scales
from interp.support.choices import Direction, Several, listed

__all__ = ["Edited", "Effects", "FrequencyStudy", "Numbers", "check_asked", "dry_run", "study"]
__all__ += ["why_impossible"]
__dir__ = __all__.copy

Numbers: TypeAlias = Float[np.ndarray, " d_vocab"]
Edited: TypeAlias = Bias | Direction
"""What can be scaled: a bias, or a direction in the head's input."""
Effects: TypeAlias = dict[Edited, Numbers]
"""What each of them adds to every logit. b_FC is not included, because its effect is not constant."""

_BINS = 25
_COPIES = 6  # copies of the sums without each group of texts
_TABLES = 5  # copies of the distributions while tables are made
_FEWEST_TYPES = 3  # types that a line needs
_SHOWN = ["bias", "scale", "kl_unigram_model", "delta_kl", "delta_kl_corrected", "delta_kl_low", "delta_kl_high", "js"]
_SHOWN += ["perplexity", "balanced_nll", "n_tokens"]


@dataclass(frozen=True, eq=False)
class FrequencyStudy(Result):
    """The result of `study`. Intervals are NaN for fewer than 20 texts.

    - `kl` (bias, scale, kl_unigram_model, kl_corrected±, delta_kl, delta_kl_corrected±, kl_model_unigram,
      dropped_mass, js, js_corrected±, perplexity±, delta_perplexity±, balanced_nll±, n_balanced, n_absent, n_tokens,
      n_scored): one row per bias and scale. The `directions` that were asked for are listed among the biases; see
      `interp.instruments.directions`.
    - `types` (token_id, token, count, unigram, projection_ln, bias_last, projection_mean, projection_slope): one row
      per token of the vocabulary. Values that do not exist are NaN.
    - `probabilities` (token_id, bias, scale, probability): one row per token, bias and scale. It is an
      `interp.results.dense.Dense`: `probabilities(bias="ln", scale=0)` gives some rows as a table, and
      `probabilities.table` all.
    - `curve` (bias, scale, bin, unigram_low, unigram_high, geometric_mean, geometric_sd, n_types): one row per bias,
      scale and bin of word frequency.
    - `projection` (bias, pearson±, spearman±, slope±, n_types): one row per bias: what it adds to the logits against
      log u. Intervals are over types.
    - `projection_draws` (kind, draw, spearman): one row per draw: the same correlation for 399 random directions of
      each kind in place of b_LN, E[h] or −A (see `interp.instruments.controls.random_directions`), and for b_last with
      its values in random order.
    - `adjustment` (tau, kl_unigram_model, kl_corrected±, delta_kl, delta_kl_corrected±, kl_model_unigram,
      dropped_mass, js, js_corrected±, perplexity±, delta_perplexity±, balanced_nll±, n_balanced, n_absent, n_tokens,
      n_scored): one row per τ: logit adjustment `logits − τ log u` for comparison (Menon et al. 2021), at the τ that
      is equivalent to b_LN, and at 1.
    """

    analysis: ClassVar[str] = "frequency"
    page: ClassVar[str | None] = "interp.analyses.frequency.page"
    columns: ClassVar = MEANINGS
    in_paper: ClassVar = IN_PAPER

    kl: pd.DataFrame
    types: pd.DataFrame
    probabilities: Dense = field(metadata={"dims": ("bias", "scale", "token_id")})
    curve: pd.DataFrame
    projection: pd.DataFrame
    projection_draws: pd.DataFrame
    adjustment: pd.DataFrame

    @property
    def answer(self) -> Answer | None:
        return answer(self.kl, self.types, self.probabilities)

    @property
    def findings(self) -> tuple[Finding, ...]:
        intervals = self.provenance.get("intervals", {})
        tables = self.kl, self.types, self.projection, self.projection_draws
        return over_texts(findings(*tables, intervals), intervals)

    @property
    def caveats(self) -> tuple[str, ...]:
        return *super().caveats, *misfit(self.kl, self.types)

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        return {"kl": (self.where, self.kl[_SHOWN])}


def check_asked(options: FrequencyOptions) -> None:
    """Raise ValueError for scales that repeat or are not finite, unknown directions, and an impossible mask_rate."""
    check_mask_rate(options.mask_rate)
    check_scales(options.scales)
    check_directions(options.directions)


def why_impossible(
    model: Model, biases: Several[Bias] | None = None, directions: Several[Direction] | None = None
) -> str | None:
    """Return why the question cannot be asked of a model with these biases and directions, or None if it can."""
    try:
        _chosen(model, biases, directions)
    except ValueError as error:
        return str(error)
    return None


@asks(FrequencyOptions)
def study(model: Model, text: Text, options: FrequencyOptions) -> Passes[FrequencyStudy]:
    """Scale each bias of the prediction head and compare the model's predictions with word frequency.

    For each bias and scale λ, this gives `q(w)`, the mean over positions of the predicted probability with λ times the
    bias; `KL(u‖q) = Σ u log(u/q)`, where u is the unigram distribution; and perplexity on the same text (Kobayashi et
    al. 2023, §4). Everything comes from one forward pass: b_LN and b_last add `(λ − 1) b_LN W_U` and `(λ − 1) b_last`
    to the logits, and only b_FC needs the head to be computed again.

    A model without b_LN (Llama, Qwen, Gemma, …) is asked about E[h], the mean input of the unembedding, in the same
    way; another pass before the first finds it. See `interp.instruments.directions`.

    `text` is anything `interp.corpora.batches` takes, or its batches. If the word frequencies are those of this text
    (the whole text, regardless of `limit`) and it has fewer than ten million tokens, there is a warning, because
    sampling error raises the KL.

    Raises:
        ValueError: the model does not have a bias; scales are repeated or not finite; unigram counts belong to another
            vocabulary; the text has no position to read; or directions (E[h] too) are those of a folded model, or of
            one that soft-caps its logits.
        RuntimeError: directions are asked for while the head has other hooks.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> text = interp.corpora.batches(model, "bundled", limit=30, bos=True)
        >>> effect = study(model, text, scales=[0, 1], progress=False)
        >>> effect.kl["scale"].tolist()
        [0.0, 1.0]
    """
    check_asked(options)
    head = prediction_head(model)
    chosen, directions = _chosen(model, options.biases, options.directions)
    scales = [float(scale) for scale in listed(options.scales)]
    prepared = predicted_batches(model, text, **options.text, mask_rate=options.mask_rate, seed=options.seed)
    counts = word_frequencies(model, prepared, options.unigram, column=options.column)
    u = counts.distribution
    real = head.real.cpu().numpy()
    vectors = yield from head_directions(model, prepared, directions)

    effects: Effects = {bias: head.effect(bias).cpu().double().numpy() for bias in head.biases if bias != "fc"}
    for name, vector in vectors.items():
        effects[name] = head.embeddings.dot(vector[None])[0].cpu().numpy()
    scaled: list[Edited] = [*chosen, *vectors]
    constant = {name: effects[name] for name in scaled if name in effects}
    seen = (u > 0) & real
    projection = _projection(constant, u, seen)
    edits = pd.DataFrame(itertools.product(scaled, scales), columns=["bias", "scale"])
    variants = [_variant(effects, name, scale) for name, scale in edits.itertuples(index=False)]
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
    tables["curve"] = _curve(edits, q, u)
    tables["projection"] = projection
    tables["projection_draws"] = _projection_draws(head, constant, u, seen)
    means = q[:, real].reshape(len(scaled), len(scales), -1)
    arrays = {"token_id": types["token_id"], "bias": scaled, "scale": scales, "probability": means}
    tables["probabilities"] = Dense.of(arrays, ("bias", "scale", "token_id"))
    tables["adjustment"] = pd.DataFrame({"tau": taus}).join(measured[len(edits) :].reset_index(drop=True))
    unigram = {"corpus": counts.corpus, "n_tokens": counts.n_tokens}
    record = provenance(
        model, prepared.about, unigram=unigram, scales=scales, intervals=predictions.intervals,
        n_tokens=predictions.n_tokens,
    )  # fmt: skip
    return FrequencyStudy(provenance=record, **tables)


def _chosen(
    model: Model, biases: Several[Bias] | None, directions: Several[Direction] | None
) -> tuple[tuple[Bias, ...], tuple[Direction, ...]]:
    """What to scale: by default all biases of the head, and E[h] if b_LN is not one of them."""
    head = prediction_head(model)
    scaled: tuple[Bias, ...] = head.biases if biases is None else tuple(listed(biases))
    if biases is not None and (not scaled or len(set(scaled)) < len(scaled)):
        raise ValueError(f"biases must be one or more different ones of {', '.join(head.biases)}, found {biases!r}")
    for bias in scaled:
        head.require(bias)
    reason = why_no_directions(model)
    if directions is None:
        directions = () if reason or biases is not None or "ln" in scaled else ("mean",)
    elif directions and reason:
        raise ValueError(reason)
    if not scaled and not directions:
        reasons = "; ".join(f"{bias}: {why_absent}" for bias, why_absent in head.why_absent.items())
        instead = (
            f"nor can its mean input be scaled: {reason}" if reason else "leave directions out to scale its mean input"
        )
        raise ValueError(f"this model's prediction head has no bias to scale ({reasons}); {instead}")
    return scaled, tuple(listed(directions))


def _variant(effects: Effects, bias: Edited, scale: float) -> Variant:
    shift = None if bias == "fc" else torch.from_numpy((scale - 1) * effects[bias])
    return Variant(shift, fc=scale if bias == "fc" else 1.0, name=f"{bias} × {scale:g}")


def _types(model: Model, ids: Int[np.ndarray, " types"], counts: Unigrams, effects: Effects) -> pd.DataFrame:
    columns = {
        "token_id": ids,
        "token": token_names(model, ids.tolist()),
        "count": counts.counts[ids],
        "unigram": counts.distribution[ids],
    }
    edits: dict[str, Edited] = {"projection_ln": "ln", "bias_last": "last"}
    edits.update(projection_mean="mean", projection_slope="slope")
    for column, edit in edits.items():
        columns[column] = effects[edit][ids] if edit in effects else np.full(len(ids), np.nan)
    return pd.DataFrame(columns)


def _curve(edits: pd.DataFrame, q: Float[np.ndarray, "edits d_vocab"], u: Numbers) -> pd.DataFrame:
    """Geometric mean and SD of q over the types in each of several bins of equal width in log u."""
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


def _projection(effects: Effects, u: Numbers, seen: Bool[np.ndarray, " d_vocab"]) -> pd.DataFrame:
    """Correlations and least-squares slope of each constant effect on log u, over the real types that occur."""
    log_u = np.log(u[seen])
    rows = []
    for bias, effect in effects.items():
        row: dict[str, Any] = {"bias": bias}
        if _can_correlate(log_u) and np.ptp(effect[seen]) > 0:
            row |= correlations(log_u, effect[seen])
        rows.append(row)
    return pd.DataFrame(rows, columns=["bias", *CORRELATIONS]).assign(n_types=len(log_u))


def _projection_draws(
    head: PredictionHead, effects: Effects, u: Numbers, seen: Bool[np.ndarray, " d_vocab"]
) -> pd.DataFrame:
    """Spearman's correlations with log u, over the real types that occur, of what random directions add to the logits,
    and of b_last with its values in random order."""
    log_u = np.log(u[seen])
    parts = []
    if _can_correlate(log_u) and effects.keys() - {"last"}:
        real = head.embeddings.of(head.real.cpu().numpy())
        for kind in get_args(DirectionKind):
            directions = random_directions(real, kind, DRAWS)
            parts.append(
                pd.DataFrame({"kind": kind, "spearman": spearman_of(log_u, head.embeddings.of(seen), directions)})
            )
    if _can_correlate(log_u) and "last" in effects:
        rng = np.random.default_rng(0)
        orders = np.stack([rng.permutation(log_u) for _ in range(DRAWS)])
        parts.append(pd.DataFrame({"kind": "orders", "spearman": rank_correlations(effects["last"][seen], orders)}))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["kind", "spearman"])
    table.insert(1, "draw", table.groupby("kind").cumcount())
    return table


def _can_correlate(log_u: Float[np.ndarray, " types"]) -> bool:
    return len(log_u) >= _FEWEST_TYPES and bool(np.ptp(log_u) > 0)


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `study` with these options, without a model: a pass for directions if there are any,
    and one for n variants, which are each bias or direction at each scale, one or two logit adjustments, and the
    unedited model.

    Raises the errors of `interp.models.shapes.shape`.

    Examples:
        >>> dry_run("tiny-gpt2", None, {"scales": [0, 1]}).numbers["variants"]
        4
    """
    size = shape_with(name, options)
    chosen = FrequencyOptions.of(options)
    biases: list[str] = list(size.biases) if chosen.biases is None else [*listed(chosen.biases)]
    directions: list[str] = [] if chosen.directions is None else [*listed(chosen.directions)]
    if chosen.directions is None and chosen.biases is None and "ln" not in biases:
        directions = ["mean"]
    scaled = biases + directions
    if size.why_no_head or not scaled:
        reason = size.why_no_head or "this model's prediction head has no bias to scale"
        return Cost(lines=[f"word frequency: {reason}"])
    scales = listed(chosen.scales)
    n = len(scaled) * len(scales) + 1 + ("ln" in biases) + (1 not in scales)
    repeated = (len(scaled) - 1) * (1 in scales)  # the unedited model is summed once
    passes = directions_cost(size, directions)
    read = MeanPredictions.cost(size, n - repeated, grouped=True, what="word frequency", step=int(bool(passes)))
    passes.append(read)
    draws = min(MOST_NUMBERS, DRAWS * size.d_vocab)
    between = sum(part.sums for part in passes) + 8 * (draws + _COPIES * MOST * size.d_vocab)
    results = 8 * _TABLES * n * size.d_vocab
    return Cost(passes=tuple(passes), between=between, results=results, numbers={"variants": n})
