"""BART and T5: token probability of teacher-forced targets, and generated text, against plain transformers."""

from importlib.metadata import version

import numpy as np
import pytest
import torch
import transformers
from naming import naming
from toys import D_VOCAB

import interp
from interp import encoding, frequency, generation, hooks
from interp.analyses.encoding.tables import study as study_of
from interp.corpora.seq2seq import teacher_forced
from interp.models.head import prediction_head
from interp.testing import randomise, toy_tokenizer

QUIET = {"progress": False}
SOURCES = [f"w{i} w{i + 3} w7" for i in range(10)] + ["w1 w2 w3 w4 w5 w6"]
TARGETS = [f"w{i + 1} w{2 * i}" for i in range(10)] + ["w9"]
SIZES = {
    "bart": {
        "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 24,
    },
    "t5": {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4},
}  # fmt: skip
KINDS = ["bart", *["t5"] * (int(version("transformer-lens").split(".")[0]) >= 4)]
"""T5 does not run in the bridge of TransformerLens 3.9."""


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    name = {"bart": "BartForConditionalGeneration", "t5": "T5ForConditionalGeneration"}[request.param]
    cls, directory = getattr(transformers, name), tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    tokens = {"pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 6, "decoder_start_token_id": 5}
    hf = cls(cls.config_class(vocab_size=D_VOCAB, **SIZES[request.param], **tokens)).eval()
    randomise(hf)
    if request.param == "bart":
        torch.nn.init.normal_(hf.final_logits_bias)
    hf.save_pretrained(directory)
    toy_tokenizer().save_pretrained(directory)
    return interp.load(directory), cls.from_pretrained(directory, attn_implementation="eager").eval()


def rows(model, texts):
    return [model.tokenizer(text)["input_ids"] for text in texts]


@torch.no_grad()
def predictions(hf, model):
    """The log-probabilities of every target token, computed one pair at a time."""
    found = []
    for source, target in zip(rows(model, SOURCES), rows(model, TARGETS), strict=True):
        decoder = torch.tensor([[hf.config.decoder_start_token_id, *target[:-1]]])
        logits = hf(torch.tensor([source]), decoder_input_ids=decoder).logits[0]
        found.append(logits.double().log_softmax(-1))
    return torch.cat(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no frequency neurons")
def test_token_probability(both):
    model, hf = both
    read = teacher_forced(model, SOURCES, TARGETS, batch_size=4)
    fit = encoding.fit(model, read, **QUIET)
    expected = predictions(hf, model).exp().mean(0)
    np.testing.assert_allclose(fit.alpha, expected, rtol=1e-4)
    study = study_of(model, read, unigram=np.arange(1, D_VOCAB + 1), **QUIET)
    assert study.neurons.empty
    targets = torch.cat([torch.tensor(row) for row in rows(model, TARGETS)])
    nll = -predictions(hf, model).gather(1, targets[:, None]).mean()
    pruned = study.pruning.query("fraction == 0")
    np.testing.assert_allclose(pruned["perplexity"], float(nll.exp()), rtol=1e-4)


def test_the_head(both):
    """BART's bias on the logits is the one that transformers calls final_logits_bias."""
    model, hf = both
    head = prediction_head(model)
    if hf.config.model_type == "t5":
        assert not head.biases
        return
    np.testing.assert_allclose(head.effect("last"), hf.final_logits_bias[0], rtol=1e-6)
    read = teacher_forced(model, SOURCES, TARGETS)
    found = frequency.study(model, read, unigram=np.arange(1, D_VOCAB + 1), scales=(0.0,), **QUIET)
    hf.final_logits_bias.mul_(0)
    q, u = predictions(hf, model).exp().mean(0).numpy(), np.arange(1, D_VOCAB + 1) / np.arange(1, D_VOCAB + 1).sum()
    hf.final_logits_bias.copy_(head.effect("last"))
    without = found.kl.query("scale == 0 and bias == 'last'")["kl_unigram_model"].item()
    assert without == pytest.approx(float((u * np.log(u / q)).sum()), rel=1e-4)


@pytest.mark.parametrize("decoder", ["greedy", "beam"])
def test_text(both, decoder):
    """Two dimensions of the unembedding's input are removed, and sources have different lengths."""
    model, hf = both
    sources = rows(model, ["w1 w2 w3", "w4 w5 w6 w7 w8"])
    recipe = hooks.prune_output_dims(model, [0, 1])
    found = generation.generate(model, sources, hooks=recipe, decoder=decoder, max_new_tokens=6, **QUIET)
    config = transformers.GenerationConfig(
        do_sample=False, num_beams=4 if decoder == "beam" else 1, max_new_tokens=6, pad_token_id=0, eos_token_id=6,
        decoder_start_token_id=hf.config.decoder_start_token_id,
    )  # fmt: skip
    hf.generation_config = transformers.GenerationConfig()
    handle = hf.lm_head.register_forward_pre_hook(lambda _, args: (args[0].index_fill(-1, torch.tensor([0, 1]), 0),))
    for source, one in zip(sources, found, strict=True):
        ids = torch.tensor([source])
        expected = hf.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)[0, 1:].tolist()
        end = expected.index(6) + 1 if 6 in expected else None
        assert list(one.token_ids) == expected[:end]
    handle.remove()


def test_what_an_encoder_decoder_does_not_have(both):
    model, _ = both
    with pytest.raises(ValueError, match=naming("source", "target")):
        encoding.fit(model, torch.arange(8, 20)[None], **QUIET)
    with pytest.raises(ValueError, match=naming("site", "'v'")):
        interp.attention.attention_by_class(model, teacher_forced(model, SOURCES, TARGETS), **QUIET)
    with pytest.raises(ValueError, match=naming("site", "'q'")):
        interp.models.qk.qk_circuit(model, 0)


def test_pairs_that_are_refused(both, load_toy, untyped):
    model, _ = both
    with pytest.raises(ValueError, match=naming(2, "sources", 1, "targets")):
        teacher_forced(model, ["w1", "w2"], ["w1"])
    if model.cfg.n_ctx == 24:
        with pytest.raises(ValueError, match=naming("tokens", "1 … 24")):
            teacher_forced(model, ["w1"], ["w2 " * 40])
    with pytest.raises(ValueError, match=naming("encoder-decoders")):
        teacher_forced(load_toy("gpt2"), ["w1"], ["w2"])
    with pytest.raises(TypeError):
        teacher_forced(model, [3], ["w1"])
