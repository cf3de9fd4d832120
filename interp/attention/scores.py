"""Attention scores by dimension of the residual stream, without an array over queries, keys and dimensions.

Source: Maruta and Matsuzaki on BERT's outlier dimensions. The contribution of dimension j of the key at n to the
score of the query at m is `C_j = [W_K R_nᵀ R_m q_m]_j x_nj` (R the rotation of RoPE), and
`Σ_j C_j + q_m · R_{n−m} b_K` is the score times its scale √d_head. For any weights A over pairs

    Σ_mn A_mn C_j = Σ_n x_nj [W_K u_n]_j,   u_n = R_nᵀ Σ_m A_mn R_m q_m,

so sums over pairs cost one matrix product over the keys.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, get_args, overload

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.attention.keys import KeyClassBatch, KeyObserver, activations, is_edited
from interp.attention.options import Average, Weights
from interp.checks import check_choice, check_table
from interp.corpora import token_classes
from interp.corpora.batching import Text, check_ids
from interp.corpora.classes import KeyClasses, TokenClasses
from interp.dense import Dense, number_types
from interp.hooks import jointly
from interp.models.qk import QKCircuit, check_layers, qk_circuit
from interp.models.sites import Model, Recipe, check_model, hook_name

__all__ = ["GAPS", "SCORES", "ScoreContributions", "check_decomposition", "gaps", "score_contributions"]
__all__ += ["score_contributions_at"]

_LEAST_COMPARED = 1e-30
Patterns: TypeAlias = Iterable[tuple[slice, slice, Float[Tensor, "batch head query key"]]]
"""Attention of some queries to some keys at a time; see `QKCircuit.patterns`."""
KEY = ("layer", "head", "key_class", "dim")
SCORES: dict[str, Any] = {"dims": KEY, "fewer": {"n_pairs": ("layer", "key_class")}}
"""What the columns of scores depend on; see `interp.dense.Dense.of_table`."""
GAPS: dict[str, Any] = {"dims": KEY, "fewer": dict.fromkeys(("n_dims_90", "n_dims_90_abs"), KEY[:3])}
"""The same of gaps."""
_GAP_COLUMNS = {"gap": float, "share": float, "rank": int, "n_dims_90": int, "abs_share": float, "n_dims_90_abs": int}


class ScoreContributions(KeyObserver):
    """Sums over (query, key) pairs of each residual dimension's contribution to the score, by layer, head and class.

    After `observe`: `scores`, what `score_contributions` describes as an `interp.dense.Dense`, and the table `totals`.
    Beyond `interp.dense.MOST_ROWS` rows scores are float32.

    Args:
        classes: of the keys.
        layers: of TransformerLens; all of them.
        weights: `"mean"` counts each pair that the model's mask allows once, `"attention"` by its probability.
        scaled: divide by the model's score scale, so that contributions are nats.
        centred: also the contributions less their mean over the keys that the query sees.
        average: over all pairs of the corpus, or over sentences of their means.

    Raises ValueError where scores are no sum over residual dimensions, and for a layer that does not exist.
    """

    def __init__(
        self,
        model: Model,
        classes: TokenClasses,
        *,
        layers: Sequence[int] | None = None,
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
        shape = (model.cfg.n_heads, len(classes.names) + (average == "sentence"))
        of_dims = (*shape, model.cfg.d_model)
        self.add_to_layers(contribution=of_dims, query=(*shape, model.cfg.d_head), weight=shape, pairs=shape[1:])
        if centred:
            self.add_to_layers(centred=of_dims)

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
        """Add this batch's sums."""
        x = circuit.attn_input(x).to(keys.one_hot) * keys.real[..., None]
        q = circuit.rotate(q).to(x) * keys.real[..., None, None]
        one_hot, counts = keys.one_hot, circuit.span.up_to(keys.counts)
        n_seen = counts.sum(-1).clamp(min=1)
        if self.average == "sentence":  # the mean of all keys of a sentence is not made of those of its classes
            one_hot, counts = (torch.cat([of, of.sum(-1, keepdim=True)], -1) for of in (one_hot, counts))
        mass = counts[:, :, None]
        if patterns is not None:
            u, mass = _attended_queries(circuit, q, one_hot, patterns)
        mass = mass * keys.real[..., None, None]
        mass_of_row = mass.sum(1)  # [b, h or 1, c]
        of_sentence = torch.where(mass_of_row > 0, 1 / mass_of_row, 0.0)
        weight = of_sentence if self.average == "sentence" else torch.ones_like(mass_of_row)
        layer, shape = circuit.layer, (q.shape[2], counts.shape[2])
        self.add(f"{layer}.weight", (weight * mass_of_row).sum(0).expand(shape))
        self.add(f"{layer}.pairs", (counts * keys.real[..., None]).sum((0, 1)))
        weight = weight.to(q)
        if patterns is None and not circuit.span.causal:
            contribution, centred, query = _by_row(circuit, q, x, one_hot, weight[:, 0])
        else:
            if patterns is None:
                u = _queries_by_key(circuit, q)
            of_class = zip(one_hot.bool().unbind(-1), weight.unbind(-1), strict=True)
            parts = [_sum_over_keys(circuit, u, x, chosen, of_row) for chosen, of_row in of_class]
            contribution, query = (torch.stack(values, 1) for values in zip(*parts, strict=True))
            if self.centred:
                share = (weight[:, None] * mass / n_seen[:, :, None, None]).to(q)
                centred = contribution - self._key_means(circuit, keys, q, x, share, contribution)
        self.add(f"{layer}.contribution", contribution)
        self.add(f"{layer}.query", query)
        if self.centred:
            self.add(f"{layer}.centred", centred)

    def _key_means(
        self, circuit: QKCircuit, keys: KeyClassBatch, q: Tensor, x: Tensor, share: Tensor, contribution: Tensor
    ) -> Float[Tensor, "head classes d_model"]:
        """What centring takes off each class's sum: queries weighted by their `share` of it, over all keys they see.

        Shares of all classes make 1 for plain pairs, so that the last class then needs no product of its own.
        """
        means = torch.zeros_like(contribution)
        sums_to_one = self.weights == "mean" and self.average == "pair"
        for c in range(means.shape[1] - sums_to_one):
            if share[..., c].any():
                u = _queries_by_key(circuit, q * share[..., c, None])
                means[:, c] = _sum_over_keys(circuit, u, x, keys.real, torch.ones_like(share[:, 0, :, c]))[0]
        if sums_to_one:
            means[:, -1] = contribution.sum(1) - means.sum(1)
        return means

    @property
    def scores(self) -> Dense:
        """A row for each layer, head, class and dimension, with the class `all` too; classes without a token have
        none."""
        heads, dims = range(self.model.cfg.n_heads), range(self.model.cfg.d_model)
        labels: dict[str, Sequence[Any]] = dict(zip(KEY, (self.layers, heads, self.names, dims), strict=True))
        shape = tuple(len(of_dim) for of_dim in labels.values())
        number, _ = number_types(math.prod(shape))
        mean, ln_bias = np.empty(shape, number), np.broadcast_to(number(0), shape)
        centred = np.empty(shape, number) if self.centred else np.broadcast_to(number(np.nan), shape)
        for place, circuit in enumerate(self._circuits):
            mean[place] = self._mean("contribution", circuit).cpu()
            if self.centred:
                centred[place] = self._mean("centred", circuit).cpu()
            if circuit.ln_bias is not None:
                ln_bias = ln_bias if ln_bias.flags.writeable else np.zeros(shape, number)
                ln_bias[place] = self._of_ln_bias(circuit, circuit.ln_bias).cpu()
        pairs = self._with_all(self.of_layers("pairs")).long().cpu().numpy()
        columns = {"mean": mean, "centred_mean": centred, "ln_bias_mean": ln_bias}
        return Dense.of(labels | columns | {"n_pairs": (SCORES["fewer"]["n_pairs"], pairs)}, KEY)

    @property
    def totals(self) -> pd.DataFrame:
        """One row for each layer, head and class: the mean score, as what the dimensions and b_K make of it."""
        contributions, key_bias = [], []
        for circuit in self._circuits:
            query = self._mean("query", circuit)
            contributions.append(self._mean("contribution", circuit).sum(-1))
            key_bias.append(einsum(query, circuit.b_K.to(query), "head classes d_head, head d_head -> head classes"))
        columns = {"contributions": torch.stack(contributions), "key_bias": torch.stack(key_bias)}
        return self.by_head(columns | {"score": columns["contributions"] + columns["key_bias"]})

    @property
    def _circuits(self) -> Iterator[QKCircuit]:
        return (qk_circuit(self.model, layer) for layer in self.layers)

    def _mean(self, name: str, circuit: QKCircuit) -> Float[Tensor, "head classes d"]:
        """A state of one layer, averaged over pairs: of the classes that have a token, and of all keys."""
        sums, weight = (self._with_all(self.state[f"{circuit.layer}.{one}"]) for one in (name, "weight"))
        mean = sums / weight[..., None]
        return mean / circuit.scale if self.scaled else mean

    @property
    def names(self) -> list[str]:
        return [*super().names, "all"]

    def _with_all(self, sums: Float[Tensor, "rows classes *rest"]) -> Float[Tensor, "rows present *rest"]:
        """Those of the classes that have a token, and of all keys."""
        every = sums[:, -1:] if self.average == "sentence" else sums.sum(1, keepdim=True)
        return torch.cat([sums[:, self.present], every], 1)

    def _of_ln_bias(
        self, circuit: QKCircuit, ln_bias: Float[Tensor, " d_model"]
    ) -> Float[Tensor, "head classes d_model"]:
        """The part of the mean contributions that the bias of the norm makes."""
        query = self._mean("query", circuit)
        W_K = circuit.W_K.to(query)
        return einsum(query, W_K, "head classes d_head, head d_model d_head -> head classes d_model") * ln_bias.to(
            query
        )


def _by_row(
    circuit: QKCircuit,
    q: Float[Tensor, "batch pos head d_head"],
    x: Float[Tensor, "batch pos d_model"],
    one_hot: Float[Tensor, "batch pos classes"],
    weight: Float[Tensor, "batch classes"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over all pairs of rows in which every query sees every key: contributions, key-centred ones, queries.

    `Σ_mn C_j = [W_K Σ_m q_m]_j Σ_n x_nj`: two vectors a row.
    """
    q = q.sum(1)
    directions = einsum(q, circuit.W_K.mT.to(q.dtype), "batch head d_head, head d_head d_model -> batch head d_model")
    sums, counts = one_hot.mT @ x, one_hot.sum(1)
    centred = sums - (counts / counts.sum(1, keepdim=True))[..., None] * sums.sum(1, keepdim=True)

    def over_rows(sums: Tensor) -> Tensor:
        of_class = (sums * weight[..., None]).unbind(1)
        return torch.stack([(directions * of_row[:, None]).sum(0) for of_row in of_class], 1)

    queries = einsum(q, weight * counts, "batch head d_head, batch classes -> head classes d_head")
    return over_rows(sums), over_rows(centred), queries


def _queries_by_key(circuit: QKCircuit, q: Tensor) -> Float[Tensor, "batch key head d_head"]:
    """`u_n = R_nᵀ Σ_m R_m q_m` over the queries that see key n; one for all keys of a row where all see all alike."""
    if not circuit.span.causal:
        return q.sum(1, keepdim=True)
    return circuit.rotate_back(circuit.span.up_to(q.flip(1)).flip(1))


def _attended_queries(
    circuit: QKCircuit, q: Tensor, one_hot: Float[Tensor, "batch key classes"], patterns: Patterns
) -> tuple[Float[Tensor, "batch key head d_head"], Float[Tensor, "batch query head classes"]]:
    """`u_n = R_nᵀ Σ_m A_mn R_m q_m`, A the attention; and what of a query's attention goes to each class."""
    u, mass = torch.zeros_like(q), q.new_zeros(*q.shape[:3], one_hot.shape[2])
    for queries, keys, pattern in patterns:
        u[:, keys] += einsum(
            pattern, q[:, queries], "batch head query key, batch query head d_head -> batch key head d_head"
        )
        mass[:, queries] = einsum(
            pattern, one_hot[:, keys], "batch head query key, batch key classes -> batch query head classes"
        )
    return circuit.rotate_back(u), mass


def _sum_over_keys(
    circuit: QKCircuit,
    u: Float[Tensor, "batch key head d_head"],
    x: Float[Tensor, "batch pos d_model"],
    chosen: Bool[Tensor, "batch pos"],
    weight: Float[Tensor, "batch heads"],
) -> tuple[Float[Tensor, "head d_model"], Float[Tensor, "head d_head"]]:
    """`Σ_n w_n x_nj [W_K u_n]_j` and `Σ_n w_n u_n` over the chosen keys, w the weight of the key's row and head."""
    if u.shape[1] == 1:
        u = u[:, 0] * weight[..., None]
        total = einsum(u, chosen.sum(1).to(u.dtype), "batch head d_head, batch -> head d_head")
        x = einsum(x, chosen.to(x.dtype), "batch key d_model, batch key -> batch d_model")
    else:
        u = u[chosen] * weight[chosen.nonzero()[:, 0], :, None]  # a head's weight, or one for all
        total = u.sum(0)
        x = x[chosen]
    products = (u.flatten(1).T @ x).unflatten(0, total.shape)
    return (products * circuit.W_K.mT.to(u.dtype)).sum(1), total


def score_contributions(
    model: Model,
    text_or_batches: Text,
    *,
    layers: Sequence[int] | None = None,
    key_classes: KeyClasses = None,
    weights: Weights = "mean",
    scaled: bool = False,
    centred: bool = True,
    average: Average = "pair",
    batch_size: int | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Mean contribution of each residual dimension of the key to the attention score, by layer, head and key class.

    `C_j = [(x_m W_Q + b_Q) W_Kᵀ]_j x_nj` for a query at m and a key at n (Maruta and Matsuzaki, eq. 6), x the
    attention input; with RoPE `C_j = [W_K R_nᵀ R_m q_m]_j x_nj`. On the numerator of the score unless `scaled`, which
    divides by √d_head (TransformerLens' `attn_scale`) and gives nats. Pairs are those that the model's mask allows;
    padding never counts.

    Args:
        text_or_batches: anything `interp.corpora.batches` takes, or its batches.
        layers: TransformerLens' block numbers; all.
        key_classes: names and token ids, or `interp.corpora.classes.TokenClasses`; see `interp.corpora.token_classes`.
        weights: `"mean"` over pairs, or weighted by `"attention"`: `Σ α C_j / Σ α`.
        centred: also `C_j` less its mean over all keys that the same query sees. Only differences over keys change
            the attention.
        average: over all `"pair"`s of the corpus, or the mean of `"sentence"` means.

    Returns the table `scores` (layer, head, key_class, dim, mean, centred_mean, ln_bias_mean, n_pairs).
    `ln_bias_mean` is the part of `mean` that comes from the bias of the norm before x: without RoPE it is the same
    for all keys, with RoPE it is not. The class `all` is of all keys (the paper's figure 4); a class without a token in
    the text has no row. The table takes 72 bytes a row:
    of a model with billions of parameters, take `scores` of a `ScoreContributions`, or of a study.

    Raises ValueError where a score is no sum over residual dimensions (see `interp.models.qk.qk_circuit`), for a layer
    that does not exist, padding on the left, or a class function that returns something else than a class for each
    token.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> classes = {"first": [7, 8]}
        >>> scores = score_contributions(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> len(scores) == 2 * 4 * 3 * 16  # layers, heads, classes and all keys, dimensions
        True
    """
    classes = token_classes(model, key_classes)
    observer = ScoreContributions(
        model, classes, layers=layers, weights=weights, scaled=scaled, centred=centred, average=average
    )
    observer.read(text_or_batches, batch_size=batch_size, progress=progress, checkpoint=checkpoint)
    return observer.scores.table


@overload
def gaps(scores: pd.DataFrame) -> pd.DataFrame: ...
@overload
def gaps(scores: Dense) -> Dense: ...
def gaps(scores: pd.DataFrame | Dense) -> pd.DataFrame | Dense:
    """How much each dimension sets a key class apart: `ΔC_j = C_j(class) − C_j(other)`.

    From key-centred means where `scores` has them, else from plain ones: in causal models the plain means of two
    classes are over different queries. `share` is `ΔC_j / Σ_j ΔC_j`, `rank` 1 for the largest share, `n_dims_90`
    the least number of dimensions, largest share first, whose shares make 90 % of the gap. Where dimensions pull
    both ways the sum is small and shares exceed 1: `abs_share` is `|ΔC_j| / Σ_j |ΔC_j|`, and `n_dims_90_abs` the
    least number of dimensions that make 90 % of that. A head that makes no difference has no shares and 0 dimensions.

    Args:
        scores: the table of `score_contributions`, or `scores` of a study or of a `ScoreContributions`.

    Returns the table (layer, head, key_class, dim, gap, share, rank, n_dims_90, abs_share, n_dims_90_abs), of an
    `interp.dense.Dense` another, without the class `all`; empty where there is no class `other`.

    Raises ValueError for a table of two runs, with values missing, or without `other` for some heads or dimensions.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> classes = {"first": [7, 8]}
        >>> scores = score_contributions(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> table = gaps(scores)
        >>> bool(table.groupby(["layer", "head"])["share"].sum().round(6).eq(1).all())
        True
    """
    if isinstance(scores, Dense):
        return _dense_gaps(scores)
    row_key = [*KEY]
    check_table(scores, "scores", [*row_key, "mean"], row_key)
    column = "centred_mean" if "centred_mean" in scores and scores["centred_mean"].notna().any() else "mean"
    scores = scores[scores["key_class"] != "all"]
    is_other, beside = scores["key_class"] == "other", ["layer", "head", "dim"]
    other = scores[is_other].set_index(beside)[column].rename("other")
    table = scores.loc[~is_other & scores["layer"].isin(scores.loc[is_other, "layer"])].join(other, on=beside)
    table["gap"] = table[column] - table["other"]
    if (lacking := table["gap"].isna()).any():
        raise _lacking(column, table.loc[lacking, row_key].iloc[0].to_dict())
    gap = table["gap"].to_numpy(float)
    found: dict[str, np.ndarray] = {name: np.empty(len(gap), kind) for name, kind in _GAP_COLUMNS.items()}
    for places in table.groupby(row_key[:3], sort=False).indices.values():
        for name, values in _shares(gap[places]).items():
            found[name][places] = values
    return table[row_key].assign(**found).reset_index(drop=True)


def _dense_gaps(scores: Dense) -> Dense:
    """`gaps` of labelled arrays, one layer at a time."""
    arrays = scores.arrays
    if scores.dims != KEY or "mean" not in arrays:
        expected = f"a mean by {', '.join(KEY)}"
        raise ValueError(f"found scores {scores!r}, expected {expected}; give those of a study, as they were made")
    column, classes = "mean", arrays.indexes["key_class"]
    if "centred_mean" in arrays and any(part.arrays["centred_mean"].notnull().any() for part in scores.parts()):
        column = "centred_mean"
    special = classes[~classes.isin(["other", "all"])] if "other" in classes else classes[:0]
    labels = {dim: arrays.indexes[dim] for dim in KEY} | {"key_class": special}
    shape = tuple(len(of_dim) for of_dim in labels.values())
    number, whole = number_types(math.prod(shape))
    kinds = {name: number if kind is float else whole for name, kind in _GAP_COLUMNS.items()}
    found = {name: np.empty(shape[:3] if name in GAPS["fewer"] else shape, kind) for name, kind in kinds.items()}
    for place, layer in enumerate(labels["layer"] if len(special) else []):
        means = arrays[column][place].astype(np.float64)
        gap = (means.sel(key_class=special) - means.sel(key_class="other")).to_numpy()
        if len(lacking := np.argwhere(np.isnan(gap))):
            row = [labels[dim][number] for dim, number in zip(KEY[1:], lacking[0], strict=True)]
            raise _lacking(column, dict(zip(KEY, [layer, *row], strict=True)))
        for name, values in _shares(gap).items():
            found[name][place] = values
    columns = {name: (GAPS["fewer"].get(name, KEY), values) for name, values in found.items()}
    return Dense.of(labels | columns, KEY)


def _lacking(column: str, row: Mapping[Any, Any]) -> ValueError:
    return ValueError(f"scores lacks {column} for {row} or for 'other' beside it; give the table of one run, whole")


def _shares(gap: Float[np.ndarray, "*of dim"]) -> dict[str, np.ndarray]:
    """The columns of `gaps`, dimensions on the last axis; of the counts there is one for all of them."""
    rank = np.empty(gap.shape, int)
    share, order, n_dims = _of_whole(gap)
    np.put_along_axis(rank, order, np.arange(1, gap.shape[-1] + 1), -1)
    abs_share, _, n_dims_abs = _of_whole(np.abs(gap))
    return dict(zip(_GAP_COLUMNS, (gap, share, rank, n_dims, abs_share, n_dims_abs), strict=True))


def _of_whole(
    parts: Float[np.ndarray, "*of dim"],
) -> tuple[Float[np.ndarray, "*of dim"], Int[np.ndarray, "*of dim"], Int[np.ndarray, "*of"]]:
    """Shares of the sum, NaN where that is 0; their order, the largest first; how many of these make 90 %."""
    whole = parts.sum(-1, keepdims=True)
    shares = parts / np.where(whole == 0, np.nan, whole)
    order = np.argsort(-shares, axis=-1, kind="stable")
    reached = np.take_along_axis(shares, order, -1).cumsum(-1) >= 0.9 - 1e-12
    return shares, order, np.where(whole[..., 0] == 0, 0, reached.argmax(-1) + 1)


def score_contributions_at(
    model: Model, tokens: Int[Tensor, " pos"], layer: int, head: int, query: int, key: int, *, scaled: bool = False
) -> Float[Tensor, " d_model"]:
    """The contribution of every residual dimension to one attention score: `C_j` of `score_contributions`.

    Args:
        tokens: ids of one sequence.
        query, key: positions.

    Raises ValueError for a layer, head or position that does not exist, for a key that the query cannot see, and for
    tokens that are no sequence of the model's.
    """
    tokens = _one_sequence(model, tokens)
    n_heads, length = model.cfg.n_heads, len(tokens)
    if not (0 <= head < n_heads and 0 <= query < length and 0 <= key < length):
        expected = f"expected a head in 0 … {n_heads - 1} and positions in 0 … {length - 1}"
        raise ValueError(f"{expected}, found head {head}, query {query}, key {key}")
    ((circuit, x, q, _),) = activations(model, tokens, [layer])
    if not circuit.span.mask(length)[query, key]:
        raise ValueError(f"the query at {query} does not see the key at {key} in layer {layer}")
    contributions = _contributions(circuit, x, q[query])[head, key]
    return contributions / circuit.scale if scaled else contributions


def check_decomposition(
    model: Model, tokens: Int[Tensor, " pos"], *, layers: Sequence[int] | None = None
) -> pd.DataFrame:
    """Compare `Σ_j C_j + q_m · R b_K` with the model's own attention, for every pair the model's mask allows.

    A self-test for any model: the log-softmax over keys of what the dimensions and b_K make of the scores, against the
    logarithm of the attention probabilities. In float64 the error is rounding (below 1e-10). Probabilities below 1e-30
    are left out, since float32 has few digits of them.

    Returns a table (layer, max_error, max_score), in nats; `max_score` is the largest score less the mean of its query.

    Raises ValueError for a layer that does not exist, and for tokens that are no sequence of the model's.
    """
    chosen = check_layers(model, layers)
    tokens = _one_sequence(model, tokens)
    rows = []
    for circuit, x, q, pattern in activations(model, tokens, chosen):
        constant = circuit.rotate(circuit.b_K.expand(1, len(tokens), -1, -1))[0]
        sums = torch.stack([_contributions(circuit, x, one).sum(-1) for one in q], 1)
        scores = sums + einsum(constant, q, "key head d_head, query head d_head -> head query key")
        visible = circuit.span.mask(len(tokens)).to(x.device)
        scores = (scores / circuit.scale).masked_fill(~visible, -torch.inf)
        log_alpha = (pattern * visible / (pattern * visible).sum(-1, keepdim=True)).log()
        compared = visible & (pattern > _LEAST_COMPARED)
        error = (scores.log_softmax(-1) - log_alpha)[compared].abs().max()
        centred = scores - torch.nanmean(scores.masked_fill(~visible, torch.nan), -1, keepdim=True)
        rows.append((circuit.layer, error.item(), centred[compared].abs().max().item()))
    return pd.DataFrame(rows, columns=["layer", "max_error", "max_score"])


def _one_sequence(model: Model, tokens: Tensor) -> Int[Tensor, " pos"]:
    """The ids of one sequence. Raises ValueError for another shape, no whole numbers, or ids that are no token's."""
    check_model(model)
    n_ctx = model.cfg.n_ctx
    tokens = torch.as_tensor(tokens)
    if tokens.ndim != 1 or tokens.dtype not in (torch.int64, torch.int32) or not 1 <= len(tokens) <= n_ctx:
        expected = f"the ids of one sequence, whole numbers [1 … {n_ctx}]"
        raise ValueError(f"tokens must be {expected}, found {tokens.dtype} {tuple(tokens.shape)}")
    check_ids(model, tokens)
    return tokens


def _contributions(
    circuit: QKCircuit, x: Float[Tensor, "key d_model"], q: Float[Tensor, "head d_head"]
) -> Float[Tensor, "head key d_model"]:
    """`C_j` of one query with all keys."""
    turned = circuit.rotate_back(q.expand(1, len(x), -1, -1))[0]
    return einsum(turned, circuit.W_K, "key head d_head, head d_model d_head -> head key d_model") * x
