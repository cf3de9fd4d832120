"""Attention sinks: heads whose queries attend to one position, and whether the direction of its key or its norm draws
them there.

Source: Gu et al., "When Attention Sink Emerges in Language Models", ICLR 2025. The attention that position k of a row
draws is the mean over the queries that see it,

    α_k = mean_m A_mk,

which in causal models are those at k and after it. There queries at the first eight positions do not count, because
they see so few keys that each draws much of their attention. A head has a sink at k if α_k > ε. A score is a product of
two norms and a cosine, `q_m · k_n = |q_m| |k_n| cos(q_m, k_n)`. Sums of scores and cosines over queries can be computed
from sums of queries and of their directions, `Σ_m q_m · k_n = (Σ_m q_m) · k_n`, so nothing grows with the square of a
row's length.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.corpora.batching import Batch, Batches
from interp.corpora.classes import TokenClasses
from interp.instruments.keys import KeyClassBatch, KeyObserver, attention_hooks
from interp.models.edits import jointly
from interp.models.qk import QKCircuit, check_layers, qk_circuit, why_no_scores
from interp.models.sites import Model, Recipe, hook_name, view
from interp.models.spans import Span
from interp.results.intervals import about, from_sums
from interp.support.checks import finite_number
from interp.support.choices import Several

__all__ = ["FEWEST_QUERIES", "FIRST_QUERY", "Sinks", "checked_epsilon", "fewest_tokens", "first_query"]
__all__ += ["position_bins", "why_too_short"]
__dir__ = __all__.copy

_KEYS = ("attention", "above", "value_norm")  # means over keys
_PAIRS = ("score", "cosine", "query_norm", "key_norm")  # means over pairs of a query and a key
FIRST_QUERY = 8
"""The position of the first query that counts in causal models, where a query sees only keys up to its own position."""
FEWEST_QUERIES = 16
"""A position counts only in rows in which at least so many of these queries see it."""
_HEADS = ["layer", "head", "first_position", "last_position", "attention", "attention_low", "attention_high", "rate"]
_HEADS += ["rate_low", "rate_high", "uniform", *_PAIRS, "value_norm", "gap", "by_direction", "by_norm", "n_keys"]
_RATES = ["layer", "first_position", "last_position", "rate", "rate_low", "rate_high", "attention"]
_RATES += ["attention_low", "attention_high", "uniform", "n_keys"]
_MEASURES = ["measure", "value", "low", "high", "n_heads"]


def checked_epsilon(epsilon: float | int) -> float:
    """Check the share of attention above which a position is a sink. Raises ValueError if it lies outside 0 … 1, and
    TypeError if it is not a number."""
    epsilon = finite_number(epsilon, "epsilon")
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon is a share of attention and must lie between 0 and 1, found {epsilon}")
    return epsilon


def first_query(layer_span: Span) -> int:
    """Return the position of the first query that counts: 8 if queries see only keys up to their own position, else
    0."""
    return FIRST_QUERY if layer_span.causal else 0


def fewest_tokens(model: Model) -> int:
    """Return how long a row must be for its first position to count: 24 tokens in causal models, 16 in encoders.

    Examples:
        >>> from interp.testing import toy_decoder, toy_encoder
        >>> fewest_tokens(toy_decoder()), fewest_tokens(toy_encoder())
        (24, 16)
    """
    return first_query(view(model).attention(0).span) + FEWEST_QUERIES


def why_too_short(model: Model, text: Batches, layers: Several[int] | None = None) -> str | None:
    """Return why no row of a text has a position that counts, or None if one has. Reads up to the first row that has,
    without the model."""
    spans = {view(model).attention(layer).span for layer in check_layers(model, layers)}
    longest = 0
    for batch in text:
        real = batch.mask.bool()
        if any(_Counted.of(layer_span, real, [0]).here[:, 0].any() for layer_span in spans):
            return None
        longest = max(longest, int(real.sum(1).max()))
    remedy = "give longer texts or a larger context"
    return f"{_too_short(model)} and the longest row of this text has {longest}; {remedy}"


def _too_short(model: Model) -> str:
    return f"sinks need rows of {fewest_tokens(model)} tokens or more,"


class Sinks(KeyObserver):
    """The attention that positions draw, by layer, head and position, with scores as cosine and norms, and value norms.

    In causal models only queries from position 8 on count (`FIRST_QUERY`), and everywhere a position of a row counts if
    at least 16 of these queries see it (`FEWEST_QUERIES`). Padding is neither query nor key. Positions are counted from
    the beginning of a row, and later ones are grouped as in `interp.instruments.massive`: 0, 1, 2, 3, 4 to 15, 16 to
    63, and so on.

    After `observe` there are `table`, `by_layer`, `measures`, and `first_class`, the most frequent class of the first
    position. If scores are more than products of a query and a key that interp can read (`why_no_scores`), what is
    made of scores is NaN.

    Args:
        classes: the classes of tokens, from which `first_class` comes.
        layers: TransformerLens' block numbers. Default: all.
        epsilon: the attention above which a position is a sink.

    Raises ValueError for a layer that does not exist, for an ε outside 0 … 1, and for a model whose context is shorter
    than 24 tokens (16 for encoders).

    Examples:
        >>> from interp.corpora import batches, token_classes
        >>> from interp.passes.reading import observe
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> observer = Sinks(model, token_classes(model))
        >>> observe(model, batches(model, ["w0 w1 w2"] * 20, context=24), observer, progress=False)
        >>> observer.table.groupby("first_position")["n_keys"].max().to_dict()  # 9 and later are seen by too few
        {0: 2, 1: 2, 2: 2, 3: 2, 4: 10}
    """

    axes: ClassVar = {
        "first": "classes",
        "{}.counts": "groups 3 bins",
        "{}.keys": f"groups {len(_KEYS)} n_heads bins",
        "{}.pairs": f"groups {len(_PAIRS)} n_heads bins",
    }

    def __init__(
        self, model: Model, classes: TokenClasses, *, layers: Several[int] | None = None, epsilon: float = 0.3
    ) -> None:
        chosen = check_layers(model, layers)
        super().__init__(model, classes, chosen, layers=chosen, epsilon=epsilon)
        self.epsilon = checked_epsilon(epsilon)
        n_ctx = int(model.cfg.n_ctx)
        if n_ctx < fewest_tokens(model):
            raise ValueError(f"{_too_short(model)} longer than the model's context of {n_ctx}")
        self.starts = position_bins(n_ctx)
        self.reads_scores = why_no_scores(model) is None
        self.add_to_layers(bins=len(self.starts))

    def hooks(self, batch: Batch) -> Recipe:
        recipe = super().hooks(batch)
        classes = self.classes(batch.tokens[:, :1])[:, 0]
        self.add("first", torch.bincount(classes, minlength=len(self.classes.names)))
        return recipe

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        layer_span = view(self.model).attention(layer).span
        counted = _Counted.of(layer_span, keys.real, self.starts)
        self.add_rows(f"{layer}.counts", counted.counts(), keys.batch)
        read = partial(self._read, layer, keys, counted)
        recipe = attention_hooks(self.model, layer, keys.batch, read, "v", first_query=first_query(layer_span))
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
        q = circuit.rotate(q).to(keys.one_hot) * counted.queries[..., None, None]
        k = circuit.rotate(k).to(q)
        k_size = k.norm(dim=-1)
        group_size = q.shape[2] // k.shape[2]
        k = k.repeat_interleave(group_size, 2)
        k_size = k_size.repeat_interleave(group_size, 2)
        q_size = q.norm(dim=-1)
        tiny = torch.finfo(q.dtype).tiny
        of_viewers = circuit.span.over_queries
        score = (of_viewers(q) * k).sum(-1) / circuit.scale
        cosine = (of_viewers(q / q_size.clamp(min=tiny)[..., None]) * k).sum(-1) / k_size.clamp(min=tiny)
        values = [score, cosine, of_viewers(q_size), k_size * counted.viewers[..., None].to(q)]
        self.add_rows(f"{circuit.layer}.pairs", counted.by_position(torch.stack(values, 1).mT), keys.batch)

    @property
    def table(self) -> pd.DataFrame:
        """One row per layer, head and range of positions that counts (layer, head, first_position, last_position,
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
        attention = sums.interval(partial(_Totals.mean, name="attention"))
        rate = sums.interval(partial(_Totals.mean, name="above"))
        columns: dict[str, Any] = {"uniform": sums.whole.uniform[:, None], "n_keys": sums.whole.n_keys[:, None]}
        for name, (value, low, high) in (("attention", attention), ("rate", rate)):
            columns[name] = value
            columns[f"{name}_low"] = low.clip(0)
            columns[f"{name}_high"] = high.clip(max=1)
        for name in (*_PAIRS, "value_norm"):
            columns[name] = sums.whole.mean(name)
        columns.update(sums.whole.split()._asdict())
        keys = {"layer": self.layers, "head": range(self.model.cfg.n_heads)}
        return self._tidy(keys, columns, _HEADS)

    @property
    def by_layer(self) -> pd.DataFrame:
        """Means over heads (layer, first_position, last_position, rate, rate_low, rate_high, attention, attention_low,
        attention_high, uniform, n_keys). `rate` is the sink rate of a layer."""
        sums = self._sums
        columns: dict[str, Any] = {"uniform": sums.whole.uniform, "n_keys": sums.whole.n_keys}
        for name, total in (("rate", "above"), ("attention", "attention")):
            value, low, high = sums.interval(partial(_over_heads, name=total))
            columns[name] = value
            columns[f"{name}_low"] = low.clip(0)
            columns[f"{name}_high"] = high.clip(max=1)
        return self._tidy({"layer": self.layers}, columns, _RATES)

    @property
    def measures(self) -> pd.DataFrame:
        """Measures of the first position, over heads (measure, value, low, high, n_heads).

        - `rate`: the sink rate, which is the share of layers, heads and rows with a sink at the first position;
        - `direction_ratio`: `Σ by_direction / Σ gap` over the heads whose mean attention to it is above ε, which is
          above 1 where the norm of the key works against its direction;
        - `value_ratio`: for the same heads, the mean norm of its values divided by that of all other values. Its
          interval is that of its logarithm.
        """
        sums = self._sums
        sinks = sums.whole.mean("attention")[..., 0] > self.epsilon
        rate, low, high = sums.interval(_rate)
        rows: list[Any] = [("rate", rate, low.clip(0), high.clip(max=1), sinks.size)]
        if self.reads_scores:
            rows.append(("direction_ratio", *sums.interval(partial(_direction_ratio, sinks=sinks)), int(sinks.sum())))
        logs = sums.interval(partial(_log_value_ratio, sinks=sinks))
        rows.append(("value_ratio", *map(np.exp, logs), int(sinks.sum())))
        return pd.DataFrame(rows, columns=_MEASURES).astype(dict.fromkeys(_MEASURES[1:4], "float64"))

    @property
    def intervals(self) -> dict[str, Any]:
        """What a result records about these intervals (`interp.results.intervals.about`)."""
        return about(len(self._sums.sizes), self.stretches_per_group)

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
            raise ValueError(f"{_too_short(self.model)} and there was none; give longer texts or a larger context")
        sizes = groups[0][:, :, 0].sum((1, 2))
        read = tuple(array[sizes > 0] for array in groups)
        return _Sums(read, _Totals(*(array.sum(0) for array in read)), sizes[sizes > 0], self.stretches_per_group)

    def _tidy(self, keys: dict[str, Any], columns: dict[str, Any], names: list[str]) -> pd.DataFrame:
        last = np.append(self.starts[1:], self.model.cfg.n_ctx) - 1
        index = pd.MultiIndex.from_product([*keys.values(), self.starts], names=[*keys, "first_position"])
        values = {name: np.broadcast_to(column, index.levshape).ravel() for name, column in columns.items()}
        table = pd.DataFrame(values, index).reset_index()
        table["last_position"] = table["first_position"].map(dict(zip(self.starts, last, strict=True)))
        return table.loc[table["n_keys"] > 0, names].astype({"n_keys": "int64"}).reset_index(drop=True)


class _Counted(NamedTuple):
    """The positions of a batch that count and the queries that do, how many of these see each position, the attention
    that each would draw if attention were uniform, and the range of each position as a one-hot vector."""

    here: Bool[Tensor, "batch pos"]
    queries: Bool[Tensor, "batch pos"]
    viewers: Float[Tensor, "batch pos"]
    uniform: Float[Tensor, "batch pos"]
    ranges: Float[Tensor, "pos range"]

    @classmethod
    def of(cls, layer_span: Span, real: Bool[Tensor, "batch pos"], starts: Sequence[int]) -> "_Counted":
        places = torch.arange(real.shape[1], device=real.device)
        queries = real & (places >= first_query(layer_span))
        wide = torch.float32 if real.device.type == "mps" else torch.float64
        viewers = layer_span.over_queries(queries.to(wide))
        uniform = layer_span.over_queries(queries / layer_span.up_to(real.to(wide)).clamp(min=1)) / viewers.clamp(min=1)
        numbers = torch.bucketize(places, torch.tensor(starts, device=real.device), right=True) - 1
        ranges = torch.nn.functional.one_hot(numbers, len(starts)).to(wide)
        return cls(real & (viewers >= FEWEST_QUERIES), queries, viewers, uniform, ranges)

    def by_position(self, values: Float[Tensor, "batch measure head pos"]) -> Float[Tensor, "batch measure head range"]:
        """Sum over the positions that count, in each range."""
        return (values * self.here[:, None, None]).to(self.ranges) @ self.ranges

    def counts(self) -> Float[Tensor, "batch 3 range"]:
        """Count, for each range, the positions, the number of pairs, and the sum of uniform attention."""
        counted = torch.stack([torch.ones_like(self.viewers), self.viewers, self.uniform], 1)
        return (counted * self.here[:, None]) @ self.ranges


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
        """Return the sum of a measure, and the number to divide it by for a mean."""
        if name in _KEYS:
            return self.keys[:, _KEYS.index(name)], self.counts[:, None, 0]
        return self.pairs[:, _PAIRS.index(name)], self.counts[:, None, 1]

    def mean(self, name: str) -> Float[np.ndarray, "layer head range"]:
        total, number = self.sums(name)
        return _over(total, number)

    def elsewhere(self, name: str) -> Float[np.ndarray, "layer head range"]:
        """Return the mean over all positions that are not in the range."""
        total, number = self.sums(name)
        return _over(total.sum(-1, keepdims=True) - total, number.sum(-1, keepdims=True) - number)

    def split(self) -> _Split:
        at_position = self.mean("score")
        elsewhere = self.elsewhere("score")
        norm = self.mean("key_norm")
        other = self.elsewhere("key_norm")
        along_here, along_elsewhere = _over(at_position, norm), _over(elsewhere, other)
        return _Split(
            at_position - elsewhere,
            (along_here - along_elsewhere) * (norm + other) / 2,
            (norm - other) * (along_here + along_elsewhere) / 2,
        )


class _Sums(NamedTuple):
    """Sums over each group of texts, in the order of `_Totals`, and over all rows."""

    groups: tuple[Float[np.ndarray, "groups ..."], ...]
    whole: _Totals
    sizes: Float[np.ndarray, " groups"]
    texts_per_group: int

    def interval(
        self, measure: Callable[[_Totals], Float[np.ndarray, "*shape"]]
    ) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
        """Return the value of a function of the sums, with the ends of its interval."""
        interval = from_sums(lambda *sums: measure(_Totals(*sums)), self.groups, self.sizes, self.texts_per_group)
        return interval.value, interval.low, interval.high


def _over(total: Any, number: Any) -> Float[np.ndarray, "*shape"]:
    """A quotient; NaN if the divisor is 0."""
    total, number = np.broadcast_arrays(total, number)
    return np.divide(total, number, out=np.full(total.shape, np.nan), where=number != 0)


def _over_heads(totals: _Totals, name: str) -> Float[np.ndarray, "layer range"]:
    return totals.mean(name).mean(1)


def _rate(totals: _Totals) -> Float[np.ndarray, ""]:
    """The mean over heads of the layers in which the first position counts, which need not be those with a window."""
    rates = totals.mean("above")[..., 0]
    return _over(np.nansum(rates), np.isfinite(rates).sum())


def _direction_ratio(totals: _Totals, sinks: Bool[np.ndarray, "layer head"]) -> Float[np.ndarray, ""]:
    split = totals.split()
    return _over(split.by_direction[..., 0][sinks].sum(), split.gap[..., 0][sinks].sum())


def _log_value_ratio(totals: _Totals, sinks: Bool[np.ndarray, "layer head"]) -> Float[np.ndarray, ""]:
    ratio = _over(totals.mean("value_norm"), totals.elsewhere("value_norm"))[..., 0][sinks]
    return np.asarray(np.log(_over(ratio.sum(), ratio.size)))


def position_bins(n_ctx: int) -> list[int]:
    """Return the first position of each range: 0, 1, 2, 3, 4, 16, 64, … below n_ctx.

    Examples:
        >>> position_bins(100)
        [0, 1, 2, 3, 4, 16, 64]
    """
    powers = [4**power for power in range(1, n_ctx.bit_length())]
    return [start for start in (0, 1, 2, 3, *powers) if start < n_ctx]
