"""If there is nothing to find, the answer is "yes" at most 5 times in 100."""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
import pytest
import torch

from interp import corpora
from interp.analyses.attention.findings import steered
from interp.analyses.encoding.atlas.findings import atlas_findings
from interp.analyses.encoding.atlas.sources import Spread
from interp.analyses.encoding.atlas.tables import Member, pair_table, subspace_table
from interp.analyses.encoding.findings import linear, removable
from interp.analyses.frequency import bias_effect
from interp.analyses.generation.findings import diverse
from interp.analyses.generation.uncertainty import intervals
from interp.analyses.probing.findings import beyond, held, needed
from interp.analyses.probing.uncertainty import ALPHA, averaged, compared
from interp.instruments.decomposition import decompose
from interp.instruments.validation import cross_validated
from interp.models.embeddings import Embeddings
from interp.results.findings import Finding


def yes_in_100(found: Callable[[np.random.Generator], Iterable[Finding]]) -> dict[str, int]:
    """How often the answer to each question is yes in a hundred draws."""
    answers = [
        (one.question, one.verdict == "yes") for seed in range(100) for one in found(np.random.default_rng(seed))
    ]
    counts: dict[str, int] = pd.DataFrame(answers).groupby(0)[1].sum().to_dict()
    return counts


@pytest.mark.slow
@pytest.mark.e2e  # because of its time
def test_random_biases_and_texts(load_toy):
    model = load_toy("gpt2")

    def found(rng):
        model.ln_final.b.data = torch.from_numpy(rng.standard_normal(16)).float()
        words = rng.choice(60, size=(20, 6), p=rng.dirichlet(np.ones(60)))
        texts = [" ".join(f"w{word}" for word in text) for text in words]
        prepared = corpora.batches(model, texts, layout="texts")
        return bias_effect(
            model, prepared, unigram=np.arange(67), biases=["ln"], scales=[0, 1], progress=False
        ).findings

    counts = yes_in_100(found)
    assert len(counts) == 2
    assert max(counts.values()) <= 5


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


def test_probabilities_shuffled_over_types():
    def found(rng):
        E, y = Embeddings(rng.normal(size=(12, 300))), rng.normal(size=(300, 2))
        fits = cross_validated(E, decompose(E, y), y).assign(target=["-log alpha", "shuffled"])
        return [linear(fits, pd.DataFrame({"step": [0], "adj_r2": [-1.0]}))]

    assert max(yes_in_100(found).values()) == 0


@pytest.mark.slow
def test_directions_that_have_nothing_to_do_with_each_other():
    """On a text whose groups are nearly identical."""
    kinds = {"word frequency": ("frequency", 4), "principal axes": ("PC", 10), "outlier dimensions": ("dim", 5),
             "sink keys": ("sink key", 10)}  # fmt: skip

    def found(rng):
        def drawn(name, kind, k):
            vectors = rng.standard_normal((1, k, 64))
            return Member(name, kind, vectors + 1e-3 * rng.standard_normal((21, k, 64)))

        spread = Spread(np.full(20, 100.0), 1)
        pairs = pair_table([drawn(name, name, 1) for name in ("b_LN", "E[h]", "-A")], spread)
        return atlas_findings(pairs, subspace_table([drawn(name, *of) for name, of in kinds.items()], spread))

    counts = yes_in_100(found)
    assert len(counts) == 5
    assert max(counts.values()) <= 5


def test_two_random_orders_of_dimensions():
    def found(rng):
        agreement = rng.binomial(400, 0.98, size=2) / 400
        half = 1.96 * np.sqrt(agreement * (1 - agreement) / 400)
        rows = {"basis": "axis", "order": ["spearman", "random"], "fraction": 0.3, "top1_agreement": agreement}
        return removable(
            pd.DataFrame(rows | {"top1_agreement_low": agreement - half, "top1_agreement_high": agreement + half})
        )

    assert max(yes_in_100(found).values()) <= 5


@pytest.mark.slow
def test_probes_of_shuffled_labels():
    pairs = [("dense", "bag_of_words"), ("l0", "l0_untrained"), ("l0", "l0_rotated")]

    def found(rng):
        names = ["dense", "bag_of_words", "l0", "l0_untrained", "l0_rotated"]
        hits = pd.DataFrame(rng.integers(0, 2, size=(21 * 40, 5)).astype(float), columns=names)
        hits = hits.assign(task=np.repeat([f"t{i:02d}" for i in range(21)], 40), state=3, pair=np.tile(range(40), 21))
        told = compared(hits, pairs)
        told = told[told["p_adjusted"] < ALPHA]
        by = ["probe", "against"]
        table = averaged(hits, pairs)[1].set_index(by).assign(n_tasks=21)
        table["above"] = told[told["difference"] > 0].groupby(by).size().reindex(table.index, fill_value=0)
        table["below"] = told[told["difference"] < 0].groupby(by).size().reindex(table.index, fill_value=0)
        return beyond(table.reset_index())

    counts = yes_in_100(found)
    assert len(counts) == 3
    assert max(counts.values()) <= 5


def test_probes_of_shuffled_labels_on_other_tasks():
    def found(rng):
        accuracy = rng.binomial(40, 0.5, size=(2, 21, 21)) / 40
        tables = []
        for name, strength, right in (("l0", 0.2, accuracy[0]), ("dense", np.nan, accuracy[1])):
            rows = [(i, j, right[i, j]) for i in range(21) for j in range(21)]
            table = pd.DataFrame(rows, columns=["train_task", "test_task", "pair_accuracy"])
            tables.append(table.assign(method=name, l0_strength=strength))
        return held(pd.concat(tables), 0.2)

    assert max(yes_in_100(found).values()) <= 5


def test_neurons_found_like_any_other():
    def found(rng):
        sets = {"set": ["found", "matched"], "accuracy": rng.normal(-0.05, 0.05, 2)}
        tasks = [pd.DataFrame(sets | {"task": task, "accuracy": rng.normal(-0.05, 0.05, 2)}) for task in range(15)]
        return needed(pd.concat(tasks).assign(mode="zero"))

    assert max(yes_in_100(found).values()) <= 5


@pytest.mark.slow
def test_texts_whose_scale_is_shuffled():
    def found(rng):
        texts = [
            pd.DataFrame({"prompt_id": range(30), "token_ids": rng.zipf(1.5, size=(30, 12)).clip(max=500).tolist()})
            for _ in range(3)
        ]
        kinds = [("human", np.nan), ("top_k", 1.0), ("top_k", 0.0)]
        table = pd.concat([one.assign(decoder=name, scale=of) for one, (name, of) in zip(texts, kinds, strict=True)])
        return diverse(intervals(table, np.zeros(501, dtype=bool)))

    assert max(yes_in_100(found).values()) <= 5
