"""Measures of generated texts, which are lists of token ids."""

from collections import Counter

import numpy as np


def grams(ids: list[int], n: int) -> list[tuple[int, ...]]:
    """The n-grams of a text, in order."""
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


def distinct(texts: list[list[int]], n: int) -> float:
    """D_n: different n-grams / all n-grams, pooled over the texts."""
    counted = Counter(gram for ids in texts for gram in grams(ids, n))
    return len(counted) / sum(counted.values())


def diversity(texts: list[list[int]]) -> float:
    """D = ¼ Σ_{n ≤ 4} D_n."""
    return sum(distinct(texts, n) for n in (1, 2, 3, 4)) / 4


def repetition(texts: list[list[int]]) -> float:
    """The share of 4-grams that have occurred before in their text."""
    repeated = total = 0
    for ids in texts:
        before: set[tuple[int, ...]] = set()
        for gram in grams(ids, 4):
            repeated += gram in before
            total += 1
            before.add(gram)
    return repeated / total


def frequent(counts: np.ndarray) -> set[int]:
    """The most frequent types, which make up half of all tokens."""
    types: set[int] = set()
    for token in np.argsort(-counts, kind="stable").tolist():
        if sum(counts[w] for w in types) >= counts.sum() / 2:
            break
        types.add(token)
    return types
