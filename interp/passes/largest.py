"""The largest values of variables and their places, in a form that merges. They do not depend on the batches, the order
or the parts in which a corpus is read.

A *largest* tensor `[2, d, k]` holds, for each of d variables, the k values of largest magnitude (with their signs) and
their places, which are distinct whole numbers from 0. They are ordered by magnitude, and equal values by place.
Magnitudes count as equal if their first 13 binary digits agree: the last digits of what a model computes depend on how
rows are batched, and must not decide which of many equal beginnings of rows are kept. If there are fewer than k values,
the rest of both is −∞.
"""

from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["all_reduce", "merged", "of_values"]

_LEFT_OUT = 10  # bits that are left out, of the 23 after the leading one in float32
_NOTHING = -torch.inf


def of_values(
    values: Float[Tensor, "n d"], places: Int[Tensor, " n"], earlier_largest: Float[Tensor, "2 d k"]
) -> Float[Tensor, "2 d k"]:
    """Return the largest values of each column that can displace those in `earlier_largest`."""
    least = torch.where(
        earlier_largest[1, :, -1] >= 0, earlier_largest[0, :, -1].abs() * (1 - 2 ** (_LEFT_OUT - 22)), 0.0
    )
    chosen = (values.abs() >= least.to(values)).any(1)
    values = values[chosen].to(earlier_largest.device)
    places = places[chosen].to(earlier_largest.device)
    places, order = places.sort()
    values = values[order]
    earlier = torch.arange(len(values) - 1, -1, -1, device=values.device)
    best = (_size(values) << 32 | earlier[:, None]).topk(min(earlier_largest.shape[2], len(values)), 0).indices
    largest = torch.full_like(earlier_largest, _NOTHING)
    largest[0, :, : len(best)] = values.gather(0, best).T.to(earlier_largest)
    largest[1, :, : len(best)] = places[best].T.to(earlier_largest)
    return largest


def merged(a: Float[Tensor, "2 d k"], b: Float[Tensor, "2 d k"]) -> Float[Tensor, "2 d k"]:
    """Merge the largest values of two samples."""
    both = torch.cat([a, b], 2)
    both = both.gather(2, both[1].argsort(dim=1).expand_as(both))
    size = torch.where(both[1] >= 0, _size(both[0]), -1)
    order = size.argsort(dim=1, descending=True, stable=True)[:, : a.shape[2]]
    return both.gather(2, order.expand(2, -1, -1))


def all_reduce(largest: Float[Tensor, "2 d k"]) -> Float[Tensor, "2 d k"]:
    """Merge the largest values of all processes of the `torch.distributed` group together."""
    parts = [torch.empty_like(largest) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, largest.contiguous())
    return reduce(merged, parts)


def _size(values: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Whole numbers in the order of the magnitudes; equal magnitudes get the same number."""
    return (values.abs().float().view(torch.int32) >> _LEFT_OUT).long()
