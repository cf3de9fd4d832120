"""The probability that a model gives to sentences and to their words.

Every score is a sum of the log-probabilities of tokens, which one pass collects (`TokenScores`).
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
import xxhash
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from interp.corpora import Batches
from interp.corpora.alignment import Aligned, aligned, cuts_words
from interp.corpora.batching import Batch
from interp.corpora.frames import frame, left_out_bos, settled_bos, tokenizer_of, unframed
from interp.corpora.sentences import encode, sentence_rows, together
from interp.corpora.tokens import Counted, unknown_id
from interp.corpora.unigrams import tokenizer_hash
from interp.models.head import prediction_head
from interp.models.sites import Model, Recipe, check_vocabulary, hook_name, is_encoder, view
from interp.models.softmax import log_partition
from interp.models.spelling import Spelling
from interp.passes.execution import Passes, Reading, runs
from interp.passes.observers import Observer
from interp.passes.reading import LOGITS_AT_ONCE, TOKENS_AT_ONCE
from interp.support.checks import list_of_strings
from interp.support.choices import Bos

__all__ = ["Sentences", "TokenScores", "scored", "sentence_scores", "word_surprisal"]
__dir__ = __all__.copy


class Sentences:
    """Sentences as a model reads them, each by itself. Every token has a place, its number among the tokens of all
    sentences.

    Args:
        bos: see `interp.probing.sentence_scores`.
        whole_words: see `interp.probing.sentence_scores`.

    Raises the errors of `interp.probing.sentence_scores`.
    """

    def __init__(self, model: Model, texts: Sequence[str], *, bos: Bos = "auto", whole_words: bool = False):
        self.texts = list_of_strings(texts, "sentences")
        self.rows = sentence_rows(model, self.texts, bos=bos, least=2)
        self.bos = settled_bos(model, bos)
        self.left_out_bos = left_out_bos(model, bos)
        check_vocabulary(model)
        self.model = model
        self.tokenizer = tokenizer_of(model)
        self.encoder = is_encoder(model)
        if self.encoder and self.tokenizer.mask_token_id is None:
            raise ValueError("this encoder's tokenizer has no [MASK] token, so no token of a sentence can be scored")
        before, after = frame(model, bos).alone
        self.before = len(before)
        contents = [row[len(before) : len(row) - len(after)] for row in self.rows]
        self.starts = np.concatenate([[0], np.cumsum(list(map(len, contents)))])
        self.ids = np.concatenate(list(map(np.array, contents)))
        self.unknown = self.ids == unknown_id(self.tokenizer)
        encoded = encode(self.tokenizer, self.texts)
        counted = Counted.of(np.concatenate(encoded), self.tokenizer).checked(self.tokenizer, "the sentences")
        self.unknown_share = counted.share
        self.own = [unframed(ids, before, after) for ids in encoded]
        self.whole_words = whole_words
        self.words = [sentence.words for sentence in self.aligned] if self.encoder and whole_words else None

    @property
    def firsts(self) -> Int[np.ndarray, " sentence"]:
        """The place of the first token of each sentence."""
        return np.asarray(self.starts[:-1])

    @property
    def scored(self) -> Bool[np.ndarray, " token"]:
        """Which tokens have a probability: all of them, or all but the first of a sentence if nothing comes before
        it."""
        scored = np.ones(len(self.ids), dtype=bool)
        scored[self.firsts] = self.before > 0
        return scored

    def summed(self, values: Float[np.ndarray, " token"] | Bool[np.ndarray, " token"]) -> NDArray[Any]:
        """The sums of token values by sentence."""
        return np.asarray(np.add.reduceat(values, self.firsts))

    def batches(self) -> Batches:
        """Batches with the longest sentences first. For an encoder, sentences of equal length are together, with one
        row per token, in which it is masked."""
        options: dict[str, Any] = {"tokenizer": self.tokenizer, "left_out_bos": self.left_out_bos}
        return Batches(self._settings, len(self.texts), self._read, **options)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        rows = json.dumps([self.rows, self.words]).encode()
        return {
            "corpus": f"{len(self.texts):,} sentences", "fingerprint": xxhash.xxh3_128(rows).hexdigest(),
            "layout": "texts", "context": max(map(len, self.rows)), "tokenizer": tokenizer_hash(self.tokenizer),
            "bos": self.bos,
        }  # fmt: skip

    def _read(self) -> Iterator[Batch]:
        lengths = np.array(list(map(len, self.rows)))
        for chosen in self._together(lengths):
            batch = self._masked(chosen) if self.encoder else Batch.of([self.rows[i] for i in chosen])
            numbers = torch.from_numpy(chosen).repeat_interleave(len(batch.tokens) // len(chosen))
            yield replace(batch, n_texts=len(chosen), stretches=numbers).to(self.model.W_U.device)

    def _together(self, lengths: Int[np.ndarray, " sentence"]) -> Iterator[Int[np.ndarray, " some"]]:
        """The numbers of the sentences to read at once, longest first, such that there are few enough tokens, and few
        enough logits if the prediction head must read all of them at once. Those of an encoder have equal lengths."""
        order = np.argsort(-lengths, kind="stable")
        if self.encoder:
            for length in dict.fromkeys(lengths[order].tolist()):
                alike = order[lengths[order] == length]
                size = max(1, TOKENS_AT_ONCE // (length * (length - 2)))
                for start in range(0, len(alike), size):
                    yield alike[start : start + size]
            return
        limit = TOKENS_AT_ONCE if view(self.model).starts_within else LOGITS_AT_ONCE // self.model.W_U.shape[1]
        for chosen in together(order, lambda i: int(lengths[i]), limit):
            yield np.array(chosen)

    def _masked(self, chosen: Int[np.ndarray, " sentence"]) -> Batch:
        """One row for each token of sentences of equal length, in which it is masked."""
        ids = np.array([self.rows[i] for i in chosen])
        n = len(ids)
        length = ids.shape[1] - 2
        here = torch.eye(length, dtype=torch.bool).expand(n, length, length)
        hidden = here
        if self.words is not None:
            words = torch.tensor([self.words[i] for i in chosen])
            hidden = (words[:, :, None] == words[:, None, :]).triu() | here
        read = torch.nn.functional.pad(here.flatten(0, 1), (1, 1))
        masked = torch.nn.functional.pad(hidden.flatten(0, 1), (1, 1))
        plain = Batch.of(ids.repeat(length, 0))
        tokens = plain.tokens.masked_fill(masked, self.tokenizer.mask_token_id)
        return replace(plain, tokens=tokens, read=read, targets=plain.tokens.where(read, -1))

    @cached_property
    def aligned(self) -> list[Aligned]:
        """The places of the tokens of each sentence. Raises the errors of `interp.corpora.alignment.aligned`."""
        places = zip(aligned(self.tokenizer, self.texts), self.own, strict=True)
        return [Aligned(sentence.offsets[own], sentence.words[own]) for sentence, own in places]


class TokenScores(Observer):
    """The log-probability of every token of sentences, in nats, at its place. For a causal model with `whole_words`,
    also the log-probability that a word ends after it.

    Raises ValueError for a causal model whose tokenizer has no tokens that begin with a space, and for sentences
    without spaces.

    Examples:
        >>> from interp import observe
        >>> from interp.testing import toy_decoder
        >>> sentences = Sentences(toy_decoder(), ["w1 w2 w3", "w4 w5"], bos=False)
        >>> observer = TokenScores(sentences)
        >>> observe(sentences.model, sentences.batches(), observer, progress=False)
        >>> len(observer.log_probabilities)
        5
    """

    of_rows = True

    def __init__(self, sentences: Sentences) -> None:
        super().__init__(whole_words=sentences.whole_words)
        self.sentences = sentences
        self.model = sentences.model
        self.head = prediction_head(self.model)
        self.marked = _marked(sentences) if sentences.whole_words and not sentences.encoder else None
        self._waiting: list[tuple[str, Tensor, Tensor]] = []
        for name in ("log_p", *(["ends"] if self.marked is not None else [])):
            self.add_state(name, (len(sentences.ids),))

    def hooks(self, batch: Batch) -> Recipe:
        starts = torch.from_numpy(self.sentences.starts).to(batch.tokens.device)
        assert batch.stretches is not None
        rows, columns = batch.read.nonzero(as_tuple=True)
        places = starts[batch.stretches.to(rows.device)[rows]] + columns - self.sentences.before

        def read(unembedded: Tensor, hook: object) -> None:
            logits = self.head.finished(batch.select(unembedded))
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            targets = batch.read_targets
            log_Z = log_partition(wide)
            log_p = wide.gather(1, targets.clamp(min=0)[:, None])[:, 0] - log_Z
            scored = targets >= 0
            self._keep("log_p", (places + int(not self.sentences.encoder))[scored], log_p[scored])
            if self.marked is not None:
                real = columns >= self.sentences.before
                begins = torch.from_numpy(np.flatnonzero(self.marked)).to(wide.device)
                ends = log_partition(wide.index_select(1, begins)) - log_Z
                self._keep("ends", places[real], ends[real])

        return [(hook_name(self.model, "logits"), read)]

    def _keep(self, name: str, places: Int[Tensor, " some"], values: Float[Tensor, " some"]) -> None:
        self._waiting.append((name, places.cpu(), values.cpu()))

    def commit(self) -> None:
        """Write only the places of the tokens that were read, because each token is read once."""
        for name, places, values in self._waiting:
            self.state[name][places] = values
        super().commit()

    def discard(self) -> None:
        super().discard()
        self._waiting = []

    @property
    def log_probabilities(self) -> Float[np.ndarray, " token"]:
        """The log-probability of each token, in nats; NaN if it has none. With `whole_words`, those of a causal model
        include the end of their word.

        Raises ValueError if one is not finite.
        """
        log_p = self.state["log_p"].numpy().copy()
        if self.marked is not None:
            ends = self.state["ends"].numpy()
            begins = self.marked[self.sentences.ids]
            begins[self.sentences.firsts] = False
            if not self.sentences.before:  # the first token that is scored
                begins[self.sentences.firsts + 1] = False
            closes = np.roll(begins, -1)
            closes[self.sentences.starts[1:] - 1] = True
            log_p += np.where(closes, ends, 0.0) - np.where(begins, np.roll(ends, 1), 0.0)
        if not np.isfinite(log_p).all():
            raise ValueError("the model gives sentences NaN or infinite log-probabilities; check its weights and dtype")
        return np.where(self.sentences.scored, log_p, np.nan)


def _marked(sentences: Sentences) -> Bool[np.ndarray, " d_vocab"]:
    """Which tokens begin with a space, before a word or alone, according to their text."""
    ids = sorted(set(sentences.tokenizer.get_vocab().values()))
    marked = np.zeros(sentences.model.W_U.shape[1], dtype=bool)
    for token_id, spelling in zip(ids, Spelling(sentences.tokenizer).said(ids), strict=True):
        if spelling is not None and spelling.startswith(b" ") and token_id < len(marked):
            marked[token_id] = True
    if not marked.any():
        problem = "this model's tokenizer has no token that begins with a space"
        raise ValueError(f"{problem}, so nothing says where a word ends; score sentences without whole_words")
    if not any(len(text.split()) > 1 for text in sentences.texts):
        problem = f"no sentence has a space in it, such as {sentences.texts[0][:40]!r}"
        raise ValueError(f"{problem}; whole_words is for languages that write spaces between words; leave it out")
    return marked


@runs
def sentence_scores(
    model: Model,
    sentences: Sequence[str],
    *,
    whole_words: bool = False,
    bos: Bos = "auto",
    progress: bool = True,
    directory: Any = None,
) -> Passes[pd.DataFrame]:
    """Each sentence's log-probability in nats, as a sum and divided by its length.

    For causal models this is `Σ_t log p(w_t | w_<t)`. For encoders it is the pseudo-log-likelihood `Σ_t log p(w_t |
    w_∖t)`, with each token masked in turn (Salazar et al. 2020, ACL, 2699-2712).

    With `whole_words`, an encoder sees only the part of a masked token's word that comes before it (`within_word_l2r`
    of Kauf and Ivanova 2023, ACL, 925-935), because the rest of a rare word would give its pieces away. Words are those
    of the tokenizer (`interp.corpora.alignment.aligned`), and those of MeCab in Japanese BERTs. For a causal model, the
    end of a word, where the next word may begin, is then scored with it. With B the tokens that begin with a space, a
    word w after the words c has

        log p(w | c) = Σ_t log p(w_t | c, w_<t) + log Σ_b∈B p(b | c, w) − log Σ_b∈B p(b | c)

    (Pimentel and Meister 2024, EMNLP, 18358-18375; Oh and Schuler 2024, EMNLP, 3464-3472), without the last term for
    the first token of a sentence that is scored. In the sum over a sentence, only the end of its last word remains. B
    is determined by the text of tokens (`␣the` with any tokenizer, the space of ByT5). This is for languages written
    with spaces.

    Args:
        sentences: strings, each of which is read by itself.
        whole_words: see above.
        bos: put the beginning-of-sequence token first, so that the first token is scored too. Without it, the first
            token is not scored. `"auto"`: see `interp.corpora.batches`. An encoder reads `[CLS] … [SEP]`.
        progress, directory: see `interp.passes.execution.execute`.

    Returns one row per sentence (sentence, n_tokens, n_unknown, n_characters, n_bytes, sum, per_token, per_character,
    per_byte). n_tokens counts the tokens that are scored, n_unknown those that the tokenizer does not know,
    n_characters the Unicode code points of the sentence as given, and n_bytes its bytes in UTF-8. The scores are the
    sum, and the sum divided by each of the three lengths.

    Raises:
        ValueError: the model has no tokenizer (or is an encoder without `[MASK]`) or that of another model; there are
            no sentences; a sentence has no token to score or is longer than the context; or all tokens are unknown.
            With `whole_words` also: the tokenizer of an encoder does not say where its words are, that of a causal
            model has no tokens that begin with a space, or no sentence has a space.
        TypeError: `model` is not a model, or `sentences` is not a list of strings.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> both = ["He hurt himself.", "He hurt themselves."]
        >>> scores = sentence_scores(model, both, bos=True, progress=False)
        >>> bool(scores["sum"][0] > scores["sum"][1])
        True
        >>> corrected = sentence_scores(model, both, whole_words=True, bos=True, progress=False)
        >>> bool((corrected["sum"] < scores["sum"]).all())  # after a period a word may also go on
        True
    """
    return (yield from scored(Sentences(model, sentences, bos=bos, whole_words=whole_words)))


def scored(sentences: Sentences) -> Passes[pd.DataFrame]:
    """The table of `sentence_scores`."""
    observer = TokenScores(sentences)
    yield [Reading("scoring", sentences.batches(), [observer])]
    table = pd.DataFrame({"sentence": sentences.texts})
    table["n_tokens"] = sentences.summed(sentences.scored)
    table["n_unknown"] = sentences.summed(sentences.unknown)
    table["n_characters"] = list(map(len, sentences.texts))
    table["n_bytes"] = [len(text.encode()) for text in sentences.texts]
    table["sum"] = sentences.summed(np.where(sentences.scored, observer.log_probabilities, 0.0))
    for unit in ("token", "character", "byte"):
        table[f"per_{unit}"] = table["sum"] / table[f"n_{unit}s"]
    return table


@runs
def word_surprisal(
    model: Model,
    sentences: Sequence[str | Sequence[str]],
    *,
    whole_words: bool = False,
    bos: Bos = "auto",
    progress: bool = True,
    directory: Any = None,
) -> Passes[pd.DataFrame]:
    """The surprisal of every word, or of every region, of sentences in nats: `−Σ log p` over its tokens.

    The words of a string are separated by its spaces, or are those of a tokenizer that cuts Japanese into words
    (`BertJapaneseTokenizer`). A list of strings is a sentence divided into regions, which together give the sentence,
    including spaces: `["The keys", " to the cabinet", " are"]`. Any language without spaces between words can be
    divided in this way.

    Args:
        sentences: strings, or lists of the regions of one sentence.
        whole_words, bos, progress, directory: see `sentence_scores`.

    Returns one row per word (sentence, word, text, n_tokens, surprisal), where sentence and word are numbers and text
    is the word. The surprisal is NaN if its first token has no probability, because nothing comes before it.

    Raises ValueError for a token that belongs to two regions, and for a tokenizer that does not say where its tokens
    are in a text (`interp.corpora.alignment.aligned`). Raises TypeError for anything but strings and lists of strings.
    Also raises the errors of `sentence_scores`.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> regions = [["She hurt", " herself."], ["She hurt", " himself."]]
        >>> found = word_surprisal(model, regions, bos=True, progress=False)
        >>> right, wrong = found[found["word"] == 1]["surprisal"]
        >>> bool(right < wrong)
        True
    """
    inputs: list[str | list[str]] = []
    for sentence in _several(sentences):
        inputs.append(sentence if isinstance(sentence, str) else list_of_strings(sentence, "regions"))
    texts = [sentence if isinstance(sentence, str) else "".join(sentence) for sentence in inputs]
    encoded = Sentences(model, texts, bos=bos, whole_words=whole_words)
    split = []
    for number, sentence in enumerate(inputs):
        split.append(_words(encoded, number) if isinstance(sentence, str) else sentence)
    rows = [_regions(encoded, number, parts) for number, parts in enumerate(split)]
    observer = TokenScores(encoded)
    yield [Reading("scoring", encoded.batches(), [observer])]
    log_p = observer.log_probabilities
    tables = []
    for number, (parts, regions) in enumerate(zip(split, rows, strict=True)):
        of_tokens = -log_p[encoded.starts[number] : encoded.starts[number + 1]]
        counts = np.bincount(regions, minlength=len(parts))
        surprisal = np.bincount(regions, of_tokens, minlength=len(parts))
        columns = {"sentence": number, "word": range(len(parts)), "text": list(map(str.strip, parts))}
        tables.append(pd.DataFrame(dict(columns, n_tokens=counts, surprisal=surprisal)))
    return pd.concat(tables, ignore_index=True)


def _several(sentences: Any) -> list[Any]:
    """One or more sentences, or lists of their regions."""
    if isinstance(sentences, str) or not isinstance(sentences, Sequence):
        kind = f"the string {sentences[:40]!r}" if isinstance(sentences, str) else type(sentences).__name__
        raise TypeError(f"sentences must be a list of strings, or of lists of regions, found {kind}")
    return list(sentences)


def _words(sentences: Sentences, number: int) -> list[str]:
    """The words of a sentence, each with the spaces before it; the last also with those after it."""
    text = sentences.texts[number]
    if cuts_words(sentences.tokenizer):
        alignment = sentences.aligned[number]
        last = {}
        for word, (_, end) in zip(alignment.words, alignment.offsets, strict=True):
            last[word] = end
        ends = list(last.values())
    else:
        ends = [match.end() for match in re.finditer(r"\S+", text)]
    return [text[start:end] for start, end in pairwise([0, *ends[:-1], len(text)])]


def _regions(sentences: Sentences, number: int, parts: Sequence[str]) -> Int[np.ndarray, " token"]:
    """The region that each token of a sentence belongs to, ignoring the spaces before it."""
    text = sentences.texts[number]
    ends = np.cumsum(list(map(len, parts)))
    regions = []
    for start, end in sentences.aligned[number].offsets:
        first = start + len(text[start:end]) - len(text[start:end].lstrip())
        first = start if first == end else first
        region, last = np.searchsorted(ends, [first, max(first, end - 1)], side="right")
        if region != last:
            across = f"{text[start:end]!r} of {text[:60]!r} is one token in two regions"
            raise ValueError(f"{across}, {parts[region]!r} and {parts[last]!r}; divide the sentence between tokens")
        regions.append(min(region, len(parts) - 1))
    return np.array(regions)
