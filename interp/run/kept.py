"""Readings that begin in the middle: what comes before an edit is computed once, for any number of edits."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from interp.corpora.batching import Batch
from interp.models.running import firing, head_is_hooked, hooks_of_others
from interp.models.sites import Model, depth, state_name, view
from interp.run import distributed
from interp.run.observers import feed, forward
from interp.run.passes import Passes

__all__ = ["Kept", "execute_from", "keep"]

_R = TypeVar("_R")
_MOST_BYTES = 2**26
Edit: TypeAlias = Callable[[Float[Tensor, "batch pos d_model"]], Float[Tensor, "batch pos d_model"]]


class Kept(NamedTuple):
    """The residual stream of batches at a hidden state; at the last one only where it is read, `[1, n_read, d_model]`,
    unless somebody has hooks on the prediction head."""

    state: int
    streams: list[tuple[Batch, Tensor]]


@torch.no_grad()
def keep(model: Model, analysis: Passes[object], state: int) -> Kept | None:
    """The residual stream at a hidden state, of every batch that an analysis reads first.

    None if it has more than 64 MiB, where other processes read a part of the batches, and for a model that runs from
    its tokens alone (a bridge): then read from the start.
    """
    if not view(model).starts_within or distributed.part().grouped:
        return None
    name, seen = state_name(model, state), list[Tensor]()
    narrow = state == model.cfg.n_layers and not head_is_hooked(model)
    streams, n_bytes = list[tuple[Batch, Tensor]](), 0
    (reading,) = next(analysis)
    for batch in reading.batches:
        here = batch.to(model.W_U.device)
        with firing(model, [(name, lambda stream, hook: seen.append(stream))]):
            forward(model, here, depth([name]))
        stream = seen.pop()
        streams.append((here, here.select(stream)[None] if narrow else stream))
        n_bytes += streams[-1][1].nbytes
        if n_bytes > _MOST_BYTES:
            return None
    return Kept(state, streams)


def execute_from(model: Model, analysis: Passes[_R], kept: Kept, edit: Edit) -> _R:
    """The result of an analysis that reads the kept batches, and whose observers listen after the kept state, with the
    residual stream edited there."""
    hooks = hooks_of_others(model)
    while True:
        try:
            wanted = next(analysis)
        except StopIteration as end:
            return end.value
        observers = tuple(observer for reading in wanted for observer in reading.observers)
        for batch, stream in kept.streams:
            feed(model, batch, observers, hooks, start=(kept.state, edit(stream)))
            for observer in observers:
                observer.commit()
