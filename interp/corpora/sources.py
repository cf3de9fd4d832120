"""Text sources that stream: files, tables, named corpora, hub datasets and lists of strings."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import xxhash

from interp.checks import list_of_strings, unicode_text, whole_number
from interp.corpora.files import UNNAMED, dataset_table, frame_table, is_dataset, opened, reads_network
from interp.paths import HUB_CORPORA, corpus_file, printable

__all__ = ["Corpus", "Source", "load", "roughly_tokens"]

_FIRST_TEXTS = 100
_LETTERS_OF_TOKEN = 4.0


@dataclass(frozen=True, eq=False)
class Corpus:
    """A stream of texts that can be read again. Iterate over it to get strings.

    `n_texts` is None if it is not known before reading. `fingerprint` identifies the content. `remote` means that it
    streams over the network. `tokens` keeps what `interp.corpora.tokens` made of it.
    """

    name: str
    fingerprint: str
    read: Callable[[], Iterator[str]] = field(repr=False)
    n_texts: int | None = None
    limit: int | None = None
    separator: str = ""
    remote: bool = False
    tokens: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[str]:
        texts = islice(self.read(), self.limit)
        return (text + self.separator for text in texts) if self.separator else texts

    @property
    def whole(self) -> "Corpus":
        """The same corpus without `limit`. A remote corpus keeps its limit, because it may have terabytes."""
        return self if self.remote else replace(self, limit=None)


Source: TypeAlias = str | os.PathLike[str] | Iterable[Any] | Corpus
"""What `load` reads: a file, a name, a list of strings, a table, a dataset, or a corpus."""


def load(source: Source, *, limit: int | None = None, column: str | None = None, separator: str = "") -> Corpus:
    """Load a corpus from a file, a name, a table, a dataset or a list of strings.

    | source | a text is |
    |---|---|
    | `.txt` | a line (blank lines are skipped) |
    | `.jsonl` | a field of an object on a line |
    | `.json` | an element of a list of strings, a field of a list of objects, an element of an object of lists |
    | `.csv`, `.tsv` | a cell of a column (empty cells are skipped); UTF-8, quotes as Excel writes them |
    | `.parquet` | a cell of a column |
    | any of these followed by `.gz` | the same |
    | `pandas.DataFrame`, `pandas.Series` | a cell of a column, an element |
    | `datasets.Dataset`, `IterableDataset` | a cell of a column, streamed |
    | `"bundled"` | a line of the text that ships with the package |
    | a name in `interp.paths.HUB_CORPORA` or `"owner/dataset"` | a cell of a column, streamed |
    | a list of strings | an element |

    `column` names the column of a table. By default it is the only column, or else the one called `text`, or else the
    only one that holds strings, according to the schema of the table (or its first 100 rows if there is no schema).
    Anything else is refused.

    The first line of a `.csv` or `.tsv` is a header if `column` is given. Without `column` it counts as a header

    - in a file with several columns, if its cells are different and have at most 40 characters, and either all are
      identifiers (letters, digits and `_`, not starting with a digit), or one is `text`, `sentence`, `content`,
      `document`, `label`, `id` or `idx` (also `Texts`, `sentence1`, `Sentence 2`) and all are names of at most three
      words that are not numbers and have no sentence punctuation; the first cell may be empty, as pandas writes it
      above its index;
    - in a file with one column, if it is `text` or `sentence` in any case, or `content`, `document`, `utterance`,
      `comment`, `review`, `prompt` or `body` in lower case (also `texts`, `sentence1`);
    - in both, if it counts 0, 1, 2 …, which are pandas' names for unnamed columns, and more than numbers is below.

    Without a header, the first column that holds more than numbers is read.

    Args:
        limit: read only the first texts. An endless `IterableDataset` needs a limit.
        column: the field or column to read.
        separator: a string put after each text. Packing puts nothing between texts, so the lines of a file are joined
            directly; a model that was trained on whole files needs `"\\n"` there.

    Raises:
        FileNotFoundError: there is no such file or name.
        ValueError: the kind of file is unknown; the corpus is empty; the limit is below 1; the column does not exist or
            cannot be chosen; or a row of a table has no text.
        TypeError: something is not text.

    Examples:
        >>> list(load(["One text.", "Another."], limit=1))
        ['One text.']
    """
    limit = None if limit is None else whole_number(limit, "limit", least=1)
    unicode_text(separator, "the separator")
    if isinstance(source, str | os.PathLike):
        path = corpus_file(str(source))
        corpus = _from_hub(str(source), column) if path is None else _from_file(path, column, limit)
        corpus = replace(corpus, name="bundled text") if source == "bundled" else corpus
    elif isinstance(source, pd.DataFrame | pd.Series):
        table = frame_table(source, f"the {type(source).__name__}")
        corpus = _from_list(table.texts(table.choose(column)))
    elif is_dataset(source, "Dataset", "IterableDataset"):
        corpus = _from_dataset(source, column, limit)
    else:
        read = islice(source, limit) if isinstance(source, Iterator) else source
        corpus = read if isinstance(read, Corpus) else _from_list(read)
        if column is not None:
            what = "a corpus that was loaded" if isinstance(source, Corpus) else "a list of strings"
            raise ValueError(f"{what} has no columns to choose from, found column={column!r}; leave column out")
    return replace(corpus, limit=limit or corpus.limit, separator=separator or corpus.separator)


def roughly_tokens(name: str | None, *, limit: int | None = None, column: str | None = None) -> int | None:
    """The approximate number of tokens of a local text, at four characters per token, from its size and its first
    hundred texts. It is None if the name is not that of a local file.

    Raises the errors of `load` for a file that cannot be read.

    Examples:
        >>> 15_000 < roughly_tokens("bundled") < 30_000
        True
    """
    path = None if name is None else corpus_file(name)
    if path is None:
        return None
    whole = round(path.stat().st_size * (3 if path.suffix == ".gz" else 1) / _LETTERS_OF_TOKEN)
    if limit is None:
        return whole
    with opened(path, header=column is not None) as table:
        texts = list(islice(table.texts(table.choose(column)), min(limit, _FIRST_TEXTS)))
    return min(whole, round(limit * sum(map(len, texts)) / max(1, len(texts)) / _LETTERS_OF_TOKEN))


def _from_list(source: Iterable[str]) -> Corpus:
    if is_dataset(source, "DatasetDict", "IterableDatasetDict"):
        splits = ", ".join(map(str, source))
        raise TypeError(f"a corpus is one split, found a {type(source).__name__} of {splits}; choose one: data[split]")
    texts = list_of_strings(source, "a corpus that is not a file, name or table")
    fingerprint, n_texts = _fingerprint(texts)
    return Corpus("texts", fingerprint, lambda: iter(texts), n_texts)


def _fingerprint(texts: Iterable[str]) -> tuple[str, int]:
    """A hash of texts, and their number. Raises ValueError if there are none."""
    digest = xxhash.xxh3_128()
    n_texts = 0
    for text in texts:
        digest.update(text.encode() + b"\0")
        n_texts += 1
    if not n_texts:
        raise ValueError("the corpus is empty; expected at least one text")
    return digest.hexdigest(), n_texts


def _from_file(path: Path, column: str | None, limit: int | None) -> Corpus:
    def read() -> Iterator[str]:
        with opened(path, header=column is not None) as table:
            yield from table.texts(table.choose(column))

    digest = xxhash.xxh3_128()
    with opened(path, header=column is not None, digest=digest) as table:
        chosen = table.choose(column)
        counted = sum(1 for _ in islice(table.texts(chosen), limit and limit + 1))
    if counted == 0:
        raise ValueError(f"corpus {path} is empty: it has no text in it")
    fingerprint = digest.hexdigest() + (f":{chosen}" if chosen != UNNAMED else "")
    return Corpus(printable(path.name), fingerprint, read, None if limit is not None and counted > limit else counted)


def _from_dataset(source: Any, column: str | None, limit: int | None) -> Corpus:
    """A dataset of the library `datasets`, identified by its texts, because its own fingerprint may be random."""
    what = f"the {type(source).__name__}"
    name = " ".join(str(part) for part in (source.info.dataset_name, source.split) if part) or "texts"
    table = dataset_table(source, what)
    chosen = table.choose(column)
    read = partial(table.texts, chosen)
    if reads_network(source):
        about = json.dumps([source.info.dataset_name, source.info.config_name, str(source.split)])
        start, _ = _fingerprint(islice(read(), _FIRST_TEXTS))
        return Corpus(name, f"hub:{about}:{chosen}:{start}", read, remote=True)
    stop = limit if is_dataset(source, "IterableDataset") else None  # it may never end
    fingerprint, n_texts = _fingerprint(islice(read(), stop))

    def again() -> Iterator[str]:
        found = 0
        for text in islice(read(), stop):
            yield text
            found += 1
        if found != n_texts:
            raise ValueError(f"{what} gave {n_texts} texts when it was loaded, but {found} now; give a list of texts")

    return Corpus(name, fingerprint, again, n_texts)


def _from_hub(name: str, column: str | None) -> Corpus:
    request = dict(HUB_CORPORA.get(name, {"path": name, "split": "train"}))
    usual = request.pop("column", None)

    def streams() -> Iterator[Any]:
        import datasets

        configs = datasets.get_dataset_config_names(request["path"]) if name == "blimp" else [request.get("name")]
        for config in configs:
            yield datasets.load_dataset(**(request | {"name": config, "streaming": True}))

    def read() -> Iterator[str]:
        for rows in streams():
            table = dataset_table(rows, name)
            yield from table.texts(table.choose(key))

    try:
        first = dataset_table(next(streams()), name)
        key = first.choose(usual if column is None else column)
        next(first.texts(key))
    except StopIteration:
        raise ValueError(f"corpus {name} is empty") from None
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(f"corpus {name!r} could not be downloaded from the hub: {error}") from error
    return Corpus(name, f"hub:{json.dumps(request, sort_keys=True)}:{key}", read, remote=True)
