"""How often 95 % intervals contain the true value, by the number of texts or minimal pairs that were read.

`python benchmarks/intervals.py [--corpora 300] [--texts 19 20 40 160]`. A small decoder with random weights reads texts
of 1 to 6 rows. Each text draws its words from its own distribution, so that the tokens of a text are alike. The true
values are those over a million positions.

Accuracies are those of two simulated probes on minimal pairs of 20 tasks. A probe is right about a sentence if its
level, an effect of the task, an effect of the pair and noise add up to more than 0. All effects are normal, so there is
a formula for the true values. Each draw has new tasks. Prints the Markdown table in docs/intervals.md.
"""

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from interp import corpora
from interp.analyses.attention.ablation import KeyAblation
from interp.analyses.attention.patterns import attention_by_class
from interp.analyses.encoding.steering import SteeredMeans
from interp.analyses.frequency import bias_effect
from interp.analyses.probing.uncertainty import averaged, compared
from interp.corpora import Batches
from interp.instruments.scores import ScoreContributions
from interp.instruments.shares import gaps
from interp.models.sites import Model
from interp.passes.observers import observe
from interp.testing import toy_decoder

CONTEXT, WORDS = 24, 60
MEASURES = {
    "KL(u‖q)": "kl", "ΔKL, without b_LN": "delta_kl", "JS": "js", "perplexity": "perplexity",
    "Δ perplexity, without b_LN": "delta_perplexity", "balanced NLL": "balanced_nll",
}  # fmt: skip
SPREAD = {
    "attention by class": "heads × classes", "change without a dimension": "layers × dimensions × classes",
    "gap": "layers × classes × dimensions", "ratio achieved": "tokens × ratios",
}  # fmt: skip
"""Measures with many values, and what the values are for."""
DIMS = (3, 8, 12)
STEERED = [(token, ratio) for token in (7, 10, 20, 40) for ratio in (0.5, 2, 5)]
CLASSES = {"common": list(range(7, 12)), "rare": list(range(37, 67))}

TASKS = 20
PROBES = {"l0": 0.9, "dense": 1.2}
"""Mean level of each probe, which gives accuracies of .75 and .81."""
OF_TASK, OF_PAIR = 0.6, 0.7  # SDs of the effects of a task and of a pair
OF_BOTH = 0.8  # the share of a task's effect that both probes have in common


def texts(n: int, rng: np.random.Generator) -> Iterator[str]:
    """Texts whose words follow Zipf's law overall, while each text has its own distribution."""
    base = 1 / np.arange(1, WORDS + 1)
    for _ in range(n):
        own = rng.dirichlet(8 * base / base.sum())
        yield " ".join(f"w{word}" for word in rng.choice(WORDS, CONTEXT * rng.integers(1, 7), p=own))


def read(model: Model, batches: Batches, counts: corpora.unigrams.Unigrams) -> pd.DataFrame:
    """The value and the interval of each measure."""
    effect = bias_effect(model, batches, unigram=counts, scales=[0, 1], progress=False).kl.set_index("scale").loc[0]
    rows = {
        name: (effect.get(column, effect["kl_unigram_model"]), effect[f"{column}_low"], effect[f"{column}_high"])
        for name, column in MEASURES.items()
    }
    attention = attention_by_class(model, batches, key_classes=CLASSES, progress=False)
    for (layer, head, key_class), found in attention.set_index(["layer", "head", "key_class"]).iterrows():
        rows[f"attention by class {layer} {head} {key_class}"] = found["sum"], found["sum_low"], found["sum_high"]
    rows |= effects(model, batches)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "low", "high"])


def effects(model: Model, batches: Batches) -> dict[str, tuple[float, float, float]]:
    """Values and intervals of what removing dimensions does to attention, of gaps, and of steering."""
    classes = corpora.token_classes(model, CLASSES)
    removed = KeyAblation(model, classes, {layer: dict.fromkeys(DIMS, 0.0) for layer in range(model.cfg.n_layers)})
    scores = ScoreContributions(model, classes)
    steered = SteeredMeans(model, [(token, np.log(ratio), [0.0]) for token, ratio in STEERED], np.zeros((1, 16)))
    observe(model, batches, removed, scores, steered, progress=False)
    rows: dict[str, tuple[float, float, float]] = {}
    for layer in range(model.cfg.n_layers):
        change = removed.jackknife(lambda sums, n: sums / n[..., None, None], removed.changes(layer), removed.queries)
        for place in np.ndindex(change.value.shape):
            name = "change without a dimension " + " ".join(map(str, (layer, *place)))
            rows[name] = change.value[place], change.low[place], change.high[place]
    apart = gaps(scores.scores).mean("head", ["gap"])
    half = scores.gap_half(apart)
    for row, reach in zip(apart.itertuples(), half, strict=True):
        rows[f"gap {row.layer} {row.key_class} {row.dim}"] = row.gap, row.gap - reach, row.gap + reach
    measures = steered.measures
    for number, row in enumerate(measures.itertuples()):
        rows[f"ratio achieved {number}"] = row.achieved, row.achieved_low, row.achieved_high
    asked = pd.DataFrame({"shift": "constant", "weights": "", "group": "some", "requested": [r for _, r in STEERED]})
    miss = steered.misses(asked).iloc[0]
    rows["median error of steering"] = miss["error"], miss["error_low"], miss["error_high"]
    return rows


def covered(repetitions: int, sizes: list[int], positions: int) -> pd.DataFrame:
    """The share of corpora whose interval contains the true value, by measure and number of texts."""
    model = toy_decoder(n_positions=CONTEXT)

    def batches(n: int, seed: int) -> Batches:
        made = list(texts(n, np.random.default_rng(seed)))
        return corpora.batches(model, made, layout="texts", context=CONTEXT, batch_size=64)

    many = batches(round(positions / (3.5 * CONTEXT)), 0)
    counts = corpora.count_unigrams(model, many.corpus)
    true = read(model, many, counts)["value"]
    inside: dict[int, list[pd.Series]] = defaultdict(list)
    for seed in range(1, repetitions + 1):
        for n in sizes:
            found = read(model, batches(n, 1_000 * seed + n), counts)
            within = (found["low"] <= true) & (true <= found["high"])
            inside[n].append(within.where(found["low"].notna()).astype(float))
    return pd.DataFrame({n: pd.concat(each, axis=1).mean(axis=1) for n, each in inside.items()})


def judged(n_tasks: int, n: int, rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The share of each pair that each probe gets right, like a study's `hits`, and its true accuracy on each task."""
    both = rng.normal(size=(n_tasks, 1)) * OF_BOTH * OF_TASK
    task = both + rng.normal(size=(n_tasks, len(PROBES))) * np.sqrt(1 - OF_BOTH**2) * OF_TASK
    level = task + np.array([*PROBES.values()])
    pair = rng.normal(size=(n_tasks, n, 1)) * OF_PAIR
    found = level[:, None, None] + pair[:, :, None] + rng.normal(size=(n_tasks, n, 2, len(PROBES)))
    right = (found > 0).mean(2).reshape(-1, len(PROBES))
    names = {"task": np.repeat(np.arange(n_tasks), n), "state": 0, "pair": np.tile(np.arange(n), n_tasks)}
    true = pd.DataFrame(stats.norm.cdf(level / np.hypot(1, OF_PAIR)), columns=[*PROBES])
    return pd.DataFrame(names | dict(zip(PROBES, right.T, strict=True))), true


def accuracies(repetitions: int, sizes: list[int]) -> pd.DataFrame:
    """The share of draws of n pairs whose interval contains the true value, for one task and over all tasks."""
    of_all = stats.norm.cdf(np.array([*PROBES.values()]) / np.sqrt(1 + OF_PAIR**2 + OF_TASK**2))
    pair = (*PROBES,)
    shares: dict[int, pd.Series] = {}
    for n in sizes:
        rows: dict[str, list[bool]] = defaultdict(list)
        for seed in range(repetitions):
            hits, true = judged(TASKS, n, np.random.default_rng([seed, n]))
            means, differences = averaged(hits, [pair], {})
            first, alone = means.iloc[0], averaged(hits[hits["task"] == 0], [], {})[0].iloc[0]
            between, one = differences.iloc[0], compared(hits, [pair]).iloc[0]
            rows["accuracy of a task"].append(alone["low"] <= true.iloc[0, 0] <= alone["high"])
            rows["difference of two accuracies"].append(one["low"] <= true.iloc[0] @ [1, -1] <= one["high"])
            rows[f"mean accuracy over {TASKS} tasks"].append(first["low"] <= of_all[0] <= first["high"])
            rows[f"mean difference over {TASKS} tasks"].append(between["low"] <= of_all @ [1, -1] <= between["high"])
        shares[n] = pd.Series({name: np.mean(inside) for name, inside in rows.items()})
    return pd.DataFrame(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=int, default=300)
    parser.add_argument("--texts", type=int, nargs="+", default=[19, 20, 40, 160])
    parser.add_argument("--positions", type=int, default=1_000_000, help="positions used for the true values")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", message="no token of class")
    share = covered(asked.corpora, asked.texts, asked.positions)
    one_by_one = [*MEASURES, "median error of steering"]
    rows = {name: ["none" if np.isnan(one) else f"{one:.1%}" for one in share.loc[name]] for name in one_by_one}
    for name, what in SPREAD.items():
        many = share[share.index.str.startswith(f"{name} ")]
        cells = [
            "none" if many[n].isna().all() else f"{many[n].mean():.1%} ({many[n].min():.0%}–{many[n].max():.0%})"
            for n in many
        ]
        rows[f"{name} (mean and range of {len(many)} {what})"] = cells
    for name, row in accuracies(asked.corpora, asked.texts).iterrows():
        rows[str(name)] = [f"{one:.1%}" for one in row]
    print(f"| {asked.corpora} draws of | " + " | ".join(f"{n} texts or pairs" for n in asked.texts) + " |")
    print("|---|" + "---|" * len(asked.texts))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
