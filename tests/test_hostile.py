"""Bad input from Python: a documented error from interp itself, with words that help, and soon.

Types are not checked here (`jaxtyping_disable`), as they are not where interp is used.
"""

import gzip
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save_file
from toys import D_VOCAB
from workshop import Case, Workshop, check_refused

import interp
from interp import attention, corpora, encoding, frequency, generation, hooks, pages, probing
from interp.corpora import pairs, unigrams as counting
from interp.disk import replacing_directory
from interp.frequency.distributions import MeanPredictions, SiteMean, Variant
from interp.run.observers import observe

_GZ = gzip.compress(b"hello world\n" * 1_000)
_HEAD = b"sentence_good,sentence_bad\n"
_DEEP = b"[" * 100_000


def pair_table(*rows: tuple[object, object]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["sentence_good", "sentence_bad"])


def csv(w: Workshop, data: bytes) -> Path:
    return w.file("t.csv", data)


def jsonl(w: Workshop, data: bytes) -> Path:
    return w.file("t.jsonl", data)


def counts_file(w: Workshop, **tensors: np.ndarray) -> Path:
    save_file(tensors, w.root / "u.safetensors")
    return w.root / "u.safetensors"


def fifo(w: Workshop) -> Path:
    os.mkfifo(w.root / "a.txt")
    return w.root / "a.txt"


def link(w: Workshop) -> Path:
    (w.root / "b.txt").symlink_to(w.root / "gone.txt")
    return w.root / "b.txt"


load, text, minimal, count = interp.load, corpora.load, pairs.load, counting.load
MISSING, BAD, TYPE = FileNotFoundError, ValueError, TypeError
quiet: Any = {"progress": False}

MODELS: dict[str, Case] = {
    "a directory that climbs": (MISSING, "'../nowhere' does not exist; expected a Hug", lambda w: load("../nowhere")),
    "no name": (MISSING, "model '' does not exist", lambda w: load("")),
    "a blank name": (MISSING, "model ' ' does not exist", lambda w: load(" ")),
    "a name of HTML": (
        MISSING,
        "'<script>x</script>' is no local directory",
        lambda w: load("<script>x</script>"),
    ),
    "a name with a newline": (MISSING, "is no local directory", lambda w: load("a\nb")),
    "a name with NUL": (MISSING, "is no local directory", lambda w: load("a\0b")),
    "a name without end": (MISSING, "is no local directory", lambda w: load("x" * 5_000)),
    "a broken link": (MISSING, "does not exist; expected", lambda w: load(link(w))),
    "a number for a name": (TYPE, "a model is a name or a path, found int", lambda w: load(5)),
    "a file": (MISSING, "is a file, not a directory", lambda w: load(w.directory("gpt2") / "config.json")),
    "an empty directory": (MISSING, "has no config.json", lambda w: load(w.root)),
    "a config that is a list": (BAD, "names no model_type", lambda w: load(w.with_file("config.json", "[]"))),
    "a config without a kind": (BAD, "names no model_type", lambda w: load(w.with_file("config.json", "{}"))),
    "a config cut off": (BAD, "is not valid JSON", lambda w: load(w.with_file("config.json", '{"model'))),
    "a config that is deep": (BAD, "is not valid JSON", lambda w: load(w.with_file("config.json", _DEEP))),
    "a config of bytes": (BAD, "is not valid JSON", lambda w: load(w.with_file("config.json", b"\xff\xfe"))),
    "an unknown architecture": (
        BAD,
        "is a '../../x' model, which is not sup",
        lambda w: load(w.config(model_type="../../x")),
    ),
    "no blocks": (BAD, "has 0 blocks by its config.json", lambda w: load(w.config(n_layer=0))),
    "fewer than no blocks": (BAD, "has -1 blocks", lambda w: load(w.config(n_layer=-1))),
    "fewer blocks than weights": (BAD, "has weights of block 1, but", lambda w: load(w.config(n_layer=1))),
    "more blocks than weights": (
        BAD,
        "lacks weights that a GPT2LMHeadModel needs",
        lambda w: load(w.config(n_layer=3)),
    ),
    "another width": (BAD, "cannot be read as a transformers model", lambda w: load(w.config(n_embd=32))),
    "heads that do not divide": (BAD, "must be divisible by num_heads", lambda w: load(w.config(n_head=3))),
    "a negative vocabulary": (BAD, "cannot be read as a transformers model", lambda w: load(w.config(vocab_size=-1))),
    "an epsilon of NaN": (
        BAD,
        "differ from transformers by nan",
        lambda w: load(w.config(layer_norm_epsilon=float("nan"))),
    ),
    "the config of a Llama": (BAD, "lacks weights that a LlamaForC", lambda w: load(w.other_config("llama"))),
    "sizes left out": (BAD, "describes a model far larger", lambda w: load(w.config(model_type="llama"))),
    "blocks without end": (BAD, "describes a model far larger", lambda w: load(w.config(n_layer=10**9))),
    "a vocabulary without end": (BAD, "describes a model far larger", lambda w: load(w.config(vocab_size=10**12))),
    "pickled weights": (BAD, "has only pickled weights (pytorch_model.bin)", lambda w: load(w.pickled())),
    "code of its own": (BAD, "is a 'evil' model, which is not supp", lambda w: load(w.remote_code("evil"))),
    "a tokenizer of its own": (
        BAD,
        "has a tokenizer that cannot be read",
        lambda w: load(w.with_file("tokenizer.json", "{")),
    ),
    "another's tokenizer": (
        BAD,
        "has a tokenizer that cannot be",
        lambda w: load(w.with_file("tokenizer.json", '{"model": 3}')),
    ),
    "tokenizer settings cut": (
        BAD,
        "has a tokenizer that cannot",
        lambda w: load(w.with_file("tokenizer_config.json", "{")),
    ),
    "weights cut off": (BAD, "cannot be read as a transformers model", lambda w: load(w.truncated("gpt2"))),
    "BERT's weights cut off": (BAD, "cannot be read as a transformers model", lambda w: load(w.truncated("bert"))),
    "a header without end": (
        BAD,
        "header too large",
        lambda w: load(w.with_file("model.safetensors", b"\xff" * 7 + b"\x7f" + b"x" * 99)),
    ),
    "a shard that is missing": (MISSING, "lacks model-00002-of-00002.safetensors, of", lambda w: load(w.sharded())),
    "a shard that climbs": (BAD, "names weights outside", lambda w: load(w.sharded("../elsewhere.safetensors"))),
    "an index cut off": (BAD, "index.json is damaged", lambda w: load(w.sharded(None))),
    "an infinite weight": (BAD, "ln_1.bias has NaN or infinite values", lambda w: load(w.infinite())),
    "whole numbers": (BAD, "dtype must be a floating-point", lambda w: load(w.directory("gpt2"), dtype=torch.int64)),
    "a device without numbers": (
        BAD,
        "device 'meta' holds no numbers",
        lambda w: load(w.directory("gpt2"), device="meta"),
    ),
    "a device that is not there": (
        BAD,
        "'cuda:99' cannot be used",
        lambda w: load(w.directory("gpt2"), device="cuda:99"),
    ),
}

FILES: dict[str, Case] = {
    "text for a file": (MISSING, "corpus 'the quick fox' does not exist", lambda w: text("the quick fox")),
    "a page of text for a file": (MISSING, " ' does not exist; expected a .txt", lambda w: text("the quick fox " * 99)),
    "a name that climbs": (MISSING, "'../no-such-text' does not exist", lambda w: text("../no-such-text")),
    "a dataset of HTML": (MISSING, "'<b>/x' does not exist", lambda w: text("<b>/x")),
    "a number": (TYPE, "a list of strings, found int", lambda w: text(5)),
    "nothing": (TYPE, "a list of strings, found NoneType", lambda w: text(None)),
    "bytes": (TYPE, "a list of strings, found bytes", lambda w: text(b"abc")),
    "a dictionary": (TYPE, "a list of strings, found dict", lambda w: text({"a": 1})),
    "numbers for texts": (TYPE, "found int in it", lambda w: text([1, 2])),
    "no text": (BAD, "is empty; expected at least one", lambda w: text([])),
    "half a character": (BAD, "number 1, has the lone surrogate", lambda w: text(["a", "b\ud800"])),
    "half a character between": (BAD, "the separator has the lone", lambda w: text(["a"], separator="\udcff")),
    "a limit of NaN": (TYPE, "limit must be a whole number, found nan", lambda w: text(["a"], limit=float("nan"))),
    "a limit of half a text": (TYPE, "limit must be a whole number", lambda w: text(["a"], limit=1.5)),
    "a table of pairs": (BAD, "found sentence_good, sentence_bad; name one", lambda w: text(pair_table(("a", "b")))),
    "a home that is nobody's": (MISSING, "'~nobody0/x.txt' does not exist", lambda w: text("~nobody0/x.txt")),
    "a model at nobody's home": (MISSING, "'~nobody0/x' does not exist", lambda w: load("~nobody0/x")),
    "counts of letters": (
        TYPE,
        "one after the other, found str",
        lambda w: counting.count(w.model("gpt2").tokenizer, "w1 w2", corpus="x", d_vocab=D_VOCAB),
    ),
    "counts beyond 2⁶³": (BAD, "add up to more than", lambda w: counting.Unigrams(np.array([2**62] * 4), "x")),
    "a directory": (MISSING, "is a directory; expected a .txt", lambda w: text(w.root)),
    "a pipe": (MISSING, "is no regular file", lambda w: text(fifo(w))),
    "a broken link": (MISSING, "does not exist", lambda w: text(link(w))),
    "UTF-16": (BAD, "is not UTF-8 text", lambda w: text(w.file("a.txt", "hé".encode("utf-16")))),
    "Latin-1": (BAD, "is not UTF-8 text", lambda w: text(w.file("a.txt", b"caf\xe9"))),
    "white space": (BAD, "has no text in it", lambda w: text(w.file("a.txt", b" \n\t\r\n"))),
    "white space in batches": (
        BAD,
        "shorter than one row",
        lambda w: list(corpora.batches(w.model("gpt2"), [" ", "\n"])),
    ),
    "a comma without quotes": (BAD, "line 2: 3 columns, expected 1", lambda w: text(csv(w, b"Hello\nYes, it, is\n"))),
    "a row too short": (
        BAD,
        "line 3: 1 columns, expected 2",
        lambda w: text(csv(w, b"id,text\n1,a\n2\n"), column="text"),
    ),
    "a quote left open": (BAD, "not a readable .csv", lambda w: text(csv(w, b'a,b\n"never closed\n'))),
    "a column that is not there": (BAD, "no column '<b>'", lambda w: text(csv(w, b"id,text\n1,a\n"), column="<b>")),
    "a broken line": (BAD, "t.jsonl, line 2: not JSON", lambda w: text(jsonl(w, b'{"text":"a"}\n{"text": \n'))),
    "JSON without bottom": (BAD, "line 1: not JSON", lambda w: text(jsonl(w, _DEEP))),
    "a number without end": (BAD, "line 1: not JSON", lambda w: text(jsonl(w, b'{"text": ' + b"1" * 5_000 + b"}"))),
    "half a character in JSON": (BAD, "line 1 has the lone surrogate", lambda w: text(jsonl(w, b'{"text":"\\ud800"}'))),
    "no text in JSON": (BAD, "line 1: no text in column 'text'", lambda w: text(jsonl(w, b'{"text":null}'))),
    "gzip cut off": (BAD, "not a whole gzip file", lambda w: text(w.file("a.txt.gz", _GZ[:-20]))),
    "gzip that is none": (BAD, "not a whole gzip file", lambda w: text(w.file("a.txt.gz", b"hello"))),
    "gzip with a hole": (
        BAD,
        "not a whole gzip file",
        lambda w: text(w.file("a.txt.gz", _GZ[:20] + b"\xff" * 9 + _GZ[29:])),
    ),
    "gzip of nothing": (BAD, "has no text in it", lambda w: text(w.file("a.txt.gz", gzip.compress(b"")))),
    "gzip of no kind": (BAD, "unknown ending", lambda w: text(w.file("a.gz", _GZ))),
    "counts of nothing": (BAD, "all zero", lambda w: count(w.file("u.json", "[0, 0]"))),
    "counts below zero": (BAD, "whole numbers ≥ 0", lambda w: count(w.file("u.json", "[-1, 2]"))),
    "counts past 64 bits": (
        BAD,
        "whole numbers ≥ 0",
        lambda w: counting.Unigrams(np.array([2**63 + 5], np.uint64), "x"),
    ),
    "counts of words": (BAD, "whole numbers ≥ 0", lambda w: count(w.file("u.json", '{"a": 1}'))),
    "counts without bottom": (BAD, "not a JSON list of counts", lambda w: count(w.file("u.json", _DEEP))),
    "counts of text": (BAD, "not a file of unigram counts", lambda w: count(w.corpus())),
    "counts by another name": (BAD, "not a file of unigram counts", lambda w: count(counts_file(w, x=np.ones(3)))),
    "counts in fractions": (BAD, "found float64 of shape (3,)", lambda w: count(counts_file(w, counts=np.ones(3)))),
    "counts in a list": (TYPE, "must be a numpy array, found list", lambda w: counting.Unigrams([1, 2], "x")),
    "pairs in a list": (TYPE, "a pandas.DataFrame, found list", lambda w: minimal([("a", "b")])),
    "no pairs": (BAD, "has no rows", lambda w: minimal(pd.DataFrame())),
    "a pair of one": (BAD, "row 1: the two sentences are the same", lambda w: minimal(pair_table(("a", "a")))),
    "a blank sentence": (BAD, "row 1: sentence_bad is ' '", lambda w: minimal(pair_table(("a", " ")))),
    "a sentence of NaN": (BAD, "row 1: sentence_good is nan", lambda w: minimal(pair_table((np.nan, "b")))),
    "half a character in pairs": (
        BAD,
        "line 1: sentence_good has the lone surrogate",
        lambda w: minimal(jsonl(w, b'{"sentence_good":"\\ud800","sentence_bad":"b"}')),
    ),
    "two columns of one name": (
        BAD,
        "several columns 'sentence_bad'",
        lambda w: minimal(pair_table(("a", "b")).iloc[:, [0, 1, 1]]),
    ),
    "a comma in every pair": (BAD, "line 2: 3 columns, expected 2", lambda w: minimal(csv(w, _HEAD + b"a,b,c\n"))),
    "a comma in one pair": (BAD, "line 3: 3 columns, expected 2", lambda w: minimal(csv(w, _HEAD + b"a,b\nc,d,e\n"))),
    "a broken pair": (
        BAD,
        "line 2: not JSON",
        lambda w: minimal(jsonl(w, b'{"sentence_good":"a","sentence_bad":"b"}\n{"s')),
    ),
    "pairs without bottom": (BAD, "line 1: not JSON", lambda w: minimal(jsonl(w, _DEEP))),
    "a directory for a file of pairs": (
        BAD,
        "is a directory; expected a file",
        lambda w: ((w.root / "x.jsonl").mkdir(), minimal(w.root)),
    ),
    "pairs in damaged Parquet": (BAD, "not a readable .parquet", lambda w: minimal(w.file("t.parquet", b"PAR1xx"))),
    "a task of HTML": (BAD, "no task '<script>'", lambda w: minimal("bundled", tasks=["<script>"])),
    "a page of nothing": (MISSING, "holds no result", lambda w: pages.write_page(w.root)),
}

ANALYSES: dict[str, Case] = {
    "a model of torch": (
        TYPE,
        "expected a HookedTransformer",
        lambda w: frequency.bias_effect(torch.nn.Linear(1, 1), w.texts),
    ),
    "a name for a model": (TYPE, "expected a HookedTransformer", lambda w: corpora.batches("gpt2", w.texts)),
    "NaN in a head": (
        BAD,
        "W_Q of this model has NaN",
        lambda w: attention.attention_by_class(w.broken("gpt2", np.nan), w.texts, **quiet),
    ),
    "infinity in BERT": (
        BAD,
        "W_Q of this model has NaN or inf",
        lambda w: frequency.bias_effect(w.broken("bert", np.inf), w.texts, unigram=w.counts, **quiet),
    ),
    "NaN in what is written": (
        BAD,
        "has NaN",
        lambda w: generation.generate(w.broken("gpt2", np.nan), ["w1"], max_new_tokens=3, **quiet),
    ),
    "NaN in a check": (
        BAD,
        "has NaN",
        lambda w: attention.scores.check_decomposition(w.broken("gpt2", np.nan), torch.arange(5)),
    ),
    "NaN in sentences": (
        BAD,
        "has NaN",
        lambda w: probing.sentence_log_probability(w.broken("gpt2", np.nan), ["w1 w2"], **quiet),
    ),
    "NaN in features": (BAD, "has NaN", lambda w: generation.metrics.text_features(w.broken("gpt2", np.nan), ["w1"])),
    "an encoder without tokenizer": (BAD, "has no tokenizer", lambda w: corpora.batches(w.bare_encoder(), w.texts)),
    "no blocks to write with": (BAD, "no blocks", lambda w: generation.generate(w.toy(n_layers=0), ["w1"], **quiet)),
    "no blocks to profile": (
        BAD,
        "no blocks",
        lambda w: attention.dimension_profile(w.toy(n_layers=0), w.texts, **quiet),
    ),
    "no blocks with neurons": (
        BAD,
        "has no MLP",
        lambda w: encoding.frequency_neurons(w.toy(n_layers=0), w.texts, unigram=w.counts, **quiet),
    ),
    "fewer classes than tokens": (
        BAD,
        "predicts 10 classes and reads 67",
        lambda w: encoding.fit(w.toy(d_vocab_out=10), w.texts, **quiet),
    ),
    "classes it cannot read": (
        BAD,
        "predicts 90 classes and reads 67",
        lambda w: generation.generate(w.toy(d_vocab_out=90), ["w1"], **quiet),
    ),
    "sentences of ten classes": (
        BAD,
        "predicts 10 classes",
        lambda w: probing.sentence_log_probability(w.toy(d_vocab_out=10), ["w1 w2"], **quiet),
    ),
    "one sentence for a list": (
        TYPE,
        "sentences must be a list of strings, found the string",
        lambda w: probing.sentence_log_probability(w.model("gpt2"), "w1 w2", **quiet),
    ),
    "ALiBi": (
        BAD,
        "ALiBi",
        lambda w: attention.score_contributions(w.toy(positional_embedding_type="alibi"), w.texts, **quiet),
    ),
    "soft-capped logits": (
        BAD,
        "soft-caps its logits",
        lambda w: encoding.fit(w.toy(output_logits_soft_cap=5.0), w.texts, **quiet),
    ),
    "soft-capped scores": (
        BAD,
        "soft-capped",
        lambda w: attention.score_contributions(w.toy(attn_scores_soft_cap=5.0), w.texts, **quiet),
    ),
    "a scale of NaN": (
        BAD,
        "different finite numbers",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, scales=[np.nan], **quiet),
    ),
    "no scale": (BAD, "at least one", lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, scales=[], **quiet)),
    "a factor of NaN": (
        BAD,
        "factor must be a finite number",
        lambda w: hooks.scale_bias(w.model("gpt2"), "ln", np.nan),
    ),
    "another vocabulary": (
        BAD,
        "over 5 types",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, unigram=np.arange(5), **quiet),
    ),
    "counts of no kind": (
        TYPE,
        "found list",
        lambda w: frequency.bias_effect(w.model("gpt2"), w.texts, unigram=[1] * 67, **quiet),
    ),
    "fractions for tokens": (
        BAD,
        "token ids must be whole numbers",
        lambda w: corpora.batches(w.model("gpt2"), torch.rand(2, 3)),
    ),
    "tokens past the vocabulary": (BAD, "0 … 66", lambda w: corpora.batches(w.model("gpt2"), torch.tensor([[1, 99]]))),
    "no rows": (
        BAD,
        "batch_size must be at least 1",
        lambda w: corpora.batches(w.model("gpt2"), w.texts, batch_size=0),
    ),
    "batches of another tokenizer": (
        BAD,
        "made for another model (tokenised otherwise)",
        lambda w: frequency.bias_effect(w.model("gpt2"), corpora.batches(load("tiny-gpt2"), w.texts), **quiet),
    ),
    "token ids of a larger vocabulary": (
        BAD,
        "with token id 4000, of a larger vocabulary",
        lambda w: frequency.bias_effect(
            w.model("gpt2"), corpora.batches(load("tiny-gpt2"), torch.full((1, 10), 4000)), **quiet
        ),
    ),
    "rows longer than the context": (
        BAD,
        "in rows of 30, longer than its context",
        lambda w: attention.dimension_profile(
            w.model("gpt2"), corpora.batches(load("tiny-gpt2"), torch.full((1, 30), 4)), **quiet
        ),
    ),
    "an encoder's masked batches": (
        BAD,
        "masked, for an encoder",
        lambda w: attention.attention_by_class(
            w.model("gpt2"), corpora.batches(w.model("bert"), w.texts, mask_rate=0.5), **quiet
        ),
    ),
    "texts in place of batches": (
        TYPE,
        "expected batches, found list",
        lambda w: observe(w.model("gpt2"), w.texts, SiteMean(w.model("gpt2"), "head_input", 16)),
    ),
    "an observer of another model": (
        BAD,
        "made for another model",
        lambda w: observe(
            w.model("gpt2"),
            corpora.batches(w.model("gpt2"), w.texts),
            MeanPredictions(w.model("llama"), [Variant()]),
            **quiet,
        ),
    ),
    "a token past the embedding": (
        BAD,
        f"has token id {D_VOCAB}, beyond the model's vocabulary",
        lambda w: list(corpora.batches(w.more_tokens(), ["w1 w2 extra"], layout="texts")),
    ),
    "a seed beyond 64 bits": (
        BAD,
        "seed must be at most",
        lambda w: corpora.batches(w.model("bert"), w.texts, mask_rate=0.1, seed=2**64),
    ),
    "half a seed": (
        TYPE,
        "seed must be a whole number",
        lambda w: corpora.batching.sample_positions(corpora.batches(w.model("gpt2"), w.texts), 0.5, seed=0.5),
    ),
    "a seed below zero": (
        BAD,
        "seed must be at least 0",
        lambda w: corpora.batches(w.model("bert"), w.texts, mask_rate=0.1, seed=-1),
    ),
    "no layers": (
        BAD,
        "different numbers in 0 … 1, found []",
        lambda w: attention.attention_by_class(w.model("gpt2"), w.texts, layers=[], **quiet),
    ),
    "a class of no token": (
        BAD,
        "token id 99; expected",
        lambda w: attention.attention_by_class(w.model("gpt2"), w.texts, key_classes={"x": [99]}, **quiet),
    ),
    "a ratio of NaN": (BAD, "ratio must be", lambda w: encoding.steer(w.model("gpt2"), "w3", np.nan, w.fit(), **quiet)),
    "another model's fit": (
        BAD,
        "other weights",
        lambda w: encoding.pruning_curve(w.model("llama"), w.texts, fit=w.fit(), **quiet),
    ),
    "a probability of NaN": (
        BAD,
        "alpha must hold prob",
        lambda w: encoding.regression.fit_arrays(np.ones((2, 9)), np.full(9, np.nan)),
    ),
    "embeddings of NaN": (
        BAD,
        "W_U has NaN or infinite",
        lambda w: encoding.regression.fit_arrays(np.full((2, 9), np.nan), np.full(9, 0.1)),
    ),
    "embeddings of other types": (
        BAD,
        "of the 8 types of alpha",
        lambda w: encoding.regression.fit_arrays(np.ones((2, 9)), np.full(8, 0.1)),
    ),
    "no prompts": (BAD, "found none", lambda w: generation.generate(w.model("gpt2"), [], **quiet)),
    "a string of prompts": (BAD, "found the string", lambda w: generation.generate(w.model("gpt2"), "w1 w2", **quiet)),
    "too few pairs": (
        BAD,
        "a split needs at least",
        lambda w: probing.study(w.model("gpt2"), pair_table(("w1 w2", "w1 w3")), **quiet),
    ),
    "no observer": (
        BAD,
        "one or more different observers",
        lambda w: observe(w.model("gpt2"), corpora.batches(w.model("gpt2"), w.texts)),
    ),
}


CASES = {
    f"{area}: {name}": case
    for area, table in (("models", MODELS), ("files", FILES), ("analyses", ANALYSES))
    for name, case in table.items()
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)


def test_there_are_many() -> None:
    assert len(CASES) >= 60


def test_code_of_a_known_kind_is_not_run_either(workshop: Workshop) -> None:
    model = load(workshop.remote_code("gpt2"))
    assert model.cfg.n_layers == 2
    assert not (workshop.root / "ran").exists()


def test_padding_past_the_embedding_is_read_nowhere(workshop: Workshop) -> None:
    """A tokenizer to which a padding token was added, as is often done to GPT-2."""
    model = workshop.more_tokens()
    model.tokenizer.pad_token = "extra"
    usual, classes = workshop.model("gpt2"), {"early": range(7, 30)}
    ours, theirs = (
        attention.dimension_profile(
            each, corpora.batches(each, workshop.texts, layout="texts"), key_classes=classes, **quiet
        )
        for each in (model, usual)
    )
    pd.testing.assert_frame_equal(ours, theirs)


@pytest.mark.usefixtures("untyped")
def test_an_endless_generator_is_read_to_the_limit() -> None:
    assert list(text((f"text {i}" for i in itertools.count()), limit=np.int64(2))) == ["text 0", "text 1"]


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_stands_in_for_a_result_stays(kind: str, workshop: Workshop) -> None:
    """A link to a folder elsewhere, or a file, where the folder of a result should be."""
    elsewhere, target = workshop.file("elsewhere/kept.txt", "kept").parent, workshop.root / "frequency"
    target.symlink_to(elsewhere) if kind == "link" else target.write_text("x")
    with pytest.raises(FileExistsError, match=f"is a {kind} that interp did not make"), replacing_directory(target):
        pass
    assert target.is_symlink() == (kind == "link")
    assert (elsewhere / "kept.txt").read_text() == "kept"
    assert sorted(path.name for path in workshop.root.iterdir()) == ["elsewhere", "frequency"]


def test_a_name_that_is_no_utf_8_can_be_printed(workshop: Workshop) -> None:
    path = workshop.root / os.fsdecode(b"caf\xe9.txt")
    path.write_text("w1 w2")
    assert text(path).name == "caf\ufffd.txt"


def test_what_looks_hostile_and_is_sound(workshop: Workshop) -> None:
    """A byte order mark, CRLF, NUL, a line of megabytes: read as they stand."""
    assert list(text(workshop.file("a.txt", b"\xef\xbb\xbfhello\r\nw\0x\r\n"))) == ["hello", "w\0x"]
    assert list(text(csv(workshop, b'"Yes, it is",1\nNo,2\n'))) == ["Yes, it is", "No"]
    long = "w1 " * 1_000_000
    assert list(text(workshop.file("b.txt", long))) == [long]
