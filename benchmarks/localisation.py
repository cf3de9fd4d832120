"""Do the top dimensions of some states hold more than those of random bases, and how many random ones are they worth?

`python benchmarks/localisation.py --pairs DIR --model NAME [--states 9 15 21 27]`: 200 minimal pairs each of the first
task of every phenomenon. Prints the Markdown tables that docs/papers.md sums up: the accuracy of the top dimensions
against those of 39 random rotations, with the verdict; and by how many times as many random dimensions the top 1 % are
equalled, in the model's own basis and in three rotations. The latter are medians over tasks whose top is above chance;
a task whose random dimensions never equal the top counts as above all others.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import pandas as pd

import interp
from interp.analyses.probing.equivalence import CHANCE, random_sets
from interp.analyses.probing.findings import concentrated
from interp.analyses.probing.group import Group
from interp.analyses.probing.rotations import haar, rotated, rotations
from interp.analyses.probing.states import States
from interp.corpora import pairs
from interp.corpora.splits import of_equal_size, split_tasks

PAIRS = 200
STATES = (9, 15, 21, 27)
ROTATIONS = 3


def first_of_each(table: pd.DataFrame) -> pd.DataFrame:
    """The pairs of the first task of every phenomenon."""
    tasks = table.groupby("linguistics_term")["UID"].min()
    return table[table["UID"].isin(tasks)].reset_index(drop=True)


def verdicts(states: States, state: int) -> list[str]:
    """A row for each number of top dimensions."""
    table = rotations(states, state)
    phenomena = states.pairs.groupby("UID")["linguistics_term"].first().to_dict()
    rows = []
    means = table[table["k"] < table["k"].max()].groupby(["k", "control"])["accuracy"].mean().unstack()
    for (k, accuracy), finding in zip(means.iterrows(), concentrated(table, phenomena), strict=True):
        difference = f"{finding.effect:+.3f} [{finding.effect_low:+.3f}, {finding.effect_high:+.3f}]"
        numbers = f"{accuracy['none']:.3f} | {accuracy['rotation']:.3f} | {difference} | {finding.p:.3f}"
        rows.append(f"| {state} | top {k} | {numbers} | {finding.verdict} |")
    return rows


def worth(states: States, state: int) -> str:
    """A row with the median over tasks in each basis."""
    medians = []
    for rotation in [None, *range(ROTATIONS)]:
        tables = []
        for splits in of_equal_size(split_tasks(states.pairs, None, states.rows)):
            group = Group(states.load(state), splits, scaling="standard", device="cpu")
            basis = group if rotation is None else rotated(group, haar(group.d, rotation))
            tables.append(random_sets(basis)[1])
        table = pd.concat(tables)
        able = table[table["top_low"] > CHANCE]
        ratios = able["ratio"].where(~able["censored"].astype(bool), np.inf)
        medians.append(f"{ratios.median():.1f} ({len(able)} of {len(table)})")
    return f"| {state} | " + " | ".join(medians) + " |"


def main(model_name: str, source: str, numbers: Sequence[int]) -> None:
    model = interp.load(model_name)
    table = first_of_each(pairs.load(source, limit=PAIRS))
    states = interp.probing.collect(model, table, states=numbers)
    print("| state | dimensions by \\|t\\| | own | rotations | difference over phenomena | p | verdict |")
    print("|---" * 7 + "|")
    for state in numbers:
        print("\n".join(verdicts(states, state)), flush=True)
    print(f"\n| state | own basis |{''.join(f' rotation {number} |' for number in range(ROTATIONS))}")
    print("|---" * (2 + ROTATIONS) + "|")
    for state in numbers:
        print(worth(states, state), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", required=True, metavar="DIR")
    parser.add_argument("--model", required=True, metavar="NAME")
    parser.add_argument("--states", nargs="+", type=int, default=STATES)
    chosen = parser.parse_args()
    main(chosen.model, chosen.pairs, chosen.states)
