"""Draws of `null_cells.py` of the two atlases: made-up directions, and made-up states of minimal pairs."""

from functools import cache

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.analyses.directions.comparisons import Member, cosine_table, overlap_table, rotation_table
from interp.analyses.directions.findings import direction_findings
from interp.analyses.directions.sources import Spread
from interp.analyses.units.findings import unit_findings
from interp.analyses.units.overlaps import unit_tables
from interp.analyses.units.reading import TaskKey
from interp.analyses.units.summary import task_units
from interp.analyses.units.sums import Scale, UnitSums, folds_of, places, signs_of
from interp.models.sites import Model
from interp.results.findings import Verdict
from interp.testing import toy_decoder

__all__ = ["UNITS", "overlapping_directions", "units_of_grammar"]

D_MODEL, GROUPS = 128, 20
_SUBSPACES = {"word frequency": ("frequency", 4), "principal axes": ("PC", 10), "outlier dimensions": ("dim", 5),
              "sink keys": ("sink key", 10)}  # fmt: skip
TASKS, PAIRS, WIDTH = 8, 24, 300
UNITS = (
    "Do other pairs of a task find the same residual dimensions?",
    "Does a single residual dimension tell good sentences from bad?",
    "Do tasks share more units with one another than with controls of a swapped word?",
    "Do the differences of different tasks point the same way?",
)
"""Questions about units."""


def overlapping_directions(rng: np.random.Generator, *, shared: bool) -> Verdict:
    """One of the questions about pairs of directions and of subspaces: random ones, or with two directions in common,
    on a text whose groups are nearly the same."""
    in_common = rng.standard_normal((2, D_MODEL))

    def drawn(name: str, kind: str, k: int) -> Member:
        vectors = rng.standard_normal((1, k, D_MODEL))
        if shared:
            vectors[0, :2] = in_common[:k]
        return Member(name, kind, vectors + 1e-3 * rng.standard_normal((GROUPS + 1, k, D_MODEL)))

    spread = Spread(np.full(GROUPS, 100.0), 1)
    pairs = cosine_table([drawn(name, name, 1) for name in ("b_LN", "-A")], spread)
    overlaps = overlap_table([drawn(name, *size) for name, size in _SUBSPACES.items()], spread)
    rotations = rotation_table(pairs, overlaps, D_MODEL, seed=int(rng.integers(2**31)))
    answers = [finding.verdict for finding in direction_findings(pairs, overlaps, rotations)]
    return answers[rng.integers(len(answers))]


@cache
def two_blocks() -> Model:
    return toy_decoder()


def sums_of(states: Float[np.ndarray, "pairs 2 width"]) -> UnitSums:
    """The sums of made-up states, as if from the residual stream of a model of this width."""
    model = two_blocks()
    where = [place._replace(width=WIDTH) for place in places(model) if place.of == "residual"][:1]
    numbers = np.arange(PAIRS)
    rows = torch.from_numpy(states.reshape(-1, WIDTH)).float()
    scale = Scale(model, where, numbers)
    scale.take(where[0], rows[:32], torch.arange(16))
    scale.commit()
    sums = UnitSums(model, where, numbers, folds_of(PAIRS, 2), signs_of(PAIRS, 40), scale=scale)
    sums.take(where[0], rows, torch.arange(PAIRS))
    sums.commit()
    return sums


def units_of_grammar(rng: np.random.Generator, *, question: str, effect: float) -> Verdict:
    """A question about the units of eight tasks and of their controls. In each task six units differ by `effect` SDs,
    four of them in all tasks; in its control a single one, which no other has."""
    units = {}
    for task in range(TASKS):
        differing = {"none": [*range(4), 10 + task, 20 + task], "words": [100 + task], "numbers": [200 + task]}
        for control, dims in differing.items():
            states = rng.normal(size=(PAIRS, 2, WIDTH))
            states[:, 0, dims] += effect
            sums = sums_of(states)
            units[TaskKey(f"task {task}", control)] = task_units(sums)
    groups = pd.DataFrame({"UID": [f"task {task}" for task in range(TASKS)], "field": "", "linguistics_term": ""})
    findings = unit_findings(unit_tables(units, sums.where, groups), {})
    return next(finding.verdict for finding in findings if finding.question == question)
