"""Sums over groups of texts, from which uncertainty is estimated after one pass (`interp.intervals`).

A corpus is a sequence of *stretches*, each a text or eight rows of a longer one (`interp.corpora.sentences.Row`). A
group is 2ᵏ consecutive stretches: pairs of groups merge, and k grows, whenever a corpus needs more groups than there is
room for. So the groups depend on the corpus alone, and those of parts of it add up, in whatever order they were read.
"""

import torch
from torch import Tensor

__all__ = ["MOST", "coarser", "fitting"]

MOST = 20
"""Groups that are kept apart. With as many groups of one text each as would fit, intervals hold the true value less
often: a group of several texts is nearer to a normal distribution."""


def fitting(stretch: int, most: int, size: int) -> int:
    """The number of stretches in a group, `size` or the next double of it, at which this stretch is in the `most` first
    groups.

    Examples:
        >>> fitting(19, 20, 1), fitting(20, 20, 1), fitting(100, 20, 2)
        (1, 2, 8)
    """
    while stretch // size >= most:
        size *= 2
    return size


def coarser(sums: Tensor, factor: int) -> Tensor:
    """Sums `[groups, …]` with so many consecutive groups added up, and zeros behind them.

    Examples:
        >>> coarser(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), 2).tolist()
        [3.0, 7.0, 5.0, 0.0, 0.0]
    """
    if factor == 1:
        return sums
    merged = torch.zeros_like(sums)
    groups = torch.arange(len(sums), device=sums.device) // factor
    return merged.index_add_(0, groups, sums)
