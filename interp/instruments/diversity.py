"""Diversity and repetition of texts, of all prompts and without each."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

__all__ = ["ORDERS", "distinct_without", "diversity_without", "ratio", "without_each"]
__dir__ = __all__.copy

ORDERS = (1, 2, 3, 4)
"""The lengths of the n-grams that are counted."""


def distinct_without(by_prompt: Sequence[Sequence[Any]]) -> Float[np.ndarray, "orders prompts_and_one"]:
    """D_n = different n-grams / all n-grams for n = 1 … 4, of all texts, given as token ids by prompt, and then without
    the texts of each prompt.

    Examples:
        >>> distinct_without([[[1, 1, 1, 1, 1]], [[1, 2, 3, 4, 5]]])[0].round(2).tolist()
        [0.5, 1.0, 0.2]
    """
    distinct = []
    for n in ORDERS:
        grams = [_grams(texts, n) for texts in by_prompt]
        prompts_with: Counter[tuple[Any, ...]] = Counter()
        for of_prompt in grams:
            prompts_with.update(of_prompt.keys())
        unique_grams = np.zeros(len(by_prompt) + 1)
        for number, of_prompt in enumerate(grams, 1):
            unique_grams[number] = sum(prompts_with[gram] == 1 for gram in of_prompt)
        n_grams = np.array([of_prompt.total() for of_prompt in grams], dtype=float)
        distinct.append(ratio(len(prompts_with) - unique_grams, without_each(n_grams)))
    return np.stack(distinct)


def diversity_without(by_prompt: Sequence[Sequence[Any]]) -> Float[np.ndarray, "prompts_and_one 2"]:
    """Compute the diversity and repetition of all texts, given as token ids by prompt, followed by those without each
    prompt.

    Examples:
        >>> diversity_without([[[1, 1, 1, 1, 1]], [[2, 2, 2, 2, 2]], [[3, 4, 5, 6, 7]]])[:, 1].round(2).tolist()
        [0.33, 0.25, 0.25, 0.5]
    """
    n_runs = np.zeros(len(by_prompt))
    different = np.zeros(len(by_prompt))
    for number, texts in enumerate(by_prompt):
        for ids in texts:
            runs = _grams([ids], ORDERS[-1])
            n_runs[number] += runs.total()
            different[number] += len(runs)
    repetition = ratio(without_each(n_runs - different), without_each(n_runs))
    return np.stack([distinct_without(by_prompt).mean(0), repetition], 1)


def _grams(texts: Sequence[Sequence[Any]], n: int) -> Counter[tuple[Any, ...]]:
    """Count the n-grams of some texts."""
    grams: Counter[tuple[Any, ...]] = Counter()
    for ids in texts:
        grams.update(zip(*(ids[i:] for i in range(n)), strict=False))
    return grams


def without_each(sums: np.ndarray) -> np.ndarray:
    """Compute a sum over all prompts, followed by the sums without each prompt."""
    return np.concatenate([[sums.sum()], sums.sum() - sums]).astype(float)


def ratio(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Compute part / whole, and NaN where the whole is 0."""
    return np.divide(part, total, out=np.full(len(total), np.nan), where=total > 0)
