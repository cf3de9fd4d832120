"""Tokenizers of twelve families, trained on a little Japanese and English, with all tokens of `tokens_by_hand`."""

import importlib.util
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokens_by_hand import rows

from interp.testing import WORDS

JAPANESE = (Path(__file__).parents[1] / "japanese.txt").read_text(encoding="utf-8").splitlines()
ENGLISH = ["The cat sat by the door, and nobody saw it.", "It isn't mine. Whose is it?", "The boys saw the cat."] * 4
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
BERT = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
MECAB = ("mecab word", "mecab wordpiece", "mecab character")
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
_QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"


def _texts() -> list[str]:
    return [*JAPANESE, *ENGLISH, " ".join(WORDS)]


def _wrapped(backend: Tokenizer, cls: Any = transformers.PreTrainedTokenizerFast, **special: str) -> Any:
    return cls(tokenizer_object=backend, **special)


def _extended(backend: Tokenizer, spelled: list[str]) -> dict[str, int]:
    """The vocabulary of a trained tokenizer, followed by the given tokens that it lacks, as if it had been trained on
    more text."""
    vocabulary = backend.get_vocab()
    for token in spelled:
        vocabulary.setdefault(token, len(vocabulary))
    return vocabulary


def _byte_level(pattern: str | None, end: str) -> Any:
    backend = Tokenizer(models.BPE())
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*split, as_bytes])
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=[end], initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(_texts(), trainer)
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = ["".join(part for part, _ in as_bytes.pre_tokenize_str(text)) for text in _with_spaces()]
    model = models.BPE(_extended(backend, spelled), _merges(backend))
    backend.model = model
    return _wrapped(backend, bos_token=end, eos_token=end, pad_token=end)


def _merges(backend: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]


def _with_spaces() -> list[str]:
    """The tokens listed by hand, at the beginning of a word and within a word."""
    return [text for one in rows() for text in ((one, f" {one}") if one.strip() else (one,))]


def _marked(text: str) -> str:
    return text.replace(" ", "▁")


def _llama2() -> Any:
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # in training, as SentencePiece does
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    special = ["<unk>", "<s>", "</s>", *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=special, max_token_length=6, show_progress=False)
    backend.train_from_iterator(_texts(), trainer)
    vocabulary = _extended(backend, [_marked(text) for text in _with_spaces()])
    made = Tokenizer(models.BPE(vocabulary, _merges(backend), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer, made.decoder = backend.normalizer, backend.decoder
    return _wrapped(made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _unigram(special: dict[str, str], more: list[str]) -> Any:
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    names = list(dict.fromkeys([*special.values(), *more]))
    unknown = special["unk_token"]
    trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=names, unk_token=unknown, show_progress=False)
    backend.train_from_iterator(_texts(), trainer)
    pieces = [tuple(piece) for piece in json.loads(backend.to_str())["model"]["vocab"]]
    known = {piece for piece, _ in pieces}
    pieces += [(token, -30.0) for token in dict.fromkeys(map(_marked, _with_spaces())) if token not in known]
    backend.model = models.Unigram(pieces, unk_id=names.index(unknown))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(names)
    return _wrapped(backend, **special, additional_special_tokens=more)


def _wordpiece(*, lowercase: bool) -> Any:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=list(BERT.values()), show_progress=False)
    backend.train_from_iterator(_texts(), trainer)
    backend.model = models.WordPiece(_extended(backend, _pieces()), unk_token="[UNK]")
    backend.decoder = decoders.WordPiece(cleanup=False)
    return _wrapped(backend, **BERT)


def _pieces() -> list[str]:
    listed = [text for text in rows() if text.strip()]
    return [piece for text in listed for piece in (text, f"##{text}")]


def _mecab(kind: str) -> Any:
    from transformers.models.bert_japanese.tokenization_bert_japanese import MecabTokenizer

    cut = MecabTokenizer(mecab_dic="unidic_lite").tokenize
    words = dict.fromkeys(word for text in JAPANESE for word in cut(text))
    letters = dict.fromkeys(letter for text in JAPANESE for letter in text)
    listed = [text for text in rows() if text.strip()]
    ends = {f"##{word[1:]}" for word in words if len(word) > 1} | {f"##{letter}" for letter in letters}
    vocabularies = {
        "word": [*words, *listed],
        "wordpiece": [*letters, *sorted(ends), *_pieces()],
        "character": [*letters, *(text for text in listed if len(text) == 1)],
    }
    how = {"do_subword_tokenize": False} if kind == "word" else {"subword_tokenizer_type": kind}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "vocab.txt"
        tokens = dict.fromkeys([*BERT.values(), *vocabularies[kind], *WORDS])
        path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
        options: dict[str, Any] = {"word_tokenizer_type": "mecab", "mecab_kwargs": {"mecab_dic": "unidic_lite"}}
        return transformers.BertJapaneseTokenizer(str(path), **options, **how)


_SENTINELS = [f"<extra_id_{number}>" for number in range(4)]
_T5 = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
_MBART = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
FAMILIES: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: _byte_level(None, "<|endoftext|>"),
    "llama3": lambda: _byte_level(_LLAMA3, "<|end_of_text|>"),
    "qwen": lambda: _byte_level(_QWEN, "<|endoftext|>"),
    "llama2": _llama2,
    "t5": lambda: _unigram(_T5, _SENTINELS),
    "mbart": lambda: _unigram(_MBART, ["en_XX", "ja_XX"]),
    "wordpiece cased": lambda: _wordpiece(lowercase=False),
    "wordpiece uncased": lambda: _wordpiece(lowercase=True),
    "mecab word": lambda: _mecab("word"),
    "mecab wordpiece": lambda: _mecab("wordpiece"),
    "mecab character": lambda: _mecab("character"),
    "byt5": transformers.ByT5Tokenizer,
}
ENCODERS = ("wordpiece cased", "wordpiece uncased", *MECAB)


@cache
def family(name: str) -> Any:
    """The tokenizer of a family, made once."""
    return FAMILIES[name]()


def why_not(name: str) -> str | None:
    """Why a family cannot be made here, or None if it can."""
    lacking = [one for one in ("fugashi", "unidic_lite") if name in MECAB and importlib.util.find_spec(one) is None]
    return f"{', '.join(lacking)} not installed: pip install 'interp[ja]'" if lacking else None
