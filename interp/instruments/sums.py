"""Sums over (query, key) pairs of what each dimension of a key contributes to the score, by group of texts and class.

See `interp.attention.scores` for the formula.
"""

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple, TypeAlias

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.models.qk import QKCircuit

__all__ = ["Patterns", "Rows", "attended_queries", "pair_sums"]
__dir__ = __all__.copy

_AT_ONCE = 2**18  # contributions of single keys to one head that fit in a processor's cache

Patterns: TypeAlias = Iterable[tuple[slice, slice, Float[Tensor, "batch head query key"]]]
"""The attention of a few queries to some keys at a time; see `QKCircuit.patterns`."""


class Rows(NamedTuple):
    """What the sums of the rows of a batch are made of.

    `share` is the share of a class in the keys that each query sees. `u` is used if pairs are weighted by attention.
    `group` has the number of each row's group of texts, from 0 to `n_groups` − 1.
    """

    q: Float[Tensor, "batch pos head d_head"]
    x: Float[Tensor, "batch pos d_model"]
    real: Bool[Tensor, "batch pos"]
    one_hot: Float[Tensor, "batch pos classes"]
    weight: Float[Tensor, "batch heads classes"]
    share: Float[Tensor, "batch pos heads classes"]
    u: Float[Tensor, "batch pos head d_head"] | None
    group: Int[Tensor, " batch"]
    n_groups: int

    def by_group(self, values: Float[Tensor, "batch *shape"]) -> Float[Tensor, "groups *shape"]:
        """Add up the values of each row by group."""
        return values.new_zeros(self.n_groups, *values.shape[1:]).index_add_(0, self.group, values)


def attended_queries(
    circuit: QKCircuit, q: Tensor, one_hot: Float[Tensor, "batch key classes"], patterns: Patterns
) -> tuple[Float[Tensor, "batch key head d_head"], Float[Tensor, "batch query head classes"]]:
    """Compute `u_n = R_nᵀ Σ_m A_mn R_m q_m`, where A is the attention, and the attention of each query to each
    class."""
    u = torch.zeros_like(q)
    mass = q.new_zeros(*q.shape[:3], one_hot.shape[2])
    for queries, keys, pattern in patterns:
        u[:, keys] += einsum(
            pattern, q[:, queries], "batch head query key, batch query head d_head -> batch key head d_head"
        )
        mass[:, queries] = einsum(
            pattern, one_hot[:, keys], "batch head query key, batch key classes -> batch query head classes"
        )
    return circuit.rotate_back(u), mass


def pair_sums(circuit: QKCircuit, rows: Rows, *, centred: bool, sums_to_one: bool) -> list[Tensor]:
    """Sum over all pairs, by group, head and class: contributions, queries and, if `centred`, key-centred
    contributions.

    Args:
        sums_to_one: the shares of all classes make 1, so that centred contributions of all classes add up to 0.
    """
    u = _queries_by_key(circuit, rows.q) if rows.u is None else rows.u
    query = einsum(u, rows.one_hot, "batch key head d_head, batch key classes -> batch head classes d_head")
    sums = [_over_keys(circuit, rows, u), rows.by_group(query * rows.weight[..., None])]
    return [*sums, sums[0] - _key_means(circuit, rows, sums[0].sum(2) if sums_to_one else None)] if centred else sums


def _key_means(
    circuit: QKCircuit, rows: Rows, of_all: Float[Tensor, "groups head d_model"] | None
) -> Float[Tensor, "groups head classes d_model"]:
    """What centring subtracts from each class's sum: queries weighted by their share of it, over all keys they see.

    `Σ_m s_m Σ_n C_j = Σ_m s_m [W_K q_m]_j Σ_n x_nj`, n the keys that m sees. With RoPE, which turns each key by its own
    position, keys are summed over last, `Σ_n x_nj [W_K u_n]_j`, for one class after the other; where the means of all
    classes are known to add up to `of_all`, the last class is the rest of it.
    """
    share = rows.weight[:, None] * rows.share
    if not circuit.span.causal:
        q = einsum(rows.q, share, "batch pos head d_head, batch pos head classes -> batch classes head d_head")
        identity = torch.eye(share.shape[3], dtype=share.dtype, device=share.device)[None, :, None]
        x = rows.x.sum(1, keepdim=True).expand(-1, share.shape[3], -1)
        return _one_by_one(circuit, rows, q, x, identity.expand(len(q), -1, -1, -1))
    if not circuit.rotates:
        return _one_by_one(circuit, rows, rows.q, circuit.span.up_to(rows.x), share)
    all_keys = rows._replace(one_hot=rows.real[..., None].to(rows.x), weight=torch.ones_like(rows.weight[..., :1]))
    of_classes = share.unbind(-1) if of_all is None else share.unbind(-1)[:-1]
    means = []
    for of_class in of_classes:
        queries = _queries_by_key(circuit, rows.q * of_class[..., None])
        means.append(_over_keys(circuit, all_keys, queries))
    if of_all is not None:
        means.append(of_all[:, :, None] - sum(means))
    return torch.cat(means, 2)


def _queries_by_key(circuit: QKCircuit, q: Tensor) -> Float[Tensor, "batch key head d_head"]:
    """`u_n = R_nᵀ Σ_m R_m q_m` over the queries that see key n, of a causal model."""
    return circuit.rotate_back(circuit.span.over_queries(q))


def _over_keys(
    circuit: QKCircuit, rows: Rows, u: Float[Tensor, "batch key head d_head"]
) -> Float[Tensor, "groups head classes d_model"]:
    """`Σ_n w_n x_nj [W_K u_n]_j` over the keys of each group and class, w the weight of the key's row and head.

    Key by key, `d_model` products for each key and head are made and added up; with all keys of a group and class at
    once, `d_head d_model` for each group, class and head. The way with fewer products is chosen.
    """
    classes = rows.one_hot.shape[2]
    if rows.real.numel() > u.shape[3] * rows.n_groups * classes:
        return _all_at_once(circuit, rows, u)
    return _one_by_one(circuit, rows, u, rows.x, rows.one_hot[:, :, None] * rows.weight[:, None])


def _one_by_one(
    circuit: QKCircuit,
    rows: Rows,
    q: Float[Tensor, "batch pos head d_head"],
    x: Float[Tensor, "batch pos d_model"],
    weight: Float[Tensor, "batch pos heads classes"],
) -> Float[Tensor, "groups head classes d_model"]:
    """`Σ_n w_n x_nj [W_K q_n]_j` over the positions of each group."""
    W_K = circuit.W_K.mT.to(q)
    (batch, length, heads, _) = q.shape
    n_rows, n_positions = max(1, _AT_ONCE // (length * x.shape[2])), max(1, _AT_ONCE // x.shape[2])
    weight = rearrange(weight, "batch pos heads classes -> heads batch classes pos").contiguous()
    weight = weight.expand(heads, -1, -1, -1)
    sums = x.new_zeros(heads, rows.n_groups, weight.shape[2], x.shape[2])
    for row, position in product(range(0, batch, n_rows), range(0, length, n_positions)):
        part = slice(row, row + n_rows), slice(position, position + n_positions)
        group, its_x = rows.group[part[0]], x[part]
        for head in range(heads):
            products = (q[..., head, :][part].flatten(0, 1) @ W_K[head]).view(its_x.shape).mul_(its_x)
            sums[head].index_add_(0, group, weight[head, part[0], :, part[1]] @ products)
    return sums.transpose(0, 1)


def _all_at_once(
    circuit: QKCircuit, rows: Rows, u: Float[Tensor, "batch key head d_head"]
) -> Float[Tensor, "groups head classes d_model"]:
    W_K = circuit.W_K.mT.to(u)
    classes = rows.one_hot.shape[2]
    sums = rows.x.new_zeros(rows.n_groups, u.shape[2], classes, rows.x.shape[2])
    for group in range(rows.n_groups):
        of_group = (rows.group == group).nonzero()[:, 0]
        its_u = u[of_group]
        its_x = rows.x[of_group]
        its_classes = rows.one_hot[of_group]
        for c in range(classes):
            row, key = its_classes[..., c].nonzero(as_tuple=True)
            weighted = its_u[row, key] * rows.weight[of_group[row], :, c, None]
            products = (weighted.flatten(1).T @ its_x[row, key]).unflatten(0, weighted.shape[1:])
            sums[group, :, c] = (products * W_K).sum(1)
    return sums
