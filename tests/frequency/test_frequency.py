"""Question 1 against an independent computation in plain transformers: edit the bias, run, average the softmax."""

import json
import math
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from hypothesis import given, settings, strategies as st
from naming import naming
from oracles import frequency as oracle
from scipy import stats
from scipy.spatial.distance import jensenshannon
from toys import every_table

import interp
from interp import corpora, hooks
from interp.analyses.frequency import FrequencyStudy, study
from interp.corpora.unigrams import Unigrams
from interp.instruments.divergences import js, kl, kl_where_seen, perplexity
from interp.instruments.predictions import MeanPredictions, Variant
from interp.models.head import prediction_head
from interp.passes.reading import observe

BERT = {
    "ln": "cls.predictions.transform.LayerNorm.bias",
    "fc": "cls.predictions.transform.dense.bias",
    "last": "cls.predictions.bias",
}


@torch.no_grad()
def naive(hf, batches, parameter, scale, u):
    """Mean distribution, perplexity and balanced NLL of transformers with one parameter multiplied, in float64."""
    bias = hf.get_parameter(parameter)
    original = bias.data.clone()
    bias.data *= scale
    predictions, targets = [], []
    for batch in batches:
        log_p = hf(batch.tokens, attention_mask=batch.mask).logits.double().log_softmax(-1)
        predictions.append(log_p[batch.read])
        targets.append(batch.targets[batch.read])
    bias.data = original
    log_p, true = torch.cat(predictions), torch.cat(targets)
    scored = true >= 0
    nlls, tokens = -log_p[scored].gather(1, true[scored, None])[:, 0].numpy(), true[scored].numpy()
    promised = np.intersect1d(tokens, np.flatnonzero(u * len(tokens) >= 5))
    balanced = oracle.balanced_nll(nlls, tokens, promised) if len(promised) else math.nan
    return oracle.mean_distribution(log_p), oracle.perplexity(nlls), balanced


def compare(effect, hf, batches, parameters, u, tolerance=1e-4):
    for row in effect.kl.itertuples():
        q, ppl, balanced = naive(hf, batches, parameters[row.bias], row.scale, u)
        seen = u > 0
        assert row.kl_unigram_model == pytest.approx(
            stats.entropy(u[seen], q[seen] * 1.0) + -np.log(q[seen].sum()), abs=tolerance
        )
        assert row.kl_model_unigram == pytest.approx(stats.entropy(q[seen], u[seen]), abs=tolerance)
        assert row.dropped_mass == pytest.approx(1 - q[seen].sum(), abs=1e-5)
        assert row.js == pytest.approx(jensenshannon(u, q) ** 2, abs=tolerance)
        assert row.perplexity == pytest.approx(ppl, rel=1e-4)
        assert row.balanced_nll == pytest.approx(balanced, rel=1e-4)
        ours = effect.probabilities(bias=row.bias, scale=row.scale).set_index("token_id")
        np.testing.assert_allclose(ours["probability"], q[ours.index], rtol=2e-4, atol=1e-9)


@torch.no_grad()
def test_nothing_that_follows_a_text_is_in_q(hf_directory, texts):
    """KL(u‖q) with one text a row: q averages the predictions of the next token of the text, without the one after its
    last token, also where a text goes on in another row."""
    model, hf = (make(hf_directory("gpt2")) for make in (interp.load, transformers.GPT2LMHeadModel.from_pretrained))
    every = [*texts, " ".join(f"w{i}" for i in range(30))]
    counts = corpora.count_unigrams(model, every)
    effect = study(model, corpora.batches(model, every, layout="texts"), unigram=counts, scales=[1], progress=False)
    predictions = []
    for text in every:
        ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        rows = [ids[start : start + 24] for start in range(0, len(ids), 24)]
        p = torch.cat([hf.double()(torch.tensor([row])).logits[0].softmax(-1) for row in rows])
        predictions.append(p[: len(ids) - 1])
    q, u = torch.cat(predictions).mean(0).numpy(), counts.distribution
    [found] = effect.kl["kl_unigram_model"]
    assert found == pytest.approx(stats.entropy(u, q), abs=1e-6)
    assert effect.provenance["n_tokens"] == sum(map(len, predictions))


@pytest.fixture
def yelp(shared):
    return (shared / "data/yelp/valid.txt").read_text(encoding="utf-8")


def test_trained_gpt2_equals_transformers(shared, yelp):
    """All scales, on a real model and a real text that is cut into rows of 64 tokens."""
    directory = shared / "models/gpt2-yelp"
    model = interp.load(directory)
    counts = corpora.count_unigrams(model, [yelp])
    tokens = torch.cat([batch.tokens for batch in corpora.batches(model, [yelp])])[:200]
    effect = study(model, tokens, unigram=counts, scales=(0, 0.5, 1), progress=False)
    hf = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    rows = corpora.batches(model, tokens, batch_size=50)
    compare(effect, hf, rows, {"ln": "transformer.ln_f.bias"}, counts.distribution)


def test_published_reference_figures(shared, yelp):
    """Numbers measured with transformers alone: unigrams over all rows, the model on 600 rows of the second half."""
    model = interp.load(shared / "models/gpt2-yelp")
    tokens = torch.cat([batch.tokens for batch in corpora.batches(model, [yelp])])
    counts = np.bincount(tokens.flatten().numpy(), minlength=1000)
    half = len(tokens) // 2
    effect = study(model, tokens[half : half + 600], unigram=counts, scales=(1, 0.5, 0), progress=False)
    np.testing.assert_allclose(effect.kl["kl_unigram_model"], [0.0258, 0.1402, 0.4605], atol=0.004)
    np.testing.assert_allclose(effect.kl["perplexity"], [21.85, 25.60, 39.54], rtol=0.03)
    assert effect.projection["spearman"][0] == pytest.approx(0.819, abs=0.001)


@pytest.mark.quick("packed")
@pytest.mark.parametrize("layout", ["texts", "packed"])
def test_bert_equals_transformers_at_masked_positions(layout, hf_directory, texts):
    model = interp.load(hf_directory("bert"))
    batches = corpora.batches(model, texts, layout=layout, mask_rate=0.3, batch_size=4)
    counts = corpora.count_unigrams(model, texts)
    effect = study(model, batches, unigram=counts, scales=(0, 0.5, 1), progress=False)
    assert list(effect.kl["bias"].unique()) == ["ln", "fc", "last"]
    hf = transformers.BertForMaskedLM.from_pretrained(hf_directory("bert")).eval()
    compare(effect, hf, batches, BERT, counts.distribution)
    assert effect.kl.groupby("bias")["kl_unigram_model"].agg(np.ptp).gt(1e-3).all(), "each bias has an effect"


def test_llama_has_no_such_bias(shared):
    model = interp.load(shared / "models/llama-stories260k")
    with pytest.raises(ValueError, match=naming("b_LN", "RMSNorm")):
        study(model, ["Once upon a time"], biases=["ln"])
    with pytest.raises(ValueError, match=naming("bias", "directions")):
        study(model, ["Once upon a time"], directions=[])


@pytest.mark.parametrize("width", [0.5, 30.0, 80.0])
def test_shared_exponential_equals_softmax(width, load_toy, texts):
    """Shifts inside and outside the range of the shared exponential, against a float64 softmax."""
    model = load_toy("gpt2")
    generator = torch.Generator().manual_seed(0)
    shifts = [width * torch.rand(67, generator=generator).double() for _ in range(3)]
    observer = MeanPredictions(model, [Variant(), *(Variant(shift=shift) for shift in shifts)])
    assert observer._n_shared == (1 if width > 60 else 4)
    batches = corpora.batches(model, texts)
    observe(model, batches, observer, progress=False)
    with torch.no_grad():
        logits = torch.cat([model(batch.tokens).flatten(0, 1) for batch in batches]).double()
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    for i, shift in enumerate([torch.zeros(67), *shifts]):
        log_p = (logits + shift).log_softmax(-1)
        np.testing.assert_allclose(observer.distributions[i], log_p.exp().mean(0), rtol=2e-5, atol=1e-12)
        nll = -log_p[targets >= 0].gather(1, targets[targets >= 0, None]).mean()
        assert observer.nll[i] == pytest.approx(float(nll), rel=1e-5)


def test_merging_observers_is_one_run(load_toy, texts):
    model = load_toy("gpt2")
    variants = [Variant(), Variant(shift=prediction_head(model).effect("ln") * -1.0)]
    parts = [MeanPredictions(model, variants) for _ in range(3)]
    tokens = torch.randint(67, (9, 12), generator=torch.Generator().manual_seed(0))
    for observer, part in zip(parts, (tokens, tokens[:4], tokens[4:]), strict=True):
        observe(model, corpora.batches(model, part), observer, progress=False)
    parts[1].merge(parts[2])
    np.testing.assert_allclose(parts[1].distributions, parts[0].distributions, rtol=1e-6)
    assert parts[1].n_scored == parts[0].n_scored == 9 * 11


@pytest.mark.filterwarnings("ignore:the text is read without <s>")
def test_rows_that_are_not_tokens_are_left_out(load_toy, texts):
    """A padded vocabulary gives the same results as the same model without the padding."""
    model, padded = load_toy("gpt2"), load_toy("gpt2")
    padded.unembed.W_U.data = torch.cat([model.W_U.data, 3 * torch.ones(16, 5)], 1)
    padded.unembed.b_U.data = torch.zeros(72)
    plain = study(model, texts, unigram=np.arange(1, 68), progress=False)
    effect = study(padded, texts, unigram=np.append(np.arange(1, 68), np.zeros(5, int)), progress=False)
    expected = every_table(plain)
    for name, table in every_table(effect).items():
        pd.testing.assert_frame_equal(table, expected[name], rtol=1e-4)


def test_numbers_that_are_not_finite_are_refused(load_toy, texts):
    model = load_toy("gpt2")
    model.ln_final.b.data[0] = torch.nan
    with pytest.raises(ValueError, match=naming("NaN", "weights")):
        study(model, texts, unigram=np.arange(67), progress=False)
    model.ln_final.b.data[0] = 0
    model.blocks[1].mlp.b_out.data[0] = torch.inf
    with pytest.raises(ValueError, match=naming("b_out", "NaN")):
        study(model, texts, unigram=np.arange(67), progress=False)
    assert np.isnan(perplexity(float("nan")))


def test_b_fc_is_not_scaled_under_other_hooks_on_the_head(load_toy, texts):
    model = load_toy("bert")
    with model.hooks(fwd_hooks=hooks.scale_bias(model, "last", 0.0)):
        with pytest.raises(RuntimeError, match=naming("b_FC", "hooks", "head")):
            study(model, texts, unigram=np.arange(67), progress=False)
        edited = study(model, texts, unigram=np.arange(67), biases=["ln"], progress=False)
    assert edited.provenance["active_hooks"] == ["unembed.hook_out"]


def test_seeds_and_generators(load_toy, texts):
    model = load_toy("bert")
    options = {"unigram": np.arange(67), "scales": (1,), "progress": False}
    one = study(model, (text for text in texts), seed=1, **options)
    assert one.provenance["seed"] == 1
    assert json.dumps(one.provenance)
    batches = corpora.batches(model, texts, mask_rate=0.12, seed=1)
    pd.testing.assert_frame_equal(study(model, batches, **options).kl, one.kl)
    with pytest.raises(ValueError, match=naming("encoder", "mask_rate")):
        study(model, corpora.batches(model, texts), **options)


def test_counts_of_another_tokenizer_are_refused(load_toy, texts):
    counts = Unigrams(np.arange(67), "elsewhere", "0123")
    with pytest.raises(ValueError, match=naming("counts", "elsewhere", "tokenizer")):
        study(load_toy("gpt2"), texts, unigram=counts)


def test_tables(load_toy, texts):
    effect = study(load_toy("bert"), texts, unigram=np.arange(67), scales=(0, 0.5, 1), progress=False)
    contract = {
        "kl": "bias scale kl_unigram_model kl_model_unigram dropped_mass js perplexity balanced_nll n_tokens",
        "types": "token_id token count unigram projection_ln bias_last",
        "probabilities": "token_id bias scale probability",
        "curve": "bias scale bin unigram_low unigram_high geometric_mean geometric_sd n_types",
        "projection": "bias pearson spearman slope n_types",
    }
    for name, columns in contract.items():
        assert set(columns.split()) <= set(every_table(effect)[name])
    assert len(effect.kl) == 9
    same = effect.kl[effect.kl["scale"] == 1]
    assert same["kl_unigram_model"].nunique() == 1, "λ = 1 is the same model for every bias"
    per_curve = effect.curve.groupby(["bias", "scale"])["n_types"].sum()
    assert (per_curve == 66).all()
    part = effect.curve[(effect.curve["bias"] == "fc") & (effect.curve["scale"] == 0)].iloc[-1]
    types = effect.types.query("unigram >= @part.unigram_low and unigram <= @part.unigram_high * (1 + 1e-9)")
    q = effect.probabilities(bias="fc", scale=0).set_index("token_id")["probability"]
    assert part["geometric_mean"] == pytest.approx(stats.gmean(q[types["token_id"]]))
    assert part["geometric_sd"] == pytest.approx(np.exp(np.log(q[types["token_id"]]).std(ddof=0)))
    ln = effect.projection.set_index("bias").loc["ln"]
    seen = effect.types[effect.types["count"] > 0]
    assert ln["spearman"] == pytest.approx(stats.spearmanr(seen["unigram"], seen["projection_ln"]).statistic)
    assert ln["slope"] == pytest.approx(np.polyfit(np.log(seen["unigram"]), seen["projection_ln"], 1)[0])
    assert list(effect.adjustment["tau"]) == [pytest.approx(ln["slope"]), 1.0]


def test_own_counts_warn(load_toy, texts):
    with pytest.warns(UserWarning, match="come from .* tokens; with fewer than about .* sampling error"):
        own = study(load_toy("gpt2"), corpora.load(texts, limit=3), progress=False)
    total = sum(len(text.split()) for text in texts)
    assert own.types["count"].sum() == total, "the whole corpus is counted, before limit"
    assert own.provenance["unigram"]["n_tokens"] == total


def test_shipped_counts_are_taken(hf_directory, tmp_path, texts):
    shutil.copytree(hf_directory("gpt2"), tmp_path / "m")
    Unigrams(np.arange(67), "training text").save(tmp_path / "m/unigram.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        effect = study(interp.load(tmp_path / "m"), texts, progress=False)
    assert effect.provenance["unigram"]["corpus"] == "training text"


def test_bad_input(load_toy, texts):
    model = load_toy("gpt2")
    for options, values in (
        ({"unigram": np.arange(50)}, ("counts", 50, 67)),
        ({"unigram": np.zeros(67, int)}, ("counts", "zero")),
        ({"scales": (0, float("nan"))}, ("scales", "nan")),
        ({"scales": (1, 1.0)}, ("scales", 1)),
        ({"scales": ()}, ("scales",)),
        ({"biases": []}, ("biases",)),
        ({"biases": ["fc"]}, ("b_FC", "ln")),
        ({"mask_rate": 0.1}, ("mask_rate", "encoders")),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            study(model, texts, progress=False, **({"unigram": np.arange(67)} | options))
    with pytest.raises(ValueError, match=naming("settings", "seed")):
        study(model, corpora.batches(model, texts), unigram=np.arange(67), seed=3)
    with pytest.raises(ValueError, match=naming("position", "mask_rate")):
        study(load_toy("bert"), ["w1"], unigram=np.arange(67), mask_rate=1e-9, progress=False)
    model.cfg.output_logits_soft_cap = 30.0
    with pytest.raises(ValueError, match=naming("logits", 30)):
        study(model, texts, unigram=np.arange(67))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=4, max_size=4), st.lists(st.integers(1, 1000), min_size=4, max_size=4))
def test_divergences(a, b):
    p, q = (np.array(a) + [1, 0, 0, 0]), np.array(b)
    p, q = p / p.sum(), q / q.sum()
    assert kl(p, q) >= -1e-12
    assert kl(p, p) == pytest.approx(0, abs=1e-12)
    assert kl(p, q) == pytest.approx(stats.entropy(p, q))
    assert js(p, q) == pytest.approx(jensenshannon(p, q) ** 2, abs=1e-9)
    assert 0 <= js(p, q) <= np.log(2) + 1e-12
    back, dropped = kl_where_seen(q, p)
    assert back >= -1e-12
    assert dropped == pytest.approx(q[p == 0].sum())
    assert perplexity(1e4) == np.inf


def test_probabilities_are_a_row_for_each_edit_and_token(load_toy, texts):
    effect = study(load_toy("bert"), texts, unigram=np.arange(67), scales=[1, 0.5], progress=False)
    q = effect.probabilities.arrays["probability"]
    rows = [
        (token_id, bias, scale, q.sel(bias=bias, scale=scale, token_id=token_id).item())
        for bias in effect.kl["bias"].unique()
        for scale in (1.0, 0.5)
        for token_id in effect.types["token_id"]
    ]
    expected = pd.DataFrame(rows, columns=["token_id", "bias", "scale", "probability"])
    pd.testing.assert_frame_equal(effect.probabilities.table, expected, check_exact=True)
    for _, part in effect.probabilities.table.groupby(["bias", "scale"]):
        assert part["probability"].sum() == pytest.approx(1)


def test_results_are_kept_whole_or_not_at_all(load_toy, texts, tmp_path, monkeypatch):
    effect = study(load_toy("gpt2"), texts, unigram=np.arange(67), progress=False)
    effect.save(tmp_path)
    again = FrequencyStudy.load(tmp_path)
    found = every_table(again)
    for name, table in every_table(effect).items():
        assert found[name].equals(table), name
    assert again.provenance == effect.provenance
    assert {"weight_hash", "corpus", "fingerprint", "seed", "dtype", "device", "bos", "n_tokens", "versions"} <= set(
        again.provenance
    )
    with pytest.raises(FileExistsError, match=naming(tmp_path)):
        effect.save(tmp_path)
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("interp.results.result.json.dumps", lambda *_, **__: (_ for _ in ()).throw(full))
    monkeypatch.setattr("pandas.DataFrame.to_parquet", lambda table, path, **_: path.write_bytes(b"half"))
    with pytest.raises(OSError, match=naming("No space left")):
        effect.save(tmp_path, overwrite=True)
    monkeypatch.undo()
    assert FrequencyStudy.load(tmp_path).kl.equals(effect.kl), "the old result is still whole"
    assert [path.name for path in tmp_path.iterdir()] == ["frequency"]
    effect.save(tmp_path, overwrite=True)
    with pytest.raises(FileNotFoundError, match=naming(tmp_path / "elsewhere")):
        FrequencyStudy.load(tmp_path / "elsewhere")


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize(("weight", "bias"), [(60, 60), (1, 200)])
def test_probabilities_that_float32_does_not_hold(kind, weight, bias, hf_directory, texts):
    """With a sharp final norm or a large b_LN, KL is that of transformers in float64, and not infinite."""
    cls = {"gpt2": transformers.GPT2LMHeadModel, "bert": transformers.BertForMaskedLM}[kind]
    norm = {"gpt2": "transformer.ln_f", "bert": BERT["ln"].removesuffix(".bias")}[kind]
    hf = cls.from_pretrained(hf_directory(kind)).eval()
    hf.get_parameter(f"{norm}.weight").data *= weight
    hf.get_parameter(f"{norm}.bias").data *= bias
    model = interp.load(hf_directory(kind))
    final = model.ln_final if kind == "gpt2" else model.mlm_head.ln
    final.w.data *= weight
    final.b.data *= bias
    text = corpora.batches(model, texts, **({"mask_rate": 0.3} if kind == "bert" else {}))
    counts = corpora.count_unigrams(model, texts)
    effect = study(model, text, unigram=counts, biases=["ln"], scales=[0.5, 1], progress=False)
    for scale in (0.5, 1):
        q, _, _ = naive(hf.double(), text, f"{norm}.bias", scale, np.zeros(model.cfg.d_vocab))
        expected = kl(counts.distribution, q)
        assert 10 < expected < np.inf
        found = effect.kl.set_index("scale").loc[scale, "kl_unigram_model"]
        assert found == pytest.approx(expected, rel=1e-4)  # float32 logits in the hundreds
    assert (effect.probabilities.arrays["probability"] > 0).all()


def test_probabilities_that_float64_does_not_hold_are_refused(load_toy, texts):
    model = load_toy("gpt2")
    model.ln_final.w.data *= 1_000
    model.ln_final.b.data *= 1_000
    with pytest.raises(ValueError, match=naming("ln × 0", "1e-308")):
        study(model, texts, unigram=np.arange(1, 68), progress=False)


@pytest.mark.filterwarnings("ignore:.*of the tokens of texts are")
def test_counts_at_rows_that_are_not_tokens_are_refused(load_toy, texts):
    model = load_toy("gpt2")
    model.tokenizer = make_tokenizer_of(60)
    counts = np.arange(1, 68)
    with pytest.raises(ValueError, match=naming("counts", "vocabulary")):
        study(model, texts, unigram=counts, progress=False)


def make_tokenizer_of(n):
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"[UNK]": 1} | {f"w{i}": i for i in range(n) if i != 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
