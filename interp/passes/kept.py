"""Readings that start in the middle of a model: what comes before an edit is computed once for any number of edits."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from interp.corpora.batching import Batch
from interp.models.running import firing, head_is_hooked, hooks_of_others
from interp.models.sites import Model, depth, state_name, view
from interp.passes import distributed
from interp.passes.execution import Passes
from interp.passes.observers import Observer
from interp.passes.reading import feed, forward

__all__ = ["Kept", "execute_from", "keep"]

_R = TypeVar("_R")
_MOST_BYTES = 2**26
Edit: TypeAlias = Callable[[Float[Tensor, "batch pos d_model"]], Float[Tensor, "batch pos d_model"]]


class Kept(NamedTuple):
    """The residual stream of batches at a hidden state. At the last state, only the positions that are read are kept,
    `[1, n_read, d_model]`, unless the prediction head has other hooks."""

    state: int
    streams: list[tuple[Batch, Tensor]]


@torch.no_grad()
def keep(model: Model, analysis: Passes[object], state: int) -> Kept | None:
    """Keep the residual stream at a hidden state, for every batch of an analysis's first reading.

    It is None if it would take more than 64 MiB, if other processes read some of the batches, or if the model can only
    be run from its tokens (a bridge). Batches must then be read from the start.
    """
    if not view(model).starts_within or distributed.part().grouped:
        return None
    name = state_name(model, state)
    captured = list[Tensor]()
    narrow = state == model.cfg.n_layers and not head_is_hooked(model)
    streams = list[tuple[Batch, Tensor]]()
    n_bytes = 0
    (reading,) = next(analysis)
    for batch in reading.batches:
        here = batch.to(model.W_U.device)
        with firing(model, [(name, lambda stream, hook: captured.append(stream))]):
            forward(model, here, depth([name]))
        stream = captured.pop()
        streams.append((here, here.select(stream)[None] if narrow else stream))
        n_bytes += streams[-1][1].nbytes
        if n_bytes > _MOST_BYTES:
            return None
    return Kept(state, streams)


def execute_from(model: Model, analysis: Passes[_R], kept_streams: Kept, edit: Edit) -> _R:
    """Compute the result of an analysis with the residual stream edited at the kept state. It must read the kept
    batches, and its observers must listen after that state."""
    hooks = hooks_of_others(model)
    while True:
        try:
            readings = next(analysis)
        except StopIteration as end:
            return end.value
        observers: list[Observer] = []
        for reading in readings:
            observers.extend(reading.observers)
        for batch, stream in kept_streams.streams:
            feed(model, batch, observers, hooks, start=(kept_streams.state, edit(stream)))
            for observer in observers:
                observer.commit()
