"""How attention changes without a dimension, which is replaced by a constant in the keys of one layer, or in the
residual stream that enters it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, get_args

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from interp.analyses.attention.frames import FRAMES, FrameDraws, Removal, removed_rows
from interp.analyses.attention.options import OUTLIERS, AttentionOptions, Where
from interp.corpora import Batches, token_classes
from interp.corpora.batching import Batch, Text, as_batches
from interp.corpora.classes import KeyClasses, TokenClasses
from interp.instruments.keys import GroupedKeyObserver, KeyClassBatch, attention_hooks, is_edited, over_queries
from interp.instruments.profile import DimensionProfile
from interp.models.edits import jointly
from interp.models.qk import QKCircuit, check_layers, qk_circuit
from interp.models.running import firing
from interp.models.shapes import Shape
from interp.models.sites import Model, Recipe, hook_name, state_name
from interp.passes.budget import Pass
from interp.passes.execution import Passes, Reading, runs
from interp.passes.observers import fingerprint
from interp.passes.reading import forward
from interp.results.dense import Dense
from interp.results.intervals import FEWEST_TEXTS
from interp.support.checks import check_choice, check_mode, check_seed, check_table
from interp.support.choices import Mode, Several

__all__ = ["KeyAblation", "StreamAblation", "ablate", "ablation_cost", "ablation_effect", "planned"]
__dir__ = __all__.copy

_CONTROLS = 5  # random dimensions in each layer
_ROWS = 64  # of twice as many rows, or tokens, only a part is read for the draws, but not of fewer than 40 rows
_TOKENS = 5_120
_COLUMNS = ["layer", "dim", "set", "magnitude", "removed", "where", "mode", "key_class", "attention_before"]
_COLUMNS += ["attention_after", "change_low", "change_high", "head", "head_before", "head_after"]
_SET = ["layer", "key_class", "set"]
_SET_COLUMNS = [*_SET, "attention_before", "mean_change", "mean_change_low", "mean_change_high"]
_SET_COLUMNS += ["largest_fall", "largest_rise"]


class _Ablation(GroupedKeyObserver):
    """Attention by class when one dimension is replaced by a constant in a layer, for many dimensions at once.

    After `observe` there are, for each layer, `before` `[head, classes]` and `after` `[dims, head, classes]`: attention
    summed over the keys of a class and averaged over queries. `changes` `[groups, dims, classes]` is the mean over
    heads of after minus before, summed over the queries of each group of texts.

    Args:
        fills: the constant m_j by layer and dimension.
    """

    axes: ClassVar = {"{}.attention": "variants n_heads classes", "{}.mean": "groups variants classes"}

    def __init__(self, model: Model, classes: TokenClasses, fills: Mapping[int, Mapping[int, float]]) -> None:
        dims = {}
        means: list[float] = []
        for layer, filled in fills.items():
            dims[str(layer)] = list(filled)
            means.extend(filled.values())
        super().__init__(model, classes, fills, dims=dims, means=fingerprint(np.array(means)))
        self.fills = fills
        for layer, filled in fills.items():
            self.add_states(model.cfg, [layer], variants=1 + len(filled), classes=len(classes.names))

    def before(self, layer: int) -> Float[np.ndarray, "head classes"]:
        return self.per_query(f"{layer}.attention")[0]

    def after(self, layer: int) -> Float[np.ndarray, "dims head classes"]:
        return self.per_query(f"{layer}.attention")[1:]

    def changes(self, layer: int) -> Float[np.ndarray, "groups dims classes"]:
        before, after = np.split(self.by_group(layer, "mean"), [1], 1)
        return after - before


class KeyAblation(_Ablation):
    """Attention without dimensions of the keys of one layer.

    This is exact and takes one pass: a key dimension of a layer changes only the scores of that layer, by
    `q_m · R_n W_K[j] (x_nj − m_j)`, so only its softmax is computed again.

    Other hooks on the scores or the pattern are refused with RuntimeError, because they would have no effect.
    """

    def hooks(self, batch: Batch) -> Recipe:
        if is_edited(self.model, batch):
            raise RuntimeError("scores are computed from queries and keys, and would miss later hooks; remove these")
        return super().hooks(batch)

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        circuit = qk_circuit(self.model, layer)
        names = circuit.input_name, circuit.query_name, hook_name(self.model, "k", layer)
        return jointly(names, partial(self._read, circuit, keys))

    def _read(self, circuit: QKCircuit, keys: KeyClassBatch, x: Tensor, q: Tensor, k: Tensor) -> None:
        x = circuit.attn_input(x).to(keys.one_hot)
        fills = self.fills[circuit.layer]
        added = (x.new_tensor([*fills.values()]) - x[..., [*fills]]) / circuit.scale
        added = rearrange(added, "batch key dim -> dim batch 1 1 1 key").contiguous()
        directions = circuit.at_positions(circuit.W_K_stored[:, [*fills]].transpose(0, 1), x.shape[1]).to(x)
        directions = rearrange(directions, "dim key kv d_head -> dim kv d_head key").contiguous()
        n_kv_heads = directions.shape[1]
        turned = rearrange(
            circuit.rotate(q).to(x), "batch query (kv group) d_head -> kv batch group query d_head", kv=n_kv_heads
        )
        received = x.new_zeros(1 + len(fills), len(x), q.shape[2], x.shape[1])
        for queries, visible_keys, scores in circuit.scores(q, k, keys.real):
            real, chosen = keys.real[:, queries], turned[:, :, :, queries]
            by_group = scores.unflatten(1, (n_kv_heads, -1))
            received[0, ..., visible_keys] += over_queries(scores.softmax(-1), real)
            for total, direction, of_dim in zip(received[1:], directions, added, strict=True):
                along = chosen.flatten(1, 3) @ direction[..., visible_keys]
                along = along.unflatten(1, chosen.shape[1:-1]).transpose(0, 1)
                changed = torch.addcmul(by_group, along, of_dim[..., visible_keys])
                total[..., visible_keys] += over_queries(changed.softmax(-1).flatten(1, 2), real)
        by_row = (received @ keys.one_hot).transpose(0, 1)
        self.add(f"{circuit.layer}.attention", by_row.sum(0))
        self.add_rows(f"{circuit.layer}.mean", by_row.mean(2), keys.batch)


class StreamAblation(_Ablation):
    """Attention without dimensions of the residual stream that enters one layer, in a model of any kind.

    Each row is run as several copies. Every layer gets the residual stream of the first copy, which is never edited,
    and each of the others lacks one dimension of it. So a row is run once for each dimension, whatever the number of
    layers, and no more rows at a time than a batch has.
    """

    def hooks(self, batch: Batch) -> Recipe:
        recipe = super().hooks(batch)
        n_rows = len(batch.mask)
        n_dims = max(map(len, self.fills.values()))
        at_once = min(n_dims, max(n_rows - 1, 1))
        attentions = {}
        for layer, fill in self.fills.items():
            _, n_heads, n_classes = self.state[f"{layer}.attention"].shape
            attentions[layer] = torch.zeros(n_rows, 1 + len(fill), n_heads, n_classes, dtype=torch.float64)
        step = max(n_rows // (1 + at_once), 1)
        for start in range(0, n_rows, step):
            for first in range(0, n_dims, at_once):
                rows = slice(start, start + step)
                numbers = range(first, min(first + at_once, n_dims))
                for layer, attention in self._without(batch, rows, numbers).items():
                    variants = [0, *range(first + 1, numbers.stop + 1)][: attention.shape[1]]
                    attentions[layer][rows, variants] = attention
        for layer, attention in attentions.items():
            self.add(f"{layer}.attention", attention.sum(0))
            self.add_rows(f"{layer}.mean", attention.mean(2), batch)
        return recipe

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        return []

    def _without(
        self, batch: Batch, rows: slice, numbers: range
    ) -> dict[int, Float[Tensor, "batch variants head classes"]]:
        """The attention of some rows as they are, and without some of the dimensions of each layer."""
        tokens = batch.tokens[rows].repeat(1 + len(numbers), 1)
        mask = batch.mask[rows].repeat(1 + len(numbers), 1)
        copies = Batch(tokens, mask, mask.bool(), tokens)
        keys = KeyClassBatch(copies, self.classes, self.model.W_U.dtype)
        n_rows = len(batch.mask[rows])
        attentions: dict[int, Tensor] = {}

        def replaced(dims: list[tuple[int, float]], resid: Tensor, hook: object) -> Tensor:
            variants = resid[:n_rows].repeat(1 + len(numbers), 1, 1).unflatten(0, (-1, n_rows))
            for number, (dim, fill) in enumerate(dims, 1):
                variants[number, ..., dim] = fill
            return variants.flatten(0, 1)

        def read(layer: int, n_variants: int, received: Tensor, v: Tensor) -> None:
            by_class = keys.by_row(received.to(keys.one_hot)).unflatten(0, (-1, n_rows))
            attentions[layer] = by_class[:n_variants].transpose(0, 1).double().cpu()

        recipe: Recipe = []
        for layer, filled in self.fills.items():
            dims = list(filled.items())[numbers.start : numbers.stop]
            recipe.append((state_name(self.model, layer), partial(replaced, dims)))
            recipe += attention_hooks(self.model, layer, copies, partial(read, layer, 1 + len(dims)), "v")
        with firing(self.model, recipe):
            forward(self.model, copies, max(self.fills) + 1)
        return attentions


@runs
def ablation_effect(
    model: Model,
    text_or_batches: Text,
    outliers: pd.DataFrame,
    *,
    drivers: pd.DataFrame | Dense | None = None,
    layers: Several[int] | None = None,
    key_classes: KeyClasses = None,
    where: Where = "keys",
    mode: Mode = "mean",
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
) -> Passes[pd.DataFrame]:
    """Does attention to a class fall when an outlier dimension is removed, and only then?

    In each layer, several sets of dimensions are removed, one dimension at a time. The set `outlier` has the dimensions
    of `outliers`, at most 16 (from the residual stream 3), those that are outliers in the most states; `driver` the
    dimension with the largest gap of each class; and `random` five random ones.

    Args:
        outliers: the table of `find_outliers`.
        drivers: what `interp.attention.gaps` returns; its mean over heads is used. None removes no drivers.
        layers: TransformerLens' block numbers. Default: all.
        where: `"keys"` removes dimensions only from the keys of the layer (see `interp.hooks.ablate_dims`), in two
            passes altogether. `"residual"` removes them from the residual stream that enters the layer, and measures
            that layer's attention. This needs no decomposition of scores, but runs each row once for each dimension.
        mode: set the dimension to zero, or to its mean over tokens.
        seed: the seed for the random dimensions.

    Returns the table `ablation` of an `AttentionStudy`. Attention is summed over the keys of a class and averaged over
    queries and heads. The 95 % interval is that of after minus before on the same texts
    (`interp.results.intervals.jackknife`). In keys without RoPE, `removed` is the SD, because a constant in all keys
    changes all scores of a query equally.

    Raises ValueError for an unknown `where` or `mode`, for a layer that does not exist, and for a table that has
    missing values, mixes two runs, or has a state, layer or dimension that the model does not have.

    Examples:
        >>> from interp.analyses.attention.profile import dimension_profile
        >>> from interp.instruments.profile import find_outliers
        >>> from interp.testing import toy_decoder
        >>> model, text, classes = toy_decoder(), ["w0 w1 w2"] * 20, {"first": [7, 8]}
        >>> outliers = find_outliers(dimension_profile(model, text, key_classes=classes, progress=False), k=1.5)
        >>> table = ablation_effect(model, text, outliers, key_classes=classes, progress=False)
        >>> sorted(table["set"].unique())
        ['outlier', 'random']
    """
    chosen = check_layers(model, layers)
    check_choice("where", where, get_args(Where))
    check_mode(mode)
    seed = check_seed(seed)
    _check_numbers(model, outliers, "outliers", ["state", "dim"], "z")
    of_gap = ["layer", "head", "key_class", "dim"]
    if isinstance(drivers, Dense):
        drivers = drivers.mean("head", ["gap"])
        of_gap.remove("head")
    if drivers is not None:
        _check_numbers(model, drivers, "drivers", of_gap, "gap")
    classes = token_classes(model, key_classes)
    prepared = as_batches(model, text_or_batches, batch_size=batch_size)
    read = DimensionProfile(model, classes, of="attn_input" if where == "keys" else "residual")
    yield [Reading("profile", prepared, [read])]
    plan = planned(model, read.table, outliers, drivers, chosen, mode, seed, where)
    return (yield from ablate(model, prepared, classes, plan, where))[0]


def _check_numbers(model: Model, table: pd.DataFrame, label: str, key: list[str], value: str) -> None:
    """Raise ValueError for a table that has missing values, mixes two runs, or has a number that does not fit the
    model.
    """
    check_table(table, label, [*key, value], key)
    counts = {"state": model.cfg.n_layers + 1, "layer": model.cfg.n_layers, "dim": model.cfg.d_model}
    for column, n in counts.items():
        if column not in key:
            continue
        outside = table.loc[~table[column].isin(range(n)), column]
        if len(outside):
            expected = f"this model has 0 … {n - 1}; give the table of this model"
            raise ValueError(f"{label} has {column} {outside.iloc[0]}, {expected}")


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
    """Plan what `ablate` removes, from the tables of `ablation_effect`: (layer, dim, set, magnitude, removed, mode,
    fill)."""
    all_tokens = profile[profile["key_class"] == "all"].rename(columns={"state": "layer"}).set_index(["layer", "dim"])
    all_tokens["magnitude"] = (all_tokens["mean"] ** 2 + all_tokens["sd"] ** 2) ** 0.5
    all_tokens["fill"] = all_tokens["mean"] if mode == "mean" else 0.0
    varies = mode == "mean" or (where == "keys" and not qk_circuit(model, 0).rotates)
    all_tokens["removed"] = all_tokens["sd"] if varies else all_tokens["magnitude"]
    rng = np.random.default_rng(seed)
    outlying = outliers["dim"].drop_duplicates().head(OUTLIERS[where]).tolist()
    dims = all_tokens.index.unique("dim")
    rows = []
    for layer in layers:
        driving = [] if gaps is None else _drivers(gaps[gaps["layer"] == layer])
        kinds = dict.fromkeys(driving, "driver")
        kinds.update(dict.fromkeys(outlying, "outlier"))
        ordinary = dims.difference([*kinds, *outliers["dim"]]).to_numpy()
        random = rng.choice(ordinary, size=min(_CONTROLS, len(ordinary)) if kinds else 0, replace=False)
        kinds.update(dict.fromkeys(random.tolist(), "random"))
        for dim, kind in kinds.items():
            rows.append((layer, dim, kind))
    plan = pd.DataFrame(rows, columns=["layer", "dim", "set"]).assign(mode=mode)
    return plan.join(all_tokens[["magnitude", "removed", "fill"]], on=["layer", "dim"])


def drawn(
    model: Model,
    classes: TokenClasses,
    profile: pd.DataFrame,
    outliers: pd.DataFrame,
    layers: list[int],
    options: AttentionOptions,
    read: GroupedKeyObserver,
) -> FrameDraws | None:
    """Make the observer of the controls of all outliers, or None without outliers.

    Args:
        read: an observer that has read the text, to know how long it is.
    """
    dims = outliers["dim"].drop_duplicates().tolist()
    if not dims or not layers:
        return None
    means = profile[profile["key_class"] == "all"].pivot(index="state", columns="dim", values="mean").loc[layers]
    fills = dict(zip(layers, means.to_numpy() * (options.mode == "mean"), strict=True))
    removal = Removal.of(dims, fills, tested=OUTLIERS["keys"], seed=options.seed)
    n_rows = len(read.queries) * read.stretches_per_group
    n_tokens = int(read.queries.sum())
    row_step = max(1, min(n_rows // FEWEST_TEXTS, max(n_rows // _ROWS, n_tokens // _TOKENS)))
    return FrameDraws(model, classes, removal, row_step=row_step, seed=options.seed)


def _drivers(gaps: pd.DataFrame) -> list[int]:
    """The dimension with the largest mean gap of each class."""
    means = gaps.groupby(["key_class", "dim"])["gap"].mean().sort_values()
    return means.groupby("key_class").tail(1).index.unique("dim").tolist()


def ablate(
    model: Model,
    prepared: Batches,
    classes: TokenClasses,
    plan: pd.DataFrame,
    where: Where,
    draws: FrameDraws | None = None,
) -> Passes[tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]]:
    """Measure `ablation_effect` of what is `planned`, for `interp.passes.execution`, with at most one reading; the mean
    and largest changes of each set; and the table `frames`, without draws if there are none."""
    if plan.empty:
        return pd.DataFrame(columns=_COLUMNS), pd.DataFrame(columns=_SET_COLUMNS), pd.DataFrame(columns=FRAMES)
    fill = plan.set_index(["layer", "dim"])["fill"]
    fills: dict[int, Any] = {layer: fill[layer].to_dict() for layer in plan["layer"].unique().tolist()}
    observer = (KeyAblation if where == "keys" else StreamAblation)(model, classes, fills)
    yield [Reading("ablation", prepared, [observer, draws] if draws else [observer])]
    unedited = {layer: observer.before(layer) for layer in fills}
    before = np.stack([unedited[layer] for layer in plan["layer"]])
    after = np.concatenate([observer.after(layer) for layer in fills])
    changes = np.concatenate([observer.changes(layer) for layer in fills], 1)
    head = np.abs(after - before).argmax(1)
    table = plan.merge(pd.DataFrame({"key_class": classes.names}), how="cross").assign(where=where, head=head.ravel())
    for name, attention in {"before": before, "after": after}.items():
        table[f"attention_{name}"] = attention.mean(1).ravel()
        table[f"head_{name}"] = np.take_along_axis(attention, head[:, None], 1).ravel()
    present = before.any(1).ravel()
    by_row = pd.DataFrame(changes.reshape(len(changes), -1).T)[present].reset_index(drop=True)
    frames = draws.table if draws else _outliers_alone(plan, observer)
    return *_with_intervals(table[present].reset_index(drop=True), by_row, observer), frames


def ablation_cost(size: Shape, layers: Sequence[int], classes: int, read: Pass, *, context: int | None) -> list[Pass]:
    """Estimate the cost of `ablate` for the most dimensions that may be removed, with draws where scores can be
    decomposed, from the shape of a model.

    Args:
        read: the pass over the same text without ablation.
    """
    row = size.row(context)
    where: Where = "keys" if size.linear_scores else "residual"
    removed = min(OUTLIERS[where] + _CONTROLS + (classes - 1 if size.linear_scores else 0), size.d_model)
    sums = _Ablation.n_bytes(size, layers, variants=1 + removed, classes=classes)
    ablation = replace(read, what="ablation", step=1, sums=sums)
    if not size.linear_scores:
        return [replace(ablation, flops=(1 + removed) * (size.forward + size.attention(row)))]
    draws = FrameDraws.cost(size, layers, classes)
    directions = 4 * removed * size.n_key_value_heads * size.d_head * row
    scores = (1 + removed) * size.attention(row)
    per_batch = ablation.per_batch + directions + draws.per_batch
    return [replace(ablation, sums=sums + draws.sums, per_batch=per_batch, flops=scores)]


def _outliers_alone(plan: pd.DataFrame, observer: _Ablation) -> pd.DataFrame:
    """The table `frames` without draws."""
    dims = plan.loc[plan["set"] == "outlier", "dim"].drop_duplicates().tolist()
    if not dims:
        return pd.DataFrame(columns=FRAMES)
    sums = []
    for layer, fill in observer.fills.items():
        variants = [0, *(1 + pd.Index(list(fill)).get_indexer(pd.Index(dims)))]
        sums.append(observer.by_group(layer, "mean")[:, variants])
    return removed_rows(observer, list(map(str, dims)), np.stack(sums, 1), observer.queries)[FRAMES]


def _with_intervals(
    table: pd.DataFrame, changes: pd.DataFrame, observer: GroupedKeyObserver
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table with the intervals of its changes, and the means over the dimensions of each set with their intervals.

    Args:
        changes: for each row of the table, the change by group of texts, summed over queries.
    """

    def half(changes: pd.DataFrame) -> np.ndarray:
        mean = observer.jackknife(lambda change, queries: change / queries, changes.to_numpy().T, observer.queries)
        return mean.half

    change = table["attention_after"] - table["attention_before"]
    reach = half(changes)
    named = table["key_class"] != "other"
    keys = [table.loc[named, name] for name in _SET]
    sets = pd.DataFrame({"attention_before": table.loc[named, "attention_before"]}).groupby(keys, sort=False).first()
    by_set = change[named].groupby(keys, sort=False)
    sets = sets.join(by_set.agg(mean_change="mean", largest_fall="min", largest_rise="max"))
    reach_of_mean = half(changes[named].groupby(keys, sort=False).mean())
    sets = sets.assign(
        mean_change_low=sets["mean_change"] - reach_of_mean, mean_change_high=sets["mean_change"] + reach_of_mean
    )
    table = table.assign(change_low=change - reach, change_high=change + reach)
    return table[_COLUMNS], sets.reset_index()[_SET_COLUMNS]
