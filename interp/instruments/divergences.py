"""Divergences of distributions over the vocabulary, and perplexity."""

import math

import numpy as np
from jaxtyping import Float
from scipy.special import rel_entr

__all__ = ["Distribution", "js", "kl", "kl_where_seen", "perplexity"]
__dir__ = __all__.copy

Distribution = Float[np.ndarray, " d_vocab"]


def kl(p: Distribution, q: Distribution) -> float:
    """Compute `KL(p‖q) = Σ p log(p/q)` in nats, over types with p > 0; infinite if q = 0 for one of them."""
    support = p != 0
    return float(rel_entr(p[support], q[support]).sum())


def js(p: Distribution, q: Distribution) -> float:
    """Compute the Jensen–Shannon divergence `½ KL(p‖m) + ½ KL(q‖m)`, `m = (p + q)/2`, in nats; at most log 2."""
    support = p != 0  # if p is 0, the term with q is q log 2
    p, q_there = p[support], q[support]
    middle = (p + q_there) / 2
    return float(rel_entr(p, middle).sum() + rel_entr(q_there, middle).sum() + q[~support].sum() * math.log(2)) / 2


def kl_where_seen(q: Distribution, u: Distribution) -> tuple[float, float]:
    """Compute `KL(q‖u)` over types with u > 0, with q renormalised over these, and the mass of q on the other types."""
    support = u > 0
    mass = q[support].sum()
    return kl(q[support] / mass, u[support]), float(max(0.0, q.sum() - mass))


def perplexity(nll: float) -> float:
    """Compute `exp` of a mean NLL in nats; infinite (not an error) if that overflows, and NaN for NaN."""
    return math.inf if nll > 700 else math.exp(nll)
