"""Random directions in the prediction head's input, to compare a direction with."""

from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import rankdata
from torch import Tensor

from interp.models.embeddings import Embeddings

__all__ = ["MOST_NUMBERS", "DirectionKind", "random_directions", "rank_correlations", "spearman_of"]
__dir__ = __all__.copy

DirectionKind: TypeAlias = Literal["isotropic", "embeddings", "centred embeddings"]
"""What a random direction is like: any direction, or a sum of output embeddings as they are, or centred."""

MOST_NUMBERS = 2**25
"""How many numbers the product of directions and embeddings may have at a time: 256 MiB."""


def random_directions(
    embeddings: Embeddings, kind: DirectionKind, n: int, *, seed: int = 0
) -> Float[Tensor, "n d_model"]:
    """Draw random directions of unit length in the space of the output embeddings, in float64 on the CPU.

    - `isotropic`: uniform on the sphere.
    - `embeddings`: `Σ_w g_w E_w` with independent `g_w ~ N(0, 1)`. These vary as the embeddings do, and share their
      common direction, the mean embedding.
    - `centred embeddings`: the same with the mean over types subtracted from each embedding.

    The embeddings are read in blocks, so memory does not grow with their number.

    Args:
        embeddings: the types to draw from, with or without those that a tokenizer does not know.

    Raises ValueError if all embeddings (or all centred ones) are zero, since their sum has no direction.

    Examples:
        >>> E = Embeddings(torch.tensor([[3.0, 3.0, 3.0], [0.0, 0.1, -0.1]]))
        >>> random_directions(E, "embeddings", 3)[:, 0].abs().round(decimals=1).tolist()
        [1.0, 1.0, 1.0]
        >>> random_directions(E, "centred embeddings", 3).abs().round(decimals=1).tolist()
        [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.zeros(n, embeddings.d_model, dtype=torch.float64)
    if kind == "isotropic":
        drawn.normal_(generator=generator)
    else:
        mean = _mean(embeddings) if kind == "centred embeddings" else drawn.new_zeros(embeddings.d_model)
        for _, block in embeddings.in_small_blocks.blocks():
            g = torch.randn(n, len(block), generator=generator, dtype=torch.float64)
            drawn += (g.to(block.device) @ (block - mean.to(block.device))).cpu()
    lengths = drawn.norm(dim=1, keepdim=True)
    if not bool((lengths > 0).all()):
        raise ValueError(f"the {kind} of this model are all zero, so a sum of them has no direction")
    return drawn / lengths


def _mean(embeddings: Embeddings) -> Float[Tensor, " d_model"]:
    total = torch.zeros(embeddings.d_model, dtype=torch.float64)
    for _, block in embeddings.in_small_blocks.blocks():
        total += block.sum(0).cpu()
    return total / len(embeddings)


def spearman_of(
    x: Float[np.ndarray, " types"], embeddings: Embeddings, directions: Float[Tensor, "n d_model"]
) -> Float[np.ndarray, " n"]:
    """Compute Spearman's correlation of x with `direction · E_w` over types, for each direction, in float64.

    Args:
        embeddings: those of the types of x.

    Examples:
        >>> E = Embeddings(torch.tensor([[1.0, 2.0, 3.0], [0.0, 5.0, 1.0]]))
        >>> spearman_of(np.array([0.1, 0.2, 0.9]), E, torch.eye(2, dtype=torch.float64)).round(3).tolist()
        [1.0, 0.5]
    """
    at_once = max(1, MOST_NUMBERS // max(1, len(x)))
    parts = [rank_correlations(x, embeddings.dot(part).numpy()) for part in directions.double().split(at_once)]
    return np.concatenate(parts)


def rank_correlations(x: Float[np.ndarray, " types"], samples: Float[np.ndarray, "n types"]) -> Float[np.ndarray, " n"]:
    """Compute Spearman's correlation of x with each of the others; NaN where one is constant."""
    ranks = rankdata(x) - (len(x) + 1) / 2
    correlations = np.empty(len(samples))
    for number, values in enumerate(samples):
        sample_ranks = rankdata(values) - (len(x) + 1) / 2
        with np.errstate(invalid="ignore"):
            correlations[number] = sample_ranks @ ranks / (np.linalg.norm(sample_ranks) * np.linalg.norm(ranks))
    return correlations
