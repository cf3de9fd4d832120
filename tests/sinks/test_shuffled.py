"""The control of the sink rate: it is what the recipe does, holds under a null, and lets a planted sink through."""

import numpy as np
import pytest
import torch
from toys import ROOT

from interp import corpora, hooks
from interp.analyses.sinks import shuffled
from interp.analyses.sinks.shuffled import ShuffledKeys, sampled_rows
from interp.instruments.sinks import Sinks
from interp.models.sites import hook_name, view
from interp.passes.reading import observe
from interp.testing import assert_observer_merges, toy_bridge

IDS = torch.randint(7, 67, (40, 24), generator=torch.Generator().manual_seed(0))
TEXTS = [" ".join(f"w{i}" for i in row) for row in (IDS - 7).tolist()]


def read(model, text, rows=None, **options):
    rows = sampled_rows(model, text, 0) if rows is None else rows
    observer = ShuffledKeys(model, rows, **options)
    observe(model, text, observer, progress=False)
    return observer


@torch.no_grad()
def brute(model, tokens, order, epsilon):
    """How many heads of each layer have a sink at the first position with the keys of that layer in another order."""
    first, counts = 0 if view(model).encoder else 8, []
    for layer in range(2):
        name, seen = hook_name(model, "pattern", layer), {}
        recipe = hooks.permute_keys(model, order, layers=[layer]) + hooks.capture(model, "pattern", seen, layer=layer)
        with model.hooks(fwd_hooks=recipe):
            model(tokens[None])
        drawn = seen[name][0, :, first:, 0].double().mean(-1)
        counts.append(int((drawn > epsilon).sum()))
    return counts


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "bridge"])
def test_each_draw_is_that_of_the_recipe(kind, load_toy, monkeypatch):
    """Rows of different lengths, padded; the permutations are those of the seed and the row."""
    monkeypatch.setattr(shuffled, "DRAWS", 4)
    model = toy_bridge() if kind == "bridge" else load_toy(kind, dtype=torch.float64)
    texts = [text.rsplit(" ", cut)[0] if cut else text for cut, text in enumerate(TEXTS[:3])]
    text = corpora.batches(model, texts, layout="texts", batch_size=2)
    observer = read(model, text, range(3), epsilon=0.15, seed=5)
    rows = [row for row in text.rows() if row.number < 3 and len(row.ids) >= (16 if kind == "bert" else 24)]
    expected = np.zeros((4, 2))
    for row in rows:
        rng = np.random.default_rng([5, row.number])
        for draw in range(4):
            order = torch.from_numpy(rng.permutation(len(row.ids)))
            expected[draw] += brute(model, torch.tensor(row.ids.tolist()), order, 0.15)
    above = torch.stack([observer.state[f"{layer}.above"] for layer in range(2)]).sum(-1).T
    assert above.tolist() == expected.tolist()
    assert expected.any()
    np.testing.assert_allclose(observer.table["rate"], expected.sum(1) / (8 * len(rows)))


def test_observers_merge(load_toy):
    texts = [*TEXTS, "w1 w2 w3", "w4 w5"]
    assert_observer_merges(lambda model: ShuffledKeys(model, range(0, 40, 3), epsilon=0.2), load_toy("gpt2"), texts)


def test_it_reads_at_most_64_rows_that_are_long_enough(load_toy):
    model = load_toy("gpt2")
    text = corpora.batches(model, [*TEXTS * 2, "w1 w2"], layout="texts")
    rows = sampled_rows(model, text, 0)
    assert len(set(rows)) == 64
    assert max(rows) < 80
    assert rows == sampled_rows(model, text, 0) != sampled_rows(model, text, 1)
    assert sampled_rows(model, corpora.batches(model, ["w1 w2"] * 30, layout="texts"), 0) == []
    assert read(model, text, [80], epsilon=0.2).table.empty  # two tokens


def test_a_recipe_on_scores_leaves_it_empty(load_toy):
    model = load_toy("gpt2")
    text = corpora.batches(model, IDS)
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_attn_scores", lambda scores, hook: scores * 2)]):
        observer = ShuffledKeys(model, range(40), epsilon=0.2)
        observe(model, text, Sinks(model, corpora.token_classes(model), epsilon=0.2), observer, progress=False)
    assert observer.table.empty


@pytest.fixture
def random_sink(monkeypatch):
    """The verdict of a draw of `benchmarks/nulls.py`."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from null_models import random_sink

    return random_sink


@pytest.mark.quick("24-2.0")
@pytest.mark.parametrize("length", [24, 32])
@pytest.mark.parametrize("sd", [0.5, 2.0, 8.0])
def test_random_queries_and_keys_have_no_sink(length, sd, random_sink):
    """Rows of fewer tokens are refused. Before, up to 20 of 20 of 11 to 14 tokens had one."""
    verdicts = [random_sink(np.random.default_rng(seed), length=length, sd=sd) for seed in range(10)]
    assert verdicts.count("yes") <= 1


@pytest.mark.parametrize("length", [24, 32])
def test_a_first_key_along_all_queries_is_a_sink(length, random_sink):
    drawn = (random_sink(np.random.default_rng(seed), length=length, sd=1.0, planted=3.0) for seed in range(3))
    assert set(drawn) == {"yes"}
