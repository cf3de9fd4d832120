"""The λ at which MAUVE is highest, and by how much it is higher there than at λ = 1.

MAUVE at the best of several λ is too high, because the best is in part the luckiest. So λ is chosen on one half of the
prompts, and compared with λ = 1 on the other, for many random splits. The spread of a value over random halves is also
its standard error for all prompts: McCarthy, "Pseudo-replication: half samples", Review of the International
Statistical Institute 37, 1969.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from interp.analyses.generation.metrics import mauve_scores
from interp.results.intervals import FEWEST_TEXTS

__all__ = ["N_SPLITS", "highest_mauve", "mauve_of_halves"]
__dir__ = __all__.copy

N_SPLITS = 20
"""The number of random divisions of the prompts into two halves. 95 % of further values lie within the range of 40."""

_COLUMNS = ["decoder", "scale", "scale_low", "scale_high", "mauve_mean", "gain", "gain_low", "gain_high"]


def mauve_of_halves(
    features: Float[np.ndarray, "texts d"], human_features: Float[np.ndarray, "prompts d"], *, seed: int
) -> list[float]:
    """MAUVE (the mean of `mauve_scores`) of random halves of the prompts, and of the other half after each. It is empty
    for fewer than 20 prompts.

    Args:
        features: of texts, in the order of their prompts, equally many of each.
        human_features: of the human text of each prompt.
        seed: the same halves have the same seed.
    """
    n = len(human_features)
    if n < FEWEST_TEXTS:
        return []
    by_prompt = features.reshape(n, -1, features.shape[-1])
    rng = np.random.default_rng(seed)
    scores = []
    for _ in range(N_SPLITS):
        for half in rng.permutation(n)[: n // 2 * 2].reshape(2, -1):
            scores.append(float(np.mean(mauve_scores(np.concatenate(by_prompt[half]), human_features[half]))))
    return scores


def highest_mauve(metrics: pd.DataFrame, halves: pd.DataFrame) -> pd.DataFrame:
    """The λ of the highest MAUVE for each decoder, and what choosing it gains over λ = 1.

    The interval of λ reaches from the smallest to the largest λ that is the best on any of 40 halves (or on all
    prompts); of equal λ the one nearest to 1 is the best. The gain is MAUVE at the λ that is the best on one half,
    minus that at λ = 1, on the other half, averaged over all halves. Half its interval is t(.975, 19) times the SD,
    over halves, of the mean difference from λ = 1, in which each λ has the weight with which it was chosen. Where texts
    of two λ are alike this is more than the SD of the gain, because MAUVE is flat there.

    Args:
        metrics: the table of `GenerationStudy`.
        halves: a row for each decoder and scale, with `mauve_of_halves` in columns of their own.

    Returns the table `highest` of a `GenerationStudy`, without decoders that have no MAUVE or only one λ. Intervals and
    gain are NaN for fewer than 20 prompts, the gain also without λ = 1.

    Examples:
        >>> metrics = pd.DataFrame({"decoder": "greedy", "scale": [0.5, 1.0], "mauve_mean": [0.9, 0.7]})
        >>> halves = metrics[["decoder", "scale"]].assign(a=[0.9, 0.7], b=[0.8, 0.6], c=[0.8, 0.7], d=[0.9, 0.6])
        >>> highest_mauve(metrics, halves)[["scale", "scale_low", "scale_high", "gain"]].round(3).values.tolist()
        [[0.5, 0.5, 0.5, 0.2]]
    """
    rows = []
    for decoder, table in metrics.dropna(subset="mauve_mean").groupby("decoder", sort=False):
        if len(table) < 2:
            continue
        nearest = (table["scale"] - 1).abs().sort_values(kind="stable").index  # idxmax takes the first of equal values
        best = table.loc[table.loc[nearest, "mauve_mean"].idxmax()]
        by_half = halves[halves["decoder"] == decoder].set_index("scale").drop(columns="decoder").T
        best_of_half = by_half[table.loc[nearest, "scale"]].idxmax(axis=1)
        low, high = best_of_half.min(), best_of_half.max()
        gain, reach = _gain(by_half, best_of_half)
        ends = min(low, best["scale"]), max(high, best["scale"])
        rows.append((decoder, best["scale"], *ends, best["mauve_mean"], gain, gain - reach, gain + reach))
    return pd.DataFrame(rows, columns=_COLUMNS)


def _gain(by_half: pd.DataFrame, best_of_half: pd.Series) -> tuple[float, float]:
    """What the λ that is the best on one half gains on the other, and half its interval."""
    if by_half.empty or 1 not in by_half:
        return np.nan, np.nan
    above = by_half.sub(by_half[1.0], axis=0)
    n = len(above)
    other_half = np.arange(n) ^ 1  # halves 2i and 2i + 1 make up all prompts
    gains = above.to_numpy()[other_half, above.columns.get_indexer(pd.Index(best_of_half))]
    weighted = (above * best_of_half.value_counts(normalize=True)).sum(axis=1)
    return float(gains.mean()), float(stats.t.ppf(0.975, n // 2 - 1) * weighted.std(ddof=0))
