"""Attention sinks: heads whose queries attend to one position, and whether the direction of its key or its norm draws
them there.

Source: Gu et al., "When Attention Sink Emerges in Language Models", ICLR 2025. The attention that position k of a row
draws is the mean over the queries that see it,

    α_k = mean_m A_mk,

which in causal models are those at k and after it. A head has a sink there if α_k > ε. A score is a product of two
norms and a cosine, `q_m · k_n = |q_m| |k_n| cos(q_m, k_n)`. Sums of scores and cosines over queries can be computed
from sums of queries and of their directions, `Σ_m q_m · k_n = (Σ_m q_m) · k_n`, so nothing grows with the square of a
row's length.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.corpora.batching import Batch, Batches
from interp.corpora.classes import TokenClasses
from interp.instruments.keys import KeyClassBatch, KeyObserver, attention_hooks
from interp.models.edits import jointly
from interp.models.qk import QKCircuit, Span, check_layers, qk_circuit, span, why_no_scores
from interp.models.sites import Model, Recipe, hook_name
from interp.passes.groups import MOST
from interp.results.dense import Dense
from interp.results.intervals import from_sums
from interp.support.choices import Several

__all__ = ["SINKS", "SINK_DIMS", "SINK_RATES", "SINK_SUMMARY", "Sinks", "fewest_queries", "position_bins"]
__all__ += ["sink_dims"]

_KEYS = ("attention", "above", "value_norm")  # means over keys
_PAIRS = ("score", "cosine", "query_norm", "key_norm")  # means over pairs of a query and a key
SINKS = ["layer", "head", "first_position", "last_position", "attention", "attention_low", "attention_high", "rate"]
SINKS += ["rate_low", "rate_high", "uniform", *_PAIRS, "value_norm", "gap", "by_direction", "by_norm", "n_keys"]
"""The columns of `Sinks.table`."""
SINK_RATES = ["layer", "first_position", "last_position", "rate", "rate_low", "rate_high", "attention"]
SINK_RATES += ["attention_low", "attention_high", "uniform", "n_keys"]
"""The columns of `Sinks.by_layer`."""
SINK_SUMMARY = ["measure", "value", "low", "high", "n_heads"]
"""The columns of `Sinks.summary`."""
SINK_DIMS = ["layer", "head", "key_class", "dim", "gap", "share", "abs_share", "rank", "outlier", "massive"]
"""The columns of `sink_dims`."""
_SHOWN = 10  # dimensions per head


def fewest_queries(epsilon: float) -> int:
    """The smallest number of queries for which a sink is meaningful. In a causal row with fewer, attention that is
    uniform over the keys a query sees would give the first position more than ε on average, `(1 + 1/2 + … + 1/n) / n`.

    Raises ValueError for an ε outside 0 … 1.

    Examples:
        >>> fewest_queries(0.3)
        10
    """
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon is a share of attention and must lie between 0 and 1, found {epsilon}")
    n, total = 1, 1.0
    while total / n > epsilon:
        n += 1
        total += 1 / n
    return n


class Sinks(KeyObserver):
    """The attention that positions draw, by layer, head and position, with scores as cosine and norms, and value norms.

    A position of a row counts if at least `fewest_queries(epsilon)` queries see it (10 at ε = .3). Padding is neither
    query nor key. Positions are counted from the beginning of a row, and later ones are grouped as in
    `interp.attention.massive`: 0, 1, 2, 3, 4 to 15, 16 to 63, and so on.

    After `observe` there are `table`, `by_layer`, `summary`, and `first_class`, the most frequent class of the first
    position. If scores are more than products of a query and a key that interp can read (`why_no_scores`), what is
    made of scores is NaN.

    Args:
        classes: the classes of tokens, from which `first_class` comes.
        layers: TransformerLens' block numbers. Default: all.
        epsilon: the attention above which a position is a sink.

    Raises ValueError for a layer that does not exist, and for an ε that lies outside 0 … 1 or would need rows longer
    than the model's context.

    Examples:
        >>> from interp.corpora import batches, token_classes
        >>> from interp.passes.observers import observe
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> observer = Sinks(model, token_classes(model))
        >>> observe(model, batches(model, ["w0 w1 w2"] * 20, context=12), observer, progress=False)
        >>> observer.table.groupby("first_position")["n_keys"].max().to_dict()  # 3 and later are seen by too few
        {0: 5, 1: 5, 2: 5}
    """

    def __init__(
        self, model: Model, classes: TokenClasses, *, layers: Several[int] | None = None, epsilon: float = 0.3
    ) -> None:
        chosen = check_layers(model, layers)
        super().__init__(model, classes, chosen, layers=chosen, epsilon=epsilon)
        self.epsilon, self.fewest, n_ctx = epsilon, fewest_queries(epsilon), int(model.cfg.n_ctx)
        if self.fewest > n_ctx:
            raise ValueError(f"{self._too_short} longer than the model's context of {n_ctx}; choose a larger epsilon")
        self.starts, heads = position_bins(n_ctx), model.cfg.n_heads
        self.reads_scores = why_no_scores(model) is None
        self.add_state("first", (len(classes.names),))
        for layer in chosen:
            self.add_state(f"{layer}.counts", (MOST, 3, len(self.starts)), "groups")
            self.add_state(f"{layer}.keys", (MOST, len(_KEYS), heads, len(self.starts)), "groups")
            self.add_state(f"{layer}.pairs", (MOST, len(_PAIRS), heads, len(self.starts)), "groups")

    @property
    def _too_short(self) -> str:
        return f"a sink at epsilon = {self.epsilon:g} needs rows of {self.fewest} tokens or more,"

    def check_rows(self, text: Batches) -> None:
        """Raise ValueError for a text in which no row is long enough. Reads up to the first row that is, without the
        model."""
        longest, spans = 0, {span(self.model, layer) for layer in self.layers}
        for batch in text:
            real = batch.mask.bool()
            if any(_Counted.of(seen, real, self.starts, self.fewest).here[:, 0].any() for seen in spans):
                return
            longest = max(longest, int(real.sum(1).max()))
        how = "give longer texts or a larger context, or choose a larger epsilon"
        raise ValueError(f"{self._too_short} and the longest row of this text has {longest}; {how}")

    def hooks(self, batch: Batch) -> Recipe:
        recipe = super().hooks(batch)
        classes = self.classes(batch.tokens[:, :1])[:, 0]
        self.add("first", torch.bincount(classes, minlength=len(self.classes.names)))
        return recipe

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        counted = _Counted.of(span(self.model, layer), keys.real, self.starts, self.fewest)
        self.add_rows(f"{layer}.counts", counted.counts(), keys.batch)
        recipe = attention_hooks(self.model, layer, keys.batch, partial(self._read, layer, keys, counted), "v")
        if self.reads_scores:
            circuit = qk_circuit(self.model, layer)
            names = circuit.query_name, hook_name(self.model, "k", layer)
            recipe += jointly(names, partial(self._read_scores, circuit, keys, counted))
        return recipe

    def _read(self, layer: int, keys: KeyClassBatch, counted: "_Counted", received: Tensor, v: Tensor) -> None:
        attention = received / counted.viewers[:, None].clamp(min=1)
        size = v.to(attention).norm(dim=-1).mT.repeat_interleave(attention.shape[1] // v.shape[2], 1)
        values = torch.stack([attention, (attention > self.epsilon).to(attention), size], 1)
        self.add_rows(f"{layer}.keys", counted.by_position(values), keys.batch)

    def _read_scores(self, circuit: QKCircuit, keys: KeyClassBatch, counted: "_Counted", q: Tensor, k: Tensor) -> None:
        q = keys.zero_padded(circuit.rotate(q).to(keys.one_hot))
        k = circuit.rotate(k).to(q)
        k_size = k.norm(dim=-1)
        k, k_size = (one.repeat_interleave(q.shape[2] // k.shape[2], 2) for one in (k, k_size))
        q_size = q.norm(dim=-1)
        tiny = torch.finfo(q.dtype).tiny
        of_viewers = circuit.span.over_queries
        score = (of_viewers(q) * k).sum(-1) / circuit.scale
        cosine = (of_viewers(q / q_size.clamp(min=tiny)[..., None]) * k).sum(-1) / k_size.clamp(min=tiny)
        values = [score, cosine, of_viewers(q_size), k_size * counted.viewers[..., None].to(q)]
        self.add_rows(f"{circuit.layer}.pairs", counted.by_position(torch.stack(values, 1).mT), keys.batch)

    @property
    def table(self) -> pd.DataFrame:
        """One row per layer, head and range of positions that was read (layer, head, first_position, last_position,
        attention, attention_low, attention_high, rate, rate_low, rate_high, uniform, score, cosine, query_norm,
        key_norm, value_norm, gap, by_direction, by_norm, n_keys).

        `attention` is the mean of α_k over the n_keys positions of all rows, and `rate` the share of them with α_k > ε,
        both with 95 % intervals by leaving out groups of texts (`interp.results.intervals.jackknife`). `uniform` is the
        value that α_k would have if attention were uniform over the keys that a query sees. `score` (divided by
        √d_head, as the softmax reads it), `cosine`, `query_norm` and `key_norm` are means over pairs of a query and a
        key at these positions.

        `gap` is the mean score minus that of all other keys. With `score = |k| c`, where |k| is the key norm, it is the
        sum of `by_direction`, `(c − c′)(|k| + |k|′)/2`, and `by_norm`, `(|k| − |k|′)(c + c′)/2`, where ′ marks the
        other keys.
        """
        sums = self._sums
        attention, rate = (sums.interval(partial(_Totals.mean, name=name)) for name in ("attention", "above"))
        columns: dict[str, Any] = {"attention": attention[0], "attention_low": attention[1].clip(0)}
        columns |= {"attention_high": attention[2].clip(max=1), "rate": rate[0], "rate_low": rate[1].clip(0)}
        columns |= {"rate_high": rate[2].clip(max=1), "uniform": sums.whole.uniform[:, None]}
        columns |= {name: sums.whole.mean(name) for name in (*_PAIRS, "value_norm")}
        columns |= sums.whole.split()._asdict() | {"n_keys": sums.whole.n_keys[:, None]}
        keys = {"layer": self.layers, "head": range(self.model.cfg.n_heads)}
        return self._tidy(keys, columns, SINKS)

    @property
    def by_layer(self) -> pd.DataFrame:
        """Means over heads (layer, first_position, last_position, rate, rate_low, rate_high, attention, attention_low,
        attention_high, uniform, n_keys). `rate` is the sink rate of a layer."""
        sums = self._sums
        columns: dict[str, Any] = {"uniform": sums.whole.uniform, "n_keys": sums.whole.n_keys}
        for name, of in (("rate", "above"), ("attention", "attention")):
            value, low, high = sums.interval(partial(_over_heads, name=of))
            columns |= {name: value, f"{name}_low": low.clip(0), f"{name}_high": high.clip(max=1)}
        return self._tidy({"layer": self.layers}, columns, SINK_RATES)

    @property
    def summary(self) -> pd.DataFrame:
        """Measures of the first position, over heads (measure, value, low, high, n_heads).

        - `rate`: the sink rate, which is the share of layers, heads and rows with a sink at the first position;
        - `direction_ratio`: `Σ by_direction / Σ gap` over the heads whose mean attention to it is above ε, which is
          above 1 where the norm of the key works against its direction;
        - `value_ratio`: for the same heads, the mean norm of its values divided by that of all other values.
        """
        sums = self._sums
        sinks = sums.whole.mean("attention")[..., 0] > self.epsilon
        rate, low, high = sums.interval(_rate)
        rows: list[Any] = [("rate", rate, low.clip(0), high.clip(max=1), sinks.size)]
        for measure, of in (("direction_ratio", _direction_ratio), ("value_ratio", _value_ratio)):
            if self.reads_scores or of is _value_ratio:
                rows.append((measure, *sums.interval(partial(of, sinks=sinks)), int(sinks.sum())))
        return pd.DataFrame(rows, columns=SINK_SUMMARY).astype(dict.fromkeys(SINK_SUMMARY[1:4], "float64"))

    @property
    def first_class(self) -> str:
        """The most frequent class of the first position."""
        return self.classes.names[int(self.state["first"].argmax())]

    @property
    def _sums(self) -> "_Sums":
        names = ("counts", "keys", "pairs")
        groups = tuple(self.of_layers(name).movedim(1, 0).cpu().numpy() for name in names)
        if not self.reads_scores:
            groups[2].fill(np.nan)
        if not groups[0][:, :, 0, 0].any():
            raise ValueError(f"{self._too_short} and there was none; give longer texts, or choose a larger epsilon")
        sizes = groups[0][:, :, 0].sum((1, 2))
        read = tuple(one[sizes > 0] for one in groups)
        return _Sums(read, _Totals(*(one.sum(0) for one in read)), sizes[sizes > 0], self.stretches_per_group)

    def _tidy(self, keys: dict[str, Any], columns: dict[str, Any], names: list[str]) -> pd.DataFrame:
        last = [start - 1 for start in (*self.starts[1:], int(self.model.cfg.n_ctx))]
        index = pd.MultiIndex.from_product([*keys.values(), self.starts], names=[*keys, "first_position"])
        values = {name: np.broadcast_to(column, index.levshape).ravel() for name, column in columns.items()}
        table = pd.DataFrame(values, index).reset_index()
        table["last_position"] = table["first_position"].map(dict(zip(self.starts, last, strict=True)))
        return table.loc[table["n_keys"] > 0, names].astype({"n_keys": "int64"}).reset_index(drop=True)


class _Counted(NamedTuple):
    """The positions of a batch that count, how many queries see each, the attention that each would draw if attention
    were uniform, and the range of each position as a one-hot vector."""

    here: Bool[Tensor, "batch pos"]
    viewers: Float[Tensor, "batch pos"]
    uniform: Float[Tensor, "batch pos"]
    ranges: Float[Tensor, "pos range"]

    @classmethod
    def of(cls, seen: Span, real: Bool[Tensor, "batch pos"], starts: Sequence[int], fewest: int) -> "_Counted":
        one = real.to(torch.float32 if real.device.type == "mps" else torch.float64)
        viewers = seen.over_queries(one)
        uniform = seen.over_queries(one / seen.up_to(one).clamp(min=1)) / viewers.clamp(min=1)
        places = torch.arange(real.shape[1], device=real.device)
        numbers = torch.bucketize(places, torch.tensor(starts, device=real.device), right=True) - 1
        ranges = torch.nn.functional.one_hot(numbers, len(starts)).to(one)
        return cls(real & (viewers >= fewest), viewers, uniform, ranges)

    def by_position(self, values: Float[Tensor, "batch measure head pos"]) -> Float[Tensor, "batch measure head range"]:
        """Sums over the positions that count, in each range."""
        return (values * self.here[:, None, None]).to(self.ranges) @ self.ranges

    def counts(self) -> Float[Tensor, "batch 3 range"]:
        """For each range, the number of positions, the number of pairs, and the sum of uniform attention."""
        of = torch.stack([torch.ones_like(self.viewers), self.viewers, self.uniform], 1)
        return (of * self.here[:, None]) @ self.ranges


class _Split(NamedTuple):
    """The gap between the scores of a position and of all others, and its parts by direction and norm of the key."""

    gap: Float[np.ndarray, "layer head range"]
    by_direction: Float[np.ndarray, "layer head range"]
    by_norm: Float[np.ndarray, "layer head range"]


class _Totals(NamedTuple):
    """Sums over some rows: counts, sums over keys and sums over pairs."""

    counts: Float[np.ndarray, "layer 3 range"]
    keys: Float[np.ndarray, "layer of_keys head range"]
    pairs: Float[np.ndarray, "layer of_pairs head range"]

    @property
    def n_keys(self) -> Float[np.ndarray, "layer range"]:
        return self.counts[:, 0]

    @property
    def uniform(self) -> Float[np.ndarray, "layer range"]:
        return _over(self.counts[:, 2], self.counts[:, 0])

    def sums(self, name: str) -> tuple[Float[np.ndarray, "layer head range"], Float[np.ndarray, "layer 1 range"]]:
        """The sum of a measure, and the number to divide it by for a mean."""
        if name in _KEYS:
            return self.keys[:, _KEYS.index(name)], self.counts[:, None, 0]
        return self.pairs[:, _PAIRS.index(name)], self.counts[:, None, 1]

    def mean(self, name: str) -> Float[np.ndarray, "layer head range"]:
        total, number = self.sums(name)
        return _over(total, number)

    def elsewhere(self, name: str) -> Float[np.ndarray, "layer head range"]:
        """The mean over all positions that are not in the range."""
        total, number = self.sums(name)
        return _over(total.sum(-1, keepdims=True) - total, number.sum(-1, keepdims=True) - number)

    def split(self) -> _Split:
        (here, there), (norm, other) = ((self.mean(name), self.elsewhere(name)) for name in ("score", "key_norm"))
        along, beside = _over(here, norm), _over(there, other)
        return _Split(here - there, (along - beside) * (norm + other) / 2, (norm - other) * (along + beside) / 2)


class _Sums(NamedTuple):
    """Sums over each group of texts, in the order of `_Totals`, and over all rows."""

    groups: tuple[Float[np.ndarray, "groups ..."], ...]
    whole: _Totals
    sizes: Float[np.ndarray, " groups"]
    texts_per_group: int

    def interval(
        self, of: Callable[[_Totals], Float[np.ndarray, "*shape"]]
    ) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
        """The value of a function of the sums, with the ends of its interval."""
        found = from_sums(lambda *sums: of(_Totals(*sums)), self.groups, self.sizes, self.texts_per_group)
        return found.value, found.low, found.high


def _over(total: Any, number: Any) -> Float[np.ndarray, "*shape"]:
    """A quotient; NaN if the divisor is 0."""
    total, number = np.broadcast_arrays(total, number)
    return np.divide(total, number, out=np.full(total.shape, np.nan), where=number != 0)


def _over_heads(totals: _Totals, name: str) -> Float[np.ndarray, "layer range"]:
    return totals.mean(name).mean(1)


def _rate(totals: _Totals) -> Float[np.ndarray, ""]:
    return np.asarray(totals.mean("above")[..., 0].mean())


def _direction_ratio(totals: _Totals, sinks: Bool[np.ndarray, "layer head"]) -> Float[np.ndarray, ""]:
    split = totals.split()
    return _over(split.by_direction[..., 0][sinks].sum(), split.gap[..., 0][sinks].sum())


def _value_ratio(totals: _Totals, sinks: Bool[np.ndarray, "layer head"]) -> Float[np.ndarray, ""]:
    ratio = _over(totals.mean("value_norm"), totals.elsewhere("value_norm"))[..., 0][sinks]
    return _over(ratio.sum(), ratio.size)


def sink_dims(
    sinks: pd.DataFrame, gaps: Dense, outliers: pd.DataFrame, massive: pd.DataFrame, key_class: str, epsilon: float
) -> pd.DataFrame:
    """The dimensions that make the sinks: for each head whose mean attention to the first position is above ε, the ten
    dimensions with the largest |gap| between the class of the first position and other keys.

    Args:
        sinks: `Sinks.table`.
        gaps, outliers, massive: the tables of a study.
        key_class: the class of the first position. If it has no gaps, as `other` has none, the table is empty.

    Returns the table (layer, head, key_class, dim, gap, share, abs_share, rank, outlier, massive). `gap`, `share` and
    `abs_share` are as in `gaps`, and `rank` is by |gap| (with the lower dimension first in ties). `outlier` and
    `massive` say whether the dimension is an outlier, or has a massive activation, in the state that enters the layer.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> options = {"key_classes": {"some": [7, 8]}, "sinks": True, "epsilon": 0.2, "progress": False}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, context=24, **options)
        >>> tables = study.sinks, study.gaps, study.outliers, study.massive
        >>> sink_dims(*tables, key_class="other", epsilon=0.2).empty
        True
    """
    found = sinks.query("first_position == 0 and attention > @epsilon")[["layer", "head"]]
    if key_class not in gaps.arrays.indexes["key_class"]:
        found = found.iloc[:0]
    known = {"outlier": outliers[["state", "dim"]], "massive": massive[["state", "dim"]]}
    sets = {name: set(table.itertuples(index=False, name=None)) for name, table in known.items()}
    rows: list[Any] = []
    for layer, head in found.itertuples(index=False, name=None):
        part = gaps.arrays.sel(layer=layer, head=head, key_class=key_class)
        values = {name: part[name].to_numpy() for name in ("gap", "share", "abs_share")}
        largest = np.argsort(-np.abs(values["gap"]), kind="stable")[:_SHOWN]
        for rank, dim in enumerate(part["dim"].to_numpy()[largest].tolist(), 1):
            of_dim = (values[name][largest[rank - 1]] for name in values)
            rows.append((layer, head, key_class, dim, *of_dim, rank, *((layer, dim) in sets[name] for name in sets)))
    kinds = dict.fromkeys(["gap", "share", "abs_share"], "float64") | dict.fromkeys(["outlier", "massive"], "bool")
    whole = dict.fromkeys(["layer", "head", "dim", "rank"], "int64")
    return pd.DataFrame(rows, columns=SINK_DIMS).astype(kinds | whole | {"key_class": "object"})


def position_bins(n_ctx: int) -> list[int]:
    """The first position of each range: 0, 1, 2, 3, 4, 16, 64, … below n_ctx.

    Examples:
        >>> position_bins(100)
        [0, 1, 2, 3, 4, 16, 64]
    """
    return [start for start in (0, 1, 2, 3, *(4**power for power in range(1, n_ctx.bit_length()))) if start < n_ctx]
