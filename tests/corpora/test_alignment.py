"""The positions of tokens in a text, and the word scores that follow from them, in twelve families of tokenizers."""

import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from families import ENCODERS, ENGLISH, FAMILIES, JAPANESE, MECAB, family, why_not
from naming import naming
from toys import toy

from interp import probing
from interp.corpora.alignment import aligned, cuts_words
from interp.corpora.sentences import encode
from interp.models.spelling import Spelling

SHORT = [text for text in JAPANESE if len(text) <= 24]
WRITTEN = "ﾊﾝｶｸ ｶﾞ㎝ABC　か\u3099ある。"
"""Half-width letters, a unit in one character, a letter followed by its mark: MeCab reads ハンカク ガcmABC がある。"""


@pytest.fixture(params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    if reason := why_not(request.param):
        pytest.skip(reason)
    return str(request.param)


@cache
def model_of(name: str) -> Any:
    tokenizer = family(name)
    sizes = {"d_vocab": len(tokenizer), "n_ctx": 128, "encoder": name in ENCODERS}
    return toy(
        tokenizer, **sizes | ({} if tokenizer.bos_token_id or name in ENCODERS else {"default_prepend_bos": False})
    )


def plain(name: str, text: str) -> str:
    """The text without surrounding spaces and, for an uncased vocabulary, without case and accents."""
    if name != "wordpiece uncased":
        return text.strip()
    return "".join(one for one in unicodedata.normalize("NFD", text.strip().lower()) if not unicodedata.combining(one))


def test_tokens_have_the_text_at_their_place(name: str) -> None:
    tokenizer = family(name)
    texts = [*SHORT, *ENGLISH]
    for text, one, ids in zip(texts, aligned(tokenizer, texts), encode(tokenizer, texts), strict=True):
        assert len(one.offsets) == len(one.words) == len(ids)
        covered = {at for start, end in one.offsets for at in range(start, end)}
        assert {at for at, character in enumerate(text) if not character.isspace()} <= covered
        for (start, end), said in zip(one.offsets, Spelling(tokenizer).texts(ids), strict=True):
            if said is not None and said.strip():
                assert plain(name, said) == plain(name, text[start:end])


@pytest.mark.parametrize("name", MECAB)
def test_the_words_are_mecabs(name: str) -> None:
    if reason := why_not(name):
        pytest.skip(reason)
    fugashi, unidic_lite = pytest.importorskip("fugashi"), pytest.importorskip("unidic_lite")
    tagger = fugashi.GenericTagger(f'-d "{unidic_lite.DICDIR}" -r "{unidic_lite.DICDIR}/mecabrc"')
    tokenizer = family(name)
    assert cuts_words(tokenizer)
    for text, one in zip(SHORT, aligned(tokenizer, SHORT), strict=True):
        words: dict[int, str] = {}
        for number, (start, end) in zip(one.words, one.offsets, strict=True):
            words[number] = words.get(number, "") + text[start:end]
        assert [*words.values()] == [word.surface for word in tagger(text)]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MECAB)
def test_what_mecab_reads_in_other_characters(name: str) -> None:
    if reason := why_not(name):
        pytest.skip(reason)
    [one] = aligned(family(name), [WRITTEN])
    places = dict.fromkeys(WRITTEN[start:end] for start, end in one.offsets)
    assert "か\u3099" in places
    model = model_of(name)
    found = probing.scores.word_surprisal(model, [WRITTEN], progress=False)
    assert found["text"].tolist()[-4:] == ["㎝ABC", "か\u3099", "ある", "。"]
    assert "".join(found["text"]) == WRITTEN.replace(" ", "").replace("\u3000", "")


def test_the_words_of_byt5() -> None:
    text = " 猫 is  here. "
    [one] = aligned(family("byt5"), [text])
    assert one.words == [0] * 4 + [1] * 3 + [2] * 8
    assert one.offsets[:5] == [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]


# Scores


@torch.no_grad()
def masked_in_turn(model: Any, words: list[list[int]]) -> float:
    """The pseudo-log-likelihood of a sentence with these word ids, with the rest of each word masked too."""
    tokenizer, ids = model.tokenizer, [i for word in words for i in word]
    total, at = 0.0, 1
    for word in words:
        for position in range(len(word)):
            row = [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
            row[at + position : at + len(word)] = [tokenizer.mask_token_id] * (len(word) - position)
            log_p = model(torch.tensor([row]))[0, at + position].double().log_softmax(-1)
            total += float(log_p[word[position]])
        at += len(word)
    return total


@pytest.mark.parametrize("name", MECAB)
def test_the_rest_of_a_mecab_word_is_masked(name: str) -> None:
    if reason := why_not(name):
        pytest.skip(reason)
    model, tokenizer, texts = model_of(name), family(name), SHORT[:4]
    found = probing.sentence_scores(model, texts, whole_words=True, progress=False)
    plain = probing.sentence_scores(model, texts, progress=False)
    cut: Callable[[str], list[str]] = tokenizer.word_tokenizer.tokenize
    parts = tokenizer.subword_tokenizer.tokenize if tokenizer.do_subword_tokenize else lambda word: [word]
    for text, total in zip(texts, found["sum"], strict=True):
        words = [tokenizer.convert_tokens_to_ids(parts(word)) for word in cut(text)]
        assert total == pytest.approx(masked_in_turn(model, words), rel=1e-5)
    assert (np.abs(found["sum"] - plain["sum"]).max() > 1e-3) == (name != "mecab word")
    words = probing.scores.word_surprisal(model, texts, whole_words=True, progress=False)
    assert words["text"].tolist() == [word for text in texts for word in cut(text)]
    np.testing.assert_allclose(words.groupby("sentence")["surprisal"].sum(), -found["sum"], rtol=1e-6)


@torch.no_grad()
def test_words_of_bytes_end_at_a_space() -> None:
    """Each word of ByT5 includes the space before it, and a space must be possible after it."""
    model, text = model_of("byt5"), "The cat 猫 sat."
    ids = encode(model.tokenizer, [text])[0]
    [space] = encode(model.tokenizer, [" "])[0]
    log_p = model(torch.tensor([ids]))[0].double().log_softmax(-1)
    words, at = [], 0
    for word in ("The", " cat", " 猫", " sat."):
        end = at + len(word.encode())
        own = sum(float(log_p[t - 1, ids[t]]) for t in range(max(at, 1), end))
        words.append(own + float(log_p[end - 1, space]) - (float(log_p[at - 1, space]) if at else 0.0))
        at = end
    found = probing.scores.word_surprisal(model, [text], whole_words=True, bos=False, progress=False)
    np.testing.assert_allclose(found["surprisal"][1:], [-word for word in words[1:]], rtol=1e-5)
    assert found["text"].tolist() == ["The", "cat", "猫", "sat."]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_family_scores_words(name: str) -> None:
    model = model_of(name)
    bos = "auto" if name in ENCODERS else model.tokenizer.bos_token_id is not None
    texts = ENGLISH[:3]
    found = probing.scores.word_surprisal(model, texts, whole_words=True, bos=bos, progress=False)
    sums = probing.sentence_scores(model, texts, whole_words=True, bos=bos, progress=False)["sum"]
    if not cuts_words(model.tokenizer):
        assert found["text"].tolist() == [word for text in texts for word in text.split()]
    if bos is not False:
        np.testing.assert_allclose(found.groupby("sentence")["surprisal"].sum(), -sums, rtol=1e-5)


# Refusals


@pytest.mark.parametrize("name", MECAB)
def test_special_tokens_in_the_text(name: str) -> None:
    if reason := why_not(name):
        pytest.skip(reason)
    with pytest.raises(ValueError, match=naming("BertJapaneseTokenizer", "猫[MASK]")):
        aligned(family(name), ["猫[MASK]"])
