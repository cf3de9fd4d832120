"""Word frequency in the prediction head (Kobayashi et al. 2023), after Menon et al. 2021 for balanced errors.

q [V] is the mean predicted distribution, u [V] the unigram distribution.
"""

import math
from typing import NamedTuple

import numpy as np
import torch


def kl(u: np.ndarray, q: np.ndarray) -> float:
    """KL(u‖q) = Σ_w u(w) log(u(w) / q(w)) over types with u(w) > 0, in nats."""
    total = 0.0
    for u_w, q_w in zip(u.tolist(), q.tolist(), strict=True):
        if u_w > 0:
            total += u_w * math.log(u_w / q_w)
    return total


def js(u: np.ndarray, q: np.ndarray) -> float:
    """JS(u, q) = ½ KL(u‖m) + ½ KL(q‖m), m = (u + q) / 2."""
    m = (u + q) / 2
    return (kl(u, m) + kl(q, m)) / 2


def mean_distribution(log_p: torch.Tensor) -> np.ndarray:
    """q(w): the mean over positions of p(w), a mean of probabilities; log p is [..., V]."""
    return log_p.double().exp().reshape(-1, log_p.shape[-1]).mean(0).numpy()


def nll(log_p: torch.Tensor, ids: torch.Tensor) -> np.ndarray:
    """−log p of each next token [rows, pos − 1], for log p [rows, pos, V] and token ids [rows, pos]."""
    return -log_p[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].double().numpy()


def balanced_nll(nlls: np.ndarray, tokens: np.ndarray, types: np.ndarray) -> float:
    """The NLL averaged within each of these types, then over the types (the balanced error of Menon et al. 2021)."""
    return float(np.mean([nlls[tokens == w].mean() for w in types]))


def perplexity(nlls: np.ndarray) -> float:
    """exp of the mean NLL over all tokens."""
    return float(np.exp(np.mean(nlls)))


def mean_written(parts: list[np.ndarray], gamma: np.ndarray, eps: float, *, rms: bool) -> list[np.ndarray]:
    """What each part [N, d] of the final residual stream writes of E[h] = E[LN(x)] without b_LN.

    LN(x) = (x − m) / s ⊙ γ is linear in the parts of x for the m and s of their sum; an RMS norm has no m.
    """
    x = sum(parts)
    m = 0 if rms else x.mean(1, keepdims=True)
    s = np.sqrt(np.square(x - m).mean(1, keepdims=True) + eps)
    means = []
    for part in parts:
        centre = 0 if rms else part.mean(1, keepdims=True)
        means.append(((part - centre) / s).mean(0) * gamma)
    return means


class Bins(NamedTuple):
    """Sums over positions [bands, 10], by band of word frequency and tenth of the mass m that is predicted for it."""

    predicted: np.ndarray
    """Σ m."""
    observed: np.ndarray
    """How often the token is in the band."""
    variance: np.ndarray
    """Σ m (1 − m), the variance of `observed` if the model is calibrated."""


def bands(p: np.ndarray, tokens: np.ndarray, band: np.ndarray) -> Bins:
    """Predictions p [N, V] of tokens [N] in bins, for the band of each type [V]."""
    n_bands = band.max() + 1
    bins = Bins(*np.zeros((3, n_bands, 10)))
    for p_n, token in zip(p, tokens.tolist(), strict=True):
        for b in range(n_bands):
            m = float(p_n[band == b].sum())
            at = b, min(int(m * 10), 9)
            bins.predicted[at] += m
            bins.observed[at] += band[token] == b
            bins.variance[at] += m * (1 - m)
    return bins


def calibration_error(bins: Bins) -> np.ndarray:
    """Σ over bins |predicted − observed| / N, by band."""
    return np.abs(bins.predicted - bins.observed).sum(1) / bins.observed.sum()


def calibration_floor(bins: Bins) -> np.ndarray:
    """The mean error of a calibrated model, by band: E|x| = √(2 v / π) of a normal x, at most 2 v."""
    v = bins.variance
    return np.minimum(np.sqrt(2 * v / np.pi), 2 * v).sum(1) / bins.observed.sum()
