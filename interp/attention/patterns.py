"""Where attention goes: in one text, by class of the key, and what becomes of it without a dimension."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.attention.claims import CONTROLS, MOST_APART, apart_in_size
from interp.attention.keys import KeyClassBatch, KeyObserver, activations, attention_hooks, is_edited, table_of
from interp.attention.profile import DimensionProfile
from interp.checks import check_choice, check_mode, check_seed, check_table
from interp.corpora import Batches, token_classes
from interp.corpora.batching import Batch, Text, as_batches
from interp.corpora.classes import KeyClasses, TokenClasses
from interp.corpora.sentences import sentence_rows
from interp.declare import Mode
from interp.dense import Dense
from interp.hooks import ablate_dims, jointly
from interp.intervals import about, jackknife
from interp.models.qk import QKCircuit, check_dims, check_layers, qk_circuit, span
from interp.models.running import running
from interp.models.sites import Model, Recipe, hook_name, view
from interp.models.spelling import token_names
from interp.models.verify import verify_values
from interp.run.groups import MOST
from interp.run.observers import fingerprint, observe
from interp.run.passes import Passes, Reading, runs

__all__ = ["AttentionByClass", "AttentionInText", "KeyAblation", "Where", "ablate", "ablation_effect"]
__all__ += ["attention_by_class", "attention_in_text", "planned"]

Where = Literal["keys", "residual"]
_OUTLIERS = 3  # outlier dimensions that are ablated, those of the most states first
_CONTROLS = 5  # random dimensions beside them, and as many of those that match nothing
_COLUMNS = ["layer", "dim", "set", "magnitude", "removed", "where", "mode", "key_class", "attention_before"]
_COLUMNS += ["attention_after"]
_COLUMNS += ["head", "head_before", "head_after"]


@dataclass(frozen=True, eq=False)
class AttentionInText:
    """What `attention_in_text` found.

    `pattern` holds attention probabilities. `contribution` is what dimension `dim` of the key adds to each score, in
    nats (divided by √d_head as the model does), less its mean over the keys that the query sees; 0 at keys that it does
    not see. `causal`: a query sees no key after itself.
    """

    tokens: list[str]
    layer: int
    dim: int
    pattern: Float[np.ndarray, "head query key"]
    contribution: Float[np.ndarray, "head query key"]
    causal: bool


def attention_in_text(model: Model, text: str, layer: int, dim: int, *, bos: bool | None = None) -> AttentionInText:
    """The attention patterns of a layer on a text, beside what one dimension of the key contributes to their scores.

    Args:
        bos: whether the beginning-of-sequence token stands before the text; by default where the model was trained so
            (`cfg.default_prepend_bos`). An encoder reads `[CLS] … [SEP]`.

    Raises ValueError for a layer or dimension that does not exist, where scores are no sum over dimensions, for a model
    without tokenizer or with weights that are not finite, and for a text without tokens or longer than the context.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> attention_in_text(toy_decoder(), "w1 w2 w3", layer=1, dim=5, bos=True).pattern.shape
        (4, 4, 4)
    """
    check_dims(model, [dim])
    (ids,) = sentence_rows(model, [text], bos=bos)
    ((circuit, x, q, seen),) = activations(model, torch.tensor(ids), [layer])
    direction = circuit.key_of(dim, len(ids))
    scores = einsum(q, direction, "query head d_head, key head d_head -> head query key") * x[:, dim] / circuit.scale
    visible = circuit.span.mask(len(ids)).to(scores.device)
    centred = (scores - (scores * visible).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)) * visible
    pattern, contribution = (values.float().cpu().numpy() for values in (seen, centred))
    return AttentionInText(token_names(model, ids), layer, dim, pattern, contribution, circuit.span.causal)


class AttentionByClass(KeyObserver):
    """Sums of attention probabilities, and of value-weighted ones, by layer, head and class of the key.

    After `observe`: `table`, which `attention_by_class` describes, and `by_layer`, its mean over heads.

    Raises ValueError for a layer that does not exist.
    """

    def __init__(self, model: Model, classes: TokenClasses, *, layers: Sequence[int] | None = None) -> None:
        chosen = check_layers(model, layers)
        super().__init__(model, classes, chosen, layers=chosen)
        self.moves_values = _moves_values(model)
        shape = (model.cfg.n_heads, len(classes.names))
        self.add_to_layers(norm=shape, uniform=shape[1:], pairs=shape[1:])
        self.add_state("queries", (MOST,), "groups")
        for layer in chosen:
            self.add_state(f"{layer}.attention", (MOST, *shape), "groups")

    def hooks(self, batch: Batch) -> Recipe:
        self.add_rows("queries", batch.mask.sum(1), batch)
        return super().hooks(batch)

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        return attention_hooks(self.model, layer, keys.batch, partial(self._read, layer, keys), "v")

    def _read(self, layer: int, keys: KeyClassBatch, attention: Tensor, v: Tensor) -> None:
        W_O = view(self.model).W_O(layer).to(keys.one_hot)
        gram = einsum(W_O, W_O, "head d_head d_model, head other d_model -> head d_head other")
        v = v.to(W_O).repeat_interleave(W_O.shape[0] // v.shape[2], 2)
        squares = einsum(v, gram, v, "batch key head d_head, head d_head other, batch key head other -> batch head key")
        size = squares.clamp(min=0).sqrt()
        attention = attention.to(W_O)
        self.add_rows(f"{layer}.attention", keys.by_row(attention), keys.batch)
        self.add(f"{layer}.norm", keys.by_row(attention * size).sum(0))
        counts = span(self.model, layer).up_to(keys.counts) * keys.real[..., None]
        self.add(f"{layer}.pairs", counts.sum((0, 1)))
        self.add(f"{layer}.uniform", (counts / counts.sum(-1, keepdim=True).clamp(min=1)).sum((0, 1)))

    def by_class(self, layer: int) -> Float[np.ndarray, "head classes"]:
        """Attention summed over the keys of a class, averaged over queries."""
        return (self.state[f"{layer}.attention"].sum(0) / self.tokens.sum()).cpu().numpy()

    @property
    def table(self) -> pd.DataFrame:
        """One row for each layer, head and class; classes without a token have none."""
        return self.by_head(self._sums(lambda attention: attention) | self._others)

    @property
    def by_layer(self) -> pd.DataFrame:
        """Means over heads: one row for each layer and class that is present."""
        others = {name: self._others[name].mean(1) for name in ("mean", "norm_weighted", "uniform")}
        keys = {"layer": self.layers, "key_class": self.names}
        return table_of(keys, self._sums(lambda attention: attention.mean(-2)) | others)

    @property
    def intervals(self) -> dict[str, Any]:
        """What there is to say of these intervals (`interp.intervals.about`)."""
        return about(len(self._queries), self.stretches_per_group)

    @property
    def _queries(self) -> Float[Tensor, " groups"]:
        return self.state["queries"][self.state["queries"] > 0]

    @property
    def _others(self) -> dict[str, Tensor]:
        """What has no interval."""
        present, queries = self.present, self.tokens.sum()
        attention = self.of_layers("attention").sum(1)[..., present]
        norm = self.of_layers("norm")[..., present]
        uniform, pairs = (self.of_layers(name)[:, None, present] for name in ("uniform", "pairs"))
        weighted = norm / queries if self.moves_values else torch.full_like(norm, torch.nan)
        columns = {"mean": attention / pairs, "norm_weighted": weighted}
        return columns | {"uniform": uniform / queries, "n_queries": queries.long()}

    def _sums(self, of: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Something of the attention by layer, head and class, averaged over queries, with its interval."""
        queries = self._queries
        sums = self.of_layers("attention").movedim(1, 0)[self.state["queries"] > 0][..., self.present]
        others = (sums.sum(0) - sums) / (queries.sum() - queries)[:, None, None, None]
        whole, without = (of(one).cpu().numpy() for one in (sums.sum(0) / queries.sum(), others))
        found = jackknife(whole, without, queries.cpu().numpy(), self.stretches_per_group)
        ends = {"sum": found.value, "sum_low": found.low.clip(0), "sum_high": found.high.clip(max=1)}
        return {name: torch.from_numpy(values) for name, values in ends.items()}


def _moves_values(model: Model) -> bool:
    """Whether a head's output is its values weighted by attention, with no norm or gate between."""
    try:
        verify_values(model)
    except ValueError:
        return False
    return True


def attention_by_class(
    model: Model,
    text_or_batches: Text,
    *,
    layers: Sequence[int] | None = None,
    key_classes: KeyClasses = None,
    batch_size: int | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """How much attention goes to each class of key, per layer and head.

    Returns the table `attention` (layer, head, key_class, sum, sum_low, sum_high, mean, norm_weighted, uniform,
    n_queries): `sum` is the attention to a class summed over its keys, averaged over all queries (Clark et al. 2019),
    so that it adds up to 1 over the classes, `sum_low` and `sum_high` its 95 % interval by leaving out groups of texts
    (`interp.intervals.jackknife`), NaN of fewer than 20 texts; `mean` the average over (query, key) pairs;
    `norm_weighted` the sum of `‖α v W_O‖` averaged over queries (Kobayashi et al. 2020), NaN in a bridge with a norm or
    a gate between the values and W_O; `uniform` what `sum` would be if attention were uniform over the keys a query
    sees.

    Raises ValueError for a layer that does not exist, padding on the left and a class function that returns something
    else than a class for each token.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> table = attention_by_class(toy_decoder(), ["w0 w1 w2"] * 20, key_classes={"first": [7, 8]}, progress=False)
        >>> table["key_class"].unique().tolist()
        ['first', 'other']
    """
    observer = AttentionByClass(model, token_classes(model, key_classes), layers=layers)
    observer.read(text_or_batches, batch_size=batch_size, progress=progress, checkpoint=checkpoint)
    return observer.table


class KeyAblation(KeyObserver):
    """Attention by class when one dimension of one layer's keys is replaced by a constant, for many at once.

    Exact, in one pass: a key dimension of a layer changes the scores of that layer alone, by
    `q_m · R_n W_K[j] (x_nj − m_j)`, so its softmax is computed again and nothing else.

    Hooks of others on the scores or the pattern are refused with RuntimeError, since they would be missed.

    After `observe`: `before` `[head, classes]` and `after` `[dims, head, classes]` of each layer, attention summed
    over the keys of a class and averaged over queries.

    Args:
        fills: by layer and dimension, the constant m_j.
    """

    def __init__(self, model: Model, classes: TokenClasses, fills: Mapping[int, Mapping[int, float]]) -> None:
        dims = {str(layer): list(filled) for layer, filled in fills.items()}
        means = fingerprint(torch.tensor([fill for filled in fills.values() for fill in filled.values()]))
        super().__init__(model, classes, fills, dims=dims, means=means)
        self.fills = fills
        for layer, filled in fills.items():
            self.add_state(f"{layer}.attention", (1 + len(filled), model.cfg.n_heads, len(classes.names)))

    def hooks(self, batch: Batch) -> Recipe:
        if is_edited(self.model, batch):
            raise RuntimeError("scores are computed from queries and keys, and would miss the hooks past these")
        return super().hooks(batch)

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        circuit = qk_circuit(self.model, layer)
        names = circuit.input_name, circuit.query_name, hook_name(self.model, "k", layer)
        return jointly(names, partial(self._read, circuit, keys))

    def _read(self, circuit: QKCircuit, keys: KeyClassBatch, x: Tensor, q: Tensor, k: Tensor) -> None:
        x = circuit.attn_input(x).to(keys.one_hot)
        turned, fills = circuit.rotate(q).to(x), self.fills[circuit.layer]
        total = x.new_zeros(1 + len(fills), q.shape[2], keys.one_hot.shape[2])
        for queries, seen, scores in circuit.scores(q, k, keys.real):
            asking = keys.real[:, queries].to(x)
            changed = chain([scores], self._without(circuit, fills, turned[:, queries], x[:, seen], scores))
            for number, one in enumerate(changed):
                got = einsum(one.softmax(-1), asking, "batch head query key, batch query -> batch head key")
                of_class = keys.one_hot[:, seen]
                total[number] += einsum(got, of_class, "batch head key, batch key classes -> head classes")
        self.add(f"{circuit.layer}.attention", total)

    def _without(
        self, circuit: QKCircuit, fills: Mapping[int, float], q: Tensor, x: Tensor, scores: Tensor
    ) -> Iterator[Tensor]:
        """The scores with each dimension of the keys at its constant."""
        directions = x.shape[1] if circuit.rotates else 1  # without RoPE all keys have the same one
        for dim, fill in fills.items():
            direction = circuit.key_of(dim, directions).to(x)
            along = einsum(q, direction, "batch query head d_head, key head d_head -> batch head query key")
            yield torch.addcmul(scores, along, x[:, None, None, :, dim] - fill, value=-1 / circuit.scale)

    def before(self, layer: int) -> Float[np.ndarray, "head classes"]:
        return self.per_query(f"{layer}.attention")[0]

    def after(self, layer: int) -> Float[np.ndarray, "dims head classes"]:
        return self.per_query(f"{layer}.attention")[1:]


@runs
def ablation_effect(
    model: Model,
    text_or_batches: Text,
    outliers: pd.DataFrame,
    *,
    drivers: pd.DataFrame | Dense | None = None,
    layers: Sequence[int] | None = None,
    key_classes: KeyClasses = None,
    where: Where = "keys",
    mode: Mode = "mean",
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
) -> Passes[pd.DataFrame]:
    """Does attention to a class fall when an outlier dimension is removed, and only then?

    From each layer the first three dimensions of `outliers` are removed one at a time (`set` outlier), which are those
    that are outliers in most states; then for each class the dimension with the largest gap there (`driver`), control
    dimensions as large as the outliers (`matched`, the same in all layers) and five random ones (`random`). A control
    is as large where the root mean square of what is taken away, `removed`, is within a factor of 1.5 of the
    outlier's: the 39 nearest, which outliers share where they can; where there are fewer, nothing matches, and the five
    nearest are removed for the figure. `interp.attention.claims.largest_effects` makes one test for each outlier.

    Args:
        outliers: the table of `find_outliers`.
        drivers: what `interp.attention.gaps` returns; by its mean over heads. None ablates outliers alone.
        layers: TransformerLens' block numbers; all.
        where: `"keys"` of the layer alone (see `interp.hooks.ablate_dims`): two passes in all. `"residual"`: the
            residual stream that enters the layer, and the layer's attention then: a pass for each dimension and layer,
            and so five matched dimensions for each outlier and no test.
        mode: set the dimension to zero, or to its mean over tokens.
        seed: of the random dimensions.

    Returns the table `ablation` (layer, dim, set, magnitude, removed, where, mode, key_class, attention_before,
    attention_after, head, head_before, head_after): attention summed over the keys of a class, averaged over queries
    and heads; and the same of the head in which it changes most. `magnitude` is the root mean square of the dimension,
    `removed` that of its difference from what it is set to; in keys without RoPE its SD, since a constant in all keys
    moves all scores of a query alike.

    Raises ValueError for an unknown where or mode, a layer that does not exist, and tables with values missing, of two
    runs, or with a state, layer or dimension that the model does not have.

    Examples:
        >>> from interp.attention.profile import dimension_profile, find_outliers
        >>> from interp.testing import toy_decoder
        >>> model, text, classes = toy_decoder(), ["w0 w1 w2"] * 20, {"first": [7, 8]}
        >>> outliers = find_outliers(dimension_profile(model, text, key_classes=classes, progress=False), k=1.5)
        >>> table = ablation_effect(model, text, outliers, key_classes=classes, progress=False)
        >>> sorted(table["set"].unique())  # each outlier beside its controls
        ['matched', 'outlier', 'random']
    """
    chosen = check_layers(model, layers)
    check_choice("where", where, get_args(Where))
    check_mode(mode)
    seed = check_seed(seed)
    _check_given(model, outliers, "outliers", ["state", "dim"], "z")
    of_gap = ["layer", "head", "key_class", "dim"]
    if isinstance(drivers, Dense):
        drivers = drivers.mean("head", ["gap"])
        of_gap.remove("head")
    if drivers is not None:
        _check_given(model, drivers, "drivers", of_gap, "gap")
    classes = token_classes(model, key_classes)
    prepared = as_batches(model, text_or_batches, batch_size=batch_size)
    read = DimensionProfile(model, classes, of="attn_input" if where == "keys" else "residual")
    yield [Reading("profile", prepared, [read])]
    plan = planned(model, read.table, outliers, drivers, chosen, mode, seed, where)
    return (yield from ablate(model, prepared, classes, plan, where, progress))


def _check_given(model: Model, table: pd.DataFrame, what: str, key: list[str], value: str) -> None:
    """Raise ValueError for a table with values missing, of two runs, or with a number that this model does not have."""
    check_table(table, what, [*key, value], key)
    counts = {"state": model.cfg.n_layers + 1, "layer": model.cfg.n_layers, "dim": model.cfg.d_model}
    for column in [name for name in key if name in counts]:
        outside = table.loc[~table[column].isin(range(counts[column])), column]
        if len(outside):
            known = f"this model has 0 … {counts[column] - 1}; give the table of this model"
            raise ValueError(f"{what} has {column} {outside.iloc[0]}, {known}")


def planned(
    model: Model,
    profile: pd.DataFrame,
    outliers: pd.DataFrame,
    gaps: pd.DataFrame | None,
    layers: list[int],
    mode: Mode,
    seed: int,
    where: Where = "keys",
) -> pd.DataFrame:
    """What `ablate` removes, by the tables of `ablation_effect`: (layer, dim, set, magnitude, removed, mode, fill)."""
    every = profile[profile["key_class"] == "all"].rename(columns={"state": "layer"}).set_index(["layer", "dim"])
    every["magnitude"] = (every["mean"] ** 2 + every["sd"] ** 2) ** 0.5
    every["fill"] = every["mean"] if mode == "mean" else 0.0
    varies = mode == "mean" or (where == "keys" and not qk_circuit(model, 0).rotates)
    every["removed"] = every["sd"] if varies else every["magnitude"]
    rng = np.random.default_rng(seed)
    outlying = outliers["dim"].drop_duplicates().head(_OUTLIERS).tolist()
    size = every["removed"].unstack("layer")[layers]
    matched = _matched(size, outlying, outliers["dim"], CONTROLS if where == "keys" else _CONTROLS)
    rows = []
    for layer in layers:
        driving = [] if gaps is None else _drivers(gaps[gaps["layer"] == layer])
        tested = (
            dict.fromkeys(matched, "matched") | dict.fromkeys(driving, "driver") | dict.fromkeys(outlying, "outlier")
        )
        rest = size.index.difference([*tested, *outliers["dim"]]).to_numpy()
        random = rng.choice(rest, size=min(_CONTROLS, len(rest)) if tested else 0, replace=False)
        rows += [(layer, dim, kind) for dim, kind in (tested | dict.fromkeys(random.tolist(), "random")).items()]
    plan = pd.DataFrame(rows, columns=["layer", "dim", "set"]).assign(mode=mode)
    return plan.join(every[["magnitude", "removed", "fill"]], on=["layer", "dim"])


def _drivers(gaps: pd.DataFrame) -> list[int]:
    """The dimension of the largest mean gap of each class."""
    means = gaps.groupby(["key_class", "dim"])["gap"].mean().sort_values()
    return means.groupby("key_class").tail(1).index.unique("dim").tolist()


def _matched(size: pd.DataFrame, outlying: list[int], outliers: pd.Series, n: int) -> list[int]:
    """The dimensions as large as the outliers that are removed: the n nearest to each, or a few where these differ."""
    found: dict[int, None] = {}
    for dim in outlying:
        near = apart_in_size(size, dim).drop(outliers).nsmallest(n)
        matches = len(near) == n and near.iloc[-1] <= MOST_APART
        found |= dict.fromkeys(near.index[: n if matches else _CONTROLS].tolist())
    return list(found)


def ablate(
    model: Model, prepared: Batches, classes: TokenClasses, plan: pd.DataFrame, where: Where, progress: bool
) -> Passes[pd.DataFrame]:
    """`ablation_effect` of what is `planned`, for `interp.run.passes`: at most one reading."""
    if plan.empty:
        return pd.DataFrame(columns=_COLUMNS)
    fill = plan.set_index(["layer", "dim"])["fill"]
    fills: dict[int, Any] = {layer: fill[layer].to_dict() for layer in plan["layer"].unique().tolist()}
    if where == "keys":
        observer = KeyAblation(model, classes, fills)
        yield [Reading("ablation", prepared, [observer])]
        whole = {layer: observer.before(layer) for layer in fills}
        after = np.concatenate([observer.after(layer) for layer in fills])
    else:
        unhooked = AttentionByClass(model, classes, layers=[*fills])
        yield [Reading("ablation", prepared, [unhooked])]
        whole = {layer: unhooked.by_class(layer) for layer in fills}
        after = np.stack([*_through_the_stream(model, prepared, classes, plan, progress)])
    before = np.stack([whole[layer] for layer in plan["layer"]])
    head = np.abs(after - before).argmax(1)
    table = plan.merge(pd.DataFrame({"key_class": classes.names}), how="cross").assign(where=where, head=head.ravel())
    for name, attention in {"before": before, "after": after}.items():
        table[f"attention_{name}"] = attention.mean(1).ravel()
        table[f"head_{name}"] = np.take_along_axis(attention, head[:, None], 1).ravel()
    return table.loc[before.any(1).ravel(), _COLUMNS].reset_index(drop=True)


def _through_the_stream(
    model: Model, prepared: Batches, classes: TokenClasses, plan: pd.DataFrame, progress: bool
) -> Iterator[Float[np.ndarray, "head classes"]]:
    """Attention by class of a layer with each dimension of the stream that enters it replaced."""
    for layer, dim, fill in plan[["layer", "dim", "fill"]].itertuples(index=False):
        observer = AttentionByClass(model, classes, layers=[layer])
        means = torch.full((model.cfg.d_model,), fill)
        with running(model, ablate_dims(model, layer, [dim], where="residual", mode="mean", means=means)):
            observe(model, prepared, observer, progress=progress)
        yield observer.by_class(layer)
