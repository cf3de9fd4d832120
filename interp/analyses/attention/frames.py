"""Outlier dimensions against their values along random directions, and against ordinary dimensions."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from scipy.special import logit
from torch import Tensor

from interp.analyses.attention.options import OUTLIERS
from interp.corpora.batching import Batch
from interp.corpora.classes import TokenClasses
from interp.instruments.keys import GroupedKeyObserver, KeyClassBatch, is_edited
from interp.instruments.rotations import random_frames
from interp.models.edits import jointly
from interp.models.qk import QKCircuit, qk_circuit
from interp.models.shapes import Shape
from interp.models.sites import Model, Recipe, hook_name
from interp.passes.budget import Pass
from interp.passes.observers import fingerprint
from interp.results.verdicts import FEWEST_CONTROLS, smallest

__all__ = ["ALL", "FRAMES", "FrameDraws", "Removal", "largest_changes", "removed_rows"]

ALL = "all"
"""The name of all outlier dimensions, removed together."""
FRAMES = ["dims", "kind", "draw", "layer", "key_class", "attention_before", "attention_after", "log_odds"]
FRAMES += ["log_odds_low", "log_odds_high"]
_QUERIES = 8  # of each row
_AT_ONCE = 2**19  # scores that are computed together
_TOGETHER = 64  # outliers that are removed together, as a dry run assumes
_KINDS = ("frame", "equal keys")
_NEAREST = 1e-6  # log-odds are of attention at least this far from 0 and 1


class Removal(NamedTuple):
    """What is removed from the keys of every block, and what from them as its control.

    Attributes:
        sets: outlier dimensions by the name of the set: one by one, and `ALL` of them together if there are several.
        ordinary: dimensions that are no outliers, which are removed one by one.
        ordinary_sets: sets of ordinary dimensions, as many in each as there are outliers.
        fills: the constant that replaces each dimension, by layer.
    """

    sets: dict[str, list[int]]
    ordinary: list[int]
    ordinary_sets: list[list[int]]
    fills: dict[int, Float[np.ndarray, " d_model"]]

    @classmethod
    def of(
        cls, outliers: Sequence[int], fills: Mapping[int, Float[np.ndarray, " d_model"]], *, tested: int, seed: int
    ) -> "Removal":
        """Choose the first `tested` outliers one by one and all together, with 39 random ordinary dimensions, and 39
        random sets of them."""
        d_model = len(next(iter(fills.values())))
        rng = np.random.default_rng(seed)
        other_dims = np.setdiff1d(np.arange(d_model), outliers)
        sets = {str(dim): [dim] for dim in outliers[:tested]}
        ordinary = rng.choice(other_dims, min(FEWEST_CONTROLS, len(other_dims)), replace=False).tolist()
        draws = 0
        if len(outliers) > 1:
            sets[ALL] = list(outliers)
            draws = FEWEST_CONTROLS if len(other_dims) >= len(outliers) else 0
        together = [rng.choice(other_dims, len(outliers), replace=False).tolist() for _ in range(draws)]
        return cls(sets, ordinary, together, dict(fills))


class FrameDraws(GroupedKeyObserver):
    """Attention by class without outlier dimensions in the keys of one layer, with their values along other directions,
    and without other dimensions.

    With dimensions j_1 … j_k removed together, draw b of the kind `frame` puts their values back along random
    orthonormal directions r_1 … r_k, the same in all layers: it adds `Σ_i (x_{j_i} − m_{j_i}) r_i` to the input x of
    the keys without these dimensions. If their own directions in the keys are like any others, what they add is
    exchangeable with that. The kind `equal keys` scales r_i for each head so that `‖r_i W_K‖ = ‖W_K[j_i]‖`. The kind
    `ordinary` removes dimensions that are no outliers. Only the scores of that layer change, so everything comes from
    one pass.

    Up to eight evenly spaced queries of each row are read, over all keys that they see, of every `every`-th row.

    After `observe` there is the `table` `frames` of an `AttentionStudy`; see `largest_changes`. For draws along random
    directions, `attention_before` is attention without the dimensions.

    Other hooks on the scores or the pattern are refused with RuntimeError, because they would have no effect.
    """

    axes: ClassVar = {
        "chosen": "groups",
        "{}.removed": "groups variants classes",
        "{}.frames": f"{len(_KINDS)} sets {FEWEST_CONTROLS} classes",
        "{}.ordinary": "ordinary classes",
        "{}.ordinary sets": "ordinary_sets classes",
    }

    def __init__(
        self, model: Model, classes: TokenClasses, removal: Removal, *, row_step: int = 1, seed: int = 0
    ) -> None:
        sets, ordinary, together, fills = removal
        means = fingerprint(np.concatenate([*fills.values()]))
        identity = {"sets": sets, "ordinary": ordinary, "ordinary_sets": together, "means": means}
        super().__init__(model, classes, fills, **identity, every=row_step, seed=seed)
        self.removal, self.every = removal, row_step
        n_dims = max(map(len, sets.values()))
        self.frames = random_frames(model.cfg.d_model, n_dims, draws=FEWEST_CONTROLS, seed=seed).to(model.W_U.device)
        variants = 1 + len(sets)
        self.add_to_layers(variants=variants, sets=len(sets), ordinary=len(ordinary), ordinary_sets=len(together))

    @classmethod
    def cost(cls, size: Shape, layers: Sequence[int], classes: int) -> Pass:
        """Estimate the cost of the most sets of outliers, from the shape of a model. The directions of 64 outliers that
        are removed together are held twice, in the residual stream and in the keys of all heads."""
        sets = OUTLIERS["keys"] + 1  # one by one, and all together
        sizes = {"variants": 1 + sets, "sets": sets, "ordinary": FEWEST_CONTROLS, "ordinary_sets": FEWEST_CONTROLS}
        frames = FEWEST_CONTROLS * _TOGETHER
        return Pass(
            sums=cls.n_bytes(size, layers, classes=classes, **sizes),
            per_batch=4 * frames * (size.d_model + size.n_heads * size.d_head),
        )

    def hooks(self, batch: Batch) -> Recipe:
        if is_edited(self.model, batch):
            raise RuntimeError("scores are computed from queries and keys, and would miss later hooks; remove these")
        numbers = torch.arange(len(batch.mask)) if batch.rows is None else batch.rows
        rows = (numbers % self.every == 0).nonzero()[:, 0]
        if not len(rows):
            return []
        part = batch.part(rows)
        keys = KeyClassBatch(part, self.classes, self.model.W_U.dtype)
        spaced = _spaced(keys.real.sum(1))
        self.add("tokens", keys.counts.sum((0, 1)))
        self.add_rows("queries", part.mask.sum(1), part)
        self.add_rows("chosen", spaced[1].sum(1), part)
        recipe: Recipe = []
        for layer in self.layers:
            circuit = qk_circuit(self.model, layer)
            names = circuit.input_name, circuit.query_name, hook_name(self.model, "k", layer)
            recipe += jointly(names, partial(self._read, circuit, keys, rows, spaced))
        return recipe

    def _read(
        self,
        circuit: QKCircuit,
        keys: KeyClassBatch,
        rows: Int[Tensor, " row"],
        spaced: tuple[Int[Tensor, "row query"], Float[Tensor, "row query"]],
        x: Tensor,
        q: Tensor,
        k: Tensor,
    ) -> None:
        sets = self.removal.sets
        layer = circuit.layer
        weight = circuit.W_K_stored.to(keys.one_hot).transpose(0, 1)
        sampled = _Seen(circuit, keys, spaced, q[rows], k[rows])
        excess = circuit.attn_input(x[rows]).to(weight)
        excess = excess - torch.from_numpy(self.removal.fills[layer]).to(excess)
        along = einsum(self.frames.to(weight), weight, "draw dim d, d head d_head -> draw dim head d_head")
        size = weight.norm(dim=-1)
        along_size = along.norm(dim=-1).clamp(min=torch.finfo(weight.dtype).tiny)
        singles = [dims[0] for dims in sets.values() if len(dims) == 1]
        removed = [sampled.by_class[None], sampled.without_each(excess[..., singles], weight[singles])]
        if ALL in sets:
            removed.append(sampled.without(excess[..., sets[ALL]], weight[None, sets[ALL]]))
        self.add_rows(f"{layer}.removed", torch.cat(removed).transpose(0, 1), keys.batch)

        by_head = size[singles] / along_size[:, None, 0]  # [draw, single, kv_head]
        factors = torch.stack([torch.ones_like(by_head), by_head])
        attention = sampled.along(excess[..., singles], weight[singles], along[:, 0], factors).sum(3)
        if ALL in sets:
            dims = sets[ALL]
            equal = along * (size[dims] / along_size)[..., None]
            of_all = excess[..., dims]
            together = [
                sampled.without(of_all, weight[dims] - along).sum(1),
                sampled.without(of_all, weight[dims] - equal).sum(1),
            ]
            attention = torch.cat([attention, torch.stack(together)[:, None]], 1)
        self.add(f"{layer}.frames", attention)
        ordinary = self.removal.ordinary
        self.add(f"{layer}.ordinary", sampled.without_each(excess[..., ordinary], weight[ordinary]).sum(1))
        by_set = [sampled.without(excess[..., dims], weight[None, dims]).sum(1) for dims in self.removal.ordinary_sets]
        if by_set:
            self.add(f"{layer}.ordinary sets", torch.cat(by_set))

    @property
    def table(self) -> pd.DataFrame:
        sets = self.removal.sets
        sums = np.stack([self.by_group(layer, "removed") for layer in self.layers], 1)
        queries = self._read_groups("chosen")
        before = sums[:, :, 0].sum(0) / queries.sum()
        parts = [removed_rows(self, list(sets), sums, queries)]
        for number, (name, dims) in enumerate(sets.items()):
            after = dict(zip(_KINDS, self.of_layers("frames")[:, :, number].unbind(1), strict=True))
            after["ordinary"] = self.of_layers("ordinary" if len(dims) == 1 else "ordinary sets")
            removed = sums[:, :, 1 + number].sum(0) / queries.sum()
            for kind, received in after.items():
                mean = (received / queries.sum()).cpu().numpy()
                compared = before if kind == "ordinary" else removed
                rows = largest_changes(compared, mean, self.layers, self.classes.names)
                parts.append(rows.assign(dims=name, kind=kind))
        return pd.concat([part for part in parts if len(part)], ignore_index=True).reindex(columns=FRAMES)


def _spaced(lengths: Int[Tensor, " row"]) -> tuple[Int[Tensor, "row query"], Tensor]:
    """The positions of up to eight evenly spaced queries of each row, and 1 for those that a short row has, else 0."""
    number = torch.arange(_QUERIES, device=lengths.device)
    spaced = ((2 * number + 1) * lengths[:, None]) // (2 * _QUERIES)
    long = lengths[:, None] > _QUERIES
    positions = torch.where(long, spaced, torch.minimum(number, lengths[:, None] - 1))
    return positions, (long | (number < lengths[:, None])).float()


class _Seen:
    """The attention of some queries in one block, as it is and with keys moved, summed over the queries of each row and
    averaged over heads. Query heads that share keys are handled as more queries of one head."""

    def __init__(
        self, circuit: QKCircuit, keys: KeyClassBatch, spaced: tuple[Tensor, Tensor], q: Tensor, k: Tensor
    ) -> None:
        self.circuit = circuit
        self.one_hot = keys.one_hot
        self.n_rows, self.length, n_heads = q.shape[:3]
        row_numbers = torch.arange(len(q), device=q.device)[:, None]
        q = (circuit.rotate(q).to(keys.one_hot) / circuit.scale)[row_numbers, spaced[0]]
        k = self._turned(k)
        groups = n_heads // len(k)
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []
        at_once = max(1, _AT_ONCE // (self.n_rows * n_heads * self.length))
        parts = zip(q.split(at_once, 1), spaced[0].split(at_once, 1), spaced[1].split(at_once, 1), strict=True)
        for chosen, queries, real in parts:
            n_keys = int(queries.max()) + 1 if circuit.span.causal else self.length
            visible = (circuit.span.seen_from(queries, self.length) & keys.real[:, None])[..., :n_keys]
            chosen = rearrange(
                chosen, "row query (head group) d -> head row (group query) d", group=groups
            ).contiguous()
            scores = (chosen @ k[..., :n_keys]).masked_fill_(~visible.tile(1, groups, 1), -torch.inf)
            self.parts.append((chosen, real.to(scores).tile(1, groups)[:, None] / n_heads, scores))

    def _turned(self, k: Float[Tensor, "row key head d_head"]) -> Float[Tensor, "head row d_head key"]:
        return self.circuit.rotate(k).to(self.one_hot).permute(2, 0, 3, 1)

    def _attention(
        self, scores: Float[Tensor, "*variant head row query key"], weight: Tensor
    ) -> Float[Tensor, "*variant row classes"]:
        received = (weight @ scores.softmax(-1)).sum(-4)
        return (received @ self.one_hot[:, : scores.shape[-1]])[..., 0, :]

    @property
    def by_class(self) -> Float[Tensor, "row classes"]:
        """Attention as it is."""
        return torch.stack([self._attention(scores, weight) for _, weight, scores in self.parts]).sum(0)

    def without(
        self, excess: Float[Tensor, "row key dim"], directions: Float[Tensor, "draw dim kv_head d_head"]
    ) -> Float[Tensor, "draw row classes"]:
        """Compute attention in each draw, with each key moved back along its directions."""
        at_once = max(1, _AT_ONCE // (self.n_rows * self.length * directions[0, 0].numel()))
        return torch.cat([self._without(excess, part) for part in directions.split(at_once)])

    def _without(self, excess: Tensor, directions: Tensor) -> Float[Tensor, "draw row classes"]:
        moved = einsum(excess, directions, "row key dim, draw dim head d_head -> draw row key head d_head")
        turned = self._turned(moved.flatten(0, 1)).unflatten(1, moved.shape[:2]).movedim(1, 0)
        attentions = []
        for chosen, weight, scores in self.parts:
            changes = chosen @ turned[..., : scores.shape[-1]]
            attentions.append(self._attention(scores - changes, weight))
        return torch.stack(attentions).sum(0)

    def without_each(
        self, excess: Float[Tensor, "row key dim"], directions: Float[Tensor, "dim kv_head d_head"]
    ) -> Float[Tensor, "dim row classes"]:
        """Compute attention with each key moved back along the direction of one dimension, for one dimension after the
        other."""
        attention = excess.new_zeros(len(directions), self.n_rows, self.one_hot.shape[2])
        turned = self._turned_alike(directions)
        by_dim = excess.permute(2, 0, 1)[:, :, None]
        for chosen, weight, scores in self.parts:
            keys = slice(scores.shape[-1])
            for dim, (added, direction) in enumerate(zip(by_dim[..., keys], turned[..., keys], strict=True)):
                changed = torch.addcmul(scores, _products(chosen, direction), added, value=-1)
                attention[dim] += self._attention(changed, weight)
        return attention

    def _turned_alike(self, directions: Float[Tensor, "n kv_head d_head"]) -> Float[Tensor, "n kv_head d_head #key"]:
        """Each direction at all positions of a row."""
        return self.circuit.at_positions(directions, self.length).to(self.one_hot).permute(0, 2, 3, 1)

    def along(
        self,
        excess: Float[Tensor, "row key dim"],
        removed: Float[Tensor, "dim kv_head d_head"],
        directions: Float[Tensor, "draw kv_head d_head"],
        factors: Float[Tensor, "kind draw #dim #kv_head"],
    ) -> Float[Tensor, "kind dim draw row classes"]:
        """Compute attention with the excess of each key along the same direction of each draw, times a factor for each
        head, in place of along its own direction, for one dimension after the other."""
        turned, turned_removed = self._turned_alike(directions), self._turned_alike(removed)
        n_dims = excess.shape[-1]
        n_kinds = len(factors)
        shape = n_kinds, n_dims, len(directions), self.n_rows, self.one_hot.shape[2]
        attention = excess.new_zeros(shape)
        factors = factors.expand(-1, -1, n_dims, -1)
        for chosen, weight, scores in self.parts:
            keys = slice(scores.shape[-1])
            at_once = max(1, _AT_ONCE // scores.numel())
            by_key = excess[:, keys].permute(2, 0, 1)[:, :, None]
            own_scores = _products(chosen, turned_removed[..., keys])
            without = []
            for added, own_product in zip(by_key, own_scores, strict=True):
                without.append(torch.addcmul(scores, own_product, added, value=-1))
            for first in range(0, len(directions), at_once):
                draws = slice(first, first + at_once)
                towards = _products(chosen, turned[draws, ..., keys])
                for kind, dim in product(range(n_kinds), range(n_dims)):
                    added = factors[kind, draws, dim][..., None, None, None] * by_key[dim]
                    changed = torch.addcmul(without[dim], towards, added)
                    attention[kind, dim, draws] += self._attention(changed, weight)
        return attention


def _products(
    queries: Float[Tensor, "head row query d_head"], keys: Float[Tensor, "*n head d_head key"]
) -> Float[Tensor, "*n head row query key"]:
    """The scores of keys that are the same in every row."""
    return (queries.flatten(1, 2) @ keys).unflatten(-2, queries.shape[1:3])


def largest_changes(
    before: Float[np.ndarray, "layer classes"],
    after: Float[np.ndarray, "layer draw classes"],
    layers: Sequence[int],
    names: Sequence[str],
) -> pd.DataFrame:
    """Find the largest change of the log-odds of attention, up or down, of each draw.

    Attention is averaged over queries and heads before its log-odds are taken. The largest change is that over layers
    and over classes except `other`. A class does not count in a layer where it, or all others together, get less than
    .02 of the attention both before and after, which is the smallest change of attention of interest.

    Returns a table (draw, layer, key_class, attention_before, attention_after, log_odds), with a change of 0 where
    nothing counts.

    Examples:
        >>> before, after = np.array([[0.5, 0.001, 0.499]]), np.array([[[0.4, 0.01, 0.59]]])
        >>> largest_changes(before, after, [3], ["cls", "sep", "other"])[["layer", "key_class", "log_odds"]].round(3)
           layer key_class  log_odds
        0      3       cls    -0.405
    """
    unedited = np.broadcast_to(before[:, None], after.shape)
    change = _log_odds(after) - _log_odds(unedited)
    least = smallest("attention")
    counts = np.maximum(unedited, after) >= least
    counts &= np.minimum(unedited, after) <= 1 - least
    counts &= np.array(names) != "other"
    draws = np.arange(after.shape[1])
    change = np.where(counts, change, 0.0).transpose(1, 0, 2).reshape(len(draws), before.size)
    cell = np.abs(change).argmax(1)
    layer, name = np.divmod(cell, len(names))
    return pd.DataFrame(
        {
            "draw": draws,
            "layer": np.array(layers)[layer],
            "key_class": np.array(names, dtype=object)[name],
            "attention_before": before[layer, name],
            "attention_after": after[layer, draws, name],
            "log_odds": change[draws, cell],
        }
    )


def _log_odds(attention: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    return np.asarray(logit(np.clip(attention, _NEAREST, 1 - _NEAREST)))


def removed_rows(
    observer: GroupedKeyObserver,
    sets: Sequence[str],
    sums: Float[np.ndarray, "groups layer variant classes"],
    queries: Float[np.ndarray, " groups"],
) -> pd.DataFrame:
    """Make the rows of `frames` for what was removed itself, with 95 % intervals by leaving out groups of texts.

    Args:
        sets: what was removed in each variant but the first, which is attention as it is.
        sums: attention summed over queries, by group of texts.
    """
    before, after = np.split(sums.sum(0) / queries.sum(), [1], 1)
    rows = largest_changes(before[:, 0], after, observer.layers, observer.classes.names)
    layer = [observer.layers.index(layer) for layer in rows["layer"]]
    name = [observer.classes.names.index(name) for name in rows["key_class"]]
    unedited, without = sums[:, layer, 0, name], sums[:, layer, np.arange(1, 1 + len(rows)), name]
    interval = observer.jackknife(lambda a, b, n: _log_odds(b / n) - _log_odds(a / n), unedited, without, queries)
    ends = {"log_odds_low": rows["log_odds"] - interval.half, "log_odds_high": rows["log_odds"] + interval.half}
    return rows.assign(dims=list(sets), kind="removed", draw=0, **ends)
