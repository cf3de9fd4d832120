"""Hard-concrete gates: a differentiable stand-in for choosing dimensions.

Source: Louizos, Welling, Kingma 2018, "Learning Sparse Neural Networks through L0 Regularization", §2.2.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1


def sample_gate(
    log_alpha: Float[Tensor, "*dims"], uniform: Float[Tensor, "*#dims"]
) -> tuple[Float[Tensor, "*dims"], Float[Tensor, "*dims"]]:
    """`clip(σ((log u − log(1 − u) + a)/β)(ζ − γ) + γ, 0, 1)`, u uniform on (0, 1), and its derivative by a."""
    noise = uniform.log() - torch.log1p(-uniform)
    s = ((noise + log_alpha) / BETA).sigmoid_()
    stretched = s * (ZETA - GAMMA) + GAMMA
    gate = stretched.clamp(0, 1)
    slope = (1 - s).mul_(s).mul_((ZETA - GAMMA) / BETA).mul_(stretched == gate)
    return gate, slope


def deterministic_gate(log_alpha: Float[Tensor, "*dims"]) -> Float[Tensor, "*dims"]:
    """`clip(σ(a)(ζ − γ) + γ, 0, 1)`: no noise, and no β. A gate above 0 is open."""
    return (torch.sigmoid(log_alpha) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def open_probability(log_alpha: Float[Tensor, "*dims"]) -> Float[Tensor, "*dims"]:
    """`P(z ≠ 0) = σ(a − β log(−γ/ζ))`; its mean over dimensions is the penalty."""
    return torch.sigmoid(log_alpha - BETA * math.log(-GAMMA / ZETA))
