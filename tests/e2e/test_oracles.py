"""Each question asked of a bundled model, against plain transformers with the parameter edited, in float64."""

import copy

import numpy as np
import pytest
import torch
import transformers
from oracles import encoding as of_encoding, frequency as of_frequency

import interp
from interp import attention, corpora, encoding, frequency, generation, probing
from interp.corpora import pairs

TEXT = corpora.load("bundled", limit=12)
QUIET = {"progress": False}


@pytest.fixture(scope="module", params=["tiny-gpt2", "tiny-bert"])
def both(request):
    """A bundled model in interp and in transformers, with the batches that interp reads."""
    model = interp.load(request.param, dtype=torch.float64)
    encoder = request.param == "tiny-bert"
    kind = transformers.BertForMaskedLM if encoder else transformers.GPT2LMHeadModel
    hf = kind.from_pretrained(model.interp_origin.directory, dtype=torch.float64, attn_implementation="eager").eval()
    read = corpora.batches(model, TEXT, mask_rate=0.3) if encoder else corpora.batches(model, TEXT, bos=True)
    return model, hf, read


@pytest.fixture(scope="module")
def gpt2():
    model = interp.load("tiny-gpt2", dtype=torch.float64)
    hf = transformers.GPT2LMHeadModel.from_pretrained(model.interp_origin.directory, dtype=torch.float64).eval()
    return model, hf


def ln_bias(hf):
    return hf.transformer.ln_f.bias if hasattr(hf, "transformer") else hf.cls.predictions.transform.LayerNorm.bias


@torch.no_grad()
def scaled(hf, scale):
    edited = copy.deepcopy(hf)
    ln_bias(edited).mul_(scale)
    return edited


@torch.no_grad()
def test_word_frequency(both):
    """KL(u‖q), where q is the mean prediction at the positions that are read, and perplexity."""
    model, hf, read = both
    counts = np.arange(1, model.cfg.d_vocab + 1) % 97
    found = frequency.study(model, read, unigram=counts, biases=["ln"], scales=(0, 0.5, 1), **QUIET)
    u = counts / counts.sum()
    targets = torch.cat([batch.targets[batch.read] for batch in read])
    for scale, kl, perplexity in found.kl[["scale", "kl_unigram_model", "perplexity"]].itertuples(index=False):
        plain = scaled(hf, scale)
        logits = torch.cat([plain(batch.tokens, attention_mask=batch.mask).logits[batch.read] for batch in read])
        q = of_frequency.mean_distribution(logits.log_softmax(-1))
        assert kl == pytest.approx(of_frequency.kl(u, q), rel=1e-9)
        assert perplexity == pytest.approx(np.exp(of_encoding.loss(logits, targets)), rel=1e-9)


@torch.no_grad()
def test_attention_by_class(both):
    """Attention summed over the keys of each class, averaged over queries."""
    model, hf, _ = both
    read = corpora.batches(model, TEXT, layout="texts")
    classes = {"early": range(5, 60), "odd": range(61, 4096, 2)}
    found = attention.attention_by_class(model, read, key_classes=classes, **QUIET)
    totals, n = {}, 0
    for batch in read:
        real = batch.mask.bool()
        n += int(real.sum())
        patterns = hf(batch.tokens, attention_mask=batch.mask, output_attentions=True).attentions
        for layer, pattern in enumerate(patterns):
            for name, ids in classes.items():
                of_class = torch.isin(batch.tokens, torch.tensor(list(ids))) & real
                mass = (pattern * of_class[:, None, None]).sum(-1)  # batch, head, query
                totals[layer, name] = totals.get((layer, name), 0) + (mass * real[:, None]).sum((0, 2))
    for (layer, name), total in totals.items():
        rows = found.query(f"layer == {layer} and key_class == '{name}'").sort_values("head")
        np.testing.assert_allclose(rows["sum"], (total / n).numpy(), rtol=1e-9)


@torch.no_grad()
def test_score_contributions(gpt2):
    """The sum over dimensions plus the part of b_K is the mean score of transformers' own queries and keys."""
    model, hf = gpt2
    read = corpora.batches(model, TEXT, layout="texts")
    classes = {"early": range(5, 60)}
    found = attention.score_contributions(model, read, layers=[3], key_classes=classes, **QUIET)
    width, heads = hf.config.n_embd, hf.config.n_head
    block, total, n = hf.transformer.h[3], torch.zeros(heads, dtype=torch.float64), 0
    for batch in read:
        states = hf(batch.tokens, attention_mask=batch.mask, output_hidden_states=True).hidden_states[3]
        q, _, _ = block.attn.c_attn(block.ln_1(states)).split(width, dim=-1)
        k = block.ln_1(states) @ block.attn.c_attn.weight[:, width : 2 * width]  # without b_K
        q, k = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k))
        seen = (
            torch.ones(q.shape[2], q.shape[2]).tril().bool() & (batch.mask[:, None, :] * batch.mask[:, :, None]).bool()
        )
        of_class = torch.isin(batch.tokens, torch.arange(5, 60))[:, None, :] & seen
        total += (q @ k.mT * of_class[:, None]).sum((0, 2, 3))
        n += int(of_class.sum())
    sums = found.query("key_class == 'early'").groupby("head")["mean"].sum()
    np.testing.assert_allclose(sums, (total / n).numpy(), rtol=1e-8)
    assert set(found.query("key_class == 'early'")["n_pairs"]) == {n}


@torch.no_grad()
def test_token_probability(gpt2):
    """The adjusted R² of −log α on the rows of the output embeddings."""
    model, hf = gpt2
    read = corpora.batches(model, TEXT, bos=True)
    fit = encoding.fit(model, read, **QUIET)
    predicted = [hf(b.tokens, attention_mask=b.mask).logits.softmax(-1)[b.read] for b in read]
    alpha = torch.cat(predicted).mean(0)
    _, _, _, adj_r2 = of_encoding.least_squares(hf.lm_head.weight.numpy(), -alpha.log().numpy())
    found = fit.regression.set_index("target")["adj_r2"]["-log alpha"]
    assert found == pytest.approx(adj_r2, abs=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("bos", [True, False])
def test_minimal_pairs(gpt2, bos):
    model, hf = gpt2
    table = pairs.generate(n_per_task=20, tasks=["reflexive_number", "left_branch"])

    def score(sentence):
        ids = model.tokenizer(sentence, add_special_tokens=False)["input_ids"]
        ids = torch.tensor([[model.tokenizer.bos_token_id, *ids] if bos else ids])
        log_p = hf(ids).logits.log_softmax(-1)
        return float(log_p[0, :-1].gather(1, ids[0, 1:, None]).sum())

    good, bad = (np.array([score(text) for text in table[f"sentence_{which}"]]) for which in ("good", "bad"))
    found = probing.sentence_scores(model, list(table["sentence_good"]), bos=bos, **QUIET)["sum"].to_numpy()
    np.testing.assert_allclose(found, good, rtol=1e-9)
    accuracy = probing.minimal_pair_accuracy(model, table, bos=bos, **QUIET)
    assert accuracy["accuracy"].tolist() == (good > bad).reshape(2, 20).mean(1).tolist()


@torch.no_grad()
def test_states(gpt2):
    model, hf = gpt2
    table = pairs.generate(n_per_task=5, tasks=["reflexive_number"])
    states = probing.collect(model, table, states=[0, 4], bos=True, position="last", **QUIET)
    for state in (0, 4):
        for found, sentence in zip(states.load(state)[:, 0], table["sentence_good"], strict=True):
            ids = [model.tokenizer.bos_token_id, *model.tokenizer(sentence, add_special_tokens=False)["input_ids"]]
            expected = hf(torch.tensor([ids]), output_hidden_states=True).hidden_states[state][0, -1]
            np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decoder", ["greedy", "beam"])
def test_generated_text(gpt2, decoder):
    """The text is, token by token, what transformers writes with b_LN scaled."""
    model, hf = gpt2
    ids = [[1, *model.tokenizer("They came to the", add_special_tokens=False)["input_ids"]]]
    for scale in (0.0, 1.0):
        recipe = interp.hooks.scale_bias(model, "ln", scale)
        [found] = generation.generate(model, ids, hooks=recipe, decoder=decoder, max_new_tokens=12, **QUIET)
        given = torch.tensor(ids)
        expected = scaled(hf, scale).generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=12, do_sample=False,
            num_beams=4 if decoder == "beam" else 1, pad_token_id=0, eos_token_id=model.tokenizer.eos_token_id,
        )  # fmt: skip
        new, end = expected[0, len(ids[0]) :].tolist(), model.tokenizer.eos_token_id
        assert list(found.token_ids) == (new[: new.index(end) + 1] if end in new else new)
