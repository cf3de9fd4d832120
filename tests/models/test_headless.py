"""A BERT without a prediction head: attention, states and probes as in transformers' BertModel; the rest refused."""

import pandas as pd
import pytest
import torch
import transformers
from naming import naming
from toys import SIZES

import interp
from interp import attention, encoding, frequency, generation, probing
from interp.analyses.report import report
from interp.models.head import prediction_head
from interp.models.identity import weight_hash
from interp.models.loading.initial import untrained
from interp.models.sites import hook_name, state_name
from interp.testing import randomise, toy_tokenizer

NO_HEAD = "this model has no prediction head: its files have the encoder alone; attention and probing need none"
TEXTS = ["w0 w1 w2 w3 w4 w5"] * 20
DPR = transformers.DPRConfig(**SIZES)
KINDS = {
    "BertModel": lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
    "without a pooler": lambda: transformers.BertModel(transformers.BertConfig(**SIZES), add_pooling_layer=False),
    "classifier": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES)),
    "DPR, questions": lambda: transformers.DPRQuestionEncoder(DPR),
    "DPR, contexts": lambda: transformers.DPRContextEncoder(DPR),
}


def saved(kind, directory):
    """A random model of a kind that was saved in a directory, and the BERT in it."""
    torch.manual_seed(0)
    model = KINDS[kind]().eval()
    randomise(model)
    model.save_pretrained(directory)
    toy_tokenizer().save_pretrained(directory)
    return next(part for part in model.modules() if isinstance(part, transformers.BertModel))


@pytest.fixture(scope="module")
def headless(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "headless"
    saved("BertModel", directory)
    return interp.load(directory)


@pytest.mark.quick("BertModel", "questions")
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_states_and_attention_are_those_of_transformers(kind, tmp_path):
    bert = saved(kind, tmp_path)
    bert.set_attn_implementation("eager")
    model = interp.load(tmp_path)
    tokens = torch.randint(60, (2, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[1, 12:] = 0
    found = {}
    names = [state_name(model, state) for state in range(3)] + [hook_name(model, "pattern", layer) for layer in (0, 1)]
    with model.hooks([(name, lambda value, hook: found.__setitem__(hook.name, value)) for name in names]):
        model.encoder_output(tokens, one_zero_attention_mask=mask)
    expected = bert(tokens, attention_mask=mask, output_hidden_states=True, output_attentions=True)
    for name, theirs in zip(names, (*expected.hidden_states, *expected.attentions), strict=True):
        ours = found[name] if theirs.ndim == 3 else found[name].transpose(1, 2)
        theirs = theirs if theirs.ndim == 3 else theirs.transpose(1, 2)
        torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], atol=1e-5, rtol=0)


def test_the_last_hidden_state_is_checked(tmp_path, monkeypatch):
    saved("BertModel", tmp_path)
    from transformer_lens import HookedEncoder

    whole = HookedEncoder.encoder_output
    monkeypatch.setattr(HookedEncoder, "encoder_output", lambda *given, **named: 1.001 * whole(*given, **named))
    with pytest.raises(ValueError, match=naming(tmp_path, "hidden states")):
        interp.load(tmp_path)


def test_half_precision_and_an_untrained_copy(headless, tmp_path):
    saved("without a pooler", tmp_path)
    assert interp.load(tmp_path, dtype="bfloat16").W_U.dtype == torch.bfloat16
    assert weight_hash(untrained(headless)) != weight_hash(headless)


REFUSED = {
    "logits": lambda model: model(torch.ones(1, 4, dtype=torch.long)),
    "the head": prediction_head,
    "the site of the logits": lambda model: hook_name(model, "logits"),
    "frequency": lambda model: frequency.study(model, TEXTS, progress=False),
    "frequency, with directions": lambda model: frequency.study(model, TEXTS, directions=["mean"], progress=False),
    "encoding": lambda model: encoding.study(model, TEXTS, progress=False),
    "sentences": lambda model: probing.sentence_scores(model, TEXTS, progress=False),
    "surprisal": lambda model: probing.minimal_pair_accuracy(model, _pairs(), progress=False),
}


def _pairs():
    good, bad = [f"w{i} w1 w2" for i in range(10)], [f"w{i} w2 w1" for i in range(10)]
    return pd.DataFrame({"sentence_good": good, "sentence_bad": bad, "UID": "order"})


@pytest.mark.parametrize("what", REFUSED)
def test_what_needs_the_head_is_refused(what, headless):
    with pytest.raises(ValueError, match=naming("prediction head", "attention", "probing")):
        REFUSED[what](headless)


def test_generation_and_a_bridge_are_refused(headless, tmp_path):
    with pytest.raises(ValueError, match=naming("BERT", "causal")):
        generation.generate(headless, ["w0 w1"], progress=False)
    saved("BertModel", tmp_path)
    with pytest.raises(ValueError, match=naming(tmp_path, "BERT", "HookedEncoder", "backend")):
        interp.load(tmp_path, backend="bridge")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_report_leaves_out_what_needs_the_head(headless):
    own = {"attention": {"key_classes": {"first": [7, 8]}}, "probing": {"methods": ["dense"], "states": [1]}}
    found = report(headless, TEXTS, pairs=_pairs(), settings=own, progress=False)
    attended, probed = found.values()
    assert isinstance(attended, attention.AttentionStudy)
    left_out = probed.provenance["left_out"]
    assert [name for name, why in left_out.items() if why == NO_HEAD] == ["frequency", "encoding"]
    assert f"no judgements of the model itself: {NO_HEAD}" in probed.caveats
    assert probed.judgements.empty
    assert probed.tasks["model_accuracy"].isna().all()
    assert not probed.probes.empty
    assert "prefers the good sentence" not in probed.summary()
