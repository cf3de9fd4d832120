"""What sparse probes say over all states of a study: whether a quarter of the dimensions is nearly as good as all of
them, whether later states need more, and whether gates open where |t| is largest.

These are claims of the paper on sparse grammar probes. "Nearly as good" is its 95 % of the dense probe's accuracy.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from interp.analyses.probing.rotations import LEAST_DENSE
from interp.instruments.over_tasks import FEWEST_PAIRED, Mean, Units, judged_over, left_out, mean_over
from interp.results.findings import Finding
from interp.results.verdicts import FEWEST_CONTROLS, Control, reaching, smallest
from interp.support.words import count, printed

__all__ = ["by_depth", "gates_by_t", "quarter"]

_QUARTER = 0.25
_ENOUGH, _TOO_LITTLE = 0.95, 0.9
_FEWEST_STATES = 5  # of which a trend with depth can be made


def quarter(probes: pd.DataFrame, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    """Whether sparse probes that read at most a quarter of the dimensions have 95 % of the accuracy of dense ones in
    most states, from the table `probes` of a sweep.

    At each state it is the λ with the highest accuracy on validation pairs among those whose probes read at most a
    quarter of the dimensions, on average over tasks. Its accuracy on test pairs is divided by that of dense probes, as
    means over tasks. The value is the median over the states at which dense probes are right on more than .6.
    """
    accuracies = _few_and_dense(probes[probes["control"] == "none"])
    if accuracies is None:
        return
    few, dense = accuracies
    units = Units.of(few.columns.tolist(), phenomena)
    sparse_means = units.means(few.to_numpy(dtype=np.float64).T)
    dense_means = units.means(dense.to_numpy(dtype=np.float64).T)
    ratios = _ratios(sparse_means, dense_means)
    without_each = []
    for unit in range(units.n):
        without_each.append(_ratios(np.delete(sparse_means, unit, 0), np.delete(dense_means, unit, 0)))
    value = float(np.median(ratios))
    reach = left_out(np.median(without_each, 1)) if units.n >= FEWEST_PAIRED else np.nan
    mean = Mean(value, value - reach, value + reach, units.n, units.name, FEWEST_PAIRED)
    enough = int((ratios >= _ENOUGH).sum())
    yield reaching(
        question="Is a quarter of the dimensions nearly as good as all of them in most states?",
        measure=f"sparse probes that read at most a quarter have {_ENOUGH:.0%} of the dense probes' accuracy or more "
        f"at {enough} of the {count(len(ratios), 'state')} where dense probes are right on more than {LEAST_DENSE:g}; "
        f"the median over these states (means over {units.said}) is",
        value=mean.value, low=mean.low, high=mean.high, enough=_ENOUGH, too_little=_TOO_LITTLE,
        no_interval=mean.no_interval, because=mean.because,
    )  # fmt: skip


def _few_and_dense(plain: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """The accuracies `[state, task]` of sparse probes that read at most a quarter of the dimensions, and of dense ones,
    at the states that count; None if there are none."""
    dense = _readable(plain)
    sparse = plain[plain["method"] == "l0"]
    by_strength = sparse.groupby(["state", "l0_strength"])[["open_fraction", "validation_accuracy"]].mean()
    few = by_strength.loc[by_strength["open_fraction"] <= _QUARTER, "validation_accuracy"].dropna()
    chosen = few.groupby("state").idxmax()
    states = chosen.index.intersection(dense.index)
    if states.empty:
        return None
    accuracies = _wide(sparse, ["state", "l0_strength"]).loc[chosen[states].tolist()].droplevel("l0_strength")
    return accuracies, dense.loc[states, accuracies.columns]


def _readable(plain: pd.DataFrame) -> pd.DataFrame:
    """The accuracies `[state, task]` of dense probes at the states where they are right on more than .6, on average
    over tasks."""
    dense = _wide(plain[plain["method"] == "dense"], ["state"])
    return dense[dense.mean(axis=1) > LEAST_DENSE]


def _ratios(
    sparse: Float[np.ndarray, "units states"], dense: Float[np.ndarray, "units states"]
) -> Float[np.ndarray, " states"]:
    return np.asarray(sparse.mean(0) / dense.mean(0))


def _wide(probes: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The accuracy by task, as a mean over seeds."""
    return probes.groupby([*by, "task"], sort=False)["accuracy"].mean().unstack()


def by_depth(probes: pd.DataFrame, l0_strength: float, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    """Whether sparse probes with the same λ read more dimensions at later states, from the table `probes` of a sweep:
    Spearman's correlation of their number with the state, over the states at which dense probes are right on more than
    .6, against random orders of these states."""
    plain = probes[probes["control"] == "none"]
    rows = plain[(plain["l0_strength"] == l0_strength) & plain["state"].isin(_readable(plain).index)]
    read = rows.groupby(["state", "task"])["open_fraction"].mean().unstack().sort_index()
    read = read.loc[:, read.nunique() > 1]
    if len(read) < _FEWEST_STATES or read.empty:
        return
    units = Units.of(read.columns.tolist(), phenomena)
    ranks = stats.zscore(stats.rankdata(read.to_numpy(dtype=np.float64), axis=0), axis=0)
    depth = stats.zscore(np.arange(len(read), dtype=np.float64))
    rng = np.random.default_rng(0)
    draws = [float(units.means(rng.permutation(depth) @ ranks).mean()) / len(read) for _ in range(FEWEST_CONTROLS)]
    fractions = [printed(read.loc[state].mean(), "{:.1%}") for state in (read.index[0], read.index[-1])]
    yield judged_over(
        mean_over(depth @ ranks / len(read), units),
        question="Do sparse probes read more dimensions at later states?",
        measure=f"with λ = {l0_strength:g} they read {fractions[0]} of the dimensions at state {read.index[0]} and "
        f"{fractions[1]} at state {read.index[-1]}; Spearman's correlation of their number with the state (mean over "
        f"{units.said}) is",
        controls=[Control("random orders of the states", draws)], smallest=smallest("correlation"), form="{:+z.2f}",
    )  # fmt: skip


def gates_by_t(agreement: pd.DataFrame, neurons: pd.DataFrame, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    """Whether the gates of sparse probes open where |t| is largest, from the tables `agreement` and `neurons` of a
    sweep at one state and λ: Spearman's correlation of |t| with the gates, against random orders of the dimensions.

    Most gates are closed and so tied, which keeps the correlation below 1; the largest that the ties allow is named.
    """
    rows = agreement.dropna(subset=["spearman"]).set_index("task")
    if rows.empty:
        return
    units = Units.of(rows.index.tolist(), phenomena)
    gates = neurons.pivot(index="task", columns="dim", values="gate").loc[rows.index]
    ranks = stats.zscore(stats.rankdata(gates.to_numpy(dtype=np.float64), axis=1), axis=1)
    rng = np.random.default_rng(0)
    orders = [stats.zscore(rng.permutation(ranks.shape[1]).astype(np.float64)) for _ in range(FEWEST_CONTROLS)]
    draws = [float(units.means(ranks @ order / len(order)).mean()) for order in orders]
    most = units.means(rows["spearman_max"].to_numpy(dtype=np.float64)).mean()
    yield judged_over(
        mean_over(rows["spearman"].to_numpy(dtype=np.float64), units),
        question="Do the gates of sparse probes open where |t| is largest?",
        measure=f"Spearman's correlation of |t| with the gates, of at most {printed(most, '{:.2f}')} (mean over "
        f"{units.said}), is",
        controls=[Control("random orders of the dimensions", draws)], smallest=smallest("correlation"), form="{:+z.2f}",
    )  # fmt: skip
