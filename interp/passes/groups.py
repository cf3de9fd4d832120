"""Sums over groups of texts, from which uncertainty is estimated after a single pass (`interp.results.intervals`).

A corpus is a sequence of *stretches*, each of which is a text or eight rows of a longer text
(`interp.corpora.sentences.Row`). A group is 2ᵏ consecutive stretches. Whenever a corpus needs more groups than there is
room for, pairs of groups merge and k grows by one. So groups depend only on the corpus, and the groups of its parts add
up in whatever order the parts were read.
"""

import torch
from torch import Tensor

__all__ = ["MOST", "coarser", "fitting"]

MOST = 20
"""The number of groups. With more and smaller groups, intervals would contain the true value less often, because the
sum of a group of several texts is closer to a normal distribution."""


def fitting(stretch: int, n_groups: int, size: int) -> int:
    """Return the number of stretches per group (`size`, doubled as often as needed) for which this stretch lies within
    the first `n_groups` groups.

    Examples:
        >>> fitting(19, 20, 1), fitting(20, 20, 1), fitting(100, 20, 2)
        (1, 2, 8)
    """
    while stretch // size >= n_groups:
        size *= 2
    return size


def coarser(sums: Tensor, factor: int) -> Tensor:
    """Add up every `factor` consecutive groups of sums `[groups, …]`, followed by zeros.

    Examples:
        >>> coarser(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), 2).tolist()
        [3.0, 7.0, 5.0, 0.0, 0.0]
    """
    if factor == 1:
        return sums
    merged = torch.zeros_like(sums)
    groups = torch.arange(len(sums), device=sums.device) // factor
    return merged.index_add_(0, groups, sums)
