"""Random directions, bands and outlier dimensions against plain transformers and slow counting."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from head_input import COUNTS, U, kl_and_nll, log_p_of
from naming import naming
from oracles import frequency as oracle

import interp
from interp import controls, corpora
from interp.analyses.controls import page
from interp.analyses.controls.bands import frequency_bands
from interp.analyses.controls.draws import Draws, ranks
from interp.analyses.controls.findings import band_findings, outlier_findings
from interp.analyses.controls.outliers import OutlierDims, Outliers, PartPredictions
from interp.instruments.predictions import MeanPredictions, Variant
from interp.passes.reading import observe

quiet = {"progress": False, "unigram": COUNTS}


@pytest.fixture
def ids():
    return torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))


def test_draws_have_the_norm_or_the_effect_and_are_what_adding_them_does(hf_directory, load_toy, ids):
    """The vector of each control is recovered by least squares from its shift of the logits."""
    model = load_toy("gpt2")
    hf = transformers.AutoModelForCausalLM.from_pretrained(hf_directory("gpt2")).eval()
    b_ln, W_U = model.ln_final.b.detach().double(), model.W_U.detach().double()
    draws = Draws.of(model, {"ln": b_ln}, [0.0], n=39, u=U, classes=COUNTS * 0, seed=3)
    observe(model, corpora.batches(model, ids), draws.predictions, progress=False)
    seen = U > 0
    own_sd = (b_ln @ W_U)[torch.from_numpy(seen)].std()
    by_kind = dict(list(draws.edits.groupby("kind")))
    for kind in ("norm", "embeddings", "centred embeddings"):
        assert by_kind[kind]["norm"].tolist() == pytest.approx([float(b_ln.norm())] * 39)
    assert by_kind["effect"]["effect_sd"].tolist() == pytest.approx([float(own_sd)] * 39)
    for number in (0, 5, 39, 77, 78, 155):
        row, shift = draws.edits.iloc[number], draws.predictions.variants[number].shift
        vector = torch.linalg.lstsq(W_U.T, -shift[:, None]).solution[:, 0]
        assert float(vector.norm()) == pytest.approx(row["norm"], rel=1e-4)
        assert float((vector @ W_U)[torch.from_numpy(seen)].std()) == pytest.approx(row["effect_sd"], rel=1e-4)
        kl, nll = kl_and_nll(log_p_of(hf, ids, -vector), ids)
        means = draws.predictions.means(number)
        found = (U[seen] * np.log(U[seen] / means.distribution[seen])).sum()
        assert (found, means.nll) == (pytest.approx(kl, rel=1e-3), pytest.approx(nll.mean(), rel=1e-4))


@pytest.mark.parametrize("kind", ["norm", "embeddings", "centred embeddings"])
def test_a_random_direction_seldom_favours_frequent_words(kind, load_toy, ids):
    """Each of 120 directions in turn is compared with 39 of the others, without the protection of an interval."""
    model = load_toy("gpt2")
    classes = frequency_bands(U, 3)
    draws = Draws.of(model, {"ln": model.ln_final.b.detach()}, [0.0], n=120, u=U, classes=classes, seed=0)
    plain = MeanPredictions(model, [Variant()], classes=classes)
    observe(model, corpora.batches(model, ids), draws.predictions, plain, progress=False)
    unedited = plain.means(0)
    table = draws.table(U, unedited, unedited.nll_by_class).query("kind == @kind")
    values = 20 * table["excess_nll"].to_numpy()  # larger than the smallest effect of interest
    verdicts = []
    for some in values.reshape(3, 40):
        for number, own in enumerate(some):
            drawn = pd.DataFrame({"bias": "ln", "scale": 0.0, "kind": kind, "excess_nll": np.delete(some, number)})
            verdicts += [finding.verdict for finding in band_findings(first_band(own, own, own), drawn, {})]
    assert len(verdicts) == 120
    assert 0 < verdicts.count("yes") <= 0.05 * len(verdicts)


def first_band(own, low, high):
    """The table `bands` of b_LN, for the most frequent words."""
    ends = {"excess_nll": [own], "excess_nll_low": [low], "excess_nll_high": [high]}
    return pd.DataFrame({"bias": "ln", "scale": 0.0, "band": 1} | ends)


def test_few_draws_decide_nothing():
    kinds = [pd.DataFrame({"kind": kind, "excess_nll": np.linspace(0, 1, 38)}) for kind in ("norm", "effect")]
    drawn = pd.concat(kinds).assign(bias="ln", scale=0.0)
    (finding,) = band_findings(first_band(3.0, 2.5, 3.5), drawn, {})
    assert finding.verdict == "cannot tell"
    assert not [*band_findings(first_band(3.0, 2.5, 3.5), drawn.iloc[:0], {})]


def tables(values, own, low, high):
    """`kl` and `controls` for b_LN, whose ΔKL is `own`, among draws of each kind; KL as trained is 0.01."""
    row = {"bias": "ln", "scale": 0.0, "kl_unigram_model": own + 0.01, "delta_kl": own, "delta_kl_corrected": own}
    kl = pd.DataFrame([row | {"delta_kl_low": low, "delta_kl_high": high}])
    kinds = [{"bias": "ln", "scale": 0.0, "kind": kind, "delta_kl": x} for kind, some in values.items() for x in some]
    return kl, pd.DataFrame(kinds)


def test_rank_and_its_p():
    drawn = {"norm": np.arange(39.0)}
    for own, rank, p in ((100, 1, 0.025), (-1, 40, 1.0), (36.5, 3, 0.075), (18.5, 21, 0.525)):
        row = ranks(*tables(drawn, own, own, own)).iloc[0]
        assert (row["rank"], row["p"]) == (rank, pytest.approx(p))


def test_a_bias_that_adds_word_frequency_is_found(load_toy, ids):
    """Planted: b_LN adds log u to the logits, and the rest of the head's input nearly nothing."""
    model = load_toy("gpt2")
    log_u = torch.from_numpy(np.log(COUNTS + 1.0) - np.log(COUNTS + 1.0).mean()).float()
    with torch.no_grad():
        model.ln_final.w *= 0.05
        model.unembed.W_U[0] = log_u / 3
        model.ln_final.b.copy_(3 * torch.eye(16)[0])
    study = controls.study(model, ids, directions=(), bands=3, **quiet)
    assert [finding.verdict for finding in study.findings] == ["yes", "yes"]
    assert "dimension 0" in study.findings[1].question


def test_bands_are_shares_of_the_text():
    rng = np.random.default_rng(0)
    u = rng.dirichlet(np.full(500, 0.5))
    bands = frequency_bands(u, 5)
    mass = [u[bands == band].sum() for band in range(5)]
    assert mass == pytest.approx([0.2] * 5, abs=u.max())
    assert all(u[bands == band].min() >= u[bands == band + 1].max() for band in range(4))
    assert set(frequency_bands(np.array([0.8, 0.1, 0.1]), 5)) == {0, 1}


def test_equally_frequent_types_are_in_one_band():
    counts = np.repeat([50, 10, 3, 2, 1], [1, 5, 10, 20, 200])
    order = np.random.default_rng(0).permutation(len(counts))
    bands = frequency_bands(counts[order] / counts.sum(), 5)
    assert all(len(set(bands[counts[order] == count])) == 1 for count in set(counts))


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_bands_equal_slow_counting(kind, load_toy, texts):
    """NLL and calibration error by loops over positions."""
    model = load_toy(kind)
    batches = corpora.batches(model, texts, batch_size=5, **({"mask_rate": 0.4} if kind == "bert" else {}))
    study = controls.study(model, batches, scales=[0, 0.5], bands=3, directions=(), **quiet)
    bands = frequency_bands(U, 3)
    for scale in (0.5, 0.0):
        recipe = interp.hooks.scale_bias(model, "ln", scale)
        predictions, targets = [], []
        for batch in batches:
            with torch.no_grad(), model.hooks(fwd_hooks=recipe):
                p = interp.passes.reading.forward(model, batch).double().softmax(-1)
            scored = batch.read & (batch.targets >= 0)
            predictions.append(p[scored].numpy())
            targets.append(batch.targets[scored].numpy())
        p, true = np.concatenate(predictions), np.concatenate(targets)
        nll, n = -np.log(p[np.arange(len(true)), true]), len(true)
        by_band = [nll[bands[true] == band] for band in range(3)]
        found = study.bands.query("scale == @scale")
        assert found["n_scored"].tolist() == [len(values) for values in by_band]
        np.testing.assert_allclose(found["nll"], [values.mean() for values in by_band], rtol=1e-4)
        bins = oracle.bands(p, true, bands)
        np.testing.assert_allclose(found["share"], bins.observed.sum(1) / n)
        np.testing.assert_allclose(found["predicted"], bins.predicted.sum(1) / n, rtol=1e-4)
        # a probability on the edge of two bins may fall into either
        np.testing.assert_allclose(found["calibration_error"], oracle.calibration_error(bins), atol=2 / n)
        np.testing.assert_allclose(found["calibration_floor"], oracle.calibration_floor(bins), rtol=1e-2)
        as_trained = found["nll"].to_numpy() - found["delta_nll"].to_numpy()
        scored = found["n_scored"].to_numpy()
        change = (found["delta_nll"].to_numpy() * scored).sum() / scored.sum()
        np.testing.assert_allclose(found["excess_nll"], found["delta_nll"] - change, atol=1e-5)
    plain = [p for batch in batches for p in nll_at(model, batch)]
    np.testing.assert_allclose((as_trained * scored).sum() / scored.sum(), np.mean(plain), rtol=1e-4)


@torch.no_grad()
def nll_at(model, batch):
    p = interp.passes.reading.forward(model, batch).double().log_softmax(-1)
    scored = batch.read & (batch.targets >= 0)
    return (-p[scored].gather(1, batch.targets[scored][:, None])[:, 0]).tolist()


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


@pytest.mark.parametrize("n", [30, 300, 3_000])
def test_the_floor_of_the_calibration_error_is_that_of_a_calibrated_model(n, load_toy):
    """The mean error over 40 draws of all targets from the predictions."""
    predictions = MeanPredictions(load_toy("gpt2"), [Variant()], bands=frequency_bands(U, 3))
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, 67, generator=generator)
    errors = []
    for _ in range(40):
        predictions.clear()
        true = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        predictions.read(logits, true, torch.zeros(n, dtype=torch.long))
        predictions.commit()
        errors.append(predictions.calibration.error)
    np.testing.assert_allclose(predictions.calibration.floor, np.mean(errors, 0), rtol=0.15)


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
    parts = Outliers.of(model, dims, n=4, seed=0)
    observe(model, corpora.batches(model, ids, batch_size=7), *parts, progress=False)
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
    parts = Outliers.of(load_toy("gpt2"), [3, 11], n=39, seed=0)
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
    ("own", "low", "high", "n", "verdict"),
    [(3.0, 2.5, 3.5, 39, "no"), (0.5, 0.4, 0.6, 39, "yes"), (1.5, 1.4, 1.6, 39, "cannot tell"),
     (0.5, 0.4, 0.6, 38, "cannot tell")],
)  # fmt: skip
def test_verdict_of_outlier_dimensions(own, low, high, n, verdict):
    table = outlier_table(own, low, high, np.linspace(1, 2, n))
    (finding,) = outlier_findings(pd.DataFrame({"dim": [7]}), table, {})
    assert finding.verdict == verdict
    assert "from dimension 7" in finding.question


def test_verdict_of_frequent_words():
    bands = pd.DataFrame({"bias": "ln", "scale": 0.0, "band": [1, 2], "excess_nll": 1.0})
    bands = bands.assign(excess_nll_low=0.8, excess_nll_high=1.2)
    drawn = pd.concat([
        pd.DataFrame({"kind": kind, "excess_nll": np.linspace(middle - 0.4, middle + 0.4, 39)})
        for kind, middle in (("norm", -3.0), ("effect", 0.5))
    ]).assign(bias="ln", scale=0.0)  # fmt: skip
    among = drawn.assign(excess_nll=drawn["excess_nll"].where(drawn["kind"] == "norm", drawn["excess_nll"] + 0.6))
    verdicts = [band_findings(bands, table, {}) for table in (drawn, among)]
    assert [finding.verdict for found in verdicts for finding in found] == ["yes", "partly"]


@pytest.fixture
def studies(load_toy, ids):
    """Two runs of a model with an outlier dimension."""
    model = load_toy("gpt2")
    with torch.no_grad():
        model.ln_final.b[3] = 40.0
    return {name: controls.study(model, ids, bands=n, directions=(), **quiet) for name, n in (("two", 2), ("three", 3))}


def test_runs_are_compared(studies):
    """Each number and point comes from the run's own tables."""
    found = page.sides(studies)
    assert set(found.figures) == {"controls_ln", "bands_ln", "outliers"}
    for name, study in studies.items():
        row, rank = found.numbers.loc[name], study.ranks.set_index("kind")["rank"]
        assert row[["rank_ln_norm", "rank_ln_effect", "n_controls"]].tolist() == [rank["norm"], rank["effect"], 39]
        assert row["excess_nll_rarest_ln"] == study.bands.iloc[-1]["excess_nll"]
        parts = study.outliers.query("of == 'outliers'").set_index("part")["kl_unigram_model"]
        assert row[["kl_outliers_alone", "kl_outliers_without"]].tolist() == parts[["alone", "without"]].tolist()
    assert [line.x.tolist() for line in found.figures["bands_ln"].data] == [[1 / 4, 3 / 4], [1 / 6, 1 / 2, 5 / 6]]
    assert [len(one.x) for one in found.figures["controls_ln"].data] == [39, 39, 39, 39, 1] * 2
    own = found.figures["controls_ln"].data[4]
    assert own.x.item() == pytest.approx(studies["two"].kl["delta_kl"].item(), abs=1e-4)


def test_what_is_scaled_is_that_of_the_biases(load_toy, ids, studies):
    model = load_toy("gpt2")
    study = controls.study(model, ids, scales=[0, 0.5], directions="mean", bands=2, **quiet)
    effect = interp.frequency.study(model, ids, directions="mean", **quiet)
    both = study.kl.merge(effect.kl, on=["bias", "scale"], suffixes=("", "_of_biases"))
    assert len(both) == 4
    for name in set(study.kl) - {"bias", "scale"}:
        np.testing.assert_allclose(both[name], both[f"{name}_of_biases"], rtol=1e-6, atol=1e-9, err_msg=name)


def test_a_run_of_version_02_is_read(load_toy, ids, tmp_path, studies):
    """Its result of word frequency has the tables."""
    effect = interp.frequency.study(load_toy("gpt2"), ids, **quiet)
    source = effect.save(tmp_path)
    study = studies["two"]
    drawn = study.controls[study.controls["kind"].isin(["norm", "effect"])]
    former = {"controls": drawn, "bands": study.bands.drop(columns="calibration_floor")}
    former |= {"outlier_dims": study.outlier_dims, "outliers": study.outliers}
    for name, table in former.items():
        table.to_parquet(source / f"{name}.parquet", index=False)
    about = json.loads((source / "result.json").read_text())
    about["tables"] += list(former)
    (source / "result.json").write_text(json.dumps(about))

    found = interp.load_result(tmp_path)
    pd.testing.assert_frame_equal(found.kl, effect.kl)
    moved = interp.load_result(tmp_path, "controls")
    assert len(moved.section.tables) == 3
    assert "run interp controls" in moved.provenance["caveats"][-1]
    assert moved.ranks["kind"].tolist() == ["norm", "effect"]
    pd.testing.assert_frame_equal(moved.outliers, study.outliers)
    drawn.iloc[:0].to_parquet(source / "controls.parquet", index=False)
    with pytest.raises(FileNotFoundError, match=naming("controls", "frequency")):
        interp.load_result(tmp_path, "controls")


def test_a_head_with_hooks_is_refused(load_toy, texts):
    model = load_toy("gpt2")
    with model.hooks(fwd_hooks=interp.hooks.scale_bias(model, "ln", 0.5)):
        with pytest.raises(RuntimeError, match=naming("hooks", "head")):
            controls.study(model, texts, **quiet)


def test_a_folded_model_is_refused(load_toy, texts):
    model = load_toy("gpt2")
    model.process_weights_()
    with pytest.raises(ValueError, match=naming("W_U", "interp.load")):
        controls.study(model, texts, **quiet)


def test_trained_models_beside_their_controls(shared):
    """The numbers of a model with its mean input scaled, and their ranks among random directions."""
    model = interp.load(shared / "models/gpt2-yelp")
    yelp = shared / "data/yelp/valid.txt"
    how = {"directions": ["mean"], "scales": [0.5, 0], "progress": False}
    study = controls.study(model, yelp, limit=500, unigram=corpora.count_unigrams(model, yelp), **how)
    found = study.kl.query("bias == 'mean'").set_index("scale")["kl_unigram_model"]
    np.testing.assert_allclose(found[[0.5, 0.0]], [0.298, 0.733], atol=0.03)
    ranked = study.ranks.query("bias == 'mean' and scale == 0").set_index("kind")["rank"]
    assert ranked["norm"] == 1
    assert 1 < ranked["effect"] < 40
