"""What an atlas of units says, as findings."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from interp.analyses.probing.columns import KINDS
from interp.analyses.probing.uncertainty import ENDS, off_diagonal, why_no_interval
from interp.results.findings import Finding, Verdict, side
from interp.support.words import count

if TYPE_CHECKING:
    from interp.analyses.probing.atlas.tables import Atlas

__all__ = ["SWAPPED", "atlas_findings"]

SWAPPED = {"words": "a swapped word", "numbers": "a swapped number"}
"""What differs between the two sentences of a control pair, both of which are grammatical."""
_LEVEL = 0.05


def atlas_findings(atlas: "Atlas") -> tuple[Finding, ...]:
    """What the tables of an atlas say about the residual stream, and about the consistency of units of every kind.
    Nothing is said about empty tables."""
    if atlas.consistency.empty:
        return ()
    found = [_consistent(part, str(of)) for of, part in _paired(atlas.consistency).groupby("of", sort=False)]
    found += [
        *_beyond_controls(atlas.consistency),
        *_phenomena(atlas.phenomena),
        *_specific(atlas.shared_units),
        _separable(atlas.separability),
    ]
    return (*found, *_alike(atlas.similarity))


def _paired(consistency: pd.DataFrame) -> pd.DataFrame:
    return consistency[(consistency["score"] == "paired") & (consistency["control"] == "none")]


def _over_tasks(values: Float[np.ndarray, " tasks"]) -> tuple[float, float, float]:
    """The mean over tasks and its 95 % interval by Student's t, NaN for a single task. A bootstrap of few tasks is too
    narrow: for four tasks without any effect, it lay above chance in 5 of 60 runs."""
    mean = float(values.mean())
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    half = stats.t.ppf(ENDS[1], len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return mean, float(mean - half), float(mean + half)


def _consistent(part: pd.DataFrame, of: str) -> Finding:
    value, low, high = _over_tasks(part["overlap"].to_numpy(dtype=np.float64))
    null, n_above = float(part["null"].mean()), int((part["p"] <= _LEVEL).sum())
    verdict = side(low, high, than=null)
    if verdict == "yes" and n_above <= len(part) / 2:
        verdict = "partly"
    return Finding(
        question=f"Do other pairs of a task find the same {KINDS[of]}?", verdict=verdict,
        measure=f"they do so more than chance on {n_above} of {count(len(part), 'task')} (p ≤ .05); the mean share of "
        "the top 1 % that is found again is", value=value, low=low, high=high, no_interval=_why_none(part),
        control=null, compared_with="with labels flipped within pairs",
        rule="yes where the interval lies above the control and more than half of the tasks have a p of .05 or less, "
        "partly where the interval alone does, no where it lies below",
    )  # fmt: skip


def _why_none(rows: pd.DataFrame) -> str:
    """Why there is no interval, if the rows are of a single task."""
    return "a single task" if len(rows.reset_index()["task"].unique()) == 1 else ""


def _beyond_controls(consistency: pd.DataFrame) -> Iterator[Finding]:
    """One finding for each kind of control, about the tasks that have it."""
    part = consistency[(consistency["score"] == "paired") & (consistency["of"] == "residual")]
    wide = part.pivot(index="task", columns="control", values="overlap")
    for kind in (kind for kind in SWAPPED if kind in wide):
        value, low, high = _over_tasks((wide["none"] - wide[kind]).to_numpy(dtype=np.float64))
        yield Finding(
            question=f"Are units of grammar found again more often than units of {SWAPPED[kind]}?",
            verdict=side(low, high), measure="the share of residual dimensions found again, minus that "
            "of controls, whose two sentences are both grammatical, is", value=value, low=low, high=high,
            no_interval=_why_none(wide), control=float(wide[kind].mean()), compared_with="share of the controls",
            rule="yes where the interval lies above 0, no where it lies below", form="{:+z.3f}", towards=1,
        )  # fmt: skip


def _phenomena(phenomena: pd.DataFrame) -> Iterator[Finding]:
    of_residual = phenomena[phenomena["of"] == "residual"]
    for by, words in (("linguistics_term", "linguistic term"), ("field", "field")):
        part = of_residual[of_residual["by"] == by]
        for value, low, high, p, between in part[["difference", "low", "high", "p", "between"]].to_numpy(float):
            told = side(low, high)
            verdict: Verdict = "cannot tell" if told == "yes" and p > _LEVEL else told
            yield Finding(
                question=f"Do tasks of one {words} share more units than tasks of different {words}s?", verdict=verdict,
                measure="the share of top residual dimensions that two tasks have in common, minus that for "
                f"different {words}s, is", value=value, low=low, high=high, control=between,
                compared_with="share for the latter", form="{:+z.3f}", towards=1,
                rule="yes where the interval lies above 0 and p of permuted groups is .05 or less, no where it lies "
                "below",
            )  # fmt: skip


def _matrix(
    shared_units: pd.DataFrame, tasks: list[str], controls: tuple[str, str]
) -> Float[np.ndarray, "tasks tasks"]:
    """Overlaps of tasks (rows) with tasks, or with the controls of tasks; NaN on the diagonal of the first."""
    part = shared_units[shared_units["of"] == "residual"]
    turned = part.rename(columns={f"{name}_a": f"{name}_b" for name in ("task", "control")} | {
        f"{name}_b": f"{name}_a" for name in ("task", "control")})  # fmt: skip
    both = pd.concat([part, turned])
    both = both[(both["control_a"] == controls[0]) & (both["control_b"] == controls[1])]
    both = both.drop_duplicates(["task_a", "task_b"])
    wide = both.pivot(index="task_a", columns="task_b", values="overlap").reindex(index=tasks, columns=tasks)
    return np.asarray(wide.to_numpy(dtype=np.float64))


def _specific(shared_units: pd.DataFrame) -> Iterator[Finding]:
    """Whether tasks share more units with one another than with controls of other tasks, for each kind of control."""
    tasks = pd.concat([shared_units["task_a"], shared_units["task_b"]]).drop_duplicates().tolist()
    rule = "yes where the interval lies above 0, no where it lies below; cannot tell without controls"
    asked = "Do tasks share more units with one another than with {}?"
    measure = "the share of top residual dimensions in common, minus that with controls of other tasks, is"
    nan = float("nan")
    if len(tasks) < 2:
        return
    kinds = [kind for kind in SWAPPED if kind in {*shared_units["control_a"], *shared_units["control_b"]}]
    if not kinds:
        yield Finding(
            question=asked.format("controls"), verdict="cannot tell", measure=measure, value=nan,
            low=nan, high=nan, rule=rule, compared_with="there are no controls",
        )  # fmt: skip
    own = _matrix(shared_units, tasks, ("none", "none"))
    for kind in kinds:
        other = _matrix(shared_units, tasks, ("none", kind))
        apart = own - other
        value, low, high = off_diagonal(np.nan_to_num((apart + apart.T) / 2))
        control = float(other[~np.eye(len(tasks), dtype=bool)].mean())
        yield Finding(
            question=asked.format(f"controls of {SWAPPED[kind]}"), verdict=side(low, high), measure=measure,
            value=value, low=low, high=high, control=control, compared_with="share for the latter", rule=rule,
            form="{:+z.3f}", towards=1, no_interval=why_no_interval(len(tasks)),
        )  # fmt: skip


def _separable(separability: pd.DataFrame) -> Finding:
    best = separability[separability["of"] == "residual"]
    by_control = {str(name): part["auc"].to_numpy(dtype=np.float64) for name, part in best.groupby("control")}
    value, low, high = _over_tasks(by_control.pop("none"))
    control = max((float(areas.mean()) for areas in by_control.values()), default=float("nan"))
    verdict = side(low, high, than=0.5)
    if verdict == "yes" and not low > control:
        verdict = "partly"
    return Finding(
        question="Does a single residual dimension tell good sentences from bad?", verdict=verdict,
        measure="the AUC of the best one, chosen on other pairs, is", value=value, low=low, high=high,
        no_interval=_why_none(best), control=control,
        compared_with="for controls, whose sentences are all grammatical" if by_control else "there are no controls",
        rule="yes where the interval lies above .5 and above the controls, partly where it lies above .5 alone or "
        "there are no controls, no where it lies below .5",
    )  # fmt: skip


def _alike(similarity: pd.DataFrame) -> Iterator[Finding]:
    """Looks at the state at which the difference of a task is most similar to that of its other pairs."""
    own = similarity[(similarity["control_a"] == "none") & (similarity["control_b"] == "none")]
    itself = own["task_a"] == own["task_b"]
    known = own[itself].groupby("at")["cosine"].mean().dropna()
    tasks = own["task_a"].drop_duplicates().tolist()
    if known.empty or len(tasks) < 2:
        return
    at = known.idxmax()
    part = own[(own["at"] == at) & ~itself]
    wide = part.pivot(index="task_a", columns="task_b", values="cosine").reindex(index=tasks, columns=tasks)
    once = wide.to_numpy(dtype=np.float64)
    value, low, high = off_diagonal(np.nan_to_num(np.where(np.isnan(once), once.T, once)))
    control = float(part["null_high"].mean())
    yield Finding(
        question="Do the differences of different tasks point the same way?", verdict=side(low, high, than=control),
        measure=f"the mean cosine between the mean differences (good minus bad) of two tasks at state {at} is",
        value=value, low=low, high=high, control=control,
        compared_with="95th percentile with labels flipped within pairs", form="{:+z.3f}", towards=1,
        rule="yes where the interval lies above the control, no where it lies below",
        no_interval=why_no_interval(len(tasks)),
    )  # fmt: skip
