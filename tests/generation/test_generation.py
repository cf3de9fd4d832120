"""Generation against transformers' own `generate` on the same weights, edited there by hand."""

import json
import statistics
import sys
import tempfile

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from naming import naming
from oracles import generation as oracle
from scipy import stats
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformers import GenerationConfig

import interp
from interp import hooks
from interp.analyses.generation import GenerationStudy, generate, prompts, study, text_metrics
from interp.analyses.generation.metrics import frequent_types, mauve_scores, text_features
from interp.analyses.generation.options import DECODERS
from interp.corpora.unigrams import Unigrams
from interp.instruments.adapter import Shell
from interp.instruments.decoding import decode
from interp.models.running import active_hooks
from interp.models.sites import hook_name

OPTIONS = {
    "greedy": {"do_sample": False},
    "beam": {"do_sample": False, "num_beams": 4},
    "sample": {"do_sample": True, "top_k": 0},
    "top_k": {"do_sample": True, "top_k": 50},
    "top_p": {"do_sample": True, "top_k": 0, "top_p": 0.95},
}
PROMPTS = [[11], [21, 22, 23, 24, 25, 26, 27], [31, 32, 33], [41, 42, 43, 44]]


def expected(hf, prompts, *, scale=1.0, bias=None, seed=0, eos=None, **options):
    """transformers' new tokens with a bias multiplied, up to the end of each text, for prompts padded on the left."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    original = None if bias is None else bias.data.clone()
    if bias is not None:
        bias.data *= scale
    torch.manual_seed(seed)
    options = {"use_cache": True, "pad_token_id": 0, "eos_token_id": eos} | options
    rows = hf.generate(ids, attention_mask=mask, **options)[:, width:].tolist()
    if bias is not None:
        bias.data = original
    return [tuple(row[: row.index(eos) + 1] if eos in row else row) for row in rows]


def tokens(generations):
    return [generation.token_ids for generation in generations]


@pytest.fixture
def gpt2(load_toy):
    return load_toy("gpt2")


@pytest.fixture(scope="module")
def yelp(shared):
    directory = shared / "models/gpt2-yelp"
    hf = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    return interp.load(directory), hf


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("scale", [1, 0.5, 0])
def test_a_trained_model_writes_as_in_transformers(yelp, decoder, scale):
    model, hf = yelp
    found = generate(
        model,
        PROMPTS,
        hooks=hooks.scale_bias(model, "ln", scale),
        decoder=decoder,
        seed=3,
        max_new_tokens=40,
        progress=False,
    )
    bias = hf.transformer.ln_f.bias
    eos = model.tokenizer.eos_token_id
    wanted = expected(hf, PROMPTS, scale=scale, bias=bias, seed=3, eos=eos, max_new_tokens=40, **OPTIONS[decoder])
    assert tokens(found) == wanted
    assert max(map(len, wanted)) == 40


def test_every_scale_writes_differently(yelp):
    model, _ = yelp
    written = {
        str(tokens(generate(model, PROMPTS, hooks=hooks.scale_bias(model, "ln", scale), progress=False)))
        for scale in (1, 0.5, 0)
    }
    assert len(written) == 3


def test_grouped_query_attention_and_rope(shared):
    directory = shared / "models/llama-stories260k"
    model = interp.load(directory)
    hf = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    for decoder in DECODERS:
        found = generate(model, PROMPTS, decoder=decoder, seed=1, max_new_tokens=60, progress=False)
        assert tokens(found) == expected(hf, PROMPTS, seed=1, eos=2, max_new_tokens=60, **OPTIONS[decoder]), decoder


@pytest.mark.slow
@pytest.mark.e2e
def test_a_random_gpt2_of_124m_writes_as_in_transformers():
    torch.manual_seed(0)
    hf = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
    with tempfile.TemporaryDirectory() as directory:
        hf.save_pretrained(directory)
        model = interp.load(directory)
    assert model.tokenizer is None
    for scale in (0.5, 0):
        recipe = hooks.scale_bias(model, "ln", scale)
        for decoder in ("beam", "sample"):
            found = generate(model, PROMPTS[:3], hooks=recipe, decoder=decoder, max_new_tokens=4, progress=False)
            bias = hf.transformer.ln_f.bias
            wanted = expected(hf, PROMPTS[:3], scale=scale, bias=bias, max_new_tokens=4, **OPTIONS[decoder])
            assert tokens(found) == wanted, (scale, decoder)


@pytest.mark.quick("gpt2", "llama")
@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "opt", "gptj", "gpt_neo", "llama", "mistral", "qwen2"])
def test_every_architecture_with_prompts_of_different_lengths(kind, load_toy, hf_directory):
    """Learned, rotary and local positions after left padding, against transformers and against one prompt at a time."""
    model = load_toy(kind)
    hf = transformers.AutoModelForCausalLM.from_pretrained(hf_directory(kind)).eval()
    eos = model.tokenizer.eos_token_id
    for decoder in DECODERS:
        options = {"decoder": decoder, "max_new_tokens": 12, "progress": False}
        found = tokens(generate(model, PROMPTS, **options))
        assert found == expected(hf, PROMPTS, eos=eos, max_new_tokens=12, **OPTIONS[decoder]), decoder
        if decoder in ("greedy", "beam"):
            assert found == [row for prompt in PROMPTS for row in tokens(generate(model, [prompt], **options))]
            assert found == tokens(generate(model, PROMPTS, batch_size=3, use_cache=False, **options))


@pytest.mark.parametrize("decoder", ["greedy", "beam", "sample"])
def test_hooks_act_at_every_step_with_and_without_cache(decoder, load_toy):
    model = load_toy("gpt_neox")
    name = hook_name(model, "resid_post", 0)
    direction = torch.linspace(-2, 2, model.cfg.d_model)

    def run(use_cache, edit):
        seen = []

        def act(resid, hook):
            seen.append(tuple(resid.shape[:2]))
            return resid + direction if edit else None

        options = {"decoder": decoder, "max_new_tokens": 9, "use_cache": use_cache, "progress": False}
        config = GenerationConfig(**OPTIONS[decoder], min_new_tokens=9)
        found = generate(model, PROMPTS, hooks=[(name, act)], **(options | {"decoder": config}))
        assert active_hooks(model) == []
        return tokens(found), seen

    rows = 16 if decoder == "beam" else 4
    plain, counted = run(True, False)
    edited, cached = run(True, True)
    assert counted == cached == [(rows, 7)] + [(rows, 1)] * 8
    again, whole = run(False, True)
    assert whole == [(rows, 7 + step) for step in range(9)]
    assert edited == again
    assert edited != plain
    assert plain == tokens(generate(model, PROMPTS, decoder=GenerationConfig(**OPTIONS[decoder], min_new_tokens=9),
                                    max_new_tokens=9, progress=False))  # fmt: skip


def test_a_hook_on_the_head_sees_the_last_position_or_all(gpt2):
    for use_cache, kept in ((True, [1, 1, 1]), (False, [4, 5, 6])):
        seen = []
        hook = (hook_name(gpt2, "logits"), lambda logits, hook, seen=seen: seen.append(logits.shape[1]))
        generate(gpt2, PROMPTS[3:], hooks=[hook], max_new_tokens=3, use_cache=use_cache, progress=False)
        assert seen == kept


def test_progress_is_shown_only_if_asked_for(gpt2, capsys):
    generate(gpt2, PROMPTS, max_new_tokens=2, progress=False)
    assert capsys.readouterr().err == ""


def test_active_hooks_act_too(gpt2):
    recipe = hooks.scale_bias(gpt2, "ln", -2.0)
    wanted = tokens(generate(gpt2, PROMPTS, hooks=recipe, max_new_tokens=9, progress=False))
    assert wanted != tokens(generate(gpt2, PROMPTS, max_new_tokens=9, progress=False))
    with gpt2.hooks(fwd_hooks=recipe):
        assert tokens(generate(gpt2, PROMPTS, max_new_tokens=9, progress=False)) == wanted
        assert active_hooks(gpt2) == [hook_name(gpt2, "head_input")], "the caller's hooks stay"
    assert active_hooks(gpt2) == []


def test_seeds(gpt2):
    options = {"decoder": "sample", "max_new_tokens": 9, "progress": False}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = tokens(generate(gpt2, PROMPTS, **options))
    assert torch.equal(torch.get_rng_state(), state), "the caller's random state stays"
    torch.manual_seed(6)
    assert tokens(generate(gpt2, PROMPTS, **options)) == first, "nor does it matter"
    assert tokens(generate(gpt2, PROMPTS, **options | {"seed": 1})) != first
    assert tokens(generate(gpt2, PROMPTS[:2] * 2, batch_size=2, **options))[:2] == tokens(
        generate(gpt2, PROMPTS[:2], **options)
    )


def test_batches_are_even_and_limited_by_tokens(gpt2, monkeypatch):
    """Those of prompts and continuations, where every beam counts. They do not change what is written."""
    rows = [[first, first + 1, first + 2] for first in (11, 21, 31, 41)]
    for decoder, at_once, batches in (
        ("greedy", 40, [4]),
        ("greedy", 39, [2, 2]),
        ("greedy", 5, [1] * 4),
        ("beam", 80, [8, 8]),
        ("beam", 40, [4] * 4),
    ):
        options = {"decoder": decoder, "max_new_tokens": 7, "progress": False}
        monkeypatch.setattr("interp.instruments.decoders.CACHED_TOKENS", at_once)
        shapes = []
        hook = (hook_name(gpt2, "embed"), lambda resid, hook, shapes=shapes: shapes.append(resid.shape))
        written = tokens(generate(gpt2, rows, hooks=[hook], **options))
        assert [n_rows for n_rows, length, _ in shapes if length == 3] == batches
        assert written == tokens(generate(gpt2, rows, batch_size=4, **options))


def test_texts_are_without_the_prompt(yelp, shared):
    model, _ = yelp
    found = generate(model, ["the food was", "i"], max_new_tokens=8, progress=False)
    for generation, prompt in zip(found, ["the food was", "i"], strict=True):
        assert generation.prompt == prompt
        ids = model.tokenizer(prompt)["input_ids"] + list(generation.token_ids)
        assert prompt + generation.text == model.tokenizer.decode(ids, skip_special_tokens=True)
    llama = interp.load(shared / "models/llama-stories260k")
    [story] = generate(llama, ["Once upon a"], bos=True, max_new_tokens=3, progress=False)
    assert (story.prompt, story.text) == ("Once upon a", " time, there"), "the space is not lost"


def test_a_text_ends_with_its_end_token(gpt2):
    eos = gpt2.tokenizer.eos_token_id
    forced = GenerationConfig(forced_eos_token_id=eos, max_new_tokens=4)
    assert all(row[-1] == eos for row in tokens(generate(gpt2, PROMPTS, decoder=forced, progress=False)))
    biased = GenerationConfig(sequence_bias=[[[eos], 50.0]], max_new_tokens=4)
    assert tokens(generate(gpt2, PROMPTS, decoder=biased, progress=False)) == [(eos,)] * 4


def test_transformers_configs(gpt2, hf_directory):
    hf = transformers.AutoModelForCausalLM.from_pretrained(hf_directory("gpt2")).eval()
    eos = gpt2.tokenizer.eos_token_id
    for options in (
        {"do_sample": True, "num_beams": 3, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "num_return_sequences": 2},
        {"num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 2.0, "early_stopping": True},
        {"do_sample": True, "typical_p": 0.5, "repetition_penalty": 1.3, "min_p": 0.01, "min_new_tokens": 5},
        {"do_sample": True, "eta_cutoff": 0.05, "epsilon_cutoff": 0.01, "bad_words_ids": [[12]], "top_k": 0},
        {"do_sample": True, "watermarking_config": transformers.WatermarkingConfig(bias=2.5)},
    ):
        config = GenerationConfig(**options, max_new_tokens=7)
        found = generate(gpt2, PROMPTS, decoder=config, seed=2, progress=False)
        assert len(found) == 4 * options.get("num_return_sequences", 1)
        assert tokens(found) == expected(hf, PROMPTS, seed=2, eos=eos, max_new_tokens=7, **options)
        assert config.eos_token_id is None, "the caller's config stays as it was"


def test_a_users_own_model(gpt2):
    """A bare HookedTransformer in train mode and half precision, without a tokenizer."""
    cfg = HookedTransformerConfig(
        n_layers=2, d_model=16, n_ctx=16, d_head=4, n_heads=4, d_vocab=30, act_fn="gelu", device="cpu", seed=0
    )
    model = HookedTransformer(cfg).train()
    [generation] = generate(model, [[3, 4]], max_new_tokens=5, progress=False)
    ids = [3, 4]
    with torch.no_grad():
        for _ in range(5):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert generation.token_ids == tuple(ids[2:])
    assert generation.prompt + generation.text == " ".join(map(str, ids)), "ids where there is no tokenizer"
    assert model.training
    assert len(generate(model.to(torch.bfloat16), [[3, 4], [1]], decoder="beam", max_new_tokens=5, progress=False)) == 2
    with pytest.raises(ValueError, match=naming("tokenizer", "interp.models.as_model(model, tokenizer)")):
        generate(model, ["w1"], progress=False)


def test_the_shell_owns_nothing(gpt2):
    shell = Shell(gpt2)
    assert list(shell.parameters()) == list(shell.buffers()) == list(shell.children()) == []
    shell.to(torch.float16).train()
    assert gpt2.W_U.dtype == shell.dtype == torch.float32
    assert not gpt2.training


def test_bad_input(gpt2, load_toy):
    for wrong, values in (
        ([], ("list", "prompts", "none")),
        ("w1 w2", ("list", "prompts", "string", "w1 w2")),
        (["w1", ""], ("prompt 1",)),
        ([[]], ("prompt 0",)),
        ([[3, 67]], ("3 … 67", "0 … 66")),
        ([[1] * 25], ("prompt 0", 25, 5, 24)),
        ([[1], [1] * 20], ("prompt 1", 20, 5, 24)),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            generate(gpt2, wrong, max_new_tokens=5, progress=False)
    for options, values in (
        ({"max_new_tokens": 0}, ("max_new_tokens", 1, 0)),
        ({"batch_size": 0}, ("batch_size", 1, 0)),
        ({"bos": True}, ("bos",)),
        (
            {"decoder": GenerationConfig(max_new_tokens=4), "max_new_tokens": 5},
            ("max_new_tokens", 5, 4, "GenerationConfig"),
        ),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            generate(gpt2, PROMPTS, progress=False, **options)
    with pytest.raises(ValueError, match=naming("BERT", "causal")):
        generate(load_toy("bert"), ["w1"], progress=False)
    gpt2.tokenizer.bos_token = None
    with pytest.raises(ValueError, match=naming("beginning-of-sequence", "bos=False")):
        generate(gpt2, ["w1"], bos=True, max_new_tokens=4, progress=False)


@pytest.mark.parametrize(
    "options",
    [
        {"cache_implementation": "static"},
        {"cache_implementation": "quantized"},
        {"prompt_lookup_num_tokens": 3},
        {"assistant_early_exit": 1},
        {"use_mtp": True},
        {"num_beam_groups": 2, "num_beams": 4, "diversity_penalty": 0.5},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"dola_layers": "high"},
        {"force_words_ids": [[5]], "num_beams": 2},
        {"guidance_scale": 1.5},
        {"token_healing": True},
        {"stop_strings": ["w1"]},
        {"prefill_chunk_size": 2},
        {"max_length": 20},
        {"return_dict_in_generate": True, "output_scores": True},
        {"a_future_option": 3},
    ],
)
def test_other_decoding_is_refused_by_name(options, gpt2):
    with pytest.raises(ValueError, match=naming("GenerationConfig", f"{next(iter(options))}=")):
        generate(gpt2, PROMPTS, decoder=GenerationConfig(**options), progress=False)


def test_hooks_that_raise_leave_nothing_behind(gpt2):
    calls = []

    def fail(resid, hook):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("at the third step")

    name = hook_name(gpt2, "resid_post", 1)
    state = torch.get_rng_state()
    for decoder in ("beam", "sample"):
        calls.clear()
        with pytest.raises(RuntimeError, match="at the third step"):
            generate(gpt2, PROMPTS, hooks=[(name, fail)], decoder=decoder, progress=False, max_new_tokens=9)
        assert active_hooks(gpt2) == []
        assert torch.equal(torch.get_rng_state(), state)
    silent = [("blocks.0.attn.hook_result", lambda result, hook: None)]  # fires only if a flag of the model is set
    with pytest.raises(RuntimeError, match=naming("blocks.0.attn.hook_result")):
        generate(gpt2, PROMPTS, hooks=silent, max_new_tokens=2, progress=False)
    assert active_hooks(gpt2) == []


def test_metrics_equal_a_counter(texts, gpt2):
    rows = [*gpt2.tokenizer(texts)["input_ids"], [7, 7, 7, 7, 7, 7], [9, 8], []]
    counts = Unigrams(np.arange(67)[::-1] ** 2, "counts")
    found = text_metrics(rows, unigram=counts)
    for n in (1, 2, 3, 4):
        assert found[f"distinct_{n}"] == pytest.approx(oracle.distinct(rows, n))
    assert found["diversity"] == pytest.approx(oracle.diversity(rows))
    rest = [text_metrics(rows[:i] + rows[i + 1 :])["diversity"] for i in range(len(rows))]
    jackknife = np.sqrt((len(rows) - 1) / len(rows) * np.square(np.array(rest) - np.mean(rest)).sum())
    assert found["diversity_se"] == pytest.approx(jackknife)
    assert found["repetition"] == pytest.approx(oracle.repetition(rows))
    assert found["repetition"] > 0
    top = oracle.frequent(counts.counts)
    assert set(np.flatnonzero(frequent_types(counts))) == top
    flat = [token_id for ids in rows for token_id in ids]
    assert found["frequent_share"] == pytest.approx(np.mean([token_id in top for token_id in flat]))
    assert 0 < found["frequent_share"] < 1
    assert (found["n_texts"], found["n_tokens"]) == (len(rows), len(flat))


def test_what_cannot_be_measured_is_nan():
    short = text_metrics([[1, 2, 3], [4]])
    assert short["distinct_3"] == 1
    assert all(np.isnan(short[name]) for name in ("distinct_4", "diversity", "repetition", "frequent_share"))
    assert np.isnan(short["mauve_mean"])
    assert text_metrics([[]])["n_tokens"] == 0
    with pytest.raises(ValueError, match=naming("texts", "none")):
        text_metrics([])


def test_mauve_equals_mauve_text():
    import mauve

    rng = np.random.default_rng(0)
    human, machine = rng.normal(size=(60, 8)), rng.normal(0.7, 1, size=(50, 8))
    found = text_metrics([[1, 2]], features=machine, human_features=human)
    wanted = [mauve.compute_mauve(p_features=human, q_features=machine, seed=seed).mauve for seed in range(5)]
    assert np.ptp(wanted) > 0
    assert mauve_scores(machine, human) == pytest.approx(wanted)
    assert found["mauve_mean"] == pytest.approx(np.mean(wanted))
    assert found["mauve_sd"] == pytest.approx(statistics.stdev(wanted))
    with pytest.raises(ValueError, match=naming("texts", 2, "1 and 60")):
        mauve_scores(machine[:1], human)
    with pytest.raises(ValueError, match=naming("features", "human_features")):
        text_metrics([[1, 2]], features=machine)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_features_are_the_last_hidden_state(kind, load_toy, hf_directory, texts):
    tokenizer = transformers.AutoTokenizer.from_pretrained(hf_directory(kind))
    cls = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    hf = cls.from_pretrained(hf_directory(kind)).eval()
    found = text_features(load_toy(kind), texts)
    for row, text in zip(found, texts, strict=True):
        ids = tokenizer(text)["input_ids"]
        ids = [tokenizer.cls_token_id, *ids[:22], tokenizer.sep_token_id] if kind == "bert" else ids[:24]
        with torch.no_grad():
            state = hf(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1]
        np.testing.assert_allclose(row, state, atol=2e-4)
    with pytest.raises(ValueError, match=naming("text", "tokens", "hidden state")):
        text_features(load_toy("gpt2"), ["w1", ""])


def test_prompts_are_the_beginnings_of_long_texts(gpt2, texts):
    given = prompts(gpt2, texts, n=5, prompt_tokens=3, new_tokens=9, bos=True)
    encoded = gpt2.tokenizer(texts, add_special_tokens=False)["input_ids"]
    long = [(ids[:3], ids[3:12]) for ids in encoded if len(ids) >= 12]
    drawn = list(zip(given.ids[:, 1:].tolist(), given.human.tolist(), strict=True))
    places = [long.index(one) for one in drawn]
    assert places == sorted(set(places)), "different prompts, in the order of the text"
    assert set(given.ids[:, 0]) == {gpt2.tokenizer.bos_token_id}
    assert given.settings["n_prompts"] == 5
    n_long = sum(len(text.split()) >= 12 for text in texts)
    for options, values in (
        ({"n": n_long + 1}, ("texts", n_long, 12, n_long + 1)),
        ({"n": 0}, ("n", 1, 0)),
        ({"new_tokens": 3}, ("new_tokens", 4, 3)),
        ({"new_tokens": 21}, (4, 21, 24)),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            prompts(gpt2, texts, **({"n": 5, "prompt_tokens": 3, "new_tokens": 9, "bos": True} | options))


@pytest.mark.slow
def test_prompts_are_drawn_at_random(gpt2):
    """Texts that are long enough are equally likely, wherever they are; the same seed gives the same prompts."""
    texts = [f"w{i} " + "w1 " * 6 if i % 2 else f"w{i}" for i in range(40)]
    firsts = [ids[0] for ids in gpt2.tokenizer(texts, add_special_tokens=False)["input_ids"] if len(ids) >= 5]
    drawn = np.zeros(20)
    for seed in range(400):
        given = prompts(gpt2, texts, n=5, prompt_tokens=1, new_tokens=4, seed=seed)
        places = [firsts.index(first) for first in given.ids[:, 0].tolist()]
        assert len(set(places)) == 5
        drawn[places] += 1
    assert stats.chisquare(drawn).pvalue > 1e-3
    assert drawn[:5].mean() < 1.4 * drawn.mean(), "the first are not preferred"
    one, again, other = (prompts(gpt2, texts, n=5, prompt_tokens=1, new_tokens=4, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.ids, again.ids)
    assert not np.array_equal(one.ids, other.ids)
    assert one.settings != other.settings
    whole = prompts(gpt2, texts, n=20, prompt_tokens=1, new_tokens=4, seed=9)
    np.testing.assert_array_equal(whole.ids, prompts(gpt2, texts, n=20, prompt_tokens=1, new_tokens=4, seed=8).ids)


@pytest.fixture(scope="module")
def tiny():
    return interp.load("tiny-gpt2")


@pytest.fixture(scope="module")
def corpus():
    return interp.corpora.load("bundled", limit=60)


@pytest.fixture(scope="module")
def some(tiny, corpus):
    return prompts(tiny, corpus, n=12, prompt_tokens=5, new_tokens=12, bos=True)


@pytest.mark.slow
def test_sweep(tiny, some, corpus, tmp_path):
    options = {"scales": (1, 0.5), "decoders": ("greedy", "sample"), "features": tiny, "seed": 4, "progress": False}
    found = study(tiny, some, **options)
    assert list(zip(found.metrics["decoder"], found.metrics["scale"], strict=True))[1:] == [
        ("greedy", 1), ("greedy", 0.5), ("sample", 1), ("sample", 0.5),
    ]  # fmt: skip
    assert found.metrics["decoder"][0] == "human"
    assert np.isnan(found.metrics["scale"][0])
    rows = some.ids.tolist()
    config = GenerationConfig(do_sample=True, top_k=0, min_new_tokens=12)
    recipe = hooks.scale_bias(tiny, "ln", 0.5)
    direct = generate(tiny, rows, hooks=recipe, decoder=config, max_new_tokens=12, seed=4, progress=False)
    written = found.texts.query("decoder == 'sample' and scale == 0.5")
    assert list(written["text"]) == [generation.text for generation in direct]
    assert list(written["prompt_id"]) == list(range(12))
    assert set(found.texts["n_tokens"]) == {12}
    measured = found.metrics.query("decoder == 'sample' and scale == 0.5").iloc[0]
    human = [tiny.tokenizer.decode(row) for row in np.concatenate([some.ids[:, 1:], some.human], 1)]
    assert list(found.texts.query("decoder == 'human'").eval("prompt + text")) == human
    counts = interp.corpora.unigrams.load(interp.support.paths.BUNDLED / "tiny-gpt2/unigram.safetensors")
    wanted = text_metrics(
        tokens(direct),
        unigram=counts,
        features=text_features(tiny, [generation.prompt + generation.text for generation in direct]),
        human_features=text_features(tiny, human),
    )
    for name, value in wanted.items():
        assert measured[name] == pytest.approx(value), name
    text = interp.corpora.batches(tiny, corpus, bos=True)
    perplexity = interp.frequency.study(tiny, text, unigram=counts, scales=(1, 0.5), progress=False).kl["perplexity"]
    greedy = found.metrics.query("decoder == 'greedy'")
    assert greedy["perplexity"].tolist() == perplexity.tolist(), "that of interp frequency, on the same text"
    assert measured["perplexity"] == perplexity[1]
    assert measured["perplexity_low"] < perplexity[1] < measured["perplexity_high"]
    assert found.metrics["n_tokens"].eq(144).all()
    contract = {
        "texts": "decoder scale prompt_id prompt text n_tokens",
        "metrics": "decoder scale distinct_1 distinct_2 distinct_3 distinct_4 diversity mauve_mean mauve_sd perplexity "
        "n_texts n_tokens",
    }
    for name, columns in contract.items():
        assert set(columns.split()) <= set(getattr(found, name).columns)
    found.save(tmp_path)
    again = GenerationStudy.load(tmp_path)
    pd.testing.assert_frame_equal(again.metrics, found.metrics)
    assert list(map(tuple, again.texts["token_ids"])) == list(map(tuple, found.texts["token_ids"]))
    assert again.provenance == found.provenance


@pytest.mark.slow
def test_perplexity_is_of_rows_as_asked(tiny, some, corpus):
    """It is computed on rows of the same length as in `interp.frequency.study`, not on prompts."""
    options = {"scales": [1], "decoders": ["greedy"], "progress": False}
    for context in (64, 48):
        found = study(tiny, some, context=context, **options).metrics
        text = interp.corpora.batches(tiny, corpus, bos=True, context=context)
        effect = interp.frequency.study(tiny, text, scales=[1], progress=False)
        assert found["perplexity"].dropna().tolist() == effect.kl["perplexity"].tolist()


@pytest.mark.slow
@pytest.mark.e2e
def test_a_killed_sweep_resumes(tiny, some, corpus, tmp_path, monkeypatch):
    options = {"scales": (1, 0), "decoders": ("sample", "beam"), "progress": False}
    whole = study(tiny, some, **options)
    calls = []

    def counted(*arguments, **more):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return decode(*arguments, **more)

    monkeypatch.setattr(sys.modules["interp.analyses.generation.tables"], "decode", counted)
    with pytest.raises(KeyboardInterrupt):
        study(tiny, some, directory=tmp_path, **options)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["sample-0.0", "sample-1.0"]
    resumed = study(tiny, some, directory=tmp_path, **options)
    assert len(calls) == 5
    pd.testing.assert_frame_equal(resumed.metrics, whole.metrics)
    assert list(resumed.texts["text"]) == list(whole.texts["text"])
    study(tiny, some, directory=tmp_path, **options)
    assert len(calls) == 5
    other = interp.load("tiny-gpt2")
    other.ln_final.b.data[0] += 1
    fewer = prompts(tiny, corpus, n=11, prompt_tokens=5, new_tokens=12, bos=True)
    for model, given, change, values in (
        (other, some, {}, (tmp_path, "weights")),
        (tiny, fewer, {}, (tmp_path, "prompts")),
        (tiny, some, {"seed": 1}, (tmp_path, "seed")),
        (tiny, some, {"features": other}, (tmp_path, "features")),
        (tiny, some, {"decoders": {"sample": GenerationConfig(do_sample=True, top_k=7)}}, (tmp_path, "decoder")),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            study(model, given, directory=tmp_path, **(options | change))
    with tiny.hooks(fwd_hooks=hooks.scale_bias(tiny, "ln", 0.9)):
        with pytest.raises(ValueError, match=naming("checkpoint", "hooks")):
            study(tiny, some, directory=tmp_path, **options)


@pytest.mark.slow
@pytest.mark.e2e
def test_sweep_takes_configs_and_text(tiny):
    mark = transformers.WatermarkingConfig()
    configs = {"hot": GenerationConfig(do_sample=True, top_k=0, temperature=1.5, watermarking_config=mark)}
    found = study(tiny, "bundled", scales=[1], decoders=configs, progress=False)
    assert found.metrics["decoder"].tolist() == ["human", "hot"]
    assert found.metrics["n_texts"].tolist() == [100, 100]
    assert json.loads(json.dumps(found.provenance))["decoders"]["hot"]["temperature"] == 1.5


def test_sweep_refuses(tiny, some, load_toy, texts, monkeypatch):
    for options, values in (
        ({"decoders": []}, ("decoders", "greedy, beam", [])),
        ({"decoders": {"human": GenerationConfig()}}, ("decoders", "'human'")),
        ({"decoders": {"x": GenerationConfig(use_mtp=True)}}, ("use_mtp=True",)),
        ({"scales": (1, 1)}, ("scales", [1, 1])),
        ({"scales": (1, np.nan)}, ("scales", "[1, nan]")),
        ({"unigram": np.arange(5)}, (5, "types", "4,096")),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            study(tiny, some, progress=False, **options)
    with pytest.raises(ValueError, match=naming("BERT", "causal")):
        study(load_toy("bert"), texts, progress=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=naming("pip install 'interp[mauve]'")):
        study(tiny, some, features=tiny, progress=False)
