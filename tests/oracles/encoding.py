"""Token probability in output embeddings (Cho et al. 2025), and neurons of the last MLP (Stolfo et al. 2024).

E [types, d] are output embeddings, α [types] mean output probabilities, log p [positions, types] predictions.
"""

import numpy as np
import torch
from scipy import optimize, stats


def least_squares(E: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float, float, float]:
    """A, B, R² and adjusted R² = 1 − (1 − R²)(n − 1)/(n − d − 1) of y ≈ E A + B, y = −log α."""
    design = np.column_stack([E, np.ones(len(E))])
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    r2 = r_squared(y, design @ solution)
    n, d = E.shape
    return solution[:-1], solution[-1], r2, 1 - (1 - r2) * (n - 1) / (n - d - 1)


def r_squared(y: np.ndarray, predicted: np.ndarray) -> float:
    """R² = 1 − Σ (y − ŷ)² / Σ (y − ȳ)²."""
    return 1 - ((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum()


def theory(log_p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """−log α to first order in log p, −E[log p], and to second order, −E[log p] − ½ Var(log p)."""
    return -log_p.mean(0), -log_p.mean(0) - log_p.var(0) / 2


def pruning(log_p: torch.Tensor, log_q: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """What removing dimensions does to predictions p, which become q; a target below 0 is not scored.

    The mean over positions of KL(p‖q), JS between the mean distributions, the share of positions whose most probable
    type stays the same, and the perplexity of the targets under q.
    """
    p, q = log_p.exp().mean(0), log_q.exp().mean(0)
    scored = targets >= 0
    return {
        "kl": float((log_p.exp() * (log_p - log_q)).sum(-1).mean()),
        "js": (stats.entropy(p, (p + q) / 2) + stats.entropy(q, (p + q) / 2)) / 2,
        "top1_agreement": float((log_p.argmax(-1) == log_q.argmax(-1)).double().mean()),
        "perplexity": float(torch.exp(-log_q[scored].gather(1, targets[scored, None]).mean())),
    }


def steering_direction(A: np.ndarray, weights: str) -> np.ndarray:
    """u with A·u = 1: Ω ⊙ A⁻¹ element by element, for weights Ω of the dimensions that sum to 1.

    Ω ∝ A² gives the least norm, u = A / ‖A‖²; Ω ∝ |A|; or equal weights on the tenth of dimensions of largest |A|.
    """
    size = np.abs(A)
    n = max(1, round(len(A) / 10))
    omega = {
        "least_norm": A**2 / (A**2).sum(),
        "weighted": size / size.sum(),
        "top": (size >= np.sort(size)[-n]) / n,
    }[weights]
    return omega * A**-1.0


def constant_shift(p: np.ndarray, ratio: float) -> float:
    """The s to add to one token's logit so that its mean probability, E[p], is multiplied by a ratio above 1.

    The root of E[p eˢ / (1 − p + p eˢ)] = r E[p].
    """
    return optimize.brentq(lambda s: (p * np.exp(s) / (1 - p + p * np.exp(s))).mean() - ratio * p.mean(), 0, 10)


def loss(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """The mean of −log p of the targets; one below 0 is not scored."""
    scored = targets >= 0
    return float(-logits.log_softmax(-1)[scored].gather(1, targets[scored, None]).mean())


def entropy(logits: torch.Tensor) -> float:
    """The mean over positions of −Σ p log p."""
    log_p = logits.log_softmax(-1)
    return -float((log_p.exp() * log_p).sum(-1).mean())


def kl_to_unigram(logits: torch.Tensor, log_u: torch.Tensor) -> float:
    """The mean over positions of KL(p‖u)."""
    log_p = logits.log_softmax(-1)
    return float((log_p.exp() * (log_p - log_u)).sum(-1).mean())


def without_frequency(edited: torch.Tensor, logits: torch.Tensor, log_u: torch.Tensor) -> torch.Tensor:
    """Edited logits whose change has no part along log u − mean(log u), the direction of word frequency."""
    direction = (log_u - log_u.mean()) / (log_u - log_u.mean()).norm()
    return edited - ((edited - logits) @ direction)[:, None] * direction


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """cos(a, b) = a·b / (‖a‖ ‖b‖)."""
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)
