"""Scores of sentences from log p [pos, V], the predictions of a model for a row of token ids."""

import numpy as np


def surprisal(log_p: np.ndarray, ids: list[int]) -> list[float]:
    """log p of each token after the first, given those before it."""
    return [float(log_p[t - 1, ids[t]]) for t in range(1, len(ids))]


def by_word(log_p: np.ndarray, ids: list[int], beginnings: list[int]) -> list[float]:
    """`surprisal` with the end of a word moved to that word (Pimentel and Meister 2024; Oh and Schuler 2024).

    `beginnings` are the tokens that begin a word. The last token of a word also gets log P(a word begins next), and the
    first token of the next word, which is conditioned on it, loses it.
    """
    scores = surprisal(log_p, ids)
    for t in range(1, len(ids)):
        if t == len(ids) - 1 or ids[t + 1] in beginnings:
            scores[t - 1] += float(np.log(np.exp(log_p[t, beginnings]).sum()))
        if ids[t] in beginnings and t > 1:
            scores[t - 1] -= float(np.log(np.exp(log_p[t - 1, beginnings]).sum()))
    return scores


def masked(position: int, words: list[int], *, whole_words: bool) -> list[int]:
    """The positions masked when a pseudo-log-likelihood scores one of them.

    The position itself, and with whole words also the later ones of the same word (Kauf and Ivanova 2023).
    """
    later = [i for i in range(position + 1, len(words)) if words[i] == words[position]]
    return [position, *(later if whole_words else [])]
