"""The components that write massive activations: what embeddings, attention and MLPs add to them, block by block."""

from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.corpora.batching import Batch
from interp.instruments.massive import LargeValues, large_values
from interp.models.edits import jointly
from interp.models.sites import Model, Recipe, Site, hook_name, state_name, view
from interp.passes.observers import Observer
from interp.results.intervals import from_sums
from interp.support.checks import warn

__all__ = ["WRITERS", "MassiveWriters", "why_no_writers"]
__dir__ = __all__.copy

WRITERS = ["dim", "first_position", "last_position", "component", "layer", "added", "share", "share_low", "share_high"]
WRITERS += ["n_activations"]
"""The columns of `MassiveWriters.table`."""
_PARTS: dict[Site, str] = {"attn_out": "attention", "mlp_out": "MLP"}
_EARLIER, _EMBEDDINGS = 0, 1
_APART = 0.02  # share of a value that rounding in bfloat16 may leave unexplained


class _Component(NamedTuple):
    name: str
    layer: int | None


def why_no_writers(model: Model) -> str | None:
    """Return why no component can be said to write an activation (its hidden states are not sums), or None if one
    can."""
    return (
        "hidden states of an encoder are normed after each block, and no sum over components"
        if view(model).encoder
        else None
    )


class MassiveWriters(Observer):
    """What each component adds to the massive activations (`interp.instruments.massive`), in the pass that finds them.

    A value is tracked from the state at which it exceeds 100 and 100 times the median of its row. Its height is its
    largest magnitude among the states at which it is massive. What components have added until then counts, with the
    sign of the height, so that shares add up to 1.

    After `observe` there is the `table` `writers` of a `SinkStudy`: one row per dimension, for the first position of a
    row and for later ones, and per component that adds anything. `share` is the share of the height, with a 95 %
    interval by leaving out groups of texts (`interp.results.intervals.jackknife`). The table is empty, with a warning,
    if attention and MLP do not account for what is added (because of norms after them, or multipliers).

    Raises ValueError for an encoder, whose hidden states are not sums.

    Examples:
        >>> from interp.corpora import batches
        >>> from interp.passes.reading import observe
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> model.pos_embed.W_pos.data[0, 5] = 9_999.0
        >>> observer = MassiveWriters(model)
        >>> observe(model, batches(model, ["w0 w1 w2"] * 80, context=12), observer, progress=False)
        >>> table = observer.table.query("share > 0.5")
        >>> table[["dim", "last_position", "component", "n_activations"]].values.tolist()
        [[5, 0, 'embeddings', 20]]
    """

    axes: ClassVar = {
        "rows": "groups",
        "count": "2 d_model",
        "height": "groups 2 d_model",
        "added": "groups 2 components d_model",
        "unexplained": "",
    }

    def __init__(self, model: Model) -> None:
        if reason := why_no_writers(model):
            raise ValueError(f"this model has no writers of massive activations: {reason}")
        super().__init__(model.W_U.device, n_ctx=int(model.cfg.n_ctx))
        self.model = model
        self.parts = [site for site in _PARTS if hook_name(model, site, 0) in model.hook_dict]  # not all have MLPs
        self.components = [_Component("earlier", None), _Component("embeddings", None)]
        for layer in range(model.cfg.n_layers):
            self.components += [_Component(_PARTS[site], layer) for site in self.parts]
        self.add_states(model.cfg, components=len(self.components))

    def hooks(self, batch: Batch) -> Recipe:
        self.add_rows("rows", batch.mask.new_ones(len(batch.mask)), batch)
        followed = _Followed(len(self.components), batch)
        recipe = Recipe()
        for layer in range(self.model.cfg.n_layers):
            names = [state_name(self.model, layer), *(hook_name(self.model, site, layer) for site in self.parts)]
            recipe += jointly([*names, state_name(self.model, layer + 1)], partial(self._read, layer, batch, followed))
        return recipe

    def _read(self, layer: int, batch: Batch, followed: "_Followed", before: Tensor, *flow: Tensor) -> None:
        *parts, after = flow
        if layer == 0:
            followed.take(large_values(batch, 0, before), before, {_EMBEDDINGS: before})
        column = _EMBEDDINGS + 1 + layer * len(parts)
        added = dict(enumerate(parts, column))
        followed.add(added)
        added[_EARLIER] = before
        followed.take(large_values(batch, layer + 1, after), after, added)
        if layer == self.model.cfg.n_layers - 1:
            self._add_tracked(batch, followed)

    def _add_tracked(self, batch: Batch, followed: "_Followed") -> None:
        """Add the values that were tracked and were massive in some state."""
        massive = followed.massive
        if not len(massive.row):
            return
        self.add("unexplained", ((massive.added.sum(1) - massive.height).abs() > _APART * massive.height).sum())
        later = (massive.pos > 0).long()
        dim = massive.dim
        groups = torch.tensor(self.groups_of(batch), device=dim.device)[massive.row]
        count = massive.height.new_zeros(2, self.model.cfg.d_model)
        self.add("count", count.index_put((later, dim), torch.ones_like(massive.height), accumulate=True))
        for group in groups.unique().tolist():
            in_group = groups == group
            height = count.index_put((later[in_group], dim[in_group]), massive.height[in_group], accumulate=True)
            added = count.new_zeros(2, self.model.cfg.d_model, massive.added.shape[1])
            added.index_put_((later[in_group], dim[in_group]), massive.added[in_group], accumulate=True)
            self.add("height", height, group=group)
            self.add("added", added.mT, group=group)

    @property
    def table(self) -> pd.DataFrame:
        """One row per dimension with a massive activation, first or later position, and component."""
        if unexplained := int(self.state["unexplained"]):
            warn(
                f"no writers of massive activations: in {unexplained:,} of {int(self.state['count'].sum()):,} of them "
                "attention and MLP do not account for what is added, so this model's writers cannot be determined"
            )
            return _typed([])
        later, dims = self.state["count"].nonzero().unbind(1)
        rows = self.state["rows"]
        read = rows > 0
        height = self.state["height"][read][:, later, dims, None]
        added = self.state["added"][read][:, later, :, dims].movedim(0, 1)  # [group, activation, component]
        sums = [added.cpu().numpy(), height.cpu().numpy()]
        interval = from_sums(np.divide, sums, rows[read].cpu().numpy(), self.stretches_per_group)
        count = self.state["count"][later, dims]
        mean = (added.sum(0) / count[:, None]).cpu().numpy()
        last = int(self.model.cfg.n_ctx) - 1
        table = []
        for number, (is_later, dim, n) in enumerate(zip(later.tolist(), dims.tolist(), count.tolist(), strict=True)):
            where = dim, is_later, last if is_later else 0
            for place in np.flatnonzero(mean[number]):
                cell = (number, place)
                shares = (interval.value[cell], interval.low[cell], interval.high[cell])
                table.append((*where, *self.components[place], mean[cell], *shares, int(n)))
        return _typed(table)


def _typed(rows: list[Any]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=WRITERS)
    kinds = dict.fromkeys(["added", "share", "share_low", "share_high"], "float64")
    kinds.update(dict.fromkeys(["dim", "first_position", "last_position", "n_activations"], "int64"))
    kinds.update(layer="Int64", component="object")
    return table.astype(kinds)


class _Massive(NamedTuple):
    """Massive activations: their places, their largest magnitudes, and what components have added to these."""

    row: Int[Tensor, " n"]
    pos: Int[Tensor, " n"]
    dim: Int[Tensor, " n"]
    height: Float[Tensor, " n"]
    added: Float[Tensor, "n component"]


class _Followed:
    """The large values of a batch, tracked from the state at which they become large."""

    def __init__(self, n_components: int, batch: Batch) -> None:
        self.length = batch.mask.shape[1]
        device = batch.mask.device
        self.width = 1
        self.place = torch.zeros(0, dtype=torch.int64, device=device)
        self.added = torch.zeros(0, n_components, dtype=torch.float32, device=device)
        self.height = torch.zeros(0, dtype=torch.float32, device=device)
        self.until = torch.zeros_like(self.added)  # what components had added by the time the height was reached

    def add(self, parts: dict[int, Tensor]) -> None:
        """Record what components, given by number, add to the values that are tracked."""
        for component, part in parts.items():
            self.added[:, component] = part.reshape(-1)[self.place].to(self.added)

    def take(self, large: LargeValues, state: Tensor, parts: dict[int, Tensor]) -> None:
        """Begin to track values that are large in a hidden state, with these parts, and record which are massive."""
        self.width = state.shape[2]
        place = (large.row * self.length + large.pos) * self.width + large.dim
        new = place[~torch.isin(place, self.place)]
        seen = len(self.place)
        self.place = torch.cat([self.place, new])
        self.added = torch.cat([self.added, self.added.new_zeros(len(new), self.added.shape[1])])
        self.until = torch.cat([self.until, self.until.new_zeros(len(new), self.until.shape[1])])
        self.height = torch.cat([self.height, self.height.new_zeros(len(new))])
        for component, part in parts.items():
            self.added[seen:, component] = part.reshape(-1)[new].to(self.added)
        value = state.reshape(-1)[self.place].to(self.added)
        higher = torch.isin(self.place, place[large.massive]) & (value.abs() > self.height.abs())
        self.height = torch.where(higher, value, self.height)
        so_far = torch.arange(self.added.shape[1], device=value.device) <= max(parts)
        self.until[higher] = so_far.to(self.until)

    @property
    def massive(self) -> _Massive:
        grown = self.height != 0
        place, height = self.place[grown], self.height[grown]
        added = self.added[grown] * self.until[grown] * height.sign()[:, None]
        pos = place // self.width
        return _Massive(pos // self.length, pos % self.length, place % self.width, height.abs(), added)
