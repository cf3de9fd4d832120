"""L0 probes fitted side by side, against the same fits one at a time and against L1 regression by other libraries.

`python benchmarks/probing.py [--quick]`. There are 8 tasks, with 1,600 training samples in 512 correlated dimensions,
20 of which carry each task, and 6 λ × 5 seeds. The probes fitted one at a time use plain autograd with the same random
draws; all λ of one task and one seed are timed, and the time is multiplied by 40. scikit-learn and skglm fit L1
without an intercept, at six values of C for one task, and their time is multiplied by 40 too. The accuracies compared
are those of the best λ and the best C on 2,000 other samples.
"""

import math
from collections.abc import Iterator
from functools import partial

import torch
from skglm import SparseLogisticRegression
from sklearn.base import ClassifierMixin
from sklearn.linear_model import LogisticRegression
from tasks import TASKS, D, N, samples
from timing import Row, agrees, alternate, command, row

from interp.analyses.probing.fitting import BETA, GAMMA, LEARNING_RATE, STEPS, ZETA, Sparse, fit_sparse
from interp.analyses.probing.sweeps import L0_STRENGTHS

WHAT = "240 L0 probes side by side"
SEEDS = tuple(range(5))
CS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
COLUMNS = [(l0_strength, seed) for l0_strength in L0_STRENGTHS for seed in SEEDS]


def one_fit(X: torch.Tensor, y: torch.Tensor, l0_strength: float, seed: int, steps: int) -> torch.Tensor:
    """The same probe, written as a single fit."""
    generator = torch.Generator().manual_seed(seed)
    w = (0.01 * torch.randn(D, generator=generator)).requires_grad_()
    a = (2 + 0.01 * torch.randn(D, generator=generator)).requires_grad_()
    optimiser = torch.optim.Adam([w, a], lr=LEARNING_RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
    for _ in range(steps):
        u = torch.rand(D, generator=generator).clamp(1e-7, 1 - 1e-7)
        gate = (torch.sigmoid((torch.log(u) - torch.log(1 - u) + a) / BETA) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)
        loss = l0_strength * torch.nn.functional.binary_cross_entropy_with_logits(X @ (w * gate), y)
        loss = loss + (1 - l0_strength) * torch.sigmoid(a - BETA * math.log(-GAMMA / ZETA)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return torch.sigmoid(a.detach()) * (ZETA - GAMMA) + GAMMA > 0


def rows(quick: bool) -> Iterator[Row]:
    steps, repeats = (50, 1) if quick else (STEPS, 3)
    (X, y), (X_test, y_test) = samples(N, 1), samples(2_000, 2)
    results: dict[str, Sparse] = {}
    one_by_one: dict[str, list[torch.Tensor]] = {}
    linear: dict[str, list[ClassifierMixin]] = {}

    def batched() -> None:
        many = y[..., None].expand(-1, -1, len(COLUMNS))
        l0_strengths, seeds = zip(*COLUMNS, strict=True)
        results["sparse"] = fit_sparse(X, many, l0_strengths=l0_strengths, seeds=seeds, steps=steps)

    def one_at_a_time() -> None:
        one_by_one["open"] = [one_fit(X[0], y[0], l0_strength, 0, steps) for l0_strength in L0_STRENGTHS]

    def scikit_learn(solver: str, C: float) -> LogisticRegression:
        return LogisticRegression(
            C=C, l1_ratio=1.0, solver=solver, fit_intercept=False, max_iter=5_000, random_state=0
        )  # fmt: skip

    makers = {f"scikit-learn, L1 by {solver}": partial(scikit_learn, solver) for solver in ("saga", "liblinear")}
    makers["skglm, L1"] = lambda C: SparseLogisticRegression(1 / (C * N), fit_intercept=False)
    if quick:
        del makers["scikit-learn, L1 by saga"]

    def by_l1(name: str) -> None:
        linear[name] = [makers[name](C).fit(X[0].numpy(), y[0].numpy()) for C in (CS[:2] if quick else CS)]

    contestants = {"interp": batched, "alone": one_at_a_time, **{name: partial(by_l1, name) for name in makers}}
    seconds = alternate(contestants, repeats=repeats)

    workload = f"{TASKS} tasks × 6 λ × {len(SEEDS)} seeds, N = {N:,}, d = {D}"
    place = [COLUMNS.index((l0_strength, 0)) for l0_strength in L0_STRENGTHS]
    differ = float(((results["sparse"].gate[0, place] > 0) != torch.stack(one_by_one["open"])).float().mean())
    times = TASKS * len(SEEDS)
    yield row(
        WHAT, workload, seconds["interp"], other=("torch, one at a time", seconds["alone"].times(times)),
        note=agrees("share of gates that differ", differ, 0.01),
    )  # fmt: skip
    right = ((X_test[0] @ results["sparse"].coefficients[0].T > 0) == y_test[0, :, None].bool()).double().mean(0)
    for name in makers:
        best = max(fit.score(X_test[0].numpy(), y_test[0].numpy()) for fit in linear[name])
        compared = f"best test accuracy {best:.3f}, interp's {float(right[place].max()):.3f}"
        yield row(WHAT, workload, seconds["interp"], other=(name, seconds[name].times(times)), note=compared)


if __name__ == "__main__":
    command(rows, __doc__)
