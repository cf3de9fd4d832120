"""Tokenizers, and the examples that the bundled models are trained on."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

Kind = Literal["gpt2", "bert"]
Separator = Literal["end of text", "newline"]

END_OF_TEXT = "<|endoftext|>"
SEPARATORS: dict[Separator, str] = {"end of text": END_OF_TEXT, "newline": "Ċ"}  # a byte-level newline
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SHORT = 48  # tokens; most BERT examples are no longer than this


def train_tokenizer(kind: Kind, texts: list[str], vocab_size: int) -> Tokenizer:
    if kind == "gpt2":
        tokenizer = Tokenizer(models.BPE(unk_token=None))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        options: dict[str, Any] = dict(
            special_tokens=[END_OF_TEXT], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
        trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, **options)
        tokenizer.train_from_iterator(texts, trainer)
    else:
        tokenizer = _train_wordpiece(texts, vocab_size)
    if tokenizer.get_vocab_size() != vocab_size:
        problem = f"the text gives a vocabulary of {tokenizer.get_vocab_size()} tokens, vocab_size is {vocab_size}"
        raise ValueError(f"{problem}; pass a vocab_size the text can fill, or more text")
    return tokenizer


def _train_wordpiece(texts: list[str], vocab_size: int) -> Tokenizer:
    """WordPiece with the 128 most common characters; a word with any other character is `[UNK]`.

    The trainer numbers `##x` in the order of a hash table. Passing them as special tokens fixes their order.
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    common = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    alphabet = sorted(common[:128])

    def bert_tokenizer(model: Any) -> Tokenizer:
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    trained = bert_tokenizer(models.WordPiece(unk_token="[UNK]"))
    options: dict[str, Any] = dict(
        special_tokens=[*BERT_SPECIAL, *("##" + c for c in alphabet)], initial_alphabet=alphabet
    )
    options |= dict(limit_alphabet=len(alphabet), show_progress=False)
    trained.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=vocab_size, **options))
    tokenizer = bert_tokenizer(models.WordPiece(trained.get_vocab(), unk_token="[UNK]"))
    tokenizer.add_special_tokens(BERT_SPECIAL)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    ids = []
    for start in range(0, len(texts), 10_000):
        chunk = tokenizer.encode_batch_fast(texts[start : start + 10_000], add_special_tokens=False)
        ids += [np.array(encoding.ids, dtype=np.uint16) for encoding in chunk]
    return ids


class Rows:
    """Texts as one stream with a separator before each; a row is `context` inputs and the token after each of them.

    The `counts` include a newline separator, but not `<|endoftext|>`, which is not in the texts.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[np.ndarray], context: int, separator: Separator) -> None:
        before = np.array([tokenizer.token_to_id(SEPARATORS[separator])], dtype=np.uint16)
        self.stream = np.concatenate([part for ids in texts for part in (before, ids)])
        self.context = context
        if len(self.stream) <= context:
            raise ValueError(f"the text has {len(self.stream)} tokens; a row needs {context + 1}: pass more text")
        self.prior = np.bincount(self.stream, minlength=tokenizer.get_vocab_size())
        self.counts = self.prior.copy()
        if separator == "end of text":
            self.counts[before] -= len(texts)

    def batches(self, batch_size: int, rng: np.random.Generator | None) -> list[np.ndarray]:
        """Starts of rows; the last row reaches back so that no token is left out. Without `rng`, in order."""
        last = len(self.stream) - 1 - self.context
        starts = np.minimum(np.arange(0, len(self.stream) - 1, self.context), last)
        starts = starts if rng is None else rng.permutation(starts)
        return np.split(starts, range(batch_size, len(starts), batch_size))

    def size(self, batch: np.ndarray) -> int:
        return len(batch) * self.context

    def predict(
        self, model: Any, batch: np.ndarray, rng: np.random.Generator
    ) -> tuple[Float[Tensor, "target d_vocab"], Int[Tensor, " target"]]:
        rows = torch.from_numpy(self.stream[batch[:, None] + np.arange(self.context + 1)].astype(np.int64))
        hidden = model.transformer(rows[:, :-1], use_cache=False).last_hidden_state
        return model.lm_head(hidden).flatten(0, 1), rows[:, 1:].flatten()


class Sentences:
    """Texts as sentences; an example is one sentence, one passage or two passages of the same paragraph.

    A sentence too long for the context is cut into pieces, which then count as sentences.
    """

    END = re.compile(r"(?<=[.!?])(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)\s+|(?<=[.!?][\"'”’)])\s+")

    def __init__(self, tokenizer: Tokenizer, texts: list[str], context: int) -> None:
        split = [[part for part in self.END.split(text) if part] for text in texts]
        encoded = encode(tokenizer, [sentence for parts in split for sentence in parts])
        paragraph = np.repeat(np.arange(len(texts)), [len(parts) for parts in split])
        self.stream = np.concatenate(encoded)
        self.context = context
        self.pad, _, self.cls, self.sep, self.mask = (tokenizer.token_to_id(token) for token in BERT_SPECIAL)
        self.vocab_size = tokenizer.get_vocab_size()
        self.prior = self.counts = np.bincount(self.stream, minlength=self.vocab_size)
        room = context - 2
        sizes: list[int] = []
        self.paragraph: list[int] = []
        for ids, place in zip(encoded, paragraph, strict=True):
            while len(ids):
                sizes.append(len(ids[:room]))
                self.paragraph.append(int(place))
                ids = ids[room:]
        if not sizes:
            raise ValueError("the text has no tokens; pass more text")
        self.ends = np.cumsum(sizes).tolist()

    def examples(self, rng: np.random.Generator) -> Int[np.ndarray, "example 3"]:
        """(start, middle, end) in the stream; the middle separates A from B, and equals the end if there is no B.

        30 % of the examples are one sentence. The rest have as many as fit in 48 tokens (10 %: in the context), and
        half of these are divided into A and B.
        """
        n = len(self.ends)
        examples = []
        first = 0
        start = 0
        draws = rng.random((n, 4))
        while first < n:
            single_draw, long, parted, place = draws[first]
            room = (self.context if long < 0.1 else min(SHORT, self.context)) - 3
            after = first + 1
            while single_draw > 0.3 and after < n and self.ends[after] - start <= room:
                if self.paragraph[after] != self.paragraph[first]:
                    break
                after += 1
            end = middle = self.ends[after - 1]
            if after - first > 1 and parted < 0.5:
                middle = self.ends[first + int(place * (after - first - 1))]
            examples.append((start, middle, end))
            first, start = after, end
        return np.array(examples)

    def batches(self, batch_size: int, rng: np.random.Generator | None) -> list[np.ndarray]:
        """Batches of examples of similar length, sorted within pools of 64 batches. Without `rng`, in text order."""
        if rng is None:
            examples = self.examples(np.random.default_rng(0))
            return np.split(examples, range(batch_size, len(examples), batch_size))
        examples = rng.permutation(self.examples(rng))
        pools = np.split(examples, range(64 * batch_size, len(examples), 64 * batch_size))
        pools = [pool[np.argsort(pool[:, 2] - pool[:, 0], kind="stable")] for pool in pools]
        batches = [batch for pool in pools for batch in np.split(pool, range(batch_size, len(pool), batch_size))]
        return [batches[i] for i in rng.permutation(len(batches))]

    def size(self, batch: np.ndarray) -> int:
        return int((batch[:, 2] - batch[:, 0] + 2 + (batch[:, 1] < batch[:, 2])).sum())

    def predict(
        self, model: Any, batch: np.ndarray, rng: np.random.Generator
    ) -> tuple[Float[Tensor, "target d_vocab"], Int[Tensor, " target"]]:
        start, middle, end = (column[:, None] for column in batch.T)
        pair = middle < end
        last, parting = end - start + 1 + pair, middle - start + 1
        place = np.arange(int(last.max()) + 1)[None, :]
        second = pair & (place > parting)
        source = start + place - 1 - second
        ids = self.stream[np.clip(source, 0, len(self.stream) - 1)].astype(np.int64)
        ids[:, 0] = self.cls
        ids[(place == parting) | (place == last)] = self.sep
        ids[place > last] = self.pad
        word = (place > 0) & (place != parting) & (place < last)

        draw = np.where(word, rng.random(ids.shape), 1.0)
        target = draw <= max(0.15, draw.min())
        seen = ids.copy()
        replacement = rng.random(ids.shape)
        seen[target & (replacement < 0.8)] = self.mask
        swap = target & (replacement >= 0.8) & (replacement < 0.9)
        seen[swap] = rng.integers(len(BERT_SPECIAL), self.vocab_size, swap.sum())

        hidden = model.bert(
            torch.from_numpy(seen),
            attention_mask=torch.from_numpy((place <= last).astype(np.int64)),
            token_type_ids=torch.from_numpy((second & (place <= last)).astype(np.int64)),
        ).last_hidden_state
        chosen = torch.from_numpy(np.flatnonzero(target))
        return model.cls(hidden.flatten(0, 1)[chosen]), torch.from_numpy(ids[target])


class Texts:
    """Texts to train on and texts held out; their tokens are kept for the next run with the same vocabulary.

    Raises ValueError if one of them is a string or holds no text.
    """

    def __init__(self, texts: Iterable[str], held_out: Iterable[str]) -> None:
        self.train, self.held_out = _paragraphs(texts, "texts"), _paragraphs(held_out, "held_out")
        self.fingerprints = dict(texts=_fingerprint(self.train), held_out=_fingerprint(self.held_out))
        self._encoded: dict[int, tuple[Tokenizer, list[np.ndarray], list[np.ndarray]]] = {}

    def read(self, settings: dict[str, Any], tokenizer_before: Tokenizer | None = None) -> tuple[Tokenizer, Any, Any]:
        """The tokenizer (trained unless `tokenizer_before` is given), and the texts to train on and held out."""
        kind, vocab_size, context = (settings[name] for name in ("kind", "vocab_size", "context"))
        if kind == "bert":
            tokenizer = tokenizer_before or train_tokenizer(kind, self.train, vocab_size)
            return tokenizer, Sentences(tokenizer, self.train, context), Sentences(tokenizer, self.held_out, context)
        if vocab_size not in self._encoded:
            tokenizer = tokenizer_before or train_tokenizer(kind, self.train, vocab_size)
            self._encoded[vocab_size] = tokenizer, encode(tokenizer, self.train), encode(tokenizer, self.held_out)
        tokenizer, seen, unseen = self._encoded[vocab_size]
        layout = context, settings["separator"]
        return tokenizer, Rows(tokenizer, seen, *layout), Rows(tokenizer, unseen, *layout)


def _paragraphs(texts: Iterable[str], name: str) -> list[str]:
    if isinstance(texts, str):
        raise ValueError(f"{name} is one string; expected a sequence of strings, one per paragraph")
    paragraphs = [text for text in texts if text.strip()]
    if not paragraphs:
        raise ValueError(f"{name} holds no text; expected a sequence of strings, one per paragraph")
    return paragraphs


def _fingerprint(texts: list[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()
