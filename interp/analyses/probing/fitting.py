"""Many probes fitted as one problem: tasks side by side, with λ, seeds and controls as columns of each.

`X` is `[tasks, samples, d]`, and labels are `[tasks, samples, columns]`. The data of a task is read once for all its
columns. Probes have no intercept: `p = σ(X (w ⊙ m))`. Gates are hard-concrete, a differentiable substitute for choosing
dimensions (Louizos, Welling, Kingma 2018, "Learning Sparse Neural Networks through L0 Regularization", §2.2).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from interp.analyses.probing.options import STEPS
from interp.support.checks import check_seed, whole_number

__all__ = ["LEARNING_RATE", "Sparse", "Tick", "check_l0_strengths", "deterministic_gate", "fit_dense", "fit_sparse"]
__all__ += ["open_probability", "sample_gate", "welch"]

Tick: TypeAlias = Callable[[], object]
"""Called after each step of a fit."""

BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1  # parameters of the gates
LEARNING_RATE = 0.05
_START = 2.0  # the initial log α, at which all gates are open
_SPREAD = 0.01  # SD of the initial weights and gates
_NEWTON_STEPS = 50
_ROUNDING = 1e-12  # near the minimum, rounding may make a step seem to raise the objective by this


def sample_gate(
    log_alpha: Float[Tensor, "*dims"], uniform: Float[Tensor, "*#dims"]
) -> tuple[Float[Tensor, "*dims"], Float[Tensor, "*dims"]]:
    """`clip(σ((log u − log(1 − u) + a)/β)(ζ − γ) + γ, 0, 1)` with u uniform on (0, 1), and its derivative by a."""
    noise = uniform.log() - torch.log1p(-uniform)
    s = ((noise + log_alpha) / BETA).sigmoid_()
    stretched = s * (ZETA - GAMMA) + GAMMA
    gate = stretched.clamp(0, 1)
    slope = (1 - s).mul_(s).mul_((ZETA - GAMMA) / BETA).mul_(stretched == gate)
    return gate, slope


def deterministic_gate(log_alpha: Float[Tensor, "*dims"]) -> Float[Tensor, "*dims"]:
    """`clip(σ(a)(ζ − γ) + γ, 0, 1)`, without noise and without β. A gate above 0 is open."""
    return (torch.sigmoid(log_alpha) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def open_probability(log_alpha: Float[Tensor, "*dims"]) -> Float[Tensor, "*dims"]:
    """`P(z ≠ 0) = σ(a − β log(−γ/ζ))`. Its mean over dimensions is the penalty."""
    return torch.sigmoid(log_alpha - BETA * math.log(-GAMMA / ZETA))


class Sparse(NamedTuple):
    """Fitted L0 probes: weights w and gates m at test time, each `[tasks, columns, d]`."""

    weight: Float[Tensor, "tasks columns d"]
    gate: Float[Tensor, "tasks columns d"]

    @property
    def coefficients(self) -> Float[Tensor, "tasks columns d"]:
        return self.weight * self.gate


def check_l0_strengths(l0_strengths: Iterable[float | int]) -> list[float]:
    """λ as floats. Raises ValueError outside (0, 1]."""
    strengths = list(map(float, l0_strengths))
    if not all(0 < l0_strength <= 1 for l0_strength in strengths):
        raise ValueError(f"l0_strengths (λ) must lie in (0, 1], found {strengths}")
    return strengths


@torch.no_grad()
def fit_sparse(
    X: Float[Tensor, "tasks samples d"],
    y: Float[Tensor, "tasks samples columns"],
    *,
    l0_strengths: Sequence[float | int],
    seeds: Sequence[int],
    weights: Float[Tensor, "tasks samples columns"] | None = None,
    steps: int = STEPS,
    tick: Tick = lambda: None,
) -> Sparse:
    """Fit L0 probes with hard-concrete gates: minimise `λ · BCE + (1 − λ) · mean_d P(z ≠ 0)` (Louizos et al. 2018).

    Each column has a λ and a seed. Weights start near 0 and gates start open (log α = 2), both with SD .01. The
    optimiser is Adam with a learning rate that decreases from .05 to zero along a cosine, over `steps` full-batch
    steps, with one draw of the gates' noise per step. Columns with the same seed share their noise, so a probe is the
    same whether it is fitted alone or together with others.

    Args:
        l0_strengths: λ of each column, in (0, 1].
        seeds: the seed of each column.
        weights: the weights of the samples in each column's BCE, which is a weighted mean. Default: equal weights. A
            weight of 0 leaves a sample out.
        tick: called after each step.

    Raises ValueError for λ outside (0, 1], fewer steps than one, a seed outside 0 … 2**63 − 1, and lists that do not
    fit the columns. Raises TypeError for steps and seeds that are not whole numbers.
    """
    steps = whole_number(steps, "steps", least=1)
    seeds = [check_seed(seed) for seed in seeds]
    if not len(l0_strengths) == len(seeds) == y.shape[2]:
        counts = f"{len(l0_strengths)} and {len(seeds)}"
        raise ValueError(f"{y.shape[2]} columns need as many l0_strengths and seeds, found {counts}")
    l0_strength = torch.tensor(check_l0_strengths(l0_strengths), dtype=X.dtype, device=X.device)[:, None]
    generators = {seed: torch.Generator().manual_seed(seed) for seed in seeds}
    tasks, _, d = X.shape

    def draw(sampler: Callable[..., Tensor]) -> Tensor:
        drawn = {seed: sampler(d, generator=generator, dtype=torch.float32) for seed, generator in generators.items()}
        return torch.stack([drawn[seed] for seed in seeds]).to(X)

    weight, log_alpha = _SPREAD * draw(torch.randn), _START + _SPREAD * draw(torch.randn)
    both = torch.stack([weight, log_alpha])[:, None].repeat(1, tasks, 1, 1)
    weight, log_alpha = both
    both.grad = torch.empty_like(both)
    optimiser = torch.optim.Adam([both], lr=LEARNING_RATE, betas=(0.9, 0.99), fused=True)
    target = y.mT  # [tasks, columns, samples]
    weights = torch.ones_like(y[:1]) if weights is None else weights
    share = l0_strength * (weights / weights.sum(1, keepdim=True)).mT
    penalised = (1 - l0_strength) / d
    tiny = torch.finfo(X.dtype).eps
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = LEARNING_RATE * (1 + math.cos(math.pi * step / steps)) / 2
        gate, slope = sample_gate(log_alpha, draw(torch.rand).clamp(tiny, 1 - tiny))
        residual = torch.bmm(weight * gate, X.mT).sigmoid_().sub_(target).mul_(share)  # λ · ∂BCE/∂logits
        pull = torch.bmm(residual, X)
        is_open = open_probability(log_alpha)
        torch.mul(pull, gate, out=both.grad[0])
        torch.addcmul(penalised * is_open * (1 - is_open), pull, weight * slope, out=both.grad[1])
        optimiser.step()
        tick()
    return Sparse(weight, deterministic_gate(log_alpha))


@torch.no_grad()
def fit_dense(
    X: Float[Tensor, "tasks samples d"], y: Float[Tensor, "tasks samples columns"]
) -> Float[Tensor, "tasks columns d"]:
    """L2 logistic regression without intercept: minimise `½‖w‖² + Σ log(1 + exp(−ỹ x·w))`, by Newton's method.

    It is computed in float64, and in the space that the samples span if there are fewer samples than dimensions.
    """
    X, y = X.double(), y.double()
    tasks, n, d = X.shape
    basis = None
    if n < d:
        values, vectors = torch.linalg.eigh(X @ X.mT)
        root = values.clamp(min=0).sqrt()
        spans = root > 1e-9 * root.amax(1, keepdim=True)
        basis = X.mT @ (vectors * torch.where(spans, 1 / root, 0.0)[:, None, :])
        X = vectors * root[:, None, :]
    solutions = []
    eye = torch.eye(X.shape[2], dtype=X.dtype, device=X.device)
    for target in y.unbind(2):
        w = torch.zeros(tasks, X.shape[2], dtype=X.dtype, device=X.device)
        logits = torch.zeros_like(target)
        value = _objective(logits, target, w)
        for _ in range(_NEWTON_STEPS):
            p = torch.sigmoid(logits)
            gradient = w + (X.mT @ (p - target)[..., None])[..., 0]
            if float(gradient.abs().max()) < 1e-8 * (1 + n):
                break
            hessian = eye + (X * (p * (1 - p))[..., None]).mT @ X
            step = torch.cholesky_solve(gradient[..., None], torch.linalg.cholesky(hessian))
            moved, step = (X @ step)[..., 0], step[..., 0]
            length = torch.ones(tasks, 1, dtype=X.dtype, device=X.device)
            for _ in range(30):
                tried = _objective(logits - length * moved, target, w - length * step)
                worse = tried > value * (1 + _ROUNDING)
                if not worse.any():
                    break
                length = torch.where(worse[:, None], length / 2, length)
            w = w - length * step
            logits = logits - length * moved
            value = tried
        solutions.append(w if basis is None else (basis @ w[..., None])[..., 0])
    return torch.stack(solutions, 1)


def _objective(logits: Tensor, y: Tensor, w: Tensor) -> Float[Tensor, " tasks"]:
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none").sum(1)
    return w.square().sum(1) / 2 + loss


def welch(
    good: Float[np.ndarray, "good d"], bad: Float[np.ndarray, "bad d"]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Welch's t and two-sided p of every dimension, in float64 from two-pass variances (ddof 1).

    A dimension that is constant within each class has t = ±∞ and p = 0 if the two constants differ, and otherwise t = 0
    and p = 1.
    """
    good = good.astype(np.float64, copy=False)
    bad = bad.astype(np.float64, copy=False)
    varies = (np.ptp(good, axis=0) > 0) | (np.ptp(bad, axis=0) > 0)
    difference = good[0] - bad[0]
    t = np.where(difference == 0, 0.0, np.copysign(np.inf, difference))
    p = np.where(difference == 0, 1.0, 0.0)
    if varies.any():
        chosen = slice(None) if varies.all() else varies  # a slice makes no copy
        result = stats.ttest_ind(good[:, chosen], bad[:, chosen], equal_var=False)
        t[varies], p[varies] = result.statistic, result.pvalue
    return t, p
