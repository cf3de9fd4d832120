"""Sparse probes against scipy, scikit-learn, numbers worked out by hand, plain transformers and planted truth."""

import itertools
import math
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from naming import naming
from oracles import probing as oracle
from oracles.intervals import benjamini_hochberg
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import interp
from interp import probing
from interp.analyses.probing import fitting
from interp.analyses.probing.fitting import deterministic_gate, fit_dense, fit_sparse, open_probability, sample_gate
from interp.analyses.probing.group import words_right
from interp.analyses.probing.sparse import SparseProbe
from interp.analyses.probing.states import States
from interp.analyses.probing.sweeps import _agreement
from interp.corpora import pairs
from interp.corpora.splits import split_tasks


def toy_pairs(n=12, task="t"):
    own = [f"w{i // 50} w{i % 50}" for i in range(n)]  # no sentence is in two pairs
    rows = [(f"{x} w{i % 7} w1", f"{x} w2 w{i % 5} w3", task, str(i), "", "") for i, x in enumerate(own)]
    return pd.DataFrame(rows, columns=list(pairs.COLUMNS))


def planted(n=400, d=128, informative=6, seed=0, shift=1.0):
    """Pairs whose sides differ in a few dimensions; one dimension has a large mean, and some follow others."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 2, d))
    vectors[:, 0, :informative] += shift
    vectors[:, :, informative] += 30  # the same on both sides
    vectors[:, :, informative + 1 : informative + 4] += 0.3 * vectors[:, :, :3]
    return vectors.astype(np.float32)


def test_gates_by_hand():
    a = torch.tensor([0.0, 1.0, -3.0], dtype=torch.float64)
    gate = deterministic_gate(a)
    torch.testing.assert_close(gate, oracle.final_gate(a))
    assert gate[0].item() == pytest.approx(0.5 * 1.2 - 0.1)
    assert gate[1].item() == pytest.approx(1 / (1 + math.exp(-1)) * 1.2 - 0.1)
    assert gate[2].item() == 0, "0.0474 · 1.2 − 0.1 < 0"
    expected = 1 / (1 + math.exp(2 / 3 * math.log(0.1 / 1.1)))
    assert open_probability(a)[0].item() == pytest.approx(expected) == pytest.approx(0.8318, abs=1e-4)
    torch.testing.assert_close(open_probability(a), oracle.open_probability(a))
    u = torch.tensor([0.3], dtype=torch.float64)
    by_hand = 1 / (1 + math.exp(-(math.log(0.3) - math.log(0.7) + 1.0) / (2 / 3))) * 1.2 - 0.1
    assert sample_gate(torch.ones(1, dtype=torch.float64), u)[0].item() == pytest.approx(by_hand)
    assert oracle.sampled_gate(torch.ones(1, dtype=torch.float64), u).item() == pytest.approx(by_hand)
    uniform = torch.rand(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn, slope = sample_gate(torch.full_like(uniform, -1.0), uniform)
    assert (drawn > 0).double().mean().item() == pytest.approx(open_probability(torch.tensor(-1.0)).item(), abs=0.005)
    step = 1e-6
    risen = sample_gate(torch.full_like(uniform, step - 1.0), uniform)[0]
    torch.testing.assert_close((risen - drawn) / step, slope, atol=1e-5, rtol=0)


def test_sparse_probes_are_those_of_autograd():
    """The objective as it is written down, differentiated by torch, one probe at a time."""
    torch.manual_seed(0)
    X = torch.randn(2, 60, 7, dtype=torch.float64)
    y = (torch.rand(2, 60, 3) < 0.5).double()
    weights = torch.rand(2, 60, 3, dtype=torch.float64)
    l0_strengths, seeds, steps = [0.1, 0.5, 1.0], [0, 1, 1], 40
    fitted = fit_sparse(X, y, l0_strengths=l0_strengths, seeds=seeds, weights=weights, steps=steps)
    for task, column in itertools.product(range(2), range(3)):
        generator = torch.Generator().manual_seed(seeds[column])
        w = (0.01 * torch.randn(7, generator=generator).double()).requires_grad_()
        a = (2 + 0.01 * torch.randn(7, generator=generator).double()).requires_grad_()
        optimiser = torch.optim.Adam([w, a], lr=0.05, betas=(0.9, 0.99))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
        share = weights[task, :, column] / weights[task, :, column].sum()
        for _ in range(steps):
            u = torch.rand(7, generator=generator).double()
            gate = oracle.sampled_gate(a, u)
            bce = oracle.cross_entropy(gate, w, X[task], y[task, :, column], share)
            loss = oracle.objective(bce, a, l0_strengths[column])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        torch.testing.assert_close(fitted.weight[task, column], w.detach(), atol=1e-8, rtol=0)
        torch.testing.assert_close(fitted.gate[task, column], oracle.final_gate(a.detach()), atol=1e-8, rtol=0)


def test_scores_are_scipys():
    rng = np.random.default_rng(0)
    good, bad = rng.normal(100, 1, (50, 7)), rng.normal(100.2, 2, (50, 7))
    good[:, 3] = bad[:, 3] = 100.0
    t, p = fitting.welch(good.astype(np.float32), bad.astype(np.float32))
    for dim in range(7):
        if dim == 3:
            assert (t[dim], p[dim]) == (0, 1)
            continue
        x, y = (side[:, dim].astype(np.float32).astype(np.float64) for side in (good, bad))
        assert t[dim] == pytest.approx(oracle.welch_t(x, y))
    with pytest.raises(ValueError, match=naming("k", "1 … 7", 8)):
        SparseProbe("topk", k=8).fit(np.concatenate([good, bad]), np.repeat([1, 0], 50))


def test_agreement_knows_its_largest_value():
    gate = np.array([0, 0, 0, 0, 0.2, 0.7, 1.0, 1.0])
    found = _agreement(1 + np.arange(8.0)[None], gate[None])
    assert found["spearman"] == pytest.approx(found["spearman_max"])
    assert found["auroc"] == 1
    assert found["spearman_max"] == pytest.approx(oracle.largest_spearman(gate))


def test_agreement_is_that_of_scipy_and_scikit_learn():
    """With ties in both, an infinite |t|, and tasks in which no gate or every gate is open, or all t are equal."""
    rng = np.random.default_rng(0)
    t = np.abs(rng.normal(size=(6, 30))).round(1)
    t[0, 3], t[4] = np.inf, 1
    gate = rng.normal(size=(6, 30)).clip(0, 1)
    gate[1], gate[2] = 0, 0.5
    ranks = stats.rankdata(t, axis=1)
    found = _agreement(ranks, gate)
    for task in (0, 3, 5):
        assert found["spearman"][task] == pytest.approx(stats.spearmanr(ranks[task], gate[task]).statistic)
        assert found["auroc"][task] == pytest.approx(roc_auc_score(gate[task] > 0, ranks[task]))
    assert np.isnan(found["spearman"][[1, 2, 4]]).all()
    assert np.isnan(found["auroc"][[1, 2]]).all()
    assert found["auroc"][4] == 0.5


@pytest.mark.parametrize(("n", "d"), [(120, 12), (60, 100)])
def test_dense_probes_reach_scikit_learns_optimum(n, d):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, n, d))
    y = (X[:, :, 0] + 0.5 * rng.normal(size=(20, n)) > 0).astype(float)
    ours = fit_dense(torch.from_numpy(X), torch.from_numpy(y)[..., None])[:, 0].numpy()
    for task in range(20):
        theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X[task], y[task])

        def loss(w, task=task):
            return 0.5 * w @ w + np.logaddexp(0, -(2 * y[task] - 1) * (X[task] @ w)).sum()

        assert loss(ours[task]) <= loss(theirs.coef_[0]) + 1e-4
        np.testing.assert_allclose(ours[task], theirs.coef_[0], atol=1e-4)


@pytest.mark.slow
def test_a_probe_does_not_depend_on_the_probes_fitted_with_it():
    X = torch.from_numpy(np.stack([planted(100, 40, seed=s).reshape(200, 40) for s in (0, 1)]))
    X = (X - X.mean(1, keepdim=True)) / X.std(1, keepdim=True)
    y = torch.tensor([1.0, 0.0]).repeat(100)[None, :, None].expand(2, -1, 4)
    columns = {"l0_strengths": [0.2, 0.2, 0.7, 1.0], "seeds": [0, 1, 0, 1]}
    together = fit_sparse(X, y, **columns, steps=200)
    for task in range(2):
        for column in range(4):
            one = {name: [values[column]] for name, values in columns.items()}
            alone = fit_sparse(X[task : task + 1], y[:1, :, :1], **one, steps=200)
            differ = (alone.gate[0, 0] > 0) != (together.gate[task, column] > 0)
            assert differ.float().mean() <= 0.001
            torch.testing.assert_close(
                alone.coefficients[0, 0], together.coefficients[task, column], atol=1e-3, rtol=1e-2
            )
    assert (together.gate[:, 3] > 0).all(), "no penalty, all open"
    assert ((together.gate[:, 0] > 0).sum(1) < (together.gate[:, 2] > 0).sum(1)).all()


def test_fits_where_gradients_are_off():
    X, y = torch.randn(1, 40, 3), torch.randint(2, (1, 40, 1)).float()
    as_usual = fit_sparse(X, y, l0_strengths=[0.5], seeds=[0], steps=20)
    with torch.no_grad():
        fitted = fit_sparse(X, y, l0_strengths=[0.5], seeds=[0], steps=20)
        assert not torch.is_grad_enabled()
    assert torch.equal(fitted.coefficients, as_usual.coefficients)
    assert not fitted.coefficients.requires_grad


def test_bad_columns():
    X, y = torch.randn(1, 8, 3), torch.zeros(1, 8, 1)
    for l0_strength in (0.0, 1.5, -1.0):
        with pytest.raises(ValueError, match=naming("l0_strengths", "(0, 1]", [l0_strength])):
            fit_sparse(X, y, l0_strengths=[l0_strength], seeds=[0])
    with pytest.raises(ValueError, match=naming("l0_strengths", "seeds", 1, 2)):
        fit_sparse(X, y, l0_strengths=[0.2, 0.3], seeds=[0])


@pytest.mark.quick("topk")
@pytest.mark.parametrize("method", ["l0", "topk"])
def test_planted_dimensions_are_found(method):
    vectors = planted(n=800, d=256)
    X, y = vectors.reshape(-1, 256), np.tile([1, 0], 800)
    probe = SparseProbe(method, l0_strength=0.2, k=6).fit(X, y)
    chosen = set(np.flatnonzero(probe.gate_ > 0)) if method == "topk" else set(np.argsort(-np.abs(probe.coef_))[:6])
    assert chosen == set(range(6))
    assert probe.score(X, y) > 0.85
    if method == "l0":
        assert probe.coef_[6] == pytest.approx(0, abs=0.05), "the dimension with a large mean carries no information"
        raw = SparseProbe("l0", l0_strength=0.2, scaling="rms").fit(X, y)
        assert raw.gate_[6] > 0, "on raw states, a probe without intercept uses it as one"
        assert raw.coef_[6] * 30 < -1


TYPED = {"check_do_not_raise_errors_in_init_or_set_params": "the test run checks types at every call"}


@pytest.mark.slow
@parametrize_with_checks(
    [SparseProbe("dense"), SparseProbe("topk", k=1), SparseProbe(steps=100)], expected_failed_checks=lambda probe: TYPED
)
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_probabilities_far_from_the_training_states_are_certain():
    X, y = np.random.default_rng(0).normal(size=(20, 4)), np.tile([0, 1], 10)
    probe = SparseProbe("dense").fit(X, y)
    assert set(probe.predict_proba(1e6 * X)[:, 1]) == {0.0, 1.0}  # without a warning of an overflow


def test_probe_refuses():
    X, y = np.random.default_rng(0).normal(size=(20, 4)), np.tile([0, 1], 10)
    for options, values in (
        ({"method": "topk", "k": 5}, ("k", "1 … 4", 5)),
        ({"l0_strength": 2.0}, ("l0_strengths", "(0, 1]", 2.0)),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            SparseProbe(**options).fit(X, y)
    with pytest.raises(ValueError, match=naming("classes", "1 class")):
        SparseProbe().fit(X, np.zeros(20))
    with pytest.raises(ValueError, match=naming("X", "NaN")):
        SparseProbe().fit(np.where(X > 1, np.nan, X), y)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("position", ["eos", "last", "mean", "cls"])
def test_states_are_transformers_hidden_states(kind, position, hf_directory, load_toy):
    model = load_toy(kind)
    if position == "cls" and kind != "bert":
        with pytest.raises(ValueError, match=naming("'cls'", "encoders")):
            probing.collect(model, toy_pairs(), position=position, progress=False)
        return
    table = toy_pairs()
    found = probing.collect(model, table, position=position, bos=False, progress=False)
    make = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    hf = make.from_pretrained(hf_directory(kind)).eval()
    tokenizer = model.tokenizer
    for row, side in ((0, 0), (5, 1), (11, 0)):
        ids = tokenizer(table.iloc[row, side], add_special_tokens=False)["input_ids"]
        if kind == "bert":
            ids = [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
        elif position == "eos":
            ids = [*ids, tokenizer.eos_token_id]
        with torch.no_grad():
            states = hf(torch.tensor([ids]), output_hidden_states=True).hidden_states
        last = len(states) - (kind != "bert")  # transformers applies the final norm to the last state of a causal model
        for state in range(last):
            h = states[state][0]
            at = {"eos": h[-1], "last": h[-2] if kind == "bert" else h[-1], "mean": h.mean(0), "cls": h[0]}[position]
            np.testing.assert_allclose(found.load(state)[row, side], at, atol=2e-5)


def test_states_in_shards(load_toy, tmp_path, monkeypatch):
    model, table = load_toy("gpt2"), toy_pairs(20)
    monkeypatch.setattr("interp.analyses.probing.states.SENTENCES_PER_SHARD", 16)
    kept = probing.collect(model, table, progress=False)
    sharded = probing.collect(model, table, directory=tmp_path / "residual", progress=False)
    assert len(list((tmp_path / "residual").glob("*.safetensors"))) == 3
    for state in kept.states:
        np.testing.assert_allclose(kept.load(state), sharded.load(state), atol=1e-6)
    first = tmp_path / "residual/states-00000.safetensors"
    written = first.stat().st_mtime_ns
    (tmp_path / "residual/states-00001.safetensors").write_bytes(b"cut")
    with pytest.raises(ValueError, match=naming("states-00001.safetensors", "checkpoint")):
        probing.collect(model, table, directory=tmp_path / "residual", progress=False)
    (tmp_path / "residual/states-00001.safetensors").unlink()
    again = probing.collect(model, table, directory=tmp_path / "residual", progress=False)
    assert first.stat().st_mtime_ns == written, "a whole shard is not made again"
    np.testing.assert_allclose(again.load(2), kept.load(2), atol=1e-6)
    with pytest.raises(ValueError, match=naming("states-00000.safetensors", "position", "'eos'", "'mean'")):
        probing.collect(model, table, position="mean", directory=tmp_path / "residual", progress=False)
    monkeypatch.setattr("interp.analyses.probing.states._MOST", 100)
    with pytest.raises(ValueError, match=naming("memory", "directory")):
        probing.collect(model, table, progress=False)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=naming("states", "0 … 2", [3])):
        probing.collect(model, table, states=[3], progress=False)
    with pytest.raises(ValueError, match=naming("state 2", 1)):
        probing.collect(model, table, states=[1], progress=False).load(2)


@pytest.mark.parametrize(("position", "size"), [("eos", 0.5), ("mean", 1.0)])
def test_states_are_stored_in_the_type_that_they_have(position, size, load_toy, tmp_path, monkeypatch):
    model, table = load_toy("gpt2", dtype="bfloat16"), toy_pairs(20)

    def collect(name):
        found = probing.collect(model, table, position=position, directory=tmp_path / name, progress=False)
        return found, sum(shard.stat().st_size for shard in (tmp_path / name).iterdir())

    own, own_size = collect("own")
    monkeypatch.setattr("interp.analyses.probing.states.stored_type", lambda *_: torch.float32)
    wide, wide_size = collect("wide")
    assert own_size / wide_size == pytest.approx(size, abs=0.1)
    for state in wide.states:
        np.testing.assert_array_equal(own.load(state), wide.load(state))
        assert own.load(state).dtype == np.float32


def test_sentences_that_cannot_be_read(load_toy):
    model, table = load_toy("gpt2"), toy_pairs()
    table.loc[3, "sentence_good"] = " ".join(["w1"] * 40)
    with pytest.raises(ValueError, match=naming(24, "w1 w1 w1")):
        probing.collect(model, table, progress=False)
    with pytest.raises(ValueError, match=naming("interp.corpora.pairs", "sentence_good, sentence_bad", "UID")):
        probing.collect(model, table[["UID"]], progress=False)
    model.tokenizer.eos_token = None
    with pytest.warns(UserWarning, match=r"no end-of-sequence token; \[SEP\] is appended instead"):
        probing.collect(model, toy_pairs(), progress=False)
    with torch.no_grad():
        model.blocks[0].attn.b_O[0] = torch.nan
    with pytest.raises(ValueError, match=naming("blocks.0.attn.b_O", "NaN")):
        probing.collect(model, toy_pairs(), position="last", progress=False)


def states_of(vectors, task_pairs):
    return States(task_pairs, (3,), vectors.shape[2], {"made": "here"}, _kept={3: vectors})


@pytest.fixture(scope="module")
def swept():
    vectors = np.concatenate([planted(200, 64, seed=s, shift=1.5) for s in (0, 1)])
    both = pd.concat([toy_pairs(200, "a"), toy_pairs(200, "b")], ignore_index=True)
    return vectors, both, probing.sweep(states_of(vectors, both), ks=(1, 6, 64), steps=300, seeds=(0,), progress=False)


@pytest.mark.slow
def test_sweep_tables(swept):
    vectors, both, found = swept
    assert len(found.probes) == 2 * (6 + 1 + 2 + 3)
    flipped = found.probes.query("method == 'l0' and control == 'flip'")
    assert flipped["l0_strength"].tolist() == [0.2, 0.2], "for both tasks"
    assert flipped["accuracy"].max() < 0.7
    dense = found.probes.query("method == 'dense'").set_index(["task", "control"])
    topk = found.probes.query("method == 'topk:welch'").set_index(["task", "k"])
    for task in ("a", "b"):
        assert dense.loc[(task, "none"), "accuracy"] > 0.9
        assert dense.loc[(task, "none"), "pair_accuracy"] > 0.95
        assert dense.loc[(task, "flip"), "accuracy"] < 0.7
        assert topk.loc[(task, 6), "n_open"] == 6
        assert topk.loc[(task, 6), "accuracy"] > 0.9
        assert topk.loc[(task, 64), "accuracy"] == dense.loc[(task, "none"), "accuracy"]
    neurons = found.neurons.query("task == 'a'")
    assert set(neurons.sort_values("p_adjusted")["dim"].head(6)) == set(range(6))
    split = split_tasks(both)["b"]
    t, p = fitting.welch(vectors[split.train, 0], vectors[split.train, 1])
    np.testing.assert_allclose(found.neurons.query("task == 'b'")["t"], t)
    np.testing.assert_allclose(found.neurons.query("task == 'b'")["p_adjusted"], benjamini_hochberg(p))
    assert (found.agreement["spearman"] <= found.agreement["spearman_max"] + 1e-9).all()
    assert found.agreement.query("l0_strength == 0.2")["auroc"].min() > 0.9
    assert set(found.random_k["k"]) >= {1, 2, 4, 8, 16, 32}
    assert set(found.random_k["draw"]) == set(range(20))


def test_a_probe_has_the_number_of_its_method_alone(swept, tmp_path):
    _, _, found = swept
    found.save(tmp_path)
    for probes in (found.probes, probing.sweeps.Sweep.load(tmp_path).probes):
        assert probes[["l0_strength", "k"]].dtypes.astype(str).tolist() == ["float64", "Int64"]
        assert set(probes.loc[probes["method"] == "l0", "l0_strength"]) == {0.05, 0.1, 0.2, 0.4, 0.7, 1.0}
        assert set(probes.loc[probes["method"] == "topk:welch", "k"]) == {1, 6, 64}
        for column, method in (("l0_strength", "l0"), ("k", "topk:welch")):
            assert (probes[column].notna() == (probes["method"] == method)).all()


def test_dense_probe_of_the_sweep_is_scikit_learns(swept):
    vectors, both, found = swept
    split = split_tasks(both)["a"]
    X = np.concatenate([vectors[split.train, 0], vectors[split.train, 1]])
    X_test = np.concatenate([vectors[split.test, 0], vectors[split.test, 1]])
    y, y_test = (np.repeat([1, 0], len(side) // 2) for side in (X, X_test))
    mean, sd = X.mean(0), X.std(0)
    theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=5_000).fit((X - mean) / sd, y)
    ours = found.probes.query("task == 'a' and method == 'dense' and control == 'none'")["accuracy"].item()
    assert ours == pytest.approx(theirs.score((X_test - mean) / sd, y_test))


def test_sweep_resumes_and_refuses(swept, tmp_path, monkeypatch):
    vectors, both, _ = swept
    states = states_of(vectors, both)
    options = {"methods": ["dense", "topk"], "ks": (2,), "progress": False, "directory": tmp_path}
    first = probing.sweep(states, **options)
    monkeypatch.setattr(sys.modules["interp.analyses.probing.sweeps"], "fit_dense", None)
    again = probing.sweep(states, **options)
    pd.testing.assert_frame_equal(first.probes, again.probes)
    with pytest.raises(ValueError, match=naming("sweep-3.safetensors", "ks", 2, 3)):
        probing.sweep(states, **(options | {"ks": (3,)}))
    for wrong, values in (
        ({"tasks": ["z"]}, ("tasks", "z", "a, b")),
        ({"ks": (65,)}, ("ks", "1 … 64", [65])),
        ({"states": [0]}, ("state 0", 3)),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            probing.sweep(states, progress=False, **wrong)
    few = pd.concat([both.iloc[:5]], ignore_index=True)
    with pytest.raises(ValueError, match=naming("'a'", 5, 10)):
        probing.sweep(states_of(vectors[:5], few), progress=False)


def test_bag_of_words_sees_words_and_nothing_else():
    table = toy_pairs(100)
    assert words_right(table, split_tasks(table)["t"]).mean() == 1.0, "w3 is in every bad sentence"
    same = table.assign(sentence_bad=table["sentence_good"].map(lambda text: " ".join(reversed(text.split()))))
    assert words_right(same, split_tasks(same)["t"]).mean() == 0.5


def test_pseudo_log_likelihood_is_a_loop_over_masks(hf_directory, load_toy):
    model = load_toy("bert")
    hf = transformers.AutoModelForMaskedLM.from_pretrained(hf_directory("bert")).eval()
    sentences = ["w1 w2 w3", "w5", "w7 w8 w9 w10 w11"]
    found = probing.sentence_scores(model, sentences, progress=False)["sum"].to_numpy()
    tokenizer = model.tokenizer
    for sentence, score in zip(sentences, found, strict=True):
        ids = tokenizer(sentence, add_special_tokens=False)["input_ids"]
        expected = 0.0
        for position, target in enumerate(ids, 1):
            row = [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
            row[position] = tokenizer.mask_token_id
            with torch.no_grad():
                expected += hf(torch.tensor([row])).logits[0, position].log_softmax(-1)[target].item()
        assert score == pytest.approx(expected, abs=1e-4)


@pytest.mark.e2e
def test_tiny_models_on_bundled_pairs():
    """For word order alone, the words and state 0 carry no information, but later states do."""
    tasks = ["left_branch", "npi_scope", "reflexive_possessor"]
    table = pairs.generate(n_per_task=150, tasks=tasks)
    states = probing.collect(interp.load("tiny-gpt2"), table, states=[0, 4], bos=True, progress=False)
    found = probing.sweep(states, methods=["dense"], controls=["none"], progress=False).probes
    assert (found["bag_of_words"] <= 0.6).all()
    at = found.groupby("state")["pair_accuracy"].mean()
    assert at[0] == pytest.approx(0.5, abs=0.05)
    assert at[4] > 0.85
    accuracy = probing.minimal_pair_accuracy(interp.load("tiny-bert"), table.groupby("UID").head(20), progress=False)
    assert accuracy["accuracy"].mean() > 0.5


def test_transfer_is_each_probe_on_each_task():
    base = planted(120, 32, informative=4, seed=0, shift=1.5)
    shared = planted(120, 32, informative=4, seed=1, shift=1.5)
    other = planted(120, 32, informative=4, seed=2, shift=1.5)[:, :, ::-1].copy()  # other dimensions carry the task
    table = pd.concat([toy_pairs(120, name) for name in "abc"], ignore_index=True)
    states = states_of(np.concatenate([base, shared, other]), table)
    every = probing.transfer(states, 3, steps=200)
    assert len(every) == 27
    kinds = every.fillna({"l0_strength": 0}).groupby(["method", "l0_strength"]).size()
    assert kinds.to_dict() == {("l0", 0.2): 9, ("l0", 1.0): 9, ("dense", 0): 9}
    own = every.query("l0_strength == 0.2 and train_task == test_task")
    assert (own["accuracy"] > 0.9).all()
    found = every.query("method == 'dense'").set_index(["train_task", "test_task"])
    assert found.loc[("a", "b"), "pair_accuracy"] > 0.9
    assert abs(found.loc[("a", "c"), "pair_accuracy"] - 0.5) < 0.2
    vectors = {"a": base, "b": shared, "c": other}
    split = split_tasks(table)["a"]
    X = np.concatenate([base[split.train, 0], base[split.train, 1]]).astype(float)
    y = np.repeat([1, 0], len(split.train))
    mean, sd = X.mean(0), X.std(0)
    theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10).fit((X - mean) / sd, y)
    for name in "abc":
        rows = split_tasks(table)[name].test - 120 * "abc".index(name)
        good, bad = (theirs.decision_function((vectors[name][rows, side] - mean) / sd) for side in (0, 1))
        assert found.loc[("a", name), "accuracy"] == pytest.approx(((good > 0).mean() + (bad < 0).mean()) / 2)
        assert found.loc[("a", name), "pair_accuracy"] == pytest.approx((good > bad).mean())
    with pytest.raises(ValueError, match=naming("tasks", "z", "a, b, c")):
        probing.transfer(states, 3, tasks=["z"])


def test_states_of_a_hooked_model_are_not_kept_in_a_directory(load_toy, tmp_path):
    model, table = load_toy("gpt2"), toy_pairs()
    with model.hooks(fwd_hooks=interp.hooks.ablate_dims(model, 0, [1], where="residual")):
        with pytest.raises(ValueError, match=naming("checkpoint", "hooks")):
            probing.collect(model, table, directory=tmp_path, progress=False)
        edited = probing.collect(model, table, progress=False)
    assert np.abs(edited.load(2) - probing.collect(model, table, progress=False).load(2)).max() > 1e-3


def test_states_without_variance_give_a_probe_that_says_nothing():
    assert (fit_dense(torch.zeros(1, 20, 64), torch.tensor([1.0, 0.0]).repeat(10)[None, :, None]) == 0).all()
    table = toy_pairs(20)
    states = states_of(np.ones((20, 2, 64), dtype=np.float32), table)
    found = probing.sweep(states, methods=["dense", "topk"], ks=(1, 20), progress=False).probes
    assert (found[["accuracy", "pair_accuracy"]] == 0.5).all(axis=None)
    assert (probing.transfer(states, 3, steps=20)["pair_accuracy"] == 0.5).all()


@pytest.mark.slow
def test_random_probes_alone(swept):
    vectors, both, whole = swept
    alone = probing.sweep(states_of(vectors, both), methods=["random"], progress=False)
    pd.testing.assert_frame_equal(alone.random_k, whole.random_k)
    assert alone.probes.empty


def test_a_dimension_that_separates_perfectly_comes_first():
    """It is +5 in every good sentence and −5 in every bad one, so its t is infinite."""
    rng = np.random.default_rng(0)
    good, bad = rng.normal(size=(60, 8)), rng.normal(size=(60, 8))
    good[:, 3], bad[:, 3] = 5, -5
    good[:, 6] = bad[:, 6] = 1
    assert fitting.welch(good, bad)[0][6] == 0
    probe = SparseProbe("topk", k=1, scaling="none").fit(np.concatenate([good, bad]), np.repeat([1, 0], 60))
    assert probe.gate_.tolist() == [0] * 3 + [1] + [0] * 4


def test_welch_of_constants():
    good, bad = np.tile([5.0, 1.0, -2.0], (20, 1)), np.tile([-5.0, 1.0, 3.0], (20, 1))
    t, p = fitting.welch(good, bad)
    assert t.tolist() == [np.inf, 0, -np.inf]
    assert p.tolist() == [0, 1, 0]


def test_sweep_with_a_perfect_dimension_and_constant_ones():
    """It is found with accuracy 1; a state of constants is at chance, and there are no warnings."""
    rng = np.random.default_rng(0)
    pairs = pd.DataFrame({"sentence_good": [f"g{i}" for i in range(40)], "sentence_bad": [f"b{i}" for i in range(40)]})
    pairs = pairs.assign(UID="t", field="f", linguistics_term="l")
    perfect = rng.normal(size=(40, 2, 6)).astype(np.float32)
    perfect[:, 0, 2], perfect[:, 1, 2], perfect[:, :, 4] = 5, -5, 1
    states = States(pairs, (0, 1), 6, {}, _kept={0: perfect, 1: np.ones_like(perfect)})
    found = probing.sweep(states, ks=[1], l0_strengths=[1.0], methods=["topk", "l0"], steps=50, progress=False)
    plain = found.probes[found.probes["control"] == "none"]
    assert (plain[(plain["state"] == 0) & plain["method"].str.startswith("topk")]["accuracy"] == 1).all()
    assert (plain[plain["state"] == 1]["accuracy"] == 0.5).all()
    t = found.neurons[found.neurons["state"] == 0].set_index("dim")
    assert t.loc[2, "t"] == np.inf
    assert t.loc[2, "p_adjusted"] == 0
    agreement = found.agreement[found.agreement["state"] == 0]
    assert np.isfinite(agreement["spearman"]).all() | agreement["spearman"].isna().all()


def test_states_that_are_not_finite_are_refused():
    pairs = pd.DataFrame(
        {"sentence_good": map(str, range(20)), "sentence_bad": [f"no {i}" for i in range(20)], "UID": "t"}
    )
    vectors = np.ones((20, 2, 3), dtype=np.float32)
    vectors[3, 1, 2] = np.nan
    states = States(pairs, (5,), 3, {}, _kept={5: vectors})
    with pytest.raises(ValueError, match=naming("state 5", "NaN")):
        probing.sweep(states, ks=[1], progress=False)


@pytest.mark.parametrize(
    ("kind", "position", "bos", "begins_with", "read_at"),
    [
        ("gpt2", "eos", "auto", None, "</s>"),
        ("gpt2", "eos", True, "<s>", "</s>"),
        ("gpt2", "last", True, "<s>", "the last token of the sentence"),
        ("gpt2", "mean", False, None, "the mean over all tokens"),
        ("bert", "cls", "auto", "[CLS]", "[CLS]"),
        ("bert", "eos", "auto", "[CLS]", "[SEP]"),
    ],
)
def test_where_sentences_begin_and_are_read_is_told(load_toy, kind, position, bos, begins_with, read_at):
    found = probing.collect(load_toy(kind), toy_pairs(), position=position, bos=bos, states=[0], progress=False)
    swept = probing.sweep(found, methods=["dense"], controls=["none"], progress=False)
    told = swept.provenance["begins_with"], swept.provenance["read_at"]
    assert told == (begins_with, read_at)
