"""Which keys a query sees, and sums over them."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["Span"]

_SUMMED_AT_ONCE = 32  # positions


@dataclass(frozen=True)
class Span:
    """Which keys a query sees: all keys, those up to its own position (`causal`), or the last `window` of these."""

    causal: bool
    window: int | None

    def mask(self, length: int, queries: slice = slice(None)) -> Bool[Tensor, "query key"]:
        """Return which keys the queries see in a row of this length. Returns the rows of some queries, by default of
        all."""
        return self.seen_from(torch.arange(length)[queries], length)

    def seen_from(self, queries: Int[Tensor, "*query"], length: int) -> Bool[Tensor, "*query key"]:
        """Return which keys of a row of this length the queries at these positions see."""
        distance = queries[..., None] - torch.arange(length, device=queries.device)
        visible = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        return visible if self.window is None else visible & (distance < self.window)

    def up_to(self, values: Float[Tensor, "batch pos *rest"]) -> Float[Tensor, "batch pos *rest"]:
        """Sum the values at the keys that each query sees."""
        if not self.causal:
            return values.sum(1, keepdim=True).expand_as(values)
        sums = _running_sums(values)
        if self.window is None or self.window >= values.shape[1]:
            return sums
        return torch.cat([sums[:, : self.window], sums[:, self.window :] - sums[:, : -self.window]], 1)

    def over_queries(self, values: Float[Tensor, "batch pos *rest"]) -> Float[Tensor, "batch pos *rest"]:
        """Sum the values at the queries that see each key."""
        return self.up_to(values.flip(1)).flip(1)


def _running_sums(values: Float[Tensor, "batch pos *rest"]) -> Float[Tensor, "batch pos *rest"]:
    """`values.cumsum(1)` in blocks of positions, as matrix products: 2 to 9 times as fast for wide values."""
    flat = values.reshape(*values.shape[:2], -1)
    length = values.shape[1]
    blocks = pad(flat, (0, 0, 0, -length % _SUMMED_AT_ONCE)).unflatten(1, (-1, _SUMMED_AT_ONCE))
    within = blocks.new_ones(_SUMMED_AT_ONCE, _SUMMED_AT_ONCE).tril() @ blocks
    within += pad(within[:, :-1, -1], (0, 0, 1, 0)).cumsum(1)[:, :, None]
    return within.flatten(1, 2)[:, :length].reshape(values.shape)
