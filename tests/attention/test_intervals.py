"""Intervals of attention by class against brute force, which leaves out every group of texts in turn."""

import numpy as np
import pandas as pd
import pytest
import torch
from oracles.intervals import half_width, pseudo_values
from torch.utils._python_dispatch import TorchDispatchMode

from interp import attention, corpora, hooks
from interp.analyses.attention.ablation import KeyAblation, StreamAblation
from interp.instruments import sums
from interp.instruments.scores import ScoreContributions
from interp.passes.reading import observe
from interp.testing import assert_observer_merges

CLASSES = {"some": [7, 8, 9, 10], "more": list(range(11, 30))}


@torch.no_grad()
def by_row(model, ids):
    """The attention of each row by layer, head and class, summed over queries."""
    _, cache = model.run_with_cache(ids)
    patterns = torch.stack([cache["pattern", layer] for layer in range(2)], 1).double()
    received = patterns.sum(3)
    named = [torch.isin(ids, torch.tensor(tokens)) for tokens in CLASSES.values()]
    named.append(~(named[0] | named[1]))
    return torch.stack([(received * one[:, None, None]).sum(-1) for one in named], -1).numpy()


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_intervals_are_those_of_leaving_out_each_group(kind, load_toy):
    model = load_toy(kind)
    ids = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    study = attention.study(model, ids, key_classes=CLASSES, unigram=np.arange(67), ablation=False, progress=False)
    sums = by_row(model, ids).reshape(20, 2, 2, 4, 3).sum(1)
    means = sums / 24
    whole = means.mean(0)
    for of, table in ((lambda one: one, study.attention), (lambda one: one.mean(2), study.by_layer)):
        half = half_width(of(means))
        expected = of(whole[None])[0]
        np.testing.assert_allclose(table["sum"], expected.ravel(), rtol=1e-5)
        np.testing.assert_allclose(table["sum_low"], (expected - half).clip(0).ravel(), rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(table["sum_high"], (expected + half).clip(max=1).ravel(), rtol=1e-4, atol=1e-7)
    assert study.provenance["intervals"]["groups"] == 20


def test_a_short_text_has_no_interval(load_toy):
    ids = torch.randint(7, 67, (19, 12), generator=torch.Generator().manual_seed(0))
    study = attention.study(load_toy("gpt2"), ids, key_classes=CLASSES, unigram=np.arange(67), progress=False)
    for table in (study.attention, study.ablation, study.ablated, study.frames):
        assert table.filter(regex="_low|_high").isna().all(axis=None)
        assert table.filter(regex="^sum$|change$|_before|_after").notna().all(axis=None)
    assert study.provenance["intervals"]["none"].startswith("what was read is 19 different texts")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_groups_do_not_depend_on_batches_and_parts(kind, load_toy, texts):
    model = load_toy(kind).double()
    classes = corpora.token_classes(model, CLASSES)
    long = [text for text in texts[:21] for _ in range(2)]
    assert len(long) > 40, "groups of several texts"
    assert_observer_merges(lambda model: KeyAblation(model, classes, {1: {3: 0.5}}), model, long, rtol=1e-12)
    assert_observer_merges(lambda model: StreamAblation(model, classes, {1: {3: 0.5, 4: 0.0}}), model, long, rtol=1e-12)
    how = {"weights": "attention" if kind == "bert" else "mean"}
    assert_observer_merges(lambda model: ScoreContributions(model, classes, **how), model, long, rtol=1e-12)


@pytest.fixture(params=["keys", "residual"])
def ablated(request, load_toy):
    model = load_toy("gpt2" if request.param == "keys" else "bert").double()
    ids = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    outliers = pd.DataFrame({"state": 0, "dim": [3, 5], "mean": 1.0, "z": 9.0})
    how = {"key_classes": CLASSES, "where": request.param, "mode": "zero", "progress": False}
    return model, ids, request.param, attention.ablation_effect(model, ids, outliers, **how)


def test_intervals_of_a_change_are_of_the_same_texts(ablated):
    """Each row of text is read with the dimension and, by the recipe, without it."""
    model, ids, where, table = ablated
    whole, names = by_row(model, ids), [*CLASSES, "other"]
    widths = []
    for (layer, dim), rows in table[table["set"] == "outlier"].groupby(["layer", "dim"]):
        with model.hooks(fwd_hooks=hooks.ablate_dims(model, int(layer), [int(dim)], where=where)):
            change = (by_row(model, ids) - whole)[:, layer].mean(1) / 12
        groups = change.reshape(20, 2, 3).mean(1)
        rows = rows.set_index("key_class").loc[names]
        np.testing.assert_allclose(rows["attention_after"] - rows["attention_before"], change.mean(0), atol=1e-10)
        np.testing.assert_allclose(rows["change_low"], groups.mean(0) - half_width(groups), atol=1e-10)
        np.testing.assert_allclose(rows["change_high"], groups.mean(0) + half_width(groups), atol=1e-10)
        widths.append(half_width(groups))
    of_attention = half_width((whole[:, 0].mean(1) / 12).reshape(20, 2, 3).mean(1))
    assert np.max(widths) < of_attention.min(), "the texts differ by more than what removing a dimension does to them"


def test_intervals_of_the_mean_of_a_set(load_toy):
    model = load_toy("gpt2").double()
    ids = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    how = {"key_classes": CLASSES, "unigram": np.arange(67), "k": 1.5, "progress": False}
    study = attention.study(model, ids, mode="zero", **how)
    whole, names = by_row(model, ids), [*CLASSES, "other"]
    for row in study.ablated.query("set == 'random'").itertuples():
        dims = study.ablation.query(f"layer == {row.layer} and set == 'random'")["dim"].unique().tolist()
        changes = []
        for dim in dims:
            with model.hooks(fwd_hooks=hooks.ablate_dims(model, row.layer, [dim], where="keys")):
                changes.append((by_row(model, ids) - whole)[:, row.layer, :, names.index(row.key_class)].mean(1) / 12)
        means = [one.mean() for one in changes]
        groups = np.mean(changes, 0).reshape(20, 2).mean(1)
        assert (row.mean_change, row.largest_fall, row.largest_rise) == pytest.approx(
            (np.mean(means), min(means), max(means)), abs=1e-10
        )
        ends = groups.mean() - half_width(groups), groups.mean() + half_width(groups)
        assert (row.mean_change_low, row.mean_change_high) == pytest.approx(ends, abs=1e-10)
    assert "other" not in set(study.ablated["key_class"])


def contributions_of(model, ids, *, batch_size=40, **how):
    """Mean gaps over heads and totals for some rows, by layer, head, class and dimension."""
    observer = ScoreContributions(model, corpora.token_classes(model, CLASSES), **how)
    observe(model, corpora.batches(model, ids, batch_size=batch_size), observer, progress=False)
    return observer, attention.gaps(observer.scores).mean("head", ["gap"]), observer.totals


def share_beyond(gaps, dims, others):
    """The share of the gap of a layer and class that some dimensions have, minus that of others."""
    gap = gaps.query("layer == 1 and key_class == 'some'").sort_values("dim")["gap"].to_numpy()
    return (gap[dims].sum() - gap[others].sum()) / gap.sum()


@pytest.mark.quick("bert-how1", "bert-how2", "gpt2-how3")
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("gpt2", {}),
        ("bert", {"scaled": True}),
        ("bert", {"weights": "attention"}),
        ("gpt2", {"average": "sentence", "centred": False}),
    ],
)
def test_intervals_of_contributions_are_those_of_leaving_out_each_group(kind, how, load_toy):
    model = load_toy(kind).double()
    ids = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    observer, apart, totals = contributions_of(model, ids, batch_size=7, **how)
    columns = ["contributions", "key_bias", "score"]
    gaps, sums, shares = [], [], []
    for group in range(20):
        rest = torch.cat([ids[: 2 * group], ids[2 * group + 2 :]])
        _, its_gaps, its_totals = contributions_of(model, rest, **how)
        shares.append(share_beyond(its_gaps, [1, 5], [2, 9]))
        gaps.append(20 * apart["gap"] - 19 * its_gaps["gap"])
        sums.append((20 * totals[columns] - 19 * its_totals[columns]).to_numpy())
    np.testing.assert_allclose(observer.gap_half(apart), half_width(np.array(gaps)), rtol=1e-6, atol=1e-12)
    half = half_width(np.array(sums))
    for number, name in enumerate(columns):
        for end, side in (("low", -1), ("high", 1)):
            expected = totals[name] + side * half[:, number]
            np.testing.assert_allclose(totals[f"{name}_{end}"], expected, rtol=1e-6, atol=1e-12)
    assert (observer.gap_half(apart) > 0).all()
    half = half_width(pseudo_values(share_beyond(apart, [1, 5], [2, 9]), np.array(shares)))
    assert observer.half_beyond(1, "some", [1, 5], [2, 9]) == pytest.approx(half, rel=1e-6)


def test_gaps_of_a_model_that_is_too_large_have_no_interval(load_toy, monkeypatch):
    monkeypatch.setattr("interp.instruments.scores.MOST_BYTES", 8 * 20 * 2 * 3 * 16 - 1)
    ids = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    how = {"key_classes": CLASSES, "unigram": np.arange(67), "ablation": False, "progress": False}
    study = attention.study(load_toy("gpt2"), ids, **how)
    assert study.largest_gaps["gap_low"].isna().all()
    assert study.totals["score_low"].notna().all()
    assert "256 MiB" in study.provenance["contribution_intervals"]["no_gaps"]
    monkeypatch.undo()
    study = attention.study(load_toy("gpt2"), ids, **how)
    inside = study.largest_gaps["gap"].between(study.largest_gaps["gap_low"], study.largest_gaps["gap_high"])
    assert inside.all()
    assert "no_gaps" not in study.provenance["contribution_intervals"]


class Operations(TorchDispatchMode):
    """Counts the operations that torch runs."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.number += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kind", "weights"), [("bert", "attention"), ("gpt2", "mean")])
def test_many_groups_in_a_batch_hardly_cost_more_than_one(kind, weights, load_toy, monkeypatch):
    model = load_toy(kind)
    ids = torch.randint(7, 67, (20, 6), generator=torch.Generator().manual_seed(0))
    batches = corpora.batches(model, ids, batch_size=20)
    counted = []
    for one_group in (False, True):
        if one_group:
            monkeypatch.setattr(ScoreContributions, "groups_of", lambda self, batch: [0] * len(batch.tokens))
        observer = ScoreContributions(model, corpora.token_classes(model, CLASSES), weights=weights)
        with Operations() as counter:
            observe(model, batches, observer, progress=False)
        counted.append(counter.number)
    assert counted[0] < 3 * counted[1], "only adding to the states is done group by group"


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_keys_one_by_one_give_the_sums_of_all_at_once(kind, load_toy, monkeypatch):
    model = load_toy(kind).double()
    ids = torch.randint(7, 67, (24, 6), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(sums, "_AT_ONCE", 50)  # three positions at a time
    found = []
    for way in (sums._all_at_once, lambda *of: sums._one_by_one(*of, of[1].x, of[1].one_hot[:, :, None])):
        monkeypatch.setattr(sums, "_over_keys", way)
        observer = ScoreContributions(model, corpora.token_classes(model, CLASSES), weights="attention")
        observe(model, corpora.batches(model, ids), observer, progress=False)
        found.append(observer.state)
    for name, state in found[0].items():
        torch.testing.assert_close(found[1][name], state, rtol=1e-12, atol=1e-12)
