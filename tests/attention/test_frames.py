"""Outlier dimensions against the same perturbation elsewhere: recipes, draws and shares by brute force in float64."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming
from scipy.special import logit

from interp import attention, corpora, hooks
from interp.analyses.attention.claims import controls_of, largest_effects
from interp.analyses.attention.findings import explained, steered, untested
from interp.analyses.attention.frames import ALL, FrameDraws, Removal, largest_changes
from interp.analyses.attention.shares import outlier_shares
from interp.instruments.rotations import random_frames
from interp.instruments.scores import ScoreContributions
from interp.models.sites import hook_name
from interp.passes.reading import observe
from interp.testing import toy_decoder

DOUBLE = torch.float64
CLASSES = {"a": range(7, 27), "b": range(27, 40)}
MEANS = torch.linspace(-2, 2, 16, dtype=DOUBLE)


def attention_input(model, tokens, layer):
    """x, the input of keys, and the attention pattern."""
    _, cache = model.run_with_cache(tokens)
    block = model.blocks[layer]
    if f"blocks.{layer}.ln1.hook_normalized" not in cache or model.cfg.original_architecture == "BertForMaskedLM":
        return cache[f"blocks.{layer}.hook_resid_pre"]
    x = cache[f"blocks.{layer}.ln1.hook_normalized"] * block.ln1.w
    return x + block.ln1.b if hasattr(block.ln1, "b") else x


def stored_weight(model, layer):
    attn = model.blocks[layer].attn
    return getattr(attn, "_W_K", attn.W_K).detach()


def patterns(model, tokens, layer, move=None):
    """The pattern of a layer, with the keys changed by a function."""
    seen = {}

    def keep(pattern, hook):
        seen["pattern"] = pattern

    recipe = [(hook_name(model, "pattern", layer), keep)]
    if move is not None:
        recipe.append((hook_name(model, "k", layer), lambda k, hook: move(k)))
    with model.hooks(fwd_hooks=recipe):
        model(tokens)
    return seen["pattern"].detach()


@pytest.mark.parametrize("mode", ["zero", "mean"])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_the_same_is_removed_along_other_directions(kind, mode, load_toy):
    model = load_toy(kind, dtype=DOUBLE)
    tokens = torch.randint(7, 67, (3, 9), generator=torch.Generator().manual_seed(0))
    dims, frame = [3, 9, 12], random_frames(16, 3, draws=1)[0]
    fill = MEANS if mode == "mean" else torch.zeros(16, dtype=DOUBLE)
    x, weight = attention_input(model, tokens, 1), stored_weight(model, 1)
    added = torch.einsum("bnk,kd,hde->bnhe", (x - fill)[..., dims], frame, weight)
    expected = patterns(model, tokens, 1, lambda k: k - added)
    how = {"mode": mode, "means": MEANS if mode == "mean" else None, "along": frame}
    with model.hooks(fwd_hooks=hooks.ablate_dims(model, 1, dims, where="keys", **how)):
        found = patterns(model, tokens, 1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert (found - patterns(model, tokens, 1)).abs().max() > 1e-4

    axes = torch.eye(16, dtype=DOUBLE)[dims]
    for where in ("keys", "queries", "residual"):
        logits = []
        for along in (None, axes):
            with model.hooks(fwd_hooks=hooks.ablate_dims(model, 1, dims, where=where, **how | {"along": along})):
                logits.append(model(tokens))
        torch.testing.assert_close(*logits, rtol=1e-9, atol=1e-9)


def test_the_residual_stream_along_other_directions(load_toy):
    model, seen, edited = load_toy("gpt2", dtype=DOUBLE), {}, {}
    tokens, frame = torch.tensor([[7, 8, 9]]), random_frames(16, 2, draws=1, seed=1)[0].numpy()
    with model.hooks(fwd_hooks=hooks.capture(model, "resid_pre", seen, layer=1)):
        model(tokens)
    recipe = hooks.ablate_dims(model, 1, [2, 4], where="residual", along=frame)
    with model.hooks(fwd_hooks=recipe + hooks.capture(model, "resid_pre", edited, layer=1)):
        model(tokens)
    (before,), (after,) = seen.values(), edited.values()
    expected = before.detach().numpy() - before.detach().numpy()[..., [2, 4]] @ frame
    np.testing.assert_allclose(after.detach().numpy(), expected, atol=1e-12)


def test_recipes_along_directions_compose(load_toy):
    """A dimension that another recipe has removed from the same keys is 0 for the next."""
    model = load_toy("gpt2", dtype=DOUBLE)
    tokens, frame = torch.tensor([[7, 8, 9, 10]]), random_frames(16, 1, draws=1)[0]
    axis = hooks.ablate_dims(model, 1, [3], where="keys")
    with model.hooks(fwd_hooks=axis):
        expected = model(tokens)
    with model.hooks(fwd_hooks=axis + hooks.ablate_dims(model, 1, [3], where="keys", along=frame)):
        torch.testing.assert_close(model(tokens), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("along", "values"),
    [(torch.eye(16)[:1], ("along", "[2, 16]", "(1, 16)")), (torch.full((2, 16), torch.nan), ("along",))],
)
def test_directions_that_do_not_fit(along, values, load_toy):
    with pytest.raises(ValueError, match=naming(*values)):
        hooks.ablate_dims(load_toy("gpt2"), 1, [2, 4], where="keys", along=along)


def test_random_frames_are_uniform():
    frames = random_frames(5, 2, draws=4_000)
    torch.testing.assert_close(frames @ frames.mT, torch.eye(2, dtype=DOUBLE).expand(4_000, 2, 2))
    assert frames.mean(0).abs().max() < 0.03, "QR without signs has a sign"
    torch.testing.assert_close(frames.square().mean(0), torch.full((2, 5), 0.2, dtype=DOUBLE), atol=0.02, rtol=0)
    with pytest.raises(ValueError, match=naming(6, 5)):
        random_frames(5, 6, draws=1)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "mistral"])
def test_draws_by_brute_force(kind, load_toy):
    """Each draw is a forward pass of its own, with edited keys."""
    model, names = load_toy(kind, dtype=DOUBLE), (*CLASSES, "other")
    lengths = [12, 12, 5, 9] * 5
    drawn = [torch.randint(7, 67, (n,), generator=torch.Generator().manual_seed(i)) for i, n in enumerate(lengths)]
    texts = [" ".join(f"w{token - 7}" for token in row.tolist()) for row in drawn]
    batches = corpora.batches(model, texts, layout="texts", batch_size=7)
    fills = {layer: (layer + 1) * MEANS.numpy() for layer in (0, 1)}
    removal = Removal.of([3, 9], fills, tested=2, seed=0)
    observer = FrameDraws(model, corpora.token_classes(model, CLASSES), removal, seed=5)
    observe(model, batches, observer, progress=False)
    frames, table = observer.frames, observer.table

    rows = [
        batch.tokens[row : row + 1, :length]
        for batch in batches
        for row, length in enumerate(batch.mask.sum(1).tolist())
    ]
    inputs = {
        layer: [attention_input(model, tokens, layer) - torch.from_numpy(mean) for tokens in rows]
        for layer, mean in fills.items()
    }

    def by_class(layer, move):
        total, n = np.zeros(3), 0
        for tokens, x in zip(rows, inputs[layer], strict=True):
            pattern = patterns(model, tokens, layer, lambda k, x=x: k - move(layer, x))[0].mean(0)
            length = tokens.shape[1]
            chosen = range(length) if length <= 8 else [(2 * i + 1) * length // 16 for i in range(8)]
            of = [torch.isin(tokens[0], torch.tensor([*ids])) for ids in CLASSES.values()]
            of.append(~(of[0] | of[1]))
            total += [pattern[list(chosen)][:, one].sum().item() for one in of]
            n += len(chosen)
        return total / n

    def nothing(layer, x):
        return 0.0

    @functools.cache
    def by_layer(move):
        return np.stack([by_class(layer, move) for layer in (0, 1)])

    def largest(move, without=nothing):
        before, after = by_layer(without), by_layer(move)
        change = (logit(after) - logit(before))[:, :2]
        layer, name = np.unravel_index(np.abs(change).argmax(), change.shape)
        return int(layer), names[name], before[layer, name], after[layer, name], change[layer, name]

    def moving(dims, directions, equal=False):
        def move(layer, x):
            weight = stored_weight(model, layer)
            added = torch.einsum("kd,hde->khe", directions, weight)
            if equal:
                added = added * (weight[:, dims].norm(dim=2).T / added.norm(dim=2))[..., None]
            return torch.einsum("bnk,khe->bnhe", x[..., dims], added)

        return move

    axes = torch.eye(16, dtype=DOUBLE)
    expected = {("3", "removed", 0): moving([3], axes[[3]]), (ALL, "removed", 0): moving([3, 9], axes[[3, 9]])}
    along = {("9", "frame", 7): moving([9], frames[7, :1]), (ALL, "frame", 38): moving([3, 9], frames[38])}
    along |= {("9", "equal keys", 2): moving([9], frames[2, :1], True)}
    along |= {(ALL, "equal keys", 4): moving([3, 9], frames[4], True)}
    single, pair = removal.ordinary[6], removal.ordinary_sets[11]
    expected |= {
        ("3", "ordinary", 6): moving([single], axes[[single]]),
        (ALL, "ordinary", 11): moving(pair, axes[pair]),
    }
    found = table.set_index(["dims", "kind", "draw"])
    changes = {key: largest(move) for key, move in expected.items()}
    for key, move in along.items():
        dims = [3, 9] if key[0] == ALL else [9]
        own = moving(dims, axes[dims])
        changes[key] = largest(lambda layer, x, own=own, move=move: own(layer, x) - move(layer, x), own)
    for key, (layer, name, before, after, change) in changes.items():
        row = found.loc[key]
        assert (row["layer"], row["key_class"]) == (layer, name), key
        numbers = row[["attention_before", "attention_after", "log_odds"]].astype(float)
        np.testing.assert_allclose(numbers, [before, after, change], rtol=1e-7, err_msg=str(key))
    sizes = table.groupby(["dims", "kind"]).size()
    assert sizes[[("3", "removed"), ("3", "frame"), ("9", "equal keys"), (ALL, "ordinary")]].tolist() == [1, 39, 39, 39]
    removed = table[table["kind"] == "removed"]
    assert (removed["log_odds_low"] < removed["log_odds"]).all()
    assert table.loc[table["kind"] != "removed", "log_odds_low"].isna().all()


def test_rows_are_thinned_and_parts_merge(load_toy):
    model = load_toy("gpt2", dtype=DOUBLE)
    ids = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    removal = Removal.of([3], {1: np.zeros(16)}, tested=3, seed=0)
    assert (list(removal.sets), removal.ordinary_sets, len(removal.ordinary)) == (["3"], [], 15)

    def drawn(ids, every):
        observer = FrameDraws(model, corpora.token_classes(model, CLASSES), removal, row_step=every)
        observe(model, corpora.batches(model, ids, batch_size=3), observer, progress=False)
        return observer.table

    some, alone = drawn(ids, 2), drawn(ids[::2], 1)
    pd.testing.assert_frame_equal(some, alone, rtol=1e-9)


def test_the_largest_change_by_hand():
    before = np.array([[0.5, 0.01, 0.49], [0.3, 0.1, 0.6]])
    after = np.array([[[0.4, 0.015, 0.585], [0.5, 0.5, 0.0]], [[0.3, 0.12, 0.58], [0.3, 0.1, 0.6]]])
    table = largest_changes(before, after, [2, 5], ["a", "b", "other"])
    assert table[["layer", "key_class"]].values.tolist() == [[2, "a"], [2, "b"]], ".01 to .015 does not count"
    np.testing.assert_allclose(table["log_odds"], [logit(0.4) - logit(0.5), logit(0.5) - logit(0.01)])
    nothing = largest_changes(before, np.stack([before, before], 1), [2, 5], ["a", "b", "other"])
    assert nothing["log_odds"].tolist() == [0.0, 0.0]


def test_of_both_kinds_of_directions_the_larger_counts():
    rows = {"dims": "3", "kind": ["removed", "frame", "frame", "equal keys", "equal keys", "ordinary"]}
    rows |= {"draw": [0, 0, 1, 0, 1, 0], "log_odds": [-3.0, 0.5, -0.1, 0.2, 0.3, -0.4], "layer": 0, "key_class": "a"}
    frames = pd.DataFrame(rows)
    controls = controls_of(frames, "3")
    assert (controls["directions"].tolist(), controls["ordinary"].tolist()) == ([0.5, 0.3], [0.4])
    claim = largest_effects(frames).iloc[0]
    assert (claim["n_controls"], claim["of_directions"], claim["of_ordinary"]) == (2, 0.5, 0.4)
    assert largest_effects(frames.iloc[:0]).empty


@pytest.fixture(scope="module")
def wide():
    model = toy_decoder(n_embd=64)
    words = torch.randint(60, (40, 14), generator=torch.Generator().manual_seed(0))
    return model, corpora.batches(model, [" ".join(f"w{i}" for i in row) for row in words.tolist()], layout="texts")


def judged(model, batches, sets):
    """The verdict of each of these dimensions, as if they were outliers."""
    d_model, layers = model.cfg.d_model, range(model.cfg.n_layers)
    rest = np.setdiff1d(np.arange(d_model), sets)[:39].tolist()
    removal = Removal({str(dim): [dim] for dim in sets}, rest, [], {layer: np.zeros(d_model) for layer in layers})
    observer = FrameDraws(model, corpora.token_classes(model, CLASSES), removal)
    observe(model, batches, observer, progress=False)
    return {found.question: found for found in steered(observer.table, {}, "keys")}


def test_ordinary_dimensions_do_not_steer_attention(wide):
    found = judged(*wide, list(range(20))).values()
    assert len(found) == 20
    assert sum(one.verdict == "yes" for one in found) <= 1
    assert np.mean([one.p <= 0.05 for one in found]) <= 0.15


@pytest.fixture
def planted(wide):
    """Dimension 5 is large at the class a, and read by the keys of block 0 along the mean query."""
    model, batches = wide
    with torch.no_grad():
        embeddings, weight = model.embed.W_E.clone(), model.blocks[0].attn.W_K.clone()
        model.embed.W_E[7:27, 5] += 6.0
        seen = {}
        with model.hooks(fwd_hooks=hooks.capture(model, "q", seen, layer=0)):
            for batch in batches:
                model(batch.tokens)
        (q,) = seen.values()
        query = q.mean((0, 1))
        model.blocks[0].attn.W_K[:, 5] = 0.8 * query / query.norm(dim=1, keepdim=True)
    yield model, batches
    with torch.no_grad():
        model.embed.W_E.copy_(embeddings)
        model.blocks[0].attn.W_K.copy_(weight)


def test_a_planted_dimension_steers_attention(planted):
    found = judged(*planted, [5, 11])
    of_planted = found["Does outlier dimension 5 steer attention more than other directions do?"]
    assert of_planted.verdict == "yes"
    assert "in block 0 for the class a (from " in of_planted.measure
    assert found["Does outlier dimension 11 steer attention more than other directions do?"].verdict != "yes"


def test_a_planted_dimension_is_the_answer(planted):
    model, batches = planted
    study = attention.study(model, batches, key_classes=CLASSES, progress=False)
    found = study.answer
    assert found.text.startswith("Dimension 5 sets one class of keys apart most: in block 0 it makes ")
    assert (found.values["dim"], found.values["layer"], found.values["key_class"]) == (5, 0, "a")
    assert found.values["share"] > 0.5
    assert 5 in found.values["outliers"]
    assert (found.values["removed_layer"], found.values["removed_class"]) == (0, "a")
    assert found.values["attention_after"] < 0.6 * found.values["attention_before"]
    keys = study.ablation.query("layer == 0 and dim == 5")
    means = np.zeros(model.cfg.d_model)
    means[5] = (keys["magnitude"] ** 2 - keys["removed"] ** 2).iloc[0] ** 0.5
    with model.hooks(fwd_hooks=hooks.ablate_dims(model, 0, [5], where="keys", mode="mean", means=means)):
        without = attention.attention_by_class(model, batches, layers=[0], key_classes=CLASSES, progress=False)
    expected = without[without["key_class"] == "a"]["sum"].mean()
    assert found.values["attention_without_dim"] == pytest.approx(expected, rel=1e-4)
    assert f" to {expected:.3f}. Without the " in found.text


def test_shares_of_outliers_by_brute_force(load_toy):
    model = load_toy("gpt2", dtype=DOUBLE)
    ids = torch.randint(7, 67, (40, 12), generator=torch.Generator().manual_seed(0))
    scores = ScoreContributions(model, corpora.token_classes(model, CLASSES))
    observe(model, corpora.batches(model, ids), scores, progress=False)
    outliers = pd.DataFrame({"state": [1, 1, 0], "dim": [3, 5, 9]})
    table = outlier_shares(attention.gaps(scores.scores), outliers, scores)
    means = scores.scores.table.groupby(["layer", "key_class", "dim"])["centred_mean"].mean()
    for row in table.itertuples():
        gap = (means[row.layer][row.key_class] - means[row.layer]["other"]).to_numpy()
        dims = [3, 5] if row.layer == 1 else [9]
        others = np.sort(np.delete(gap / gap.sum(), dims))[-len(dims) :]
        expected = [len(dims), gap.sum(), gap[dims].sum() / gap.sum(), others.sum()]
        np.testing.assert_allclose([row.n_dims, row.gap, row.outlier_share, row.control_share], expected)
        assert row.share_beyond == pytest.approx(row.outlier_share - row.control_share)
        assert row.share_beyond_low < row.share_beyond < row.share_beyond_high
    assert len(table) == 4
    without = outlier_shares(attention.gaps(scores.scores), outliers)
    assert without["share_beyond_low"].isna().all()


@pytest.mark.parametrize(
    ("own", "others", "half", "verdict"),
    [(0.6, 0.2, 0.1, "yes"), (0.1, 0.3, 0.1, "no"), (0.3, 0.3, 0.02, "no"), (0.3, 0.3, 0.2, "cannot tell")],
)
def test_whether_outliers_explain_scores(own, others, half, verdict):
    row = {"key_class": "sep", "n_dims": 2, "outlier_share": own, "control_share": others}
    row |= {"share_beyond": own - others, "share_beyond_low": own - others - half}
    row |= {"share_beyond_high": own - others + half}
    shares = pd.DataFrame(
        [row | {"layer": 4, "gap": 3.0}, row | {"layer": 2, "gap": -9.0}, row | {"layer": 1, "gap": 1.0}]
    )
    (found,) = explained(shares, {"sep": "[SEP]"})
    assert found.verdict == verdict
    assert found.question == "Do outlier dimensions raise the scores of [SEP] more than as many others do?"
    assert "in block 4, where" in found.measure
    assert not list(explained(shares.assign(gap=-1.0), {}))


def test_outliers_that_were_not_removed_are_counted():
    outliers = pd.DataFrame({"dim": [4, 4, 7, 9, 2]})
    ablation = pd.DataFrame({"dim": [4, 7, 1], "set": ["outlier", "outlier", "random"]})
    assert list(untested(outliers, ablation)) == [
        "4 dimensions are outliers in some state, and only 2 of them were removed one by one (4, 7); nothing is said "
        "of each of the others"
    ]
    assert not list(untested(outliers.head(3), ablation))
    assert not list(untested(outliers, ablation.tail(1))), "nothing was to be removed"
