"""Text sources that stream: files, tables, named corpora, hub datasets and lists of strings."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import xxhash

from interp.corpora.files import (
    UNNAMED,
    Table,
    dataset_table,
    frame_table,
    is_dataset,
    opened,
    reads_network,
    shortened,
)
from interp.support.checks import list_of_strings, unicode_text, warn, whole_number
from interp.support.paths import HUB_CORPORA, corpus_file, printable, text_suffix
from interp.support.words import argument

__all__ = ["Corpus", "Source", "load", "roughly_tokens"]
__dir__ = __all__.copy

_FIRST_TEXTS = 100
_LETTERS_OF_TOKEN = 4.0


@dataclass(frozen=True, eq=False)
class Corpus:
    """A stream of texts that can be read again. Iterate over it to get strings.

    `n_texts` is None if it is not known before reading. `fingerprint` identifies the content; other content is refused
    when it is read again. `remote` means that it streams over the network. `about` says what was read of the source,
    for the provenance. `tokens` keeps what `interp.corpora.tokens` made of it.
    """

    name: str
    fingerprint: str
    read: Callable[[], Iterator[str]] = field(repr=False)
    n_texts: int | None = None
    limit: int | None = None
    separator: str = ""
    remote: bool = False
    about: dict[str, Any] = field(default_factory=dict, repr=False)
    tokens: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[str]:
        for text in islice(self.read(), self.limit):
            yield text + self.separator

    @property
    def whole(self) -> "Corpus":
        """The same corpus without `limit`. A remote corpus keeps its limit, because it may have terabytes."""
        return self if self.remote else replace(self, limit=None)


Source: TypeAlias = str | os.PathLike[str] | Iterable[Any] | Corpus
"""What `load` reads: a file, a name, a text, a list of strings, a table, a dataset, or a corpus."""


def load(source: Source, *, limit: int | None = None, column: str | None = None, separator: str = "") -> Corpus:
    """Load a corpus from a file, a name, a table, a dataset, a list of strings or a string.

    | source | a text is |
    |---|---|
    | `.txt` | a line (blank lines are skipped) |
    | `.jsonl` | a field of an object on a line |
    | `.json` | an element of a list of strings, a field of a list of objects, an element of an object of lists |
    | `.csv`, `.tsv` | a cell of a column (empty cells are skipped); UTF-8, quotes as Excel writes them |
    | `.parquet` | a cell of a column |
    | any of these followed by `.gz` | the same |
    | `pandas.DataFrame`, `pandas.Series` | a cell of a column, an element |
    | `datasets.Dataset`, `IterableDataset` | a cell of a column, as iterating gives it |
    | `"bundled"` | a line of the text that ships with the package |
    | a name in `interp.support.paths.HUB_CORPORA` or `"owner/dataset"` | a cell of a column, streamed |
    | a list of strings | an element |
    | a string that is the text itself | a line (blank lines are skipped) |

    A string is the text itself if it has several lines, or several words without `/` or `\\` that do not end like the
    name of a file (`notes.txt`), unless there is a file of that name. Any other string is a name, and one such as
    `"my notes/may 3"` is refused if there is no such file. Strings in a list, `["my notes/may 3"]`, are always text.

    `column` names the column of a table. By default it is the only column, or else the one called `text`, or else the
    only one that holds strings, according to the schema of the table (or its first 100 rows if there is no schema).
    Anything else is refused. A warning names other columns of text that are not read, unless `column` is given.

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
            cannot be chosen; a row of a table has no text; or, when it is read again, the source has changed.
        TypeError: something is not text.

    Examples:
        >>> list(load(["One text.", "Another."], limit=1))
        ['One text.']
        >>> list(load("One text.\\nAnother."))
        ['One text.', 'Another.']
    """
    limit = None if limit is None else whole_number(limit, "limit", least=1)
    unicode_text(separator, "the separator")
    if isinstance(source, str) and _is_text(source):
        source = [line for line in source.split("\n") if line.strip()]
    if isinstance(source, str | os.PathLike):
        path = corpus_file(str(source))
        corpus = _from_hub(str(source), column) if path is None else _from_file(path, column, limit)
        corpus = replace(corpus, name="bundled text") if source == "bundled" else corpus
    elif isinstance(source, pd.DataFrame | pd.Series):
        table = frame_table(source, f"the {type(source).__name__}")
        chosen, provenance = _chosen(table, column)
        corpus = replace(_from_list(table.texts(chosen)), about=provenance)
    elif is_dataset(source, "Dataset", "IterableDataset"):
        corpus = _from_dataset(source, column, limit)
    else:
        read = islice(source, limit) if isinstance(source, Iterator) else source
        corpus = read if isinstance(read, Corpus) else _from_list(read)
        if column is not None:
            kind = "a corpus that was loaded" if isinstance(source, Corpus) else "a list of strings"
            raise ValueError(f"{kind} has no columns to choose from, found column={column!r}; leave column out")
    return replace(corpus, limit=limit or corpus.limit, separator=separator or corpus.separator)


def roughly_tokens(name: str | None, *, limit: int | None = None, column: str | None = None) -> int | None:
    """Estimate the number of tokens of a local text, at four characters per token, from its size and its first hundred
    texts. It is None if the name is not that of a local file.

    Raises the errors of `load` for a file that cannot be read.

    Examples:
        >>> 15_000 < roughly_tokens("bundled") < 30_000
        True
    """
    path = None if name is None else corpus_file(name)
    if path is None:
        return None
    estimate = round(path.stat().st_size * (3 if path.suffix == ".gz" else 1) / _LETTERS_OF_TOKEN)
    if limit is None:
        return estimate
    with opened(path, header=column is not None) as table:
        texts = list(islice(table.texts(table.choose(column)), min(limit, _FIRST_TEXTS)))
    return min(estimate, round(limit * sum(map(len, texts)) / max(1, len(texts)) / _LETTERS_OF_TOKEN))


def _is_text(source: str) -> bool:
    """Whether a string is a text, and not the name of one; see `load`."""
    is_sentence = " " in source.strip() and not re.search(r"[/\\]|\.\w+$", source)
    return ("\n" in source or is_sentence) and not os.path.exists(os.path.expanduser(source))


def _chosen(table: Table, column: str | None) -> tuple[str, dict[str, Any]]:
    """The column of a table to read, and what a provenance says about it. Warns of other text that is not read, unless
    the column was named."""
    chosen = table.choose(column)
    unread = table.not_read(chosen)
    of_text = [name for name, of_strings in unread if of_strings]
    if of_text and column is None:
        column_name = f"column {chosen!r}" if chosen != UNNAMED else "the first column of text"
        remedy = (
            f"choose one with {argument('column')}" if chosen != UNNAMED else "add a header, and choose one by its name"
        )
        warn(f"of {table.name}, {column_name} is read; other columns hold text too ({shortened(of_text)}): {remedy}")
    provenance: dict[str, Any] = {"column": chosen} if chosen != UNNAMED else {}
    if unread:
        provenance["columns_not_read"] = [name for name, _ in unread]
    return chosen, provenance


def _from_list(source: Iterable[str]) -> Corpus:
    if is_dataset(source, "DatasetDict", "IterableDatasetDict"):
        splits = ", ".join(map(str, source))
        raise TypeError(f"a corpus is one split, found a {type(source).__name__} of {splits}; choose one: data[split]")
    texts = list_of_strings(source, "a corpus that is not a file, name or table")
    [(n_texts, fingerprint)] = _hashes(texts).items()
    return Corpus("texts", fingerprint, lambda: iter(texts), n_texts)


def _hashes(texts: Iterable[str], limit: int | None = None) -> dict[int, str]:
    """A hash of all texts, and one of the first `limit`, by their number. Raises ValueError if there are none."""
    digest = xxhash.xxh3_128()
    hashes: dict[int, str] = {}
    n_texts = 0
    for n_texts, text in enumerate(texts, 1):
        digest.update(_entry(text))
        if n_texts == limit:
            hashes[n_texts] = digest.hexdigest()
    if not n_texts:
        raise ValueError("the corpus is empty; expected at least one text")
    hashes[n_texts] = digest.hexdigest()
    return hashes


def _entry(text: str) -> bytes:
    return text.encode() + b"\0"


def _from_file(path: Path, column: str | None, limit: int | None) -> Corpus:
    digest = xxhash.xxh3_128()
    with opened(path, header=column is not None, digest=digest) as table:
        chosen, provenance = _chosen(table, column)
        counted = returns = 0
        for text in islice(table.texts(chosen), limit and limit + 1):
            if text.count("\0") > len(text) / 3:
                raise ValueError(f"{path} has a NUL beside every letter, as UTF-16 has; convert it to UTF-8 first")
            counted += 1
            returns += "\r" in text
    if counted == 0:
        raise ValueError(f"corpus {path} is empty: it has no text in it")
    content = digest.hexdigest()
    if returns and text_suffix(path) == ".txt":
        problem = f"{returns:,} of the lines of {path} hold carriage returns, which do not end a line here"
        warn(f"{problem}; if they should, convert the file to the line ends of Unix (LF)")
        provenance["carriage_returns"] = returns

    def read() -> Iterator[str]:
        redigest = xxhash.xxh3_128()
        with opened(path, header=column is not None, digest=redigest) as table:
            if redigest.hexdigest() != content:
                raise ValueError(f"{path} has changed since it was loaded, so its text is not read; load it again")
            yield from table.texts(chosen)

    fingerprint = content + (f":{chosen}" if chosen != UNNAMED else "")
    n_texts = None if limit is not None and counted > limit else counted
    return Corpus(printable(path.name), fingerprint, read, n_texts, about=provenance)


def _from_dataset(source: Any, column: str | None, limit: int | None) -> Corpus:
    """A dataset of the library `datasets`, identified by its texts, because its own fingerprint may be random."""
    subject = f"the {type(source).__name__}"
    name = " ".join(map(str, filter(None, (source.info.dataset_name, source.split)))) or "texts"
    table = dataset_table(source, subject)
    chosen, provenance = _chosen(table, column)
    read = partial(table.texts, chosen)
    if reads_network(source):
        described = json.dumps([source.info.dataset_name, source.info.config_name, str(source.split)])
        _, start = max(_hashes(islice(read(), _FIRST_TEXTS)).items())
        return Corpus(name, f"hub:{described}:{chosen}:{start}", read, remote=True, about=provenance)
    stop = limit if is_dataset(source, "IterableDataset") else None  # it may never end
    hashes = _hashes(islice(read(), stop), limit)
    n_texts, fingerprint = max(hashes.items())

    def again() -> Iterator[str]:
        digest = xxhash.xxh3_128()
        number = 0
        for number, text in enumerate(islice(read(), stop), 1):
            digest.update(_entry(text))
            if number in hashes and hashes[number] != digest.hexdigest():
                raise ValueError(f"{subject} gives other texts than when it was loaded; give a list of texts")
            yield text
        if number != n_texts:
            raise ValueError(
                f"{subject} gave {n_texts} texts when it was loaded, but {number} now; give a list of texts"
            )

    return Corpus(name, fingerprint, again, n_texts, about=provenance)


def _from_hub(name: str, column: str | None) -> Corpus:
    request = dict(HUB_CORPORA.get(name, {"path": name, "split": "train"}))
    usual = request.pop("column", None)

    def streams() -> Iterator[Any]:
        import datasets

        configs = datasets.get_dataset_config_names(request["path"]) if name == "blimp" else [request.get("name")]
        for config in configs:
            yield datasets.load_dataset(**dict(request, name=config, streaming=True))

    def read() -> Iterator[str]:
        for rows in streams():
            table = dataset_table(rows, name)
            yield from table.texts(table.choose(key))

    try:
        first = dataset_table(next(streams()), name)
        key, provenance = _chosen(first, usual if column is None else column)
        next(first.texts(key))
    except StopIteration:
        raise ValueError(f"corpus {name} is empty") from None
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(f"corpus {name!r} could not be downloaded from the hub: {error}") from error
    return Corpus(name, f"hub:{json.dumps(request, sort_keys=True)}:{key}", read, remote=True, about=provenance)
