"""The whole of question 2: contributions, gaps, attention, outliers and ablation for one model on one text."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

import numpy as np
import pandas as pd
import torch

from interp.analyses.attention.ablation import ablate, ablation_cost, drawn, planned
from interp.analyses.attention.claims import largest_effects
from interp.analyses.attention.columns import IN_PAPER, MEANINGS
from interp.analyses.attention.findings import answer, explained, steered, untested
from interp.analyses.attention.options import AttentionOptions, Where
from interp.analyses.attention.patterns import AttentionByClass
from interp.analyses.attention.shares import largest_gaps, outlier_shares
from interp.corpora import Batches, batches, token_classes
from interp.corpora.batching import Text, as_batches
from interp.corpora.classes import n_classes
from interp.corpora.counts import unigrams_of
from interp.instruments.keys import attention_cost
from interp.instruments.massive import MassiveActivations
from interp.instruments.profile import (
    DimensionCorrelations,
    DimensionProfile,
    check_rule,
    find_outliers,
    outlier_counts,
    outlier_threshold,
)
from interp.instruments.scores import NO_SCORES, SCORES, TOTALS, ScoreContributions
from interp.instruments.shares import GAPS, gaps
from interp.instruments.sinks import position_bins
from interp.models.head import real_tokens
from interp.models.qk import check_layers, why_no_scores, why_unreadable
from interp.models.shapes import shape_with
from interp.models.sites import Model
from interp.passes.budget import Cost
from interp.passes.contexts import LargestTokens
from interp.passes.execution import Passes, Reading, asks
from interp.results.columns import Column
from interp.results.dense import MOST_ROWS, Dense
from interp.results.findings import Answer, Finding, over_texts
from interp.results.result import Result, provenance
from interp.support.checks import check_choice, check_mode, check_seed, whole_number
from interp.support.choices import Average, Rule, Weights, listed
from interp.support.words import class_words

__all__ = ["AttentionStudy", "check_asked", "dry_run", "study"]

_TABLE_ROW = 160  # bytes per row of a table of scores or gaps while it is being saved


@dataclass(frozen=True, eq=False)
class AttentionStudy(Result):
    """The result of `study`. If scores cannot be decomposed, `scores`, `gaps`, `totals`, `largest_gaps` and
    `outlier_share` are empty, and `provenance["left_out"]` says why. Intervals are NaN for fewer than 20 texts.

    - `scores` (layer, head, key_class, dim, mean, centred_mean, ln_bias_mean, n_pairs): one row per head, class of keys
      and dimension; see `interp.attention.score_contributions`. It is an `interp.results.dense.Dense`:
      `scores(layer=3, head=2)` gives some rows as a table, and `scores.table` all of them.
    - `gaps` (layer, head, key_class, dim, gap, share, rank, n_dims_90, abs_share, n_dims_90_abs): one row per head,
      class of keys and dimension; see `interp.attention.gaps`. It is a `Dense` too.
    - `totals` (layer, head, key_class, contributions±, key_bias±, score±): one row per head and class of keys.
    - `largest_gaps` (layer, key_class, dim, abs_share, n_dims_90_abs, gap±): one row per layer and class with a gap:
      the dimension with the largest |gap| share, averaged over heads. The interval does not take into account that it
      was chosen for its size.
    - `outlier_share` (layer, key_class, n_dims, gap, outlier_share, control_share, share_beyond±): one row per layer
      and class: what outlier dimensions, and as many others, add to its scores; see
      `interp.attention.shares.outlier_shares`.
    - `attention` (layer, head, key_class, sum±, mean, norm_weighted, uniform, n_queries): one row per head and class of
      keys; see `interp.attention.attention_by_class`.
    - `by_layer` (layer, key_class, sum±, mean, norm_weighted, uniform): the mean of `attention` over heads.
    - `dims` (state, dim, key_class, mean, sd, max_abs, n_tokens): one row per state, dimension and class of tokens.
    - `outliers` (dim, state, mean, z, robust_z, rank, n_states): one row per outlier dimension and state in which it is
      one; see `interp.instruments.profile.find_outliers`.
    - `contexts` (dim, state, rank, activation, before, token, after, text, position): one row per outlier dimension,
      state and token: the 20 at which its magnitude is largest. It is empty for batches made by hand.
    - `massive` (state, dim, first_position, last_position, n_activations, n_tokens, max_abs, max_ratio): one row per
      state, dimension and group of positions with massive activations; see
      `interp.instruments.massive.MassiveActivations`.
    - `ablation` (layer, dim, set, magnitude, removed, where, mode, key_class, attention_before, attention_after,
      change_low, change_high, head, head_before, head_after): one row per removed dimension, layer and class; see
      `ablation_effect`.
    - `ablated` (layer, key_class, set, attention_before, mean_change±, largest_fall, largest_rise): one row per layer,
      class except `other`, and set of dimensions. The interval is that of the mean.
    - `frames` (dims, kind, draw, layer, key_class, attention_before, attention_after, log_odds±): one row per outlier
      dimension, and for all together, and per draw of its controls; see `interp.attention.frames.FrameDraws`.
    - `correlations` (layer, dim, log_unigram, attention_received, n_tokens): one row per layer and dimension of the
      attention input.
    """

    analysis: ClassVar[str] = "attention"
    page: ClassVar[str | None] = "interp.analyses.attention.page"
    columns: ClassVar = MEANINGS
    in_paper: ClassVar = IN_PAPER

    scores: Dense = field(metadata=SCORES)
    gaps: Dense = field(metadata=GAPS)
    totals: pd.DataFrame
    largest_gaps: pd.DataFrame
    outlier_share: pd.DataFrame
    attention: pd.DataFrame
    by_layer: pd.DataFrame
    dims: pd.DataFrame
    outliers: pd.DataFrame
    contexts: pd.DataFrame
    massive: pd.DataFrame
    ablation: pd.DataFrame
    ablated: pd.DataFrame
    frames: pd.DataFrame
    correlations: pd.DataFrame

    @property
    def answer(self) -> Answer | None:
        return answer(self.largest_gaps, self.ablation, self.outliers, self.frames, self.class_words, self.removed_from)

    @property
    def findings(self) -> tuple[Finding, ...]:
        steering = [*steered(self.frames, self.class_words, self.removed_from)]
        findings = *steering[:1], *explained(self.outlier_share, self.class_words), *steering[1:]
        return over_texts(findings, self.provenance.get("intervals", {}))

    @property
    def caveats(self) -> tuple[str, ...]:
        return *super().caveats, *untested(self.outliers, self.ablation)

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        means = self.by_layer.pivot(index="layer", columns="key_class", values="sum")
        means = means[[*self.by_layer["key_class"].unique()]].reset_index()
        return {
            "attention": (f"attention by class of the key, mean over heads: {self.where}", means),
            "outliers": (f"outlier dimensions: {self.where}", self.outliers),
        }

    @property
    def headings(self) -> Mapping[str, Column]:
        return dict(self.columns, key_class=self.columns["key_class"]._replace(words=self.class_words))

    @property
    def class_words(self) -> Mapping[str, str]:
        """The display names of the classes of keys, if they differ from the name; see
        `interp.support.words.class_words`."""
        return class_words(self.provenance["key_classes"])

    @property
    def special(self) -> list[str]:
        """The classes of keys except `other` that have tokens."""
        return [name for name in self.attention["key_class"].unique() if name != "other"]

    @property
    def rule(self) -> Rule:
        """The rule for outliers. A result without it comes from a version that had only the rule `sd`."""
        rule: Rule = self.provenance.get("rule", "sd")
        return rule

    @property
    def removed_from(self) -> Where:
        """What dimensions were removed from: keys, or the residual stream if scores could not be decomposed."""
        return "residual" if (self.ablation["where"] == "residual").any() else "keys"

    @property
    def outlier_counts(self) -> pd.DataFrame:
        """How many outliers each state has by either rule, and how many noise would give (`outlier_counts`)."""
        return outlier_counts(self.dims.dropna(subset="mean"), k=self.provenance["k"], rule=self.rule)

    @property
    def largest_gap(self) -> dict[str, Any] | None:
        """The layer, head, class and dimension of the largest gap of either sign; None if there is no gap."""
        sizes = (part.arrays["gap"].to_series().abs() for part in self.gaps.parts())
        largest: dict[Any, float] = {values.idxmax(): values.max() for values in sizes if values.max() > 0}
        return dict(zip(self.gaps.dims, max(largest, key=largest.__getitem__), strict=True)) if largest else None

    @property
    def changes(self) -> pd.DataFrame:
        """The rows of `ablation` for all classes except `other`, with the `change` of attention."""
        change = self.ablation["attention_after"] - self.ablation["attention_before"]
        return self.ablation.assign(change=change.astype(float))[self.ablation["key_class"] != "other"]

    @property
    def claims(self) -> pd.DataFrame:
        """The largest effect of removing outlier dimensions, beside those of controls (`interp.attention.claims`)."""
        return largest_effects(self.frames.dropna(subset="log_odds"))


def why_impossible(model: Model) -> str | None:
    """Return why the attention of a model cannot be studied, or None if it can."""
    return why_unreadable(model)


def lacks(model: Model) -> dict[str, str]:
    """Say what a study of a model that can be studied leaves out, and why."""
    reason = why_no_scores(model)
    return {} if reason is None else {"scores by residual dimension": reason}


@asks(AttentionOptions)
def study(model: Model, text: Text, options: AttentionOptions) -> Passes[AttentionStudy]:
    """Find which dimensions decide attention to which tokens, in one pass, and what removing outliers does, in another.

    If scores cannot be decomposed by residual dimension (queries and keys with norms of their own, ALiBi, soft-capped
    scores, …), the study has everything else, and removes outliers from the residual stream instead of from keys.

    `text` is anything `interp.corpora.batches` takes, or its batches, without masking. For the meaning of the options
    see `interp.attention.score_contributions`, `find_outliers` and `ablation_effect`. A `sample` is read with one text
    per row, in a separate pass (the paper uses 100 texts).

    Raises the errors of those functions, and ValueError for an unknown mode, a sample below 1, batches of masked text,
    and a folded model.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> classes = {"first": [7, 8]}  # the ids of "w0" and "w1"
        >>> found = study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> found.by_layer["key_class"].tolist()
        ['first', 'other', 'first', 'other']
        >>> found.by_layer.groupby("layer")["sum"].sum().round(6).tolist()  # a query's attention adds up to 1
        [1.0, 1.0]
    """
    check_asked(options)
    chosen = check_layers(model, options.layers)
    if reason := why_impossible(model):
        raise ValueError(reason)
    sample = None if options.sample is None else int(options.sample)
    classes = token_classes(model, options.key_classes)
    score_options: Any = {"weights": options.weights, "scaled": options.scaled, "average": options.average}
    prepared = as_batches(model, text, **options.text)
    if prepared.settings.get("mask_rate") is not None:
        raise ValueError("these batches are masked; attention is read from the text itself, so leave mask_rate out")
    counts = unigrams_of(model, prepared, options.unigram, column=options.column)

    scores = (
        ScoreContributions(model, classes, layers=chosen, **score_options) if why_no_scores(model) is None else None
    )
    attention = AttentionByClass(model, classes, layers=chosen)
    residual = DimensionProfile(model, classes)
    removed = DimensionProfile(model, classes, of="attn_input") if scores else residual
    correlations = DimensionCorrelations(model, torch.from_numpy(counts.log_prior(real_tokens(model).cpu().numpy())))
    massive = MassiveActivations(model)
    tokens = LargestTokens(model)
    listening = [attention, residual, correlations, massive, tokens]
    readings = [Reading("attention", prepared, [*listening, removed] if scores else listening)]
    if scores:
        sampled = prepared if sample is None else _sampled(model, prepared, sample, options.seed)
        readings.append(Reading("attention scores", sampled, [scores]))
    yield readings
    residual.warn_of_absent()
    dims = residual.table
    tables = _score_tables(scores)
    outliers = find_outliers(dims, k=options.k, rule=options.rule)
    tables["outlier_share"] = outlier_shares(tables["gaps"], outliers, scores)
    drivers = tables["gaps"].mean("head", ["gap"]) if scores else None
    where: Where = "keys" if scores else "residual"
    layers = chosen if options.ablation else []
    plan = planned(model, removed.table, outliers, drivers, layers, options.mode, options.seed, where)
    draws = drawn(model, classes, removed.table, outliers, layers, options, attention) if scores else None
    ablation, ablated, frames = yield from ablate(model, prepared, classes, plan, where, draws)
    settings: dict[str, Any] = {"unigram": {"corpus": counts.corpus, "n_tokens": counts.n_tokens}, "layers": chosen}
    settings.update(score_options)
    settings.update(
        k=outlier_threshold(model.cfg.d_model, options.k, options.rule), rule=options.rule, mode=options.mode,
        sample=sample, key_classes=list(classes.names), intervals=attention.intervals,
        contribution_intervals=scores.intervals if scores else {},
    )  # fmt: skip
    tables.update(
        attention=attention.table, by_layer=attention.by_layer, dims=dims, outliers=outliers,
        contexts=tokens.table(prepared, outliers[["dim", "state"]].itertuples(index=False, name=None)),
        massive=massive.table, ablation=ablation, ablated=ablated, frames=frames, correlations=correlations.table,
    )  # fmt: skip
    removed_outliers = ablation.loc[ablation["set"] == "outlier", "dim"]
    settings["outlier_dimensions"] = {"found": outliers["dim"].nunique(), "removed": removed_outliers.nunique()}
    record = provenance(model, prepared.about, **settings, n_tokens=int(residual.tokens.sum()))
    return AttentionStudy(provenance=record, **tables)


def check_asked(options: AttentionOptions) -> None:
    """Raise ValueError or TypeError for options that are impossible for every model."""
    check_rule(options.k, options.rule)
    check_mode(options.mode)
    check_choice("weights", options.weights, get_args(Weights))
    check_choice("average", options.average, get_args(Average))
    check_seed(options.seed)
    if options.sample is not None:
        whole_number(options.sample, "sample", least=1)


def _score_tables(observer: ScoreContributions | None) -> dict[str, Any]:
    """The tables of the decomposition, which are empty without one."""
    scores = observer.scores if observer else NO_SCORES
    gap_values = gaps(scores)
    largest = largest_gaps(gap_values)
    reach = observer.gap_half(largest) if observer else math.nan
    largest = largest.assign(gap_low=largest["gap"] - reach, gap_high=largest["gap"] + reach)
    totals = observer.totals if observer else pd.DataFrame(columns=TOTALS)
    return {"scores": scores, "gaps": gap_values, "totals": totals, "largest_gaps": largest}


def _sampled(model: Model, prepared: Batches, sample: int, seed: int) -> Batches:
    """Batches of some of the texts, with one text per row."""
    if prepared.corpus is None:
        raise ValueError("a sample needs texts, but token ids were given; leave sample out")
    texts = list(prepared.corpus)
    picked = np.random.default_rng(seed).choice(len(texts), size=min(sample, len(texts)), replace=False)
    settings: dict[str, Any] = {name: prepared.settings[name] for name in ("context", "bos", "eos", "batch_size")}
    return batches(model, [texts[i] for i in sorted(picked)], layout="texts", **settings)


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `study` with these options, without a model. The second pass is that of the most dimensions
    that may be removed one by one, where scores can be decomposed with draws for 64 outliers together; elsewhere it
    runs each row again for each dimension.

    Raises the errors of `interp.models.shapes.shape`.
    """
    size = shape_with(name, options)
    chosen = AttentionOptions.of(options)
    layers = range(size.n_layers) if chosen.layers is None else listed(chosen.layers)
    classes = n_classes(chosen.key_classes)
    states = range(size.n_layers + 1)
    again = attention_cost(size, chosen.context)
    scored = ScoreContributions.cost(size, len(layers), classes, weights=chosen.weights, average=chosen.average)
    sums = [
        AttentionByClass.n_bytes(size, layers, classes=classes),
        DimensionProfile.n_bytes(size, states, classes=classes),
        DimensionProfile.n_bytes(size, states[1:], classes=classes),
        DimensionCorrelations.n_bytes(size, states[1:]),
        MassiveActivations.n_bytes(size, states, bins=len(position_bins(size.n_ctx))),
        LargestTokens.n_bytes(size, states, width=size.d_model),
    ]
    per_token = scored.per_token + again.per_token
    read = replace(scored, what="attention", sums=sum(sums), flops=again.flops, per_token=per_token)
    text = "text" if chosen.sample is None else "a sample of the text"
    passes = [read, replace(scored, text=text)] if size.linear_scores else [read]
    if chosen.ablation:
        passes += ablation_cost(size, layers, classes, read, context=chosen.context)
    rows = len(layers) * size.n_heads * classes * size.d_model if size.linear_scores else 0
    numbers = 7 * (8 if rows <= MOST_ROWS else 4)  # of scores and gaps, as arrays and then as they are saved
    return Cost(passes=tuple(passes), results=rows * (numbers + (_TABLE_ROW if rows <= MOST_ROWS else numbers)))
