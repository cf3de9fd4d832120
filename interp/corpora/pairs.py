"""Minimal pairs: two sentences that differ in one grammatical point, so that only one of them is correct.

Every function returns a table with the columns of BLiMP (Warstadt et al. 2020, TACL 8, 377-392), which are all strings:
`sentence_good`, `sentence_bad`, `UID` (the task), `pairID` (unique within its task), `field` and `linguistics_term`.

    pairs = generate(n_per_task=200)                 # the bundled tasks, named in TASKS
    pairs = load("blimp", tasks=["npi_present_1"])   # published pairs: also "jblimp", and "multiblimp/deu" by language
    pairs = load("my_pairs.csv")                     # your own
    pairs = load("my_pairs.csv", good="right", bad="wrong", task="rule")  # with other column names
"""

import difflib
import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

from pandas import NA, DataFrame

from interp.checks import argument, list_of_strings, unicode_text, whole_number
from interp.corpora.files import UNNAMED, Table, frame_table, opened
from interp.declare import Several, listed
from interp.paths import BUNDLED, HUB_PAIRS, TEXT_SUFFIXES, published_pairs, text_suffix

__all__ = ["COLUMNS", "TASKS", "check_pairs", "generate", "load"]

COLUMNS = ("sentence_good", "sentence_bad", "UID", "pairID", "field", "linguistics_term")
_SENTENCES = COLUMNS[:2]
_LAYOUTS: tuple[dict[str, str], ...] = (
    {column: column for column in COLUMNS},
    {
        "sentence_good": "good_sentence", "sentence_bad": "bad_sentence", "UID": "paradigm", "pairID": "ID",
        "linguistics_term": "phenomenon",
    },
    {"sentence_good": "sen", "sentence_bad": "wrong_sen", "UID": "phenomenon"},
)  # fmt: skip
"""The names of the columns in BLiMP, JBLiMP and MultiBLiMP."""

_IDENTICAL = {"passive_1": ("324", "810"), "principle_A_case_2": ("105", "287", "372", "816", "967")}
_LEXICON: dict[str, Any] = json.loads((BUNDLED / "lexicon.json").read_text(encoding="utf-8"))

TASKS: tuple[str, ...] = tuple(_LEXICON["tasks"])
"""The names of the bundled tasks. `bundled/lexicon.json` says what each of them tests."""


# The generator


@cache
def _entries(group: str) -> tuple[str, ...]:
    """The words that can stand in one place: those of a group, or of all groups that it unites."""
    words = _LEXICON["words"][group]
    return tuple(words["entries"]) if "entries" in words else sum(map(_entries, words["union"]), ())


def _form(group: str, entry: str, name: str | None) -> str:
    """One form of an entry (for nouns: sg, pl). The first form of "is/are here" is "is here", the second "are here"."""
    which = _LEXICON["words"][group]["forms"].index(name) if name else 0
    return " ".join(word.split("/")[which] if "/" in word else word for word in entry.split(" "))


class _Template:
    """A numbered list of pairs, written as `The {person.sg} [is|are] {place}.`

    `{group.form}` is a word. `{person1}` and `{person2}` are two different words of one group, and `{person1}` is the
    same word each time. The two sentences differ at `[good|bad]`.
    """

    _slot = re.compile(r"\{([a-z_]+)(\d?)(?:\.(\w+))?\}")
    _contrast = re.compile(r"\[([^|\]]*)\|([^|\]]*)\]")

    def __init__(self, text: str) -> None:
        self.text = text
        self.slots = tuple(dict.fromkeys((m[1], m[2]) for m in self._slot.finditer(text)))
        names = [group for group, _ in self.slots]
        self.n_pairs = prod(len(_entries(name)) - names[:i].count(name) for i, name in enumerate(names))

    def chosen(self, number: int) -> dict[tuple[str, str], str]:
        """The entry in each slot of the pair with this number, 0 to n_pairs - 1."""
        chosen: dict[tuple[str, str], str] = {}
        for slot in self.slots:
            used = [entry for (group, _), entry in chosen.items() if group == slot[0]]
            free = [entry for entry in _entries(slot[0]) if entry not in used]
            number, which = divmod(number, len(free))
            chosen[slot] = free[which]
        return chosen

    def pair(self, number: int) -> tuple[str, str]:
        """The good and the bad sentence with this number."""
        chosen = self.chosen(number)
        filled = self._slot.sub(lambda m: _form(m[1], chosen[m[1], m[2]], m[3]), self.text)
        return self._contrast.sub(r"\1", filled), self._contrast.sub(r"\2", filled)


def _shuffled(n: int, rng: random.Random) -> Iterator[int]:
    """0 … n-1 in random order, lazily (Fisher and Yates, storing only the places that were swapped).

    It draws only with `rng.random()`, the one method whose sequence Python promises not to change.
    """
    moved: dict[int, int] = {}
    for i in range(n):
        j = i + int(rng.random() * (n - i))
        yield moved.get(j, j)
        moved[j] = moved.pop(i, i)


def _draw(templates: Sequence[_Template], rng: random.Random) -> Iterator[tuple[str, str]]:
    """All pairs of a task in random order. Templates alternate, so that every stretch is balanced."""
    numbers = {template: _shuffled(template.n_pairs, rng) for template in templates}
    while numbers:
        turn = list(numbers)
        for which in _shuffled(len(turn), rng):
            number = next(numbers[turn[which]], None)
            if number is None:
                del numbers[turn[which]]
            else:
                yield turn[which].pair(number)


def generate(*, n_per_task: int = 500, seed: int = 0, tasks: Several[str] | None = None) -> DataFrame:
    """Generate minimal pairs from the bundled templates.

    The pairs of a task depend only on `seed` and on the task's name: a larger `n_per_task` continues a smaller one, and
    the choice of `tasks` (default: all of TASKS) does not change the pairs of a task. The two sentences of a pair have
    the same number of words.

    In most tasks each template has a mirror image, or its two sentences have the same words. So over the whole task a
    word is correct as often as not, and words without their order do not distinguish good from bad. The exceptions are
    `npi_ever` and `npi_any`, where the negative words that are tested are always correct, and `causative`, where a verb
    such as "melt" is correct with and without an object. In `npi_question` words are balanced, but the question mark is
    not.

    Raises ValueError for an unknown task, and for an `n_per_task` below 1 or above what the templates can make.

    Examples:
        >>> generate(n_per_task=2, tasks=["reflexive_number"]).shape
        (2, 6)
    """
    n_per_task = whole_number(n_per_task, "n_per_task", least=1)
    rows = []
    for task in _known_tasks(tasks, TASKS, "the bundled generator"):
        entry = _LEXICON["tasks"][task]
        templates = [_Template(text) for text in entry["templates"]]
        possible = sum(template.n_pairs for template in templates)
        if n_per_task > possible:
            found = f"n_per_task is {n_per_task}, but the templates of task {task!r} make {possible} different pairs"
            raise ValueError(f"{found}; ask for {possible} or fewer, or leave the task out")
        drawn = _draw(templates, random.Random(f"{seed}-{task}"))
        for number, pair in enumerate(islice(drawn, n_per_task)):
            rows.append((*pair, task, str(number), entry["field"], entry["linguistics_term"]))
    return DataFrame(rows, columns=list(COLUMNS))


# The sources


def load(
    source: str | os.PathLike[str] | DataFrame,
    *,
    tasks: Several[str] | None = None,
    limit: int | None = None,
    good: str | None = None,
    bad: str | None = None,
    task: str | None = None,
) -> DataFrame:
    """Read minimal pairs and check them.

    `source` is "bundled" (`generate()`), the name of published pairs ("blimp", "jblimp", or "multiblimp/deu" with the
    ISO 639-3 code of a language; `interp.paths.HUB_PAIRS` has their datasets on the Hugging Face hub), a directory of
    .jsonl files, one .jsonl, .json, .csv, .tsv or .parquet file in UTF-8 (or .gz of one), or a DataFrame. The column
    names of published pairs are recognised:

    | | good | bad | UID | pairID | field | linguistics_term |
    |---|---|---|---|---|---|---|
    | BLiMP (Warstadt et al. 2020) | sentence_good | sentence_bad | UID | pairID | field | linguistics_term |
    | JBLiMP (Someya and Oseki 2023) | good_sentence | bad_sentence | paradigm | ID | | phenomenon |
    | MultiBLiMP (Jumelet et al. 2025) | sen | wrong_sen | phenomenon | | | |

    For other tables, name the columns: `good` and `bad` hold the sentences, and `task` becomes the UID. A missing UID
    is replaced by the name of the file ("pairs" for a DataFrame), a missing pairID by a running number within the task,
    and a missing field or term by "". All other columns are dropped.

    `tasks` are the UIDs to keep, in the order of the source. `limit` keeps the first pairs of each task; for "bundled"
    it is the number to generate.

    Seven pairs of BLiMP (2 in `passive_1`, 5 in `principle_A_case_2`) were published with two identical sentences. They
    are kept, so that each task has its 1000 pairs. In all other data identical sentences are an error.

    `attrs["source"]` of the table is the name of the pairs in a provenance: "bundled pairs", the name of the file or
    directory, or the number of pairs.

    Raises FileNotFoundError if there is no such path, and ConnectionError if the hub cannot be reached. Raises
    ValueError if the path is not a regular file or not a table of minimal pairs, if a task in `tasks` does not exist,
    if a column is missing (the error lists the columns that were found), and if columns are named for "bundled" or
    published pairs.

    Examples:
        >>> load("bundled", tasks=["reflexive_number"], limit=3)["UID"].tolist()
        ['reflexive_number', 'reflexive_number', 'reflexive_number']
        >>> own = DataFrame({"right": ["She is here."], "wrong": ["She are here."], "rule": ["agreement"]})
        >>> load(own, good="right", bad="wrong", task="rule")["UID"].tolist()
        ['agreement']
    """
    given = {"sentence_good": good, "sentence_bad": bad, "UID": task}
    named = {column: name for column, name in given.items() if name is not None}
    published = isinstance(source, str) and published_pairs(source)
    if named and (published or (isinstance(source, str) and source == "bundled")):
        raise ValueError(f"the columns of {source!r} are known; leave out {_named()}, which are for other tables")
    limit = None if limit is None else whole_number(limit, "limit", least=1)
    if isinstance(source, DataFrame):
        name, rows = "the DataFrame", _checked(frame_table(source, "the DataFrame"), "pairs", named)
    elif not isinstance(source, str | os.PathLike):
        raise TypeError(f"minimal pairs must be a file, a name or a pandas.DataFrame, found {type(source).__name__}")
    elif source == "bundled":
        made = generate(tasks=tasks) if limit is None else generate(tasks=tasks, n_per_task=limit)
        made.attrs["source"] = "bundled pairs"
        return made
    else:
        name = repr(str(source))
        rows = _from_hub(str(source), tasks) if published else _from_files(Path(source), named)
    pairs = DataFrame(rows, columns=["place", *COLUMNS])
    if pairs.empty:
        raise ValueError(f"{name} has no rows; expected one minimal pair per row")
    pairs["pairID"] = pairs["pairID"].mask(pairs["pairID"] == "", pairs.groupby("UID").cumcount().astype(str))
    repeated = pairs[pairs.duplicated(["UID", "pairID"], keep=False)]
    for (uid, pair_id), same in repeated.groupby(["UID", "pairID"], sort=False):
        what = f"pairID {pair_id!r} of task {uid!r} occurs {len(same)} times ({'; '.join(same['place'][:3])})"
        raise ValueError(f"{what}; expected it once; renumber the pairs or leave the column pairID out")
    pairs = pairs[pairs["UID"].isin(_known_tasks(tasks, list(pairs["UID"].unique()), name))]
    if limit is not None:
        pairs = pairs.groupby("UID", sort=False).head(limit)
    pairs = pairs[list(COLUMNS)].reset_index(drop=True)
    own = source.attrs if isinstance(source, DataFrame) else {"source": source if published else Path(source).name}
    pairs.attrs["source"] = str(own.get("source", f"{len(pairs):,} minimal pairs"))
    return pairs


def _named() -> str:
    """The options that name columns, for an error."""
    return f"{argument('good')}, {argument('bad')} and {argument('task')}"


def check_pairs(pairs: DataFrame) -> None:
    """Raise TypeError for anything but a table, and if a UID is missing or is not a string. Raise ValueError for a
    table without pairs."""
    if not isinstance(pairs, DataFrame):
        raise TypeError(f"expected a table of minimal pairs from interp.corpora.pairs, found {type(pairs).__name__}")
    missing = [column for column in COLUMNS[:3] if column not in pairs.columns]
    if missing or pairs.empty:
        what = ", ".join(missing) or "any row"
        found = f"; found the columns {', '.join(map(str, pairs.columns))}" if missing else ""
        raise ValueError(f"expected a table of minimal pairs from interp.corpora.pairs, missing: {what}{found}")
    list_of_strings(pairs["UID"], "the column UID of the pairs")


def _from_hub(source: str, tasks: Several[str] | None) -> Iterator[tuple[str, ...]]:
    """Published pairs. A configuration is a task in blimp, and a language in multiblimp."""
    import datasets

    kind = source.partition("/")[0]
    name = HUB_PAIRS[kind]
    try:
        wanted = _configurations(source, tasks, datasets.get_dataset_config_names(name))
        loaded = {config: datasets.load_dataset(name, config, split="train").to_pandas() for config in wanted}
    except _UnknownTask:
        raise
    except Exception as error:
        how = "without a network, give the path of its files: a directory of .jsonl, or a .jsonl or .tsv"
        why = f"{type(error).__name__}: {error}"
        raise ConnectionError(f"could not read {name!r} from the Hugging Face hub ({why}); {how}") from error
    for config, table in loaded.items():
        default = config if kind == "blimp" else source
        yield from _checked(frame_table(table.rename(columns={"pair_id": "pairID"}), f"{name} {config}"), default, {})


def _configurations(source: str, tasks: Several[str] | None, known: Sequence[str]) -> Sequence[str]:
    """The configurations of a dataset to read: tasks, a language, or the only one."""
    kind, _, language = source.partition("/")
    if kind == "multiblimp":
        if language not in known:
            found = f"no language {language!r}" if language else "a language is missing"
            listed = f"'multiblimp/CODE', with a code of {', '.join(known)}"
            raise _UnknownTask(f"{found} in {source!r}; expected {listed}")
        return [language]
    if language:
        raise _UnknownTask(f"{kind!r} has one language, found {source!r}; leave /{language} out")
    return _known_tasks(tasks, known, HUB_PAIRS[kind]) if kind == "blimp" else known


def _from_files(path: Path, named: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    if not os.path.exists(path):
        kinds = f"a directory of .jsonl files, or a file ({', '.join(TEXT_SUFFIXES[1:])}, .gz of these)"
        raise FileNotFoundError(
            f"no such file or directory: {str(path)!r}; expected 'bundled', {', '.join(map(repr, HUB_PAIRS))}, {kinds}"
        )
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        suffixes = sorted({child.suffix or "no suffix" for child in path.iterdir() if child.is_file()})
        found = f"no .jsonl file in the directory {str(path)!r} (found: {', '.join(suffixes) or 'no files'})"
        raise FileNotFoundError(f"{found}; expected one per task, as in BLiMP; give other files by their own path")
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is {'a directory' if file.is_dir() else 'not a regular file'}; expected a file")
        with opened(file, header=True) as table:
            yield from _checked(table, file.name.removesuffix(".gz").removesuffix(text_suffix(file)), named)


def _columns(table: Table, named: Mapping[str, str]) -> dict[str, str]:
    """The names in a table of the columns of BLiMP: as given, or else those of the published pairs that fit best."""
    there = {name for name, _ in table.columns}
    if not there:
        return {}
    if there == {UNNAMED}:
        raise ValueError(f"{table.name} has texts but no columns; expected a table with both sentences of each pair")
    published = max(_LAYOUTS, key=lambda layout: sum(layout[column] in there for column in _SENTENCES))
    known = {column: name for column, name in published.items() if column in _SENTENCES or name in there}
    names = known | dict(named)
    missing = [name for name in names.values() if name not in there]
    if missing:
        how = f"a table of minimal pairs has both sentences; name other columns with {_named()}"
        raise ValueError(f"{table.name} has no column {missing[0]!r}; found {table.shown}; {how}")
    return {column: table.choose(name) for column, name in names.items()}


def _checked(table: Table, default_task: str, named: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """The pairs of a table, each preceded by its place, with the columns of BLiMP as strings."""
    names = _columns(table, named)
    for place, row in table.read(list(dict.fromkeys(names.values()))):
        for column in _SENTENCES:
            if not (isinstance(text := row.get(names[column]), str) and text.strip()):
                what = f"{place}: {names[column]} is {text!r}, which has no words"
                raise ValueError(f"{what}; expected a sentence; give both sentences or remove the row")
        cells = {column: _as_text(row.get(name)) for column, name in names.items()}
        pair = {column: unicode_text(cells.get(column, ""), f"{place}: {column}") for column in COLUMNS}
        pair["UID"] = pair["UID"] or default_task
        good, bad = pair["sentence_good"], pair["sentence_bad"]
        if good.strip() == bad.strip() and pair["pairID"] not in _IDENTICAL.get(pair["UID"], ()):
            what = f"{place}: the two sentences are the same: {good!r}"
            raise ValueError(f"{what}; expected two different ones; correct or remove the row")
        yield place, *pair.values()


def _as_text(value: Any) -> str:
    """A cell of a column of names as a string. A missing value becomes "", and a whole number has no decimal point."""
    if value is None or value is NA or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


class _UnknownTask(ValueError):
    pass


def _known_tasks(tasks: Several[str] | None, known: Sequence[str], source: str) -> Sequence[str]:
    """The given tasks without repetition, all of which `source` must have; for None, all tasks of `source`."""
    if tasks is None:
        return known
    if not (names := list(dict.fromkeys(listed(tasks)))):
        raise _UnknownTask("tasks is empty; name at least one task, or pass None for all of them")
    for task in names:
        if task not in known:
            near = difflib.get_close_matches(str(task), known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(known)}"
            raise _UnknownTask(f"no task {task!r} in {source}; {hint}")
    return names
