"""Token classes by the text of tokens, and how tokens are shown, in twelve families of tokenizers."""

import re
import shutil
import sys
import warnings
from functools import cache

import numpy as np
import pytest
import tokens_by_hand as by_hand
import torch
import transformers
from families import ENCODERS, ENGLISH, FAMILIES, JAPANESE, MECAB, family, why_not
from naming import naming
from tokenizers import Tokenizer, models, pre_tokenizers
from toys import toy

import interp
from interp.corpora import token_classes
from interp.corpora.characters import UNICODE_CLASSES, is_comma_or_period, unicode_class
from interp.corpora.sentences import encode
from interp.models.spelling import Spelling

BYTE_LEVEL = ("gpt2", "llama3", "qwen")
ALL = {name: name for name in UNICODE_CLASSES}
FALLBACK = "、。は龘"  # the last character is in no vocabulary


@pytest.fixture(params=FAMILIES)
def name(request):
    if reason := why_not(request.param):
        pytest.skip(reason)
    return request.param


@cache
def model_of(name):
    tokenizer = family(name)
    return toy(tokenizer, d_vocab=len(tokenizer), n_ctx=128, encoder=name in ENCODERS)


def spelled(name, text):
    """The ways in which the vocabulary of a family spells a text; each is a single token."""
    if name in BYTE_LEVEL:
        parts = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return ["".join(part for part, _ in parts.pre_tokenize_str(one)) for one in (text, f" {text}")]
    if name in ("llama2", "t5", "mbart"):
        return [one.replace(" ", "▁") for one in (text, f" {text}")]
    return [text, f"##{text}"] if name in ("mecab wordpiece", "wordpiece cased", "wordpiece uncased") else [text]


def listed(name):
    """The tokens of a family whose text is in the table: [(token ids in a row, text)]."""
    if name == "byt5":
        return [(encode(family(name), [text])[0], text) for text in by_hand.rows() if len(text) == 1]
    vocabulary = family(name).get_vocab()
    tokens = [(token, text) for text in by_hand.rows() for token in spelled(name, text)]
    return [([vocabulary[token]], text) for token, text in tokens if token in vocabulary]


def found(classes, rows):
    """The classes of the tokens of each row, which follow a token of no class."""
    padded, mask = interp.corpora.sentences.padded([[0, *ids] for ids in rows])
    numbers = classes(padded)
    return [{classes.names[n] for n in row[real.bool()][1:].tolist()} for row, real in zip(numbers, mask, strict=True)]


def test_the_classes_of_texts():
    wrong = {text: unicode_class(text) for text, name in by_hand.rows().items() if unicode_class(text) != name}
    assert not wrong
    assert {text for text in by_hand.rows() if is_comma_or_period(text)} == by_hand.COMMA_PERIOD
    assert {*by_hand.rows().values()} <= {*UNICODE_CLASSES}


@pytest.mark.quick("wordpiece", "llama3")
def test_every_family_classifies_what_is_listed(name):
    """Two hundred tokens each, however the vocabulary spells them (bytes: one character in one to four tokens)."""
    model, rows = model_of(name), by_hand.rows()
    unicode, default = token_classes(model, ALL), token_classes(model)
    ids, texts = zip(*listed(name), strict=True)
    assert len(ids) >= (200 if name in ("byt5", "mecab character") else 240)
    wrong = {text: got for text, got in zip(texts, found(unicode, ids), strict=True) if got != {rows[text]}}
    assert not wrong
    at_comma = zip(texts, found(default, ids), strict=True)
    wrong = [text for text, got in at_comma if (got == {"comma_period"}) != (text in by_hand.COMMA_PERIOD)]
    assert not wrong
    assert {",", ".", "、", "。", "，", "．", "।", "،"} <= {*texts}


def test_special_tokens_are_of_no_class_of_text(name):
    model = model_of(name)
    special = torch.tensor([family(name).all_special_ids])
    classes = token_classes(model, ALL)
    assert set(classes(special)[0].tolist()) == {len(UNICODE_CLASSES)}, "other"


def test_japanese_text_has_commas_and_periods(name):
    """As many characters as are in the text, unless a token contains more than one of them."""
    classes = token_classes(model_of(name))
    for text in JAPANESE[:20]:
        [ids] = encode(family(name), [text])
        texts = Spelling(family(name)).texts_in_row(ids)
        numbers = classes(torch.tensor([[0, *ids]]))[0, 1:]
        marked = [one for one, number in zip(texts, numbers, strict=True) if classes.names[number] == "comma_period"]
        assert {one.strip() for one in marked} <= {"、", "。"}
        if name == "byt5" or name in MECAB or name.startswith("wordpiece"):
            per_character = 3 if name == "byt5" else 1
            assert len(marked) == per_character * len(re.findall("[、。]", text))


@pytest.mark.parametrize("name", ["gpt2", "llama2", "byt5"])
def test_bytes_have_the_class_of_the_character_they_form(name):
    tokenizer, spelling = family(name), Spelling(family(name))
    [ids] = encode(tokenizer, ["x龘"])
    assert len(ids) > 3
    parts = ids[-3:]
    assert spelling.texts(parts) == [None] * 3
    assert None not in spelling.said(parts)
    assert spelling.names(parts) == ["<E9>", "<BE>", "<98>"]
    assert spelling.texts_in_row(ids)[-3:] == ["龘"] * 3
    assert spelling.texts_in_row([*parts[:2], *parts]) == [None, None, "龘", "龘", "龘"]
    classes = token_classes(model_of(name), {"han": "han"})
    assert classes(torch.tensor([[*parts, *parts[:2]], [*parts[1:], *parts]])).tolist() == [
        [0, 0, 0, 1, 1],
        [1, 1, 0, 0, 0],
    ]


def test_names_can_be_read_back(name):
    """The shown tokens of a text, with their marks undone, are what the tokenizer decodes."""
    tokenizer, spelling = family(name), Spelling(family(name))
    for text in [*JAPANESE[:10], *ENGLISH[:3], f"{FALLBACK} x"]:
        [ids] = encode(tokenizer, [text])
        names = spelling.names(ids)
        expected = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        if name in MECAB or name.startswith("wordpiece"):
            shown = " ".join(names).replace(" ##", "")
        else:
            coded = re.sub("<([0-9A-F]{2})>", lambda byte: chr(0xE000 + int(byte[1], 16)), "".join(names))
            raw = b"".join(
                bytes([ord(letter) - 0xE000]) if 0xE000 <= ord(letter) < 0xE100 else letter.encode() for letter in coded
            )
            shown = raw.decode().replace("␣", " ")
        assert shown.strip() == expected.strip()
        assert not re.search("[Ġ▁ãģ]", "".join(names))
        assert spelling.running(ids).strip() == expected.strip().replace("\n", "↵")


def test_what_cannot_be_seen_is_shown():
    tokenizer = family("gpt2")
    texts = [" ", "\n\n", "\t", "\u3000", "\u00a0", " है", "\u200b", "می\u200cخواهم", "\u0301"]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({text: i for i, text in enumerate(["?", *texts])}, "?")),
        unk_token="?",
    )
    shown = ["␣", "↵↵", "⇥", "<U+3000>", "<U+00A0>", "␣है", "<U+200B>", "می\u200cخواهم", "◌\u0301"]
    assert Spelling(tokenizer).names(range(1, 10)) == shown
    assert Spelling(tokenizer).names([0, 99]) == ["?", "99"], "the unknown token, and an id without one"


@pytest.mark.parametrize("kind", ["byte-level", "metaspace", "wordpiece"])
def test_tokenizers_that_were_made_without_a_decoder(kind):
    """transformers cannot decode their tokens, so the text comes from the tokenizer's other parts."""
    token = {"byte-level": "ãĢĤ", "metaspace": "▁。", "wordpiece": "##。"}[kind]
    vocabulary = {"[UNK]": 0, token: 1}
    backend = Tokenizer(models.WordPiece(vocabulary) if kind == "wordpiece" else models.WordLevel(vocabulary, "[UNK]"))
    parts = {"byte-level": pre_tokenizers.ByteLevel, "metaspace": pre_tokenizers.Metaspace}
    if kind in parts:
        backend.pre_tokenizer = parts[kind]()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    [text] = Spelling(tokenizer).texts([1])
    assert text.strip() == "。"


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_english_numbers_have_not_changed(name):
    """The tokens are the same as with the earlier classes by spelling, except two of WordPiece's that never occur, and
    so is the attention."""
    model = interp.load(name)
    special = ("cls", "sep") if name == "tiny-bert" else ("bos",)
    vocabulary = model.tokenizer.get_vocab()
    before = {kind: [getattr(model.tokenizer, f"{kind}_token_id")] for kind in special}
    before["comma_period"] = [i for token, i in vocabulary.items() if token.strip("Ġ▁ ") in (",", ".")]
    old, new = token_classes(model, before), token_classes(model)
    ids = torch.arange(model.cfg.d_vocab)[:, None].repeat(1, 2)
    differ = (new(ids)[:, 1] - int(name == "tiny-gpt2") != old(ids)[:, 1]).nonzero().flatten().tolist()
    assert {model.tokenizer.convert_ids_to_tokens(i) for i in differ} == (
        {"##,", "##."} if name == "tiny-bert" else set()
    )
    text = interp.corpora.load("bundled", limit=40)
    assert not {*differ} & {i for one in text for i in encode(model.tokenizer, [one])[0]}
    if name == "tiny-gpt2":
        of_old = lambda tokens: (token_classes(model, before)(tokens) + 1).index_fill(1, torch.tensor([0]), 0)  # noqa: E731
        old = interp.corpora.classes.TokenClasses(new.names, of_old)
    batches = interp.corpora.batches(model, text, context=64, bos=False)
    tables = [
        interp.attention.attention_by_class(model, batches, key_classes=classes, progress=False)
        for classes in (old, new)
    ]
    assert tables[0]["key_class"].equals(tables[1]["key_class"])
    np.testing.assert_allclose(tables[0]["sum"], tables[1]["sum"], atol=1e-12, rtol=0)


def test_classes_of_text_and_position():
    """A class can be a function of both; ids come before functions, and the first class that claims a token gets it."""
    model = model_of("byt5")
    [ids] = encode(model.tokenizer, ["は、xx、"])
    seen = []

    def late(text, position):
        seen.append((text, position))
        return position >= 7

    classes = token_classes(
        model, {"x": [ids[-4]], "comma": "comma_like", "late": late, "kana": ["hiragana", "katakana"]}
    )
    assert classes.names == ("x", "comma", "late", "kana", "other")
    assert classes(torch.tensor([ids])).tolist() == [[3, 3, 3, 1, 1, 1, 0, 0, 1, 1, 1]]
    assert ("は", 0) in seen
    assert ("、", 3) not in seen
    again = token_classes(model, {"late": lambda text, position: position >= 7})
    other = token_classes(model, {"late": lambda text, position: position >= 8})
    assert (
        again.describe(384, 128) == token_classes(model, {"late": late}).describe(384, 128) != other.describe(384, 128)
    )


def test_refusals():
    model = model_of("gpt2")
    with pytest.raises(ValueError, match=naming("'kana'", "class")):
        token_classes(model, {"kana": "kana"})
    with pytest.raises(TypeError, match=naming("kana", "list")):
        token_classes(model, {"kana": ["hiragana", 3]})
    asked = token_classes(model, {"a": lambda text, position: None})
    with pytest.raises(TypeError, match=naming("'a'", "True", "False", "None")):
        asked(torch.tensor([[40, 41]]))
    with pytest.raises(ValueError, match=naming("tokenizer", "classes")):
        token_classes(toy(), {"kana": "hiragana"})
    assert token_classes(toy(), {"a": [3]})(torch.tensor([[3, 4]])).tolist() == [[0, 1]], "ids need none"


def test_text_that_is_all_unknown_tokens():
    """Unknown tokens have no text; such a corpus is refused when it is read."""
    model = model_of("wordpiece cased")
    assert set(token_classes(model, ALL)(torch.tensor([encode(model.tokenizer, ["龘龘 龘"])[0]]))[0].tolist()) == {
        len(UNICODE_CLASSES)
    }
    with pytest.raises(ValueError, match=naming(4, "[UNK]")):
        interp.attention.attention_by_class(model, ["龘龘 龘", "龘"], progress=False)


@pytest.mark.parametrize("encoding", ["shift_jis", "euc_jp", "utf-16"])
def test_text_in_another_encoding_is_refused(encoding, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\n".join(JAPANESE[:5]).encode(encoding))
    with pytest.raises(ValueError, match=naming("text.txt", "UTF-8")):
        list(interp.corpora.load(path))
    mixed = tmp_path / "mixed.txt"
    mixed.write_bytes(JAPANESE[0].encode() + b"\n" + JAPANESE[1].encode(encoding))
    with pytest.raises(ValueError, match=naming("mixed.txt", "UTF-8")):
        list(interp.corpora.load(mixed))


# BertJapaneseTokenizer


@pytest.fixture(scope="module")
def japanese_bert(tmp_path_factory):
    """The directory of a toy BERT with a given kind of tokenizer."""

    def directory(name):
        if reason := why_not(name):
            pytest.skip(reason)
        made = tmp_path_factory.mktemp("bert")
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        torch.manual_seed(0)
        config = transformers.BertConfig(vocab_size=len(family(name)), max_position_embeddings=64, **sizes)
        transformers.BertForMaskedLM(config).save_pretrained(made)
        family(name).save_pretrained(made)
        return made

    return directory


@pytest.mark.parametrize("name", MECAB)
def test_japanese_berts_are_loaded_framed_masked_and_counted(name, japanese_bert):
    directory = japanese_bert(name)
    model = interp.load(directory)
    tokenizer = transformers.BertJapaneseTokenizer.from_pretrained(directory)
    assert type(model.tokenizer) is transformers.BertJapaneseTokenizer
    cls, sep, mask = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]", "[MASK]"])
    expected = [tokenizer(text)["input_ids"] for text in JAPANESE]
    assert all(row[0] == cls and row[-1] == sep for row in expected)

    rows = {}
    for batch in interp.corpora.batches(model, JAPANESE, mask_rate=0.3):
        for row, targets, real, read in zip(batch.tokens, batch.targets, batch.mask, batch.read, strict=True):
            whole = torch.where(read, targets, row)[real.bool()].tolist()
            rows[tuple(whole)] = read[real.bool()]
            assert (row[read] == mask).all()
            assert not read[[0, len(whole) - 1]].any(), "[CLS] and [SEP] are never masked"
    assert sorted(rows) == sorted({tuple(row) for row in expected})
    masked = torch.cat([read[1:-1] for read in rows.values()]).double().mean()
    assert masked.item() == pytest.approx(0.3, abs=0.06)

    counts = interp.corpora.count_unigrams(model, JAPANESE)
    alone = [i for row in expected for i in row[1:-1]]
    assert counts.counts.tolist() == np.bincount(alone, minlength=len(tokenizer)).tolist()


def test_counts_of_a_japanese_tokenizer_are_taken_wherever_it_lies(japanese_bert, tmp_path):
    directory = japanese_bert("mecab word")
    interp.corpora.count_unigrams(interp.load(directory), JAPANESE).save(tmp_path / "counts.safetensors")
    copied = interp.load(shutil.copytree(directory, tmp_path / "copy"))
    found = interp.frequency.study(copied, JAPANESE[:20], unigram=tmp_path / "counts.safetensors", progress=False)
    assert found.types["token"][copied.tokenizer.convert_tokens_to_ids("。")] == "。"


def test_without_its_extra_a_japanese_tokenizer_says_what_to_install(japanese_bert, monkeypatch):
    directory = japanese_bert("mecab word")
    monkeypatch.setitem(sys.modules, "fugashi", None)
    with pytest.raises(ValueError, match=naming("fugashi", "pip install 'interp[ja]'")):
        interp.load(directory)


def test_a_tokenizer_of_bytes_needs_no_vocabulary(tmp_path):
    """ByT5's directory has none; other directories without a vocabulary have no tokenizer."""
    sizes = {"n_positions": 24, "n_embd": 16, "n_layer": 1, "n_head": 2}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=384, **sizes)).save_pretrained(tmp_path)
    family("byt5").save_pretrained(tmp_path)
    model = interp.load(tmp_path)
    assert encode(model.tokenizer, ["、"]) == [[0xE3 + 3, 0x80 + 3, 0x81 + 3]]
    family("gpt2").save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with warnings.catch_warnings(action="ignore"):
        assert interp.load(tmp_path).tokenizer is None


def test_the_japanese_text():
    """It has about a hundred sentences, all different and none in English."""
    assert len(set(JAPANESE)) == len(JAPANESE) >= 100
    assert all(re.search(r"[。」？]$", line) for line in JAPANESE)
