"""Random orthonormal directions, the same for everything that they are a control of."""

import torch
from jaxtyping import Float
from torch import Tensor

from interp.support.checks import check_seed

__all__ = ["random_frames"]


def random_frames(d_model: int, n_dims: int, *, draws: int, seed: int = 0) -> Float[Tensor, "draw dim d_model"]:
    """Draw orthonormal directions r_1 … r_k in R^d uniformly (Haar), as rows.

    `[r_1 … r_k] = Q sign(diag R)`, where QR is a matrix of N(0, 1) numbers.

    Source: Mezzadri, "How to Generate Random Matrices from the Classical Compact Groups", Notices of the AMS 54, 2007.

    Raises ValueError for more directions than dimensions, and for a seed that is below 0.

    Examples:
        >>> frames = random_frames(16, 3, draws=39)
        >>> torch.allclose(frames @ frames.mT, torch.eye(3).double().expand(39, 3, 3))
        True
    """
    if n_dims > d_model:
        raise ValueError(f"{n_dims} orthonormal directions do not exist in {d_model} dimensions; ask for fewer")
    generator = torch.Generator().manual_seed(check_seed(seed))
    drawn = torch.randn(draws, d_model, n_dims, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(drawn)
    return (q * r.diagonal(dim1=1, dim2=2).sign()[:, None]).mT
