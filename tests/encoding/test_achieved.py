"""Ratios of steered probabilities, and medians of their errors, against brute force."""

import numpy as np
import pytest
import torch

from interp import corpora, encoding
from interp.analyses.encoding.steering import SteeredMeans
from interp.testing import assert_observer_merges


@torch.no_grad()
def mean_probability(model, ids, token_id):
    return float(model(ids).softmax(-1)[..., token_id].mean())


def test_ratios_and_medians_of_their_errors(load_toy):
    model = load_toy("gpt2").double()
    ids, unseen = torch.randint(7, 67, (2, 40, 12), generator=torch.Generator().manual_seed(0))
    how = {"orders": ["random"], "bases": ["axis"], "ratios": [0.4, 3], "progress": False}
    study = encoding.study(model, ids, unigram=np.arange(67), **how)
    fit = encoding.fit(model, ids, progress=False)
    table = encoding.steering_report(model, fit, other=corpora.batches(model, unseen), ratios=[0.4, 3], progress=False)
    assert set(table["shift"]) == {"exact", "constant", "regression"}
    for row in table.itertuples():
        rows = ids if row.text == "fitted" else unseen
        recipe = encoding.steer(model, row.token_id, row.requested, fit, shift=row.shift, progress=False)
        plain = mean_probability(model, rows, row.token_id)
        with model.hooks(fwd_hooks=recipe):
            assert row.achieved == pytest.approx(mean_probability(model, rows, row.token_id) / plain, rel=1e-9)
    errors = {}
    for row in table[table["text"] == "fitted"].itertuples():
        for group in (row.group, "all"):
            errors.setdefault((row.shift, group), []).append(abs(np.log(row.achieved / row.requested)))
    for row in study.steering_error.query("text == 'fitted'").itertuples():
        assert row.error == pytest.approx(np.median(errors.pop((row.shift, row.group))), rel=1e-9, abs=1e-12)
    assert not errors


@pytest.mark.parametrize("n", [19, 20])
def test_a_short_text_has_no_interval_and_says_why(n, load_toy):
    ids = torch.randint(7, 67, (n, 12), generator=torch.Generator().manual_seed(0))
    how = {"orders": ["random"], "bases": ["axis"], "shifts": ["constant"], "ratios": [2.0], "progress": False}
    study = encoding.study(load_toy("gpt2"), ids, unigram=np.arange(67), **how)
    assert ("19 different texts" in study.provenance["intervals"]["fitted"].get("none", "")) == (n == 19)
    beyond = study.findings[0]
    assert np.isnan(beyond.low) == (n == 19)
    assert ("19 different texts" in beyond.no_interval) == (n == 19)


@pytest.mark.slow
def test_sums_do_not_depend_on_batches_and_parts(load_toy, texts):
    long = [text for text in texts for _ in range(3)]
    directions = np.linspace(-1, 1, 16)[None]
    make = lambda model: SteeredMeans(model, [(9, 0.5, [0.0]), (10, 0.0, [0.7])], directions)  # noqa: E731
    assert_observer_merges(make, load_toy("gpt2").double(), long, rtol=1e-12)
