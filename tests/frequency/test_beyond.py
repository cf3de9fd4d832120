"""What goes beyond the papers, against plain transformers: a vector added to the head's input, and slow counting."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from naming import naming

import interp
from interp import corpora
from interp.analyses.encoding import fit
from interp.analyses.frequency import bias_effect, page
from interp.analyses.frequency.bands import band_findings, frequency_bands
from interp.analyses.frequency.directions import FEWEST_CONTROLS, Controls, control_findings, ranks
from interp.analyses.frequency.outliers import OutlierDims, Outliers, PartPredictions, outlier_findings
from interp.instruments.predictions import MeanPredictions, Variant
from interp.passes.observers import observe

COUNTS = np.arange(67)
U = COUNTS / COUNTS.sum()
quiet = {"progress": False, "unigram": COUNTS}


@pytest.fixture
def ids():
    return torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def inputs_of(hf, ids):
    """The input of transformers' unembedding, `[rows, pos, d_model]`."""
    seen = []
    handle = hf.get_output_embeddings().register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    hf(ids)
    handle.remove()
    return seen[0].double()


@torch.no_grad()
def log_p_of(hf, ids, added=None, keep=None):
    """Log-probabilities of transformers with a vector added to the unembedding's input, or only parts of it kept."""

    def edit(module, args):
        h = args[0] if added is None else args[0] + added.to(args[0])
        return (h if keep is None else h * keep.to(h),)

    handle = hf.get_output_embeddings().register_forward_pre_hook(edit)
    logits = hf(ids).logits
    handle.remove()
    return logits.double().log_softmax(-1)


def kl_and_nll(log_p, ids):
    q = log_p.exp().reshape(-1, log_p.shape[-1]).mean(0).numpy()
    seen = U > 0
    nll = -log_p[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    return (U[seen] * np.log(U[seen] / q[seen])).sum(), nll.numpy()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2"])
def test_directions_are_vectors_added_in_transformers(kind, hf_directory, load_toy, ids):
    model = load_toy(kind)
    hf = transformers.AutoModelForCausalLM.from_pretrained(hf_directory(kind)).eval()
    effect = bias_effect(model, ids, directions=["slope", "mean"], scales=[0.5, 0], **quiet)
    slope = torch.from_numpy(fit(model, ids, progress=False).slope)
    vectors = {"mean": inputs_of(hf, ids).mean((0, 1)), "slope": -slope}
    assert effect.kl["bias"].drop_duplicates().tolist()[-2:] == ["mean", "slope"]
    for name, vector in vectors.items():
        for scale in (0.5, 0.0):
            kl, nll = kl_and_nll(log_p_of(hf, ids, (scale - 1) * vector), ids)
            row = effect.kl[(effect.kl["bias"] == name) & (effect.kl["scale"] == scale)].iloc[0]
            assert row["kl_unigram_model"] == pytest.approx(kl, rel=1e-3)
            assert row["perplexity"] == pytest.approx(math.exp(nll.mean()), rel=1e-3)


def test_controls_have_the_norm_or_the_effect_and_are_what_adding_them_does(hf_directory, load_toy, ids):
    """The vector of each control is recovered by least squares from its shift of the logits."""
    model = load_toy("gpt2")
    hf = transformers.AutoModelForCausalLM.from_pretrained(hf_directory("gpt2")).eval()
    b_ln, W_U = model.ln_final.b.detach().double(), model.W_U.detach().double()
    controls = Controls.of(model, {"ln": b_ln}, [0.0, 1.0], n=39, u=U, classes=COUNTS * 0, seed=3)
    observe(model, corpora.batches(model, ids), controls.predictions, progress=False)
    seen = U > 0
    own_sd = (b_ln @ W_U)[torch.from_numpy(seen)].std()
    by_kind = dict(list(controls.edits.groupby("kind")))
    assert by_kind["norm"]["norm"].tolist() == pytest.approx([float(b_ln.norm())] * 39)
    assert by_kind["effect"]["effect_sd"].tolist() == pytest.approx([float(own_sd)] * 39)
    for number in (0, 5, 39, 77):
        row, shift = controls.edits.iloc[number], controls.predictions.variants[number].shift
        vector = torch.linalg.lstsq(W_U.T, -shift[:, None]).solution[:, 0]
        assert float(vector.norm()) == pytest.approx(row["norm"], rel=1e-4)
        assert float((vector @ W_U)[torch.from_numpy(seen)].std()) == pytest.approx(row["effect_sd"], rel=1e-4)
        kl, nll = kl_and_nll(log_p_of(hf, ids, -vector), ids)
        means = controls.predictions.means(number)
        found = (U[seen] * np.log(U[seen] / means.distribution[seen])).sum()
        assert (found, means.nll) == (pytest.approx(kl, rel=1e-3), pytest.approx(nll.mean(), rel=1e-4))


def test_controls_leave_what_is_there_alone(load_toy, texts):
    model = load_toy("gpt2")
    plain = bias_effect(model, texts, **quiet)
    more = bias_effect(model, texts, controls=39, bands=3, outliers=True, **quiet)
    pd.testing.assert_frame_equal(plain.kl, more.kl, rtol=1e-6)
    assert plain.controls.empty
    assert plain.bands.empty
    assert set(more.controls["scale"]) == {0.0, 0.5}
    beside = more.kl.query("scale == 0").iloc[0]
    part = more.controls.query("scale == 0 and kind == 'norm'")
    expected = part["kl_unigram_model"] - (beside["kl_unigram_model"] - beside["delta_kl"])
    np.testing.assert_allclose(part["delta_kl"], expected, atol=1e-9)
    row = more.ranks.query("scale == 0 and kind == 'norm'").iloc[0]
    assert row["rank"] == 1 + (part["delta_kl"] >= beside["delta_kl"]).sum()


@pytest.mark.parametrize("asked", [{"directions": ["mean"]}, {"controls": 39}, {"outliers": True}])
def test_a_head_with_hooks_is_refused(asked, load_toy, texts):
    model = load_toy("gpt2")
    with model.hooks(fwd_hooks=interp.hooks.scale_bias(model, "ln", 0.5)):
        with pytest.raises(RuntimeError, match=naming("hooks", "head")):
            bias_effect(model, texts, **asked, **quiet)


@pytest.mark.parametrize("asked", [{"directions": ["mean"]}, {"controls": 39}, {"outliers": True}])
def test_a_folded_model_is_refused(asked, load_toy, texts):
    model = load_toy("gpt2")
    model.process_weights_()
    with pytest.raises(ValueError, match=naming("W_U", "interp.load")):
        bias_effect(model, texts, **asked, **quiet)


def tables(values, own, low, high):
    """`kl` and `controls` for one bias whose ΔKL is `own`, among controls of both kinds."""
    kl = pd.DataFrame(
        {
            "bias": "ln",
            "scale": [0.0],
            "delta_kl": own,
            "delta_kl_corrected": own,
            "delta_kl_low": low,
            "delta_kl_high": high,
        }
    )
    kinds = [{"bias": "ln", "scale": 0.0, "kind": kind, "delta_kl": x} for kind, some in values.items() for x in some]
    return kl, pd.DataFrame(kinds)


@pytest.mark.parametrize(
    ("own", "low", "high", "verdict"),
    [(3.0, 2.5, 3.5, "yes"), (0.5, 0.4, 0.6, "no"), (1.5, 1.2, 1.7, "partly"), (2.0, 1.5, 2.5, "partly"),
     (1.0, 0.5, 1.5, "cannot tell"), (3.0, np.nan, np.nan, "cannot tell")],
)  # fmt: skip
def test_verdict_among_controls(own, low, high, verdict):
    drawn = {"norm": np.linspace(0, 1, 39), "effect": np.linspace(0, 2, 39)}
    (found,) = control_findings(*tables(drawn, own, low, high))
    assert found.verdict == verdict
    assert found.control == 2.0


def test_rank_and_its_p():
    drawn = {"norm": np.arange(39.0)}
    for own, rank, p in ((100, 1, 0.05), (-1, 40, 0.05), (36.5, 3, 0.15), (18.5, 21, 1.0)):
        row = ranks(*tables(drawn, own, own, own)).iloc[0]
        assert (row["rank"], row["p"]) == (rank, pytest.approx(p))


@pytest.mark.slow
def test_a_random_direction_is_seldom_beyond_the_others(load_toy, ids):
    """Each of 160 directions in turn is compared with 39 of the others, without the protection of an interval."""
    model = load_toy("gpt2")
    drawn = Controls.of(model, {"ln": model.ln_final.b.detach()}, [0.0], n=160, u=U, classes=COUNTS * 0, seed=0)
    observe(model, corpora.batches(model, ids), drawn.predictions, progress=False)
    of_norm = drawn.edits.query("kind == 'norm'").index
    values = [(U[1:] * np.log(U[1:] / drawn.predictions.means(i).distribution[1:])).sum() for i in of_norm]
    verdicts = []
    for start in range(0, 160, 40):
        some = values[start : start + 40]
        for i, own in enumerate(some):
            others = np.delete(some, i)
            (found,) = control_findings(*tables({"norm": others, "effect": others}, own, own, own))
            verdicts.append(found.verdict)
    assert 0 < verdicts.count("yes") <= 0.05 * len(verdicts)


def test_bands_are_shares_of_the_text():
    rng = np.random.default_rng(0)
    u = rng.dirichlet(np.full(500, 0.5))
    bands = frequency_bands(u, 5)
    mass = [u[bands == band].sum() for band in range(5)]
    assert mass == pytest.approx([0.2] * 5, abs=u.max())
    assert all(u[bands == band].min() >= u[bands == band + 1].max() for band in range(4))
    assert set(frequency_bands(np.array([0.8, 0.1, 0.1]), 5)) == {0, 1}


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_bands_equal_slow_counting(kind, load_toy, texts):
    """NLL and calibration error by loops over positions; b_FC is computed differently."""
    model = load_toy(kind)
    batches = corpora.batches(model, texts, batch_size=5, **({"mask_rate": 0.4} if kind == "bert" else {}))
    effect = bias_effect(model, batches, scales=[0, 1], bands=3, **quiet)
    bands = frequency_bands(U, 3)
    for bias in effect.kl["bias"].unique():
        recipe = interp.hooks.scale_bias(model, bias, 0.0)
        nll, sums = {0: [], 1: [], 2: []}, np.zeros((3, 3, 10))
        for batch in batches:
            with torch.no_grad(), model.hooks(fwd_hooks=recipe):
                p = interp.passes.observers.forward(model, batch).double().softmax(-1)
            for row, position in (batch.read & (batch.targets >= 0)).nonzero().tolist():
                true = int(batch.targets[row, position])
                nll[bands[true]].append(-math.log(p[row, position, true]))
                for band in range(3):
                    mass = float(p[row, position][torch.from_numpy(bands == band)].sum())
                    sums[:, band, min(int(mass * 10), 9)] += 1, mass, bands[true] == band
        found = effect.bands.query("bias == @bias and scale == 0")
        n = sums[0, 0].sum()
        assert found["n_scored"].tolist() == [len(nll[band]) for band in range(3)]
        np.testing.assert_allclose(found["nll"], [np.mean(nll[band]) for band in range(3)], rtol=1e-4)
        np.testing.assert_allclose(found["share"], sums[2].sum(1) / n)
        np.testing.assert_allclose(found["predicted"], sums[1].sum(1) / n, rtol=1e-4)
        # a probability on the edge of two bins may fall into either
        np.testing.assert_allclose(found["calibration_error"], np.abs(sums[1] - sums[2]).sum(1) / n, atol=2 / n)
        whole = np.concatenate([nll[band] for band in range(3)]).mean()
        kept = effect.bands.query("bias == @bias and scale == 1")["nll"].to_numpy()
        apart = found["nll"].to_numpy() - kept
        scored = found["n_scored"].to_numpy()
        before = (kept * scored).sum() / scored.sum()
        np.testing.assert_allclose(found["excess_nll"], apart - (whole - before), atol=1e-5)


def test_a_calibrated_model_has_no_error(load_toy):
    """Tokens are drawn from the model's own predictions."""
    model = load_toy("gpt2")
    predictions = MeanPredictions(model, [Variant()], bands=frequency_bands(U, 2))
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(40_000, 67, generator=generator)
    true = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    for how, targets in (("calibrated", true), ("not", torch.full_like(true, 66))):
        predictions.clear()
        groups = torch.zeros(len(true), dtype=torch.long)
        predictions.read(logits, targets, groups)
        predictions.commit()
        error = predictions.calibration.error.max()
        assert error < 0.02 if how == "calibrated" else error > 0.2


def test_outlier_dimensions_are_found_where_they_are_made(load_toy, ids):
    """One dimension of γ and b_LN is far larger than the others."""
    model = load_toy("gpt2")
    found = OutlierDims(model)
    with torch.no_grad():
        model.ln_final.b[5] = 80.0
    observe(model, corpora.batches(model, ids), found, progress=False)
    assert found.table["dim"].tolist() == [5]
    assert found.table["share"].tolist() == [1.0]


def test_a_batch_without_positions_to_read_changes_nothing(load_toy, ids):
    model = load_toy("gpt2")
    batches = corpora.batches(model, ids, batch_size=10)
    read = [*batches]
    unread = replace(read[0], read=torch.zeros_like(read[0].read))
    found, expected = OutlierDims(model), OutlierDims(model)
    observe(model, replace(batches, read=partial(iter, [unread, *read])), found, progress=False)
    observe(model, batches, expected, progress=False)
    assert found.n_tokens == expected.n_tokens == ids.numel()
    torch.testing.assert_close(found.state["extreme"], expected.state["extreme"], rtol=0, atol=0)


def test_parts_equal_transformers_with_dimensions_set_to_zero(hf_directory, load_toy, ids):
    model = load_toy("gpt2")
    hf = transformers.AutoModelForCausalLM.from_pretrained(hf_directory("gpt2")).eval()
    dims = [3, 11]
    parts = Outliers.of(model, dims, controls=4, seed=0)
    observe(model, corpora.batches(model, ids, batch_size=7), *parts.observers, progress=False)
    table = parts.table(U)
    kept = torch.zeros(16)
    kept[dims] = 1
    for part, keep in {"all": torch.ones(16), "alone": kept, "without": 1 - kept}.items():
        log_p = log_p_of(hf, ids, keep=keep)
        kl, nll = kl_and_nll(log_p, ids)
        row = table[(table["of"] == "outliers") & (table["part"] == part)].iloc[0]
        assert row["kl_unigram_model"] == pytest.approx(kl, rel=1e-3)
        assert row["surprisal"] == pytest.approx(nll.mean(), rel=1e-4)
        assert row["entropy"] == pytest.approx(float(-(log_p.exp() * log_p).sum(-1).mean()), rel=1e-4)
        assert row["n_predicted"] == len(log_p.argmax(-1).unique())
        assert row["entropy_low"] < row["entropy"] < row["entropy_high"]
    assert (table["of"] == "random").sum() == 8


def test_random_parts_have_the_norm_of_the_outlier_part(load_toy):
    parts = Outliers.of(load_toy("gpt2"), [3, 11], controls=39, seed=0)
    W_U = load_toy("gpt2").W_U.detach()
    for effects in parts.random._effects[:5]:
        rotated = torch.linalg.lstsq(W_U.T, effects.T).solution.T
        torch.testing.assert_close(rotated @ rotated.T, torch.eye(2), atol=1e-4, rtol=0)
    assert isinstance(parts.own, PartPredictions)


def outlier_table(own, low, high, random):
    rows = [("all", "outliers", 0.1, 0.1, 0.1), ("without", "outliers", own, low, high)]
    rows += [("without", "random", value, np.nan, np.nan) for value in random]
    rows += [("alone", *row[1:]) for row in rows[1:]]
    columns = ["part", "of", "kl_unigram_model", "kl_unigram_model_low", "kl_unigram_model_high"]
    return pd.DataFrame(rows, columns=columns)


@pytest.mark.parametrize(
    ("own", "low", "high", "random", "verdict"),
    [(3.0, 2.5, 3.5, [1, 2], ["yes", "no"]), (1.0, 0.9, 1.1, [1, 2], ["no", "cannot tell"]),
     (0.5, 0.4, 0.6, [1, 2], ["no", "yes"]), (2.0, 1.5, 2.5, [1, 2], ["cannot tell", "no"]),
     (3.0, 2.5, 3.5, [], ["cannot tell", "cannot tell"])],
)  # fmt: skip
def test_verdict_of_outlier_dimensions(own, low, high, random, verdict):
    found = outlier_findings(pd.DataFrame({"dim": [7]}), outlier_table(own, low, high, random))
    assert [one.verdict for one in found] == verdict
    assert "without dimension 7" in found[0].question


def test_verdict_of_frequent_words():
    bands = pd.DataFrame({"bias": "ln", "scale": 0.0, "band": [1, 2], "excess_nll": 1.0})
    bands = bands.assign(excess_nll_low=0.8, excess_nll_high=1.2)
    controls = pd.DataFrame({"bias": "ln", "scale": 0.0, "kind": ["norm", "effect"], "excess_nll": [-3.0, 0.5]})
    verdicts = {}
    for name, beside in {"above": controls, "among": controls.replace(0.5, 2.0), "alone": controls.iloc[:0]}.items():
        (found,) = band_findings(bands, beside)
        verdicts[name] = found.verdict
    assert verdicts == {"above": "yes", "among": "partly", "alone": "cannot tell"}


def test_runs_are_compared_in_what_they_measured_beyond_the_papers(load_toy, ids):
    """At least two runs must have it; each number and point comes from the run's own tables."""
    model = load_toy("gpt2")
    with torch.no_grad():
        model.ln_final.b[3] = 40.0  # an outlier dimension
    asked = {"biases": ["ln"], "scales": [0, 1], "controls": 39, "outliers": True}
    runs = {name: bias_effect(model, ids, bands=n, **asked, **quiet) for name, n in (("two", 2), ("three", 3))}
    runs["plain"] = bias_effect(model, ids, biases=["ln"], scales=[0, 1], **quiet)
    found = page.sides(runs)
    assert set(found.figures) == {"kl_ln", "controls_ln", "bands_ln", "outliers"}
    for name in ("two", "three"):
        effect, row = runs[name], found.numbers.loc[name]
        rank = effect.ranks.query("scale == 0").set_index("kind")["rank"]
        assert row[["rank_ln_norm", "rank_ln_effect", "n_controls"]].tolist() == [rank["norm"], rank["effect"], 39]
        rarest = effect.bands.query("scale == 0").iloc[-1]
        assert row["excess_nll_rarest_ln"] == rarest["excess_nll"]
        parts = effect.outliers.query("of == 'outliers'").set_index("part")["kl_unigram_model"]
        assert row[["kl_outliers_alone", "kl_outliers_without"]].tolist() == parts[["alone", "without"]].tolist()
    assert found.numbers.loc["plain"].filter(regex="rank|excess|outliers").isna().all()
    assert [line.x.tolist() for line in found.figures["bands_ln"].data] == [[1 / 4, 3 / 4], [1 / 6, 1 / 2, 5 / 6]]
    points = [len(one.x) for one in found.figures["controls_ln"].data]
    assert points == [39, 39, 1] * 2
    own = found.figures["controls_ln"].data[2]
    assert own.x.item() == pytest.approx(runs["two"].kl.query("scale == 0")["delta_kl"].item(), abs=1e-4)


def test_trained_models_beside_their_controls(shared):
    """The numbers of both models with their mean input scaled, and their ranks among random directions."""
    model = interp.load(shared / "models/gpt2-yelp")
    yelp = shared / "data/yelp/valid.txt"
    how = {"directions": ["mean"], "controls": FEWEST_CONTROLS, "progress": False}
    effect = bias_effect(model, yelp, limit=500, unigram=corpora.count_unigrams(model, yelp), **how)
    found = effect.kl.query("bias == 'mean'").set_index("scale")["kl_unigram_model"]
    np.testing.assert_allclose(found[[1.0, 0.5, 0.0]], [0.175, 0.298, 0.733], atol=0.03)
    ranked = effect.ranks.query("bias == 'mean' and scale == 0").set_index("kind")["rank"]
    assert ranked["norm"] == 1
    assert 1 < ranked["effect"] < 40


def test_trained_llama_with_its_mean_scaled(shared):
    """KL(u‖q) at λ = 1, ½ and 0 from plain transformers, on forty stories whose BOS counts as a word."""
    model = interp.load(shared / "models/llama-stories260k")
    stories = json.loads((shared / "data/tinystories/tinystories_1000.json").read_text(encoding="utf-8"))[:40]
    text = [f"<s>{story}" for story in stories]
    counts = corpora.count_unigrams(model, text)
    with pytest.warns(UserWarning, match="special tokens are written out in texts and are read as such: <s> 40 ×"):
        effect = bias_effect(model, text, unigram=counts, directions=["mean"], bos=False, progress=False)
    found = effect.kl.set_index("scale")["kl_unigram_model"]
    np.testing.assert_allclose(found[[1.0, 0.5, 0.0]], [0.0123, 0.0717, 0.2637], atol=2e-4)
