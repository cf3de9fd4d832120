"""Text sources: files, named corpora, hub datasets, lists of strings. They stream."""

import csv
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import TextIOBase
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import xxhash

from interp.checks import unicode_text, whole_number
from interp.paths import HUB_CORPORA, corpus_file, printable, text_suffix

_LONGEST_LINE = 2**28


@dataclass(frozen=True, eq=False)
class Corpus:
    """A stream of texts that can be read again: iterate over it for strings.

    `n_texts` is None where it is not known before reading; `fingerprint` identifies the content; `remote` says that it
    streams over the network.
    """

    name: str
    fingerprint: str
    read: Callable[[], Iterator[str]] = field(repr=False)
    n_texts: int | None = None
    limit: int | None = None
    separator: str = ""
    remote: bool = False

    def __iter__(self) -> Iterator[str]:
        texts = islice(self.read(), self.limit)
        return (text + self.separator for text in texts) if self.separator else texts

    @property
    def whole(self) -> "Corpus":
        """The same corpus without `limit`; a remote one, of which that may be terabytes, as it is."""
        return self if self.remote else replace(self, limit=None)


def load(
    source: str | os.PathLike[str] | Iterable[str] | Corpus,
    *,
    limit: int | None = None,
    column: str | None = None,
    separator: str = "",
) -> Corpus:
    """A corpus from a file, a name, a hub dataset or a list of strings.

    | source | a text is |
    |---|---|
    | `.txt`, `.txt.gz` | a line (blank lines are skipped) |
    | `.jsonl`, `.jsonl.gz` | the field `text`, or `column` |
    | `.csv`, `.csv.gz` | the first column, no header; or `column` of a file with a header |
    | `"bundled"` | a line of the text that ships with the package |
    | a name in `interp.paths.HUB_CORPORA` or `"owner/dataset"` | the field `text`, or `column`, streamed |
    | a list of strings | an element |

    Args:
        limit: read only the first texts.
        column: the field to read.
        separator: a string put after each text. Packing puts nothing between texts, so the lines of a file are
            glued together; a model trained on whole files wants `"\\n"` there.

    Raises:
        FileNotFoundError: no such file or name.
        ValueError: an unknown kind of file, an empty corpus, a limit below 1.
        TypeError: something that is not text.
    """
    limit = None if limit is None else whole_number(limit, "limit", least=1)
    unicode_text(separator, "the separator")
    if isinstance(source, Corpus):
        corpus = source
    elif isinstance(source, str | os.PathLike):
        path = corpus_file(str(source))
        corpus = _from_hub(str(source), column) if path is None else _from_file(path, column, limit)
        corpus = replace(corpus, name="bundled text") if source == "bundled" else corpus
    else:
        corpus = _from_list(islice(source, limit) if isinstance(source, Iterator) else source)
    return replace(corpus, limit=limit or corpus.limit, separator=separator or corpus.separator)


def _from_list(source: Iterable[str]) -> Corpus:
    if isinstance(source, bytes | Mapping | pd.DataFrame) or not isinstance(source, Iterable):
        raise TypeError(f"a corpus is a file, a name or a list of strings, found {type(source).__name__}")
    texts = tuple(source)
    digest = xxhash.xxh3_128()
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"a corpus is a list of strings, found {type(text).__name__} in it")
        digest.update(unicode_text(text, f"text {number} of the list").encode() + b"\0")
    if not texts:
        raise ValueError("the corpus is empty; expected at least one text")
    return Corpus("texts", digest.hexdigest(), lambda: iter(texts), len(texts))


def _from_file(path: Path, column: str | None, limit: int | None) -> Corpus:
    with path.open("rb") as file:
        digest = xxhash.xxh3_128()
        while block := file.read(2**20):
            digest.update(block)
    readers = {".txt": _lines, ".jsonl": _json_lines, ".csv": _csv_rows}
    suffix = text_suffix(path)
    reader = readers[suffix]

    def read() -> Iterator[str]:
        opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
        try:
            with opener(path, "rt", encoding="utf-8-sig", newline="" if suffix == ".csv" else "\n") as file:
                yield from reader(_lines_of(file, path), path, column)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text ({error}); convert it to UTF-8 first") from None
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{path} is not a whole gzip file ({error})") from None
        except csv.Error as error:
            raise ValueError(f"{path} is not a readable .csv file ({error})") from None

    counted = sum(1 for _ in islice(read(), limit and limit + 1))
    if counted == 0:
        raise ValueError(f"corpus {path} is empty: it has no text in it")
    fingerprint = digest.hexdigest() + (f":{column}" if column else "")
    return Corpus(printable(path.name), fingerprint, read, None if limit is not None and counted > limit else counted)


def _lines_of(file: TextIOBase, path: Path) -> Iterator[str]:
    """The lines of a file, none of which may fill the memory (a few MB of gzip hold a line of gigabytes)."""
    number = 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise ValueError(f"{path}, line {number}: longer than {_LONGEST_LINE:,} characters; break it into lines")
        yield line


def _lines(file: Iterable[str], path: Path, column: str | None) -> Iterator[str]:
    if column is not None:
        raise ValueError(f"{path} is plain text and has no columns; leave column out")
    for line in file:
        if line.strip():
            yield line.strip("\r\n")


def _json_lines(file: Iterable[str], path: Path, column: str | None) -> Iterator[str]:
    key = column or "text"
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(row, dict) or not isinstance(row.get(key), str):
            have = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise ValueError(f"{path}, line {number}: no text in field {key!r} (found: {have}); choose one with column")
        yield unicode_text(row[key], f"{path}, line {number}")


def _csv_rows(file: Iterable[str], path: Path, column: str | None) -> Iterator[str]:
    csv.field_size_limit(2**31 - 1)
    rows = csv.reader(file, strict=True)
    index = width = 0
    if column is not None:
        header = next(rows, [])
        if column not in header:
            raise ValueError(f"{path} has no column {column!r} in its first line; found {', '.join(header)}")
        index, width = header.index(column), len(header)
    for row in rows:
        width = width or len(row)
        if row and len(row) != width:
            raise ValueError(
                f"{path}, line {rows.line_num}: {len(row)} columns, expected {width} as in the first line; a text with "
                'a comma in it needs quotes: "Yes, it is."'
            )
        if row and row[index]:
            yield row[index]


def _from_hub(name: str, column: str | None) -> Corpus:
    request = dict(HUB_CORPORA.get(name, {"path": name, "split": "train", "column": "text"}))
    key = column or request.pop("column")
    request.pop("column", None)

    def read() -> Iterator[str]:
        import datasets

        configs = datasets.get_dataset_config_names(request["path"]) if name == "blimp" else [request.get("name")]
        for config in configs:
            rows = datasets.load_dataset(**(request | {"name": config, "streaming": True}))
            for row in rows:
                if key not in row:
                    raise ValueError(f"{name} has no column {key!r}; found {', '.join(row)}")
                if not isinstance(row[key], str):
                    raise ValueError(f"{name} has {type(row[key]).__name__} in column {key!r}, expected text")
                yield row[key]

    try:
        next(iter(read()))
    except StopIteration:
        raise ValueError(f"corpus {name} is empty") from None
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(f"corpus {name!r} could not be downloaded from the hub: {error}") from error
    return Corpus(name, f"hub:{json.dumps(request, sort_keys=True)}:{key}", read, remote=True)
