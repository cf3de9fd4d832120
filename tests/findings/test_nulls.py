"""If there is nothing to find, the answer is "yes" at most 5 times in 100."""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
import pytest
import torch

from interp import corpora, encoding, models
from interp.analyses.attention.findings import steered
from interp.analyses.encoding.findings import as_untrained, better_than_random, beyond_theory
from interp.analyses.encoding.pruning import Agreements
from interp.analyses.encoding.twins import twin_rows
from interp.analyses.generation.findings import diverse
from interp.analyses.generation.metrics import intervals
from interp.analyses.probing.findings import above_untrained, beyond, concentrated, held, needed, some_general
from interp.instruments.uncertainty import averaged
from interp.passes.reading import observe
from interp.results.findings import Finding
from interp.testing import toy_decoder


def yes_in_100(found: Callable[[np.random.Generator], Iterable[Finding]]) -> dict[str, int]:
    """How often the answer to each question is yes in a hundred draws."""
    answers = [
        (one.question, one.verdict == "yes") for seed in range(100) for one in found(np.random.default_rng(seed))
    ]
    counts: dict[str, int] = pd.DataFrame(answers).groupby(0)[1].sum().to_dict()
    return counts


def test_outlier_dimensions_like_any_other():
    """All effects are the largest of 60 cells; the intervals are narrow."""

    def found(rng):
        kinds = ["removed"] + [kind for kind in ("frame", "equal keys", "ordinary") for _ in range(39)]
        effects = rng.normal(0, 0.5, (len(kinds), 60))
        largest = effects[np.arange(len(kinds)), np.abs(effects).argmax(1)]
        frames = pd.DataFrame({"dims": "0", "kind": kinds, "draw": [0, *range(39), *range(39), *range(39)]})
        frames = frames.assign(layer=2, key_class="first", attention_before=0.3, attention_after=0.3, log_odds=largest)
        ends = {"log_odds_low": largest - 0.02, "log_odds_high": largest + 0.02}
        return steered(frames.assign(**ends), {}, "keys")

    (n,) = yes_in_100(found).values()
    assert n <= 5


def test_untrained_models_encode_nothing_beyond_construction():
    """Neither beyond the theory, nor better than other untrained models; nor do random biases and norms."""
    text = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    for seed in range(4):
        random = toy_decoder(seed=seed)
        for model in (random, models.untrained(random, seed=100 + seed)):
            fit = encoding.fit(model, text, progress=False)
            twins = twin_rows(model, fit, progress=False)
            assert beyond_theory(fit.theory).verdict != "yes"
            (found,) = as_untrained(twins, fit.theory)
            assert found.verdict != "yes"


def test_a_random_order_of_dimensions_like_any_other():
    """A hundred orders of one model, each against 39 others."""
    model, rng = toy_decoder(), np.random.default_rng(0)
    text = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    agreements = Agreements(model, [rng.permutation(16)[:5].tolist() for _ in range(139)])
    observe(model, corpora.batches(model, text), agreements, progress=False)
    table = agreements.table.assign(fraction=0.3, draw=0)

    def found(rng):
        drawn = table.sample(40, random_state=int(rng.integers(2**31)))
        return better_than_random(drawn.assign(order=["spearman"] + ["random"] * 39))

    assert max(yes_in_100(found).values()) <= 5


PHENOMENA = {task: f"p{task // 2}" for task in range(21)}


@pytest.mark.parametrize("n_tasks", [4, 5, 21])
def test_probes_of_shuffled_labels(n_tasks):
    pairs = [("dense", "bag_of_words"), ("l0", "bag_of_words")]

    def found(rng):
        hits = pd.DataFrame(rng.integers(0, 2, size=(n_tasks * 40, 3)) / 1.0, columns=["dense", "bag_of_words", "l0"])
        hits = hits.assign(task=np.repeat(np.arange(n_tasks), 40), state=3, pair=np.tile(range(40), n_tasks))
        phenomena = PHENOMENA if n_tasks > 10 else dict.fromkeys(range(n_tasks), "")
        table = averaged(hits, pairs, phenomena)[1].assign(n_tasks=n_tasks, above=0, below=0)
        models = {"none": 1, "untrained": 3}
        rows = [
            (task, "dense", control, draw, rng.binomial(80, 0.5) / 80)
            for control, draws in models.items() for draw in range(draws) for task in range(n_tasks)
        ]  # fmt: skip
        untrained = pd.DataFrame(rows, columns=["task", "probe", "control", "draw", "accuracy"])
        return [*beyond(table, phenomena), *above_untrained(untrained, table, phenomena)]

    counts = yes_in_100(found)
    assert len(counts) == 3
    assert max(counts.values()) <= (5 if n_tasks > 4 else 0)


def test_probes_of_shuffled_labels_on_other_tasks():
    def found(rng):
        accuracy = rng.binomial(40, 0.5, size=(3, 21, 21)) / 40
        kinds = (("l0", 0.2, accuracy[0]), ("dense", np.nan, accuracy[1]), ("bag_of_words", np.nan, accuracy[2]))
        tables = []
        for name, strength, right in kinds:
            rows = [(i, j, right[i, j]) for i in range(21) for j in range(21)]
            table = pd.DataFrame(rows, columns=["train_task", "test_task", "pair_accuracy"])
            tables.append(table.assign(method=name, l0_strength=strength))
        whole = pd.concat(tables).astype({"train_task": str, "test_task": str})
        phenomena = {str(task): name for task, name in PHENOMENA.items()}
        return [*held(whole, 0.2, phenomena), *some_general(whole, 0.2, phenomena)]

    counts = yes_in_100(found)
    assert len(counts) == 4
    assert max(counts.values()) <= 5


def test_top_dimensions_like_those_of_any_basis():
    def found(rng):
        level = rng.uniform(0.7, 0.9, 12)
        rows = [
            (task, "none" if draw < 0 else "rotation", max(draw, 0), 3, level[task] + rng.normal(0, 0.04))
            for draw in range(-1, 39) for task in range(12)
        ]  # fmt: skip
        rows += [(task, "none", 0, 99, 0.9) for task in range(12)]
        table = pd.DataFrame(rows, columns=["task", "control", "draw", "k", "accuracy"])
        return concentrated(table, PHENOMENA)

    assert max(yes_in_100(found).values()) <= 5


@pytest.mark.parametrize("n_tasks", [2, 3, 4, 5, 15])
def test_neurons_found_like_any_other(n_tasks):
    def found(rng):
        accuracy = rng.normal(-0.05, 0.05, (n_tasks, 2))
        columns = {"set": ["found", "matched"] * n_tasks, "task": np.repeat(np.arange(n_tasks), 2), "mode": "zero"}
        return needed(pd.DataFrame(columns | {"accuracy": accuracy.ravel()}), {})

    assert max(yes_in_100(found).values()) <= (5 if n_tasks > 4 else 0)


@pytest.mark.slow
def test_texts_whose_scale_is_shuffled():
    def found(rng):
        texts = [
            pd.DataFrame({"prompt_id": range(30), "token_ids": rng.zipf(1.5, size=(30, 12)).clip(max=500).tolist()})
            for _ in range(3)
        ]
        kinds = [("human", np.nan), ("top_k", 1.0), ("top_k", 0.0)]
        table = pd.concat([one.assign(decoder=name, scale=of) for one, (name, of) in zip(texts, kinds, strict=True)])
        return diverse(intervals(table, np.zeros(501, dtype=bool)), 30)

    assert max(yes_in_100(found).values()) <= 5
