"""Intervals of attention by class against brute force: every group of texts left out in turn."""

import numpy as np
import pytest
import torch
from scipy import stats

from interp import attention
from interp.attention.patterns import attention_by_class

CLASSES = {"some": [7, 8, 9, 10], "more": list(range(11, 30))}


@torch.no_grad()
def by_row(model, ids):
    """Attention of each row by layer, head and class, summed over queries."""
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
        degrees = 2 / (2 / 19 + np.maximum(stats.kurtosis(of(means)), 0) / 20)
        half = stats.t.ppf(0.975, degrees) * stats.sem(of(means))
        expected = of(whole[None])[0]
        np.testing.assert_allclose(table["sum"], expected.ravel(), rtol=1e-5)
        np.testing.assert_allclose(table["sum_low"], (expected - half).clip(0).ravel(), rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(table["sum_high"], (expected + half).clip(max=1).ravel(), rtol=1e-4, atol=1e-7)
    assert study.provenance["intervals"]["groups"] == 20


def test_a_short_text_has_no_interval(load_toy):
    ids = torch.randint(7, 67, (19, 12), generator=torch.Generator().manual_seed(0))
    table = attention_by_class(load_toy("gpt2"), ids, key_classes=CLASSES, progress=False)
    assert table[["sum_low", "sum_high"]].isna().all(axis=None)
    assert table["sum"].notna().all()
