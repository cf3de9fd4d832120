"""Attention sinks of one model on one text: heads, positions, dimensions, and writers of massive activations."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pandas as pd

from interp.analyses.sinks.columns import IN_PAPER, MEANINGS
from interp.analyses.sinks.dims import sink_dims
from interp.analyses.sinks.findings import answer, sink_findings
from interp.analyses.sinks.options import SinkOptions
from interp.analyses.sinks.shuffled import DRAWS, ShuffledKeys, sampled_rows
from interp.analyses.sinks.writers import WRITERS, MassiveWriters, why_no_writers
from interp.corpora import Batches, token_classes
from interp.corpora.batching import Text, as_batches
from interp.corpora.classes import n_classes
from interp.instruments.keys import attention_cost
from interp.instruments.massive import MassiveActivations
from interp.instruments.profile import DimensionProfile, find_outliers
from interp.instruments.scores import ScoreContributions
from interp.instruments.shares import gaps
from interp.instruments.sinks import Sinks, checked_epsilon, fewest_tokens, position_bins, why_too_short
from interp.models.qk import check_layers, why_no_scores, why_unreadable
from interp.models.shapes import shape_with
from interp.models.sites import Model
from interp.passes.budget import Cost
from interp.passes.execution import Passes, Reading, asks
from interp.passes.observers import Observer
from interp.results.findings import Answer, Finding, over_texts
from interp.results.result import Result, provenance
from interp.support.checks import check_seed
from interp.support.choices import Several, listed

__all__ = ["SinkStudy", "check_asked", "dry_run", "lacks", "study", "why_impossible", "why_unsuited"]

_ROW = 7 * 8  # bytes of scores and gaps per layer, head, class and dimension; see interp.results.dense


@dataclass(frozen=True, eq=False)
class SinkStudy(Result):
    """The result of `study`. Intervals are by leaving out groups of texts.

    - `heads` (layer, head, first_position, last_position, attention±, rate±, uniform, score, cosine, query_norm,
      key_norm, value_norm, gap, by_direction, by_norm, n_keys): one row per head and group of positions.
    - `rates` (layer, first_position, last_position, rate±, attention±, uniform, n_keys): one row per layer and group of
      positions, as a mean over heads.
    - `measures` (measure, value, low, high, n_heads): one row per measure; see `interp.instruments.sinks.Sinks`.
    - `draws` (draw, rate): one row per random order of keys: the sink rate at the first position, in at most 64 rows;
      see `interp.sinks.shuffled`. It is empty if scores cannot be computed from queries and keys.
    - `dims` (layer, head, key_class, dim, gap, share, abs_share, rank, outlier, massive): one row per head with a sink
      at the first position and dimension with a large gap; see `interp.analyses.sinks.dims.sink_dims`.
    - `writers` (dim, first_position, last_position, component, layer, added, share±, n_activations): one row per
      massive activation and component that writes it; see `interp.sinks.writers.MassiveWriters`. It is empty for a text
      without massive activations, and for an encoder.
    """

    analysis: ClassVar[str] = "sinks"
    page: ClassVar[str | None] = "interp.analyses.sinks.page"
    columns: ClassVar = MEANINGS
    in_paper: ClassVar = IN_PAPER

    heads: pd.DataFrame
    rates: pd.DataFrame
    measures: pd.DataFrame
    draws: pd.DataFrame
    dims: pd.DataFrame
    writers: pd.DataFrame

    @property
    def answer(self) -> Answer | None:
        return answer(self.heads, self.writers, self.epsilon)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return over_texts(sink_findings(self.tables, self.epsilon), self.provenance.get("intervals", {}))

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        first = self.rates[self.rates["first_position"] == 0]
        return {
            "measures": (f"the first position: {self.where}", self.measures),
            "rates": (f"the first position by layer, mean over heads: {self.where}", first),
        }

    @property
    def epsilon(self) -> float:
        return float(self.provenance.get("epsilon", math.nan))


def check_asked(options: SinkOptions) -> None:
    """Raise ValueError or TypeError for options that are impossible for every model."""
    checked_epsilon(options.epsilon)
    check_seed(options.seed)


def why_impossible(model: Model) -> str | None:
    """Return why the sinks of a model cannot be studied, or None if they can."""
    if reason := why_unreadable(model):
        return reason
    needed = fewest_tokens(model)
    short = f"sinks need rows of {needed} tokens or more, and the model's context is {model.cfg.n_ctx}"
    return short if model.cfg.n_ctx < needed else None


def why_unsuited(model: Model, text: Batches, layers: Several[int] | None = None) -> str | None:
    """Return why the sinks of a model cannot be studied on a text, or None if they can."""
    return why_too_short(model, text, layers)


def lacks(model: Model) -> dict[str, str]:
    """Say what a study of a model that can be studied leaves out, and why."""
    of_scores = why_no_scores(model)
    of_writers = why_no_writers(model)
    parts = {"what is made of scores, and the control by shuffled keys,": of_scores, "writers": of_writers}
    return {part: reason for part, reason in parts.items() if reason is not None}


@asks(SinkOptions)
def study(model: Model, text: Text, options: SinkOptions) -> Passes[SinkStudy]:
    """Find the attention sinks, in one pass.

    A head has a sink at a position if it gives this position more than ε of its attention, averaged over the queries
    that see it (Gu et al., "When Attention Sink Emerges in Language Models", ICLR 2025). In causal models queries at
    the first eight positions do not count, and a position counts in rows in which at least 16 queries see it. The rate
    of sinks at the first position is compared with that of the same rows with their keys shuffled.

    `text` is anything `interp.corpora.batches` takes, or its batches, without masking.

    Raises ValueError for a layer that does not exist, for an ε outside 0 … 1, for a model whose attention cannot be
    read, for batches of masked text, and for a text without a row that is long enough (24 tokens, 16 for encoders).

    Examples:
        >>> from interp.testing import toy_decoder
        >>> found = study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes={"some": [7, 8]}, progress=False)
        >>> found.rates["first_position"].unique().tolist()
        [0, 1, 2, 3, 4]
    """
    check_asked(options)
    chosen = check_layers(model, options.layers)
    if reason := why_impossible(model):
        raise ValueError(reason)
    classes = token_classes(model, options.key_classes)
    prepared = as_batches(model, text, **options.text)
    if prepared.settings.get("mask_rate") is not None:
        raise ValueError("these batches are masked; attention is read from the text itself, so leave mask_rate out")
    if reason := why_too_short(model, prepared, chosen):
        raise ValueError(reason)

    sinks = Sinks(model, classes, layers=chosen, epsilon=options.epsilon)
    profile = DimensionProfile(model, classes)
    massive = MassiveActivations(model)
    observers: list[Observer] = [sinks, profile, massive]
    scores = shuffled = writers = None
    if why_no_scores(model) is None:
        scores = ScoreContributions(model, classes, layers=chosen)
        rows = sampled_rows(model, prepared, options.seed)
        shuffled = ShuffledKeys(model, rows, layers=chosen, epsilon=options.epsilon, seed=options.seed)
        observers += [scores, shuffled]
    if why_no_writers(model) is None:
        writers = MassiveWriters(model)
        observers.append(writers)
    yield [Reading("sinks", prepared, observers)]

    heads = sinks.table
    gap_values = gaps(scores.scores) if scores else None
    of_outliers = find_outliers(profile.table), massive.table
    tables = {
        "heads": heads,
        "rates": sinks.by_layer,
        "measures": sinks.measures,
        "draws": shuffled.table if shuffled else pd.DataFrame(columns=["draw", "rate"]),
        "dims": sink_dims(heads, gap_values, *of_outliers, key_class=sinks.first_class, epsilon=sinks.epsilon),
        "writers": writers.table if writers else pd.DataFrame(columns=WRITERS),
    }
    settings: dict[str, Any] = {
        "layers": chosen, "epsilon": sinks.epsilon, "key_classes": list(classes.names),
        "shuffled_rows": len(shuffled.rows) if shuffled else 0, "shuffle_seed": options.seed,
        "intervals": sinks.intervals, "n_tokens": int(profile.tokens.sum()),
    }  # fmt: skip
    return SinkStudy(provenance=provenance(model, prepared.about, **settings), **tables)


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `study` with these options, without a model. The operations of the shuffled rows, of which
    there are at most 64, are not counted.

    Raises the errors of `interp.models.shapes.shape`.
    """
    size = shape_with(name, options)
    chosen = SinkOptions.of(options)
    layers = range(size.n_layers) if chosen.layers is None else listed(chosen.layers)
    states = range(size.n_layers + 1)
    classes = n_classes(chosen.key_classes)
    bins = len(position_bins(size.n_ctx))
    again = attention_cost(size, chosen.context)
    scored = ScoreContributions.cost(size, len(layers), classes)
    sums = [
        Sinks.n_bytes(size, layers, classes=classes, bins=bins),
        DimensionProfile.n_bytes(size, states, classes=classes),
        MassiveActivations.n_bytes(size, states, bins=bins),
    ]
    if size.linear_scores:
        sums += [scored.sums, ShuffledKeys.n_bytes(size, layers, draws=DRAWS)]
    if not size.encoder:
        sums.append(MassiveWriters.n_bytes(size, components=2 + 2 * size.n_layers))
    # queries, keys, their directions and reverse cumulative sums in float32; what enters a block and is added to it
    held = again.per_token + 4 * (4 * size.d_model + 8 * size.n_heads * size.d_head)
    flops = again.flops + scored.flops * size.linear_scores
    read = replace(scored, what="sinks", sums=sum(sums), flops=flops, per_token=scored.per_token + held)
    table = _ROW * len(layers) * size.n_heads * classes * size.d_model * size.linear_scores
    return Cost(passes=(read,), results=table)
