"""How often 95 % intervals of accuracies contain the true value, by the number of minimal pairs of each task.

`python benchmarks/accuracies.py [--draws 300] [--pairs 20 40 160]`: two simulated probes and 20 tasks. A probe is right
about a sentence if its level, an effect of the task, an effect of the pair and noise add up to more than 0. All effects
are normal, so there is a formula for the true values. Each draw has new tasks.

`python benchmarks/accuracies.py --pool DIR --model NAME [--draws 400] [--pairs 40 160]`: a model judges the minimal
pairs of DIR (the first 200 of each task) by two scores, the total log-probability and that per token. Each draw has 20
of the tasks, and of each the given number of pairs, drawn with replacement. The true values are those over all pairs.

Prints the Markdown tables that docs/intervals.md quotes.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from scipy import stats

import interp
from interp.analyses.probing.judgements import judged
from interp.corpora import pairs
from interp.instruments.uncertainty import averaged, compared
from interp.passes.execution import execute

TASKS, OF_POOL = 20, 200
PROBES = {"l0": 0.9, "dense": 1.2}
"""Mean level of each probe, which gives accuracies of .75 and .81."""
SCORES = ("sum", "per_token")
OF_TASK, OF_PAIR = 0.6, 0.7  # SDs of the effects of a task and of a pair
OF_BOTH = 0.8  # the share of a task's effect that both probes have in common

Draw: TypeAlias = Callable[[int, np.random.Generator], tuple[pd.DataFrame, np.ndarray]]
"""Makes a table of hits with n pairs of each task, and gives the true accuracies on the first task."""


def simulated(n: int, rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray]:
    """The share of each pair that each simulated probe gets right."""
    both = rng.normal(size=(TASKS, 1)) * OF_BOTH * OF_TASK
    task = both + rng.normal(size=(TASKS, len(PROBES))) * np.sqrt(1 - OF_BOTH**2) * OF_TASK
    level = task + np.array([*PROBES.values()])
    pair = rng.normal(size=(TASKS, n, 1)) * OF_PAIR
    margin = level[:, None, None] + pair[:, :, None] + rng.normal(size=(TASKS, n, 2, len(PROBES)))
    right = (margin > 0).mean(2).reshape(-1, len(PROBES))
    true = stats.norm.cdf(level[0] / np.hypot(1, OF_PAIR))
    return hits_table(n, PROBES, right), true


def hits_table(n: int, names: Iterable[str], right: np.ndarray) -> pd.DataFrame:
    """The share of each pair that is right, with a column for each name; n pairs per task."""
    columns: dict[str, Any] = {"task": np.repeat(np.arange(TASKS), n), "state": 0}
    columns["pair"] = np.tile(np.arange(n), TASKS)
    columns.update(zip(names, right.T, strict=True))
    return pd.DataFrame(columns)


def judgements(model_name: str, source: str) -> tuple[Draw, np.ndarray]:
    """How pairs of a model's own judgements are drawn, and the true means over tasks."""
    model = interp.load(model_name)
    table = pairs.load(source, limit=OF_POOL)
    right = execute(model, judged(model, table, scores=SCORES, whole_words=False, bos="auto"), progress=False)
    by_task = [part[list(SCORES)].to_numpy() for _, part in right.groupby("task")]

    def draw(n: int, rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray]:
        tasks = rng.choice(len(by_task), TASKS)
        values = [by_task[task][rng.choice(len(by_task[task]), n)] for task in tasks]
        return hits_table(n, SCORES, np.concatenate(values)), by_task[tasks[0]].mean(0)

    return draw, np.mean([values.mean(0) for values in by_task], axis=0)


def covered(draw: Draw, means: np.ndarray, repetitions: int, sizes: list[int]) -> pd.DataFrame:
    """The share of draws whose interval contains the true value, for one task and over all tasks."""
    shares: dict[int, pd.Series] = {}
    for n in sizes:
        rows: dict[str, list[bool]] = defaultdict(list)
        for seed in range(repetitions):
            hits, of_first = draw(n, np.random.default_rng([seed, n]))
            names = (str(hits.columns[-2]), str(hits.columns[-1]))
            over_tasks, differences = averaged(hits, [names], {})
            first = hits[hits["task"] == 0]
            intervals = {
                "accuracy of a task": (averaged(first, [], {})[0].iloc[0], of_first[0]),
                "difference of two accuracies": (compared(hits, [names]).iloc[0], of_first[0] - of_first[1]),
                f"mean accuracy over {TASKS} tasks": (over_tasks.iloc[0], means[0]),
                f"mean difference over {TASKS} tasks": (differences.iloc[0], means[0] - means[1]),
            }
            for name, (interval, true) in intervals.items():
                rows[name].append(interval["low"] <= true <= interval["high"])
        shares[n] = pd.Series({name: np.mean(inside) for name, inside in rows.items()})
    return pd.DataFrame(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int)
    parser.add_argument("--pairs", type=int, nargs="+")
    parser.add_argument("--pool", help="minimal pairs, as interp.corpora.pairs.load takes them")
    parser.add_argument("--model", help="the model that judges the pairs of --pool")
    arguments = parser.parse_args()
    if (arguments.pool is None) != (arguments.model is None):
        parser.error("--pool and --model belong together: give both or neither")
    draw = simulated
    means = stats.norm.cdf(np.array([*PROBES.values()]) / np.sqrt(1 + OF_PAIR**2 + OF_TASK**2))
    repetitions, sizes = arguments.draws or 300, arguments.pairs or [20, 40, 160]
    if arguments.pool:
        draw, means = judgements(arguments.model, arguments.pool)
        repetitions, sizes = arguments.draws or 400, arguments.pairs or [40, 160]
    share = covered(draw, means, repetitions, sizes)
    print(f"| {repetitions} draws of | " + " | ".join(f"{n} pairs" for n in sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    for name, row in share.iterrows():
        print(f"| {name} | " + " | ".join(f"{share_of_size:.1%}" for share_of_size in row) + " |")


if __name__ == "__main__":
    main()
