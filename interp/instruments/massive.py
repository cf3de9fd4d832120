"""Massive activations: single values of the residual stream that are far larger than all others."""

from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.corpora.batching import Batch
from interp.instruments.sinks import position_bins
from interp.models.edits import jointly
from interp.models.sites import Model, Recipe, state_name
from interp.passes.observers import Observer

__all__ = ["LargeValues", "MassiveActivations", "large_values"]
__dir__ = __all__.copy

_LEAST = 100.0
_OVER_MEDIAN = 1_000.0
_LARGE = 0.1  # share of this ratio above which a value is followed before it is massive
_COLUMNS = ["state", "dim", "first_position", "last_position", "n_activations", "n_tokens", "max_abs", "max_ratio"]


class LargeValues(NamedTuple):
    """Values of a hidden state that are above 100 and above 100 times the median magnitude of their row: their place,
    magnitude and ratio to the median, and whether they are massive."""

    row: Int[Tensor, " n"]
    pos: Int[Tensor, " n"]
    dim: Int[Tensor, " n"]
    size: Float[Tensor, " n"]
    ratio: Float[Tensor, " n"]
    massive: Bool[Tensor, " n"]


def large_values(batch: Batch, state: int, activation: Float[Tensor, "batch pos d_model"]) -> LargeValues:
    """Find the large values of a hidden state once for all observers of the batch. Padding is left out."""
    key = "large values", state
    if key not in batch.shared:
        batch.shared[key] = _large(activation, batch.mask.bool())
    large: LargeValues = batch.shared[key]
    return large


def _large(activation: Float[Tensor, "batch pos d_model"], real: Bool[Tensor, "batch pos"]) -> LargeValues:
    size = activation.abs().masked_fill(~real[..., None], 0)
    rows = (size.amax((1, 2)) > _LEAST).nonzero()[:, 0]
    wide = size[rows].to(torch.promote_types(size.dtype, torch.float32))
    if not len(rows):
        return LargeValues(rows, rows, rows, wide.flatten(), wide.flatten(), rows.bool())
    median = wide.masked_fill(~real[rows][..., None], torch.nan).flatten(1).nanmedian(1).values
    ratio = wide / median[:, None, None]
    row, pos, dim = ((wide > _LEAST) & (ratio > _LARGE * _OVER_MEDIAN)).nonzero().unbind(1)
    sizes, ratios = wide[row, pos, dim], ratio[row, pos, dim]
    return LargeValues(rows[row], pos, dim, sizes, ratios, ratios > _OVER_MEDIAN)


class MassiveActivations(Observer):
    """Values of the residual stream above 100 and above 1,000 times the median magnitude of the hidden state.

    Source: Sun et al., "Massive Activations in Large Language Models", COLM 2024. As in the paper, a hidden state is
    that of one row of a batch: the median is over the dimensions and tokens of the row, without padding (the lower of
    the two middle values). So the count is exact after one pass and does not depend on the batches. The median is
    computed only for rows with a value above 100. Positions are counted from the beginning of a row and grouped: 0, 1,
    2, 3, 4 to 15, 16 to 63, and so on.

    After `observe` there is the `table`.

    Examples:
        >>> from interp.corpora import batches
        >>> from interp.passes.reading import observe
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> model.pos_embed.W_pos.data[0, 5] = 9_999.0
        >>> observer = MassiveActivations(model)
        >>> observe(model, batches(model, ["w0 w1 w2"] * 20, context=12), observer, progress=False)
        >>> observer.table[["state", "dim", "last_position", "n_activations"]].values.tolist()
        [[0, 5, 0, 5], [1, 5, 0, 5], [2, 5, 0, 5]]
    """

    axes: ClassVar = {
        "tokens": "bins",
        "{}.count": "bins d_model",
        "{}.max_abs": "max: bins d_model",
        "{}.max_ratio": "max: bins d_model",
    }

    def __init__(self, model: Model) -> None:
        n_ctx = int(model.cfg.n_ctx)
        n_states = model.cfg.n_layers + 1
        super().__init__(model.W_U.device, n_ctx=n_ctx)
        self.model = model
        self.states = range(n_states)
        self.starts = position_bins(n_ctx)
        self.add_states(model.cfg, self.states, bins=len(self.starts))

    def hooks(self, batch: Batch) -> Recipe:
        real = batch.mask.bool()
        places = torch.arange(real.shape[1], device=real.device)
        place = torch.bucketize(places, torch.tensor(self.starts, device=real.device), right=True) - 1
        self.add("tokens", torch.bincount(place, real.sum(0), minlength=len(self.starts)))
        recipe: Recipe = []
        for state in self.states:
            read = partial(self._read, state, batch, place)
            recipe.extend(jointly([state_name(self.model, state)], read))
        return recipe

    def _read(self, state: int, batch: Batch, place: Tensor, activation: Float[Tensor, "batch pos d_model"]) -> None:
        large = large_values(batch, state, activation)
        if not large.massive.any():
            return
        shape = self.state[f"{state}.count"].shape
        where = (place[large.pos] * shape[1] + large.dim)[large.massive].to(self.device)
        counts = torch.ones(len(where), dtype=torch.float64, device=self.device)
        self.add(f"{state}.count", torch.bincount(where, counts, minlength=shape.numel()).view(shape))
        for name, values in {"max_abs": large.size, "max_ratio": large.ratio}.items():
            sizes = values[large.massive].to(self.device).double()
            largest = torch.full((shape.numel(),), -torch.inf, dtype=torch.float64, device=self.device)
            self.add(f"{state}.{name}", largest.scatter_reduce_(0, where, sizes, "amax").view(shape))

    @property
    def table(self) -> pd.DataFrame:
        """The table `massive` of an `interp.attention.AttentionStudy`, where `n_tokens` are all tokens at these
        positions and ratios are to the median of a hidden state."""
        tokens = self.state["tokens"].tolist()
        last = np.append(self.starts[1:], self.model.cfg.n_ctx) - 1
        rows = []
        for state in self.states:
            count = self.state[f"{state}.count"].cpu()
            max_abs = self.state[f"{state}.max_abs"].cpu()
            max_ratio = self.state[f"{state}.max_ratio"].cpu()
            for dim, place in count.T.nonzero().tolist():
                row = (state, dim, self.starts[place], last[place], int(count[place, dim]), int(tokens[place]))
                rows.append((*row, float(max_abs[place, dim]), float(max_ratio[place, dim])))
        kinds = dict(dict.fromkeys(_COLUMNS, "int64"), max_abs="float64", max_ratio="float64")
        return pd.DataFrame(rows, columns=_COLUMNS).astype(kinds)
