"""One statistical test per outlier dimension, over layers and classes: by hand, on planted effects, and on none."""

import numpy as np
import pandas as pd
import pytest
import torch

from interp import attention, corpora
from interp.analyses.attention.claims import largest_effects
from interp.analyses.attention.findings import untested
from interp.testing import toy_decoder

N_LAYERS, CLASSES = 3, ("a", "b", "other")


def ablation(change, removed, outliers):
    """A table of effects [dim, layer, class] for dimensions of these sizes [dim, layer]."""
    rows = [
        (
            layer,
            dim,
            "outlier" if dim in outliers else "matched",
            removed[dim, layer],
            name,
            0.3,
            0.3 + change[dim, layer, c],
        )
        for dim in range(len(change))
        for layer in range(N_LAYERS)
        for c, name in enumerate(CLASSES)
    ]
    columns = ["layer", "dim", "set", "removed", "key_class", "attention_before", "attention_after"]
    return pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=0)


def by_hand(change, removed, dim, outliers):
    """The 39 dimensions nearest in size, and the share of maxima that are at least as large."""
    largest = np.abs(change[:, :, :2]).max((1, 2))
    apart = np.exp(np.abs(np.log(removed) - np.log(removed[dim])).mean(1))
    order = [int(other) for other in np.argsort(apart, kind="stable") if other not in outliers][:39]
    matching = [other for other in order if apart[other] <= 1.5]
    p = (1 + sum(largest[other] >= largest[dim] for other in matching)) / 40
    most = max(matching, key=lambda other: largest[other], default=None)
    at = np.unravel_index(np.abs(change[most, :, :2]).argmax(), (N_LAYERS, 2))
    control = [most, at[0], CLASSES[at[1]]] if matching else []
    return largest[dim], len(matching), p if len(matching) == 39 else np.nan, control


def test_by_hand():
    rng = np.random.default_rng(0)
    change, removed = rng.normal(size=(80, N_LAYERS, 3)) * 0.01, np.exp(rng.normal(size=(80, N_LAYERS)) * 0.2)
    change[:, :, 2] = 9.0  # of the class other, which does not count
    change[5, 1, 1] = -0.2
    removed[[6, 7]] *= [[1.3], [4.0]]
    outliers = [5, 6, 7]
    found = largest_effects(ablation(change, removed, outliers)).set_index("dim")
    assert sorted(found.index) == outliers
    for dim, row in found.iterrows():
        effect, n_controls, p, control = by_hand(change, removed, dim, outliers)
        assert abs(row["change"]) == pytest.approx(effect)
        assert row["n_controls"] == n_controls
        assert row[["control_dim", "control_layer", "control_key_class"]].dropna().tolist() == control
        assert row["p_value"] == pytest.approx(p, nan_ok=True)
        assert row["attention_after"] - row["attention_before"] == pytest.approx(row["change"])
        assert row["removed"] == pytest.approx(np.exp(np.log(removed[dim]).mean()))
    assert found.loc[5, ["layer", "key_class", "p_value"]].tolist() == [1, "b", 1 / 40]
    assert np.isnan(found.loc[7, "p_value"]), "four times as large as the others: nothing matches"


@pytest.mark.slow
def test_p_is_uniform_where_outliers_are_like_the_rest():
    rng = np.random.default_rng(1)
    sizes, p = np.ones((43, N_LAYERS)), []
    for _ in range(150):
        p += largest_effects(ablation(rng.standard_t(3, size=(43, N_LAYERS, 3)), sizes, [0, 1, 2]))["p_value"].tolist()
    p = np.array(p)
    assert (p <= 0.05).mean() == pytest.approx(0.05, abs=0.035)
    assert p.mean() == pytest.approx(0.5, abs=0.06)
    assert p.min() >= 1 / 40


def test_a_dimension_that_is_not_removed_everywhere_is_not_a_control():
    change, sizes = np.zeros((41, N_LAYERS, 3)), np.ones((41, N_LAYERS))
    change[0, 0, 0], change[9, 2, 1] = 0.1, 0.5
    table = ablation(change, sizes, [0])
    assert largest_effects(table)["p_value"].item() == pytest.approx(2 / 40)
    driver = table[(table["dim"] != 9) | (table["layer"] == 2)].replace({"set": {"matched": "driver"}})
    assert largest_effects(driver)["p_value"].item() == pytest.approx(1 / 40)
    few = largest_effects(table[~table["dim"].isin([7, 8])])
    assert (few["n_controls"].item(), few["p_value"].isna().item()) == (38, True)
    assert largest_effects(table.iloc[:0]).empty


@pytest.fixture(scope="module")
def wide():
    model = toy_decoder(n_embd=128)
    with torch.no_grad():
        for block in model.blocks:
            block.ln1.w.fill_(1.0)  # or dimensions differ in size
            block.ln1.b.fill_(0.0)
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(60, (60, 14), generator=generator)
    return model, corpora.batches(model, [" ".join(f"w{i}" for i in row) for row in words.tolist()], layout="texts")


def claimed(model, batches, dims, **options):
    """The claims about these dimensions, as if they were outliers."""
    outliers = pd.DataFrame({"state": 0, "dim": dims, "mean": 1.0, "z": 9.0})
    how = {"key_classes": {"a": range(7, 27), "b": range(27, 40)}, "progress": False} | options
    table = attention.ablation_effect(model, batches, outliers, **how)
    return table, largest_effects(table).set_index("dim")


def test_a_constant_takes_no_part_without_rope(wide):
    """Zero and mean differ by a constant, which shifts all scores of a query alike: same effects, same controls."""
    found = [claimed(*wide, [11, 20, 30], mode=mode)[1] for mode in ("mean", "zero")]
    pd.testing.assert_frame_equal(*found, rtol=1e-4)


@pytest.mark.parametrize("mode", ["mean", "zero"])
def test_a_dimension_that_the_keys_read_differs_from_those_of_its_size(wide, mode):
    model, batches = wide
    weight = model.blocks[1].attn.W_K
    with torch.no_grad():
        before = weight.clone()
        weight[:, 11] *= 30  # read far more than others of its size
    table, found = claimed(model, batches, [11, 20, 30], mode=mode)
    with torch.no_grad():
        weight.copy_(before)
    assert found.loc[11, ["layer", "p_value"]].tolist() == [1, 1 / 40]
    assert found.loc[[20, 30], "p_value"].min() > 0.025
    sets = table.drop_duplicates(["layer", "dim"]).groupby(["layer", "set"]).size().unstack()
    assert (sets["outlier"] == 3).all()
    assert (sets["matched"].between(39, 61)).all(), "controls are shared"
    assert (table["removed"] <= table["magnitude"] + 1e-9).all()


@pytest.mark.slow
def test_p_values_without_effects_and_without_matches(wide):
    model, batches = wide
    p = np.concatenate([claimed(model, batches, [i, i + 20, i + 40])[1]["p_value"] for i in range(0, 20, 2)])
    assert not np.isnan(p).any()
    assert (p <= 0.05).sum() <= 5, "30 dimensions that are like any others"
    assert 0.3 < p.mean() < 0.7
    with torch.no_grad():
        before = model.embed.W_E.clone()
        model.embed.W_E[:, 13] *= 100
    table, found = claimed(model, batches, [13, 20])
    with torch.no_grad():
        model.embed.W_E.copy_(before)
    assert np.isnan(found.loc[13, "p_value"])
    assert found.loc[13, "n_controls"] < 39
    matched = table.query("set == 'matched'")
    assert set(matched.groupby("layer")["dim"].nunique()) <= {39, 40, 41, 42, 43, 44}


def test_outliers_that_were_not_removed_are_counted():
    outliers = pd.DataFrame({"dim": [4, 4, 7, 9, 2]})
    ablation = pd.DataFrame({"dim": [4, 7, 1], "set": ["outlier", "outlier", "random"]})
    assert list(untested(outliers, ablation)) == [
        "4 dimensions are outliers in some state, and only 2 of them were removed (4, 7); nothing is said of the others"
    ]
    assert not list(untested(outliers.head(3), ablation))
    assert not list(untested(outliers, ablation.tail(1))), "nothing was to be removed"
