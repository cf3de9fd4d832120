"""What goes beyond construction: the theory without a fit, untrained twins and random orders, against brute force."""

import numpy as np
import pytest
import torch
from oracles import encoding as oracle
from oracles.intervals import half_width, pseudo_values
from scipy import stats
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from interp import corpora, encoding, models
from interp.analyses.encoding.findings import as_untrained, beyond_theory
from interp.analyses.encoding.pruning import Agreements, curve_positions, random_orders
from interp.analyses.encoding.theory import LogProbabilities
from interp.analyses.encoding.twins import ScaledPredictions, twin_rows, why_no_twin
from interp.instruments.validation import folds
from interp.models.sites import hook_name
from interp.passes.reading import observe
from interp.testing import assert_observer_merges, toy_decoder

IDS = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def log_probabilities(model, rows=slice(None), scale=1.0):
    return (scale * model(IDS[rows])).log_softmax(-1).flatten(0, 1).numpy()


def predictions(model, rows=slice(None)):
    """−log α, and what predicts it: the fit on other types, and the theory to first and to second order."""
    log_p = log_probabilities(model, rows)
    y, E = -np.log(np.exp(log_p).mean(0)), model.W_U.detach().numpy().T
    fitted = cross_val_predict(LinearRegression(), E, y, cv=PredefinedSplit(folds(len(y))))
    return y, np.stack([fitted, *oracle.theory(log_p)])


def r2s(model, rows=slice(None)):
    y, predicted = predictions(model, rows)
    return np.array([oracle.r_squared(y, each) for each in predicted])


def test_theory_is_that_of_all_positions(load_toy):
    model = load_toy("gpt2").double()
    table = encoding.fit(model, IDS, progress=False).theory.set_index("predictor")
    (y, predicted), whole = predictions(model), r2s(model)
    without = np.stack([r2s(model, [row for row in range(40) if row // 2 != group]) for group in range(20)])
    around = (y - y.mean()) ** 2
    for number, name in enumerate(("fit", "first order", "second order")):
        line = stats.linregress(predicted[number], y)
        row = table.loc[name]
        assert row[["r2", "corr2", "slope"]].tolist() == pytest.approx([whole[number], line.rvalue**2, line.slope])
        for column, of, squares in (
            ("r2", lambda r2, at: r2[..., at], (y - predicted[number]) ** 2),
            ("beyond", lambda r2, at: r2[..., 0] - r2[..., at], (y - predicted[0]) ** 2 - (y - predicted[number]) ** 2),
        ):
            if (name, column) == ("fit", "beyond"):
                assert np.isnan(row["beyond"])
                continue
            pseudo = pseudo_values(of(whole, number), of(without, number))
            half = half_width(pseudo)
            influence = (squares - squares.sum() / around.sum() * around) / around.mean()
            half = np.hypot(half, stats.norm.ppf(0.975) * stats.sem(influence))
            assert row[column] == pytest.approx(of(whole, number))
            assert row[f"{column}_corrected"] == pytest.approx(pseudo.mean())
            assert row[f"{column}_high"] - row[f"{column}_corrected"] == pytest.approx(half, rel=1e-6)
            assert row[f"{column}_corrected"] - row[f"{column}_low"] == pytest.approx(half, rel=1e-6)
    assert table["median_variance"].iloc[0] == pytest.approx(np.median(log_probabilities(model).var(0)))


def test_theory_of_a_single_text(load_toy):
    table = encoding.fit(load_toy("gpt2").double(), IDS.reshape(20, 24)[:8], progress=False).theory
    assert table.filter(regex="_(low|high|corrected)$").isna().all(axis=None)
    assert table["r2"].notna().all()


def test_theory_of_predictions_too_small_for_float32(load_toy):
    model = load_toy("gpt2")
    model.W_U.data *= 40
    first = encoding.fit(model, IDS, progress=False).theory.set_index("predictor").loc["first order"]
    assert first["r2"] == pytest.approx(r2s(model.double())[1], rel=1e-4)


def test_observers_merge(load_toy, texts):
    assert_observer_merges(LogProbabilities, load_toy("gpt2"), texts)
    assert_observer_merges(lambda model: ScaledPredictions(model, 3.0), load_toy("gpt2"), texts)
    assert_observer_merges(lambda model: Agreements(model, [[0, 3], [5]]), load_toy("gpt2"), texts)


def test_a_twin_has_the_spread_of_the_model():
    model = toy_decoder(dtype=torch.float64)
    fit = encoding.fit(model, IDS, progress=False)
    (row,) = twin_rows(model, fit, seeds=[5], progress=False).to_dict("records")
    twin = models.untrained(model, seed=5)
    y = -np.log(np.exp(log_probabilities(twin, scale=row["logit_scale"])).mean(0))
    assert row["spread"] == pytest.approx(y.std())
    assert row["spread"] == pytest.approx(fit.regression["spread"][0], rel=0.01)
    E = twin.W_U.detach().numpy().T
    unseen = cross_val_predict(LinearRegression(), E, y, cv=PredefinedSplit(folds(67)))
    assert row["cv_r2"] == pytest.approx(1 - ((y - unseen) ** 2).sum() / ((y - y.mean()) ** 2).sum())
    assert row["r2"] == pytest.approx(LinearRegression().fit(E, y).score(E, y))


def test_a_twin_whose_spread_cannot_be_reached_has_no_r2(monkeypatch):
    model = toy_decoder()
    fit = encoding.fit(model, IDS, progress=False)
    monkeypatch.setattr("interp.analyses.encoding.twins.MOST_PASSES", 1)
    rows = twin_rows(model, fit, progress=False)
    assert rows[["r2", "adj_r2", "cv_r2"]].isna().all(axis=None)
    assert [one.verdict for one in as_untrained(rows, fit.theory)] != ["yes"]


def test_a_model_without_a_twin_says_why(monkeypatch):
    model = toy_decoder()
    assert why_no_twin(model) is None
    monkeypatch.setattr("interp.analyses.encoding.tables.why_no_twin", lambda model: "there is none")
    small = {"orders": ["random"], "bases": ["pca"], "ratios": [2.0], "unigram": np.arange(67), "progress": False}
    with pytest.warns(UserWarning, match="there is none"):
        study = encoding.study(model, IDS, untrained=True, **small)
    assert study.provenance["left_out"] == {"encoding: untrained models": "there is none"}
    assert study.regression["target"].tolist() == ["-log alpha", "shuffled"]
    assert study.random_orders.empty


def planted():
    """A toy whose predictions vary between two poles, by as much for all types, around a bias that sets α. So −log α
    is linear in the embeddings, but neither because predictions vary little, nor as a random head would have it."""
    model = toy_decoder()
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "blocks" in name or "pos_embed" in name or "b_U" in name:
                parameter.zero_()
        pole = torch.zeros(16)
        pole[0], pole[1] = 1, -1
        sign = torch.randint(0, 2, (67, 1), generator=rng) * 2.0 - 1
        model.embed.W_E.copy_(sign * pole)
        model.ln_final.w.zero_()
        model.ln_final.w[:2] = 1
        model.ln_final.b.copy_(torch.cat([torch.zeros(2), torch.ones(14)]))
        model.W_U.copy_(0.4 * torch.randn(16, 67, generator=rng))
        side = torch.randint(0, 2, (67,), generator=rng) * 2.0 - 1
        model.W_U[0], model.W_U[1] = 0.7 * side, -0.7 * side
    return model


def test_linear_encoding_that_no_construction_gives_is_found():
    model = planted()
    fit = encoding.fit(model, IDS, progress=False)
    twins = twin_rows(model, fit, progress=False)
    assert fit.theory["median_variance"].iloc[0] > 5
    assert beyond_theory(fit.theory).verdict == "yes"
    assert [one.verdict for one in as_untrained(twins, fit.theory)] == ["yes"]


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_agreement_without_some_dimensions(kind, load_toy):
    model = load_toy(kind).double()
    text = corpora.batches(model, IDS, **({"mask_rate": 0.5} if kind == "bert" else {}))
    sets = [[0, 3, 7], list(range(9)), []]
    found = Agreements(model, sets)
    observe(model, text, found, progress=False)
    same, n = np.zeros((20, 3)), np.zeros(20)
    for batch in text:
        stretches = (batch.stretches // 2)[:, None].expand(batch.read.shape)[batch.read].numpy()
        with torch.no_grad():
            best = batch.select(model(batch.tokens)).argmax(-1)
            for number, dims in enumerate(sets):
                cut = [
                    (
                        hook_name(model, "head_input"),
                        lambda h, hook, dims=dims: h.index_fill(-1, torch.tensor(dims, dtype=torch.long), 0),
                    )
                ]
                kept = batch.select(model.run_with_hooks(batch.tokens, fwd_hooks=cut)).argmax(-1)
                np.add.at(same[:, number], stretches, (kept == best).numpy())
        np.add.at(n, stretches, 1)
    table = found.table
    np.testing.assert_allclose(table["top1_agreement"], same.sum(0) / n.sum())
    without = (same.sum(0) - same) / (n.sum() - n)[:, None]
    agreement = same.sum(0)[:2] / n.sum()
    half = half_width(pseudo_values(agreement, without[:, :2]))
    np.testing.assert_allclose(table["top1_agreement_high"][:2], (agreement + half).clip(max=1))
    assert table["n_positions"].tolist() == [n.sum()] * 3


def test_random_orders_are_beside_the_curve(load_toy):
    model = load_toy("gpt2")
    fit = encoding.fit(model, IDS, progress=False)
    observer, table = random_orders(model, fit, seed=0)
    observe(model, fit.batches, observer, progress=False)
    curve = encoding.pruning_curve(model, fit.batches, fit=fit, order="spearman", fractions=[0.3], progress=False)
    assert table["n_dims"].unique().tolist() == curve["n_dims"].tolist() == [5]
    columns = ["top1_agreement", "top1_agreement_low", "top1_agreement_high"]
    np.testing.assert_allclose(observer.table.loc[0, columns], curve.loc[0, columns].astype(float))
    assert table["order"].tolist() == ["spearman"] + ["random"] * 39
    assert len({tuple(dims) for dims in observer.sets}) == 40


@pytest.mark.parametrize(("d_vocab", "n_positions"), [(8, 5_000), (4_096, 5_000), (49_152, 1_365), (262_144, 500)])
def test_pruning_reads_fewer_positions_of_a_large_vocabulary(d_vocab, n_positions):
    assert curve_positions(d_vocab) == n_positions


@pytest.mark.parametrize(("irrelevant", "verdicts"), [(6, ["yes", "yes"]), (0, ["no", "cannot tell"])])
def test_dimensions_that_do_nothing_can_be_removed(irrelevant, verdicts):
    """Rows of W_U that are small noise correlate with −log α by chance alone, and the others share what b_LN adds."""
    model = toy_decoder()
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.ln_final.b.fill_(0.1)
        model.W_U.copy_(0.5 * torch.randn(67, generator=rng) + 0.3 * torch.randn(16, 67, generator=rng))
        model.W_U[16 - irrelevant :] = 1e-4 * torch.randn(irrelevant, 67, generator=rng)
    options = {"orders": ["spearman"], "bases": ["axis"], "ratios": [2.0], "unigram": np.arange(67), "progress": False}
    study = encoding.study(model, IDS, **options)
    found = {finding.question: finding.verdict for finding in study.findings}
    questions = [
        "Can 30% of the output dimensions be removed?",
        "Does removing 30% in this order change less than in a random one?",
    ]
    assert [found[question] for question in questions] == verdicts
    assert (study.removable["95%"].item() >= 0.3) == (irrelevant > 0)
