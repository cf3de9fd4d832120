"""Intervals of steered probabilities against brute force, which leaves out every group of texts in turn."""

import numpy as np
import pytest
import torch
from scipy import stats

from interp import corpora, encoding
from interp.analyses.encoding.steering import SteeredMeans
from interp.testing import assert_observer_merges

SMALL = {"orders": ["random"], "bases": ["axis"], "shifts": ["constant"], "ratios": [2.0], "progress": False}


@torch.no_grad()
def by_row(model, ids, token_id):
    """The mean probability of a token in each row."""
    return model(ids).softmax(-1)[..., token_id].mean(1).numpy()


def test_intervals_are_those_of_leaving_out_each_group(load_toy):
    model = load_toy("gpt2").double()
    ids, unseen = torch.randint(7, 67, (2, 40, 12), generator=torch.Generator().manual_seed(0))
    fit = encoding.fit(model, ids, progress=False)
    how = {"tokens": [9, 30], "ratios": [0.4, 3], "progress": False}
    table = encoding.steering_report(model, fit, other=corpora.batches(model, unseen), **how)
    assert set(table["shift"]) == {"exact", "constant", "regression"}
    for row in table.itertuples():
        rows = ids if row.text == "fitted" else unseen
        recipe = encoding.steer(model, row.token_id, row.requested, fit, shift=row.shift, progress=False)
        plain = by_row(model, rows, row.token_id)
        with model.hooks(fwd_hooks=recipe):
            steered = by_row(model, rows, row.token_id)
        pseudo = []
        for group in range(20):
            rest = np.delete(np.arange(40), [2 * group, 2 * group + 1])
            without = np.log(steered[rest].sum() / plain[rest].sum())
            pseudo.append(20 * np.log(steered.sum() / plain.sum()) - 19 * without)
        degrees = 2 / (2 / 19 + max(stats.kurtosis(pseudo), 0) / 20)
        half = stats.t.ppf(0.975, degrees) * stats.sem(pseudo)
        assert row.achieved == pytest.approx(steered.sum() / plain.sum(), rel=1e-9)
        assert np.log([row.achieved_low, row.achieved_high]) == pytest.approx(
            [np.log(row.achieved) - half, np.log(row.achieved) + half], rel=1e-6, abs=1e-9
        )
    assert (table["achieved_low"] < table["achieved_high"]).all()


@pytest.mark.slow
def test_groups_do_not_depend_on_batches_and_parts(load_toy, texts):
    long = [text for text in texts for _ in range(3)]
    directions = np.linspace(-1, 1, 16)[None]
    make = lambda model: SteeredMeans(model, [(9, 0.5, [0.0]), (10, 0.0, [0.7])], directions)  # noqa: E731
    assert_observer_merges(make, load_toy("gpt2").double(), long, rtol=1e-12)


@pytest.mark.parametrize("n", [19, 20])
def test_a_short_text_has_no_interval_and_says_why(n, load_toy):
    ids = torch.randint(7, 67, (n, 12), generator=torch.Generator().manual_seed(0))
    study = encoding.study(load_toy("gpt2"), ids, unigram=np.arange(67), **SMALL)
    ends = study.steering[["achieved_low", "achieved_high"]]
    assert study.steering["achieved"].notna().all()
    assert ends.isna().all(axis=None) == (n == 19)
    said = study.provenance["intervals"]["fitted"]
    assert said.get("none", "").startswith("19 texts") == (n == 19)


def test_intervals_of_errors_are_of_medians_on_the_same_texts(load_toy):
    model = load_toy("gpt2").double()
    ids = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    study = encoding.study(model, ids, unigram=np.arange(67), **SMALL | {"shifts": ["exact", "constant"]})
    assert study.steering_error.query("shift == 'exact'")["error_low"].eq(0).all(), "steering is exact on these texts"
    assert (study.steering_error["error"] < study.steering_error["error_high"]).all()
    table = study.steering.query("shift == 'constant' and group == 'rare'")
    ratios = []
    fit = encoding.fit(model, ids, progress=False)
    for token_id in table["token_id"]:
        plain = by_row(model, ids, token_id)
        with model.hooks(fwd_hooks=encoding.steer(model, token_id, 2.0, fit, shift="constant", progress=False)):
            ratios.append([by_row(model, ids, token_id).reshape(20, 2).sum(1), plain.reshape(20, 2).sum(1)])
    steered, plain = np.array(ratios).swapaxes(0, 1)
    miss = lambda steered, plain: np.median(np.abs(np.log(steered / plain / 2)), 0)  # noqa: E731
    whole = miss(steered.sum(1), plain.sum(1))
    without = miss(steered.sum(1, keepdims=True) - steered, plain.sum(1, keepdims=True) - plain)
    degrees = 2 / (2 / 19 + max(stats.kurtosis(without), 0) / 20)
    half = stats.t.ppf(0.975, degrees) * np.sqrt(19 / 20 * ((without - whole) ** 2).sum())
    row = study.steering_error.query("shift == 'constant' and group == 'rare'").iloc[0]
    ends = [max(whole - half, 0), whole + half]
    assert [row["error"], row["error_low"], row["error_high"]] == pytest.approx([whole, *ends], rel=1e-6)
