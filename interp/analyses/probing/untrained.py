"""Probes of untrained models, and the tables in which they stand beside those of the model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from interp.analyses.probing.equivalence import n_top
from interp.analyses.probing.sweeps import SHOWN, SHOWN_L0_STRENGTH, Sweep, shown_l0_strength
from interp.instruments.uncertainty import averaged, compared, counted

__all__ = ["BY_STATE", "TWINS", "UNTRAINED", "beside", "by_chance", "largest_k", "of_twins", "worth"]

TWINS = 3
"""The number of untrained models at the study's state; at all other states there is one."""
UNTRAINED = ["task", "state", "probe", "control", "draw", "accuracy"]
_PROBES = ["dense", "l0", "topk"]
BY_STATE = {name: kind for kind, name in SHOWN.items()}
for _name in _PROBES:
    BY_STATE[f"{_name}_untrained"] = (BY_STATE[_name][0], "untrained")
"""The method and the control of each probe in `by_state`."""
_COMPARED = [(probe, "bag_of_words") for probe in _PROBES]
_COMPARED += [(probe, f"{probe}_untrained") for probe in _PROBES]
_COMPARED += [("l0", "l0_rotated"), ("topk", "topk_rotated")]


def largest_k(probes: pd.DataFrame) -> float:
    """The largest k of top-k probes; NaN if there are none."""
    plain = (probes["method"] == "topk:welch") & (probes["control"] == "none")
    return float(probes.loc[plain, "k"].astype(float).max())


def by_chance(chosen: dict[str, Any], l0_strength: float, width: int) -> dict[str, Any]:
    """The options for the probes of the untrained model, which are compared with the model's own."""
    methods, ks = chosen["methods"], chosen["ks"][:0]
    if "topk" in methods:
        ks = [max(chosen["ks"])]
    if "random" in methods:
        ks = sorted({n_top(width), *ks})
    fitted = [method for method in ("l0", "dense") if method in methods]
    if ks:
        fitted.append("topk")
    return {"methods": fitted, "controls": ["none"], "l0_strengths": [l0_strength], "seeds": chosen["seeds"], "ks": ks}


def beside(trained: Sweep, fresh: Sweep, phenomena: Mapping[Any, Any]) -> dict[str, pd.DataFrame]:
    """The tables that have both the untrained model's probes and the model's own, and what follows from both."""
    probes = pd.concat([trained.probes, fresh.probes.assign(control="untrained")], ignore_index=True)
    where = ["task", "state", "pair"]
    hits = trained.hits.merge(_of_equal_k(trained, fresh)[[*where, *_PROBES]], on=where, suffixes=("", "_untrained"))
    means, differences = averaged(hits, _COMPARED, phenomena)
    comparisons = compared(hits, _COMPARED)
    differences = differences.join(counted(comparisons), on=["state", "probe", "against"])
    return {
        "probes": probes, "hits": hits, "means": means.assign(sd=_over_seeds(probes, means)),
        "differences": differences, "comparisons": comparisons, "equivalence": worth(trained, fresh),
    }  # fmt: skip


def of_twins(trained: Sweep, fresh: Sequence[Sweep], state: int) -> pd.DataFrame:
    """The table `untrained`: the accuracy at a state of the model's own probes, and of those of untrained models."""
    tables = [("none", 0, trained.hits)]
    for draw, sweep in enumerate(fresh):
        tables.append(("untrained", draw, _of_equal_k(trained, sweep)))
    rows = []
    for control, draw, hits in tables:
        means = hits[hits["state"] == state].groupby("task", sort=False)[_PROBES].mean()
        long = means.melt(var_name="probe", value_name="accuracy", ignore_index=False).dropna()
        rows.append(long.reset_index().assign(state=state, control=control, draw=draw))
    return pd.concat(rows, ignore_index=True)[UNTRAINED]


def _of_equal_k(trained: Sweep, fresh: Sweep) -> pd.DataFrame:
    """The hits of an untrained model, without those of top-k probes of another k: of the top 1 %, for `equivalence`."""
    if largest_k(trained.probes) == largest_k(fresh.probes):
        return fresh.hits
    return fresh.hits.assign(topk=np.nan)


def _over_seeds(probes: pd.DataFrame, means: pd.DataFrame) -> pd.Series:
    """The SD over seeds of the mean over tasks, for the sparse probes among the means."""
    strength = shown_l0_strength(probes["l0_strength"].dropna().unique().tolist() or [SHOWN_L0_STRENGTH])
    sparse = probes[probes["l0_strength"] == strength]
    by_seed = sparse.groupby(["control", "state", "seed"])["accuracy"].mean()
    sd = by_seed.groupby(["control", "state"]).std()
    control = means["probe"].map({name: kind[1] for name, kind in BY_STATE.items() if kind[0] == "l0"})
    return sd.reindex(pd.MultiIndex.from_arrays([control, means["state"]])).set_axis(means.index)


def worth(trained: Sweep, fresh: Sweep) -> pd.DataFrame:
    """The table `equivalence`, without ratios for which the untrained model's top is as good."""
    table = trained.equivalence
    top = fresh.probes.query("method == 'topk:welch'")
    by_chance_of = top.set_index(["task", "state", "k"])["accuracy"]
    untrained_accuracy = by_chance_of.reindex(pd.MultiIndex.from_frame(table[["task", "state", "n_top"]])).to_numpy()
    is_above = table["top_low"].to_numpy() > untrained_accuracy
    ratios = {name: table[name].where(is_above) for name in ("ratio", "low", "high")}
    censored = table["censored"].astype(bool) & is_above
    return table.assign(**ratios, censored=censored, untrained_accuracy=untrained_accuracy)
