"""What is read as text from each kind of file and table, against independent readers; columns, headers, refusals."""

import contextlib
import csv
import gzip
import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from naming import naming

from interp import corpora
from interp.cli import main
from interp.corpora import files
from interp.corpora.files import reads_network

WORDS = ["w1 w2", "w3, w4", 'say "w5"', "première\nligne", "语言 🙂", "w6\tw7"]
NUMBERS = [1, 2, 3, 4, 5, 6]
TABLE = pd.DataFrame({"n": NUMBERS, "body": WORDS})
few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def rows_of(names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    yield from TABLE[list(names)].to_dict("records")


def csv_of(table: pd.DataFrame, **options: Any) -> bytes:
    return table.to_csv(index=False, **options).encode()


def parquet_of(table: pd.DataFrame, **options: Any) -> bytes:
    file = io.BytesIO()
    table.to_parquet(file, index=False, **options)
    return file.getvalue()


def json_of(table: pd.DataFrame, **options: Any) -> bytes:
    return table.to_json(orient="records", force_ascii=False, **options).encode()


def write(path: Path, content: bytes | str) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


CONTENTS: dict[str, Callable[[pd.DataFrame], bytes]] = {
    "comma.csv": csv_of,
    "crlf.csv": lambda table: csv_of(table, lineterminator="\r\n"),
    "mark.csv": lambda table: b"\xef\xbb\xbf" + csv_of(table),
    "tab.tsv": lambda table: csv_of(table, sep="\t"),
    "lines.jsonl": lambda table: json_of(table, lines=True),
    "crlf.jsonl": lambda table: json_of(table, lines=True).replace(b"\n", b"\r\n"),
    "mark.jsonl": lambda table: b"\xef\xbb\xbf" + json_of(table, lines=True),
    "rows.json": json_of,
    "mark.json": lambda table: b"\xef\xbb\xbf" + json_of(table),
    "columns.json": lambda table: json.dumps(table.to_dict("list")).encode(),
    "table.parquet": parquet_of,
    "groups.parquet": lambda table: parquet_of(table, row_group_size=2),
}
TABLES: dict[str, Callable[[list[str]], Any]] = {
    "DataFrame": lambda names: TABLE[names],
    "Dataset": lambda names: datasets.Dataset.from_pandas(TABLE[names]),
    "formatted": lambda names: datasets.Dataset.from_pandas(TABLE[names]).with_format("torch"),
    "indexed": lambda names: datasets.Dataset.from_pandas(TABLE[names].iloc[::-1]).select(range(5, -1, -1)),
    "streamed": lambda names: datasets.Dataset.from_pandas(TABLE[names]).to_iterable_dataset(num_shards=2),
    "generated": lambda names: datasets.IterableDataset.from_generator(rows_of, gen_kwargs={"names": tuple(names)}),
}


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("name", CONTENTS)
def test_tables_in_files_are_read_as_other_libraries_read_them(name: str, gz: str, tmp_path: Path) -> None:
    for names, column in ((["n", "body"], None), (["n", "body"], "body"), (["body"], "body")):
        path = write(tmp_path / (name + gz), CONTENTS[name](TABLE[names]))
        corpus = corpora.load(path, column=column)
        assert list(corpus) == WORDS
        assert list(corpus) == WORDS, "a corpus can be read again"
        assert (corpus.name, corpus.n_texts, corpus.remote) == (name + gz, len(WORDS), False)
        assert list(corpora.load(path, column=column, limit=2, separator="!")) == [f"{text}!" for text in WORDS[:2]]
    data = gzip.decompress(path.read_bytes()) if gz else path.read_bytes()
    independent: dict[str, Callable[[], pd.DataFrame]] = {
        ".csv": lambda: pd.read_csv(path),
        ".tsv": lambda: pd.read_csv(path, sep="\t"),
        ".jsonl": lambda: pd.DataFrame([json.loads(line) for line in data.decode("utf-8-sig").splitlines()]),
        ".json": lambda: pd.DataFrame(json.loads(data.decode("utf-8-sig"))),
        ".parquet": lambda: pd.read_parquet(io.BytesIO(data)),
    }
    assert list(corpus) == independent[Path(name).suffix]()["body"].tolist()


@pytest.mark.parametrize("kind", TABLES)
def test_tables_are_read(kind: str) -> None:
    for names, column in ((["n", "body"], None), (["n", "body"], "body"), (["body"], None)):
        corpus = corpora.load(TABLES[kind](names), column=column)
        assert list(corpus) == WORDS
        assert list(corpus) == WORDS
        assert (corpus.name, corpus.n_texts) == ("generator train" if kind == "generated" else "texts", len(WORDS))
        assert corpus.fingerprint == corpora.load(WORDS).fingerprint, "only the texts count"
    limited = corpora.load(TABLES[kind](["body"]), limit=2)
    assert list(limited) == WORDS[:2]


def test_series_and_lists_in_files(tmp_path: Path) -> None:
    for series in (pd.Series(WORDS), pd.Series(WORDS, dtype="category"), pd.Series(WORDS, name="x", dtype="string")):
        corpus = corpora.load(series)
        assert (list(corpus), corpus.name) == (WORDS, "texts")
    assert list(corpora.load(pd.Series(WORDS, name="x"), column="x")) == WORDS
    for name in ("a.json", "a.json.gz"):
        corpus = corpora.load(write(tmp_path / name, json.dumps(WORDS)))
        assert list(corpus) == list(corpus) == WORDS
    table = pa.table({"id": [1, 2], "kind": pa.array(["a b", "c"]).dictionary_encode()})
    pa.parquet.write_table(table, tmp_path / "d.parquet")
    assert list(corpora.load(tmp_path / "d.parquet")) == ["a b", "c"]


def test_the_column_that_is_read(tmp_path: Path) -> None:
    """It is the only column, or `text`, or the only column of strings."""
    text = pd.DataFrame({"stars": [3.5, 4.5], "text": ["w1 w2", "w3"], "n": [1, 2]})
    for table in (text, text[["text"]], text[["n", "text"]], text[["n", "text"]].rename(columns={"text": "body"})):
        for name, content in CONTENTS.items():
            assert list(corpora.load(write(tmp_path / name, content(table)))) == ["w1 w2", "w3"], name
        assert list(corpora.load(table)) == list(corpora.load(datasets.Dataset.from_pandas(table))) == ["w1 w2", "w3"]
    two = pd.DataFrame({"title": ["a b", "c d"], "n": [1, 2], "body": ["x y", "z"]})
    assert list(corpora.load(two, column="title")) == ["a b", "c d"]
    sources = [write(tmp_path / name, content(two)) for name, content in CONTENTS.items()]
    sources += [two, datasets.Dataset.from_pandas(two), datasets.Dataset.from_pandas(two).to_iterable_dataset()]
    for source in sources:
        with pytest.raises(ValueError, match=naming("title, n, body", "column=")):
            corpora.load(source)
        with pytest.raises(ValueError, match=naming("'z'", "title, n, body")):
            corpora.load(source, column="z")
    for source in (two[["n"]].assign(m=1.5), datasets.Dataset.from_dict({"a": [1], "b": [2]})):
        with pytest.raises(ValueError, match=naming("column", "text")):
            corpora.load(source)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id,text\n1,w1 w2\n2,w3\n", ["w1 w2", "w3"]),
        ("Sentence 1,Score (0-5)\nw1 w2,5\nw3,4\n", ["w1 w2", "w3"]),
        (",text\n0,w1 w2\n1,w3\n", ["w1 w2", "w3"]),
        ("Unnamed: 0,text\n0,w1 w2\n1,w3\n", ["w1 w2", "w3"]),
        (",0\n0,w1 w2\n1,w3\n", ["w1 w2", "w3"]),
        ("0\nw1 w2\nw3\n", ["w1 w2", "w3"]),
        ("\n\ntext\nw1 w2\n\nw3\n", ["w1 w2", "w3"]),
        ('"text"\n"w1 w2"\nw3\n', ["w1 w2", "w3"]),
        ("sentence\nw1 w2\nw3\n", ["w1 w2", "w3"]),
        ("rating,verdict\n1,w1 w2\n,w3\n3,\n", ["w1 w2", "w3"]),
    ],
)
def test_headers(content: str, expected: list[str], tmp_path: Path) -> None:
    assert list(corpora.load(write(tmp_path / "a.csv", content))) == expected
    assert list(corpora.load(write(tmp_path / "a.tsv", content.replace(",", "\t")))) == expected


@pytest.mark.parametrize(
    "content",
    [
        "Hello\nHow are you?\n",
        "Hello.\nContent\n",
        "Content\nIntroduction\n",
        "0\n1\n",
        "The text\nText\n",
        "A man with a hat is dancing.,A man wearing a hat is dancing.,5.0\nw1,w2,1\n",
        '"w1 w2",5,x\nw3,4,"y, z"\n',
        "Hello there,5\nid,6\n",
        "yes,yes\nno,no\n",
        "What is the text?,id\nw1,w2\n",
        "Good morning to all of you,text\nw1,w2\n",
    ],
)
def test_a_first_line_of_text_is_kept(content: str, tmp_path: Path) -> None:
    """If a second column holds more than numbers, this is told."""
    cells = list(csv.reader(io.StringIO(content)))
    second = any(not cell.replace(".", "").isdigit() for row in cells for cell in row[1:])
    told = pytest.warns(UserWarning, match="first column of text is read; other columns hold text too .column [23].")
    with told if second else contextlib.nullcontext():
        corpus = corpora.load(write(tmp_path / "a.csv", content))
    assert list(corpus) == [row[0] for row in cells]
    assert corpus.about.get("columns_not_read", []) == [f"column {i}" for i in range(2, len(cells[0]) + 1)]


def test_the_text_beside_numbers_is_read_without_a_header(tmp_path: Path) -> None:
    assert list(corpora.load(write(tmp_path / "a.csv", "1,Hello there.\n2,Well then.\n"))) == [
        "Hello there.", "Well then.",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=naming("a.csv", 100)):
        corpora.load(write(tmp_path / "a.csv", "1,2\n3,4\n"))


def test_sentence_pairs_without_a_header(shared: Path) -> None:
    path = shared / "data/stsb/stsb-en-dev.csv"
    with pytest.warns(UserWarning, match="other columns hold text too .column 2.: add a header, and choose one by"):
        corpus = corpora.load(path)
    assert list(corpus) == pd.read_csv(path, header=None)[0].tolist()


def test_words_of_a_header_are_never_read_as_text(tmp_path: Path) -> None:
    for content in ("title,body\na b,c d\n", "Yes,No\nWell then,Maybe\n", "cat,noun\ndog,noun\n"):
        with pytest.raises(ValueError, match=naming("a.csv", "header")):
            corpora.load(write(tmp_path / "a.csv", content))


@pytest.mark.e2e
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=8))
@few
def test_any_texts_come_back(tmp_path: Path, texts: list[str]) -> None:
    """Texts survive in each kind of file, written by other libraries, and in tables."""
    table = pd.DataFrame({"text": texts})
    for name, content in (
        ("rows.json", json_of),
        ("columns.json", CONTENTS["columns.json"]),
        ("a.parquet", parquet_of),
    ):
        assert list(corpora.load(write(tmp_path / name, content(table)))) == texts
    assert list(corpora.load(write(tmp_path / "a.json", json.dumps(texts)))) == texts
    assert list(corpora.load(table)) == list(corpora.load(datasets.Dataset.from_dict({"text": texts}))) == texts
    assume(all(texts) and not any("\r" in text or "\0" in text for text in texts))
    for name, sep in (("a.csv", ","), ("a.tsv", "\t")):
        content = csv_of(table, sep=sep, quoting=csv.QUOTE_ALL)
        assert list(corpora.load(write(tmp_path / name, content), column="text")) == texts


PRINTS = """
import json, sys
from pathlib import Path
import datasets, pandas as pd
from interp import corpora
folder, texts = Path(sys.argv[1]), json.loads(sys.argv[2])
table = pd.DataFrame({"n": range(len(texts)), "body": texts})
tables = [table, table["body"], datasets.Dataset.from_pandas(table), datasets.Dataset.from_dict({"text": texts}),
          datasets.Dataset.from_pandas(table).to_iterable_dataset()]
print(json.dumps([corpora.load(source).fingerprint for source in [*sorted(folder.iterdir()), texts, *tables]]))
"""


@pytest.mark.slow
@pytest.mark.e2e
def test_fingerprints_are_the_same_everywhere(tmp_path: Path) -> None:
    for name, content in CONTENTS.items():
        write(tmp_path / name, content(TABLE))
    found = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", PRINTS, str(tmp_path), json.dumps(WORDS)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    here = [corpora.load(path).fingerprint for path in sorted(tmp_path.iterdir())]
    assert found[0] == found[1] == here + [corpora.load(WORDS).fingerprint] * 6
    assert len(set(here)) == len(CONTENTS), "of the bytes of a file"
    path = tmp_path / "comma.csv"
    assert corpora.load(path).fingerprint == corpora.load(path, column="body").fingerprint
    assert corpora.load(path).fingerprint != corpora.load(path, column="n").fingerprint
    other = TABLE.assign(body=[*WORDS[:-1], "w9"])
    assert corpora.load(other).fingerprint != corpora.load(TABLE).fingerprint
    assert corpora.load(TABLE.assign(n=0)).fingerprint == corpora.load(TABLE).fingerprint


def test_streams_are_read_as_far_as_they_are_needed() -> None:
    read: list[int] = []

    def endless() -> Iterator[dict[str, Any]]:
        number = 0
        while True:
            read.append(number)
            yield {"text": f"w{number}", "n": number}
            number += 1

    corpus = corpora.load(datasets.IterableDataset.from_generator(endless), limit=3)
    assert list(corpus) == list(corpus.whole) == ["w0", "w1", "w2"]
    assert len(read) < 1_000
    used, features = iter([{"text": "w1"}, {"text": "w2"}]), datasets.Features(text=datasets.Value("string"))
    once = datasets.IterableDataset.from_generator(lambda: used, features=features)
    again = corpora.load(once)
    with pytest.raises(ValueError, match=naming("texts", 2, 0)):
        list(again)


def test_a_file_that_changes_is_not_read_under_its_old_fingerprint(tmp_path: Path) -> None:
    """In place or replaced, larger or as large as before, as a whole or up to a limit; also while it is read."""
    lines = [f"w{i} w{i + 1}" for i in range(10, 30)]
    table = pd.DataFrame({"text": lines})
    for name, content in {"a.txt": lambda table: "\n".join(table["text"]).encode(), **CONTENTS}.items():
        path = write(tmp_path / name, content(table))
        corpus, part = corpora.load(path), corpora.load(path, limit=2)
        path.write_bytes(content(pd.DataFrame({"text": [*lines[:-1], "w1 w2 w3"]})))
        for changed in (corpus, part, part.whole):
            with pytest.raises(ValueError, match=naming(name, "loaded")):
                list(changed)
        path.unlink()
        write(path, content(table))
        assert list(corpus) == list(part.whole) == lines, "the same content may be anywhere on disk"
    path, corpus = tmp_path / "b.txt", corpora.load(write(tmp_path / "b.txt", "\n".join(lines)))
    reading = iter(corpus)
    next(reading)
    with path.open("a") as file:
        file.write("\nw1")
    with pytest.raises(ValueError, match=naming("b.txt", "read")):
        list(reading)


def test_tables_that_change_are_not_read_under_their_old_fingerprint(load_toy: Callable[..., Any]) -> None:
    words, numbers = ["w1", "w2", "w3"], itertools.count()
    table, ids = pd.DataFrame({"text": words}), torch.tensor([[7, 8, 9]])
    corpora_of = [corpora.load(table), corpora.load(words)]
    read = corpora.batches(load_toy("gpt2"), ids)
    table["text"], words[0], ids[0, 0] = "w9", "w9", 10
    assert [list(corpus) for corpus in corpora_of] == [["w1", "w2", "w3"]] * 2
    assert [batch.tokens.tolist() for batch in read] == [[[7, 8, 9]]]
    dataset = datasets.Dataset.from_dict({"text": ["w1", "w2", "w3"]})
    dataset.set_transform(lambda rows: {"text": [f"{text} {next(numbers)}" for text in rows["text"]]})
    for limit in (None, 1):
        with pytest.raises(ValueError, match=naming("Dataset", "loaded")):
            list(corpora.load(dataset, limit=limit))


def test_datasets_are_read_as_iterating_gives_them() -> None:
    """With transforms and formats, set in place or not; formats that make arrays of numbers do not change texts."""
    plain = datasets.Dataset.from_dict({"n": [1, 2], "body": ["w1 w2", "w3"], "m": ["x", "y"]}).select_columns

    def upper(rows: dict[str, list[str]]) -> dict[str, list[str]]:
        return {"text": [text.upper() for text in rows["body"]]}

    in_place = plain(["body", "n"])
    in_place.set_transform(upper)
    for dataset in (plain(["body", "n"]).with_transform(upper), in_place, in_place.select([0, 1])):
        assert list(corpora.load(dataset)) == [row["text"] for row in dataset] == ["W1 W2", "W3"]
        with pytest.raises(ValueError, match=naming("body", "text")):
            corpora.load(dataset, column="body")
    for form in ("torch", "numpy", "arrow", "pandas"):
        chosen = plain(["n", "body", "m"]).with_format(form, columns=["n", "body"])
        assert list(corpora.load(chosen)) == ["w1 w2", "w3"]
        with pytest.raises(ValueError, match=naming("'m'", "n, body")):
            corpora.load(chosen, column="m")
        every = plain(["n", "body", "m"]).with_format(form, columns=["n"], output_all_columns=True)
        assert list(corpora.load(every, column="m")) == ["x", "y"]
        streamed = plain(["n", "body"]).to_iterable_dataset().map(lambda row: {"body": row["body"].upper()})
        assert list(corpora.load(streamed.with_format(form))) == ["W1 W2", "W3"]


def test_text_that_is_not_read_is_told(tmp_path: Path, load_toy: Callable[..., Any]) -> None:
    """Other columns of text in a warning, and all other columns in the provenance."""
    table = pd.DataFrame({"title": ["a b", "c d"], "text": ["w1 w2", "w3"], "n": [1, 2]})
    sources = [write(tmp_path / name, content(table)) for name, content in CONTENTS.items()]
    sources += [table, datasets.Dataset.from_pandas(table), datasets.Dataset.from_pandas(table).to_iterable_dataset()]
    for source in sources:
        with pytest.warns(UserWarning, match=r"column 'text' is read; .* too \(title\): choose one with column="):
            batches = corpora.batches(load_toy("gpt2"), source, layout="texts")
        assert (batches.about["column"], batches.about["columns_not_read"]) == ("text", ["title", "n"])
        assert corpora.load(source, column="title").about["columns_not_read"] == ["text", "n"]
    assert corpora.load(["w1"]).about == {}


def test_utf_16_without_a_byte_order_mark_is_refused(tmp_path: Path) -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        path = tmp_path / "text.txt"
        path.write_bytes("The valley was silent.\nThe river too.\n".encode(encoding))
        with pytest.raises(ValueError, match=naming(path, "UTF-16", "UTF-8")):
            corpora.load(path)


def test_carriage_returns_within_lines_are_told(tmp_path: Path) -> None:
    lone, mixed = write(tmp_path / "a.txt", "w1 w2\rw3\rw4\r"), write(tmp_path / "b.txt", "w1\rw2\r\nw3\n")
    for path, texts in ((lone, ["w1 w2\rw3\rw4"]), (mixed, ["w1\rw2", "w3"])):
        with pytest.warns(UserWarning, match=r"1 of the lines of .* hold carriage returns.*convert the file"):
            corpus = corpora.load(path)
        assert (list(corpus), corpus.about) == (texts, {"carriage_returns": 1})
    assert list(corpora.load(write(tmp_path / "c.txt", "w1\r\nw2\r\n"))) == ["w1", "w2"]


def test_network_streams_are_not_read_to_the_end() -> None:
    read: list[str] = []

    def remote(urls: list[str]) -> Iterator[dict[str, str]]:
        for number in range(500):
            read.append(urls[0])
            yield {"text": f"w{number}"}

    urls = {"urls": ["hf://datasets/owner/name/train.parquet"]}
    stream = datasets.IterableDataset.from_generator(remote, gen_kwargs=urls)
    for source in (stream, stream.map(lambda row: row), stream.shuffle(seed=1), stream.take(400)):
        assert reads_network(source)
    corpus = corpora.load(stream)
    assert len(read) < 500
    assert (corpus.remote, corpus.n_texts, corpus.name) == (True, None, "generator train")
    assert corpus.whole is corpus
    assert len(list(corpus)) == 500
    assert corpus.fingerprint == corpora.load(stream, limit=2).fingerprint
    assert corpus.fingerprint != corpora.load(stream.skip(1)).fingerprint
    assert not reads_network(TABLES["streamed"](["body"]))
    assert not reads_network(TABLES["generated"](["body"]))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # datasets with pandas 2.2
def test_a_dataset_is_named_after_its_builder(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", csv_of(TABLE))
    for streaming in (False, True):
        loaded = datasets.load_dataset(
            "csv", data_files=str(tmp_path / "a.csv"), split="train", streaming=streaming, cache_dir=str(tmp_path)
        )
        corpus = corpora.load(loaded)
        assert (list(corpus), corpus.name, corpus.n_texts) == (WORDS, "csv train", len(WORDS))
        assert corpus.fingerprint == corpora.load(WORDS).fingerprint


def test_datasets_of_the_hub_have_a_column_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    TABLE.to_parquet(folder / "train.parquet", index=False)
    monkeypatch.chdir(tmp_path)
    stream = datasets.load_dataset(str(folder), split="train", streaming=True)
    monkeypatch.setattr(datasets, "load_dataset", lambda **_: stream)
    monkeypatch.setattr("interp.corpora.sources.corpus_file", lambda name: None)
    corpus = corpora.load("owner/name")
    assert (list(corpus), corpus.remote) == (WORDS, True)
    with pytest.raises(ValueError, match=naming("row 1", "'n'")):
        corpora.load("owner/name", column="n")


NAN = float("nan")
REFUSED: dict[str, tuple[str | bytes, tuple[object, ...]]] = {
    "empty.csv": ("", ("empty",)),
    "blank.tsv": ("\n\n", ("text",)),
    "header.csv": ("id,text\n", ("text",)),
    "none.json": ("[]", ("text",)),
    "none.parquet": (parquet_of(TABLE.iloc[:0]), ("text",)),
    "untyped.parquet": (parquet_of(TABLE.iloc[:0].astype(object)), ("text",)),
    "empty.csv.gz": ("", ("text",)),
    "empty.parquet.gz": ("", (".parquet",)),
    "cut.csv.gz": (b"", ("gzip",)),
    "cut.json.gz": (b"", ("gzip",)),
    "cut.parquet.gz": (b"", ("gzip",)),
    "cut.parquet": (parquet_of(TABLE)[:-9], ("cut.parquet",)),
    "text.parquet": ("w1 w2", ("text.parquet",)),
    "holes.parquet": (parquet_of(pd.DataFrame({"text": ["a", None]})), ("row 2", "'text'")),
    "numbers.parquet": (parquet_of(TABLE[["n"]]), ("row 1", "'n'", "int")),
    "bytes.parquet": (parquet_of(pd.DataFrame({"a": [b"x"]})), ("row 1", "'a'", "bytes")),
    "holes.json": ('[{"text": "a"}, {"text": null}]', ("row 2", "'text'")),
    "holes.jsonl": ('{"text": "a"}\n\n{"n": 1}\n', ("line 3", "'text'")),
    "strings.jsonl": ('"a"\n', ("line 1", "string", "object")),
    "lines.json": ('{"text": "a"}\n{"text": "b"}\n', ("JSON", ".jsonl")),
    "mixed.json": ('["a", {"text": "b"}]', ("row 1", "string", "object")),
    "number.json": ("5", ("number", "list")),
    "index.json": (TABLE.to_json(), ("object", "list")),
    "ragged.json": ('{"a": ["x"], "b": []}', ("columns", "[0, 1]")),
    "deep.json": ("[" * 100_000, ("JSON",)),
    "half.json": ('["\\ud800"]', ("row 1", "surrogate")),
    "latin.tsv": ("caf\xe9\tb\n".encode("latin-1"), ("UTF-8",)),
    "latin.json": ('["caf\xe9"]'.encode("latin-1"), ("UTF-8",)),
    "open.tsv": ('a b\tc\n"d\n', ("line 1", "quote")),
    "tab.tsv": ("Hello there\nYes\tit is\n", ("line 2", 2, 1, "tab")),
    "a.html": ("x", (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_files(name: str, tmp_path: Path) -> None:
    content, values = REFUSED[name]
    path = write(tmp_path / name, content)
    if name.startswith("cut.") and name.endswith(".gz"):
        whole = CONTENTS[
            {".csv": "comma.csv", ".json": "rows.json", ".parquet": "table.parquet"}[Path(path.stem).suffix]
        ]
        path.write_bytes(gzip.compress(whole(TABLE))[:-20])
    with pytest.raises(ValueError, match=naming(*values)) as caught:
        corpora.load(path)
    assert "\n" not in str(caught.value)


BAD_TABLES: dict[str, tuple[Callable[[], Any], dict[str, Any], type[Exception], tuple[object, ...]]] = {
    "no rows": (lambda: TABLE.iloc[:0], {}, ValueError, ("empty", "text")),
    "no columns": (lambda: pd.DataFrame(), {}, ValueError, ("empty", "text")),
    "an empty series": (lambda: pd.Series([], dtype=str), {}, ValueError, ("empty", "text")),
    "an empty dataset": (lambda: datasets.Dataset.from_dict({"text": []}), {}, ValueError, ("empty",)),
    "no dataset": (lambda: datasets.Dataset.from_dict({}), {}, ValueError, ("empty",)),
    "an empty stream": (lambda: datasets.IterableDataset.from_generator(lambda: iter(())), {}, ValueError, ("empty",)),
    "NaN": (
        lambda: pd.DataFrame({"a": ["x", NAN]}), {}, ValueError,
        ("DataFrame", "row 2", "'a'"),
    ),
    "NA": (lambda: pd.Series(["x", None], dtype="string"), {}, ValueError, ("Series", "row 2")),
    "numbers": (lambda: pd.Series([1, 2], name="n"), {}, ValueError, ("row 1", "'n'", "int")),
    "arrays": (lambda: pd.Series([np.zeros(2)]), {}, ValueError, ("ndarray",)),
    "None": (
        lambda: datasets.Dataset.from_dict({"a": ["x", None]}), {}, ValueError,
        ("Dataset", "row 2", "'a'"),
    ),
    "half a character": (lambda: pd.Series(["a\ud800"], dtype=object), {}, ValueError, ("surrogate",)),
    "two of one name": (
        lambda: TABLE.iloc[:, [1, 1]], {"column": "body"}, ValueError, ("DataFrame", "columns", "'body'"),
    ),
    "a column of a list": (lambda: ["a"], {"column": "x"}, ValueError, ("list", "columns")),
    "a column of a corpus": (lambda: corpora.load(["a"]), {"column": "x"}, ValueError, ("columns",)),
    "splits": (
        lambda: datasets.DatasetDict(dict.fromkeys(["train", "test"], datasets.Dataset.from_pandas(TABLE))),
        {"column": "body"}, TypeError, ("DatasetDict", "train, test", "data[split]"),
    ),
    "streamed splits": (
        lambda: datasets.IterableDatasetDict(dev=TABLES["generated"](["body"])), {},
        TypeError, ("IterableDatasetDict", "dev"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables(case: str) -> None:
    source, options, error, values = BAD_TABLES[case]
    with pytest.raises(error, match=naming(*values)) as caught:
        corpora.load(source(), **options)
    assert "\n" not in str(caught.value)


def test_a_json_list_has_no_columns(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=naming("a.json", "x", "columns")):
        corpora.load(write(tmp_path / "a.json", '["a"]'), column="x")


def test_parquet_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROWS_AT_ONCE", 2)
    assert list(corpora.load(write(tmp_path / "a.parquet", parquet_of(TABLE)))) == WORDS


def test_datasets_are_known_without_importing_the_library() -> None:
    code = "import sys; from interp import corpora; corpora.load(['a']); assert 'datasets' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    heavy = {"pandas", "pyarrow", "datasets", "torch"}
    code = f"import sys; import interp.support.paths; assert not {heavy} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_texts_are_chosen_where_batches_are_made(load_toy: Any, texts: list[str]) -> None:
    model = load_toy("gpt2")
    table = pd.DataFrame({"one": ["w1"] * len(texts), "two": texts})
    options = {"column": "two", "limit": 4, "separator": " w1"}
    source = corpora.load(table, **options)
    expected = corpora.batches(model, source)
    for found in (corpora.batches(model, table, **options), corpora.batching.as_batches(model, table, **options)):
        assert found.settings == expected.settings
        assert [batch.tokens.tolist() for batch in found] == [batch.tokens.tolist() for batch in expected]
    assert expected.settings["limit"] == 4
    counts = corpora.count_unigrams(model, table, **options)
    assert (counts.counts == corpora.count_unigrams(model, source).counts).all()
    tokens = torch.zeros(2, 5, dtype=torch.long)
    for name, value in options.items():
        with pytest.raises(ValueError, match=naming("column", "limit", "separator")):
            corpora.batches(model, tokens, **{name: value})
        with pytest.raises(ValueError, match=naming("column", "limit", "separator")):
            corpora.batching.as_batches(model, tokens, **{name: value})
        with pytest.raises(ValueError, match=naming(name, "interp.corpora.batches")):
            corpora.batching.as_batches(model, expected, **{name: value})
    assert corpora.batching.as_batches(model, expected, column=None, limit=None, separator="") is expected


@pytest.mark.slow
def test_the_command_line_reads_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.parquet", parquet_of(pd.DataFrame({"a": ["The cat sat."], "b": ["A dog ran."]})))
    out = tmp_path / "u.safetensors"
    command = ["unigrams", "--model", "tiny-gpt2", "--corpus", str(path), "--out", str(out)]
    assert main(command) == 2
    assert "found a, b; name one with --column" in " ".join(capsys.readouterr().err.split())
    assert main([*command, "--column", "b"]) == 0
    assert out.is_file()


def test_a_string_is_a_text_or_a_name(tmp_path, monkeypatch):
    """A file of that name comes first; what may be either is refused."""
    monkeypatch.chdir(tmp_path)
    assert list(corpora.load("The cat sat.")) == ["The cat sat."]
    assert list(corpora.load("The cat/sat.\n\nA dog\n")) == ["The cat/sat.", "A dog"]
    assert list(corpora.load("The cat sat.\nA dog", limit=1, separator="\n")) == ["The cat sat.\n"]
    for name in ("my notes.txt", "my notes/may 3", "hello", r"C:\\my notes"):
        with pytest.raises(FileNotFoundError, match=naming("does not exist")):
            corpora.load(name)
        assert list(corpora.load([name])) == [name]
    (tmp_path / "my notes.txt").write_text("w1 w2", encoding="utf-8")
    assert list(corpora.load("my notes.txt")) == list(corpora.load(tmp_path / "my notes.txt")) == ["w1 w2"]
