"""How far predictions are from word frequency and how good they are, with 95 % intervals."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from scipy import stats

from interp.instruments.divergences import Distribution, js, kl, kl_where_seen, perplexity
from interp.instruments.predictions import MeanPredictions, Means
from interp.results.intervals import Jackknife, jackknife

__all__ = ["CORRELATIONS", "correlations", "measures", "with_ends"]
__dir__ = __all__.copy

FEWEST_OCCURRENCES = 5
"""How often a type has to be expected among the scored tokens to take part in the balanced NLL."""
_NORMAL = stats.norm.ppf(0.975)


def with_ends(names: list[str]) -> list[str]:
    """Return the names of columns, each followed by the names of the ends of its interval."""
    columns = []
    for name in names:
        columns.extend([name, f"{name}_low", f"{name}_high"])
    return columns


CORRELATIONS = with_ends(["pearson", "spearman", "slope"])
"""The columns of `correlations`."""


def measures(predictions: MeanPredictions, u: Distribution, unedited: int) -> pd.DataFrame:
    """Measure each variant: one row per variant of the prediction head, with the columns of `FrequencyStudy.kl` from
    kl_unigram_model on.

    The intervals come from leaving out each group of texts (`interp.results.intervals.jackknife`), with u taken as
    known. Those of KL, ΔKL and JS are around the value corrected for bias (`…_corrected`), because a mean prediction
    from fewer positions is farther from any distribution. The interval of the perplexity is the exponential of that of
    the NLL.

    The balanced NLL is the mean over types of the mean NLL of each type. It is over the types of which u promises at
    least five among the scored tokens (`n_balanced`), because which rarer types occur at all is chance. Types that do
    not occur nevertheless (`n_absent`) are left out.

    Args:
        u: the unigram distribution.
        unedited: the number of the variant that ΔKL and Δ perplexity compare with.

    Raises ValueError if a type of the corpus has a predicted probability of 0, so that KL(u‖q) is not finite.
    """
    means = [predictions.means(number) for number in range(len(predictions.variants))]
    _check_types(predictions, means, u)
    measured = _jackknifed(predictions, means, u, unedited)
    kl = measured["kl"]
    js = measured["js"]
    nll = measured["nll"]
    dropped = [kl_where_seen(mean.distribution, u) for mean in means]
    columns = {"kl_unigram_model": kl.value}
    columns.update(_corrected("kl", kl._replace(least=0)))
    columns["delta_kl"] = measured["delta_kl"].value
    columns.update(_corrected("delta_kl", measured["delta_kl"]))
    columns["kl_model_unigram"], columns["dropped_mass"] = np.transpose(dropped)
    columns["js"] = js.value
    columns.update(_corrected("js", js._replace(least=0, most=math.log(2))))
    for name, end in {"": nll.value, "_low": nll.low, "_high": nll.high}.items():
        columns[f"perplexity{name}"] = np.array([perplexity(mean) for mean in end])
    for name in ("delta_perplexity", "balanced_nll"):
        columns[name] = measured[name].value
        columns.update(_ends(name, measured[name]))
    balanced = _balanced(predictions, u)
    numbers = {"n_balanced": balanced.sum(), "n_absent": np.isnan(means[unedited].nll_by_class[balanced]).sum()}
    return pd.DataFrame(columns).assign(**numbers, n_tokens=predictions.n_tokens, n_scored=predictions.n_scored)


def _jackknifed(
    predictions: MeanPredictions, means: Sequence[Means], u: Distribution, unedited: int
) -> dict[str, Jackknife]:
    """The measures that have intervals, for all variants, and their differences from the unedited variant."""
    balanced = _balanced(predictions, u)
    table = pd.DataFrame([_measured(mean, u, balanced) for mean in means])
    table_values = table.to_numpy()
    groups = predictions.sizes, predictions.stretches_per_group
    without = np.full((len(predictions.sizes), *table_values.shape), np.nan)
    if "none" not in predictions.intervals:
        for number in range(len(means)):
            for group, mean in enumerate(predictions.leaving_out(number)):
                without[group, number] = list(_measured(mean, u, balanced).values())
    values = jackknife(table_values, without, *groups)
    with np.errstate(invalid="ignore"):  # differences of infinite perplexities
        deltas = jackknife(table_values - table_values[unedited], without - without[:, [unedited]], *groups)
    measured = {}
    for i, name in enumerate(map(str, table)):
        measured[name] = Jackknife(values.value[:, i], values.corrected[:, i], values.half[:, i])
        measured[f"delta_{name}"] = Jackknife(deltas.value[:, i], deltas.corrected[:, i], deltas.half[:, i])
    return measured


def _measured(means: Means, u: Distribution, balanced: Bool[np.ndarray, " d_vocab"]) -> dict[str, float]:
    q = means.distribution
    nll_by_type = means.nll_by_class[balanced]
    return {
        "kl": kl(u, q),
        "js": js(u, q),
        "nll": means.nll,
        "balanced_nll": float(np.nanmean(nll_by_type)) if np.isfinite(nll_by_type).any() else math.nan,
        "perplexity": perplexity(means.nll),
    }


def _balanced(predictions: MeanPredictions, u: Distribution) -> Bool[np.ndarray, " d_vocab"]:
    """The types that the balanced NLL is over."""
    return np.asarray(u * predictions.n_scored >= FEWEST_OCCURRENCES)


def _corrected(name: str, estimate: Jackknife) -> dict[str, np.ndarray]:
    """The value corrected for bias, and the interval around it."""
    columns = {f"{name}_corrected": estimate.centred.value}
    columns.update(_ends(name, estimate.centred))
    return columns


def _ends(name: str, estimate: Jackknife) -> dict[str, np.ndarray]:
    return {f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _check_types(predictions: MeanPredictions, means: Sequence[Means], u: Distribution) -> None:
    real = predictions.head.real.cpu().numpy()
    foreign = np.flatnonzero((u > 0) & ~real)
    if len(foreign):
        problem = f"{len(foreign)} types in rows of the vocabulary that are not tokens of this model"
        raise ValueError(f"the unigram counts have {problem} (the first is {foreign[0]}); count with its tokenizer")
    for variant, mean in zip(predictions.variants, means, strict=True):
        if lost := ((mean.distribution == 0) & (u > 0)).sum():
            subject = f"with {variant.name} the model gives {lost} types of the corpus probabilities below 1e-308"
            raise ValueError(f"{subject} everywhere, which is too small for float64; leave this scale out")


def correlations(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> dict[str, float]:
    """Compute Pearson's and Spearman's correlation and the least-squares slope of y on x, with 95 % intervals.

    The interval of Pearson's correlation uses Fisher's z, that of Spearman's the same with variance
    `(1 + ρ²/2)/(n − 3)` (Bonett and Wright 2000), and that of the slope Student's t. NaN for three points or fewer.

    Examples:
        >>> x = np.arange(50.0)
        >>> found = correlations(x, 2 * x + np.sin(x * x))
        >>> bool(found["slope_low"] < 2 < found["slope_high"])
        True
    """
    n = len(x)
    line = stats.linregress(x, y)
    spearman = float(stats.spearmanr(x, y).statistic)
    estimates = {"pearson": [line.rvalue], "spearman": [spearman], "slope": [line.slope]}
    if n > 3:
        half = _NORMAL * np.sqrt((1 + spearman**2 / 2) / (n - 3))
        with np.errstate(divide="ignore"):  # a correlation of 1
            z = np.arctanh(spearman)
        margin = stats.t.ppf(0.975, n - 2) * line.stderr
        estimates["pearson"] += stats.pearsonr(x, y).confidence_interval(0.95)
        estimates["spearman"] += [np.tanh(z - half), np.tanh(z + half)]
        estimates["slope"] += [line.slope - margin, line.slope + margin]
    columns = {}
    for key, ends in estimates.items():
        for name, end in zip(with_ends([key]), ends, strict=False):
            columns[name] = float(end)
    return columns
