"""Attention sinks against sums over all patterns, on random models and on models with a planted sink."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming
from toys import with_tables

from interp import attention, corpora, plots
from interp.analyses.attention.page import sides
from interp.analyses.attention.sinks.findings import by_chance, sink_findings
from interp.analyses.attention.sinks.writers import MassiveWriters
from interp.corpora.classes import TokenClasses
from interp.instruments.sinks import Sinks, fewest_queries, position_bins, sink_dims
from interp.models.sites import hook_name
from interp.passes.observers import observe
from interp.testing import assert_observer_merges, toy_bridge, toy_decoder

CLASSES = {"some": [7, 8]}
MEANS = ["attention", "rate", "uniform", "score", "cosine", "query_norm", "key_norm", "value_norm", "n_keys"]
IDS = torch.randint(7, 67, (40, 20), generator=torch.Generator().manual_seed(0))


def read(model, text, **options):
    observer = Sinks(model, corpora.token_classes(model, CLASSES), **options)
    observe(model, text, observer, progress=False)
    return observer


@torch.no_grad()
def brute(model, batches, epsilon, scale):
    """(layer, head, first position of the range) → the means, computed one saved pattern and one score at a time."""
    starts, found = np.array(position_bins(model.cfg.n_ctx)), {}
    names = {site: [hook_name(model, site, layer) for layer in range(2)] for site in ("pattern", "q", "k", "v")}
    names["scores"] = [name.replace("pattern", "attn_scores") for name in names["pattern"]]
    for batch in batches:
        for tokens, mask in zip(batch.tokens, batch.mask, strict=True):
            _, cache = model.run_with_cache(tokens[None, : int(mask.sum())])
            for layer in range(2):
                pattern, q, k, v, scores = (cache[names[of][layer]][0].double().numpy() for of in names)
                for head in range(4):
                    group = 4 // k.shape[1]
                    flow = pattern[head], scores[head] * scale, q[:, head], k[:, head // group], v[:, head // group]
                    of_row(found, (layer, head), *flow, starts, epsilon, scale)
    return {key: {name: float(np.mean(one)) for name, one in values.items()} for key, values in found.items()}


def of_row(found, key, pattern, products, q, k, v, starts, epsilon, scale):
    seen = np.isfinite(products) & (products > -1e4)
    for n in range(len(k)):
        viewers = np.flatnonzero(seen[:, n])
        if len(viewers) < fewest_queries(epsilon):
            continue
        drawn, sizes = pattern[viewers, n].mean(), np.linalg.norm(q[viewers], axis=1)
        along = products[viewers, n] / sizes / np.linalg.norm(k[n])
        values = {"attention": [drawn], "rate": [drawn > epsilon], "uniform": [(1 / seen[viewers].sum(1)).mean()]}
        values |= {"score": products[viewers, n] / scale, "cosine": along, "query_norm": sizes}
        values |= {"key_norm": [np.linalg.norm(k[n])] * len(viewers), "value_norm": [np.linalg.norm(v[n])]}
        here = found.setdefault((*key, int(starts[starts <= n].max())), {name: [] for name in values})
        for name, one in values.items():
            here[name].extend(one)


@pytest.mark.quick("texts-bert", "packed-llama")
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neo", "bert"])
@pytest.mark.parametrize("layout", ["texts", "packed"])
def test_all_means_are_those_over_saved_patterns(kind, layout, load_toy, texts, monkeypatch):
    monkeypatch.setattr("interp.models.qk._SCORES_AT_ONCE", 100)
    model = load_toy(kind, dtype=torch.float64)
    batches = corpora.batches(model, texts, layout=layout, batch_size=5)
    observer = read(model, batches, epsilon=0.5)
    expected = brute(model, batches, 0.5, 1.0 if kind == "gpt_neo" else 2.0)
    table = observer.table.set_index(["layer", "head", "first_position"])
    assert set(table.index) == set(expected)
    for key, values in expected.items():
        assert {name: table.loc[key, name] for name in values} == pytest.approx(values, abs=1e-6)
    assert (table["gap"] - table["by_direction"] - table["by_norm"]).abs().max() < 1e-9
    assert kind == "bert" or 0 < table["rate"].max() <= 1


def test_the_gap_is_to_all_other_keys(load_toy):
    table = read(load_toy("gpt2"), corpora.batches(load_toy("gpt2"), IDS)).table
    part = table[(table["layer"] == 1) & (table["head"] == 2)]
    n_pairs = np.array([20, 19, 18, 17, sum(range(10, 17))])  # positions 0 to 10 are seen by at least ten queries
    assert part["first_position"].tolist() == [0, 1, 2, 3, 4]
    others = np.average(part["score"].iloc[1:], weights=n_pairs[1:])
    assert part["gap"].iloc[0] == pytest.approx(part["score"].iloc[0] - others, rel=1e-5)


def test_intervals_leave_out_groups_of_texts(load_toy):
    """Forty rows make twenty groups of two, and the mean of twenty equal groups has the interval of Student's t."""
    from scipy import stats

    model = load_toy("gpt2", dtype=torch.float64)
    _, cache = model.run_with_cache(IDS)
    patterns = torch.stack([cache["pattern", layer] for layer in range(2)], 1).detach().numpy()
    drawn = patterns[..., 0].mean(-1).reshape(20, 2, 2, 4).mean(1)
    observer = read(model, corpora.batches(model, IDS))
    first = observer.table.query("first_position == 0")
    degrees = 2 / (2 / 19 + np.maximum(stats.kurtosis(drawn), 0) / 20)
    half = stats.t.ppf(0.975, degrees) * stats.sem(drawn)
    np.testing.assert_allclose(first["attention"], drawn.mean(0).ravel(), rtol=1e-6)
    np.testing.assert_allclose(first["attention_high"] - first["attention"], half.ravel(), rtol=1e-4)
    by_layer = observer.by_layer.query("first_position == 0")
    np.testing.assert_allclose(by_layer["attention"], drawn.mean((0, 2)), rtol=1e-6)
    assert (by_layer["attention_low"] < by_layer["attention"]).all()
    rates = (patterns[..., 0].mean(-1) > 0.3).mean()
    assert observer.summary.set_index("measure").loc["rate", "value"] == pytest.approx(rates)


@pytest.mark.quick("llama")
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_observers_merge(kind, load_toy, texts):
    classes = corpora.token_classes(load_toy(kind), CLASSES)
    assert_observer_merges(lambda model: Sinks(model, classes, epsilon=0.5), load_toy(kind), texts)


def planted(*, by, heads=((1, 2),)):
    """A toy whose heads attend uniformly, except the given ones, which attend to the first position by dimension 5."""
    model = toy_decoder(n_embd=32, n_head=4, n_layer=3)
    model.pos_embed.W_pos.data[:, 5] = 0.0
    model.embed.W_E.data[:, 5] = 0.0
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_Q.zero_(), block.attn.b_Q.zero_()
            block.attn.W_O[..., 5], block.attn.b_O[5] = 0.0, 0.0
            block.mlp.W_out[:, 5], block.mlp.b_out[5] = 0.0, 0.0
        for layer, head in heads:
            attn = model.blocks[layer].attn
            attn.b_Q[head, 0] = 40.0
            attn.W_K[head, :, 0] = 0.0
            attn.W_K[head, 5, 0] = 5.0
            model.blocks[layer].ln1.w[5], model.blocks[layer].ln1.b[5] = 1.0, 0.0
    if by == "embeddings":
        model.pos_embed.W_pos.data[0, 5] = 4_000.0
    else:  # the MLP of block 0 writes it where dimension 6 of the embeddings is large
        with torch.no_grad():
            model.pos_embed.W_pos[:, 6], model.embed.W_E[:, 6] = 0.0, 0.0
            model.pos_embed.W_pos[0, 6] = 30.0
            model.blocks[0].attn.W_O[..., 6], model.blocks[0].attn.b_O[6] = 0.0, 0.0
            model.blocks[0].ln2.w[6], model.blocks[0].ln2.b[6] = 1.0, 0.0
            model.blocks[0].mlp.W_in[:, 3], model.blocks[0].mlp.b_in[3] = 0.0, 0.0
            model.blocks[0].mlp.W_in[6, 3] = 1.0
            model.blocks[0].mlp.b_in[3] = -3.0
            model.blocks[0].mlp.W_out[3, 5] = 3_000.0
    return model


@functools.cache
def planted_study(by):
    model = planted(by=by)
    classes = TokenClasses(("first", "other"), first_apart)
    return attention.study(
        model, IDS, key_classes=classes, unigram=np.arange(67), sinks=True, ablation=False, progress=False
    )


def first_apart(tokens):
    return (torch.arange(tokens.shape[1]) > 0).long().expand(tokens.shape)


@pytest.mark.quick("MLP")
@pytest.mark.parametrize("by", ["embeddings", "MLP"])
def test_a_planted_sink_is_found_in_all_its_parts(by):
    """Its head, its position, that it comes from the direction and not the norm, its dimension, and what writes it."""
    study = planted_study(by)
    found = study.sinks[study.sinks["rate"] > 0.5]
    assert found[["layer", "head", "first_position", "last_position"]].to_numpy().tolist() == [[1, 2, 0, 0]]
    assert found["attention"].item() > 0.95
    summary = study.sink_summary.set_index("measure")
    assert summary.loc["rate", ["value", "n_heads"]].tolist() == [1 / 12, 12]
    assert summary.loc["direction_ratio", "n_heads"] == 1
    largest = study.sink_dims.query("rank == 1")
    assert largest[["layer", "head", "dim", "massive"]].to_numpy().tolist() == [[1, 2, 5, True]]
    assert largest["abs_share"].item() > 0.5
    assert set(study.massive["dim"]) == {5}
    writers = study.writers.set_index(["component", "layer"])["share"]
    most = writers.idxmax()
    assert most[0] == ("embeddings" if by == "embeddings" else "MLP")
    assert writers.max() == pytest.approx(1, abs=0.02)
    assert writers.sum() == pytest.approx(1)
    assert set(study.writers["first_position"]) == set(study.writers["last_position"]) == {0}


def test_uniform_attention_is_not_a_sink_whatever_the_length():
    """All positions are tied, so none differs from the others."""
    model = planted(by="embeddings", heads=())
    for length in (10, 13, 24):
        ids = IDS.repeat(1, 2)[:, :length]
        observer = read(model, corpora.batches(model, ids))
        table = observer.table
        assert (table["attention"] - table["uniform"]).abs().max() < 1e-6
        assert not table["rate"].any()
        assert observer.summary["value"].tolist()[0] == 0
        assert observer.summary["value"].isna().tolist()[1:] == [True, True]


def test_ties_go_to_the_lower_dimension():
    study = planted_study("embeddings")
    gaps = study.gaps.table.assign(gap=1.0, abs_share=1 / 32, share=1 / 32)
    tied = with_tables(study, gaps=gaps)
    dims = sink_dims(tied.sinks, tied.gaps, tied.outliers, tied.massive, "first", 0.3)
    assert dims["dim"].tolist() == list(range(10))


class TestWriters:
    @torch.no_grad()
    def brute(self, model, batches):
        """(dim, whether the position is a later one, component, layer) → its share of the heights."""
        added, heights = {}, {}
        for batch in batches:
            for tokens, mask in zip(batch.tokens, batch.mask, strict=True):
                _, cache = model.run_with_cache(tokens[None, : int(mask.sum())])
                states = [cache["blocks.0.hook_resid_pre"][0], *(cache["resid_post", i][0] for i in range(2))]
                size = torch.stack(states).double().abs()
                medians = size.flatten(1).quantile(0.5, dim=1, interpolation="lower")
                massive = (size > 100) & (size > 1000 * medians[:, None, None])
                peak = torch.where(massive, size, 0).amax(0)
                for position, dim in peak.nonzero().tolist():
                    state = int(torch.where(massive, size, 0)[:, position, dim].argmax())
                    sign = states[state][position, dim].sign()
                    parts = {("embeddings", -1): states[0][position, dim]}
                    for i in range(state):
                        parts["attention", i] = cache["attn_out", i][0, position, dim]
                        parts["MLP", i] = cache["mlp_out", i][0, position, dim]
                    key = dim, int(position > 0)
                    heights[key] = heights.get(key, 0) + float(peak[position, dim])
                    for part, value in parts.items():
                        added[*key, *part] = added.get((*key, *part), 0) + float(sign * value)
        return {key: value / heights[key[:2]] for key, value in added.items()}

    def planted(self, model):
        """Planted by the embeddings at the first position, with either sign, and at every w2."""
        model.pos_embed.W_pos.data[0, 5] = -5_000.0
        model.embed.W_E.data[9, 2] = 30_000.0
        model.blocks[1].mlp.b_out.data[5] = -700.0
        return model

    @pytest.mark.parametrize("layout", ["texts", "packed"])
    def test_shares_are_those_of_every_activation(self, layout, load_toy, texts):
        model = self.planted(load_toy("gpt2", dtype=torch.float64))
        batches = corpora.batches(model, [*texts, "w2 w1 w2 w0 w1"], layout=layout, batch_size=5)
        observer = MassiveWriters(model)
        observe(model, batches, observer, progress=False)
        table = observer.table.assign(layer=lambda one: one["layer"].fillna(-1))
        found = table.set_index(["dim", "first_position", "component", "layer"])["share"].to_dict()
        assert {(2, 0), (2, 1), (5, 0)} <= {key[:2] for key in found}
        assert found == pytest.approx(self.brute(model, batches), abs=1e-5)
        assert (table["n_activations"] > 0).all()

    def test_what_the_embeddings_wrote_counts_as_earlier(self, load_toy):
        """The 90 from the embeddings are not traced; the MLP of block 0 adds 100 times as much."""
        model = load_toy("gpt2")
        model.pos_embed.W_pos.data[:, 5] = 0.0
        model.pos_embed.W_pos.data[0, 5], model.blocks[0].mlp.b_out.data[5] = 90.0, 9_000.0
        observer = MassiveWriters(model)
        observe(model, corpora.batches(model, IDS), observer, progress=False)
        table = observer.table.query("first_position == 0").set_index("component")
        assert table.loc["earlier", "added"].item() == pytest.approx(90, abs=1)
        assert "embeddings" not in table.index

    def test_a_bridge_has_the_same(self):
        tables = []
        for model in (toy_decoder(), toy_bridge()):
            model.pos_embed.W_pos.data[0, 5] = 9_000.0
            observer = MassiveWriters(model)
            observe(model, corpora.batches(model, IDS), observer, progress=False)
            tables.append(observer.table)
        pd.testing.assert_frame_equal(*tables, rtol=1e-4, atol=1e-5)

    def test_components_that_do_not_add_up_have_no_writer(self, load_toy):
        model = self.planted(load_toy("gpt2"))
        observer = MassiveWriters(model)
        hooks = [(hook_name(model, "resid_post", 0), lambda resid, hook: 2 * resid)]
        with model.hooks(fwd_hooks=hooks):
            observe(model, corpora.batches(model, IDS), observer, progress=False)
        with pytest.warns(UserWarning, match="no writers of massive activations"):
            assert observer.table.empty

    def test_observers_merge(self, load_toy, texts):
        assert_observer_merges(MassiveWriters, self.planted(load_toy("gpt2")), [*texts, "w2 w1"])

    def test_an_encoder_has_none(self, load_toy):
        with pytest.raises(ValueError, match=naming("massive activations")):
            MassiveWriters(load_toy("bert"))


class TestRefusals:
    @pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1, float("nan")])
    def test_epsilon(self, epsilon, load_toy):
        with pytest.raises(ValueError, match=naming("epsilon", 0, 1, epsilon)):
            attention.study(load_toy("gpt2"), IDS, sinks=True, epsilon=epsilon, progress=False)

    def test_an_epsilon_that_needs_longer_rows(self, load_toy):
        with pytest.raises(ValueError, match=naming("epsilon", 0.05, 105, 24)):
            read(load_toy("gpt2"), corpora.batches(load_toy("gpt2"), IDS), epsilon=0.05)

    def test_texts_shorter_than_a_row_that_counts(self, load_toy):
        model = load_toy("gpt2")
        observer = read(model, corpora.batches(model, ["w1 w2 w3"] * 30, layout="texts"))
        for name in ("table", "by_layer", "summary"):
            with pytest.raises(ValueError, match=naming("epsilon", 0.3, 10)):
                getattr(observer, name)

    def test_no_row_that_counts_is_refused_before_the_pass(self, load_toy, monkeypatch):
        asked = {"unigram": np.ones(67, dtype=int), "key_classes": CLASSES, "sinks": True, "progress": False}
        texts = ["w1 w2 w3"] * 30
        with monkeypatch.context() as patched:
            patched.setattr("interp.passes.execution.observe", lambda *_, **__: pytest.fail("the model was run"))
            for model, how, longest in (("gpt2", {"layout": "texts"}, 3), ("gpt2", {"context": 9}, 9), ("bert", {}, 5)):
                with pytest.raises(ValueError, match=naming("epsilon", 0.3, 10, longest)):
                    attention.study(load_toy(model), texts, **how, **asked)
        texts[-1] = " ".join(["w1"] * 10)  # one row is enough
        study = attention.study(load_toy("gpt2"), texts, layout="texts", ablation=False, **asked)
        assert study.sinks["n_keys"].unique().tolist() == [1]

    def test_a_text_shorter_than_one_row(self, load_toy):
        with pytest.raises(ValueError, match=naming(24, "row", "layout='texts'")):
            attention.study(load_toy("gpt2"), ["w1 w2"], sinks=True, unigram=np.arange(67), progress=False)


class TestPage:
    def test_it_shows_sinks_where_they_were_asked_for(self):
        study = planted_study("MLP")
        section = study.section
        assert {"sink_heads", "sink_positions", "sink_scores", "massive_writers"} <= set(section.figures)
        assert section.tables["Dimensions that make the sinks"].equals(study.sink_dims)
        assert section.tables["What writes the massive activations"].equals(study.writers)
        grid = plots.sink_heads(study).data[0]
        assert np.argwhere(grid.z > 0.9).tolist() == [[1, 2]]
        points = {trace.name: len(trace.x) for trace in plots.sink_scores(study).data}
        assert points == {"no sink": 11, "sink": 1}
        bars = plots.massive_writers(study).data
        assert [bar.name for bar in bars] == ["dimension 5, first position"]
        assert max(zip(bars[0].y, bars[0].x, strict=True))[1] == "MLP of block 0"

    def test_it_does_not_show_them_unless_asked_for(self):
        study = planted_study("MLP")
        empty = {name: table.iloc[:0] for name, table in study.tables.items() if name.startswith(("sink", "writ"))}
        without = with_tables(study, **empty)
        section = without.section
        assert not {name for name in section.figures if name.startswith("sink")}
        with pytest.raises(ValueError, match=naming("sinks=True")):
            plots.sink_positions(without)
        with pytest.raises(ValueError, match=naming("massive activations", "sinks=True")):
            plots.massive_writers(without)

    def test_runs_with_sinks_are_compared(self):
        study = planted_study("MLP")
        empty = {name: table.iloc[:0] for name, table in study.tables.items() if name.startswith(("sink", "writ"))}
        both = sides({"one": study, "other": study})
        assert both.numbers["sink_rate"].tolist() == [1 / 12, 1 / 12]
        line = both.figures["sinks"].data[0]
        assert line.x.tolist() == pytest.approx([1 / 3, 2 / 3, 1])
        assert line.y.tolist() == pytest.approx([0, 1 / 4, 0])  # one of four heads of block 1
        alone = sides({"one": study, "other": with_tables(study, **empty)})
        assert "sinks" not in alone.figures
        assert alone.numbers["sink_rate"].isna().tolist() == [False, True]


class TestFindings:
    def test_a_planted_sink(self):
        """One head of twelve may have its sink anywhere by chance, but six may not."""
        study = planted_study("embeddings")
        assert [one.verdict for one in study.findings] == ["cannot tell", "yes"]
        model = planted(by="embeddings", heads=[(layer, head) for layer in (1, 2) for head in (0, 1, 2)])
        many = attention.study(
            model, IDS, key_classes=TokenClasses(("first", "other"), first_apart), unigram=np.arange(67),
            sinks=True, ablation=False, progress=False,
        )  # fmt: skip
        found = many.findings
        assert [one.verdict for one in found] == ["yes", found[1].verdict, found[2].verdict, "yes", "yes"]
        assert found[0].value == pytest.approx(0.5)
        assert found[3].question == "Do outlier dimensions make the sink?"

    @pytest.mark.slow
    @pytest.mark.e2e
    def test_random_models_have_none(self):
        """Of a hundred, at most five."""
        yes = 0
        for seed in range(100):
            model = toy_decoder(seed=seed)
            observer = read(model, corpora.batches(model, IDS))
            tables = {"sinks": observer.table, "sink_summary": observer.summary}
            tables |= dict.fromkeys(["sink_dims", "writers", "massive"], pd.DataFrame())
            yes += sink_findings(tables, 0.3)[0].verdict == "yes"
        assert yes <= 5

    @pytest.mark.parametrize(
        ("measure", "ends", "place", "verdict"),
        [
            ("direction_ratio", (0.6, 0.8), 1, "yes"),
            ("direction_ratio", (0.1, 0.3), 1, "no"),
            ("direction_ratio", (0.4, 0.8), 1, "cannot tell"),
            ("value_ratio", (0.2, 0.4), 2, "yes"),
            ("value_ratio", (1.2, 1.4), 2, "no"),
            ("value_ratio", (np.nan, np.nan), 2, "cannot tell"),
        ],
    )
    def test_each_verdict(self, measure, ends, place, verdict):
        tables = dict(planted_study("embeddings").tables)
        summary = tables["sink_summary"].set_index("measure")
        summary.loc["rate", ["value", "low", "high"]] = 0.9, 0.8, 1.0
        summary.loc[measure, ["value", "low", "high"]] = np.mean(ends), *ends
        found = sink_findings(tables | {"sink_summary": summary.reset_index()}, 0.3)
        assert found[0].verdict == "yes"
        assert found[place].verdict == verdict

    def test_there_is_no_finding_unless_asked_for(self):
        study = planted_study("embeddings")
        assert not with_tables(study, sinks=study.sinks.iloc[:0]).findings

    def test_chance_counts_heads(self):
        rates = np.zeros((40, 4))
        assert by_chance(rates) == 0
        rates[:, 0] = 1
        assert 0.25 < by_chance(rates) < 0.5
        assert by_chance(np.ones((40, 4))) == 1  # all positions are sinks: the first is like the others
