"""Attention scores by dimension of the residual stream, without an array over queries, keys and dimensions.

Source: Maruta and Matsuzaki on BERT's outlier dimensions. The contribution of dimension j of the key at n to the score
of the query at m is `C_j = [W_K R_nᵀ R_m q_m]_j x_nj`, where R is the rotation of RoPE, and
`Σ_j C_j + q_m · R_{n−m} b_K` is the score times its scale √d_head. For any weights A over pairs,

    Σ_mn A_mn C_j = Σ_n x_nj [W_K u_n]_j,   u_n = R_nᵀ Σ_m A_mn R_m q_m,

so sums over pairs cost one matrix product over the keys.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, get_args

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.corpora.classes import TokenClasses
from interp.instruments.keys import GroupedKeyObserver, KeyClassBatch, is_edited
from interp.instruments.sums import Patterns, Rows, attended_queries, pair_sums
from interp.models.edits import jointly
from interp.models.qk import SCORES_AT_ONCE, QKCircuit, check_layers, qk_circuit
from interp.models.shapes import Shape
from interp.models.sites import Model, Recipe, hook_name
from interp.passes.budget import Pass
from interp.passes.groups import MOST
from interp.results.dense import Dense, number_types
from interp.support.checks import check_choice
from interp.support.choices import Average, Several, Weights

__all__ = ["KEY", "MOST_BYTES", "NO_SCORES", "SCORES", "TOTALS", "ScoreContributions"]
__dir__ = __all__.copy

MOST_BYTES = 2**28
"""The most bytes that sums by group of texts and dimension may take. If they would take more, gaps have no
intervals."""
_COPIES = 5  # copies of scores: scaled, masked, softmax, and without a dimension
_TOKENS = 128  # of a row of text
KEY = ("layer", "head", "key_class", "dim")
SCORES: dict[str, Any] = {"dims": KEY, "fewer": {"n_pairs": ("layer", "key_class")}}
"""The labels that columns of scores depend on; see `interp.results.dense.Dense.of_table`."""
_EMPTY: dict[str, Any] = dict.fromkeys(KEY, ())
_EMPTY.update(dict.fromkeys(("mean", "centred_mean", "ln_bias_mean"), np.empty((0,) * len(KEY))))
_EMPTY["n_pairs"] = (SCORES["fewer"]["n_pairs"], np.empty((0, 0)))
NO_SCORES = Dense.of(_EMPTY, KEY)
"""The scores of a model in which they cannot be decomposed."""
TOTALS = [
    *KEY[:3],
    *("contributions", "key_bias", "score"),
    *("contributions_low", "key_bias_low", "score_low"),
    *("contributions_high", "key_bias_high", "score_high"),
]


class ScoreContributions(GroupedKeyObserver):
    """Sums over (query, key) pairs of each residual dimension's contribution to the score, by layer, head and class.

    After `observe` there are `scores`, which are those of `interp.attention.score_contributions` as an
    `interp.results.dense.Dense`, and the table `totals`. Beyond `interp.results.dense.MOST_ROWS` rows, scores are in
    float32. `gap_half` is half the width of the interval of a gap; it is NaN if the sums by group of texts and
    dimension that it needs would take more than 256 MiB (`has_gaps`).

    Args:
        classes: the classes of keys.
        layers: TransformerLens' block numbers. Default: all.
        weights: `"mean"` counts each pair that the model's mask allows once, `"attention"` by its probability.
        scaled: divide by the model's score scale, so that contributions are in nats.
        centred: also compute contributions minus their mean over the keys that the query sees.
        average: average over all pairs of the corpus, or over the means of sentences.

    Raises ValueError if scores are not sums over residual dimensions, and for a layer that does not exist.
    """

    axes: ClassVar = {
        "{}.contribution": "n_heads keys d_model",
        "{}.query": "n_heads keys d_head",
        "{}.weight": "n_heads keys",
        "{}.pairs": "keys",
        "{}.centred": "n_heads keys centred",
        "{}.total": "groups n_heads keys 3",  # of dimensions, of b_K, and the weight
        "{}.apart": "groups weights keys d_model",
    }

    def __init__(
        self,
        model: Model,
        classes: TokenClasses,
        *,
        layers: Several[int] | None = None,
        weights: Weights = "mean",
        scaled: bool = False,
        centred: bool = True,
        average: Average = "pair",
    ) -> None:
        check_choice("weights", weights, get_args(Weights))
        check_choice("average", average, get_args(Average))
        chosen = check_layers(model, layers)
        super().__init__(model, classes, chosen, layers=chosen, weights=weights, centred=centred, average=average)
        self.weights, self.scaled, self.centred, self.average = weights, scaled, centred, average
        keys = len(classes.names) + (average == "sentence")
        centred_dims = model.cfg.d_model if centred else None
        self.add_to_layers(keys=keys, centred=centred_dims, weights=_weights(model.cfg, len(chosen), keys, weights))
        self.has_gaps = f"{chosen[0]}.apart" in self.state

    @classmethod
    def cost(
        cls, size: Shape, n_layers: int, n_classes: int, *, weights: Weights = "mean", average: Average = "pair"
    ) -> Pass:
        """Estimate its cost, from the shape of a model.

        In addition to its sums it holds the input of a layer's attention, rotated queries with their reverse cumulative
        sums, and keys and values for every head, in float32, or the dimensions with their correlates in float64; and
        copies of the scores of some pairs. Each class takes `2 n_heads d_head d_model` operations per token and layer,
        in encoders twice that number for each row, which is taken to have 128 tokens.
        """
        keys = n_classes + (average == "sentence")
        width = size.n_heads * size.d_head
        sizes = {"keys": keys, "centred": size.d_model, "weights": _weights(size, n_layers, keys, weights)}
        return Pass(
            what="attention scores",
            sums=cls.n_bytes(size, range(n_layers), classes=n_classes, **sizes),
            per_token=max(4 * (3 * size.d_model + 8 * width), 8 * 4 * size.d_model),
            per_batch=_COPIES * 4 * SCORES_AT_ONCE + 12 * width * size.d_model,
            flops=n_layers * keys * 2.0 * width * size.d_model * (2 / _TOKENS if size.encoder else 1),
        )

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        circuit = qk_circuit(self.model, layer)
        names = [circuit.input_name, circuit.query_name]
        if self.weights == "mean":
            return jointly(names, partial(self._read, circuit, keys))
        if is_edited(self.model, keys.batch):
            return jointly(
                [*names, hook_name(self.model, "pattern", layer)], partial(self._read_pattern, circuit, keys)
            )
        return jointly([*names, hook_name(self.model, "k", layer)], partial(self._read_keys, circuit, keys))

    def _read_pattern(self, circuit: QKCircuit, keys: KeyClassBatch, x: Tensor, q: Tensor, pattern: Tensor) -> None:
        self._read(circuit, keys, x, q, [(slice(None), slice(None), pattern.to(keys.one_hot))])

    def _read_keys(self, circuit: QKCircuit, keys: KeyClassBatch, x: Tensor, q: Tensor, k: Tensor) -> None:
        self._read(circuit, keys, x, q, circuit.patterns(q, k, keys.real))

    def _read(
        self, circuit: QKCircuit, keys: KeyClassBatch, x: Tensor, q: Tensor, patterns: Patterns | None = None
    ) -> None:
        """Add the sums of this batch."""
        x = keys.zero_padded(circuit.attn_input(x).to(keys.one_hot))
        q = keys.zero_padded(circuit.rotate(q).to(x))
        one_hot = keys.one_hot
        counts = circuit.span.up_to(keys.counts)
        u = None
        n_seen = counts.sum(-1).clamp(min=1)
        if self.average == "sentence":  # the mean over all keys does not follow from those of the classes
            one_hot = torch.cat([one_hot, one_hot.sum(-1, keepdim=True)], -1)
            counts = torch.cat([counts, counts.sum(-1, keepdim=True)], -1)
        mass = counts[:, :, None]
        if patterns is not None:
            u, mass = attended_queries(circuit, q, one_hot, patterns)
        mass = keys.zero_padded(mass)
        mass_of_row = mass.sum(1)  # [b, h or 1, c]
        of_sentence = torch.where(mass_of_row > 0, 1 / mass_of_row, 0.0)
        weight = of_sentence if self.average == "sentence" else torch.ones_like(mass_of_row)
        layer = circuit.layer
        shape = (q.shape[2], counts.shape[2])
        self.add(f"{layer}.weight", (weight * mass_of_row).sum(0).expand(shape))
        self.add(f"{layer}.pairs", (counts * keys.real[..., None]).sum((0, 1)))
        groups = torch.tensor(self.groups_of(keys.batch), device=x.device)
        present, group = groups.unique(return_inverse=True)
        share = (mass / n_seen[:, :, None, None]).to(q)
        rows = Rows(q, x, keys.real, one_hot, weight.to(q), share, u, group, len(present))
        of_texts = (weight * mass_of_row).expand(-1, *shape)
        if patterns is None and not circuit.span.causal:
            sums, total, bias, by_dim = self._of_rows(circuit, rows)
        else:
            sums, total, bias, by_dim = self._of_pairs(circuit, rows)
            groups = present
            of_texts = rows.by_group(of_texts)
        for name, values in zip(("contribution", "query", "centred"), sums, strict=False):
            self.add(f"{layer}.{name}", values)
        totals = torch.stack([total.to(of_texts), bias.to(of_texts), of_texts], -1)
        self.add_to_groups(f"{layer}.total", totals, groups)
        if by_dim is not None:
            self.add_to_groups(f"{layer}.apart", by_dim, groups)

    def _of_rows(self, circuit: QKCircuit, rows: Rows) -> tuple[list[Tensor], Tensor, Tensor, Tensor | None]:
        """`_of_pairs` of rows in which every query sees every key, from two vectors per row, and by row instead of by
        group.

        `Σ_mn C_j = [W_K Σ_m q_m]_j Σ_n x_nj`.
        """
        q = rows.q.sum(1)
        weight = rows.weight[:, 0]
        directions = einsum(
            q, circuit.W_K.mT.to(q.dtype), "batch head d_head, head d_head d_model -> batch head d_model"
        )
        sums = rows.one_hot.mT @ rows.x
        counts = rows.one_hot.sum(1)
        centred = sums - (counts / counts.sum(1, keepdim=True))[..., None] * sums.sum(1, keepdim=True)
        class_sums = [sums * weight[..., None]] + [centred * weight[..., None]] * self.centred
        total = einsum(directions, class_sums[0], "batch head d_model, batch classes d_model -> batch head classes")
        bias = einsum(q, circuit.b_K.to(q), "batch head d_head, head d_head -> batch head")
        bias = bias[..., None] * (weight * counts)[:, None]
        by_dim = directions.mean(1)[:, None, None] * class_sums[-1][:, None] if self.has_gaps else None
        over_rows = []
        for values in class_sums:
            over_rows.append(torch.stack([(directions * x[:, None]).sum(0) for x in values.unbind(1)], 1))
        query = einsum(q, weight * counts, "batch head d_head, batch classes -> head classes d_head")
        return [over_rows[0], query, *over_rows[1:]], total, bias, by_dim

    def _of_pairs(self, circuit: QKCircuit, rows: Rows) -> tuple[list[Tensor], Tensor, Tensor, Tensor | None]:
        """Sums over pairs: contributions, queries, and key-centred contributions if any; and by group of texts, the
        contributions of all dimensions, those of b_K, and of each dimension what gaps are made of."""
        sums_to_one = self.weights == "mean" and self.average == "pair"
        sums = pair_sums(circuit, rows, centred=self.centred, sums_to_one=sums_to_one)
        total = sums[0].sum(-1)
        bias = _of_key_bias(circuit, sums[1])
        by_dim = None
        if self.has_gaps:
            by_dim = sums[2] if self.centred else sums[0]
            by_dim = by_dim.mean(1, keepdim=True) if self.weights == "mean" else by_dim
        return [values.sum(0) for values in sums], total, bias, by_dim

    @property
    def scores(self) -> Dense:
        """One row per layer, head, class (also `all`) and dimension. Classes without tokens have no rows."""
        heads, dims = range(self.model.cfg.n_heads), range(self.model.cfg.d_model)
        labels: dict[str, Sequence[Any]] = dict(zip(KEY, (self.layers, heads, self.names, dims), strict=True))
        shape = tuple(map(len, labels.values()))
        number, _ = number_types(math.prod(shape))
        mean = np.empty(shape, number)
        ln_bias = np.broadcast_to(number(0), shape)
        centred = np.empty(shape, number) if self.centred else np.broadcast_to(number(np.nan), shape)
        for place, circuit in enumerate(self._circuits):
            mean[place] = self._mean("contribution", circuit).cpu().numpy()
            if self.centred:
                centred[place] = self._mean("centred", circuit).cpu().numpy()
            if circuit.ln_bias is not None:
                ln_bias = ln_bias if ln_bias.flags.writeable else np.zeros(shape, number)
                ln_bias[place] = self._of_ln_bias(circuit, circuit.ln_bias).cpu().numpy()
        pairs = self._with_all_keys(self.of_layers("pairs")).long().cpu().numpy()
        columns: dict[str, Any] = {"mean": mean, "centred_mean": centred, "ln_bias_mean": ln_bias}
        columns["n_pairs"] = (SCORES["fewer"]["n_pairs"], pairs)
        return Dense.of(dict(labels, **columns), KEY)

    @property
    def totals(self) -> pd.DataFrame:
        """One row per layer, head and class: the mean score and its parts from the dimensions and from b_K, with 95 %
        intervals."""
        contributions, key_bias = [], []
        for circuit in self._circuits:
            contributions.append(self._mean("contribution", circuit).sum(-1))
            key_bias.append(_of_key_bias(circuit, self._mean("query", circuit)))
        columns = {"contributions": torch.stack(contributions), "key_bias": torch.stack(key_bias)}
        columns["score"] = columns["contributions"] + columns["key_bias"]
        half = torch.stack([self._half_of_totals(circuit) for circuit in self._circuits]).to(columns["score"].device)
        for name, reach in zip(("contributions", "key_bias", "score"), half.unbind(-1), strict=True):
            columns[f"{name}_low"] = columns[name] - reach
            columns[f"{name}_high"] = columns[name] + reach
        return self.by_head(columns)[TOTALS]

    def _half_of_totals(self, circuit: QKCircuit) -> Float[Tensor, "head classes totals"]:
        """Half the width of the intervals of a layer's totals."""
        groups = self.by_group(circuit.layer, "total")
        sums = np.stack([self._with_all_keys(torch.from_numpy(total)).numpy() for total in groups])
        parts, weight = sums[..., :2], sums[..., 2:]
        parts = np.concatenate([parts, parts.sum(-1, keepdims=True)], -1)
        intervals = self.jackknife(np.divide, parts, weight)
        return torch.from_numpy(intervals.half) / (circuit.scale if self.scaled else 1.0)

    def gap_half(self, rows: pd.DataFrame) -> pd.Series:
        """Compute half the width of the 95 % interval of gaps, averaged over heads.

        Args:
            rows: the layer, key_class and dim of each gap.
        """
        half = pd.Series(np.nan, rows.index)
        for circuit in self._circuits if self.has_gaps else ():
            part = rows[rows["layer"] == circuit.layer]
            classes = [self.classes.names.index(name) for name in part["key_class"]]
            other_classes = [self.classes.names.index("other")] * len(part)
            dims = part["dim"].to_list()
            sums = self.by_group(circuit.layer, "apart")
            weight = self.by_group(circuit.layer, "total")[..., 2]
            weight = weight[:, : sums.shape[1]]
            of_class = sums[:, :, classes, dims], weight[:, :, classes]
            of_other = sums[:, :, other_classes, dims], weight[:, :, other_classes]
            intervals = self.jackknife(lambda a, n, b, m: (a / n - b / m).mean(0), *of_class, *of_other)
            half[part.index] = intervals.half / (circuit.scale if self.scaled else 1.0)
        return half

    def half_beyond(self, layer: int, key_class: str, dims: list[int], compared_dims: list[int]) -> float:
        """Compute half the width of the 95 % interval of the share of a gap, averaged over heads, that some dimensions
        have, minus that of others."""
        if not self.has_gaps:
            return math.nan
        places = [self.classes.names.index(key_class), self.classes.names.index("other")]
        sums = self.by_group(layer, "apart")[:, :, places]
        weight = self.by_group(layer, "total")[:, : sums.shape[1], places, 2:]

        def beyond(sums: np.ndarray, weight: np.ndarray) -> np.ndarray:
            of_class, of_other = (sums / weight).mean(0)
            gap = of_class - of_other
            return np.asarray((gap[dims].sum() - gap[compared_dims].sum()) / gap.sum())

        return float(self.jackknife(beyond, sums, weight).half)

    @property
    def intervals(self) -> dict[str, Any]:
        intervals = super().intervals
        if not self.has_gaps:
            intervals["no_gaps"] = "sums by group of texts and dimension would take more than 256 MiB"
        return intervals

    @property
    def _circuits(self) -> Iterator[QKCircuit]:
        for layer in self.layers:
            yield qk_circuit(self.model, layer)

    def _mean(self, name: str, circuit: QKCircuit) -> Float[Tensor, "head classes d"]:
        """A state of one layer, averaged over pairs, for the classes that have tokens and for all keys."""
        sums = self._with_all_keys(self.state[f"{circuit.layer}.{name}"])
        weight = self._with_all_keys(self.state[f"{circuit.layer}.weight"])
        mean = sums / weight[..., None]
        return mean / circuit.scale if self.scaled else mean

    @property
    def names(self) -> list[str]:
        return [*super().names, "all"]

    def _with_all_keys(self, sums: Float[Tensor, "rows classes *rest"]) -> Float[Tensor, "rows present *rest"]:
        """The sums of the classes that have tokens, and of all keys."""
        all_keys = sums[:, -1:] if self.average == "sentence" else sums.sum(1, keepdim=True)
        return torch.cat([sums[:, self.present], all_keys], 1)

    def _of_ln_bias(
        self, circuit: QKCircuit, ln_bias: Float[Tensor, " d_model"]
    ) -> Float[Tensor, "head classes d_model"]:
        """The part of the mean contributions that comes from the bias of the norm."""
        W_K = circuit.W_K
        W_K = W_K.to(torch.promote_types(W_K.dtype, torch.float32))
        query = self._mean("query", circuit).to(W_K)
        towards = einsum(query, W_K, "head classes d_head, head d_model d_head -> head classes d_model")
        return towards * ln_bias.to(W_K)


def _weights(cfg: Any, n_layers: int, keys: int, weights: Weights) -> int | None:
    """How many heads have sums by group of texts and dimension: one for all if their weights are equal. None if these
    sums would take too much memory."""
    heads = 1 if weights == "mean" else cfg.n_heads
    return heads if 8 * MOST * n_layers * heads * keys * cfg.d_model <= MOST_BYTES else None


def _of_key_bias(
    circuit: QKCircuit, query: Float[Tensor, "*groups head classes d_head"]
) -> Float[Tensor, "*groups head classes"]:
    """The part of scores, or of a sum of scores, that comes from b_K."""
    return einsum(query, circuit.b_K.to(query), "... head classes d_head, head d_head -> ... head classes")
