import gzip
import io
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from naming import naming

import interp
from interp import corpora
from interp.corpora import sentences, tokens, unigrams
from interp.corpora.unigrams import Unigrams
from interp.models import footprint
from interp.support import paths
from interp.testing import toy_tokenizer


def ids(text):
    return toy_tokenizer()(text)["input_ids"]


def rows(batches):
    return [row[m.bool()].tolist() for batch in batches for row, m in zip(batch.tokens, batch.mask, strict=True)]


def write(path, text):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return path


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("a.txt", "\ufeffw1 w2\n \n\nw3\r\n", None),
        ("a.jsonl", '{"text": "w1 w2"}\n{"text": "w3", "x": 1}\n', None),
        ("a.jsonl", '{"body": "w1 w2"}\n{"body": "w3"}\n', "body"),
        ("a.csv", '"w1 w2",5,1\nw3,4,"2"\n', None),
        ("a.csv", 'id,body\n1,w1 w2\n2,"w3"\n', "body"),
    ],
)
def test_files(name, content, column, gz, tmp_path):
    corpus = corpora.load(write(tmp_path / (name + gz), content), column=column)
    assert list(corpus) == ["w1 w2", "w3"]
    assert list(corpus) == ["w1 w2", "w3"], "a corpus can be read again"
    assert (corpus.n_texts, corpus.name) == (2, name + gz)
    assert list(corpora.load(corpus, limit=1, separator="\n")) == ["w1 w2\n"]


def test_fingerprints_follow_content(tmp_path):
    one, two = write(tmp_path / "1.txt", "w1\n"), write(tmp_path / "2.txt", "w2\n")
    same = write(tmp_path / "3.txt", "w1\n")
    prints = [corpora.load(path).fingerprint for path in (one, two, same)]
    assert prints[0] == prints[2] != prints[1]
    assert corpora.load(["ab", "c"]).fingerprint != corpora.load(["a", "bc"]).fingerprint


def test_bad_sources(tmp_path):
    cases = [
        (tmp_path / "none.txt", {}, FileNotFoundError, ("none.txt", ".txt")),
        (tmp_path, {}, FileNotFoundError, (tmp_path, "directory")),
        (write(tmp_path / "a.md", "x"), {}, ValueError, ("a.md", ".txt")),
        (write(tmp_path / "empty.txt", ""), {}, ValueError, ("empty.txt", "empty")),
        (write(tmp_path / "blank.txt", "\n\n"), {}, ValueError, ("blank.txt", "empty")),
        (write(tmp_path / "b.jsonl", '{"text": "x"}\n{oops\n'), {}, ValueError, ("b.jsonl", 2, "JSON")),
        (write(tmp_path / "c.jsonl", '{"a": "x", "b": "y"}\n'), {}, ValueError, ("c.jsonl", "a, b")),
        (write(tmp_path / "d.csv", "a,b\n1,2\n"), {"column": "z"}, ValueError, ("d.csv", "z", "a, b")),
        (write(tmp_path / "e.txt", "x\n"), {"column": "z"}, ValueError, ("e.txt", "columns")),
        (["x"], {"limit": 0}, ValueError, ("limit", 1, 0)),
        ([], {}, ValueError, ("empty",)),
        ("no-such-corpus", {}, FileNotFoundError, ("no-such-corpus", "openwebtext, wikipedia")),
    ]
    (tmp_path / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    cases.append((tmp_path / "latin.txt", {}, ValueError, ("latin.txt", "UTF-8")))
    (tmp_path / "wrong.txt.gz").write_bytes(gzip.compress(b"hello\n" * 1000)[:10] + b"garbage" * 9)
    cases.append((tmp_path / "wrong.txt.gz", {}, ValueError, ("wrong.txt.gz", "gzip")))
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"hello\n" * 1000)[:-20])
    cases.append((tmp_path / "cut.txt.gz", {}, ValueError, ("cut.txt.gz", "gzip")))
    for source, options, error, values in cases:
        with pytest.raises(error, match=naming(*values)):
            corpora.load(source, **options)


def test_hub_datasets_stream(tmp_path, monkeypatch):
    """A local directory of Parquet files stands in for a hub repository, and is read by the real code."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        datasets.Dataset.from_dict({"text": [f"{name} a", f"{name} b"]}).to_parquet(tmp_path / name / "train.parquet")
    monkeypatch.setitem(
        paths.HUB_CORPORA, "openwebtext", {"path": str(tmp_path / "one"), "split": "train", "column": "text"}
    )
    corpus = corpora.load("openwebtext", limit=1)
    assert (list(corpus), list(corpus.whole), corpus.n_texts) == (["one a"], ["one a"], None), (
        "the whole is not counted"
    )
    with pytest.raises(ValueError, match=naming("body", "text")):
        corpora.load("openwebtext", column="body")
    monkeypatch.setattr(datasets, "load_dataset", lambda **_: (_ for _ in ()).throw(ConnectionError("offline")))
    with pytest.raises(FileNotFoundError, match=naming("owner/dataset", "hub")):
        corpora.load("owner/dataset")


def test_packed_rows_are_the_stream_cut(load_toy, texts):
    model = load_toy("gpt2")
    stream = sum((ids(text) for text in texts), [])
    expected = [stream[i : i + 24] for i in range(0, len(stream) - 23, 24)]
    assert rows(corpora.batches(model, texts, batch_size=3)) == expected
    with_eos = sum(([*ids(text), 6] for text in texts), [])
    expected = [with_eos[i : i + 11] for i in range(0, len(with_eos) - 10, 11)]
    batches = corpora.batches(model, texts, context=11, eos=True)
    assert rows(batches) == expected
    assert batches.about["tokens_left_out"] == len(with_eos) % 11 > 0


def test_one_text_per_row(load_toy, texts):
    model = load_toy("gpt2")
    found = rows(corpora.batches(model, texts, layout="texts", context=20, bos=True, batch_size=4))
    expected = []
    for text in texts:
        pieces = ids(text)
        expected += [[5, *pieces[i : i + 19]] for i in range(0, len(pieces), 19)]
    assert sorted(found) == sorted(expected)
    assert [len(row) for row in found] == sorted(len(row) for row in found)


@pytest.mark.parametrize("layout", ["texts", "packed"])
def test_a_batch_holds_at_most_so_many_tokens(layout, load_toy, texts, monkeypatch):
    """As many rows as fit, and the same rows as in batches of one row."""
    monkeypatch.setattr(footprint, "_TOKENS_PER_BATCH", 100)
    model = load_toy("gpt2")
    read = corpora.batches(model, texts * 3, layout=layout, context=20)
    assert (read.settings["batch_size"], read.settings["tokens_per_batch"]) == (None, 100)
    assert max(batch.tokens.numel() for batch in read) <= 100
    for batch, following in itertools.pairwise(read):
        assert (len(batch.tokens) + 1) * following.mask[0].sum() > 100
    assert rows(read) == rows(corpora.batches(model, texts * 3, layout=layout, context=20, batch_size=1))


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ([1] * 10 + [40], [11]),  # few tokens, whatever the padding
        ([1] * 512 + [2], [512, 1]),  # half of it would be padding
        ([10] * 60 + [11], [61]),  # less than an eighth
        ([9] * 300, [100, 100, 100]),
        ([901], [1]),
        ([], []),
    ],
)
def test_what_is_read_together(lengths, sizes):
    groups = list(sentences.together(lengths, lambda length: length, 900))
    assert [len(group) for group in groups] == sizes
    assert [length for group in groups for length in group] == lengths


def test_a_row_of_more_tokens_is_a_batch_of_its_own(load_toy, texts, monkeypatch):
    monkeypatch.setattr(footprint, "_LOGITS_PER_BATCH", 1)
    read = corpora.batches(load_toy("gpt2"), texts, context=20)
    assert {tuple(batch.tokens.shape) for batch in read} == {(1, 20)}


def test_encoder_rows_are_framed(load_toy, texts):
    model = load_toy("bert")
    for layout in ("texts", "packed"):
        found = rows(corpora.batches(model, texts, layout=layout))
        assert all(row[0] == 2 and row[-1] == 3 for row in found)
        inner = sum((row[1:-1] for row in found), [])
        stream = sum((ids(text) for text in texts), [])
        assert sorted(inner) == sorted(stream) if layout == "texts" else inner == stream[: len(inner)]


def test_what_is_read_and_predicted(load_toy, texts):
    """Nothing is read at the last position of a text; a text of 30 tokens goes on in a second row of 24."""
    model, every = load_toy("gpt2"), [*texts, " ".join(f"w{i}" for i in range(30))]
    last = [ids(text)[len(ids(text)) // 24 * 24 :] for text in every]
    for batch in corpora.batches(model, every, layout="texts", batch_size=5):
        for row, mask, read, targets in zip(batch.tokens, batch.mask, batch.read, batch.targets, strict=True):
            n = int(mask.sum())
            assert targets[: n - 1].tolist() == row[1:n].tolist()
            assert (targets[n - 1 :] == -1).all()
            goes_on = row[:n].tolist() not in last
            assert read.tolist() == [True] * (n - 1) + [goes_on] + [False] * (len(row) - n)
    for batch in corpora.batches(model, texts, context=12):
        assert batch.read.all()


def test_masking(load_toy, texts):
    model = load_toy("bert")
    many = texts * 30
    plain = {}
    for batch_size in (4, 32):
        masked = total = 0
        read = []
        for batch in corpora.batches(model, many, mask_rate=0.12, seed=1, batch_size=batch_size):
            assert (batch.tokens[batch.read] == 4).all()
            assert (batch.targets[batch.read] > 6).all()
            assert (batch.targets[~batch.read] == -1).all()
            assert not batch.read[:, 0].any()
            masked += int(batch.read.sum())
            total += int(batch.mask.sum()) - 2 * len(batch.mask)
            read += batch.targets[batch.read].tolist()
        assert 0.11 < masked / total < 0.13
        plain[batch_size] = sorted(read)
    assert plain[4] == plain[32], "what is masked does not depend on the batch size"
    other = corpora.batches(model, many, mask_rate=0.12, seed=2)
    assert sorted(t for b in other for t in b.targets[b.read].tolist()) != plain[4]


def test_token_ids_are_read_as_they_are(load_toy):
    tokens = torch.randint(67, (5, 9), generator=torch.Generator().manual_seed(0))
    assert rows(corpora.batches(load_toy("gpt2"), tokens, batch_size=2)) == tokens.tolist()


def test_only_whole_activations_are_selected(load_toy, texts):
    batch = next(iter(corpora.batches(load_toy("bert"), texts, mask_rate=0.3, batch_size=4)))
    n = int(batch.read.sum())
    assert batch.select(torch.zeros(*batch.tokens.shape, 5)).shape == (n, 5)
    assert batch.select(torch.zeros(1, n, 5)).shape == (n, 5)
    with pytest.raises(ValueError, match=naming("activation", (4, 5), (4, 2, 5, 5))):
        batch.select(torch.zeros(4, 2, batch.tokens.shape[1], batch.tokens.shape[1]))


def test_bad_settings(load_toy, texts):
    gpt2, bert = load_toy("gpt2"), load_toy("bert")
    bare = load_toy("gpt2")
    bare.tokenizer = None
    cases = [
        (gpt2, texts, {"context": 25}, ("context", "2 … 24", 25)),
        (gpt2, texts, {"batch_size": 0}, ("batch_size", 1, 0)),
        (gpt2, texts, {"mask_rate": 0.1}, ("mask_rate", "encoders")),
        (bert, texts, {"mask_rate": 1.0}, ("mask_rate", 0, 1, 1.0)),
        (bert, texts, {"bos": True}, ("[CLS]", "[SEP]")),
        (bare, texts, {}, ("tokenizer",)),
        (gpt2, torch.full((1, 5), 67), {}, ("0 … 66", 67)),
        (gpt2, torch.zeros(0, 5, dtype=torch.long), {}, ("token ids", "(0, 5)")),
        (gpt2, torch.zeros(2, 5, dtype=torch.long), {"context": 4}, (5, "context=4")),
        (gpt2, torch.zeros(1, 5, dtype=torch.long), {"bos": True}, ("bos", "eos")),
    ]
    for model, data, options, values in cases:
        with pytest.raises(ValueError, match=naming(*values)):
            corpora.batches(model, data, **options)
    with pytest.raises(ValueError, match=naming(24, "row")):
        list(corpora.batches(gpt2, ["w1 w2"]))
    with pytest.raises(ValueError, match=naming("text", "token")):
        list(corpora.batches(gpt2, ["", " "], layout="texts"))


def test_a_row_has_at_most_1024_tokens_unless_asked_for(load_toy, texts):
    model = load_toy("llama")
    long = texts * 400
    for n_ctx, expected in [(131_072, 1_024), (1_025, 1_024), (1_024, 1_024), (1_000, 1_000)]:
        model.cfg.n_ctx = n_ctx
        prepared = corpora.batches(model, long)
        assert prepared.settings["context"] == expected
        assert next(iter(prepared)).tokens.shape[1] == expected
    model.cfg.n_ctx = 131_072
    ids = torch.full((1, 2_000), 8)
    assert corpora.batches(model, ids).settings["context"] == 2_000
    assert next(iter(corpora.batches(model, long, context=1_500))).tokens.shape[1] == 1_500
    with pytest.raises(ValueError, match=naming("131,072", "row")):
        list(corpora.batches(model, texts, context=131_072))
    with pytest.raises(ValueError, match=naming("context", "2 … 131072")):
        corpora.batches(model, texts, context=131_073)


def test_counts_equal_a_plain_count(load_toy, texts):
    model = load_toy("gpt2")
    flat = sum((ids(text) for text in texts), [])
    counts = corpora.count_unigrams(model, texts)
    assert counts.counts.tolist() == np.bincount(flat, minlength=67).tolist()
    two = corpora.count_unigrams(model, corpora.load(texts, limit=2))
    assert two.n_tokens == len(ids(texts[0])) + len(ids(texts[1]))
    assert counts.distribution.sum() == pytest.approx(1)


def test_only_a_large_text_is_counted_in_processes(load_toy, texts, monkeypatch):
    model, started = load_toy("gpt2"), []
    pool = unigrams.ProcessPoolExecutor
    monkeypatch.setattr(unigrams, "ProcessPoolExecutor", lambda *how, **more: started.append(how) or pool(*how, **more))
    counts = corpora.count_unigrams(model, texts, processes=2)
    many = corpora.load(texts * 200)
    assert (corpora.count_unigrams(model, many, processes=2).counts == 200 * counts.counts).all()
    assert not started, "six chunks of 1,000 texts are not worth it"
    monkeypatch.setattr(unigrams, "_WORTH_PROCESSES", 6)
    assert (corpora.count_unigrams(model, many, processes=2).counts == 200 * counts.counts).all()
    assert len(started) == 1


def test_counts_that_are_added(load_toy, texts, tmp_path):
    model = load_toy("gpt2")
    whole, half = corpora.count_unigrams(model, texts), corpora.count_unigrams(model, texts[:5])
    half.save(tmp_path / "half.safetensors")
    for rest in (texts[5:], corpora.load(texts[5:]), pd.Series(texts[5:])):
        for first in (half, tmp_path / "half.safetensors"):
            added = corpora.counts.added_unigrams(model, [first, rest])
            assert (added.counts == whole.counts).all()
            assert added.tokenizer == whole.tokenizer is not None
    limited = corpora.counts.added_unigrams(model, [corpora.load(texts, limit=5), half])
    assert (limited.counts == 2 * half.counts).all()
    unknown = corpora.counts.added_unigrams(model, [half, Unigrams(half.counts, "from anywhere")])
    assert unknown.tokenizer is None, "the tokenizer of one part is unknown"
    for wrong, values in (
        ([half, Unigrams(half.counts, "x", "another")], ("tokenizer",)),
        ([half, Unigrams(np.arange(5), "x")], (5, "types")),
        ([], ("add",)),
    ):
        with pytest.raises(ValueError, match=naming(*values)):
            corpora.counts.added_unigrams(model, wrong)


def test_counts_are_kept(tmp_path):
    counts = Unigrams(np.arange(5), "a corpus")
    counts.save(tmp_path / "u.safetensors")
    again = unigrams.load(tmp_path / "u.safetensors")
    assert again.corpus == "a corpus"
    assert (again.counts == counts.counts).all()
    (tmp_path / "u.json").write_text(json.dumps([0, 1, 2]))
    assert unigrams.load(tmp_path / "u.json").n_tokens == 3
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []


def test_bad_counts(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"not safetensors at all")
    (tmp_path / "x.json").write_text("[1,")
    for path, error, values in (
        ("none.safetensors", FileNotFoundError, ("none.safetensors",)),
        ("x.safetensors", ValueError, ("x.safetensors", "counts")),
        ("x.json", ValueError, ("x.json", "JSON")),
    ):
        with pytest.raises(error, match=naming(*values)):
            unigrams.load(tmp_path / path)
    with pytest.raises(ValueError, match=naming("counts", 0)):
        Unigrams(np.array([-1, 2]), "x")
    with pytest.raises(ValueError, match=naming("counts", "x", "zero")):
        Unigrams(np.zeros(3, int), "x")
    with pytest.raises(ValueError, match=naming("counts", 3, "tokenizers")):
        Unigrams(np.arange(3), "x", "one").merge(Unigrams(np.arange(3), "y", "two"))
    assert Unigrams(np.array([2], np.uint8), "x").merge(Unigrams(np.array([255], np.uint8), "y")).n_tokens == 257
    with pytest.raises(ValueError, match=naming("counts", 3, 4, "tokenizers")):
        Unigrams(np.arange(3), "x").merge(Unigrams(np.arange(4), "y"))
    with pytest.raises(ValueError, match=naming("token id", 10, "tokenizer")):
        unigrams.count(toy_tokenizer(), ["w50"], corpus="x", d_vocab=10)
    with pytest.raises(ValueError, match=naming("corpus", "x", "token")):
        unigrams.count(toy_tokenizer(), [], corpus="x", d_vocab=10)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=3, max_size=8), st.lists(st.integers(0, 50), min_size=3, max_size=8))
def test_merging_counts(a, b):
    a, b = np.array(a) + 1, np.array(b) + 1
    n = min(len(a), len(b))
    merged = Unigrams(a[:n], "a").merge(Unigrams(b[:n], "b"))
    assert merged.n_tokens == a[:n].sum() + b[:n].sum()
    assert np.exp(merged.log_prior()).sum() == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:word frequencies come from", "ignore:no token of class")
@pytest.mark.parametrize("limit", [None, 30])
def test_a_corpus_is_opened_twice(limit, load_toy, tmp_path, monkeypatch):
    """It is opened once for loading and once for tokenising, however often an analysis reads it."""
    path = tmp_path / "c.txt"
    path.write_text("\n".join(" ".join(f"w{(i * j) % 60 + 1}" for j in range(2 + i % 30)) for i in range(400)))
    real, opened = io.open, []

    def spy(file, *given, **more):
        opened.extend([file] if str(file) == str(path) else [])
        return real(file, *given, **more)

    monkeypatch.setattr(io, "open", spy)
    monkeypatch.setattr("builtins.open", spy)
    for call in (
        lambda: interp.frequency.study(load_toy("gpt2"), path, limit=limit, progress=False),
        lambda: interp.attention.study(load_toy("gpt2"), path, limit=limit, progress=False),
        lambda: interp.encoding.study(load_toy("gpt2"), path, limit=limit, progress=False),
    ):
        opened.clear()
        call()
        assert len(opened) == 2


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("kept", [True, False])
def test_tokens_are_the_same_at_every_reading(kept, load_toy, texts, monkeypatch):
    monkeypatch.setattr(tokens, "MOST_KEPT", 2**28 if kept else 10)
    tokenizer, texts = load_toy("gpt2").tokenizer, [*texts, "", "w1", "w2 w3"] * 400
    expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    corpus, real, encoded = corpora.load(texts), tokens.encode, []
    monkeypatch.setattr(tokens, "encode", lambda *given: (encoded.append(len(given[1])), real(*given))[1])
    part = corpora.load(corpus, limit=7)
    assert list(itertools.islice(tokens.tokens_of(corpus, tokenizer), 3)) == expected[:3], "a reading that is abandoned"
    encoded.clear()
    found = tokens.tokens_of(corpus, tokenizer)
    for _ in range(3):
        assert list(found) == expected
    assert list(tokens.tokens_of(part, tokenizer)) == expected[:7]
    assert sum(encoded) == (len(texts) if kept else 3 * len(texts) + 7)
    counted = sum(np.bincount(ids, minlength=67) for ids, _ in found.chunks())
    assert counted.tolist() == np.bincount(sum(expected, []), minlength=67).tolist()


@pytest.mark.slow
def test_tokens_are_read_by_several_at_once(load_toy, texts):
    tokenizer = load_toy("gpt2").tokenizer
    found = tokens.tokens_of(corpora.load(texts * 300), tokenizer)
    whole = list(found)
    assert all(one == other == ids for one, other, ids in zip(found, iter(found), whole, strict=True))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(list, [found] * 4)) == [whole] * 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_tokens_without_room_are_tokenised_again(load_toy, texts, monkeypatch):
    monkeypatch.setattr(tokens.tempfile, "TemporaryFile", partial(open, "/dev/full", "rb+"))
    tokenizer = load_toy("gpt2").tokenizer
    found = tokens.tokens_of(corpora.load(texts), tokenizer)
    for _ in range(2):
        assert list(found) == tokenizer(texts, add_special_tokens=False)["input_ids"]
