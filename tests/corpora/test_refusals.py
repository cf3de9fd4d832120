"""Bad texts, batches, counts and minimal pairs are refused; those that only look bad are read unchanged."""

import gzip
import itertools
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from naming import naming
from safetensors.numpy import save_file
from toys import D_VOCAB
from workshop import BAD, DEEP, FORMS, MISSING, TYPE, Case, Workshop, check_refused, quiet

import interp
from interp import attention, corpora, frequency
from interp.corpora import files, pairs, unigrams as counting

GZ = gzip.compress(b"hello world\n" * 1_000)
HEAD = b"sentence_good,sentence_bad\n"

text, minimal, count = corpora.load, pairs.load, counting.load


def pair_table(*rows: tuple[object, object]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["sentence_good", "sentence_bad"])


def csv(w: Workshop, data: bytes) -> Path:
    return w.file("t.csv", data)


def jsonl(w: Workshop, data: bytes) -> Path:
    return w.file("t.jsonl", data)


def counts_file(w: Workshop, **tensors: np.ndarray) -> Path:
    save_file(tensors, w.root / "u.safetensors")
    return w.root / "u.safetensors"


def pipe(w: Workshop, name: str) -> Path:
    os.mkfifo(w.root / name)
    return w.root / name


CASES: dict[str, Case] = {
    "text for a file": (
        MISSING,
        ("'the quick/fox'", "'owner/name'"),
        lambda w: text("the quick/fox"),
    ),
    "a page of text for a file": (MISSING, ("the quick/fox", ".txt"), lambda w: text("the quick/fox " * 99)),
    "a path that climbs": (MISSING, ("'../no-such-text'",), lambda w: text("../no-such-text")),
    "HTML for a dataset": (MISSING, ("'<b>/x'",), lambda w: text("<b>/x")),
    "a number": (TYPE, ("list", "int"), lambda w: text(5)),
    "nothing": (TYPE, ("list", "NoneType"), lambda w: text(None)),
    "bytes": (TYPE, ("list", "bytes"), lambda w: text(b"abc")),
    "a dictionary": (TYPE, ("list", "dict"), lambda w: text({"a": 1})),
    "numbers for texts": (TYPE, ("int",), lambda w: text([1, 2])),
    "no text": (BAD, ("empty",), lambda w: text([])),
    "half a character": (BAD, ("number 1", "surrogate"), lambda w: text(["a", "b\ud800"])),
    "half a character in the separator": (BAD, ("separator", "surrogate"), lambda w: text(["a"], separator="\udcff")),
    "a limit of NaN": (TYPE, ("limit", "nan"), lambda w: text(["a"], limit=float("nan"))),
    "True for a limit": (TYPE, ("limit", "True"), lambda w: text(["a"], limit=True)),
    "no name of a file": (MISSING, ("corpus", "''"), lambda w: text("")),
    "a fractional limit of pairs": (
        TYPE,
        ("limit", 2.5),
        lambda w: minimal("bundled", limit=2.5),
    ),
    "a name for a number of pairs": (
        TYPE,
        ("n_per_task", "'3'"),
        lambda w: pairs.generate(n_per_task="3"),
    ),
    "half a row in a batch": (
        TYPE,
        ("batch_size", 2.5),
        lambda w: corpora.batches(w.model("gpt2"), ["w1 w2"], batch_size=2.5),
    ),
    "a number for a class": (
        TYPE,
        ("'mine'", 7),
        lambda w: corpora.token_classes(w.model("gpt2"), {"mine": 7}),
    ),
    "a class that interp adds": (
        BAD,
        ("'mine', 'other'",),
        lambda w: corpora.token_classes(w.model("gpt2"), {"mine": [7], "other": [8]}),
    ),
    "a fractional limit": (TYPE, ("limit", 1.5), lambda w: text(["a"], limit=1.5)),
    "a table of pairs": (BAD, ("sentence_good, sentence_bad",), lambda w: text(pair_table(("a", "b")))),
    "an unknown user's home": (MISSING, ("'~nobody0/x.txt'",), lambda w: text("~nobody0/x.txt")),
    "counts of letters": (
        TYPE,
        ("strings", "str"),
        lambda w: counting.count(w.model("gpt2").tokenizer, "w1 w2", corpus="x", d_vocab=D_VOCAB),
    ),
    "counts beyond 2⁶³": (BAD, ("counts",), lambda w: counting.Unigrams(np.array([2**62] * 4), "x")),
    "a directory": (MISSING, ("directory", ".txt"), lambda w: text(w.root)),
    "a pipe": (MISSING, ("a.txt", "file"), lambda w: text(pipe(w, "a.txt"))),
    "a broken link": (MISSING, ("link",), lambda w: text(w.broken_link())),
    "UTF-16": (BAD, ("a.txt", "UTF-8"), lambda w: text(w.file("a.txt", "hé".encode("utf-16")))),
    "Latin-1": (BAD, ("a.txt", "UTF-8"), lambda w: text(w.file("a.txt", b"caf\xe9"))),
    "white space": (BAD, ("a.txt", "text"), lambda w: text(w.file("a.txt", b" \n\t\r\n"))),
    "white space in batches": (
        BAD,
        (24, "row"),
        lambda w: list(corpora.batches(w.model("gpt2"), [" ", "\n"])),
    ),
    "semicolons between columns": (
        BAD,
        ("semicolon", "id, text", "comma"),
        lambda w: text(csv(w, b"id;text\n1;Yes, it is\n")),
    ),
    "semicolons between the columns of pairs": (
        BAD,
        ("semicolon", "sentence_good, sentence_bad", "comma"),
        lambda w: minimal(csv(w, b"sentence_good;sentence_bad\na;b\n")),
    ),
    "a comma without quotes": (BAD, ("line 2", 3, 1), lambda w: text(csv(w, b"Hello\nYes, it, is\n"))),
    "a row too short": (
        BAD,
        ("line 3", 1, 2),
        lambda w: text(csv(w, b"id,text\n1,a\n2\n"), column="text"),
    ),
    "a quote left open": (BAD, ("line 1",), lambda w: text(csv(w, b'a,b\n"never closed\n'))),
    "a column that is not there": (BAD, ("column", "'<b>'"), lambda w: text(csv(w, b"id,text\n1,a\n"), column="<b>")),
    "a broken line": (BAD, ("t.jsonl", "line 2", "JSON"), lambda w: text(jsonl(w, b'{"text":"a"}\n{"text": \n'))),
    "deeply nested JSON": (BAD, ("line 1", "JSON"), lambda w: text(jsonl(w, DEEP))),
    "a number of too many digits": (
        BAD,
        ("line 1", "JSON"),
        lambda w: text(jsonl(w, b'{"text": ' + b"1" * 5_000 + b"}")),
    ),
    "half a character in JSON": (BAD, ("line 1", "surrogate"), lambda w: text(jsonl(w, b'{"text":"\\ud800"}'))),
    "no text in JSON": (BAD, ("line 1", "'text'"), lambda w: text(jsonl(w, b'{"text":null}'))),
    "gzip cut off": (BAD, ("a.txt.gz", "gzip"), lambda w: text(w.file("a.txt.gz", GZ[:-20]))),
    "gzip in name only": (BAD, ("a.txt.gz", "gzip"), lambda w: text(w.file("a.txt.gz", b"hello"))),
    "gzip with damaged bytes": (
        BAD,
        ("a.txt.gz", "gzip"),
        lambda w: text(w.file("a.txt.gz", GZ[:20] + b"\xff" * 9 + GZ[29:])),
    ),
    "gzip of nothing": (BAD, ("a.txt.gz", "text"), lambda w: text(w.file("a.txt.gz", gzip.compress(b"")))),
    "gzip without an inner ending": (BAD, ("a.gz", ".txt"), lambda w: text(w.file("a.gz", GZ))),
    "counts of nothing": (BAD, ("counts", "zero"), lambda w: count(w.file("u.json", "[0, 0]"))),
    "counts below zero": (BAD, ("counts", 0), lambda w: count(w.file("u.json", "[-1, 2]"))),
    "counts past 64 bits": (
        BAD,
        ("counts", 0),
        lambda w: counting.Unigrams(np.array([2**63 + 5], np.uint64), "x"),
    ),
    "counts of words": (BAD, ("counts", 0), lambda w: count(w.file("u.json", '{"a": 1}'))),
    "deeply nested counts": (BAD, ("u.json", "JSON"), lambda w: count(w.file("u.json", DEEP))),
    "counts of text": (BAD, ("counts",), lambda w: count(w.corpus())),
    "counts under another name": (BAD, ("counts",), lambda w: count(counts_file(w, x=np.ones(3)))),
    "fractional counts": (BAD, ("float64", (3,)), lambda w: count(counts_file(w, counts=np.ones(3)))),
    "counts in a list": (TYPE, ("numpy", "list"), lambda w: counting.Unigrams([1, 2], "x")),
    "pairs in a list": (TYPE, ("pandas.DataFrame", "list"), lambda w: minimal([("a", "b")])),
    "no pairs": (BAD, ("rows",), lambda w: minimal(pd.DataFrame())),
    "a pair of equal sentences": (
        BAD,
        ("row 1", "sentences", "'a'"),
        lambda w: minimal(pair_table(("a", "a"))),
    ),
    "a blank sentence": (BAD, ("row 1", "sentence_bad", "' '"), lambda w: minimal(pair_table(("a", " ")))),
    "a sentence of NaN": (BAD, ("row 1", "sentence_good", "nan"), lambda w: minimal(pair_table((np.nan, "b")))),
    "half a character in pairs": (
        BAD,
        ("line 1", "sentence_good", "surrogate"),
        lambda w: minimal(jsonl(w, b'{"sentence_good":"\\ud800","sentence_bad":"b"}')),
    ),
    "two columns with one name": (
        BAD,
        ("columns", "'sentence_bad'"),
        lambda w: minimal(pair_table(("a", "b")).iloc[:, [0, 1, 1]]),
    ),
    "a comma in every pair": (BAD, ("line 2", 3, 2), lambda w: minimal(csv(w, HEAD + b"a,b,c\n"))),
    "a comma in one pair": (BAD, ("line 3", 3, 2), lambda w: minimal(csv(w, HEAD + b"a,b\nc,d,e\n"))),
    "a broken pair": (
        BAD,
        ("line 2", "JSON"),
        lambda w: minimal(jsonl(w, b'{"sentence_good":"a","sentence_bad":"b"}\n{"s')),
    ),
    "deeply nested pairs": (BAD, ("line 1", "JSON"), lambda w: minimal(jsonl(w, DEEP))),
    "a directory for a file of pairs": (
        BAD,
        ("x.jsonl", "directory"),
        lambda w: ((w.root / "x.jsonl").mkdir(), minimal(w.root)),
    ),
    "pairs in a damaged Parquet file": (
        BAD,
        ("t.parquet",),
        lambda w: minimal(w.file("t.parquet", b"PAR1xx")),
    ),
    "HTML for a task": (BAD, ("task", "'<script>'"), lambda w: minimal("bundled", tasks=["<script>"])),
    "a name for a model": (TYPE, ("HookedTransformer",), lambda w: corpora.batches("gpt2", w.texts)),
    "an encoder without tokenizer": (BAD, ("tokenizer",), lambda w: corpora.batches(w.bare_encoder(), w.texts)),
    "fractions for tokens": (
        BAD,
        ("token ids", "torch.float32"),
        lambda w: corpora.batches(w.model("gpt2"), torch.rand(2, 3)),
    ),
    "tokens past the vocabulary": (
        BAD,
        ("0 … 66", "1 … 99"),
        lambda w: corpora.batches(w.model("gpt2"), torch.tensor([[1, 99]])),
    ),
    "no rows": (
        BAD,
        ("batch_size", 1, 0),
        lambda w: corpora.batches(w.model("gpt2"), w.texts, batch_size=0),
    ),
    "batches of another tokenizer": (
        BAD,
        ("batches", "model"),
        lambda w: frequency.study(w.model("gpt2"), corpora.batches(interp.load("tiny-gpt2"), w.texts), **quiet),
    ),
    "token ids of a larger vocabulary": (
        BAD,
        ("token id 4000",),
        lambda w: frequency.study(
            w.model("gpt2"), corpora.batches(interp.load("tiny-gpt2"), torch.full((1, 10), 4000)), **quiet
        ),
    ),
    "rows longer than the context": (
        BAD,
        ("rows of 30", "context"),
        lambda w: attention.dimension_profile(
            w.model("gpt2"), corpora.batches(interp.load("tiny-gpt2"), torch.full((1, 30), 4)), **quiet
        ),
    ),
    "an encoder's masked batches": (
        BAD,
        ("masked", "encoder"),
        lambda w: attention.attention_by_class(
            w.model("gpt2"), corpora.batches(w.model("bert"), w.texts, mask_rate=0.5), **quiet
        ),
    ),
    "a token past the embedding": (
        BAD,
        (f"token id {D_VOCAB}",),
        lambda w: list(corpora.batches(w.more_tokens(), ["w1 w2 extra"], layout="texts")),
    ),
    "a seed beyond 64 bits": (
        BAD,
        ("seed", 2**64),
        lambda w: corpora.batches(w.model("bert"), w.texts, mask_rate=0.1, seed=2**64),
    ),
    "a fractional seed": (
        TYPE,
        ("seed", 0.5),
        lambda w: corpora.batching.sample_positions(corpora.batches(w.model("gpt2"), w.texts), 0.5, seed=0.5),
    ),
    "a seed below zero": (
        BAD,
        ("seed", 0, -1),
        lambda w: corpora.batches(w.model("bert"), w.texts, mask_rate=0.1, seed=-1),
    ),
    "a pipe of pairs": (BAD, ("p.jsonl", "file"), lambda w: minimal(pipe(w, "p.jsonl"))),
    "a pipe among pairs": (BAD, ("p.jsonl", "file"), lambda w: minimal(pipe(w, "p.jsonl").parent)),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, workshop: Workshop) -> None:
    check_refused(CASES[name], workshop)


@pytest.mark.usefixtures("untyped")
def test_an_endless_generator_is_read_to_the_limit() -> None:
    assert list(text((f"text {i}" for i in itertools.count()), limit=np.int64(2))) == ["text 0", "text 1"]


@pytest.mark.parametrize("ending", ["txt", "csv", "jsonl"])
def test_an_endless_line(ending: str, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 1_000)
    path = workshop.file(f"a.{ending}", '{"text": "w"}\n' + "w" * 2_000)
    with pytest.raises(ValueError, match=naming(path, "1,000")):
        text(path)


def test_a_name_that_is_not_utf_8_can_be_printed(workshop: Workshop) -> None:
    path = workshop.root / os.fsdecode(b"caf\xe9.txt")
    path.write_text("w1 w2")
    assert text(path).name == "caf\ufffd.txt"


def test_text_that_looks_hostile_but_is_valid(workshop: Workshop) -> None:
    """A byte order mark, CRLF, NUL and a line of megabytes are read unchanged."""
    assert list(text(workshop.file("a.txt", b"\xef\xbb\xbfhello\r\nw\0x\r\n"))) == ["hello", "w\0x"]
    assert list(text(csv(workshop, b'"Yes, it is",1\nNo,2\n'))) == ["Yes, it is", "No"]
    long = "w1 " * 1_000_000
    assert list(text(workshop.file("b.txt", long))) == [long]


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("form", FORMS)
def test_lists_in_other_forms(form: str, workshop: Workshop) -> None:
    of, path = FORMS[form], workshop.root / "t.csv"
    pd.testing.assert_frame_equal(
        pairs.generate(n_per_task=5, tasks=of(["npi_ever", "npi_any"])),
        pairs.generate(n_per_task=5, tasks=["npi_ever", "npi_any"]),
    )
    pair_table(("w1 w2", "w1 w3"), ("w1 w4", "w1 w5")).assign(UID=["t", "u"]).to_csv(path, index=False)
    assert set(minimal(path, tasks=of(["u"]))["UID"]) == {"u"}
