"""Minimal pairs: two sentences that differ in one grammatical point, so that only one of them is correct.

Every function returns a table with the columns of BLiMP (Warstadt et al. 2020, TACL 8, 377-392), which are all strings:
`sentence_good`, `sentence_bad`, `UID` (the task), `pairID` (unique within its task), `field` and `linguistics_term`.

    pairs = generate(n_per_task=200)                 # the bundled tasks, named in TASKS
    pairs = load("blimp", tasks=["npi_present_1"])   # published pairs: also "jblimp", and "multiblimp/deu" by language
    pairs = load("my_pairs.csv")                     # your own
    pairs = load("my_pairs.csv", good="right", bad="wrong", task="rule")  # with other column names

`read` takes the same, and also says where the pairs came from and which columns were not read.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pandas import NA, DataFrame

from interp.corpora.files import UNNAMED, Table, frame_table, opened, shortened
from interp.corpora.templates import LEXICON, TASKS, drawn, templates_of
from interp.support.checks import list_of_strings, unicode_text, warn, whole_number
from interp.support.choices import Several, listed
from interp.support.paths import HUB_PAIRS, TEXT_SUFFIXES, local_path, published_pairs
from interp.support.words import argument, meant

__all__ = ["COLUMNS", "TASKS", "PairTable", "bundled_tasks", "check_pairs", "generate", "known_tasks"]
__all__ += ["load", "name_of", "read", "sentences_of"]
__dir__ = __all__.copy

COLUMNS = ("sentence_good", "sentence_bad", "UID", "pairID", "field", "linguistics_term")
_SENTENCES = COLUMNS[:2]
_LAYOUTS: tuple[dict[str, str], ...] = (
    dict(zip(COLUMNS, COLUMNS, strict=True)),
    {
        "sentence_good": "good_sentence", "sentence_bad": "bad_sentence", "UID": "paradigm", "pairID": "ID",
        "linguistics_term": "phenomenon",
    },
    {"sentence_good": "sen", "sentence_bad": "wrong_sen", "UID": "phenomenon"},
)  # fmt: skip
"""The names of the columns in BLiMP, JBLiMP and MultiBLiMP."""
_LIKE_A_TASK = re.compile(r"(task|uid|paradigm|phenomenon|category|condition|construction|rule|type|class|template)s?")

_BETWEEN_ENDS = re.compile(r"\S(.*\S)?", re.DOTALL)
_IDENTICAL = {"passive_1": ("324", "810"), "principle_A_case_2": ("105", "287", "372", "816", "967")}


# The generator


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
    for task in known_tasks(tasks, TASKS, "the bundled generator"):
        entry = LEXICON["tasks"][task]
        possible = sum(template.n_pairs for template in templates_of(task))
        if n_per_task > possible:
            problem = f"n_per_task is {n_per_task}, but the templates of task {task!r} make {possible} different pairs"
            raise ValueError(f"{problem}; ask for {possible} or fewer, or leave the task out")
        for number, pair in enumerate(islice(drawn(task, seed), n_per_task)):
            rows.append((*pair, task, str(number), entry["field"], entry["linguistics_term"]))
    return DataFrame(rows, columns=list(COLUMNS))


def bundled_tasks(pairs: DataFrame) -> dict[str, str]:
    """Return the bundled task of each task of a table, under whatever name, whose sentences are the first ones that
    `generate` makes by default. Other tasks are left out.

    Examples:
        >>> renamed = generate(n_per_task=3, tasks=["causative"]).assign(UID="mine")
        >>> bundled_tasks(renamed), bundled_tasks(renamed.replace("mine", "ours").iloc[1:])
        ({'mine': 'causative'}, {})
    """
    by_first_pair = {next(drawn(task, 0)): task for task in TASKS}
    tasks = {}
    for uid, part in pairs.groupby("UID", sort=False):
        both = list(zip(part["sentence_good"], part["sentence_bad"], strict=True))
        if (task := by_first_pair.get(both[0])) and both == list(islice(drawn(task, 0), len(both))):
            tasks[str(uid)] = task
    return tasks


def name_of(pairs: DataFrame) -> str:
    """Return what a provenance calls the pairs of a table: `bundled pairs` (see `bundled_tasks`), or how many there
    are."""
    return "bundled pairs" if set(bundled_tasks(pairs)) == set(pairs["UID"]) else f"{len(pairs):,} minimal pairs"


# The sources


@dataclass(frozen=True, eq=False)
class PairTable:
    """Minimal pairs as they were read.

    Attributes:
        table: the pairs; see `load`.
        name: what a provenance calls them: the name of published pairs, of the file or the directory, or `name_of`.
        unused: the columns of the source that were not read.
        caveats: what the reader of a result should know about that, in sentences without full stops.
    """

    table: DataFrame
    name: str
    unused: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


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
    ISO 639-3 code of a language; `interp.support.paths.HUB_PAIRS` has their datasets on the Hugging Face hub), a
    directory of .jsonl files, one .jsonl, .json, .csv, .tsv or .parquet file in UTF-8 (or .gz of one), or a DataFrame.
    The column names of published pairs are recognised:

    | | good | bad | UID | pairID | field | linguistics_term |
    |---|---|---|---|---|---|---|
    | BLiMP (Warstadt et al. 2020) | sentence_good | sentence_bad | UID | pairID | field | linguistics_term |
    | JBLiMP (Someya and Oseki 2023) | good_sentence | bad_sentence | paradigm | ID | | phenomenon |
    | MultiBLiMP (Jumelet et al. 2025) | sen | wrong_sen | phenomenon | | | |

    For other tables, name the columns: `good` and `bad` hold the sentences, and `task` becomes the UID. A missing UID
    is replaced by the name of the file ("pairs" for a DataFrame), a missing pairID by a running number within the task,
    and a missing field or term by "". All other columns are dropped, with a warning unless all columns of published
    pairs are there.

    `tasks` are the UIDs to keep, in the order of the source. `limit` keeps the first pairs of each task; for "bundled"
    it is the number to generate.

    Seven pairs of BLiMP (2 in `passive_1`, 5 in `principle_A_case_2`) were published with two identical sentences. They
    are kept, so that each task has its 1000 pairs; `interp.probing` leaves them out. In all other data identical
    sentences are an error.

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
    pairs = read(source, tasks=tasks, limit=limit, good=good, bad=bad, task=task)
    for caveat in pairs.caveats:
        warn(caveat)
    return pairs.table


def read(
    source: str | os.PathLike[str] | DataFrame | PairTable,
    *,
    tasks: Several[str] | None = None,
    limit: int | None = None,
    good: str | None = None,
    bad: str | None = None,
    task: str | None = None,
) -> PairTable:
    """Read minimal pairs like `load`, and say where they came from. Does not warn of columns that are not read.

    Raises the errors of `load`.

    Examples:
        >>> own = DataFrame({"right": ["She is here."], "wrong": ["She are here."], "phenomenon": ["agreement"]})
        >>> pairs = read(own, good="right", bad="wrong")
        >>> pairs.name, pairs.unused
        ('1 minimal pairs', ('phenomenon',))
    """
    named = {}
    for column, name_of_column in {"sentence_good": good, "sentence_bad": bad, "UID": task}.items():
        if name_of_column is not None:
            named[column] = name_of_column
    published = isinstance(source, str) and published_pairs(source)
    if named and (published or (isinstance(source, str) and source == "bundled")):
        raise ValueError(
            f"the columns of {source!r} are known; leave out {_column_arguments()}, which are for other tables"
        )
    limit = None if limit is None else whole_number(limit, "limit", least=1)
    origin = source if isinstance(source, PairTable) else None
    source = source.table if isinstance(source, PairTable) else source
    if isinstance(source, DataFrame):
        name = "the DataFrame"
        tables = iter([(frame_table(source, "the DataFrame"), "pairs")])
    elif not isinstance(source, str | os.PathLike):
        raise TypeError(f"minimal pairs must be a file, a name or a pandas.DataFrame, found {type(source).__name__}")
    elif source == "bundled":
        generated = generate(tasks=tasks) if limit is None else generate(tasks=tasks, n_per_task=limit)
        return PairTable(generated, name_of(generated))
    else:
        name = repr(str(source))
        tables = _from_hub(str(source), tasks) if published else _from_files(local_path(source))
    rows: list[tuple[str, ...]] = []
    unused: dict[str, bool] = {}  # and whether it looks like the task of a pair, which no column is
    for table, default_task in tables:
        names = _columns(table, named)
        rows += _checked(table, default_task, names)
        for column, _ in table.columns:
            if column not in (UNNAMED, *names.values()):  # pandas writes its index without a name
                unused[column] = "UID" not in names and bool(_LIKE_A_TASK.fullmatch(column.lower()))
    pairs = DataFrame(rows, columns=["place", *COLUMNS])
    if pairs.empty:
        raise ValueError(f"{name} has no rows; expected one minimal pair per row")
    pairs["pairID"] = pairs["pairID"].mask(pairs["pairID"] == "", pairs.groupby("UID").cumcount().astype(str))
    repeated = pairs[pairs.duplicated(["UID", "pairID"], keep=False)]
    for (uid, pair_id), twins in repeated.groupby(["UID", "pairID"], sort=False):
        problem = f"pairID {pair_id!r} of task {uid!r} occurs {len(twins)} times ({'; '.join(twins['place'][:3])})"
        raise ValueError(f"{problem}; expected it once; renumber the pairs or leave the column pairID out")
    pairs = pairs[pairs["UID"].isin(known_tasks(tasks, list(pairs["UID"].unique()), name))]
    if limit is not None:
        pairs = pairs.groupby("UID", sort=False).head(limit)
    pairs = pairs[list(COLUMNS)].reset_index(drop=True)
    if origin:
        return replace(origin, table=pairs)
    title = name_of(pairs) if isinstance(source, DataFrame) else str(source) if published else Path(source).name
    is_published = published or set(names.values()) in [set(layout.values()) for layout in _LAYOUTS]
    caveats = list(_uneven(pairs))
    if not is_published:
        caveats.extend(_caveats(name, unused))
    return PairTable(pairs, title, tuple(unused), tuple(caveats))


def _uneven(pairs: DataFrame) -> Iterator[str]:
    """Whether white space around sentences differs within pairs, as after the comma in a line `good, bad`."""
    good = pairs["sentence_good"].str.replace(_BETWEEN_ENDS, "·", regex=True)
    bad = pairs["sentence_bad"].str.replace(_BETWEEN_ENDS, "·", regex=True)
    if n_uneven := int((good != bad).sum()):
        where = f"in {n_uneven:,} of {len(pairs):,} pairs, the two sentences begin or end with different white space"
        yield f"{where}, by which they can be told apart; remove it"


def _caveats(name: str, unused: Mapping[str, bool]) -> Iterator[str]:
    """What to know about columns that were not read. Nothing is said of data with all columns of published pairs."""
    unread = []
    for column, is_like_a_task in unused.items():
        if is_like_a_task:
            problem = f"the column {column!r} of {name} looks like the task that each pair belongs to, and was not read"
            yield f"{problem}; to tell these tasks apart, name it with {argument('task', column)}"
        else:
            unread.append(column)
    if unread:
        yield f"{name} has columns that were not read: {shortened(unread)}"


def sentences_of(pairs: DataFrame) -> list[str]:
    """Return the sentences of a table of pairs, good and bad in turn.

    Examples:
        >>> sentences_of(DataFrame({"sentence_good": ["She is."], "sentence_bad": ["She are."]}))
        ['She is.', 'She are.']
    """
    return list(pairs[list(_SENTENCES)].to_numpy().ravel())


def _column_arguments() -> str:
    """The options that name columns, for an error."""
    return f"{argument('good')}, {argument('bad')} and {argument('task')}"


def check_pairs(pairs: DataFrame) -> None:
    """Raise TypeError for anything but a table, and if a UID is missing or is not a string. Raise ValueError for a
    table without pairs."""
    if not isinstance(pairs, DataFrame):
        raise TypeError(f"expected a table of minimal pairs from interp.corpora.pairs, found {type(pairs).__name__}")
    missing = [column for column in COLUMNS[:3] if column not in pairs.columns]
    if missing or pairs.empty:
        lacking = ", ".join(missing) or "any row"
        columns = f"; found the columns {', '.join(map(str, pairs.columns))}" if missing else ""
        raise ValueError(f"expected a table of minimal pairs from interp.corpora.pairs, missing: {lacking}{columns}")
    list_of_strings(pairs["UID"], "the column UID of the pairs")


def _from_hub(source: str, tasks: Several[str] | None) -> Iterator[tuple[Table, str]]:
    """Published pairs, each table with its default task. A configuration is a task in blimp, a language in
    multiblimp."""
    import datasets

    kind = source.partition("/")[0]
    name = HUB_PAIRS[kind]
    with _of_the_hub(name):
        configurations = datasets.get_dataset_config_names(name)
    for config in _configurations(source, tasks, configurations):
        with _of_the_hub(name):
            table = datasets.load_dataset(name, config, split="train").to_pandas()
        default = config if kind == "blimp" else source
        yield frame_table(table.rename(columns={"pair_id": "pairID"}), f"{name} {config}"), default


@contextmanager
def _of_the_hub(name: str) -> Iterator[None]:
    """Raises ConnectionError for whatever fails inside."""
    try:
        yield
    except Exception as error:
        remedy = "without a network, give the path of its files: a directory of .jsonl, or a .jsonl or .tsv"
        reason = f"{type(error).__name__}: {error}"
        raise ConnectionError(f"could not read {name!r} from the Hugging Face hub ({reason}); {remedy}") from error


def _configurations(source: str, tasks: Several[str] | None, configurations: Sequence[str]) -> Sequence[str]:
    """The configurations of a dataset to read: tasks, a language, or the only one."""
    kind, _, language = source.partition("/")
    if kind == "multiblimp":
        if language not in configurations:
            problem = f"no language {language!r}" if language else "a language is missing"
            expected = f"'multiblimp/CODE', with a code of {', '.join(configurations)}"
            raise ValueError(f"{problem} in {source!r}; expected {expected}")
        return [language]
    if language:
        raise ValueError(f"{kind!r} has one language, found {source!r}; leave /{language} out")
    return known_tasks(tasks, configurations, HUB_PAIRS[kind]) if kind == "blimp" else configurations


def _from_files(path: Path) -> Iterator[tuple[Table, str]]:
    """The tables of a file or a directory, each with its default task."""
    if not os.path.exists(path):
        kinds = f"a directory of .jsonl files, or a file ({', '.join(TEXT_SUFFIXES[1:])}, .gz of these)"
        names = ["bundled", *HUB_PAIRS]
        problem = f"no such file or directory: {str(path)!r}{meant(path, names)}"
        raise FileNotFoundError(f"{problem}; expected {', '.join(map(repr, names))}, {kinds}")
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        suffixes = sorted({child.suffix or "no suffix" for child in path.iterdir() if child.is_file()})
        problem = f"no .jsonl file in the directory {str(path)!r} (found: {', '.join(suffixes) or 'no files'})"
        raise FileNotFoundError(f"{problem}; expected one per task, as in BLiMP; give other files by their own path")
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is {'a directory' if file.is_dir() else 'not a regular file'}; expected a file")
        with opened(file, header=True) as table:
            yield table, Path(file.name.removesuffix(".gz")).stem


def _columns(table: Table, named: Mapping[str, str]) -> dict[str, str]:
    """The names in a table of the columns of BLiMP: as given, or else those of the published pairs that fit best."""
    present = set(table.names)
    if not present:
        return {}
    if present == {UNNAMED}:
        raise ValueError(f"{table.name} has texts but no columns; expected a table with both sentences of each pair")
    published = max(_LAYOUTS, key=lambda layout: sum(layout[column] in present for column in _SENTENCES))
    names = {}
    for column, name in published.items():
        if column in _SENTENCES or name in present:
            names[column] = name
    names.update(named)
    missing = [name for name in names.values() if name not in present]
    if missing:
        remedy = f"a table of minimal pairs has both sentences; name other columns with {_column_arguments()}"
        problem = f"{table.name} has no column {missing[0]!r}{meant(missing[0], present)}"
        raise ValueError(f"{problem}; found {table.shown}; {remedy}")
    return {column: table.choose(name) for column, name in names.items()}


def _checked(table: Table, default_task: str, names: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """The pairs of a table, each preceded by its place, with the columns of BLiMP as strings."""
    for place, row in table.read(list(dict.fromkeys(names.values()))):
        for column in _SENTENCES:
            if not (isinstance(text := row.get(names[column]), str) and text.strip()):
                problem = f"{place}: {names[column]} is {text!r}, which has no words"
                raise ValueError(f"{problem}; expected a sentence; give both sentences or remove the row")
        pair = {}
        for column in COLUMNS:
            cell = _as_text(row.get(names[column])) if column in names else ""
            pair[column] = unicode_text(cell, f"{place}: {column}")
        pair["UID"] = pair["UID"] or default_task
        good, bad = pair["sentence_good"], pair["sentence_bad"]
        if good.strip() == bad.strip() and pair["pairID"] not in _IDENTICAL.get(pair["UID"], ()):
            problem = f"{place}: the two sentences are the same: {good!r}"
            raise ValueError(f"{problem}; expected two different ones; correct or remove the row")
        yield place, *pair.values()


def _as_text(value: Any) -> str:
    """A cell of a column of names as a string. A missing value becomes "", and a whole number has no decimal point."""
    if value is None or value is NA or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def known_tasks(tasks: Several[str] | None, available: Sequence[str], source: str) -> Sequence[str]:
    """Return the given tasks without repetition, all of which `source` must have; for None, all tasks of `source`."""
    if tasks is None:
        return available
    if not (names := list(dict.fromkeys(listed(tasks)))):
        raise ValueError("tasks is empty; name at least one task, or pass None for all of them")
    for task in names:
        if task not in available:
            near = difflib.get_close_matches(str(task), available, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(available)}"
            raise ValueError(f"no task {task!r} in {source}; {hint}")
    return names
