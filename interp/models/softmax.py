"""Sums over the vocabulary for the softmax: exponentials in the dtype of the logits, sums in float64.

Terms that are small beside a running sum are lost in float32. The sum of 50,000 exponentials, one of them large, is
then up to 1e-5 too small, and that of 262,144 up to 3e-4. So a block of types at a time is converted to float64 and
summed there, and `Z = Σ exp(logit)` is as exact as the exponentials, 6e-8.
"""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["exponentials", "log_partition", "over_positions", "over_types"]

_LARGEST_EXPONENT = 40.0  # its exponential times a million stays far below the largest float32 number
_ELEMENTS_AT_ONCE = 2**18  # 2 MiB in float64, which stay in the cache
_POSITIONS_AT_ONCE = 32  # float32 sums of so many probabilities have a relative error below 1e-6


def exponentials(
    logits: Float[Tensor, "pos types"],
    *,
    peak: Float[Tensor, "pos 1"] | None = None,
    out: Float[Tensor, "pos types"] | None = None,
) -> tuple[Float[Tensor, "pos types"], Float[Tensor, "pos 1"]]:
    """Compute `exp(logits − offset)`, and the offset of each position.

    The offset keeps the largest exponent between 0 and 40, and is 0 if the largest logit is there already. It is a
    whole number. Unlike a difference from the largest logit, which float32 rounds by up to 4e-6, such differences are
    exact for logits that are further from 0 than from the offset.

    Args:
        peak: the largest logit of each position, if it has been computed already.
        out: memory for the exponentials.

    Examples:
        >>> e, offset = exponentials(torch.tensor([[1.0, 0.0], [-200.25, -201.25]]))
        >>> offset.tolist()
        [[0.0], [-200.0]]
    """
    if peak is None:
        peak = logits.amax(1, keepdim=True)
    offset = (peak - peak.clamp(0, _LARGEST_EXPONENT)).round()
    if bool(offset.any()):
        return torch.sub(logits, offset, out=out).exp_(), offset
    return torch.exp(logits, out=out), offset


def over_types(
    values: Float[Tensor, "pos types"], weights: Float[Tensor, "n types"] | None = None
) -> Float[Tensor, "rows pos"]:
    """Sum over types in float64: `Σ_w values_w`, and below it `Σ_w weight_w values_w` for each row of weights.

    Examples:
        >>> over_types(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)).tolist()
        [[3.0], [1.5], [2.0]]
    """
    n = 0 if weights is None else len(weights)
    sums = values.new_zeros(1 + n, len(values), dtype=torch.float64)
    step = max(1, _ELEMENTS_AT_ONCE // max(1, len(values)))
    for start in range(0, values.shape[1], step):
        types = slice(start, start + step)
        block = values[:, types].double()
        sums[0] += block.sum(1)
        if weights is not None:
            sums[1:].addmm_(weights[:, types], block.T)
    return sums


def over_positions(
    values: Float[Tensor, "pos types"], weights: Float[Tensor, "n pos"], *, out: Float[Tensor, "n types"]
) -> Float[Tensor, "n types"]:
    """Compute `Σ_pos weight_pos values_pos` for each row of weights, written to a float64 tensor.

    Examples:
        >>> out = torch.empty(1, 2, dtype=torch.float64)
        >>> over_positions(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.5, 0.5]]), out=out).tolist()
        [[2.0, 3.0]]
    """
    parts = values.split(_POSITIONS_AT_ONCE), weights.to(values).split(_POSITIONS_AT_ONCE, 1)
    for number, (part, its_weights) in enumerate(zip(*parts, strict=True)):
        product = its_weights @ part
        out.add_(product) if number else out.copy_(product)
    return out


def log_partition(logits: Float[Tensor, "pos types"]) -> Float[Tensor, " pos"]:
    """Compute `log Σ exp(logit)` over types, in float64, from exponentials in the dtype of the logits.

    Examples:
        >>> log_partition(torch.zeros(1, 1_000_000)).exp().round().tolist()
        [1000000.0]
    """
    e, offset = exponentials(logits)
    return over_types(e)[0].log() + offset[:, 0]
