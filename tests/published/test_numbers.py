"""What interp measures on the published models, against plain transformers and brute force in float64."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from einops import einsum, rearrange, repeat
from naming import naming
from oracles import encoding as of_encoding, frequency as of_frequency
from published import SMOLLM2_GGUF
from toys import SHARED

import interp
from interp import attention, corpora, encoding, frequency, hooks, probing
from interp.analyses.encoding.pruning import removal_order
from interp.analyses.probing.scores import word_surprisal
from interp.analyses.sinks.writers import MassiveWriters
from interp.corpora import pairs
from interp.instruments.massive import MassiveActivations
from interp.models.identity import weight_hash
from interp.passes.reading import forward, observe

TEXT = corpora.load("bundled", limit=3)
LAYERS = {"smollm2": [11, 20], "minilm": [1, 4]}
QUIET = {"progress": False}
SENTENCES = ["The keys to the cabinet are on the table.", "Nobody has unravelled it, apparently."]


class Rows:
    """A model in both forms, a batch of padded rows, and what transformers computes from it."""

    def __init__(self, name, both):
        self.name = name
        self.model, self.plain, self.tokenizer = both
        self.batches = corpora.batches(self.model, TEXT, layout="texts", context=20)
        [self.batch] = self.batches
        self.ids, self.mask = self.batch.tokens, self.batch.mask
        self.real = self.mask.bool()
        assert not self.real.all()
        self.classes = {"listed": self.ids[2, 1::2].tolist()}
        self.is_listed = torch.isin(self.ids, torch.tensor(self.classes["listed"])) & self.real
        with torch.no_grad():
            seen = self.trunk(self.ids, attention_mask=self.mask, output_hidden_states=True, output_attentions=True)
        self.states, self.patterns = seen.hidden_states, seen.attentions

    @property
    def trunk(self):
        return self.plain.model if self.name == "smollm2" else self.plain


@pytest.fixture(scope="module", params=["smollm2", "minilm"])
def rows(request):
    return Rows(request.param, request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def smol(smollm2):
    return Rows("smollm2", smollm2)


@torch.no_grad()
def test_states(rows):
    """The last state of transformers is left out for a decoder, because it is the one after the norm."""
    seen = {}
    n_states = len(rows.states) - (rows.name == "smollm2")
    recipe = hooks.capture(rows.model, "embed", seen)
    for layer in range(n_states - 1):
        recipe += hooks.capture(rows.model, "resid_post", seen, layer=layer)
    with rows.model.hooks(fwd_hooks=recipe):
        forward(rows.model, rows.batch, stop=n_states - 1)
    assert len(seen) == n_states
    for state, expected in zip(seen.values(), rows.states, strict=False):
        difference = (state - expected)[rows.real].norm(dim=-1) / expected[rows.real].norm(dim=-1)
        assert difference.max() < 1e-5


def test_attention_by_class(rows):
    table = attention.attention_by_class(rows.model, rows.batches, key_classes=rows.classes, **QUIET)
    table = table[table["key_class"] == "listed"].sort_values(["layer", "head"])
    expected = [
        (pattern.double() * rows.is_listed[:, None, None]).sum(-1).transpose(1, 2)[rows.real].mean(0)
        for pattern in rows.patterns
    ]
    np.testing.assert_allclose(table["sum"], torch.cat(expected), rtol=0, atol=1e-6)


def attention_weights(rows, layer):
    """Input of the attention, W_Q, b_Q and W_K by head, and the rotation of each position, in float64."""
    config, x = rows.plain.config, rows.states[layer].double()
    heads = partial(rearrange, pattern="(head d_head) d_model -> head d_head d_model")
    if rows.name == "minilm":
        part = rows.plain.encoder.layer[layer].attention.self
        n, d_head = config.num_attention_heads, part.attention_head_size
        bias = part.query.bias.double().unflatten(0, (n, d_head))
        W_Q, W_K = (heads(each.weight.double(), head=n) for each in (part.query, part.key))
        return x, W_Q, bias, W_K, torch.eye(d_head).double().expand(x.shape[1], -1, -1)
    block = rows.plain.model.layers[layer]
    x = x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * block.input_layernorm.weight.double()
    n, n_keys, half = config.num_attention_heads, config.num_key_value_heads, config.head_dim // 2
    W_Q = heads(block.self_attn.q_proj.weight.double(), head=n)
    W_K = heads(block.self_attn.k_proj.weight.double(), head=n_keys)
    W_K = repeat(W_K, "head d_head d_model -> (head group) d_head d_model", group=n // n_keys)
    speed = config.rope_parameters["rope_theta"] ** -(torch.arange(half).double() / half)
    angle = torch.arange(x.shape[1])[:, None] * speed
    cos, sin = angle.cos().diag_embed(), angle.sin().diag_embed()
    rotation = torch.cat([torch.cat([cos, -sin], 2), torch.cat([sin, cos], 2)], 1)
    return x, W_Q, torch.zeros(n, 2 * half).double(), W_K, rotation


@pytest.mark.parametrize("number", [0, 1])
@torch.no_grad()
def test_score_contributions(rows, number):
    """Every C_j of every pair, whose sums over j give the attention of transformers."""
    layer = LAYERS[rows.name][number]
    x, W_Q, b_Q, W_K, rotation = attention_weights(rows, layer)
    q = einsum(x, W_Q, "row query d, head d_head d -> row query head d_head") + b_Q
    q = einsum(rotation, q, "query out d_head, row query head d_head -> row query head out")
    keys = einsum(rotation, W_K, "key out d_head, head d_head d -> key head out d")
    by_dim = einsum(q, keys, "row query head out, key head out d -> row head query key d") * x[:, None, None]
    causal = torch.ones(x.shape[1], x.shape[1]).tril().bool() if rows.name == "smollm2" else True
    pairs_seen = (rows.real[:, None, :] & causal).expand(-1, x.shape[1], -1)
    scores = (by_dim.sum(-1) / W_K.shape[1] ** 0.5).masked_fill(~pairs_seen[:, None], -torch.inf)
    pattern = scores.softmax(-1).transpose(1, 2)[rows.real]
    torch.testing.assert_close(pattern, rows.patterns[layer].transpose(1, 2)[rows.real].double(), atol=1e-5, rtol=0)

    chosen = (pairs_seen & rows.real[:, :, None] & rows.is_listed[:, None, :]).double()
    expected = einsum(by_dim, chosen, "row head query key d, row query key -> head d") / chosen.sum()
    table = attention.score_contributions(
        rows.model, rows.batches, layers=[layer], key_classes=rows.classes, centred=False, **QUIET
    )
    table = table[table["key_class"] == "listed"].sort_values(["head", "dim"])
    assert set(table["n_pairs"]) == {int(chosen.sum())}
    ours = table["mean"].to_numpy().reshape(expected.shape)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


@torch.no_grad()
def test_massive_activations(smol):
    """Dimension 507 of SmolLM2 at the first position, which the MLP of block 11 writes."""
    activations, writers = MassiveActivations(smol.model), MassiveWriters(smol.model)
    observe(smol.model, smol.batches, activations, writers, **QUIET)
    table = activations.table
    expected = {}
    for number, state in enumerate(smol.states[:-1]):
        for row, real in zip(state, smol.real, strict=True):
            size = row[real].abs()
            is_massive = (size > 100) & (size > 1_000 * size.median())
            for position, dim in is_massive.nonzero().tolist():
                count, largest = expected.get((number, dim, position == 0), (0, 0.0))
                expected[number, dim, position == 0] = count + 1, max(largest, size[position, dim].item())
    found = table[table["state"] < len(smol.states) - 1]
    grouped = found.groupby([found["state"], found["dim"], found["first_position"] == 0])
    ours = grouped.agg({"n_activations": "sum", "max_abs": "max"})
    assert dict(ours["n_activations"]) == {place: count for place, (count, _) in expected.items()}
    np.testing.assert_allclose(ours["max_abs"], [expected[place][1] for place in ours.index], rtol=1e-5)
    largest = table.loc[table["max_abs"].idxmax()]
    assert (largest["dim"], largest["last_position"]) == (507, 0)
    assert largest["max_abs"] > 20_000

    written = []
    block = smol.trunk.layers[11]
    handle = block.mlp.register_forward_hook(lambda module, inputs, output: written.append(output[:, 0, 507]))
    smol.trunk(smol.ids, attention_mask=smol.mask)
    handle.remove()
    table = writers.table.query("dim == 507 and last_position == 0")
    writer = table.loc[table["share"].idxmax()]
    assert (writer["component"], writer["layer"]) == ("MLP", 11)
    assert writer["share"] > 0.9
    heights = torch.stack([state[:, 0, 507] for state in smol.states[:-1]])
    is_tracked = heights.abs().amax(0) > 1_000
    sign = heights.gather(0, heights.abs().argmax(0)[None])[0].sign()
    assert writer["n_activations"] == is_tracked.sum()
    assert writer["added"] == pytest.approx((sign * written[0])[is_tracked].double().mean().item(), rel=1e-5)


@pytest.fixture(scope="module")
def head(smol):
    """The input of the unembedding at the positions that are read, W_U, and the targets, in float64."""
    with torch.no_grad():
        h = smol.states[-1][smol.batch.read].double()
    return h, smol.plain.lm_head.weight.detach().double(), smol.batch.targets[smol.batch.read]


@torch.no_grad()
def test_the_mean_input_of_the_unembedding_scaled(smol, head):
    h, W_U, targets = head
    counts = np.arange(1, len(W_U) + 1) % 97
    table = frequency.study(
        smol.model, smol.batches, unigram=counts, directions=["mean"], scales=(0, 0.5, 1), **QUIET
    ).kl
    u = counts / counts.sum()
    for row in table.itertuples():
        log_p = ((h + (row.scale - 1) * h.mean(0)) @ W_U.T).log_softmax(-1)
        q = of_frequency.mean_distribution(log_p)
        assert row.kl_unigram_model == pytest.approx(of_frequency.kl(u, q), rel=1e-6)
        assert row.perplexity == pytest.approx(math.exp(of_encoding.loss(log_p, targets)), rel=1e-6)


@pytest.fixture(scope="module")
def fit(smol):
    return encoding.fit(smol.model, smol.batches, **QUIET)


@torch.no_grad()
def test_the_fit_of_token_probability(fit, head):
    h, W_U, _ = head
    alpha = (h @ W_U.T).softmax(-1).mean(0)
    np.testing.assert_allclose(fit.alpha, alpha, rtol=1e-4)
    _, _, r2, adj_r2 = of_encoding.least_squares(W_U.numpy(), -np.log(alpha.numpy()))
    table = fit.regression.set_index("target").loc["-log alpha"]
    assert table["r2"] == pytest.approx(r2, abs=1e-6)
    assert table["adj_r2"] == pytest.approx(adj_r2, abs=1e-6)


@torch.no_grad()
def test_pruning(smol, fit, head):
    h, W_U, targets = head
    [row] = encoding.pruning_curve(
        smol.model, smol.batches, fit=fit, order="spearman", fractions=[0.3], **QUIET
    ).itertuples()
    pruned = h.clone()
    pruned[:, removal_order(fit, "spearman")[: row.n_dims]] = 0
    whole, after = ((x @ W_U.T).log_softmax(-1) for x in (h, pruned))
    assert row.n_dims == round(0.3 * h.shape[1])
    expected = of_encoding.pruning(whole, after, targets)
    assert row.kl == pytest.approx(expected["kl"], rel=1e-6)
    assert row.top1_agreement == pytest.approx(expected["top1_agreement"], abs=1e-9)
    assert row.perplexity == pytest.approx(expected["perplexity"], rel=1e-6)


@torch.no_grad()
def test_one_token_steered(smol, fit, head):
    """Its logit alone moves, by the constant that doubles its mean probability."""
    h, W_U, _ = head
    [token] = smol.tokenizer(" the").input_ids
    recipe = encoding.steer(smol.model, token, 2, fit, **QUIET)
    before = forward(smol.model, smol.batch)
    with smol.model.hooks(fwd_hooks=recipe):
        change = (forward(smol.model, smol.batch) - before)[smol.real]
    shift = change[:, token].double().mean().item()
    assert (change[:, torch.arange(len(W_U)) != token] == 0).all()
    p = (h @ W_U.T).softmax(-1)[:, token].numpy()
    assert shift == pytest.approx(of_encoding.constant_shift(p, 2), abs=1e-4)


@torch.no_grad()
def log_probabilities(smol, sentence):
    """The ids of a sentence's tokens, where they are in it, and log p of all but the first."""
    encoded = smol.tokenizer(sentence, return_offsets_mapping=True, return_tensors="pt")
    ids = encoded.input_ids
    log_p = smol.plain(ids).logits.double().log_softmax(-1)[0, :-1]
    return encoded.offset_mapping[0].tolist(), log_p.gather(1, ids[0, 1:, None])[:, 0].numpy()


def test_accuracy_on_minimal_pairs(smol):
    blimp = SHARED / "data" / "blimp"
    table = pairs.load(blimp if blimp.is_dir() else "bundled", limit=3)
    tasks = table["UID"].unique()[::6][:10] if blimp.is_dir() else table["UID"].unique()[:10]
    table = table[table["UID"].isin(tasks)].reset_index(drop=True)
    accuracy = probing.minimal_pair_accuracy(smol.model, table, **QUIET).set_index("task")["accuracy"]
    assert len(accuracy) == len(tasks)
    score = {text: log_probabilities(smol, text)[1].sum() for text in table[["sentence_good", "sentence_bad"]].stack()}
    right = table["sentence_good"].map(score) > table["sentence_bad"].map(score)
    assert accuracy.to_dict() == right.groupby(table["UID"]).mean().to_dict()
    assert accuracy.between(0, 1, inclusive="neither").any()


def test_surprisal_of_words(smol):
    table = word_surprisal(smol.model, SENTENCES, **QUIET)
    for number, sentence in enumerate(SENTENCES):
        offsets, log_p = log_probabilities(smol, sentence)
        expected = np.zeros(len(sentence.split()))
        for (start, end), value in zip(offsets, [np.nan, *log_p], strict=True):
            until = sentence[:end] if sentence[start] == " " else sentence[: start + 1]
            expected[len(until.split()) - 1] -= value
        np.testing.assert_allclose(table[table["sentence"] == number]["surprisal"], expected, rtol=1e-5)


def test_the_head_that_minilm_lacks(minilm):
    """What needs no head is tested above."""
    with pytest.raises(ValueError, match=naming("prediction head", "attention", "probing")):
        frequency.study(minilm.model, TEXT, **QUIET)


def test_a_gguf_is_the_model_that_was_made_from_it(published, smollm2):
    [file] = published[SMOLLM2_GGUF].glob("*.gguf")
    with pytest.warns(UserWarning, match="quantised"):
        model = interp.load(file)
    assert weight_hash(model) == weight_hash(smollm2.model)
