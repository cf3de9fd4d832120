"""Where a beginning-of-sequence token (BOS) stands: at each row, before each text, or nowhere, and never twice."""

import itertools
import json
import logging
import math
import shutil

import pytest
import tokenizers
import torch
import transformers
from hypothesis import given, settings, strategies as st
from naming import naming

import interp
from interp import corpora
from interp.analyses.probing.scores import word_surprisal
from interp.corpora.frames import Frame, settled_bos
from interp.corpora.positions import state_rows
from interp.corpora.sentences import packed_rows, sentence_rows, text_rows
from interp.models.views import Tokens
from interp.testing import toy_decoder, toy_tokenizer

BOS, EOS, CLS, SEP = 5, 6, 2, 3


@pytest.fixture(scope="module")
def puts_bos(hf_directory, tmp_path_factory):
    """The directory of a Llama whose tokenizer begins a text with `<s>`, as published ones do."""
    path = tmp_path_factory.mktemp("models") / "puts-bos"
    shutil.copytree(hf_directory("llama"), path)
    tokenizer = toy_tokenizer()
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    tokenizer.save_pretrained(path)
    assert transformers.AutoTokenizer.from_pretrained(path)("w0").input_ids == [BOS, 7]
    return path


def ids(*texts):
    return [toy_tokenizer()(text)["input_ids"] for text in texts]


def rows_of(batches):
    return [row[mask.bool()].tolist() for batch in batches for row, mask in zip(batch.tokens, batch.mask, strict=True)]


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_each_row_begins_as_the_tokenizer_begins_a_text(puts_bos, texts, backend):
    model = interp.load(puts_bos, backend=backend)
    stream = sum(ids(*texts), [])
    prepared = corpora.batches(model, texts, context=10, batch_size=4)
    assert prepared.settings["bos"] == "rows"
    assert rows_of(prepared) == [[BOS, *stream[at : at + 9]] for at in range(0, len(stream) - 8, 9)]
    pieces = [[BOS, *row[at : at + 9]] for row in ids(*texts) for at in range(0, len(row), 9)]
    assert sorted(rows_of(corpora.batches(model, texts, context=10, layout="texts"))) == sorted(pieces)
    assert sentence_rows(model, ["w1 w2"]) == [[BOS, 8, 9]]
    assert interp.generation.prompts(model, texts, n=2, prompt_tokens=3, new_tokens=4).ids[:, 0].tolist() == [BOS] * 2
    assert rows_of(corpora.batches(model, texts, context=10, bos=False))[0] == stream[:10]


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_what_transformerlens_would_put_first_does_not_count(load_toy, texts, backend):
    """It would put a BOS before every sentence of nearly every decoder, also where the tokenizer puts none."""
    model = load_toy("gpt2", backend=backend)
    for default in (True, False):
        model.cfg.default_prepend_bos = default
        assert settled_bos(model, "auto") is False
        assert sentence_rows(model, ["w1 w2"]) == [[8, 9]]
        assert state_rows(model, ["w1 w2"], "eos") == [[8, 9, EOS]]
        assert rows_of(corpora.batches(model, texts, context=10))[0] == sum(ids(*texts), [])[:10]


def test_a_model_that_interp_has_not_loaded(puts_bos, hf_directory):
    """TransformerLens has read its tokenizer again, such that it puts a BOS whether or not it did."""
    transformer_lens = pytest.importorskip("transformer_lens.HookedTransformer")
    for directory, expected in ((hf_directory("llama"), False), (puts_bos, "rows")):
        cfg = interp.load(directory).cfg
        plain = transformers.AutoTokenizer.from_pretrained(directory)
        model = transformer_lens.HookedTransformer(cfg, plain)
        assert model.tokenizer("w0").input_ids == [BOS, 7]
        assert settled_bos(model, "auto") == expected


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"settings": {"separator": "end of text"}}, "texts"),
        ({"settings": {"separator": "newline"}}, False),
        ([1], False),
        ({"settings": [1]}, False),
    ],
)
def test_a_model_is_read_as_it_was_trained(hf_directory, tmp_path, training, expected):
    shutil.copytree(hf_directory("gpt2"), tmp_path / "trained")
    (tmp_path / "trained/training.json").write_text(json.dumps(training))
    model = interp.load(tmp_path / "trained")
    assert settled_bos(model, "auto") == expected
    rows = rows_of(corpora.batches(model, ["w1 w2 w3"] * 4, context=5))
    stream = [BOS, 8, 9, 10] * 4 if expected else [8, 9, 10] * 4
    assert rows == [stream[at : at + 5] for at in range(0, len(stream) - 4, 5)]
    assert sentence_rows(model, ["w1 w2"]) == [[BOS, 8, 9] if expected else [8, 9]]


def test_a_tokenizer_without_bos_gets_none(hf_directory, tmp_path):
    """TransformerLens would take the end-of-sequence token for one."""
    shutil.copytree(hf_directory("llama"), tmp_path / "protein")
    tokenizer = toy_tokenizer()
    tokenizer.bos_token = None
    tokenizer.save_pretrained(tmp_path / "protein")
    model = interp.load(tmp_path / "protein")
    assert model.tokenizer.bos_token_id == EOS
    assert settled_bos(model, "auto") is False
    with pytest.raises(ValueError, match=naming("tokenizer", "beginning-of-sequence")):
        corpora.batches(model, ["w1 w2"], bos=True)


TEXTS = st.lists(st.lists(st.integers(7, 30), max_size=9), max_size=12)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(3, 8), st.booleans(), st.booleans(), st.booleans())
def test_packed_rows_with_bos(texts, context, before_rows, before_texts, eos):
    """Without the BOS that rows have of their own, the rows are the stream; only that BOS predicts nothing that counts,
    unless a text begins there."""
    around = Frame([BOS] * before_rows, [], [BOS] * before_texts, [EOS] * eos)
    each = [[*around.before_text, *text, *around.after_text] for text in texts]
    stream, begins = sum(each, []), {sum(map(len, each[:n])) for n in range(len(each) + 1)}
    position = 0
    for row, ends, resumed, _ in packed_rows(texts, context, around, {}):
        assert len(row) == context
        assert not before_rows or row[0] == BOS
        own = row[1:] if before_rows and stream[position] != BOS else row
        assert own == stream[position : position + len(own)]
        assert resumed == (own is not row and position not in begins)
        places = {position + end - (context - len(own)) for end in ends}
        assert places == {at for at in begins - {0} if position < at <= position + len(own)} or 0 in map(len, each)
        position += len(own)
    assert len(stream) - position < context


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(3, 8))
def test_rows_of_texts_with_bos(texts, context):
    rows = list(text_rows(texts, context, Frame([BOS], [], [], []), {}))
    expected = [(row[at : at + context - 1], at > 0) for row in texts for at in range(0, len(row), context - 1)]
    assert [(row[1:], resumed) for row, _, resumed, _ in rows] == expected
    assert all(row[0] == BOS for row, *_ in rows)


def test_predictions_count_at_a_bos_only_where_a_text_begins(puts_bos):
    """Against a mean over the same positions by transformers."""
    model, texts = interp.load(puts_bos), ["w1 w2 w3 w4 w5 w6 w7", "w8 w9", "w10 w11 w12"] * 6
    plain = transformers.AutoModelForCausalLM.from_pretrained(puts_bos).double()
    stream, starts, at = sum(ids(*texts), []), set(), 0
    for row in ids(*texts):
        starts.add(at)
        at += len(row)
    total, nll, n, scored = torch.zeros(67, dtype=torch.float64), 0.0, 0, 0
    for first in range(0, len(stream) - 6, 7):
        row = torch.tensor([BOS, *stream[first : first + 7]])
        with torch.no_grad():
            log_p = plain(row[None]).logits[0].log_softmax(-1)
        own = 0 if first in starts else 1
        total, n = total + log_p[own:].exp().sum(0), n + 8 - own
        nll, scored = nll - float(log_p[own:-1].gather(1, row[1 + own :, None]).sum()), scored + 7 - own
    prepared = corpora.batches(model, texts, context=8)
    assert {bool(batch.read[:, 0].all()) for batch in prepared} == {False}
    fit = interp.encoding.fit(model, prepared, progress=False)
    torch.testing.assert_close(torch.from_numpy(fit.alpha), total / n, rtol=1e-4, atol=1e-7)
    assert fit.n_tokens == n
    assert scored < n


def test_no_text_is_framed_twice(load_toy, puts_bos):
    llama, gpt2, bert = interp.load(puts_bos), load_toy("gpt2"), load_toy("bert")
    for model, bos in ((llama, "auto"), (llama, True), (llama, "texts"), (gpt2, True)):
        expected = sentence_rows(model, ["w1 w2"], bos=bos)
        with pytest.warns(UserWarning, match="special tokens are written out in .*: <s> 1 ×"):
            assert rows_of(corpora.batches(model, ["<s> w1 w2"], layout="texts", bos=bos)) == expected
        with pytest.warns(UserWarning, match=r"<s> 8 ×"):
            rows = rows_of(corpora.batches(model, ["<s> w1 w2"] * 8, context=6, bos=bos))
        assert not any(BOS == token == after for row in rows for token, after in itertools.pairwise(row))
        assert bos == "texts" or all(row[0] == BOS for row in rows)
        assert [token for row in rows for token in row if token != BOS] == [8, 9] * 8
        assert sentence_rows(model, ["<s> w1 w2"], bos=bos) == expected
        assert state_rows(model, ["<s> w1 w2 </s>"], "eos", bos=bos) == [[*expected[0], EOS]]
    assert sentence_rows(gpt2, ["<s> w1 w2"]) == [[BOS, 8, 9]], "what is written out stays"
    assert sentence_rows(bert, ["[CLS] w1 w2 [SEP]", "w1 w2"]) == [[CLS, 8, 9, SEP]] * 2
    with pytest.warns(UserWarning, match=r"\[CLS\] 9 ×, \[SEP\] 9 ×"):
        rows = rows_of(corpora.batches(bert, ["[CLS] w1 w2 [SEP]"] * 9, layout="packed", context=8))
    assert rows == [[CLS, 8, 9, 8, 9, 8, 9, SEP]] * 3


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_scores_of_a_framed_sentence(load_toy, kind):
    """They are those of the sentence itself, and words are found where they stand."""
    model = load_toy(kind)
    first, last = ("<s> ", "") if kind == "gpt2" else ("[CLS] ", " [SEP]")
    how = {"bos": "auto" if kind == "bert" else True, "progress": False}
    plain = word_surprisal(model, ["w1 w2 w3"], **how)
    with pytest.warns(UserWarning, match="special tokens are written out in the sentences"):
        framed = word_surprisal(model, [f"{first}w1 w2 w3{last}"], **how)
    framed = framed[framed["n_tokens"] > 0]
    assert framed["surprisal"].tolist() == pytest.approx(plain["surprisal"].tolist(), abs=1e-6)


def test_special_tokens_are_counted(load_toy):
    """As in a text of a chat template."""
    model = load_toy("gpt2")
    texts = ["w1 </s> w2 w3 [SEP]", "w4 w5 w6 </s>"] * 5
    prepared = corpora.batches(model, texts, context=4)
    with pytest.warns(UserWarning, match=r"read as such: \[SEP\] 5 ×, </s> 10 ×"):
        rows_of(prepared)
    assert prepared.about["special_tokens"] == {"[SEP]": 5, "</s>": 10}
    assert "special_tokens" not in corpora.batches(model, ["w1 w2"] * 5, context=4).about


@torch.no_grad()
def needs_bos():
    """A model for which the parity of the position decides the next word, as after a BOS: w1 w2 w1 w2 …"""
    model = toy_decoder(n_layer=1, n_positions=80)
    for name, parameter in model.named_parameters():
        if name.startswith("blocks") and name.endswith(("W_O", "b_O", "W_out", "b_out")):
            parameter.zero_()
    model.W_E.zero_()
    model.W_pos.zero_()
    model.W_pos[0::2, 0], model.W_pos[1::2, 1] = 1.0, 1.0
    model.unembed.W_U.zero_()
    model.unembed.W_U[0, 8], model.unembed.W_U[1, 9] = 1.0, 1.0
    model.ln_final.w.fill_(3.0)
    return model


@pytest.mark.filterwarnings("ignore:word frequencies come from")
def test_a_model_that_needs_a_bos_is_told(caplog):
    """The figures are those of brute force; a model that does not need one gets the line without the caveat."""
    text, n = ["w1 w2 " * 30] * 20, 59
    with caplog.at_level(logging.INFO, logger="interp"), pytest.warns(UserWarning, match=r"read it with bos=True"):
        effect = interp.frequency.study(model := needs_bos(), text, layout="texts", progress=False)
    sentence = "without <s>, which the tokenizer has but does not put: perplexity {without:.4g}, and {with:.4g} with it"
    assert any(sentence.format(**effect.provenance["bos_perplexity"]) in line for line in caplog.messages)
    assert any("read it with bos=True" in caveat for caveat in effect.provenance["caveats"])
    (row,) = ids(text[0])
    for name, tokens in (("without", row), ("with", [BOS, *row])):
        tokens = torch.tensor([tokens])
        log_p = interp.models.sites.view(model).run(Tokens(tokens, torch.ones_like(tokens)), None)[0].log_softmax(-1)
        nll = -log_p[:-1].gather(1, tokens[0, 1:, None])[-n:].double().mean().item()
        assert effect.provenance["bos_perplexity"][name] == pytest.approx(math.exp(nll), rel=1e-5)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="interp"):
        effect = interp.frequency.study(model, ["w2 w1 " * 30] * 20, layout="texts", progress=False)
    assert len([line for line in caplog.messages if "does not put" in line]) == 1
    assert not any("bos=True" in caveat for caveat in effect.provenance["caveats"])
    read = interp.frequency.study(model, text, layout="texts", bos=True, progress=False)
    assert "bos_perplexity" not in read.provenance
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="interp"), pytest.raises(ValueError, match=naming(80, "row")):
        interp.frequency.study(model, ["w1 w2"], progress=False)  # less than a row, so nothing is predicted
    assert not any("does not put" in line for line in caplog.messages)


def test_bos_is_a_class_of_its_own(puts_bos):
    model = interp.load(puts_bos)
    classes = corpora.token_classes(model)
    assert classes.names == ("first", "bos", "comma_period", "other")
    assert classes(torch.tensor([[BOS, 8, BOS], [8, BOS, 9]])).tolist() == [[1, 3, 1], [0, 1, 3]]
    with pytest.warns(UserWarning, match="no token of class comma_period in"):
        table = interp.attention.attention_by_class(model, ["w1 w2 w3"] * 20, progress=False)
    assert set(table["key_class"]) == {"bos", "other"}


@pytest.mark.usefixtures("untyped")
def test_bad_bos(load_toy):
    for wrong in ("yes", None, 1):
        with pytest.raises(
            ValueError, match=naming("bos", "True", "False", "'auto'", "'rows'", "'texts'", repr(wrong))
        ):
            corpora.batches(load_toy("gpt2"), ["w1 w2"], bos=wrong)
