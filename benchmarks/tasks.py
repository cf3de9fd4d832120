"""Random samples of several two-class tasks, for benchmarks of probes."""

import numpy as np
import torch

TASKS, N, D, INFORMATIVE = 8, 1_600, 512, 20


def samples(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """States `[tasks, n, d]` of mean 0 and SD 1 with a falling spectrum, and labels `[tasks, n]`."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    mixing = fixed.normal(size=(D, D)) / np.sqrt(np.arange(1, D + 1))[:, None]
    X = rng.normal(size=(TASKS, n, D)) @ mixing
    X /= np.sqrt((mixing**2).sum(0))
    y = np.stack([rng.permutation(n) < n // 2 for _ in range(TASKS)])
    for task in range(TASKS):
        X[task][np.ix_(y[task], fixed.permutation(D)[:INFORMATIVE])] += 0.5
    return torch.from_numpy(X).float(), torch.from_numpy(y).float()
