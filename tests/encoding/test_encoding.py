"""Token probability in output embeddings against transformers in float64 with edited weights, numpy, scipy, sklearn."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from naming import naming
from oracles import encoding as oracle
from scipy import stats
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits
from toys import D_VOCAB, HELD_OUT, HF_MODELS, TEXTS, TINY
from training.data import Texts
from training.run import train
from transformer_lens import HookedTransformer, HookedTransformerConfig

import interp
from interp import corpora, directions, encoding, hooks
from interp.analyses.encoding.pruning import PrunedPredictions
from interp.corpora.unigrams import Unigrams
from interp.instruments import regression
from interp.instruments.predictions import MeanPredictions, Variant
from interp.models.identity import weight_hash
from interp.passes.reading import observe
from interp.testing import randomise, toy_tokenizer

DOUBLE = torch.float64
KINDS = ["gpt2", "gpt_neox", "gptj", "llama", "bert"]
ROUGH = {"llama", "gpt_neox", "gptj"}  # transformers computes their norm or attention in float32 whatever the dtype
QUIET = {"progress": False}
YELP = pytest.param("yelp", marks=pytest.mark.e2e)
EFFECTS = ["delta_loss", "delta_entropy", "delta_kl_unigram", "delta_loss_frozen", "delta_entropy_frozen"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):  # otherwise numpy's BLAS waits for a busy core, 200 times as long
        yield
    torch.set_num_threads(before)


def transformers_model(directory, kind="gpt2"):
    """The model in float64, with its output matrix untied from the input embeddings."""
    make = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    hf = make.from_pretrained(directory, attn_implementation="eager").to(DOUBLE).eval()
    head = hf.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    return hf


@torch.no_grad()
def predictions(hf, batches):
    """The logits, the targets and the inputs of the head at the positions that are read."""
    inputs = []
    handle = hf.get_output_embeddings().register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    parts = [(hf(b.tokens, attention_mask=b.mask).logits[b.read], b.targets[b.read]) for b in batches]
    handle.remove()
    logits, targets = (torch.cat(values) for values in zip(*parts, strict=True))
    return logits, targets, torch.cat([x[b.read] for x, b in zip(inputs, batches, strict=True)])


@torch.no_grad()
def ours(model, batches, recipe=()):
    """The logits of a TransformerLens model under hooks, at the positions that are read."""
    options = lambda b: {"one_zero_attention_mask": b.mask} if hasattr(model, "mlm_head") else {}  # noqa: E731
    with model.hooks(fwd_hooks=list(recipe)):
        return torch.cat([model(b.tokens, **options(b))[b.read] for b in batches])


def prepared(model, texts, kind, **options):
    return corpora.batches(model, texts, mask_rate=0.3 if kind == "bert" else None, batch_size=9, **options)


def check_regression(fit, E, alpha, rtol=1e-7):
    slope, intercept, r2, adjusted = oracle.least_squares(E, -np.log(alpha))
    row = fit.regression.iloc[0]
    np.testing.assert_allclose(fit.slope, slope, rtol=rtol, atol=rtol * np.abs(slope).max())
    np.testing.assert_allclose([fit.intercept, row["r2"], row["adj_r2"]], [intercept, r2, adjusted], rtol=rtol)
    assert list(fit.regression["target"]) == ["-log alpha", "shuffled"]
    assert (fit.regression["n_types"] == len(E)).all()
    assert (fit.regression["n_dims"] == E.shape[1]).all()


def array(tensor):
    return tensor.detach().double().numpy()


@pytest.fixture
def toy(load_toy, hf_directory, texts):
    """A toy in float64, the same model in transformers, batches and a fit."""

    def make(kind, **options):
        model, hf = load_toy(kind, dtype=DOUBLE), transformers_model(hf_directory(kind), kind)
        batches = prepared(model, texts, kind, **options)
        return SimpleNamespace(model=model, hf=hf, batches=batches, fit=encoding.fit(model, batches, **QUIET))

    return make


@pytest.fixture(scope="module")
def yelp(shared):
    """The trained model in float64, with 24 rows of its text."""
    directory = shared / "models/gpt2-yelp"
    model, text = interp.load(directory, dtype=DOUBLE), (shared / "data/yelp/valid.txt").read_text(encoding="utf-8")
    rows = torch.cat([batch.tokens for batch in corpora.batches(model, [text[:40_000]])])
    batches = corpora.batches(model, rows[:24])
    fit = encoding.fit(model, batches, **QUIET)
    return SimpleNamespace(
        model=model, hf=transformers_model(directory), rows=rows, batches=batches, fit=fit, text=text
    )


@pytest.fixture
def case(request, toy):
    """A toy of some kind, or the trained model."""
    return lambda kind: request.getfixturevalue("yelp") if kind == "yelp" else toy(kind)


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    """A GPT-2 with 13 more rows than its tokenizer has tokens, and a BERT that never predicts tokens 5 and 6."""
    directory = tmp_path_factory.mktemp("padded")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=D_VOCAB + 13, n_positions=24, n_embd=16, n_layer=2, n_head=4)
    )
    never = HF_MODELS["bert"]()
    for name, hf in (("gpt2", model), ("bert", never)):
        randomise(hf)
        with torch.no_grad():
            if name == "bert":
                hf.cls.predictions.bias[[5, 6]] = -1e4
        hf.save_pretrained(directory / f"random-{name}")
        toy_tokenizer().save_pretrained(directory / f"random-{name}")
    return lambda kind: directory / f"random-{kind}"


# The regression.


def test_regression_equals_a_plain_one():
    rng = np.random.default_rng(0)
    W_U, noise = rng.normal(size=(5, 80)), rng.normal(size=80)
    alpha = np.exp(-(W_U.T @ np.arange(5.0) + 2 + 0.3 * noise))
    alpha[3] = 0
    fit = regression.fit_arrays(W_U, alpha)
    X = np.delete(W_U.T, 3, axis=0)
    y = -np.log(np.delete(alpha, 3))
    centred = X - X.mean(0)
    slope = np.linalg.solve(centred.T @ centred, centred.T @ y)
    np.testing.assert_allclose(fit.slope, slope, atol=1e-10)
    assert fit.intercept == pytest.approx(y.mean() - X.mean(0) @ slope)
    assert fit.n_types == 79
    residual = y - y.mean() - centred @ slope
    assert fit.adj_r2 == pytest.approx(1 - (residual @ residual / 73) / y.var(ddof=1))
    with pytest.raises(ValueError, match=naming(6, "types", 5, "vocabulary")):
        regression.fit_arrays(W_U[:, :6], np.full(6, 0.1))
    with pytest.raises(ValueError, match=naming(6, "types", 5, "text")):
        regression.fit_arrays(W_U, np.where(np.arange(W_U.shape[1]) < 6, 0.1, 0.0))


@pytest.mark.slow
def test_the_whole_yelp_text(shared, yelp):
    model = interp.load(shared / "models/gpt2-yelp")
    fit = encoding.fit(model, corpora.batches(model, [yelp.text]), **QUIET)
    row = fit.regression.iloc[0]
    assert row["adj_r2"] == pytest.approx(0.991, abs=0.002)
    assert (row["n_types"], row["n_not_tokens"], row["n_never_predicted"]) == (1000, 0, 0)
    check_regression(fit, array(yelp.hf.lm_head.weight), fit.alpha)
    assert abs(fit.regression["adj_r2"].iloc[1]) < 0.06, "shuffled"
    null = fit.dims["spearman_shuffled"].to_numpy()
    assert np.sqrt((null**2).mean()) == pytest.approx(1 / np.sqrt(999), rel=0.2)
    assert fit.dims.query("basis == 'pca'")["spearman"].abs().idxmax() == fit.dims.query("basis == 'pca'").index[0]


@pytest.mark.parametrize("kind", [*KINDS, YELP])
def test_fit_is_least_squares_on_the_mean_softmax(kind, case):
    it = case(kind)
    logits, _, inputs = predictions(it.hf, it.batches)
    alpha, rtol = array(logits.softmax(-1).mean(0)), 1e-5 if kind in ROUGH else 1e-8
    np.testing.assert_allclose(it.fit.alpha, alpha, rtol=rtol)
    np.testing.assert_allclose(it.fit.mean_input, array(inputs.mean(0)), rtol=rtol, atol=rtol)
    check_regression(it.fit, array(it.hf.get_output_embeddings().weight), alpha, 1e-3 if kind in ROUGH else 1e-7)
    assert it.fit.used.all()
    again, other = (encoding.fit(it.model, it.batches, seed=seed, **QUIET) for seed in (0, 1))
    pd.testing.assert_frame_equal(again.regression, it.fit.regression)
    pd.testing.assert_frame_equal(again.dims, it.fit.dims)
    assert other.regression["r2"].iloc[1] != it.fit.regression["r2"].iloc[1]


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", YELP])
def test_dimensions_are_those_of_numpy_scipy_and_sklearn(kind, case):
    it = case(kind)
    E, y = array(it.hf.get_output_embeddings().weight), -np.log(it.fit.alpha)
    slope = oracle.least_squares(E, y)[0]
    pca = PCA(svd_solver="full").fit(E)
    components = it.fit.components
    signs = np.sign((components * pca.components_).sum(1))
    np.testing.assert_allclose(components, signs[:, None] * pca.components_, atol=1e-8)
    shares = {"axis": E.var(0) / E.var(0).sum(), "pca": pca.explained_variance_ratio_}
    for basis, turn in (("axis", np.eye(E.shape[1])), ("pca", components)):
        table, x = it.fit.dims.query("basis == @basis"), E @ turn.T
        assert list(table["dim"]) == list(range(E.shape[1]))
        np.testing.assert_allclose(table["slope"], turn @ slope, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(table["standardised_slope"], turn @ slope * x.std(0), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(table["explained_variance"], shares[basis], rtol=1e-8)
        expected = [stats.spearmanr(column, y).statistic for column in x.T]
        np.testing.assert_allclose(table["spearman"], expected, atol=1e-9)
        assert table["spearman_shuffled"].abs().mean() < 2 / np.sqrt(len(E))


def test_rows_that_are_not_tokens_are_left_out(padded, texts):
    model, hf = interp.load(padded("gpt2"), dtype=DOUBLE), transformers_model(padded("gpt2"))
    batches = prepared(model, texts, "gpt2")
    fit = encoding.fit(model, batches, **QUIET)
    assert (fit.regression["n_not_tokens"] == 13).all()
    assert (fit.regression["n_never_predicted"] == 0).all()
    assert list(np.flatnonzero(~fit.used)) == list(range(67, 80))
    alpha = array(predictions(hf, batches)[0][:, :67].softmax(-1).mean(0))
    np.testing.assert_allclose(fit.alpha, [*alpha, *np.zeros(13)], rtol=1e-8)
    check_regression(fit, array(hf.lm_head.weight)[:67], alpha)
    with pytest.raises(ValueError, match=naming("token id 70", "0 … 79")):
        encoding.steer(model, 70, 2, fit, **QUIET)


def test_tokens_that_are_never_predicted_are_left_out(padded, texts):
    model, hf = interp.load(padded("bert"), dtype=DOUBLE), transformers_model(padded("bert"), "bert")
    batches = prepared(model, texts, "bert")
    fit = encoding.fit(model, batches, **QUIET)
    assert (fit.regression["n_not_tokens"] == 0).all()
    assert (fit.regression["n_never_predicted"] == 2).all()
    assert list(np.flatnonzero(~fit.used)) == [5, 6]
    alpha = array(predictions(hf, batches)[0].softmax(-1).mean(0))
    check_regression(fit, array(hf.cls.predictions.decoder.weight)[fit.used], alpha[fit.used])
    with pytest.raises(ValueError, match=naming("token 5", 0)):
        encoding.steer(model, 5, 2, fit, **QUIET)


def test_few_shot_is_the_fit_of_the_first_tokens(toy, texts):
    it = toy("gpt2")
    fit = encoding.fit(it.model, corpora.batches(it.model, texts, batch_size=1), **QUIET)
    table = encoding.few_shot(it.model, fit, tokens=(120, 240, 480, 5000))
    assert list(table["n_tokens"]) == [120, 240, 480]
    p, E = array(predictions(it.hf, it.batches)[0].softmax(-1)), array(it.hf.lm_head.weight)
    whole, y = oracle.least_squares(E, -np.log(fit.alpha))[0], -np.log(fit.alpha)
    for row in table.itertuples():
        slope, intercept, _, adjusted = oracle.least_squares(E, -np.log(p[: row.n_tokens].mean(0)))
        cosine = slope @ whole / np.linalg.norm(slope) / np.linalg.norm(whole)
        r2 = 1 - ((y - E @ slope - intercept) ** 2).sum() / ((y - y.mean()) ** 2).sum()
        np.testing.assert_allclose([row.adj_r2, row.cosine, row.r2_of_whole], [adjusted, cosine, r2], rtol=1e-7)


def test_few_shot_reads_as_many_tokens_as_asked(toy):
    it = toy("gpt2")
    assert list(encoding.few_shot(it.model, it.fit, tokens=(100, 150, 300))["n_tokens"]) == [100, 150, 300]


def test_arrays_from_anywhere():
    rng = np.random.default_rng(0)
    W, alpha = rng.normal(size=(6, 40)), rng.dirichlet(np.ones(40))
    alpha[7], use = 0, np.arange(40) != 3
    for chosen, given in ((alpha > 0, None), ((alpha > 0) & use, use)):
        found = regression.fit_arrays(W, alpha, use=given)
        slope, intercept, r2, adjusted = oracle.least_squares(W.T[chosen], -np.log(alpha[chosen]))
        np.testing.assert_allclose(found.slope, slope)
        np.testing.assert_allclose([found.intercept, found.r2, found.adj_r2], [intercept, r2, adjusted])
        assert (found.n_types, found.n_dims) == (chosen.sum(), 6)
    for n in (5, 6, 7):  # with the intercept, 7 types are fitted exactly too
        with pytest.raises(ValueError, match=naming(n, "types")):
            regression.fit_arrays(W[:, 10 : 10 + n], alpha[10 : 10 + n])


def bare(d_vocab, **options):
    """A model without a tokenizer."""
    config = {"n_layers": 1, "d_model": 16, "n_ctx": 12, "d_head": 4, "n_heads": 4, "act_fn": "gelu", "seed": 0}
    model = HookedTransformer(HookedTransformerConfig(**config, d_vocab=d_vocab, **options))
    randomise(model)
    return model


def test_fits_that_are_refused(load_toy, texts):
    tokens = torch.randint(12, (4, 12), generator=torch.Generator().manual_seed(0))
    for d_vocab in (12, 16, 17):
        with pytest.raises(ValueError, match=naming(d_vocab, "types", "vocabulary")):
            encoding.fit(bare(d_vocab), tokens, **QUIET)
    assert encoding.fit(bare(40), tokens, **QUIET).regression["n_types"].eq(40).all()
    bert, folded = load_toy("bert"), load_toy("gpt2")
    with pytest.raises(ValueError, match=naming("mask_rate")):
        encoding.fit(bert, corpora.batches(bert, texts), **QUIET)
    fit = encoding.fit(folded, texts, **QUIET)
    folded.process_weights_()
    for call in (
        lambda: encoding.fit(folded, texts, **QUIET),
        lambda: encoding.pruning_curve(folded, texts, fit=fit, **QUIET),
        lambda: encoding.frequency_neurons(folded, texts, **QUIET),
    ):
        with pytest.raises(ValueError, match=f"{naming('W_U')}|{naming('interp.encoding.fit')}"):
            call()


# Pruning.


def prune(hf, dims, components=None):
    """Zero columns of the untied output matrix, or project components out of its input; returns how to undo it."""
    head = hf.get_output_embeddings()
    if components is None:
        kept = head.weight.detach().clone()
        with torch.no_grad():
            head.weight[:, dims] = 0
        return lambda: head.weight.data.copy_(kept)
    chosen = torch.tensor(components[dims])
    return head.register_forward_pre_hook(lambda _, args: (args[0] - args[0] @ chosen.T @ chosen,)).remove


@pytest.mark.quick("gpt2", "bert-axis")
@pytest.mark.parametrize("basis", ["axis", "pca"])
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", YELP])
def test_pruning_is_zeroing_columns_of_an_untied_matrix(kind, basis, case):
    it = case(kind)
    orders = ["spearman", "random", "reverse", "slope"]
    fractions = [0, 0.05, 0.3, 0.5, 0.95] if kind != "yelp" else [0, 0.3, 0.9]
    batches = corpora.batches(it.model, it.rows[:12]) if kind == "yelp" else it.batches
    options = {"fit": it.fit, "basis": basis, "fractions": fractions, "seed": 3, **QUIET}
    table = encoding.pruning_curve(it.model, batches, order=orders, **options)
    assert list(zip(table["order"], table["fraction"], strict=True)) == [(o, f) for o in orders for f in fractions]
    d = it.model.cfg.d_model
    assert (table["n_dims"] - table["fraction"] * d).abs().max() <= 0.5
    full, targets, _ = predictions(it.hf, batches)
    for row in table.itertuples():
        dims = encoding.pruning.removal_order(it.fit, row.order, basis, seed=3)[: row.n_dims]
        undo = prune(it.hf, dims, it.fit.components if basis == "pca" else None)
        pruned = predictions(it.hf, batches)[0]
        undo()
        expected = oracle.pruning(full.log_softmax(-1), pruned.log_softmax(-1), targets)
        assert row.kl == pytest.approx(expected["kl"], abs=1e-6)
        assert row.js == pytest.approx(expected["js"], abs=1e-7 if kind in ROUGH else 1e-10)
        assert row.top1_agreement == expected["top1_agreement"]
        assert row.perplexity == pytest.approx(expected["perplexity"], rel=1e-6)
    assert table.query("fraction >= .3")["kl"].min() > 1e-3
    assert table.query("fraction == 0")["kl"].abs().max() < 1e-9
    for order in orders:
        alone = encoding.pruning_curve(it.model, batches, order=order, **options)
        part = table[table["order"] == order].reset_index(drop=True)
        pd.testing.assert_frame_equal(alone, part, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("basis", ["axis", "pca"])
def test_removal_orders(basis, toy):
    fit = toy("gpt2").fit
    table = fit.dims.query("basis == @basis").set_index("dim")
    assert encoding.pruning.removal_order(fit, "spearman", basis) == list(table["spearman"].abs().sort_values().index)
    assert encoding.pruning.removal_order(fit, "slope", basis) == list(table["slope"].abs().sort_values().index)
    assert (
        encoding.pruning.removal_order(fit, "reverse", basis)
        == encoding.pruning.removal_order(fit, "spearman", basis)[::-1]
    )
    drawn = [encoding.pruning.removal_order(fit, "random", basis, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sorted(drawn[0]) == list(range(16))


@pytest.mark.parametrize("kind", ["gpt2", "bert", "gptj", "llama", YELP])
def test_the_pruning_recipe_is_the_edited_model(kind, case):
    it = case(kind)
    batches = corpora.batches(it.model, it.rows[:4]) if kind == "yelp" else it.batches
    before, plain = weight_hash(it.model), ours(it.model, batches)
    embedding = array(it.hf.get_input_embeddings().weight)
    for components in (None, it.fit.components):
        basis = None if components is None else torch.tensor(components)
        recipe = hooks.prune_output_dims(it.model, [1, 5, 12], basis=basis)
        undo = prune(it.hf, [1, 5, 12], components)
        expected, found = predictions(it.hf, batches)[0].log_softmax(-1), ours(it.model, batches, recipe)
        undo()
        np.testing.assert_array_equal(array(it.hf.get_input_embeddings().weight), embedding)
        torch.testing.assert_close(found.log_softmax(-1), expected, atol=1e-5 if kind in ROUGH else 1e-9, rtol=0)
        assert (found - plain).abs().max() > 1e-2
    assert weight_hash(it.model) == before
    torch.testing.assert_close(ours(it.model, batches), plain, rtol=0, atol=0)


def test_bad_prunings(toy, texts):
    it = toy("gpt2")
    for fractions in ((0.5, 0.2), (-0.1, 0.5), (0.5, 1.5), (), (float("nan"),)):
        with pytest.raises(ValueError, match=naming("fractions", 0, 1, list(fractions))):
            encoding.pruning_curve(it.model, it.batches, fit=it.fit, fractions=fractions, **QUIET)
    with pytest.raises(ValueError, match=naming("order")):
        encoding.pruning_curve(it.model, it.batches, fit=it.fit, order=[], **QUIET)
    for dims, basis, values in (
        ([16], None, ("dims", "0 … 15", [16])),
        ([-1], None, ("dims", "0 … 15", [-1])),
        ([0], torch.eye(15).double(), ("basis", [16, 16], (15, 15))),
        ([0], 2 * torch.eye(16).double(), ("basis", [16, 16])),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            hooks.prune_output_dims(it.model, dims, basis=basis)
    with torch.no_grad():
        it.model.blocks[0].mlp.W_in[0, 0] += 1
    with pytest.raises(ValueError, match=naming("interp.encoding.fit")):
        encoding.pruning_curve(it.model, it.batches, fit=it.fit, **QUIET)


def test_one_pass_equals_each_alone(toy):
    it = toy("gpt2")
    make = lambda: (  # noqa: E731
        PrunedPredictions(it.model, it.fit, ["spearman", "reverse"], "axis", [0, 0.2, 0.55], 0),
        MeanPredictions(it.model, [Variant()]),
    )
    together, alone = make(), make()
    observe(it.model, it.batches, *together, **QUIET)
    for observer in alone:
        observe(it.model, it.batches, observer, **QUIET)
    pd.testing.assert_frame_equal(together[0].table, alone[0].table, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(together[1].distributions, alone[1].distributions, rtol=1e-12)
    np.testing.assert_allclose(together[1].distributions[0], it.fit.alpha, rtol=1e-9)
    assert together[1].nll[0] == pytest.approx(np.log(together[0].table["perplexity"].iloc[0]), rel=1e-9)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_sample_of_positions(kind, toy):
    it = toy(kind)
    sample = corpora.batching.sample_positions(it.batches, 0.3, seed=1)
    chosen = []
    for whole, part in zip(it.batches, sample, strict=True):
        for name in ("tokens", "mask"):
            torch.testing.assert_close(getattr(part, name), getattr(whole, name))
        assert not (part.read & ~whole.read).any()
        torch.testing.assert_close(part.targets[part.read], whole.targets[part.read])
        chosen.append(part.read)
    for again in (sample, corpora.batching.sample_positions(it.batches, 0.3, seed=1)):
        assert all(torch.equal(a.read, b) for a, b in zip(again, chosen, strict=True))
    other = corpora.batching.sample_positions(it.batches, 0.3, seed=2)
    assert not all(torch.equal(a.read, b) for a, b in zip(other, chosen, strict=True))
    n, total = sum(int(read.sum()) for read in chosen), sum(batch.n_read for batch in it.batches)
    assert abs(n - 0.3 * total) < 4 * np.sqrt(0.21 * total)
    observer = MeanPredictions(it.model, [Variant()])
    observe(it.model, sample, observer, **QUIET)
    logits, targets, _ = predictions(it.hf, sample)
    np.testing.assert_allclose(observer.distributions[0], logits.softmax(-1).mean(0), rtol=1e-8)
    nll = torch.nn.functional.cross_entropy(logits[targets >= 0], targets[targets >= 0])
    assert observer.nll[0] == pytest.approx(float(nll), rel=1e-8)
    assert sum(batch.n_read for batch in corpora.batching.sample_positions(it.batches, 1)) == total
    for share in (0, 2, -0.5, float("nan")):
        with pytest.raises(ValueError, match=naming("share", 0, 1, share)):
            corpora.batching.sample_positions(it.batches, share)


@pytest.mark.parametrize("basis", ["axis", "pca"])
def test_text_of_a_pruned_model(basis, toy, texts):
    """Against transformers' greedy text with the dimensions removed from an untied output matrix."""
    it = toy("gpt2")
    prompts = interp.generation.prompts(it.model, texts, n=6, prompt_tokens=3, new_tokens=8)
    options = {"basis": basis, "fractions": [0, 0.3, 0.6], "order": "reverse"}
    curve = encoding.pruning_curve(it.model, it.batches, fit=it.fit, **options, **QUIET)
    table = encoding.writing.pruned_text(it.model, prompts, fit=it.fit, curve=curve, **QUIET)
    head, ranked = it.hf.get_output_embeddings(), encoding.pruning.removal_order(it.fit, "reverse", basis)
    axes = torch.eye(16, dtype=DOUBLE) if basis == "axis" else torch.from_numpy(it.fit.components)
    ids, kept = torch.from_numpy(prompts.ids), head.weight.detach().clone()
    found = []
    for n_dims in table["n_dims"]:
        gone = axes[ranked[:n_dims]]
        with torch.no_grad():
            head.weight.copy_(kept - kept @ gone.T @ gone)
            end = {"eos_token_id": it.model.tokenizer.eos_token_id, "pad_token_id": 0}
            new = it.hf.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False, **end)[:, 3:]
        found.append(new.tolist())
    for row, texts_of in zip(table.itertuples(), found, strict=True):
        assert row.agreement == pytest.approx((np.array(texts_of) == np.array(found[0])).mean())
        assert row.same_texts == np.mean([one == whole for one, whole in zip(texts_of, found[0], strict=True)])
        measures = interp.generation.text_metrics(texts_of)
        assert (row.diversity, row.n_tokens) == (pytest.approx(measures["diversity"]), measures["n_tokens"])
    assert table["agreement"][0] == 1 > table["agreement"][2]
    assert table["agreement_low"].isna().all()  # fewer than 20 prompts
    np.testing.assert_allclose(table["perplexity"], curve["perplexity"])


def test_types_on_principal_axes(toy):
    """Equal up to the sign, which scikit-learn may choose differently."""
    it = toy("gpt2")
    study = encoding.study(it.model, it.batches, orders=["random"], bases=["axis"], ratios=[2], **QUIET)
    E = array(it.hf.get_output_embeddings().weight)
    expected = PCA(2).fit_transform(E)
    found = study.types[["pc1", "pc2"]].to_numpy()
    np.testing.assert_allclose(found * np.sign((found * expected).sum(0)), expected, rtol=1e-7, atol=1e-9)
    drawn = interp.plots.embedding_scatter(study).data[0]
    order = np.argsort(it.fit.alpha, kind="stable")
    np.testing.assert_allclose(np.stack([drawn.x, drawn.y], 1), found[order], atol=1e-6)
    np.testing.assert_allclose(drawn.marker.color, np.log10(it.fit.alpha[order]), atol=1e-3)


# Steering.


@pytest.mark.parametrize("weights", ["least_norm", "weighted", "top"])
def test_weights_of_the_dimensions(weights, toy):
    fit = toy("gpt2").fit
    u = encoding.steering.steering_direction(fit, weights)
    np.testing.assert_allclose(u, oracle.steering_direction(fit.slope, weights), rtol=1e-12, atol=1e-15)
    assert u @ fit.slope == pytest.approx(1, abs=1e-12)


@pytest.mark.quick("llama")
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", YELP])
def test_steering_gives_what_the_report_says(kind, case):
    it = case(kind)
    batches = it.batches
    other = corpora.batches(it.model, it.rows[60:72] if kind == "yelp" else [f"w{i % 7} w{i % 31}" for i in range(99)])
    if kind == "bert":
        other = corpora.batches(it.model, [f"w{i % 7} w{i % 31} w{i % 5}" for i in range(99)], mask_rate=0.3)
    tokens = [300, 700] if kind == "yelp" else [8, 30, 55]
    ratios = [0.3, 4] if kind == "yelp" else [0.2, 1, 3]
    options = {"tokens": tokens, "ratios": ratios, "weights": ["least_norm", "weighted", "top"]}
    table = encoding.steering_report(it.model, it.fit, other=other, **options, **QUIET)
    assert len(table) == len(tokens) * len(ratios) * 5 * 2
    weight = it.hf.get_output_embeddings().weight
    recipes = {
        key: encoding.steer(it.model, *key[:2], it.fit, shift=key[2], **{"weights": key[3]} if key[3] else {}, **QUIET)
        for key in set(table[["token_id", "requested", "shift", "weights"]].itertuples(index=False, name=None))
    }
    for name, rows in (("fitted", batches), ("other", other)):
        plain = ours(it.model, rows)
        q = array(plain.softmax(-1).mean(0))
        for row in table[table["text"] == name].itertuples():
            logits = ours(it.model, rows, recipes[row.token_id, row.requested, row.shift, row.weights])
            change, rest = logits - plain, np.arange(len(q)) != row.token_id
            assert change[:, rest].abs().max() == 0
            steered = array(logits.softmax(-1).mean(0))
            assert row.achieved == pytest.approx(steered[row.token_id] / q[row.token_id], rel=1e-6)
            assert row.kl_others == pytest.approx(stats.entropy(q[rest], steered[rest]), rel=1e-4, abs=1e-10)
            assert row.alpha == pytest.approx(it.fit.alpha[row.token_id])
            if row.shift == "exact":
                assert float(change[:, row.token_id].std()) < 1e-9
                assert name == "other" or abs(np.log(row.achieved / row.requested)) < 0.01
            elif row.shift == "constant":
                torch.testing.assert_close(
                    change[:, row.token_id], torch.full_like(plain[:, 0], np.log(row.requested)), atol=1e-9, rtol=0
                )
            elif name == "fitted":  # the paper's edit, on an untied output embedding
                kept = weight[row.token_id].detach().clone()
                with torch.no_grad():
                    u = oracle.steering_direction(it.fit.slope, row.weights)
                    weight[row.token_id] -= np.log(row.requested) * torch.tensor(u)
                expected = predictions(it.hf, rows)[0].log_softmax(-1)
                weight.data[row.token_id] = kept
                tolerance = 1e-4 if kind in ROUGH else 1e-8
                torch.testing.assert_close(logits.log_softmax(-1), expected, atol=tolerance, rtol=0)


def test_a_constant_shift_is_nearly_right_on_a_trained_model(yelp):
    fit = encoding.fit(yelp.model, yelp.rows[:96], **QUIET)
    table = encoding.steering_report(yelp.model, fit, ratios=[1 / 5, 1 / 2, 2, 5], **QUIET)
    assert table["token_id"].nunique() == 15
    assert table["alpha"].max() < 0.05
    assert table["group"].value_counts().tolist() == [5 * 4 * 3] * 3
    error = np.log(table["achieved"] / table["requested"]).abs()
    median = error.groupby(table["shift"]).median()
    assert error[table["shift"] == "exact"].max() < 0.01
    assert median["constant"] < 0.10
    assert 0.8 < error[(table["shift"] == "regression") & (table["requested"] == 5)].median() < 1.6


def test_the_model_is_untouched(toy):
    it = toy("gpt2")
    before, plain = weight_hash(it.model), ours(it.model, it.batches)
    for shift in ("exact", "constant", "regression"):
        recipe = encoding.steer(it.model, "w3", 3, it.fit, shift=shift, **QUIET)
        assert (ours(it.model, it.batches, recipe) - plain).abs().max() > 0.1
        torch.testing.assert_close(ours(it.model, it.batches), plain, rtol=0, atol=0)
    assert weight_hash(it.model) == before
    assert not any(point.has_hooks() for point in it.model.hook_dict.values())


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_token_by_its_text(kind, toy):
    it = toy(kind)
    by_text, by_id = (encoding.steer(it.model, token, 2, it.fit, **QUIET) for token in ("w3", 10))
    torch.testing.assert_close(ours(it.model, it.batches, by_text), ours(it.model, it.batches, by_id))


@pytest.mark.parametrize("shift", ["exact", "constant", "regression"])
def test_steerings_that_are_refused(shift, toy):
    it = toy("gpt2")
    steer = lambda token, ratio: encoding.steer(it.model, token, ratio, it.fit, shift=shift, **QUIET)  # noqa: E731
    for ratio in (0, -2, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=naming("ratio", f"{ratio:g}")):
            steer(10, ratio)
    for mean in (1.001, 3):
        with pytest.raises(ValueError, match=naming("ratio", 1)):
            steer(10, mean / float(it.fit.alpha[10]))
    steer(10, 0.99 / float(it.fit.alpha[10]))
    for token in ("w0 w1", ""):
        with pytest.raises(ValueError, match=naming(repr(token))):
            steer(token, 2)
    for token in (67, -1):
        with pytest.raises(ValueError, match=naming(token, "vocabulary")):
            steer(token, 2)
    with torch.no_grad():
        it.model.blocks[1].attn.W_Q[0, 0, 0] += 1e-3
    with pytest.raises(ValueError, match=naming("interp.encoding.fit")):
        steer(10, 2)
    with pytest.raises(ValueError, match=naming("interp.encoding.fit")):
        encoding.steering_report(it.model, it.fit, **QUIET)


def test_a_word_that_the_tokenizer_does_not_know_is_refused(toy):
    it = toy("gpt2")
    with pytest.raises(ValueError, match=naming("zzz")):
        encoding.steer(it.model, "zzz", 2, it.fit, **QUIET)


# Directions.

B_LN = {
    "gpt2": "transformer.ln_f.bias",
    "yelp": "transformer.ln_f.bias",
    "gpt_neox": "gpt_neox.final_layer_norm.bias",
    "bert": "cls.predictions.transform.LayerNorm.bias",
}


@pytest.mark.filterwarnings("ignore:no (outlier dimensions|neurons|sink keys)")
@pytest.mark.parametrize("kind", ["gpt2", "bert", "gpt_neox", "llama", YELP])
def test_directions(kind, case):
    it = case(kind)
    E = array(it.hf.get_output_embeddings().weight)
    counts = np.random.default_rng(0).integers(0, 1000, len(E))
    if kind == "yelp":
        counts = np.bincount(it.rows.flatten().numpy(), minlength=1000)
    logits, _, inputs = predictions(it.hf, it.batches)
    mean = array(inputs.mean(0))
    vectors = {"b_LN": array(it.hf.get_parameter(B_LN[kind]))} if kind in B_LN else {}
    vectors |= {"-A": -oracle.least_squares(E, -np.log(array(logits.softmax(-1).mean(0))))[0], "E[h]": mean}
    vectors["unigram"] = oracle.least_squares(E[counts > 0], np.log(counts[counts > 0]))[0]
    first = PCA(svd_solver="full").fit(E).components_[0]
    vectors["PC1"] = first * np.sign(first @ vectors["-A"])
    table = directions.study(it.model, it.batches, unigram=counts, **QUIET).cosines
    units = {name: vector / np.linalg.norm(vector) for name, vector in vectors.items()}
    expected = {
        (row.name_a, row.name_b): units[row.name_a] @ units[row.name_b]
        for row in table.itertuples()
        if {row.name_a, row.name_b} <= set(units)
    }
    assert len(expected) == len(units) * (len(units) - 1) / 2
    found = table.set_index(["name_a", "name_b"]).loc[list(expected), "cosine"]
    np.testing.assert_allclose(found, list(expected.values()), atol=1e-3 if kind in ROUGH else 1e-7)


# Neurons.


@torch.no_grad()
def ablations(model, batches, neurons, counts, n_types, means_over=None):
    """Each neuron of the last MLP is set to its mean by a hook, in full forward passes."""
    layer = model.cfg.n_layers - 1
    post, scale = f"blocks.{layer}.mlp.hook_post", "ln_final.hook_scale"
    caches = [model.run_with_cache(batch.tokens, names_filter=[post, scale])[1] for batch in batches]
    read = zip(caches, batches if means_over is None else means_over, strict=True)
    mean = torch.cat([cache[post][batch.read] for cache, batch in read]).mean(0)
    log_u = torch.tensor(np.log((counts[:n_types] + 1) / (counts[:n_types] + 1).sum()))
    targets = torch.cat([batch.targets[batch.read] for batch in batches])
    loss, kl_unigram = partial(oracle.loss, targets=targets), partial(oracle.kl_to_unigram, log_u=log_u)

    def logits(neuron=None, frozen=False):
        def ablate(activation, hook):
            if neuron is not None:
                activation[..., neuron] = mean[neuron]
            return activation

        parts = []
        for batch, cache in zip(batches, caches, strict=True):
            hooked = [(post, ablate), *([(scale, lambda _, hook, c=cache: c[scale])] if frozen else [])]
            parts.append(model.run_with_hooks(batch.tokens, fwd_hooks=hooked)[batch.read][:, :n_types])
        return torch.cat(parts)

    plain, rows = logits(), []
    for neuron in neurons:
        live, frozen = logits(neuron), logits(neuron, frozen=True)
        without = oracle.without_frequency(live, plain, log_u)
        row = [measure(live) - measure(plain) for measure in (loss, oracle.entropy, kl_unigram)]
        row += [measure(frozen) - measure(plain) for measure in (loss, oracle.entropy)]
        rows.append([*row, loss(live) - loss(without), float(mean[neuron])])
    return pd.DataFrame(rows, columns=[*EFFECTS, "through_unigram", "mean_activation"])


@pytest.mark.quick("gpt2", "padded")
@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "llama", "gptj", "opt", "padded"])
def test_exact_neurons_are_ablations_in_the_full_model(kind, load_toy, padded, texts):
    model = interp.load(padded("gpt2"), dtype=DOUBLE) if kind == "padded" else load_toy(kind, dtype=DOUBLE)
    batches = prepared(model, texts[:14], kind, layout="texts")
    counts = np.random.default_rng(0).integers(0, 1000, model.cfg.d_vocab)
    counts[67:] = 0
    table = encoding.frequency_neurons(model, batches, unigram=counts, top=None, **QUIET)
    assert list(table["neuron"]) == list(range(64))
    assert table["exact"].all()
    assert (table["layer"] == 1).all()
    neurons = [0, 3, 21, 40, 63]
    expected = ablations(model, batches, neurons, counts, 67)
    for name in expected:
        np.testing.assert_allclose(table[name][neurons], expected[name], atol=1e-8, rtol=0, err_msg=name)
        assert expected[name].abs().max() > 1e-5
    w, norm, W_U = array(model.blocks[1].mlp.W_out), model.ln_final, array(model.W_U)[:, :67]
    w = (w if kind == "llama" else w - w.mean(1, keepdims=True)) * array(norm.w)
    np.testing.assert_allclose(table["w_out_norm"], np.linalg.norm(w, axis=1), rtol=1e-9)
    cosines = w @ W_U / np.linalg.norm(w, axis=1)[:, None] / np.linalg.norm(W_U, axis=0)
    np.testing.assert_allclose(table["logit_var"], cosines.var(1), rtol=1e-7)


def test_a_screen_is_nearly_right_and_its_top_is_exact(yelp):
    counts = np.bincount(yelp.rows.flatten().numpy(), minlength=1000)
    options = {"unigram": counts, **QUIET}
    exact = encoding.frequency_neurons(yelp.model, yelp.rows[:2], top=None, **options)
    screen = encoding.frequency_neurons(yelp.model, yelp.rows[:2], top=12, **options)
    assert list(screen["neuron"]) == list(exact["neuron"]) == list(range(512))
    assert screen["exact"].sum() == 12
    top = screen["exact"].to_numpy()
    for name in [*EFFECTS, "through_unigram"]:
        np.testing.assert_allclose(screen[name][top], exact[name][top], rtol=1e-6, atol=1e-10)
    assert screen["through_unigram"][~top].isna().all()
    for name in EFFECTS:
        small = ~top & (exact[name].abs() < exact[name].abs().quantile(0.9))
        correlation = np.corrcoef(screen[name][small], exact[name][small])[0, 1]
        assert correlation > 0.99, (name, correlation)
    ranks = np.maximum(exact["delta_loss"].abs().rank(), exact["delta_entropy"].abs().rank())
    assert ranks[top].min() > 490


def test_neurons_on_a_share_of_the_positions(load_toy, texts):
    """Effects are averages over a sample of the positions, and means over all positions."""
    model, counts = load_toy("gpt2", dtype=DOUBLE), np.arange(67)
    batches = corpora.batches(model, texts[:12], layout="texts")
    options = {"unigram": counts, "top": None, "share": 0.3, **QUIET}
    table = encoding.frequency_neurons(model, batches, seed=5, **options)
    sample = corpora.batching.sample_positions(batches, 0.3, seed=5)
    expected = ablations(model, sample, [0, 21, 40], counts, 67, means_over=batches)
    for name in expected:
        np.testing.assert_allclose(table[name][[0, 21, 40]], expected[name], atol=1e-8, rtol=0, err_msg=name)
    pd.testing.assert_frame_equal(encoding.frequency_neurons(model, batches, seed=5, **options), table)
    other = encoding.frequency_neurons(model, batches, seed=6, **options)
    assert (other["delta_loss"] - table["delta_loss"]).abs().max() > 1e-6


def test_batches_without_a_sampled_position(load_toy, texts):
    """A screen, after which every neuron is measured exactly."""
    model, counts = load_toy("gpt2", dtype=DOUBLE), np.arange(67)
    batches = corpora.batches(model, texts[:12], layout="texts", batch_size=1)
    table = encoding.frequency_neurons(model, batches, unigram=counts, top=64, share=0.05, **QUIET)
    sample = corpora.batching.sample_positions(batches, 0.05, seed=0)
    assert 0 < sum(bool(batch.read.any()) for batch in sample) < 12
    expected = ablations(model, sample, [0, 21, 40], counts, 67, means_over=batches)
    for name in expected:
        np.testing.assert_allclose(table[name][[0, 21, 40]], expected[name], atol=1e-8, rtol=0, err_msg=name)


def test_the_screen_is_right_to_second_order(load_toy, texts):
    """With a hundredth of the output weights, the error is of third order: about 1e-6 of the effect."""
    model = load_toy("gpt2", dtype=DOUBLE)
    with torch.no_grad():
        model.blocks[1].mlp.W_out *= 0.01
    options = {"unigram": np.arange(67), **QUIET}
    exact = encoding.frequency_neurons(model, texts, top=None, **options)
    screen = encoding.frequency_neurons(model, texts, top=1, **options)
    for name in EFFECTS:
        error, size = (screen[name] - exact[name]).abs().max(), exact[name].abs().max()
        assert error < 1e-5 * size, (name, error, size)


def test_models_without_such_neurons(load_toy, texts):
    with pytest.raises(ValueError, match=naming("BERT")):
        encoding.frequency_neurons(load_toy("bert"), texts, unigram=np.ones(67, int), **QUIET)
    tokens = torch.randint(67, (4, 12), generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=naming("MLP")):
        encoding.frequency_neurons(bare(67, attn_only=True), tokens, unigram=np.ones(67, int), **QUIET)
    with pytest.raises(ValueError, match=naming("counts", 66, 67)):
        encoding.frequency_neurons(load_toy("gpt2"), texts, unigram=np.ones(66, int), **QUIET)
    with pytest.raises(ValueError, match=naming("share", 2)):
        encoding.frequency_neurons(load_toy("gpt2"), texts, unigram=np.ones(67, int), share=2, **QUIET)


# Dynamics.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a few steps, of which steps 0, 2 and 10 are kept."""
    options = {**TINY, "tokens": 3000, "n_layers": 1, "vocab_size": 300, "checkpoints": [0, 2, 10]}
    return train("gpt2", Texts(TEXTS, HELD_OUT), out=tmp_path_factory.mktemp("run") / "out", **options, **QUIET)


@pytest.mark.slow
def test_dynamics_are_those_of_each_checkpoint(run):
    last = interp.load(run)
    counts = corpora.count_unigrams(last, TEXTS)
    table = encoding.dynamics(encoding.training.checkpoints(run), HELD_OUT, unigram=counts, **QUIET)
    assert list(table["step"]) == [0, 2, 10]
    u = counts.distribution
    seen = u > 0
    for row in table.itertuples():
        hf = transformers_model(run / f"checkpoints/step-{row.step}")
        logits, targets, _ = predictions(hf, corpora.batches(last, HELD_OUT))
        q, E = array(logits.softmax(-1).mean(0)), array(hf.lm_head.weight)
        assert row.adj_r2 == pytest.approx(oracle.least_squares(E, -np.log(q))[3], abs=1e-4)
        assert row.kl_unigram_model == pytest.approx((u[seen] * np.log(u[seen] / q[seen])).sum(), rel=1e-4)
        loss = torch.nn.functional.cross_entropy(logits[targets >= 0], targets[targets >= 0])
        assert row.loss == pytest.approx(float(loss), rel=1e-4)
        bias = array(hf.transformer.ln_f.bias)
        if row.step == 0:
            assert not bias.any()
            assert np.isnan(row.spearman)
        else:
            expected = stats.spearmanr((E @ bias)[seen], u[seen]).statistic
            assert row.spearman == pytest.approx(expected, abs=1e-3)
    assert table["loss"].is_monotonic_decreasing
    some = encoding.dynamics(encoding.training.checkpoints(run, [2, 10]), HELD_OUT, unigram=counts, **QUIET)
    pd.testing.assert_frame_equal(some, table.iloc[1:].reset_index(drop=True))
    [(step, model)] = encoding.training.checkpoints(run, [2])
    by_hand = encoding.dynamics([(step, model)], HELD_OUT, unigram=counts, **QUIET)
    pd.testing.assert_frame_equal(by_hand, some.iloc[:1])


@pytest.mark.slow
def test_a_study_of_steps(run):
    """The dynamics of the requested steps, on the text as the study reads it."""
    model, counts = interp.load(run), Unigrams(np.arange(1, 301), "rising")
    options = {"orders": ["random"], "bases": ["axis"], "shifts": ["constant"], "ratios": [2], "unigram": counts}
    text = {"bos": True, "context": 16}
    found = encoding.study(model, HELD_OUT, **options, **text, steps=[10, 2], **QUIET).dynamics
    kept = encoding.training.checkpoints(run, [2, 10])
    expected = encoding.dynamics(kept, HELD_OUT, unigram=counts, settings=text, **QUIET)
    pd.testing.assert_frame_equal(found, expected)
    [(_, last)] = encoding.training.checkpoints(run, [10])
    effect = interp.frequency.study(last, HELD_OUT, unigram=counts, scales=[1], biases=["ln"], **text, **QUIET)
    assert found["kl_unigram_model"][1] == pytest.approx(effect.kl["kl_unigram_model"][0], rel=1e-6)
    with pytest.raises(FileNotFoundError, match=naming("0, 2, 10", 3)):
        encoding.study(model, HELD_OUT, **options, steps=[3], **QUIET)
    with pytest.raises(ValueError, match=naming("checkpoints", "text")):
        encoding.study(model, torch.arange(40).view(2, 20), **options, steps=[2], **QUIET)


def test_dynamics_that_are_refused(run, hf_directory):
    counts = Unigrams(np.ones(300, int), "ones")
    with pytest.raises(FileNotFoundError, match=naming("checkpoints/step-N")):
        list(encoding.training.checkpoints(hf_directory("gpt2")))
    with pytest.raises(FileNotFoundError, match=naming("0, 2, 10", 3)):
        list(encoding.training.checkpoints(run, [2, 3]))
    with pytest.raises(ValueError, match=naming("steps")):
        list(encoding.training.checkpoints("pythia-70m"))
    with pytest.raises(ValueError, match=naming("checkpoint", "(step, model)")):
        encoding.dynamics([], HELD_OUT, unigram=counts, **QUIET)
    with pytest.raises(ValueError, match=naming("counts", 299, 300)):
        encoding.dynamics(
            encoding.training.checkpoints(run), HELD_OUT, unigram=Unigrams(np.ones(299, int), "ones"), **QUIET
        )


def arrays(d=20, n=500, seed=0):
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(d, n))
    alpha = np.exp(W.T @ rng.normal(size=d) * 0.3 + rng.normal(size=n))
    return W, alpha / alpha.sum()


def test_dimensions_that_follow_from_others_do_not_count():
    """Against scikit-learn's R² and the adjustment by hand, with the rank of the embeddings."""
    from sklearn.linear_model import LinearRegression

    W, alpha = arrays()
    whole = regression.fit_arrays(W, alpha)
    assert (whole.rank, whole.n_dims) == (20, 20)
    deficient = regression.fit_arrays(np.concatenate([W, W[:10] * 2, W[:3] + W[3:6], np.ones((1, 500))]), alpha)
    assert (deficient.rank, deficient.n_dims) == (20, 34)
    r2 = LinearRegression().fit(W.T, -np.log(alpha)).score(W.T, -np.log(alpha))
    few = regression.fit_arrays(np.concatenate([W[:5, :20]] * 6), alpha[:20])
    assert (few.rank, few.n_types) == (5, 20), "fewer types than dimensions, but more than independent dimensions"
    for found in (whole, deficient):
        assert found.r2 == pytest.approx(r2, abs=1e-12)
        assert found.adj_r2 == pytest.approx(1 - (1 - r2) * 499 / 479, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-20, 1e20, 1e200, 1e307])
def test_the_unit_of_the_embeddings_does_not_matter(scale):
    W, alpha = arrays()
    one, other = regression.fit_arrays(W, alpha), regression.fit_arrays(W * scale, alpha)
    np.testing.assert_allclose(other.slope * scale, one.slope, rtol=1e-10)
    assert (other.r2, other.adj_r2, other.intercept, other.rank) == pytest.approx(
        (one.r2, one.adj_r2, one.intercept, one.rank), rel=1e-11
    )


def test_fits_of_nothing_are_refused():
    W, alpha = arrays()
    for embeddings, probabilities, values in (
        (W, np.full(500, 0.002), ("alpha", "type")),
        (np.ones_like(W), alpha, ("embeddings", "types")),
        (W * 1e-310, alpha, ("slope", "float64")),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            regression.fit_arrays(embeddings, probabilities)
