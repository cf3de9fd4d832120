"""What `interp probing` finds: whether probes do better than words, chance and a random basis, and with how few
dimensions."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from interp.analyses.probing.uncertainty import FEWEST_TASKS, bootstrapped, off_diagonal, resampled, why_no_interval
from interp.results.findings import Finding, Verdict, side
from interp.support.words import count

__all__ = ["beyond", "concentrated", "held", "more_pairs", "needed"]

_TEST_SHARE = 0.2  # of the pairs
_FEWEST_TEST = 6  # with fewer test pairs, McNemar's exact p cannot be .05 or less
_MOST = 100  # more than this many times as much is not advised
_Z = stats.norm.ppf(0.99)  # of the bound that the top must lie above chance by

_QUESTIONS = {
    ("dense", "bag_of_words"): "Are dense probes more accurate than a bag of words?",
    ("dense", "dense_untrained"): "Are dense probes more accurate than those of an untrained model?",
    ("l0", "l0_untrained"): "Are sparse probes more accurate than those of an untrained model?",
    ("l0", "l0_rotated"): "Are sparse probes of neurons more accurate than those of a random basis?",
    ("topk", "topk_untrained"): "Are probes of the top dimensions more accurate than those of an untrained model?",
    ("topk", "topk_rotated"): "Are probes of the top dimensions more accurate than those of a random basis?",
}
_BEYOND = "yes where the interval lies above 0 and so do half of the tasks or more (McNemar, adjusted p ≤ .05); partly "
_BEYOND += "where it is better on more tasks than worse; no where the interval lies below 0"
_CONCENTRATED = "yes where the interval lies above 1 and the top is above chance and above the untrained model on half "
_CONCENTRATED += "of the tasks or more, partly on fewer, cannot tell on none"
_HELD = "yes where the interval lies above chance"
_ALIKE = "yes where the interval of the difference lies below 0, no where it lies above"
_NEEDED = "yes where the interval of the difference from matched neurons lies below 0"


def beyond(differences: pd.DataFrame) -> Iterator[Finding]:
    """Probes of one state against what they must beat, from the table `differences` of a study.

    Probes of the top dimensions are left out if there are sparse ones.
    """
    sparse = (differences["probe"] == "l0").any()
    row: Any
    for row in differences.itertuples():
        question = _QUESTIONS.get((str(row.probe), str(row.against)))
        if question and not (sparse and row.probe == "topk"):
            tasks, verdict = count(int(row.n_tasks), "task"), _beyond(row)
            few = ", fewer than half," if verdict == "partly" and row.above < row.n_tasks / 2 else ""
            unsure = ", whose interval includes 0," if verdict == "partly" and row.low <= 0 else ""
            yield Finding(
                question=question,
                verdict=verdict,
                measure=f"they are better on {row.above:.0f} of {tasks}{few} and worse on {row.below:.0f} (McNemar's "
                f"test, p ≤ .05); the mean difference in accuracy{unsure} is",
                value=row.difference,
                low=row.low,
                high=row.high,
                rule=_BEYOND,
                form="{:+z.3f}",
                towards=1,
            )


def _beyond(row: Any) -> Verdict:
    verdict = side(row.low, row.high)
    if verdict == "yes" and row.above >= row.n_tasks / 2:
        return "yes"
    if verdict == "no":
        return "no"
    return "partly" if row.above > row.below else "cannot tell"


def concentrated(equivalence: pd.DataFrame) -> Iterator[Finding]:
    """How many random dimensions replace one of the top at one state, over the tasks on which the top carries any
    information, from the table `equivalence`."""
    if equivalence.empty:
        return
    known, n_top = equivalence.dropna(subset="ratio"), int(equivalence["n_top"].iloc[0])
    value, low, high = np.nan, np.nan, np.nan
    if len(known):
        ratios = known["ratio"].to_numpy()
        value, low, high = float(np.median(ratios)), known["low"].iloc[0], known["high"].iloc[0]
        if len(ratios) > 1:
            drawn = np.random.default_rng(0).choice(ratios, (len(resampled(len(ratios))), len(ratios)))
            low, high = bootstrapped(np.median(drawn, axis=1))
    verdict = side(low, high, than=1.0)
    if verdict == "yes" and len(known) < len(equivalence) / 2:
        verdict = "partly"
    top = "the dimension" if n_top == 1 else f"the {n_top} dimensions"
    is_above = f"is above chance and above the untrained model on {len(known)} of {count(len(equivalence), 'task')}"
    censored = int(known["censored"].sum())
    more = f" (on {count(censored, 'task')}, all others together may not suffice)" if censored else ""
    yield Finding(
        question="Is what probes read concentrated in few dimensions?",
        verdict=verdict,
        measure=f"a probe of {top} with the largest |t| (good against bad sentences) {is_above}; there, the median "
        f"number of random dimensions per top dimension that reach the same accuracy{more} is",
        value=value,
        low=low,
        high=high,
        control=1.0,
        compared_with="if all dimensions were alike",
        because="" if len(known) else _above_chance(equivalence),
        rule=_CONCENTRATED,
        form="{:.1f}",
    )


def _above_chance(equivalence: pd.DataFrame) -> str:
    """The number of pairs from which Wilson's bound of the top's accuracy lies above chance, if that is the reason why
    there is no ratio: `n > z² / 4(p − ½)²`."""
    accuracy = float(equivalence["top_accuracy"].median())
    if (equivalence["top_low"] > 0.5).any() or not accuracy > 0.5:
        return ""
    n = math.floor(_Z**2 / (4 * (accuracy - 0.5) ** 2)) + 1
    return f"about {math.ceil(n / _TEST_SHARE):,} pairs a task would tell an accuracy of {accuracy:.2f} from chance"


def more_pairs(finding: Finding, n_test: int, n_tasks: int) -> Finding:
    """A finding about the accuracies of probes, with what would decide it if it cannot tell.

    With fewer than 6 test pairs, McNemar's test cannot decide. Otherwise the interval of a value e becomes narrow
    enough with (h/e)² times as much, where h is half its width now. This is said in pairs for a single task and in
    tasks for several, whose interval is also over tasks.

    Args:
        n_test: the number of test pairs of each task that share no sentence.
    """
    if finding.verdict != "cannot tell" or finding.because:
        return finding
    if n_test < _FEWEST_TEST:
        fewest = math.ceil(_FEWEST_TEST / _TEST_SHARE)
        what = (
            f"{count(n_test, 'test pair')} a task cannot decide it: {fewest} pairs, {_FEWEST_TEST} of them for test, "
        )
        return replace(finding, because=f"{what}are the fewest that can")
    effect = finding.value - (0.0 if math.isnan(finding.control) else finding.control)
    times = ((finding.high - finding.low) / 2 / effect) ** 2 if effect else math.inf
    if not times > 1:  # also without an interval
        return finding
    n, unit = (n_tasks, "task") if n_tasks > 1 else (round(n_test / _TEST_SHARE), "pair")
    much = f"about {count(math.ceil(times * n), unit)}" if times <= _MOST else f"more than {count(_MOST * n, unit)}"
    return replace(finding, because=f"{much} would decide it, if the value stays as it is")


def held(transfer: pd.DataFrame, l0_strength: float) -> Iterator[Finding]:
    """Whether probes are right on the pairs of tasks that they have not seen, from the table `transfer`."""
    for name, rows in {
        "sparse": transfer["l0_strength"] == l0_strength,
        "dense": transfer["method"] == "dense",
    }.items():
        wide = transfer[rows].pivot(index="train_task", columns="test_task", values="pair_accuracy")
        mean, low, high = off_diagonal(wide.loc[wide.columns].to_numpy(dtype=np.float64))
        yield Finding(
            question=f"Are {name} probes of one task right on tasks that they have not seen?",
            verdict=side(low, high, than=0.5),
            measure="the mean share of pairs that probes trained on one task judge correctly on each other task is",
            value=mean,
            low=low,
            high=high,
            no_interval=why_no_interval(len(wide)),
            because="" if len(wide) >= FEWEST_TASKS else f"{FEWEST_TASKS} tasks are the fewest that can decide it",
            control=0.5,
            compared_with="chance",
            rule=_HELD,
        )


def needed(changes: pd.DataFrame) -> Iterator[Finding]:
    """Whether accuracy needs the neurons that probes found more than neurons of matched magnitude, and more than random
    ones that cost as much perplexity, from the table `ablation` with its changes."""
    for mode, part in changes.groupby("mode", sort=False):
        by_task = part.groupby(["task", "set"])["accuracy"].mean().unstack()
        to = "their means" if mode == "mean" else "zero"
        question = f"Does the model need the neurons that sparse probes found (set to {to})?"
        yield _apart(by_task, "matched", to, question, "others of matched magnitude", _NEEDED)
        if "perplexity" in by_task:
            question = f"Does it need them more than random neurons that cost as much perplexity (set to {to})?"
            yield replace(_apart(by_task, "perplexity", to, question, "these random neurons", _ALIKE), towards=-1)


def _apart(by_task: pd.DataFrame, other: str, to: str, question: str, others: str, rule: str) -> Finding:
    """How much the change of accuracy without the neurons that were found differs from that without others."""
    known = by_task.dropna(subset=["found", other])
    found, without = (known[name].to_numpy(dtype=np.float64) for name in ("found", other))
    several = len(known) > 1
    low, high = bootstrapped(resampled(len(known)) @ (found - without)) if several else (np.nan, np.nan)
    return Finding(
        question=question,
        verdict=side(-float(high), -float(low)),
        measure=f"its accuracy on {count(len(known), 'task')} with them set to {to}, minus that with {others} set to "
        f"{to}, is",
        value=float((found - without).mean()) if len(known) else np.nan,
        low=float(low),
        high=float(high),
        no_interval="" if several else "a single task",
        control=float(without.mean()) if len(known) else np.nan,
        compared_with="change of its accuracy with the latter",
        rule=rule,
        form="{:+z.3f}",
    )
