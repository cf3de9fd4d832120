"""Means, variances and covariances that merge without losing digits: centred sums instead of sums of squares.

`E[x²] − E[x]²` loses all digits if the mean is 1e8 times the SD. Here a *moments* tensor holds, along its first
dimension, the number n of observations, the mean of each of k variables in two parts (its float64 value and the
remainder), and the centred sums `Σ (a − ā)(b − b̄)` of each pair. There are `1 + 2k + k(k + 1)/2` rows of any shape.
They merge by

    mean = mean₁ + δ n₂/n,    C = C₁ + C₂ + δ_a δ_b n₁ n₂/n,    δ = mean₂ − mean₁

Source: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance", The American Statistician 37, 1983.
"""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["ROWS", "all_reduce", "by_group", "correlation", "mean", "merged", "of_pairs", "variance"]
__dir__ = __all__.copy

ROWS = {1: 4, 2: 8}
"""Rows of a moments tensor of one variable, and of two."""


def by_group(x: Float[Tensor, "n d"], one_hot: Float[Tensor, "n groups"]) -> Float[Tensor, "4 groups d"]:
    """Compute the moments of each column of x within each group of rows. Overwrites x."""
    count = one_hot.sum(0)[:, None]
    mean = one_hot.T @ x / count.clamp(min=1)
    x.addmm_(one_hot, mean, alpha=-1)
    remainder = one_hot.T @ x / count.clamp(min=1)
    products = one_hot.T @ x.square_() - count * remainder**2
    return torch.stack([count.expand_as(mean), *_two_parts(mean, remainder), products])


def of_pairs(x: Float[Tensor, "n d"], y: Float[Tensor, "n m"]) -> Float[Tensor, "8 m d"]:
    """Compute the moments of each column of x with each column of y. Overwrites x."""
    n = len(x)
    y = y.clone()
    means = []
    for values in (x, y):
        mean = values.sum(0) / max(n, 1)
        values -= mean
        remainder = values.sum(0) / max(n, 1)
        values -= remainder
        means.append(_two_parts(mean, remainder))
    (x_mean, x_rest), (y_mean, y_rest) = means
    y_x = y.T @ x
    x_x = x.square_().sum(0)
    y_y = y.square_().sum(0)[:, None]
    rows = x.new_tensor(n), x_mean, y_mean[:, None], x_rest, y_rest[:, None], x_x, y_x, y_y
    return torch.stack(torch.broadcast_tensors(*rows))


def merged(x: Float[Tensor, "rows *shape"], y: Float[Tensor, "rows *shape"]) -> Float[Tensor, "rows *shape"]:
    """Merge the moments of two samples."""
    n, mean, remainder, products = _parts(x)
    m, its_mean, its_rest, its_products = _parts(y)
    share = m / (n + m).clamp(min=1)
    difference = (its_mean - mean) + (its_rest - remainder)
    a, b = torch.triu_indices(len(mean), len(mean), device=mean.device)
    products = products + its_products + n * share * difference[a] * difference[b]
    return torch.cat([n + m, *_two_parts(mean, remainder + share * difference), products])


def all_reduce(moments: Float[Tensor, "rows *shape"]) -> Float[Tensor, "rows *shape"]:
    """Merge the moments of the samples of all processes of the `torch.distributed` group together."""
    operations = torch.distributed.ReduceOp
    n, mean, remainder, products = _parts(moments)
    pivot = torch.where(n > 0, mean, -torch.inf)
    torch.distributed.all_reduce(pivot, operations.MAX)
    pivot = torch.where(pivot.isfinite(), pivot, 0.0)
    difference = torch.where(n > 0, (mean - pivot) + remainder, 0.0)
    sums = torch.cat([n, n * difference])
    torch.distributed.all_reduce(sums, operations.SUM)
    total = sums[:1]
    offset = sums[1:] / sums[:1].clamp(min=1)
    a, b = torch.triu_indices(len(mean), len(mean), device=mean.device)
    products = products + n * (difference - offset)[a] * (difference - offset)[b]
    torch.distributed.all_reduce(products, operations.SUM)
    return torch.cat([total, *_two_parts(pivot, offset), products])


def mean(moments: Float[Tensor, "4 *shape"]) -> Float[Tensor, "*shape"]:
    """Compute the mean; 0 if there are no observations."""
    return moments[1]


def variance(moments: Float[Tensor, "rows *shape"], variable: int = 0) -> Float[Tensor, "*shape"]:
    """Compute the population variance, exactly 0 if all values are equal."""
    n, means, _, products = _parts(moments)
    squares = products[variable * len(means)]
    step = torch.finfo(moments.dtype).eps * means[variable].abs()  # the distance from this mean to the next float64
    return torch.where(squares > (step / 4) ** 2, squares / n[0].clamp(min=1), 0.0)


def correlation(moments: Float[Tensor, "8 *shape"]) -> Float[Tensor, "*shape"]:
    """Compute Pearson's correlation of the two variables; NaN if one of them is constant."""
    both = variance(moments, 0) * variance(moments, 1)
    return torch.where(both > 0, moments[6] / moments[0].clamp(min=1) / both.sqrt(), torch.nan)


def _parts(moments: Tensor) -> tuple[Tensor, ...]:
    """The rows with n, the means, their remainders and the centred sums."""
    k = 1 if len(moments) == ROWS[1] else 2
    return moments.split([1, k, k, k * (k + 1) // 2])


def _two_parts(large: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    """A sum as its rounded value and the rounding error (Knuth's two-sum)."""
    total = large + small
    back = total - large
    return total, (large - (total - back)) + (small - back)
