"""Outlier dimensions and ablation, against transformers with the weight edited, scipy and numpy."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from naming import naming
from oracles import attention as oracle
from scipy import stats
from toys import every_table

import interp
from interp import attention, corpora, hooks, plots
from interp.analyses.attention.ablation import KeyAblation
from interp.instruments.profile import DimensionCorrelations, DimensionProfile, find_outliers, outlier_counts
from interp.passes.reading import observe

KINDS = ["bert", "gpt2", "gpt_neox", "gptj", "gpt_neo", "llama"]
DOUBLE = torch.float64


def transformers_model(directory, kind):
    make = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    return make.from_pretrained(directory, attn_implementation="eager").to(DOUBLE).eval()


def classes_of(model):
    return corpora.token_classes(model, {"a": [7, 8], "b": [9, 10, 11]})


def key_weight(hf, kind, layer, which):
    """The part of a transformers weight that computes keys or queries, `[rows, d_model]`."""
    if kind == "bert":
        attn = hf.bert.encoder.layer[layer].attention.self
        return (attn.key if which == "keys" else attn.query).weight
    if kind == "gpt2":
        weight = hf.transformer.h[layer].attn.c_attn.weight
        return weight.T[16:32] if which == "keys" else weight.T[:16]
    if kind == "llama":
        attn = hf.model.layers[layer].self_attn
        return (attn.k_proj if which == "keys" else attn.q_proj).weight
    weight = hf.gpt_neox.layers[layer].attention.query_key_value.weight.view(4, 3, 4, 16)
    return weight[:, 1 if which == "keys" else 0]


@pytest.mark.parametrize("which", ["keys", "queries"])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "gpt_neox", "llama"])
def test_ablating_keys_is_zeroing_rows_of_the_weight(kind, which, hf_directory, load_toy):
    model, hf = load_toy(kind, dtype=DOUBLE), transformers_model(hf_directory(kind), kind)
    tokens = torch.randint(7, 67, (2, 12), generator=torch.Generator().manual_seed(0))
    plain = hf(tokens).logits
    with torch.no_grad():
        key_weight(hf, kind, 1, which)[..., [3, 9]] = 0
    with model.hooks(fwd_hooks=hooks.ablate_dims(model, 1, [3, 9], where=which)):
        ours = model(tokens)
    expected = hf(tokens).logits
    assert (expected - plain).abs().max() > 1e-3, "the edit changes something"
    torch.testing.assert_close(ours.log_softmax(-1), expected.log_softmax(-1), atol=1e-5, rtol=0)
    split = hooks.ablate_dims(model, 1, [3], where=which) + hooks.ablate_dims(model, 1, [9], where=which)
    with model.hooks(fwd_hooks=split):
        torch.testing.assert_close(model(tokens), ours)


def test_mean_ablation_of_keys_is_a_constant_in_the_bias(hf_directory, load_toy):
    model, hf = load_toy("bert", dtype=DOUBLE), transformers_model(hf_directory("bert"), "bert")
    tokens = torch.randint(7, 67, (2, 12), generator=torch.Generator().manual_seed(0))
    means = torch.linspace(-1, 1, 16, dtype=DOUBLE)
    key = hf.bert.encoder.layer[0].attention.self.key
    with torch.no_grad():
        key.bias += means[5] * key.weight[:, 5]
        key.weight[:, 5] = 0
    with model.hooks(fwd_hooks=hooks.ablate_dims(model, 0, [5], where="keys", mode="mean", means=means)):
        torch.testing.assert_close(model(tokens).log_softmax(-1), hf(tokens).logits.log_softmax(-1))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_ablating_the_residual_stream(kind, hf_directory, load_toy):
    model, hf = load_toy(kind, dtype=DOUBLE), transformers_model(hf_directory(kind), kind)
    tokens = torch.randint(7, 67, (2, 12), generator=torch.Generator().manual_seed(0))
    block = hf.bert.encoder.layer[1] if kind == "bert" else hf.transformer.h[1]

    def zero(module, arguments):
        edited = arguments[0].clone()
        edited[..., [2, 4]] = 0
        return (edited, *arguments[1:])

    block.register_forward_pre_hook(zero)
    with model.hooks(fwd_hooks=hooks.ablate_dims(model, 1, [2, 4], where="residual")):
        torch.testing.assert_close(model(tokens).log_softmax(-1), hf(tokens).logits.log_softmax(-1))


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"layer": 2, "dims": [0]}, ("layer", "0 … 1", 2)),
        ({"layer": 0, "dims": [16]}, ("dims", "0 … 15", [16])),
        ({"layer": 0, "dims": [1, 1]}, ("dims", [1, 1])),
        ({"layer": 0, "dims": [1], "mode": "mean"}, ("mode='mean'", "means=")),
        ({"layer": 0, "dims": [1], "means": torch.zeros(16)}, ("mode='zero'", "means")),
        ({"layer": 0, "dims": [1], "mode": "mean", "means": torch.zeros(15)}, ("means", [16], (15,))),
    ],
)
def test_bad_ablations(options, values, load_toy):
    layer, dims = options.pop("layer"), options.pop("dims")
    with pytest.raises(ValueError, match=naming(*values)):
        hooks.ablate_dims(load_toy("gpt2"), layer, dims, where="keys", **options)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_profile_is_that_of_hidden_states(kind, hf_directory, load_toy, texts):
    model, hf = load_toy(kind, dtype=DOUBLE), transformers_model(hf_directory(kind), kind)
    classes = classes_of(model)
    batches = corpora.batches(model, texts, layout="texts", batch_size=1)
    assert any(not (classes(batch.tokens) == 1).any() for batch in batches), "no token of a class in some batch"
    table = attention.dimension_profile(model, batches, key_classes=classes, progress=False)
    found = []
    for batch in batches:
        states = hf(batch.tokens, attention_mask=batch.mask, output_hidden_states=True).hidden_states
        real = batch.mask.bool()
        found.append((torch.stack(states)[:, real], classes(batch.tokens)[real]))
    states = torch.cat([state for state, _ in found], 1).detach().numpy()
    numbers = torch.cat([number for _, number in found]).numpy()
    last = len(states) - (kind == "gpt2")  # transformers applies the final norm to the last state of a causal model
    for state in range(last):
        for number, name in [*enumerate(classes.names), (None, "all")]:
            values = states[state] if number is None else states[state][numbers == number]
            rows = table[(table["state"] == state) & (table["key_class"] == name)]
            np.testing.assert_allclose(rows["mean"], values.mean(0), atol=1e-6)
            np.testing.assert_allclose(rows["sd"], values.std(0), atol=1e-6)
            np.testing.assert_allclose(rows["max_abs"], np.abs(values).max(0), atol=1e-6)
            assert (rows["n_tokens"] == len(values)).all()


def profile_of(means):
    """A profile of states and dimensions, with a row for another class that must not count."""
    rows = [(state, dim, "all", mean) for state, of_state in enumerate(means) for dim, mean in enumerate(of_state)]
    return pd.DataFrame([*rows, (0, 5, "other", 99.0)], columns=["state", "dim", "key_class", "mean"])


def test_outliers_by_hand():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(3, 100)) * 0.1
    means[:, 7] = [2, 2, -2]
    means[1, 30] = -1.5
    z = np.array([oracle.z(x) for x in means])
    robust = np.array([oracle.robust_z(x) for x in means])
    for rule, score, k in (("sd", z, 3), ("robust", robust, stats.norm.isf(0.05 / 200)), ("robust", robust, 2.5)):
        given = {"k": k} if k == 2.5 else {}
        found = find_outliers(profile_of(means), rule=rule, **given)
        expected = {(int(s), int(d)) for s, d in np.argwhere(np.abs(score) > k)}
        assert set(zip(found["state"], found["dim"], strict=True)) == expected >= {(0, 7), (1, 7), (2, 7), (1, 30)}
        assert found["dim"].iloc[0] == 7
        assert (found["rank"].iloc[0], found["n_states"].iloc[0]) == (1, 3)
        for row in found.itertuples():
            assert (row.z, row.robust_z) == pytest.approx((z[row.state, row.dim], robust[row.state, row.dim]))
        counts = outlier_counts(profile_of(means), rule=rule, **given).query(f"rule == '{rule}'")
        assert counts["n_outliers"].tolist() == [sum(state == one for one, _ in expected) for state in range(3)]
        assert counts["k"].tolist() == pytest.approx([k] * 3)
        assert counts["in_noise"].tolist() == pytest.approx([oracle.in_noise(100, k)] * 3)


@pytest.mark.parametrize("seed", range(5))
def test_a_large_outlier_hides_others_only_from_the_sd(seed):
    means = np.random.default_rng(seed).normal(size=(1, 768)) * 0.05
    means[0, [10, 20, 30]] = [100, 3, -2]
    found = {rule: find_outliers(profile_of(means), rule=rule) for rule in ("robust", "sd")}
    assert found["robust"].groupby("dim")["robust_z"].first().abs().nlargest(3).index.tolist() == [10, 20, 30]
    assert len(found["robust"]) <= 4
    assert found["sd"]["dim"].tolist() == [10]


def test_rules_on_noise():
    """Over 600 states, each rule finds as much as is documented, with centre and spread from the same numbers."""
    means = np.random.default_rng(0).normal(size=(600, 768))
    counts = outlier_counts(profile_of(means))
    found, said = (counts.groupby("rule")[name].mean() for name in ("n_outliers", "in_noise"))
    assert said["robust"] == pytest.approx(0.05)
    assert found["robust"] == pytest.approx(0.067, abs=0.035)
    assert said["sd"] == pytest.approx(2.074, abs=0.001)
    assert found["sd"] == pytest.approx(2.043, abs=0.2)


def test_states_without_spread_have_outliers_only_where_something_sticks_out():
    means = np.zeros((3, 40))
    means[1, 3] = 1.0  # the MAD is 0
    means[2, :] = 7.0
    found = find_outliers(profile_of(means))
    assert (found["state"].tolist(), found["dim"].tolist()) == ([1], [3])
    assert found["robust_z"].item() == pytest.approx(40 / 1.2533)


@pytest.mark.parametrize("kind", KINDS)
def test_key_ablation_in_one_pass_is_the_recipe(kind, load_toy, texts):
    model = load_toy(kind, dtype=DOUBLE)
    classes = classes_of(model)
    batches = corpora.batches(model, texts, layout="texts")
    means = torch.linspace(-1000, 1000, 16, dtype=DOUBLE)  # changes scores by hundreds
    observer = KeyAblation(model, classes, {0: {2: 0.0, 5: 0.0}, 1: {5: float(means[5])}})
    observe(model, batches, observer, progress=False)
    for layer, position, dim, mode in ((0, 0, 2, "zero"), (0, 1, 5, "zero"), (1, 0, 5, "mean")):
        given = means if mode == "mean" else None
        with model.hooks(fwd_hooks=hooks.ablate_dims(model, layer, [dim], where="keys", mode=mode, means=given)):
            table = attention.attention_by_class(model, batches, layers=[layer], key_classes=classes, progress=False)
        expected = table.pivot(index="head", columns="key_class", values="sum")[list(classes.names)].to_numpy()
        np.testing.assert_allclose(observer.after(layer)[position], expected, atol=1e-9)
        assert np.abs(observer.after(layer)[position] - observer.before(layer)).max() > 1e-6


@pytest.mark.quick("gpt2")
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_correlations_are_pearsons(kind, load_toy, texts):
    model = load_toy(kind, dtype=DOUBLE)
    log_u = torch.linspace(-9, -1, 67, dtype=DOUBLE)
    batches = corpora.batches(model, texts, layout="texts", batch_size=1)
    observer = DimensionCorrelations(model, log_u)
    observe(model, batches, observer, progress=False)
    x, frequency, received = [], [], []
    for batch in batches:
        _, cache = model.run_with_cache(batch.tokens)
        name = "blocks.1.hook_resid_pre" if kind == "bert" else "blocks.1.ln1.hook_normalized"
        value = cache[name][0]
        x.append(value if kind == "bert" else value * model.blocks[1].ln1.w + model.blocks[1].ln1.b)
        frequency.append(log_u[batch.tokens[0]])
        pattern = cache["blocks.1.attn.hook_pattern"][0].mean(0)
        viewers = torch.arange(len(pattern), 0, -1) if kind == "gpt2" else torch.full((len(pattern),), len(pattern))
        received.append(pattern.sum(0) / viewers)
    table = observer.table[observer.table["layer"] == 1]
    for dim in (0, 7, 15):
        column = torch.cat(x)[:, dim].detach()
        row = table[table["dim"] == dim].iloc[0]
        assert row["log_unigram"] == pytest.approx(stats.pearsonr(column, torch.cat(frequency)).statistic)
        assert row["attention_received"] == pytest.approx(
            stats.pearsonr(column, torch.cat(received).detach()).statistic
        )


def test_attention_input_profile_is_of_what_keys_read(load_toy, texts):
    model = load_toy("llama", dtype=DOUBLE)
    rows = corpora.batches(model, texts, layout="texts", batch_size=1)
    observer = DimensionProfile(model, classes_of(model), of="attn_input")
    observe(model, rows, observer, progress=False)
    x = []
    for batch in rows:
        _, cache = model.run_with_cache(batch.tokens)
        x.append(cache["blocks.1.ln1.hook_normalized"][0] * model.blocks[1].ln1.w)
    every = observer.table.query("state == 1 and key_class == 'all'")
    np.testing.assert_allclose(every["mean"], torch.cat(x).mean(0).detach())


@pytest.fixture(scope="module")
def bert_study():
    model = interp.load("tiny-bert")
    text = corpora.load("bundled", limit=30)
    return model, text, attention.study(model, text, progress=False)


@pytest.mark.slow
def test_study_is_what_its_parts_give(bert_study, tmp_path):
    model, text, study = bert_study
    pd.testing.assert_frame_equal(study.scores.table, attention.score_contributions(model, text, progress=False))
    pd.testing.assert_frame_equal(study.attention, attention.attention_by_class(model, text, progress=False))
    pd.testing.assert_frame_equal(study.dims, attention.dimension_profile(model, text, progress=False))
    alone = attention.ablation_effect(model, text, study.outliers, drivers=study.gaps, progress=False)
    pd.testing.assert_frame_equal(study.ablation, alone)
    by_table = attention.ablation_effect(model, text, study.outliers, drivers=study.gaps.table, progress=False)
    pd.testing.assert_frame_equal(study.ablation, by_table)
    score = study.scores.table.groupby(["layer", "head", "key_class"], sort=False)["mean"].sum()
    np.testing.assert_allclose(score, study.totals["contributions"], atol=1e-4)
    study.save(tmp_path)
    loaded = attention.AttentionStudy.load(tmp_path)
    found = every_table(loaded)
    for name, table in every_table(study).items():
        pd.testing.assert_frame_equal(found[name], table)


@pytest.mark.slow
def test_a_study_kept_as_arrays_is_the_same(bert_study, tmp_path, monkeypatch):
    model, text, study = bert_study
    monkeypatch.setattr("interp.results.dense.MOST_ROWS", 0)
    large = attention.study(model, text, progress=False)
    large.save(tmp_path)
    assert (tmp_path / "attention" / "gaps.safetensors").is_file()
    assert not (tmp_path / "attention" / "gaps.parquet").exists()
    pd.testing.assert_frame_equal(large.ablation, study.ablation)
    assert large.largest_gap == study.largest_gap
    for one in (large, attention.AttentionStudy.load(tmp_path)):
        pd.testing.assert_frame_equal(one.scores.table, study.scores.table, check_dtype=False, rtol=1e-6)
        pd.testing.assert_frame_equal(one.largest_gaps, study.largest_gaps, rtol=1e-5)
    assert interp.pages.write_page(tmp_path).is_file()


@pytest.mark.slow
def test_the_head_that_changes_most(load_toy, texts):
    """The head with the largest change, found with the recipe: a fall in some rows, a rise in others."""
    model, classes = load_toy("gpt2"), {"first": range(7, 20)}
    outliers = pd.DataFrame({"state": [0, 1, 1], "dim": [3, 5, 9], "mean": [1.0] * 3, "z": [9.0, 8.0, -7.0]})
    table = attention.ablation_effect(model, texts, outliers, key_classes=classes, mode="zero", progress=False)
    plain = attention.attention_by_class(model, texts, key_classes=classes, progress=False)
    falls = []
    for row in table.itertuples():
        with model.hooks(fwd_hooks=hooks.ablate_dims(model, row.layer, [row.dim], where="keys")):
            edited = attention.attention_by_class(model, texts, key_classes=classes, progress=False)
        of_row = f"layer == {row.layer} and key_class == '{row.key_class}'"
        before, after = (one.query(of_row).sort_values("head")["sum"].to_numpy() for one in (plain, edited))
        head = np.abs(after - before).argmax()
        assert row.head == head
        assert (row.head_before, row.head_after) == pytest.approx((before[head], after[head]), rel=1e-5)
        falls.append(after[head] < before[head])
    assert {True, False} == set(falls)


def test_through_the_residual_stream(bert_study):
    model, text, study = bert_study
    text = corpora.load(text, limit=10)
    table = attention.ablation_effect(
        model, text, study.outliers, layers=[3], where="residual", mode="zero", progress=False
    )
    row = table.iloc[0]
    with model.hooks(fwd_hooks=hooks.ablate_dims(model, 3, [int(row["dim"])], where="residual")):
        edited = attention.attention_by_class(model, text, layers=[3], progress=False)
    expected = edited[edited["key_class"] == row["key_class"]]["sum"].mean()
    assert row["attention_after"] == pytest.approx(expected)
    assert set(table["set"]) == {"outlier", "random"}


@pytest.mark.filterwarnings("ignore:.*other columns hold text too")
def test_tiny_bert_has_an_outlier_that_pulls_attention_to_cls(shared):
    """A dimension that is an outlier in every state and has more effect than 39 other dimensions."""
    model = interp.load("tiny-bert")
    study = attention.study(model, shared / "data/stsb/stsb-en-dev.csv", limit=400, progress=False)
    first = study.outliers[study.outliers["rank"] == 1]
    assert len(first) == 7
    claim = study.claims.iloc[0]
    assert (claim["dims"], claim["layer"], claim["key_class"]) == (str(first["dim"].iloc[0]), 3, "cls")
    assert claim["log_odds"] < -0.05
    assert abs(claim["log_odds"]) > claim["of_ordinary"]
    assert "outlier dimensions steer attention" in study.findings[0].question
    alone = [finding for finding in study.findings if finding.question.startswith("Does outlier dimension")]
    sizes = [abs(finding.value) for finding in alone]
    assert len(alone) == len(study.claims) - 1
    assert sizes == sorted(sizes, reverse=True)
    assert not [finding for finding in alone if finding.verdict == "yes"]


def test_refusals(load_toy, texts, bert_study):
    model, text, study = bert_study
    masked = corpora.batches(model, text, mask_rate=0.1)
    with pytest.raises(ValueError, match=naming("mask_rate")):
        attention.study(model, masked, progress=False)
    with pytest.raises(ValueError, match=naming("layers", "0 … 5", [6])):
        attention.study(model, text, layers=[6], progress=False)
    nothing = attention.ablation_effect(model, text, study.outliers.iloc[:0], progress=False)
    assert nothing.empty


@pytest.mark.slow
def test_a_sample_of_texts_for_the_contributions(bert_study):
    model, text, study = bert_study
    sampled = attention.study(model, text, sample=20, progress=False)
    assert sampled.scores.arrays["n_pairs"].max() < study.scores.arrays["n_pairs"].max()
    pd.testing.assert_frame_equal(sampled.attention, study.attention)


@pytest.mark.slow
def test_figures_are_small_and_refuse_what_they_lack(bert_study):
    _, _, study = bert_study
    figures = [plots.dimension_means(study), plots.attention_by_layer(study), plots.outlier_values(study)]
    figures += [plots.contributions(study, 1, "cls"), plots.contribution_table(study, 1, 48)]
    figures += [plots.ablation(study, "sep"), plots.means_by_dimension(study), plots.outlier_contributions(study, 5)]
    figures += [plots.all_contributions(study, 5), plots.contributions_by_layer(study)]
    for figure in figures:
        assert 500 < len(figure.to_json()) < 200_000
        assert len(figure.data) > 0
    assert "48" in json.dumps(figures[3].layout.to_plotly_json()["annotations"])
    blocks = sorted(study.attention["layer"].unique())
    for figure in (figures[1], figures[5]):
        assert figure.layout.xaxis.title.text == "layer (from 0)"
        assert (figure.layout.xaxis.tick0, figure.layout.xaxis.dtick) == (0, 1), "no tick between two layers"
        assert sorted({round(x) for trace in figure.data for x in trace.x}) == blocks
    assert figures[3].layout.title.subtitle.text.startswith("block 1;")
    assert figures[4].layout.title.text == "What dimension 48 adds to scores in block 1"
    for value, call in (
        (9, lambda: plots.contributions(study, 9, "cls")),
        ("verbs", lambda: plots.contributions(study, 1, "verbs")),
        (500, lambda: plots.contribution_table(study, 1, 500)),
        (500, lambda: plots.outlier_values(study, [500])),
        ("verbs", lambda: plots.ablation(study, "verbs")),
        ("verbs", lambda: plots.attention_by_layer(study, ["verbs"])),
        ("verbs", lambda: plots.all_contributions(study, 1, "verbs")),
        ("verbs", lambda: plots.contributions_by_layer(study, "verbs")),
        (500, lambda: plots.outlier_contributions(study, 1, [500])),
    ):
        with pytest.raises(ValueError, match=naming(value)):
            call()
    text = "<|endoftext|>The cat, they say, sat."
    view = plots.attention_view(attention.attention_in_text(interp.load("tiny-gpt2"), text, 1, 21))
    assert "dim 21" in str(view)
    assert '"&lt;|endoftext|&gt;"' in str(view), "circuitsvis treats tokens as HTML"
    assert "<|endoftext|>" not in str(view)


def test_the_papers_figures_draw_what_the_tables_have(bert_study):
    """Every dimension, head, layer and class is drawn with the numbers of the tables."""
    _, _, study = bert_study
    scores, outliers = study.scores.table, study.outliers.query("state == 5").sort_values("rank")["dim"].tolist()
    lines = plots.means_by_dimension(study).data
    means = study.dims.query("key_class == 'all'").pivot(index="state", columns="dim", values="mean")
    np.testing.assert_allclose([line.y for line in lines], means, atol=1e-4)
    drawn = plots.attention_by_layer(study, study.provenance["key_classes"]).data
    assert [trace.name for trace in drawn if trace.showlegend] == ["[CLS]", "[SEP]", "commas and periods", "other"]
    heads = plots.all_contributions(study, 5).data
    every = scores.query("layer == 5 and key_class == 'all'").pivot(index="head", columns="dim", values="mean")
    np.testing.assert_allclose([head.y for head in heads], every, atol=1e-3)
    panels = [trace for trace in plots.contributions_by_layer(study, "sep").data if trace.name != "range"]
    of_sep = scores.query("key_class == 'sep'").groupby(["layer", "dim"])["mean"].mean().unstack()
    np.testing.assert_allclose([panel.y for panel in panels], of_sep, atol=1e-3)
    grid = plots.outlier_contributions(study, 5).data[0]
    columns = [(dim, name) for dim in outliers[:6] for name in study.provenance["key_classes"]]
    table = scores.query("layer == 5").pivot(index="head", columns=["dim", "key_class"], values="mean")[columns]
    np.testing.assert_allclose(grid.z, table, atol=1e-3)
    assert list(grid.x[0]) == [f"dimension {dim}" for dim, _ in columns]
    with pytest.raises(ValueError, match=naming("state 5", "dims")):
        plots.outlier_contributions(dataclasses.replace(study, outliers=study.outliers.iloc[:0]), 5)


@pytest.mark.quick("gpt2")
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_half_precision_counts_and_runs(kind, hf_directory, load_toy):
    """With a model in bfloat16, counts are exact and the analysis runs."""
    half, full = load_toy(kind, dtype=torch.bfloat16), load_toy(kind)
    tokens = torch.randint(7, 67, (40, 20), generator=torch.Generator().manual_seed(0))
    options = {"key_classes": {"a": range(7, 30)}, "progress": False}
    ours = attention.score_contributions(half, tokens, **options)
    theirs = attention.score_contributions(full, tokens, **options)
    assert ours["n_pairs"].tolist() == theirs["n_pairs"].tolist()
    np.testing.assert_allclose(ours["mean"], theirs["mean"], atol=0.05 * theirs["mean"].abs().max())
    study = attention.study(half, tokens, key_classes={"a": range(7, 30)}, k=1.5, progress=False)
    totals = study.attention.groupby(["layer", "head"])["sum"].sum()
    np.testing.assert_allclose(totals, 1, atol=0.02)
    with half.hooks(fwd_hooks=hooks.ablate_dims(half, 0, [1], where="keys")):
        half(tokens[:2])


@pytest.mark.e2e
def test_a_sample_keeps_the_separator(bert_study):
    model, _, _ = bert_study
    texts = corpora.batches(model, corpora.load("bundled", limit=30, separator=" so ."))
    every = attention.study(model, texts, progress=False)
    sampled = attention.study(model, texts, sample=30, progress=False)
    pd.testing.assert_frame_equal(sampled.scores.table, every.scores.table, rtol=1e-4, atol=1e-4)


def test_observers_of_other_things_do_not_merge(load_toy):
    model = load_toy("gpt2")
    one, other = (DimensionCorrelations(model, torch.linspace(*ends, 67)) for ends in ((-9, -1), (-1, -9)))
    with pytest.raises(ValueError, match=naming("observers", "log_unigram")):
        one.merge(other)
    with pytest.raises(ValueError, match=naming("'all'", "'other'")):
        corpora.token_classes(model, {"all": [1]})
