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
        grams = [[_grams(ids, n) for ids in texts] for texts in by_prompt]
        of_prompt = [set().union(*texts) for texts in grams]
        prompts_with = Counter(gram for prompt in of_prompt for gram in prompt)
        unique_grams = np.array([0, *(sum(prompts_with[gram] == 1 for gram in prompt) for prompt in of_prompt)])
        n_grams = np.array([sum(text.total() for text in texts) for texts in grams], dtype=float)
        distinct.append(ratio(len(prompts_with) - unique_grams, without_each(n_grams)))
    return np.stack(distinct)


def diversity_without(by_prompt: Sequence[Sequence[Any]]) -> Float[np.ndarray, "prompts_and_one 2"]:
    """Compute the diversity and repetition of all texts, given as token ids by prompt, followed by those without each
    prompt.

    Examples:
        >>> diversity_without([[[1, 1, 1, 1, 1]], [[2, 2, 2, 2, 2]], [[3, 4, 5, 6, 7]]])[:, 1].round(2).tolist()
        [0.33, 0.25, 0.25, 0.5]
    """
    runs = [[_grams(ids, ORDERS[-1]) for ids in texts] for texts in by_prompt]
    n_runs = np.array([sum(text.total() for text in texts) for texts in runs], dtype=float)
    different = np.array([sum(map(len, texts)) for texts in runs])
    repetition = ratio(without_each(n_runs - different), without_each(n_runs))
    return np.stack([distinct_without(by_prompt).mean(0), repetition], 1)


def _grams(ids: Sequence[Any], n: int) -> Counter[tuple[Any, ...]]:
    """Count the n-grams of a text."""
    return Counter(zip(*(ids[i:] for i in range(n)), strict=False))


def without_each(sums: np.ndarray) -> np.ndarray:
    """Compute a sum over all prompts, followed by the sums without each prompt."""
    return np.concatenate([[sums.sum()], sums.sum() - sums]).astype(float)


def ratio(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Compute part / whole, and NaN where the whole is 0."""
    return np.divide(part, total, out=np.full(len(total), np.nan), where=total > 0)
