"""Attention sinks against sums over all patterns, on random models and on models with a planted sink."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming
from oracles import attention as oracle
from oracles.intervals import half_width
from toys import with_tables

from interp import corpora, plots, sinks
from interp.analyses.registry import load
from interp.analyses.sinks.dims import sink_dims
from interp.analyses.sinks.findings import sink_findings
from interp.analyses.sinks.page import sides
from interp.analyses.sinks.writers import MassiveWriters
from interp.corpora.classes import TokenClasses
from interp.instruments import sinks as instrument
from interp.instruments.scores import ScoreContributions
from interp.instruments.shares import GAPS, gaps
from interp.instruments.sinks import Sinks, position_bins
from interp.models.sites import hook_name
from interp.passes.reading import observe
from interp.results.dense import Dense
from interp.testing import assert_observer_merges, toy_bridge, toy_decoder

CLASSES = {"some": [7, 8]}
MEANS = ["attention", "rate", "uniform", "score", "cosine", "query_norm", "key_norm", "value_norm", "n_keys"]
IDS = torch.randint(7, 67, (40, 24), generator=torch.Generator().manual_seed(0))


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
    first = 0 if seen.all() else instrument.FIRST_QUERY
    for n in range(len(k)):
        viewers = np.flatnonzero(seen[:, n] & (np.arange(len(k)) >= first))
        if len(viewers) < instrument.FEWEST_QUERIES:
            continue
        values = oracle.sink(n, pattern, products, q, k, v, viewers)
        values["score"] = [score / scale for score in values["score"]]
        values["rate"] = [values["attention"][0] > epsilon]
        values["uniform"] = [(1 / seen[viewers].sum(1)).mean()]
        here = found.setdefault((*key, int(starts[starts <= n].max())), {name: [] for name in values})
        for name, one in values.items():
            here[name].extend(one)


@pytest.mark.quick("texts-bert", "packed-llama")
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neo", "bert"])
@pytest.mark.parametrize("layout", ["texts", "packed"])
def test_all_means_are_those_over_saved_patterns(kind, layout, load_toy, texts, monkeypatch):
    monkeypatch.setattr("interp.models.qk.SCORES_AT_ONCE", 100)
    monkeypatch.setattr(instrument, "FIRST_QUERY", 2)
    monkeypatch.setattr(instrument, "FEWEST_QUERIES", 4)
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
    n_pairs = np.array([16, 16, 16, 16, 5 * 16])  # positions 0 to 8 are seen by sixteen queries from 8 on
    assert part["first_position"].tolist() == [0, 1, 2, 3, 4]
    others = np.average(part["score"].iloc[1:], weights=n_pairs[1:])
    assert part["gap"].iloc[0] == pytest.approx(part["score"].iloc[0] - others, rel=1e-5)


def test_intervals_leave_out_groups_of_texts(load_toy):
    """Forty rows make twenty groups of two, and the mean of twenty equal groups has the interval of Student's t."""
    model = load_toy("gpt2", dtype=torch.float64)
    _, cache = model.run_with_cache(IDS)
    patterns = torch.stack([cache["pattern", layer] for layer in range(2)], 1).detach().numpy()
    drawn = patterns[..., 8:, 0].mean(-1).reshape(20, 2, 2, 4).mean(1)
    observer = read(model, corpora.batches(model, IDS))
    first = observer.table.query("first_position == 0")
    half = half_width(drawn)
    np.testing.assert_allclose(first["attention"], drawn.mean(0).ravel(), rtol=1e-6)
    np.testing.assert_allclose(first["attention_high"] - first["attention"], half.ravel(), rtol=1e-4)
    by_layer = observer.by_layer.query("first_position == 0")
    np.testing.assert_allclose(by_layer["attention"], drawn.mean((0, 2)), rtol=1e-6)
    assert (by_layer["attention_low"] < by_layer["attention"]).all()
    rates = (patterns[..., 8:, 0].mean(-1) > 0.3).mean()
    assert observer.measures.set_index("measure").loc["rate", "value"] == pytest.approx(rates)


def test_no_interval_of_a_rate_goes_beyond_1():
    model = toy_decoder()
    rate = read(model, corpora.batches(model, IDS), epsilon=0.015).measures.set_index("measure").loc["rate"]
    assert rate["high"] == 1 < 2 * rate["value"] - rate["low"]


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
    return sinks.study(model, IDS, key_classes=classes, progress=False)


def first_apart(tokens):
    return (torch.arange(tokens.shape[1]) > 0).long().expand(tokens.shape)


@pytest.mark.quick("MLP")
@pytest.mark.parametrize("by", ["embeddings", "MLP"])
def test_a_planted_sink_is_found_in_all_its_parts(by):
    """Its head, its position, that it comes from the direction and not the norm, its dimension, and what writes it."""
    study = planted_study(by)
    found = study.heads[study.heads["rate"] > 0.5]
    assert found[["layer", "head", "first_position", "last_position"]].to_numpy().tolist() == [[1, 2, 0, 0]]
    assert found["attention"].item() > 0.95
    summary = study.measures.set_index("measure")
    assert summary.loc["rate", ["value", "n_heads"]].tolist() == [1 / 12, 12]
    assert summary.loc["direction_ratio", "n_heads"] == 1
    largest = study.dims.query("rank == 1")
    assert largest[["layer", "head", "dim", "massive"]].to_numpy().tolist() == [[1, 2, 5, True]]
    assert largest["abs_share"].item() > 0.5
    assert set(study.writers["dim"]) == {5}
    writers = study.writers.set_index(["component", "layer"])["share"]
    most = writers.idxmax()
    assert most[0] == ("embeddings" if by == "embeddings" else "MLP")
    assert writers.max() == pytest.approx(1, abs=0.02)
    assert writers.sum() == pytest.approx(1)
    assert set(study.writers["first_position"]) == set(study.writers["last_position"]) == {0}
    said = study.answer.values
    assert (said["n_sinks"], said["n_heads"], said["head"], said["dim"]) == (1, 12, "L1H2", 5)
    assert said["writer"] == ("embeddings" if by == "embeddings" else "the MLP of block 0")


def test_uniform_attention_is_not_a_sink():
    """All positions are tied, so none differs from the others."""
    observer = read(planted(by="embeddings", heads=()), corpora.batches(planted(by="embeddings", heads=()), IDS))
    table = observer.table
    assert (table["attention"] - table["uniform"]).abs().max() < 1e-6
    assert not table["rate"].any()
    assert observer.measures["value"].tolist()[0] == 0
    assert observer.measures["value"].isna().tolist()[1:] == [True, True]


def test_ties_go_to_the_lower_dimension():
    study = planted_study("embeddings")
    model = planted(by="embeddings")
    classes = TokenClasses(("first", "other"), first_apart)
    scores = ScoreContributions(model, classes)
    observe(model, corpora.batches(model, IDS), scores, progress=False)
    table = gaps(scores.scores.table).assign(gap=1.0, abs_share=1 / 32, share=1 / 32)
    tied = Dense.of_table(table, **GAPS)
    none = pd.DataFrame(columns=["state", "dim"])
    dims = sink_dims(study.heads, tied, none, none, key_class="first", epsilon=0.3)
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
                arrays = torch.stack(states).double().numpy()
                for position, dim in {place for x in arrays for place in oracle.massive(x)[0]}:
                    state = oracle.peak(arrays, position, dim)
                    sign = states[state][position, dim].sign()
                    parts = {("embeddings", -1): states[0][position, dim]}
                    for i in range(state):
                        parts["attention", i] = cache["attn_out", i][0, position, dim]
                        parts["MLP", i] = cache["mlp_out", i][0, position, dim]
                    key = dim, int(position > 0)
                    heights[key] = heights.get(key, 0) + abs(arrays[state][position, dim])
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
    @pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1])
    def test_epsilon(self, epsilon, load_toy):
        with pytest.raises(ValueError, match=naming("epsilon", 0, 1, epsilon)):
            sinks.study(load_toy("gpt2"), IDS, epsilon=epsilon, progress=False)

    def test_a_context_without_room_for_a_sink(self):
        model = toy_decoder(n_positions=20)
        assert "20" in load("sinks").left_out(model, {})["sinks"]
        with pytest.raises(ValueError, match=naming(24, 20)):
            sinks.study(model, IDS[:, :20], progress=False)

    def test_no_row_that_counts_is_refused_before_the_pass(self, load_toy, monkeypatch):
        asked = {"key_classes": CLASSES, "progress": False}
        texts = ["w1 w2 w3"] * 30
        with monkeypatch.context() as patched:
            patched.setattr("interp.passes.execution.observe", lambda *_, **__: pytest.fail("the model was run"))
            cases = (("gpt2", {"layout": "texts"}, 24, 3), ("gpt2", {"context": 23}, 24, 23), ("bert", {}, 16, 5))
            for model, how, needed, longest in cases:
                with pytest.raises(ValueError, match=naming(needed, longest)):
                    sinks.study(load_toy(model), texts, **how, **asked)
        texts[-1] = " ".join(["w1"] * 24)  # one row is enough
        study = sinks.study(load_toy("gpt2"), texts, layout="texts", **asked)
        assert study.rates.query("first_position < 4")["n_keys"].unique().tolist() == [1]

    def test_observers_without_a_row_that_counts(self, load_toy):
        model = load_toy("gpt2")
        observer = read(model, corpora.batches(model, ["w1 w2 w3"] * 30, layout="texts"))
        for name in ("table", "by_layer", "measures", "intervals"):
            with pytest.raises(ValueError, match=naming(24)):
                getattr(observer, name)

    def test_masked_text(self, load_toy):
        model = load_toy("bert")
        with pytest.raises(ValueError, match=naming("mask_rate")):
            sinks.study(model, corpora.batches(model, ["w1 " * 20] * 20, mask_rate=0.1), progress=False)


class TestPage:
    def test_it_shows_what_there_is(self):
        study = planted_study("MLP")
        section = study.section
        assert set(section.figures) == {"heads", "positions", "scores", "writers"}
        assert section.tables["Dimensions that make the sinks"].equals(study.dims)
        assert section.tables["What writes the massive activations"].equals(study.writers)
        grid = plots.sink_heads(study).data[0]
        assert np.argwhere(grid.z > 0.9).tolist() == [[1, 2]]
        points = {trace.name: len(trace.x) for trace in plots.sink_scores(study).data}
        assert points == {"no sink": 11, "sink": 1}
        bars = plots.massive_writers(study).data
        assert [bar.name for bar in bars] == ["dimension 5, first position"]
        assert max(zip(bars[0].y, bars[0].x, strict=True))[1] == "MLP of block 0"

    def test_it_does_not_show_writers_where_there_are_none(self):
        study = planted_study("MLP")
        without = with_tables(study, writers=study.writers.iloc[:0])
        assert "writers" not in without.section.figures
        with pytest.raises(ValueError, match=naming("massive activations")):
            plots.massive_writers(without)

    def test_runs_are_compared(self):
        study = planted_study("MLP")
        both = sides({"one": study, "other": study})
        assert both.numbers["rate"].tolist() == [1 / 12, 1 / 12]
        line = both.figures["rates"].data[0]
        assert line.x.tolist() == pytest.approx([1 / 3, 2 / 3, 1])
        assert line.y.tolist() == pytest.approx([0, 1 / 4, 0])  # one of four heads of block 1


class TestFindings:
    def test_a_planted_sink(self):
        study = planted_study("embeddings")
        questions = [" ".join(finding.question.split()[:4]) for finding in study.findings]
        assert study.findings[0].verdict == "yes"
        assert questions == [
            "Is there an attention", "Is it the direction", "Is little read from", "Do outlier dimensions make",
            "Does one component write",
        ]  # fmt: skip
        assert study.findings[0].n_controls == 39
        assert study.findings[3].verdict == "cannot tell", "one head has no interval"
        assert study.findings[4].verdict == "yes"
        assert len(study.draws) == 39
        assert study.draws["rate"].max() < 1 / 12

    def test_who_writes_is_not_asked_where_nothing_is_massive(self):
        model = planted(by="embeddings", heads=())
        model.pos_embed.W_pos.data[0, 5] = 1.0
        study = sinks.study(model, IDS, key_classes=CLASSES, progress=False)
        assert [finding.verdict for finding in study.findings] == ["no"]

    def test_the_same_in_every_position_is_no_sink_of_the_first(self):
        """Without a control there is no verdict, and with one that has the same rate there is none either."""
        tables = planted_study("embeddings").tables
        for draws in (tables["draws"].iloc[:0], tables["draws"].assign(rate=1 / 12)):
            assert sink_findings(tables | {"draws": draws}, 0.3)[0].verdict in ("cannot tell", "no")

    @pytest.mark.parametrize(
        ("measure", "ends", "place", "verdict"),
        [
            ("direction_ratio", (0.6, 0.8), 1, "yes"),
            ("direction_ratio", (0.1, 0.3), 1, "no"),
            ("direction_ratio", (0.47, 0.53), 1, "no"),
            ("direction_ratio", (0.4, 0.8), 1, "cannot tell"),
            ("value_ratio", (0.2, 0.4), 2, "yes"),
            ("value_ratio", (1.2, 1.4), 2, "no"),
            ("value_ratio", (np.nan, np.nan), 2, "cannot tell"),
        ],
    )
    def test_each_verdict(self, measure, ends, place, verdict):
        tables = dict(planted_study("embeddings").tables)
        measures = tables["measures"].set_index("measure")
        measures.loc["rate", ["value", "low", "high"]] = 0.9, 0.8, 1.0
        measures.loc[measure, ["value", "low", "high"]] = np.mean(ends), *ends
        found = sink_findings(tables | {"measures": measures.reset_index()}, 0.3)
        assert found[0].verdict == "yes"
        assert found[place].verdict == verdict

    @pytest.mark.parametrize(("shares", "verdict"), [((0.6, 0.2), "yes"), ((0.3, 0.3), "no"), ((0.1, 0.5), "no")])
    def test_outlier_dimensions_against_the_largest_others(self, shares, verdict):
        heads = [
            pd.DataFrame(
                {"layer": 0, "head": head, "dim": range(3), "abs_share": [*shares, 0.01], "outlier": [1, 0, 0]}
            )
            for head in range(6)
        ]
        tables = planted_study("embeddings").tables | {"dims": pd.concat(heads).astype({"outlier": bool})}
        assert sink_findings(tables, 0.3)[3].verdict == verdict
