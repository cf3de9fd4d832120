"""Contributions to attention scores against an explicit double loop over queries and keys, independent of interp.

The reference reads every sentence by itself, unpadded and in float64, and builds the rotations as matrices.
"""

import dataclasses
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from naming import naming
from oracles import attention as oracle
from toys import HF_MODELS
from transformer_lens import HookedEncoder, HookedTransformer, HookedTransformerConfig

import interp
from interp import attention, corpora
from interp.analyses.attention import score_contributions
from interp.analyses.attention.patterns import AttentionByClass
from interp.instruments.scores import ScoreContributions
from interp.models.qk import qk_circuit
from interp.results.columns import displayed
from interp.testing import randomise

KINDS = ["bert", "gpt2", "opt", "gpt_neox", "gptj", "llama", "qwen2", "gpt_neo"]
WAYS = [(weights, average) for weights in ("mean", "attention") for average in ("pair", "sentence")]
CLASSES = {"common": [7, 8], "middle": range(9, 20)}
REAL = ["One day, a dog saw a cat.", "Hello.", "The sun was hot, and he sat down.", "Yes, it is."]
SIZE = {"n_layers": 1, "d_model": 8, "n_ctx": 12, "d_head": 4, "n_heads": 2, "d_vocab": 67, "act_fn": "gelu"}
KEY = ["layer", "head", "key_class"]
PARTS = ["mean", "centred_mean", "ln_bias_mean"]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def short(texts):
    """Texts of 3 to 20 words, so each fits in a row with [CLS] and [SEP]; the first has no token of class middle."""
    return ["w0 w1 w0"] + [" ".join(text.split()[: 4 + 4 * i]) for i, text in enumerate(sorted(texts, key=len)[-5:])]


def array(parameter):
    return parameter.detach().double().numpy()


def rotation(attn, position):
    """R of a position, from the model's own table of cosines and sines; the identity in models without RoPE."""
    cfg = attn.cfg
    if cfg.positional_embedding_type != "rotary":
        return np.eye(cfg.d_head)
    angles = oracle.angles(position, cfg.rotary_dim, cfg.rotary_base)
    first = slice(0, cfg.rotary_dim, 2) if cfg.rotary_adjacent_pairs else slice(0, cfg.rotary_dim // 2)
    cos, sin = array(attn.rotary_cos[position, first]), array(attn.rotary_sin[position, first])
    np.testing.assert_allclose([cos, sin], [np.cos(angles), np.sin(angles)], atol=1e-5)
    return oracle.rotation(cos, sin, cfg.d_head, adjacent=cfg.rotary_adjacent_pairs)


def sees(model, layer, m, n):
    if isinstance(model, HookedEncoder):
        return True
    local = model.blocks[layer].attn.attn_type == "local"
    return n <= m and (not local or n > m - model.cfg.window_size)


@torch.no_grad()
def brute(model, tokens, layer):
    """C [head, m, n, j] of one sentence, C minus its mean over keys, and its part by the norm's bias; NaN if unseen."""
    cache = model.run_with_cache(torch.tensor(tokens)[None])[1]
    block = model.blocks[layer]
    attn = block.attn
    if isinstance(model, HookedEncoder):
        x = array(cache[f"blocks.{layer}.hook_resid_pre"])[0]
        bias = array(model.blocks[layer - 1].ln2.b if layer else model.embed.ln.b)
    else:
        bias = array(block.ln1.b) if hasattr(block.ln1, "b") else np.zeros(model.cfg.d_model)
        x = array(cache[f"blocks.{layer}.ln1.hook_normalized"])[0] * array(block.ln1.w) + bias
    n_heads, length = model.cfg.n_heads, len(tokens)
    n_kv = model.cfg.n_key_value_heads or n_heads
    W_K, b_K = (attn.W_K, attn.b_K) if n_kv == n_heads else (attn._W_K, attn._b_K)
    W_K, b_K = array(W_K), array(b_K)
    q = np.einsum("md,hde->hme", x, array(attn.W_Q)) + array(attn.b_Q)[:, None]
    R = [rotation(attn, position) for position in range(length)]
    view = partial(sees, model, layer)
    C = oracle.contributions(x, q, W_K, R, view)
    by_bias = oracle.contributions(np.tile(bias, (length, 1)), q, W_K, R, view)
    key_bias = oracle.key_bias(q, b_K, R, view)
    seen = ~np.isnan(key_bias[0])
    alpha = array(cache[f"blocks.{layer}.attn.hook_pattern"])[0]
    assert (alpha[:, ~seen] == 0).all()
    return SimpleNamespace(
        C=C,
        centred=C - np.nanmean(C, axis=2, keepdims=True),
        by_bias=by_bias,
        key_bias=key_bias,
        score=array(cache[f"blocks.{layer}.attn.hook_attn_scores"])[0] * attn.attn_scale,
        alpha=alpha,
        seen=seen,
    )


def sentences(batches):
    """The token ids of each row without its padding."""
    return [row[: int(m.sum())].tolist() for batch in batches for row, m in zip(batch.tokens, batch.mask, strict=True)]


def labels(tokens, classes):
    return np.array([next((name for name, ids in classes.items() if t in ids), "other") for t in tokens])


def expected_means(model, rows, layers, classes):
    """(weights, average) → (layer, head, class) → the mean of each quantity, and the number of pairs."""
    found = {way: {} for way in WAYS}
    for layer in layers:
        entries = [(brute(model, row, layer), labels(row, classes)) for row in rows]
        for head in range(model.cfg.n_heads):
            for name in (*classes, "other", "all"):
                sums = {weights: [] for weights in ("mean", "attention")}
                for e, of_key in entries:
                    pairs = e.seen & ((of_key == name) | (name == "all"))
                    if not pairs.any():
                        continue
                    values = [part[head][pairs] for part in (e.C, e.centred, e.by_bias)]
                    values += [part[head][pairs][:, None] for part in (e.C.sum(-1), e.key_bias, e.score)]
                    for weights, a in (("mean", np.ones(pairs.sum())), ("attention", e.alpha[head][pairs])):
                        sums[weights].append((a @ np.concatenate(values, axis=1), a.sum()))
                n_pairs = sum(int((e.seen & ((of_key == name) | (name == "all"))).sum()) for e, of_key in entries)
                for weights, parts in sums.items():
                    pooled = sum(v for v, _ in parts) / sum(a for _, a in parts)
                    by_sentence = np.mean([v / a for v, a in parts], axis=0)
                    found[weights, "pair"][layer, head, name] = pooled, n_pairs
                    found[weights, "sentence"][layer, head, name] = by_sentence, n_pairs
    return found


def compare(scores, totals, expected, d_model, tolerance=1e-9):
    assert set(map(tuple, scores[KEY].drop_duplicates().to_numpy())) == set(expected)
    assert sorted(map(tuple, totals[KEY].to_numpy())) == sorted(expected)
    for key, group in scores.groupby(KEY):
        values, n_pairs = expected[key]
        assert list(group["dim"]) == list(range(d_model))
        assert (group["n_pairs"] == n_pairs).all()
        np.testing.assert_allclose(group[PARTS].to_numpy().T.flatten(), values[:-3], rtol=0, atol=tolerance)
    for row in totals.itertuples():
        values, _ = expected[row.layer, row.head, row.key_class]
        ours = [row.contributions, row.key_bias, row.score]
        np.testing.assert_allclose(ours, values[-3:], rtol=0, atol=10 * tolerance)


def check_against_brute_force(model, batches, layers, classes):
    assert any(batch.padded for batch in batches)
    expected = expected_means(model, sentences(batches), layers, classes)
    for weights, average in WAYS:
        options = {"layers": layers, "weights": weights, "average": average}
        observer = ScoreContributions(model, corpora.token_classes(model, classes), **options)
        interp.observe(model, batches, observer, progress=False)
        compare(observer.scores.table, observer.totals, expected[weights, average], model.cfg.d_model)
        table = score_contributions(model, batches, key_classes=classes, progress=False, **options)
        pd.testing.assert_frame_equal(table, observer.scores.table)


@pytest.mark.quick("gpt2", "llama", "bert")
@pytest.mark.parametrize("kind", KINDS)
def test_means_equal_brute_force(kind, load_toy, short):
    model = load_toy(kind, dtype=torch.float64)
    reader = load_toy("gpt2") if kind == "qwen2" else model  # qwen2's toy tokenizer loses its words
    model.tokenizer = reader.tokenizer
    batches = corpora.batches(reader, short, layout="texts", batch_size=3)
    check_against_brute_force(model, batches, [0, 1], CLASSES)


@pytest.mark.parametrize("adjacent", [True, False])
def test_means_equal_brute_force_with_several_frequencies(adjacent, load_toy, short):
    """Two pairs on four of eight coordinates distinguish the conventions; the toys rotate one pair or all pairs."""
    rotary = {"positional_embedding_type": "rotary", "rotary_dim": 4, "rotary_adjacent_pairs": adjacent}
    size = SIZE | {"d_head": 8, "n_heads": 4, "n_key_value_heads": 2, "n_ctx": 24, "normalization_type": "LN"}
    model = HookedTransformer(HookedTransformerConfig(**size, **rotary, dtype=torch.float64))
    randomise(model)
    batches = corpora.batches(load_toy("gpt2"), short, layout="texts", batch_size=3)
    check_against_brute_force(model, batches, [0], CLASSES)
    table = attention.scores.check_decomposition(model, torch.arange(7, 27))
    assert (table["max_error"] < 1e-10 * np.maximum(1, table["max_score"])).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers"), [("tiny-bert", [0, 5]), ("llama-stories260k", [0, 3])])
def test_means_equal_brute_force_in_real_models(name, layers, request):
    path = name if name == "tiny-bert" else request.getfixturevalue("shared") / "models" / name
    model = interp.load(path, dtype=torch.float64)
    batches = corpora.batches(model, REAL, layout="texts")
    first, *_, last = sentences(batches)[-1]
    check_against_brute_force(model, batches, layers, {"first": [first], "last": [last]})


@pytest.mark.parametrize("weights", ["mean", "attention"])
def test_scaled_and_not_centred(weights, load_toy, short):
    model = load_toy("gptj", dtype=torch.float64)
    options = {"key_classes": CLASSES, "weights": weights, "progress": False}
    plain = score_contributions(model, short, **options)
    nats = score_contributions(model, short, scaled=True, **options)
    scale = model.blocks[0].attn.attn_scale
    assert scale == 2
    np.testing.assert_allclose(nats[PARTS] * scale, plain[PARTS], rtol=0, atol=1e-12)
    off = score_contributions(model, short, centred=False, **options)
    columns = [*KEY, "dim", "mean", "ln_bias_mean", "n_pairs"]
    pd.testing.assert_frame_equal(off[columns], plain[columns])
    assert off["centred_mean"].isna().all()


@pytest.mark.parametrize("options", [{}, {"layers": [1], "scaled": True, "centred": False}])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])  # with a bias of the norm, and without
def test_scores_are_the_tidy_table_of_the_sums(kind, options, load_toy, short, monkeypatch):
    """Each column is a sum divided by its weight, with one row per combination of labels; large tables are float32."""
    model = load_toy(kind)
    observer = ScoreContributions(model, corpora.token_classes(model, CLASSES), **options)
    interp.observe(model, corpora.batches(model, short), observer, progress=False)
    labels = [observer.layers, range(model.cfg.n_heads), observer.names, range(model.cfg.d_model)]
    index = pd.MultiIndex.from_product(labels, names=[*KEY, "dim"])
    columns = {"mean": [], "centred_mean": [], "ln_bias_mean": [], "n_pairs": []}
    for layer in observer.layers:
        state = {name.partition(".")[2]: sums for name, sums in observer.state.items() if name[0] == str(layer)}
        for name, sums in state.items():
            of_class = 0 if name == "pairs" else 1
            state[name] = torch.cat([sums, sums.sum(of_class, keepdim=True)], of_class)
        circuit = qk_circuit(model, layer)
        weight = state["weight"][..., None]
        scale = circuit.scale if observer.scaled else 1.0
        mean, query = (state[name] / weight / scale for name in ("contribution", "query"))
        ln_bias = torch.zeros(model.cfg.d_model) if circuit.ln_bias is None else circuit.ln_bias
        turned = torch.einsum("hcd,hmd->hcm", query.float(), circuit.W_K)
        columns["mean"].append(mean)
        columns["centred_mean"].append(state["centred"] / weight if observer.centred else mean * torch.nan)
        columns["ln_bias_mean"].append((turned * ln_bias).double())
        columns["n_pairs"].append(state["pairs"][None, :, None].long().expand_as(mean))
    flat = {name: torch.stack(parts).detach().numpy().ravel() for name, parts in columns.items()}
    expected = pd.DataFrame(flat, index).reset_index()
    pd.testing.assert_frame_equal(observer.scores.table, expected, check_exact=True)
    monkeypatch.setattr("interp.results.dense.MOST_ROWS", len(expected) - 1)
    large = observer.scores
    assert all(large.arrays[name].dtype == np.float32 for name in PARTS)
    for name in PARTS:
        np.testing.assert_array_equal(large.table[name], expected[name].astype(np.float32))


def test_the_first_position_is_a_class_of_its_own_by_default(load_toy):
    """This holds whatever token is there but BOS, which has a class; in encoders it is [CLS]."""
    assert "first" not in corpora.token_classes(load_toy("bert")).names
    model = load_toy("gpt2", dtype=torch.float64)
    bos = model.tokenizer.bos_token_id
    tokens = torch.randint(7, 67, (6, 20), generator=torch.Generator().manual_seed(0))
    tokens[:3, 0], tokens[:, 9] = bos, bos
    classes = corpora.token_classes(model)
    assert classes.names == ("first", "bos", "comma_period", "other")
    numbers = classes(tokens)
    assert numbers[:, 0].tolist() == [1, 1, 1, 0, 0, 0]
    assert (numbers[:, 1:] != 0).all()
    assert (numbers[:, 9] == 1).all()
    observer = AttentionByClass(model, classes, layers=[1])
    interp.observe(model, corpora.batches(model, tokens), observer, progress=False)
    found = observer.table
    _, cache = model.run_with_cache(tokens)
    pattern = cache["blocks.1.attn.hook_pattern"]
    sums = found.pivot(index="head", columns="key_class", values="sum")
    to_first, to_bos = pattern[3:, ..., 0].sum((0, 2)) / 120, pattern[:3, ..., 0].sum((0, 2)) / 120
    np.testing.assert_allclose(sums["first"], to_first.detach(), rtol=1e-9)
    np.testing.assert_allclose(sums["bos"], (to_bos + pattern[..., 9].mean((0, 2))).detach(), rtol=1e-9)
    by_id = corpora.token_classes(model, {"bos": [bos], "comma_period": []})
    assert classes.describe(67, 24) != by_id.describe(67, 24)


@pytest.mark.filterwarnings("ignore:no token of class")
@pytest.mark.parametrize(("classes", "called"), [(None, "the first token"), ({"first": range(7, 37)}, "first")])
def test_only_classes_of_interp_have_its_names_for_them(load_toy, classes, called):
    """A class `first` of a user may be anything."""
    study = attention.study(
        load_toy("gpt2"), torch.arange(60).reshape(3, 20) + 7, key_classes=classes, ablation=False, progress=False
    )
    cells = {one.name: one.cells for one in displayed(study.by_layer, study.headings)}
    lines = interp.plots.attention_by_layer(study).data
    assert {cells["key_class"][0], lines[0].name} == {called}
    assert f"keys: {called}" in interp.plots.contributions(study, 0, "first").layout.title.text
    assert dict(study.section.columns) == dict(study.headings)


def test_rows_that_begin_with_bos_lack_no_class(load_toy):
    """A class with no tokens left is reported as absent, but not `first`, whose place BOS takes."""
    model = load_toy("gpt2")
    tokens = torch.randint(20, 67, (6, 20), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = model.tokenizer.bos_token_id
    with pytest.warns(UserWarning, match="no token of class") as caught:
        table = attention.attention_by_class(model, tokens, progress=False)
    assert table["key_class"].unique().tolist() == ["bos", "other"]
    assert [str(one.message) for one in caught] == [
        "no token of class comma_period in this text, so the tables have no rows for it"
    ]


def test_input_is_text_batches_or_token_ids(load_toy, short):
    model = load_toy("bert", dtype=torch.float64)
    options = {"key_classes": CLASSES, "progress": False}
    table = score_contributions(model, short, **options)
    prepared = corpora.batches(model, short)
    pd.testing.assert_frame_equal(score_contributions(model, prepared, **options), table)
    tokens = torch.randint(7, 30, (4, 9), generator=torch.Generator().manual_seed(0))
    by_ids = score_contributions(model, tokens, layers=[1], **options)
    assert set(by_ids["layer"]) == {1}
    want = expected_means(model, tokens.tolist(), [1], CLASSES)["mean", "pair"]
    for key, group in by_ids.groupby(KEY):
        np.testing.assert_allclose(group[PARTS].to_numpy().T.flatten(), want[key][0][:-3], rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_one_entry(kind, load_toy):
    model = load_toy(kind, dtype=torch.float64)
    tokens = torch.randint(7, 67, (13,), generator=torch.Generator().manual_seed(1))
    for layer in (0, 1):
        e = brute(model, tokens.tolist(), layer)
        scale = model.blocks[layer].attn.attn_scale
        for head, query, key in ((0, 12, 0), (3, 12, 8), (1, 3, 3), (2, 2, 7), (2, 12, 7), (2, 12, 6)):
            entry = (model, tokens, layer, head, query, key)
            if e.seen[query, key]:
                found = attention.scores.score_contributions_at(*entry)
                np.testing.assert_allclose(found, e.C[head, query, key], rtol=0, atol=1e-9)
                nats = attention.scores.score_contributions_at(*entry, scaled=True)
                np.testing.assert_allclose(nats * scale, found, rtol=0, atol=1e-12)
            else:
                with pytest.raises(ValueError, match=naming(query, key, layer)):
                    attention.scores.score_contributions_at(*entry)
        assert e.seen[12, 6] == (kind != "gpt_neo" or layer == 0), "the window of 6 cuts, and only in the local layer"
        assert e.seen[12, 7]
    for position, values in (
        ((2, 0, 3, 3), ("layer", "0 … 1", 2)),
        ((0, 4, 3, 3), ("head", "0 … 3", 4)),
        ((0, 0, 13, 3), ("query", "0 … 12", 13)),
        ((0, 0, 3, 13), ("key", "0 … 12", 13)),
        ((0, 0, 3, -1), ("key", "0 … 12", -1)),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            attention.scores.score_contributions_at(model, tokens, *position)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "qwen2"])  # its tokenizer knows no toy words
def test_one_text(kind, load_toy):
    model, text = load_toy(kind, dtype=torch.float64), "w1 w2 w5 w1 w9 w3 w3 w4 w8"
    words, special = model.tokenizer(text, add_special_tokens=False)["input_ids"], model.tokenizer
    tokens = [special.cls_token_id, *words, special.sep_token_id] if kind == "bert" else [special.bos_token_id, *words]
    for layer, dim in ((0, 3), (1, 7)):
        e = brute(model, tokens, layer)
        found = attention.attention_in_text(model, text, layer, dim, bos="auto" if kind == "bert" else True)
        expected = np.nan_to_num(e.centred[..., dim]) / model.blocks[layer].attn.attn_scale
        np.testing.assert_allclose(found.contribution, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.pattern, e.alpha, rtol=1e-5, atol=1e-6)
        assert (len(found.tokens), found.layer, found.dim, found.causal) == (len(tokens), layer, dim, kind != "bert")


@pytest.mark.parametrize("kind", HF_MODELS)
def test_decomposition_is_exact_and_can_fail(kind, load_toy):
    model = load_toy(kind, dtype=torch.float64)
    tokens = torch.randint(7, 67, (20,), generator=torch.Generator().manual_seed(2))
    table = attention.scores.check_decomposition(model, tokens)
    assert list(table["layer"]) == [0, 1]
    assert (table["max_error"] < 1e-10 * np.maximum(1, table["max_score"])).all()
    e = brute(model, tokens.tolist(), 1)
    scale = model.blocks[1].attn.attn_scale
    scores = np.where(e.seen, e.score, np.nan) / scale
    centred = scores - np.nanmean(scores, -1, keepdims=True)
    assert table["max_score"][1] == pytest.approx(np.nanmax(np.abs(centred)))

    def edit(scores, hook):
        scores[:, 2, 9, 5] += 1e-3
        return scores

    with model.hooks(fwd_hooks=[("blocks.1.attn.hook_attn_scores", edit)]):
        wrong = attention.scores.check_decomposition(model, tokens)
    alpha = np.exp(scores[2, 9, 5]) / np.nansum(np.exp(scores[2, 9]))
    expected = 1e-3 * max(alpha, 1 - alpha)  # of the edited key, or of the others
    np.testing.assert_allclose(wrong["max_error"], [0, expected], rtol=1e-3, atol=1e-10 * table["max_score"].max())
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_k", lambda k, hook: k * 1.001)]):
        assert attention.scores.check_decomposition(model, tokens)["max_error"].max() > 1e-4


@torch.no_grad()
def expected_attention(model, hf, batches, classes):
    """`attention_by_class` from the attentions of transformers and the values of `model.run_with_cache`."""
    causal = not isinstance(model, HookedEncoder)
    names = (*classes, "other")
    shape = (model.cfg.n_layers, model.cfg.n_heads, len(names))
    total, weighted, uniform = np.zeros((3, *shape))
    n_queries, n_pairs = 0, np.zeros(len(names))
    for batch in batches:
        attentions = hf(batch.tokens, attention_mask=batch.mask, output_attentions=True).attentions
        for i, tokens in enumerate(sentences([batch])):
            length = len(tokens)
            cache = model.run_with_cache(torch.tensor(tokens)[None])[1]
            of_key = labels(tokens, classes)
            n_queries += length
            for layer, alpha in enumerate(array(a[i, :, :length, :length]) for a in attentions):
                v = np.einsum("nhe,hed->hnd", array(cache[f"blocks.{layer}.attn.hook_v"])[0], array(model.W_O[layer]))
                for c, name in enumerate(names):
                    received, by_norm, evenly, n = oracle.by_class(alpha, v, of_key, name, causal=causal)
                    total[layer, :, c] += received
                    weighted[layer, :, c] += by_norm
                    uniform[layer, :, c] += evenly
                    n_pairs[c] += n * (layer == 0)
    index = pd.MultiIndex.from_product([range(shape[0]), range(shape[1]), names], names=KEY)
    columns = [total / n_queries, total / n_pairs, weighted / n_queries, uniform / n_queries]
    table = dict(zip(["sum", "mean", "norm_weighted", "uniform"], map(np.ravel, columns), strict=True))
    return pd.DataFrame(table, index), n_queries


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_attention_by_class_equals_transformers(kind, load_toy, hf_directory, short):
    model = load_toy(kind, dtype=torch.float64)
    batches = corpora.batches(model, short, layout="texts", batch_size=3)
    hf = transformers.AutoModel.from_pretrained(
        hf_directory(kind), attn_implementation="eager", dtype=torch.float64
    ).eval()
    expected, n_queries = expected_attention(model, hf, batches, CLASSES)
    table = attention.attention_by_class(model, batches, key_classes=CLASSES, progress=False)
    assert (table["n_queries"] == n_queries).all()
    ours = table.set_index(KEY)[list(expected)].reindex(expected.index)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-7)
    np.testing.assert_allclose(table.groupby(["layer", "head"])[["sum", "uniform"]].sum(), 1, rtol=0, atol=1e-12)
    one = attention.attention_by_class(model, batches, layers=[1], key_classes=CLASSES, progress=False)
    pd.testing.assert_frame_equal(one, table[table["layer"] == 1].reset_index(drop=True))


@pytest.mark.parametrize("function", [score_contributions, attention.attention_by_class])
@pytest.mark.parametrize(
    ("assign", "values"),
    [
        (lambda tokens: torch.zeros_like(tokens)[:, :-1], ("int64", "torch.int64")),
        (lambda tokens: torch.zeros(tokens.shape, dtype=torch.int32), ("int64", "torch.int32")),
        (lambda tokens: torch.zeros(tokens.shape), ("int64", "torch.float32")),
        (lambda tokens: [0] * len(tokens), ("int64", "list")),
        (lambda tokens: torch.full_like(tokens, 2), ("0 … 1", "a, b", "2 … 2")),
        (lambda tokens: -torch.ones_like(tokens), ("0 … 1", "-1 … -1")),
    ],
)
def test_class_function_that_is_wrong(function, assign, values, load_toy, short):
    classes = corpora.classes.TokenClasses(("a", "b"), assign)
    with pytest.raises(ValueError, match=naming(*values)):
        function(load_toy("gpt2"), short, key_classes=classes, progress=False)


@pytest.mark.parametrize("function", [score_contributions, attention.attention_by_class])
def test_bad_input(function, load_toy, short):
    model = load_toy("gpt2")
    batch = next(iter(corpora.batches(model, short, layout="texts")))
    assert batch.padded
    flipped = {name: getattr(batch, name).flip(1) for name in ("tokens", "mask", "read", "targets")}
    left = corpora.Batches({}, None, lambda: iter([dataclasses.replace(batch, **flipped)]))
    options = {"key_classes": CLASSES, "progress": False}
    for kind in ("gpt2", "bert"):
        with pytest.raises(ValueError, match=naming("row", "corpora.batches")):
            function(load_toy(kind), left, **options)
    for layers in ([2], [0, 99], [-3]):
        with pytest.raises(ValueError, match=naming("layers", "0 … 1", layers)):
            function(model, short, layers=layers, **options)


def test_absent_class_has_no_row(load_toy, short):
    model = load_toy("bert", dtype=torch.float64)
    mask = model.tokenizer.mask_token_id
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = score_contributions(model, short, key_classes=CLASSES | {"never": [mask]}, progress=False)
    assert [w.category for w in caught] == [UserWarning]
    assert "never" in str(caught[0].message)
    present = score_contributions(model, short, key_classes=CLASSES, progress=False)
    pd.testing.assert_frame_equal(table, present)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ({"positional_embedding_type": "alibi"}, ("ALiBi",)),
        ({"positional_embedding_type": "shortformer"}, ("position embeddings", "queries", "keys")),
        ({"use_qk_norm": True, "normalization_type": "RMS"}, ("queries", "keys", "normalised")),
        ({"attn_scores_soft_cap": 5.0}, ("scores", "soft-capped")),
        ({"normalization_type": "LNPre"}, ("layer norms", "interp.load", "from_pretrained_no_processing")),
    ],
)
def test_models_whose_scores_are_not_such_a_sum_are_refused(option, values):
    model = HookedTransformer(HookedTransformerConfig(**(SIZE | {"normalization_type": "LN"} | option)))
    tokens = torch.arange(7, 17)
    with pytest.raises(ValueError, match=naming(*values)):
        score_contributions(model, tokens[None], key_classes=CLASSES, progress=False)
    with pytest.raises(ValueError, match=naming(*values)):
        attention.scores.score_contributions_at(model, tokens, 0, 0, 5, 2)


def test_folded_model_is_refused(load_toy, short):
    model = load_toy("gpt2")
    model.process_weights_(fold_ln=True, center_writing_weights=False, center_unembed=False)
    with pytest.raises(ValueError, match=naming("layer norms", "interp.load", "from_pretrained_no_processing")):
        score_contributions(model, short, key_classes=CLASSES, progress=False)


@pytest.mark.parametrize("kind", ["bert", "gpt_neo", "llama"])
def test_one_pass_equals_alone(kind, load_toy, short):
    model = load_toy(kind, dtype=torch.float64)
    classes = corpora.token_classes(model, CLASSES)
    batches = corpora.batches(model, short, layout="texts", batch_size=3)
    make = (
        lambda: ScoreContributions(model, classes),
        lambda: ScoreContributions(model, classes, layers=[1], weights="attention", scaled=True, average="sentence"),
        lambda: AttentionByClass(model, classes),
    )
    alone, together = [[new() for new in make] for _ in range(2)]
    for observer in alone:
        interp.observe(model, batches, observer, progress=False)
    interp.observe(model, batches, *together, progress=False)
    for a, b in zip(alone[:2], together[:2], strict=True):
        pd.testing.assert_frame_equal(a.scores.table, b.scores.table, check_exact=True)
        pd.testing.assert_frame_equal(a.totals, b.totals, check_exact=True)
    pd.testing.assert_frame_equal(alone[2].table, together[2].table, check_exact=True)
    assert not any(point.has_hooks() for point in model.hook_dict.values())


@pytest.mark.quick("gpt2-pair")
@pytest.mark.parametrize("average", ["pair", "sentence"])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_batch_size_does_not_matter(kind, average, load_toy, short):
    model = load_toy(kind, dtype=torch.float64)
    options = {"key_classes": CLASSES, "progress": False}
    contributions, shares = [], []
    for size in (1, 2, 7):
        batches = corpora.batches(model, short, layout="texts", batch_size=size)
        contributions.append(score_contributions(model, batches, average=average, **options))
        shares.append(attention.attention_by_class(model, batches, **options))
    for table in contributions[1:]:
        pd.testing.assert_frame_equal(table, contributions[0], rtol=0, atol=1e-9)
    for table in shares[1:]:
        pd.testing.assert_frame_equal(table, shares[0], rtol=0, atol=1e-9)
    given = [score_contributions(model, short, batch_size=size, **options) for size in (1, 7)]
    pd.testing.assert_frame_equal(*given, rtol=0, atol=1e-9)


def table_of(means):
    """A table of scores from {(layer, head, class): means}; plain means are noise if only key-centred ones count."""
    rows = [
        (*key, dim, 100.0 * np.sin(dim), value, 0.0, 5)
        for key, values in means.items()
        for dim, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=[*KEY, "dim", *PARTS, "n_pairs"])


@pytest.mark.parametrize("column", ["centred_mean", "mean"])
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_gaps(column, sign):
    """Gaps that are all positive, all negative, and of both signs."""
    rng = np.random.default_rng(0)
    means = {}
    for layer, head in ((0, 0), (0, 1), (4, 0)):
        means[layer, head, "other"] = rng.normal(size=12)
        for name in ("cls", "sep"):
            gap = rng.normal(size=12)
            means[layer, head, name] = means[layer, head, "other"] + (sign * gap**2 if sign else gap)
    scores = table_of(means)
    if column == "mean":
        scores = scores.assign(mean=scores["centred_mean"], centred_mean=np.nan)
    table = attention.gaps(scores.sample(frac=1, random_state=0))
    assert len(table) == 6 * 12
    assert list(table) == [*KEY, "dim", "gap", "share", "rank", "n_dims_90", "abs_share", "n_dims_90_abs"]
    for (layer, head, name), rows in table.sort_values("dim").groupby(KEY):
        gap = means[layer, head, name] - means[layer, head, "other"]
        share = gap / gap.sum()
        np.testing.assert_allclose(rows["gap"], gap, rtol=0, atol=1e-12)
        np.testing.assert_allclose(rows["share"], share, rtol=1e-9)
        np.testing.assert_array_equal(rows["rank"], [1 + (share > s).sum() for s in share])
        assert (rows["n_dims_90"] == oracle.fewest(share, 1)).all()
        abs_share = np.abs(gap) / np.abs(gap).sum()
        np.testing.assert_allclose(rows["abs_share"], abs_share, rtol=1e-9)
        assert (rows["n_dims_90_abs"] == oracle.fewest(abs_share, 1)).all()


@pytest.mark.parametrize(("gap", "count"), [([50, 30, 10, 10], 3), ([7, 1, 1, 1], 3), ([0, 9, 1, 0], 1), ([1, 0], 1)])
def test_ninety_percent_exactly(gap, count):
    table = attention.gaps(table_of({(0, 0, "cls"): [float(g) for g in gap], (0, 0, "other"): [0.0] * len(gap)}))
    assert set(table["n_dims_90"]) == set(table["n_dims_90_abs"]) == {count}


def test_gaps_without_other_are_empty():
    table = attention.gaps(table_of({(0, 0, "cls"): [1.0, 2.0], (0, 0, "sep"): [0.0, 1.0]}))
    assert table.empty
    assert {*KEY, "dim", "gap", "share", "rank", "n_dims_90"} <= set(table.columns)


def test_gaps_of_a_head_that_makes_no_difference():
    """A pruned head (all gaps zero) has no shares and does not change those of the other heads."""
    live = {(0, 0, "cls"): [3.0, 1.0], (0, 0, "other"): [0.0, 0.0]}
    dead = {(0, 1, "cls"): [1.0, 2.0], (0, 1, "other"): [1.0, 2.0]}
    table = attention.gaps(table_of(live | dead))
    assert (table.loc[table["head"] == 1, "gap"] == 0).all()
    pd.testing.assert_frame_equal(table[table["head"] == 0], attention.gaps(table_of(live)), check_dtype=False)
