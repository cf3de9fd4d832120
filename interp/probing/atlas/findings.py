"""What an atlas says, as findings."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from interp.findings import Finding, Verdict, side
from interp.probing.columns import KINDS
from interp.probing.uncertainty import ENDS, off_diagonal
from interp.words import count

if TYPE_CHECKING:
    from interp.probing.atlas.tables import Atlas

__all__ = ["SWAPPED", "atlas_findings"]

SWAPPED = {"words": "a swapped word, which is no grammar", "numbers": "a swapped number, which is no grammar"}
_LEVEL = 0.05


def atlas_findings(atlas: "Atlas") -> tuple[Finding, ...]:
    """What the tables of an atlas say; nothing of empty ones. Of the residual stream, and consistency of every kind."""
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
    """The mean and its 95 % interval, Student's over tasks; NaN for a single one. A bootstrap of few tasks is too
    narrow: of four without any effect it lay above chance in 5 of 60 runs."""
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
        measure=f"above the null on {n_above} of {count(len(part), 'task')} (p ≤ .05); mean share of the top 1 % found "
        "again:", value=value, low=low, high=high, control=null, compared_with="with labels flipped within pairs",
        rule="yes where the interval lies above the control and more than half of the tasks have a p of .05 or less, "
        "partly where the interval alone does, no where it lies below",
    )  # fmt: skip


def _beyond_controls(consistency: pd.DataFrame) -> Iterator[Finding]:
    """Of tasks with controls, one for each kind of them."""
    part = consistency[(consistency["score"] == "paired") & (consistency["of"] == "residual")]
    wide = part.pivot(index="task", columns="control", values="overlap")
    for kind in (kind for kind in SWAPPED if kind in wide):
        value, low, high = _over_tasks((wide["none"] - wide[kind]).to_numpy(dtype=np.float64))
        yield Finding(
            question=f"Are units of grammar found again more often than those of {SWAPPED[kind]}?",
            verdict=side(low, high), measure="the difference in the share of residual dimensions found again is",
            value=value, low=low, high=high, control=float(wide[kind].mean()), compared_with="share of the controls",
            rule="yes where the interval lies above 0, no where it lies below", form="{:+z.3f}",
        )  # fmt: skip


def _phenomena(phenomena: pd.DataFrame) -> Iterator[Finding]:
    of_residual = phenomena[phenomena["of"] == "residual"]
    for by, words in (("linguistics_term", "linguistic term"), ("field", "field")):
        part = of_residual[of_residual["by"] == by]
        for value, low, high, p, between in part[["difference", "low", "high", "p", "between"]].to_numpy(float):
            told = side(low, high)
            verdict: Verdict = "cannot tell" if told == "yes" and p > _LEVEL else told
            yield Finding(
                question=f"Do tasks of one {words} share more units than tasks of different ones?", verdict=verdict,
                measure="the difference in shared residual dimensions is", value=value, low=low,
                high=high, control=between, compared_with="shared by tasks of different ones", form="{:+z.3f}",
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
    """Tasks share more units with one another than with controls of other tasks? For each kind of controls."""
    tasks = pd.concat([shared_units["task_a"], shared_units["task_b"]]).drop_duplicates().tolist()
    rule = "yes where the interval lies above 0, no where it lies below; cannot tell without controls"
    asked = "Do tasks share more units with one another than with {}?"
    measure, nan = "the difference in shared residual dimensions is", float("nan")
    if len(tasks) < 2:
        return
    kinds = [kind for kind in SWAPPED if kind in {*shared_units["control_a"], *shared_units["control_b"]}]
    if not kinds:
        yield Finding(
            question=asked.format("controls that are no grammar"), verdict="cannot tell", measure=measure, value=nan,
            low=nan, high=nan, rule=rule, compared_with="there are no controls",
        )  # fmt: skip
    own = _matrix(shared_units, tasks, ("none", "none"))
    for kind in kinds:
        other = _matrix(shared_units, tasks, ("none", kind))
        apart = own - other
        value, low, high = off_diagonal(np.nan_to_num((apart + apart.T) / 2))
        control = float(other[~np.eye(len(tasks), dtype=bool)].mean())
        yield Finding(
            question=asked.format(SWAPPED[kind]), verdict=side(low, high), measure=measure, value=value, low=low,
            high=high, control=control, compared_with="shared with controls of other tasks", rule=rule,
            form="{:+z.3f}",
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
        measure="the AUC of the best one, chosen on other pairs, is", value=value, low=low, high=high, control=control,
        compared_with="of controls that are no grammar" if by_control else "there are no controls",
        rule="yes where the interval lies above .5 and above the controls, partly where it lies above .5 alone or "
        "there are no controls, no where it lies below .5",
    )  # fmt: skip


def _alike(similarity: pd.DataFrame) -> Iterator[Finding]:
    """At the state at which the difference of a task is most like that of its other pairs."""
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
        measure=f"the mean cosine between tasks at state {at} is", value=value, low=low, high=high, control=control,
        compared_with="95th percentile with labels flipped", form="{:+z.3f}",
        rule="yes where the interval lies above the control, no where it lies below",
    )  # fmt: skip
