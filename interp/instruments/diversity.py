"""Diversity and repetition of texts, of all prompts and without each."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

__all__ = ["ORDERS", "diversity_without", "ratio", "without_each"]

ORDERS = (1, 2, 3, 4)
"""The lengths of the n-grams that are counted."""


def diversity_without(by_prompt: Sequence[Sequence[Any]]) -> Float[np.ndarray, "prompts_and_one 2"]:
    """Compute the diversity and repetition of all texts, given as token ids by prompt, followed by those without each
    prompt.

    Examples:
        >>> diversity_without([[[1, 1, 1, 1, 1]], [[2, 2, 2, 2, 2]], [[3, 4, 5, 6, 7]]])[:, 1].round(2).tolist()
        [0.33, 0.25, 0.25, 0.5]
    """
    distinct = []
    for n in ORDERS:
        grams = [[_grams(ids, n) for ids in texts] for texts in by_prompt]
        of_prompt = [set().union(*texts) for texts in grams]
        prompts_with = Counter(gram for prompt in of_prompt for gram in prompt)
        unique_grams = np.array([0, *(sum(prompts_with[gram] == 1 for gram in prompt) for prompt in of_prompt)])
        n_grams = np.array([sum(text.total() for text in texts) for texts in grams], dtype=float)
        distinct.append(ratio(len(prompts_with) - unique_grams, without_each(n_grams)))
    different = np.array([sum(map(len, texts)) for texts in grams])  # from the 4-grams, which come last
    return np.stack([np.mean(distinct, axis=0), ratio(without_each(n_grams - different), without_each(n_grams))], 1)


def _grams(ids: Sequence[Any], n: int) -> Counter[tuple[Any, ...]]:
    """Count the n-grams of a text."""
    return Counter(zip(*(ids[i:] for i in range(n)), strict=False))


def without_each(sums: np.ndarray) -> np.ndarray:
    """Compute a sum over all prompts, followed by the sums without each prompt."""
    return np.concatenate([[sums.sum()], sums.sum() - sums]).astype(float)


def ratio(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Compute part / whole, and NaN where the whole is 0."""
    return np.divide(part, total, out=np.full(len(total), np.nan), where=total > 0)
