"""Directions against slow code that is plainly right, scipy's random rotations, and a planted sink."""

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming
from oracles import encoding as oracle
from oracles.intervals import benjamini_hochberg, half_width, pseudo_values
from scipy import linalg, stats

from interp import attention, corpora, directions, encoding, plots
from interp.analyses.directions import sources
from interp.analyses.directions.comparisons import Member, cosine_table, overlap_table
from interp.analyses.directions.rotations import cosines, large_cosine, overlaps, p_of_cosine, random_overlaps
from interp.analyses.directions.sources import DirectionSums, Spread
from interp.instruments.profile import find_outliers
from interp.models.sites import hook_name
from interp.testing import assert_observer_merges, toy_bridge, toy_decoder

IDS = torch.randint(7, 67, (40, 24), generator=torch.Generator().manual_seed(0))
COUNTS = np.arange(1, 68)


def compared(model, text=IDS):
    return directions.study(model, text, unigram=COUNTS, progress=False)


class TestRotations:
    """In 60 dimensions; scipy draws orthogonal matrices by Haar measure and knows the distribution of a cosine."""

    d = 60

    def test_overlaps_are_those_of_principal_angles(self):
        rng = np.random.default_rng(0)
        one, other = rng.normal(size=(7, 5, self.d)), rng.normal(size=(7, 3, self.d))
        expected = [(np.cos(linalg.subspace_angles(a.T, b.T)) ** 2).mean() for a, b in zip(one, other, strict=True)]
        np.testing.assert_allclose(overlaps(one, other), expected, rtol=1e-10)
        np.testing.assert_allclose(overlaps(other[:1], one), overlaps(one, np.repeat(other[:1], 7, 0)), rtol=1e-10)
        np.testing.assert_allclose(overlaps(one[:, :1], other[:, :1]), cosines(one[:, 0], other[:, 0]) ** 2, rtol=1e-10)

    @pytest.mark.parametrize("k", [1, 4, 10])
    def test_a_rotated_line_has_the_beta_distribution(self, k):
        drawn = (random_overlaps(self.d, 10, draws=2_000)[:, :k, :1] ** 2).sum((1, 2))
        assert stats.kstest(drawn, stats.beta(k / 2, (self.d - k) / 2).cdf).pvalue > 0.01

    def test_rotated_subspaces_are_those_that_scipy_rotates(self):
        drawn = (random_overlaps(self.d, 10)[:, :8, :4] ** 2).sum((1, 2)) / 4
        turned = stats.ortho_group(self.d, seed=1).rvs(600)
        rng = np.random.default_rng(2)
        fixed, moved = rng.normal(size=(8, self.d)), rng.normal(size=(4, self.d))
        assert stats.ks_2samp(drawn, overlaps(fixed[None], moved @ turned)).pvalue > 0.01
        assert drawn.mean() == pytest.approx(8 / self.d, rel=0.03)

    @pytest.mark.slow
    def test_p_of_a_cosine_is_how_often_rotations_reach_it(self):
        turned = stats.ortho_group(self.d, seed=0).rvs(4_000)[:, 0, 0]
        for cosine in (0.05, -0.2, 0.3):
            assert p_of_cosine(cosine, self.d) == pytest.approx((np.abs(turned) >= abs(cosine)).mean(), abs=0.02)
        assert (np.abs(turned) > large_cosine(self.d)).mean() == pytest.approx(0.05, abs=0.01)


def test_controls_of_findings_are_random_rotations(of_planted):
    for (a, b), drawn in of_planted.rotations.groupby(["name_a", "name_b"]):
        assert len(drawn) == 199
        if (a, b) == ("b_LN", "-A"):
            assert stats.kstest(drawn["value"].astype(float) ** 2, stats.beta(0.5, 31 / 2).cdf).pvalue > 0.01
            assert stats.binomtest(int((drawn["value"] > 0).sum()), 199).pvalue > 0.01
        else:
            row = of_planted.overlaps.set_index(["name_a", "name_b"]).loc[(a, b)]
            assert drawn["value"].mean() == pytest.approx(row["null_mean"], rel=0.1)
            assert (drawn["value"] > row["null_high"]).mean() == pytest.approx(0.025, abs=0.025)


def interval(whole, without):
    return half_width(pseudo_values(whole, without))


@torch.no_grad()
def by_hand(model, rows, heads):
    """Some directions computed from the given rows: E[h], −A, and the mean unit direction of the keys of sinks."""
    _, cache = model.run_with_cache(IDS[rows])
    E, gamma = model.W_U.T.numpy(), model.ln_final.w.numpy()
    alpha = model(IDS[rows]).softmax(-1).numpy().reshape(-1, 67).mean(0)
    slope = oracle.least_squares(E, np.log(alpha))[0]
    units = []
    for layer, head in heads:
        attn = model.blocks[layer].attn
        W_K = getattr(attn, "_W_K", attn.W_K)[head].numpy()
        k = cache[hook_name(model, "k", layer)][:, :, head].numpy()
        moved = W_K @ (k[:, 0].mean(0) - k[:, 1:].reshape(-1, 4).mean(0)) * model.blocks[layer].ln1.w.numpy()
        moved = (moved - (moved.mean() if hasattr(model.ln_final, "b") else 0)) * gamma
        units.append(moved / np.linalg.norm(moved))
    mean = cache[hook_name(model, "head_input")].numpy().reshape(-1, 16).mean(0)
    return {"E[h]": mean, "-A": slope, "sink key": np.mean(units, 0)}, np.stack(units)


@pytest.mark.quick("gpt2")
@pytest.mark.parametrize(("kind", "epsilon"), [("gpt2", 0.15), ("llama", 0.07)], ids=["gpt2", "llama"])
def test_cosines_and_intervals_are_those_by_hand(kind, epsilon, load_toy, monkeypatch):
    monkeypatch.setattr(sources, "_EPSILON", epsilon)
    model = load_toy(kind, dtype=torch.float64)
    study = compared(model)
    heads = study.provenance["heads"]
    assert heads
    whole, units = by_hand(model, range(40), heads)
    without = [by_hand(model, [row for row in range(40) if row // 2 != group], heads) for group in range(20)]
    table = study.cosines.set_index(["name_a", "name_b"])
    for a, b in (("E[h]", "-A"), ("E[h]", "sink key"), ("-A", "sink key")):
        found = [oracle.cosine(one[a], one[b]) for one in (whole, *(left for left, _ in without))]
        row = table.loc[(a, b)]
        assert row["cosine"] == pytest.approx(found[0], rel=1e-5)
        half = interval(found[0], found[1:])
        ends = np.clip([found[0] - half, found[0] + half], -1, 1)
        assert [row["cosine_low"], row["cosine_high"]] == pytest.approx(ends.tolist(), 1e-4)
    dims = np.eye(16)[:4]
    angles = [np.cos(linalg.subspace_angles(dims.T, one.T)) for one in (units, *(left for _, left in without))]
    spread = Spread(np.full(20, 40.0), 2)
    members = [
        Member("dims", "dim", dims[None]),
        Member("keys", "sink key", np.stack([units, *(left for _, left in without)])),
    ]
    row = overlap_table(members, spread).iloc[0]
    shares = [(one**2).mean() for one in angles]
    assert row["overlap"] == pytest.approx(shares[0])
    assert row["overlap_high"] - row["overlap"] == pytest.approx(interval(shares[0], shares[1:]), rel=1e-4)


def test_directions_of_weights_have_no_error_and_neurons_are_where_they_write(load_toy):
    model = load_toy("gpt2", dtype=torch.float64)
    study = compared(model)
    first = study.provenance["neurons"][0]
    options = {"unigram": COUNTS, "share": 500 / study.provenance["n_tokens"], "progress": False}
    ranked = encoding.frequency_neurons(model, IDS, **options).dropna(subset="through_unigram")
    assert first == ranked.loc[ranked["through_unigram"].abs().idxmax(), "neuron"]
    w, gamma, b = (one.detach().numpy() for one in (model.W_out[1, first], model.ln_final.w, model.ln_final.b))
    row = study.cosines.set_index(["name_a", "name_b"]).loc[("b_LN", f"neuron {first}")]
    assert row["cosine"] == pytest.approx(oracle.cosine(b, (w - w.mean()) * gamma))
    assert [row["cosine_low"], row["cosine_high"]] == pytest.approx([row["cosine"]] * 2, rel=1e-12)
    assert row["p"] == pytest.approx(p_of_cosine(row["cosine"], 16))


@pytest.mark.slow
def test_what_is_true_by_construction_is_not_tested(load_toy):
    model = load_toy("gpt2")
    with torch.no_grad():
        model.W_pos[:, 5] += 3  # an outlier dimension
    study = compared(model)
    pairs = study.cosines[study.cosines["by_construction"]]
    named = {
        tuple(one.split()[0].rstrip("0123456789") for one in pair) for pair in pairs[["name_a", "name_b"]].to_numpy()
    }
    assert {("b_LN", "E[h]"), ("PC", "PC"), ("unigram", "neuron"), ("E[h]", "-A"), ("E[h]", "dim")} <= named
    assert not {"E[h]", "outlier dimensions"} & set(study.rotations["name_a"])
    for table in (study.cosines, study.overlaps):
        assert table.loc[table["by_construction"], ["p", "p_adjusted"]].isna().all(axis=None)
        tested = table[~table["by_construction"]]
        np.testing.assert_allclose(tested["p_adjusted"], benjamini_hochberg(tested["p"].to_numpy()))


def planted():
    """A toy whose head 2 of block 1 attends to the first position, where the embeddings make dimension 5 large."""
    model = toy_decoder(n_embd=32, n_head=4, n_layer=3)
    with torch.no_grad():
        model.pos_embed.W_pos[:, 5], model.embed.W_E[:, 5] = 0, 0
        model.pos_embed.W_pos[0, 5] = 4_000
        for block in model.blocks:
            block.attn.W_Q.zero_(), block.attn.b_Q.zero_()
            block.attn.W_O[..., 5], block.attn.b_O[5] = 0, 0
            block.mlp.W_out[:, 5], block.mlp.b_out[5] = 0, 0
        attn, norm = model.blocks[1].attn, model.blocks[1].ln1
        attn.b_Q[2, 0], attn.W_K[2, :, 0], attn.W_K[2, 5, 0] = 40, 0, 5
        norm.w[5], norm.b[5] = 1, 0
    return model


@pytest.fixture(scope="module")
def of_planted():
    return compared(planted())


def test_a_planted_sink_is_found(of_planted):
    known = of_planted.provenance
    assert (known["heads"], known["dims"][0], known["absent"]) == ([[1, 2]], 5, {})
    assert of_planted.cosines.set_index(["name_a", "name_b"]).loc[("dim 5", "sink key"), "cosine"] > 0.95
    found = {one.question: one.verdict for one in of_planted.findings}
    assert found["Do the keys of attention sinks lie in outlier dimensions?"] == "yes"
    assert found["Do the keys of attention sinks lie along the directions of word frequency?"] != "yes"


def test_outliers_are_those_of_states_before_the_last(load_toy):
    """Dimension 3 is an outlier from the embeddings on, dimension 9 only in the last state."""
    model = load_toy("gpt2")
    model.pos_embed.W_pos.data[:, 3] += 50.0
    model.blocks[1].mlp.b_out.data[9] += 500.0
    profile = attention.dimension_profile(model, IDS, key_classes={"some": [7, 8]}, progress=False)
    assert {3, 9} <= set(find_outliers(profile)["dim"])
    dims = compared(model).provenance["dims"]
    assert dims == find_outliers(profile[profile["state"] < 2])["dim"].drop_duplicates().tolist()[:4]
    assert dims[0] == 3
    assert 9 not in dims


@pytest.mark.slow
def test_a_bridge_has_the_same():
    tables = [compared(model) for model in (toy_decoder(), toy_bridge())]
    for name in ("cosines", "overlaps"):
        pd.testing.assert_frame_equal(*(one.tables[name] for one in tables), rtol=1e-3, atol=1e-3)


def test_observers_merge(load_toy, texts):
    assert_observer_merges(lambda model: DirectionSums(model, [0, 1]), load_toy("llama"), texts)


class TestNotHere:
    def test_of_an_encoder(self, load_toy):
        model = load_toy("bert")
        with pytest.warns(UserWarning, match="no (outlier dimensions|neurons|sink keys)"):
            study = compared(model, corpora.batches(model, IDS, mask_rate=0.5))
        names = ("outlier dimensions", "neurons", "sink keys")
        assert set(study.left_out) == {f"directions: {name}" for name in names}
        assert "there is a dense layer between" in study.left_out["directions: sink keys"]
        assert study.provenance["absent"] == {}
        assert set(study.cosines["of_b"]) == {"word frequency", "output embeddings"}
        assert study.overlaps[["name_a", "name_b"]].to_numpy().tolist() == [["word frequency", "principal axes"]]

    def test_of_rows_too_short_for_a_sink(self, load_toy):
        absent = compared(load_toy("llama"), IDS[:, :5]).provenance["absent"]
        assert absent["sink keys"] == "sinks need rows of 24 tokens or more, and there was none"
        assert absent["b_LN"] == "the final norm has no bias, or it is 0"

    def test_of_heads_that_attend_elsewhere(self, load_toy):
        model = load_toy("gpt2")
        for block in model.blocks:
            block.attn.W_Q.data.zero_(), block.attn.b_Q.data.zero_()
        absent = compared(model).provenance["absent"]
        assert absent["sink keys"] == "no head's mean attention to the first position is above 0.3"

    def test_of_few_texts(self, load_toy):
        study = compared(load_toy("gpt2"), IDS[:19])
        for table in (study.cosines, study.overlaps):
            assert table.filter(regex="_(low|high)$").drop(columns="null_high", errors="ignore").isna().all(axis=None)
        assert {one.verdict for one in study.findings} == {"cannot tell"}

    def test_with_a_hooked_head(self, load_toy):
        model = load_toy("gpt2")
        hooks = [(hook_name(model, "head_input"), lambda activation, hook: 2 * activation)]
        with (
            model.hooks(fwd_hooks=hooks),
            pytest.raises(RuntimeError, match=naming("hooks", "head")),
        ):
            compared(model)


def test_the_answer_counts_what_random_rotations_do_not_reach(of_planted):
    pairs = of_planted.cosines[~of_planted.cosines["by_construction"]]
    largest = pairs.loc[pairs["cosine"].abs().idxmax()]
    answer = of_planted.answer
    assert answer.values["n_close"] == (pairs["p_adjusted"] < 0.05).sum() > 0
    assert answer.values["cosine"] == largest["cosine"]
    assert f"{largest['name_a']} and {largest['name_b']}".replace("-A", "−A") in str(answer)


class TestPage:
    def test_it_shows_the_tables(self, of_planted):
        section = of_planted.section
        assert list(section.figures) == ["cosines"]
        assert section.tables["Cosines of directions, beside random rotations"].equals(of_planted.cosines)
        assert section.tables["Overlaps of subspaces, beside random rotations"].equals(of_planted.overlaps)

    def test_it_says_what_is_not_there(self, load_toy):
        [note] = compared(load_toy("llama")).section.notes
        assert note.startswith("Not among the directions: ")
        assert "b_LN (the final norm has no bias, or it is 0)" in note

    def test_the_figure_marks_what_rotations_do_not_reach(self, of_planted):
        grid = plots.direction_cosines(of_planted).data[0]
        names = list(grid.x)
        texts = pd.DataFrame(grid.text, names, names)
        assert texts.loc["dim 5", "sink key"] == texts.loc["sink key", "dim 5"] != ""
        assert texts.loc["dim 5", "sink key"].startswith("<b>")
        assert texts.loc["PC1", "PC2"].startswith("<i>")
        assert (np.diag(texts) == "").all()
        bold = sum(text.startswith("<b>") for text in texts.to_numpy().ravel())
        assert bold == 2 * (of_planted.cosines["p_adjusted"] < 0.05).sum() > 0


@pytest.mark.slow
def test_cosines_of_random_directions_are_seldom_beyond_chance():
    """Of 200 sets of ten random directions, only one in twenty has any pair beyond the null."""
    rng = np.random.default_rng(0)
    some = 0
    for _ in range(200):
        drawn = [Member(f"PC{i}", "neuron", rng.normal(size=(1, 1, 48))) for i in range(10)]
        some += bool((cosine_table(drawn, Spread(np.ones(1), 1))["p_adjusted"] < 0.05).any())
    assert some <= 20
