"""What is found about units: verdicts from the tables of a study, and from nothing else."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.analyses.units.columns import KINDS, SWAPPED
from interp.instruments.over_tasks import (
    FEWEST_PAIRED,
    Mean,
    Units,
    judged_over,
    mean_over,
    off_diagonal,
    random_signs,
)
from interp.results.findings import Answer, Finding
from interp.results.verdicts import ZERO, Control, smallest
from interp.support.words import count, printed

__all__ = ["answer", "unit_findings"]

_LEVEL = 0.05
_SIGNED = "{:+z.3f}"


def answer(found_again: pd.DataFrame, separability: pd.DataFrame) -> Answer:
    """Say how many of the top residual dimensions other pairs find again, and how well the best one tells sentences
    apart.

    Args:
        found_again: `UnitStudy.found_again`.
        separability: that table of `UnitStudy`.
    """
    again = found_again[found_again["of"] == "residual"].set_index("control").loc["none"]
    best = separability[(separability["of"] == "residual") & (separability["control"] == "none")]
    values = {"overlap": again["overlap"], "null": again["null"], "auc": best["auc"].mean(), "n_tasks": len(best)}
    sentence = (
        f"Other pairs find {values['overlap']:.0%} of the top 1 % of residual dimensions again, {values['null']:.0%} "
        f"with labels flipped; the best single one tells good sentences from bad with an AUC of {values['auc']:.3f}"
        f"{f' (means over {len(best)} tasks)' if len(best) > 1 else ''}."
    )
    return Answer(sentence, values)


def unit_findings(tables: Mapping[str, pd.DataFrame], phenomena: Mapping[Any, Any]) -> tuple[Finding, ...]:
    """Make the findings from a study's tables: about the residual stream, and about the consistency of units of every
    kind.

    Args:
        tables: the tables of the study, by name.
        phenomena: the phenomenon of each task, if it has one.
    """
    consistency = tables["consistency"]
    separability = tables["separability"]
    by_kind = consistency[consistency["control"] == "none"].groupby("of", sort=False)
    findings = [_consistent(part, str(kind), phenomena) for kind, part in by_kind]
    findings += _beyond_controls(consistency[consistency["of"] == "residual"], phenomena)
    findings += _groups(tables["phenomena"])
    findings += _specific(tables["shared_units"], phenomena)
    findings += _separable(separability[separability["of"] == "residual"], phenomena)
    return (*findings, *_alike(tables["similarity"], phenomena))


def _consistent(part: pd.DataFrame, kind: str, phenomena: Mapping[Any, Any]) -> Finding:
    units = Units.of(part["task"].tolist(), phenomena)
    overlap = part["overlap"].to_numpy(dtype=np.float64)
    null = part["null"].to_numpy(dtype=np.float64)
    shares = [printed(units.means(values).mean(), "{:.3f}") for values in (overlap, null)]
    claim = f"they do so more than chance on {(part['p'] <= _LEVEL).sum()} of {count(len(part), 'task')} (p ≤ .05)"
    return judged_over(
        mean_over(overlap - null, units), question=f"Do other pairs of a task find the same {KINDS[kind]}?",
        measure=f"{claim}; {shares[0]} of the top 1 % are found again, {shares[1]} with labels flipped within pairs; "
        f"the difference (mean over {units.said}) is", controls=[ZERO], smallest=smallest("overlap"), form=_SIGNED,
    )  # fmt: skip


def _beyond_controls(consistency: pd.DataFrame, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    """One finding for each kind of control, about the tasks that have it."""
    for kind, grammar, control, units in _with_controls(consistency, "overlap", phenomena):
        share = printed(units.means(control).mean(), "{:.3f}")
        yield judged_over(
            mean_over(grammar - control, units),
            question=f"Are units of grammar found again more often than units of {SWAPPED[kind]}?",
            measure=f"the share of top residual dimensions found again, minus that of controls ({share}), whose two "
            f"sentences are both grammatical (mean over {units.said}), is",
            controls=[ZERO], smallest=smallest("overlap"), form=_SIGNED,
        )  # fmt: skip


def _with_controls(
    table: pd.DataFrame, measure: str, phenomena: Mapping[Any, Any]
) -> Iterator[tuple[str, Float[np.ndarray, " tasks"], Float[np.ndarray, " tasks"], Units]]:
    """For each kind of control, a measure of the tasks that have it, and of their controls."""
    wide = table.pivot(index="task", columns="control", values=measure)
    for kind in SWAPPED:
        if kind not in wide:
            continue
        rows = wide.dropna(subset=["none", kind])
        grammar = rows["none"].to_numpy(dtype=np.float64)
        control = rows[kind].to_numpy(dtype=np.float64)
        yield kind, grammar, control, Units.of(rows.index.tolist(), phenomena)


def _groups(phenomena: pd.DataFrame) -> Iterator[Finding]:
    """Whether tasks of one group share more, from the table `phenomena`."""
    of_residual = phenomena[phenomena["of"] == "residual"]
    row: Any
    for by, words in (("linguistics_term", "linguistic term"), ("field", "field")):
        for row in of_residual[of_residual["by"] == by].itertuples():
            n_tasks = int(row.n_tasks)
            yield judged_over(
                Mean(row.difference, row.low, row.high, n_tasks, "task", FEWEST_PAIRED),
                question=f"Do tasks of one {words} share more units than tasks of different {words}s?",
                measure="the share of top residual dimensions that two tasks have in common, minus that for different "
                f"{words}s ({printed(row.between, '{:.3f}')}; p = {row.p:.3f} of permuted groups; "
                f"{count(n_tasks, 'task')}), is",
                controls=[ZERO], smallest=smallest("overlap"), form=_SIGNED,
            )  # fmt: skip


def _matrix(
    shared_units: pd.DataFrame, tasks: list[str], controls: tuple[str, str]
) -> Float[np.ndarray, "tasks tasks"]:
    """Overlaps of tasks (rows) with tasks, or with the controls of tasks; NaN on the diagonal of the first."""
    part = shared_units[shared_units["of"] == "residual"]
    turned = part.rename(columns={"task_a": "task_b", "task_b": "task_a", "control_a": "control_b",
                                  "control_b": "control_a"})  # fmt: skip
    both = pd.concat([part, turned])
    both = both[(both["control_a"] == controls[0]) & (both["control_b"] == controls[1])]
    both = both.drop_duplicates(["task_a", "task_b"])
    wide = both.pivot(index="task_a", columns="task_b", values="overlap").reindex(index=tasks, columns=tasks)
    return np.asarray(wide.to_numpy(dtype=np.float64))


def _specific(shared_units: pd.DataFrame, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    """Whether tasks share more units with one another than with controls of other tasks, for each kind of control."""
    tasks = pd.concat([shared_units["task_a"], shared_units["task_b"]]).drop_duplicates().tolist()
    if len(tasks) < 2:
        return
    units = Units.of(tasks, phenomena)
    present = {*shared_units["control_a"], *shared_units["control_b"]}
    kinds = [kind for kind in SWAPPED if kind in present]
    overlaps = _matrix(shared_units, tasks, ("none", "none"))
    means = {kind: off_diagonal(overlaps - _matrix(shared_units, tasks, ("none", kind)), units) for kind in kinds}
    nothing = Mean(np.nan, np.nan, np.nan, len(tasks), "task", 0)
    for kind, mean in (means or {"": nothing}).items():
        yield judged_over(
            mean, question="Do tasks share more units with one another than with controls"
            f"{' of ' * bool(kind)}{SWAPPED.get(kind, '')}?",
            measure="the share of top residual dimensions in common, minus that with controls of other tasks (mean "
            f"over pairs of {units.said}), is", controls=[ZERO if kind else Control("controls", [], "number")],
            smallest=smallest("overlap"), form=_SIGNED,
        )  # fmt: skip


def _separable(best: pd.DataFrame, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    grammar = best[best["control"] == "none"]
    units = Units.of(grammar["task"].tolist(), phenomena)
    s = smallest("accuracy")
    yield judged_over(
        mean_over(grammar["auc"].to_numpy(dtype=np.float64), units),
        question="Does a single residual dimension tell good sentences from bad?",
        measure=f"the AUC of the best one, chosen on other pairs (mean over {units.said}), is",
        controls=[Control("chance", [0.5], "number")], smallest=s,
    )  # fmt: skip
    for kind, areas, control, of_both in _with_controls(best, "auc", phenomena):
        yield judged_over(
            mean_over(areas - control, of_both),
            question=f"Does it tell them better than another tells sentences with {SWAPPED[kind]}?",
            measure="the AUC of the best one, minus that for controls "
            f"({printed(of_both.means(control).mean(), '{:.3f}')}), whose sentences are all grammatical (mean over "
            f"{of_both.said}), is", controls=[ZERO], smallest=s, form=_SIGNED,
        )  # fmt: skip


def _alike(similarity: pd.DataFrame, phenomena: Mapping[Any, Any]) -> Iterator[Finding]:
    """Looks at the state at which the difference of a task is most similar to that of its other pairs."""
    grammar = similarity[(similarity["control_a"] == "none") & (similarity["control_b"] == "none")]
    itself = grammar["task_a"] == grammar["task_b"]
    means = grammar[itself].groupby("at")["cosine"].mean().dropna()
    tasks = grammar["task_a"].drop_duplicates().tolist()
    if means.empty or len(tasks) < 2:
        return
    state = means.idxmax()
    part = grammar[(grammar["at"] == state) & ~itself]
    wide = part.pivot(index="task_a", columns="task_b", values="cosine").reindex(index=tasks, columns=tasks)
    once = wide.to_numpy(dtype=np.float64)
    cosines = np.nan_to_num(np.where(np.isnan(once), once.T, once))
    units = Units.of(tasks, phenomena)
    yield judged_over(
        off_diagonal(cosines, units), question="Do the differences of different tasks point the same way?",
        measure=f"the cosine between the mean differences (good minus bad) of two tasks at state {state} (mean over "
        f"pairs of {units.said}) is",
        controls=[Control(f"draws with the sentences of pairs swapped by {units.name}", random_signs(cosines, units))],
        smallest=smallest("correlation"), form=_SIGNED,
    )  # fmt: skip
