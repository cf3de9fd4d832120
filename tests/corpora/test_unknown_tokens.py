"""Text that a tokenizer does not know is counted, warned about or refused."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming

import interp
from interp.corpora.tokens import tokens_of, unknown_id
from interp.passes.reading import part_of

KNOWN = ["w1 w2 w3 w4 w5 w6 w7 w8 w9"] * 20


def mixed(share, n=100):
    """Enough texts of one word for a row, a share of them unknown."""
    return ["猫" if i < share * n else f"w{i % 30}" for i in range(n)]


def effect(model, texts):
    counts = np.arange(1, model.W_U.shape[1] + 1)
    return interp.frequency.study(model, texts, unigram=counts, progress=False)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_text_of_unknown_tokens_is_refused(kind, load_toy):
    model = load_toy(kind)
    with pytest.raises(ValueError, match=naming(100, "[UNK]")):
        effect(model, ["猫 が 好き です"] * 25)


def test_a_bridge_refuses_unknown_text_too():
    """It gives BERT's tokenizer an end-of-text token, which has the id of [UNK]."""
    model = interp.load("tiny-bert", backend="bridge")
    with pytest.raises(ValueError, match=naming(50, "[UNK]")):
        list(interp.corpora.batches(model, ["😀"] * 50))


def test_a_long_text_is_not_read_to_its_end(load_toy):
    def texts():
        for number in range(100_000):
            assert number < 20_000, "it should have stopped"
            yield "猫 が"

    model = load_toy("gpt2")
    corpus = interp.corpora.sources.Corpus("endless", "0", texts)
    with pytest.raises(ValueError, match=naming("endless", "[UNK]")):
        effect(model, corpus)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_the_share_is_in_the_provenance(share, load_toy):
    model = load_toy("gpt2")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = effect(model, mixed(share))
    assert found.provenance["unknown_share"] == pytest.approx(share, abs=1e-12)
    said = [warning for warning in said if "tokens of texts are [UNK]" in str(warning.message)]
    assert len(said) == (share > 0.05), "once, above 5 %"
    if said:
        assert "30% of the tokens of texts are [UNK]" in str(said[0].message)
        assert said[0].filename == __file__, "at the caller's line"


@pytest.mark.filterwarnings("ignore:30% of the tokens")
def test_however_the_text_is_read(load_toy, tmp_path):
    """As rows of texts, in parts, from a finished checkpoint, as token ids, as sentences and as prompts."""
    model = load_toy("gpt2")
    texts = mixed(0.3)
    assert interp.corpora.batches(model, texts, layout="texts").about["unknown_share"] == pytest.approx(0.3)
    part = part_of(interp.corpora.batches(model, texts, batch_size=1), 1, 2)
    list(part)
    assert part.about["unknown_share"] == pytest.approx(0.3)
    for _ in range(2):
        counts = np.arange(1, model.W_U.shape[1] + 1)
        found = interp.frequency.study(model, texts, unigram=counts, progress=False, directory=tmp_path)
        assert found.provenance["unknown_share"] == pytest.approx(0.3)
    ids = torch.tensor([[1] * 6 + [9] * 14])
    assert effect(model, ids).provenance["unknown_share"] == pytest.approx(0.3)
    with pytest.raises(ValueError, match=naming(9, "[UNK]")):
        effect(model, torch.ones(1, 9, dtype=torch.int64))
    pairs = pd.DataFrame({"sentence_good": ["w1 猫 w3"], "sentence_bad": ["w1 w2 w3 w4 w5 w6 w7"], "UID": ["t"]})
    with pytest.warns(UserWarning, match="10% of the tokens of the sentences"):
        states = interp.probing.collect(model, pairs, progress=False)
    assert states.settings["unknown_share"] == pytest.approx(0.1)
    with pytest.raises(ValueError, match=naming("sentences", "[UNK]")):
        interp.probing.collect(model, pairs.assign(sentence_good="猫", sentence_bad="が"), progress=False)
    with pytest.raises(ValueError, match=naming(6, "[UNK]")):
        interp.generation.prompts(model, ["猫 が 好き です ね よ"], n=1, prompt_tokens=2, new_tokens=4)
    with pytest.raises(ValueError, match=naming("[UNK]")):
        interp.corpora.count_unigrams(model, ["猫"])


@pytest.mark.filterwarnings("ignore:10% of the tokens")
def test_a_prefix_without_a_known_word_is_refused_each_time(load_toy):
    """This also holds if the whole text, of which it is a part, was kept before."""
    tokenizer = load_toy("gpt2").tokenizer
    corpus = interp.corpora.load(["猫"] * 20 + KNOWN)
    whole, prefix = tokens_of(corpus, tokenizer), tokens_of(interp.corpora.load(corpus, limit=20), tokenizer)
    assert whole.counted().n_unknown == 20
    for _ in range(2):
        with pytest.raises(ValueError, match=naming(20, "[UNK]")):
            list(prefix)
        with pytest.raises(ValueError, match=naming(20, "[UNK]")):
            prefix.counted()


def test_byte_level_tokenizers_know_everything():
    """GPT-2's unknown token is its end-of-text token, which may occur in a text."""
    model = interp.load("tiny-gpt2")
    assert unknown_id(model.tokenizer) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="special tokens are written out")
        batches = interp.corpora.batches(model, ["<|endoftext|>猫が好きです。"] * 200)
        assert batches.about["unknown_share"] == 0


def test_special_tokens_are_not_words(load_toy):
    """[CLS], [SEP] and masked tokens do not count."""
    model = load_toy("bert")
    assert effect(model, KNOWN).provenance["unknown_share"] == 0
