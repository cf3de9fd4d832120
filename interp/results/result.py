"""Results: tidy tables with provenance, saved as Parquet and JSON. Large tables are labelled arrays."""

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import pandas as pd

from interp.results.columns import COMMON, Column, with_numbers
from interp.results.contents import columns_of_tables, with_meanings
from interp.results.dense import Dense
from interp.results.earlier import file_of, moved_from, of_today
from interp.results.exports import export
from interp.results.findings import Answer, Finding, counted, findings_table
from interp.results.latex import latex
from interp.support.disk import in_turn, replacing_directory, result_names
from interp.support.paths import local_path
from interp.support.words import meant, quantised_words

if TYPE_CHECKING:
    from interp.figures.figure import Figure
    from interp.figures.runs import Sides
    from interp.figures.section import Section

__all__ = ["Result", "provenance"]
__dir__ = __all__.copy

version = functools.cache(importlib.metadata.version)  # reads files each time

_READ: dict[str, tuple[type, ...]] = {
    "model": (str,), "corpus": (str,), "rule": (str,), "mode": (str,),
    "position": (str, NoneType), "quantised_from": (str, NoneType),
    "n_layers": (int,), "n_parameters": (int,), "state": (int,),
    "k": (int, float), "epsilon": (int, float), "l0_strength": (int, float), "repeated_texts": (int, float),
    "caveats": (list,), "key_classes": (list,), "seeds": (list,),
    "left_out": (dict,), "absent": (dict,), "atlas": (dict,), "atlas.absent": (dict,),
    "intervals": (dict,), "intervals.fitted": (dict,), "intervals.pruning": (dict,),
}  # fmt: skip
"""The types of what findings, figures and pages read in a provenance."""

_R = TypeVar("_R", bound="Result")
_SHOWN_ROWS = 20
_WIDE = 118  # columns of a terminal
_FEW_COPIES = 0.05  # a share of texts
DECIDING = ("interp", "transformer-lens", "transformers", "tokenizers")
"""Packages whose versions must not change between starting and resuming a computation."""


@dataclass(frozen=True, eq=False)
class Result:
    """Base class of all results: a frozen dataclass whose fields are tables (`pandas.DataFrame`) and `provenance`.

    A table whose number of rows grows with the model is an `interp.results.dense.Dense`. Its field says how to read it
    from a tidy table: `field(metadata={"dims": …})`, with `fewer` if needed (see `Dense.of_table`).

    A subclass sets `analysis`, the name of its folder in a run directory; `page`, the name of the module that shows it,
    which has a function `section` (result → `Section`) and, for `interp compare`, `sides` ({run: result} → `Sides`);
    `columns`, the headings and meanings of columns, `COMMON | {…}`; and `in_paper`, the columns of a table in a paper
    if none are named. Its docstring lists the columns of each table, as `table_columns`, and gets their meanings
    (`interp.results.contents`).

    Examples:
        >>> import tempfile
        >>> @dataclass(frozen=True, eq=False)
        ... class Lengths(Result):
        ...     analysis = "lengths"
        ...     lengths: pd.DataFrame
        >>> found = Lengths(provenance={}, lengths=pd.DataFrame({"n_tokens": [3, 5]}))
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = found.save(directory)
        ...     print(path.name, Lengths.load(directory).lengths["n_tokens"].tolist())
        lengths [3, 5]
    """

    analysis: ClassVar[str]
    page: ClassVar[str | None] = None
    columns: ClassVar[Mapping[str, Column]] = COMMON
    table_columns: ClassVar[Mapping[str, Sequence[str]]] = {}
    in_paper: ClassVar[Mapping[str, Sequence[str]]] = {}

    provenance: dict[str, Any]

    def __post_init__(self) -> None:
        """Have one kind of missing value in columns of numbers."""
        for name, table in self.tables.items():
            object.__setattr__(self, name, with_numbers(table))

    @classmethod
    def table_names(cls) -> tuple[str, ...]:
        return tuple(item.name for item in fields(cls) if item.type is pd.DataFrame)

    @classmethod
    def dense_names(cls) -> tuple[str, ...]:
        return tuple(item.name for item in fields(cls) if item.type is Dense)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        return {name: getattr(self, name) for name in self.table_names()}

    @property
    def dense(self) -> dict[str, Dense]:
        """The tables that are kept as labelled arrays."""
        return {name: getattr(self, name) for name in self.dense_names()}

    @property
    def headings(self) -> Mapping[str, Column]:
        """The headings and meanings of columns, with words for the codes in this result."""
        return self.columns

    @property
    def where(self) -> str:
        """The model and the text it read, as a name for the result. Raises ValueError if the provenance lacks them."""
        if not {"model", "corpus"} <= set(self.provenance):
            raise ValueError("its provenance names no model and text; run the analysis again")
        return f"{Path(self.provenance['model']).name} on {self.provenance['corpus']}"

    @property
    def answer(self) -> Answer | None:
        """The answer to the question of its analysis, in names, sizes and units; None if there is none."""
        return None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the result says, most important first. Each finding has its interval, control, verdict and rule."""
        return ()

    @property
    def caveats(self) -> tuple[str, ...]:
        """What to bear in mind when reading the findings, such as the warnings that were given. Each is a sentence
        without its full stop. What the result lacks because of the model is one of these."""
        caveats = [*self.provenance.get("caveats", ())]
        if (types := self.provenance.get("quantised_from")) is not None:
            caveats.append(quantised_words(self.provenance["model"], types))
        if (share := self.provenance.get("repeated_texts") or 0) > _FEW_COPIES:
            problem = f"{share:.0%} of the texts repeat an earlier one"
            caveats.append(f"{problem}; intervals are too narrow where copies of a text stand far apart")
        for subject, reason in self.left_out.items():
            if subject.startswith(f"{self.analysis}: "):
                caveats.append(f"{subject.removeprefix(f'{self.analysis}: ')} are left out: {reason}")
        return tuple(caveats)

    @property
    def left_out(self) -> dict[str, str]:
        """What was not asked of this model in this run, and why; see `interp.analyses.registry.left_out`."""
        return dict(self.provenance.get("left_out", {}))

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        """The tables that a command prints, by name, each with a title."""
        name, table = next(iter(self.tables.items()))
        return {name: (f"{name}: {self.where}", table.head(_SHOWN_ROWS))}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__repr__ = Result.__repr__  # type: ignore[method-assign]  # before dataclass gives it one of all rows
        docstring = cls.__doc__ or ""
        tables = dict(cls.table_columns)
        for name, columns in columns_of_tables(docstring).items():
            tables[name] = [*tables.get(name, ()), *columns]
        cls.table_columns = tables
        cls.__doc__ = with_meanings(docstring, cls.columns)

    def __repr__(self) -> str:
        """At most six lines: what the result is, what was found, and what it contains."""
        where = f": {self.where}" if {"model", "corpus"} <= set(self.provenance) else ""
        answer = [str(self.answer)] if self.answer else []
        findings = [*map(str, self.findings)]
        if len(findings) > 2:
            verdicts = f"{counted(self.findings)} in all"
            findings[1:] = [f"… and {len(findings) - 1} more ({verdicts}): print(result.summary())"]
        tables = ", ".join(f"{name} ({len(table):,})" for name, table in self.tables.items() if len(table))
        lines = [f"{type(self).__name__}{where}", *answer, *findings]
        if tables:
            lines.append(f"tables: {tables}")
        lines.append("also: summary(), figures(), to_csv(…), to_latex()")
        return "\n".join(textwrap.shorten(line, _WIDE, placeholder=" …") for line in lines)

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the result's card from the page."""
        return None if self.page is None else resolve_name("interp.pages.card:card")(self)

    @property
    def section(self) -> "Section":
        """What the page shows of the result. Raises ValueError if the result has no page."""
        if self.page is None:
            raise ValueError(f"{type(self).__name__} has no page and no figures of its own; interp.plots draws it")
        section: Section = import_module(self.page).section(self)
        return replace(section, columns=self.headings, caveats=self.caveats, answer=str(self.answer or ""))

    @classmethod
    def sides(cls, results: Mapping[str, Self]) -> "Sides | None":
        """Return what `interp compare` shows of several results, by run. None if the page of the class has no such
        part."""
        function = getattr(import_module(cls.page), "sides", None) if cls.page else None
        sides: Sides | None = None if function is None else function(results)
        return sides

    def summary(self) -> str:
        """Return the answer, and the findings, each with its number, interval, control and rule, as text to print.

        Examples:
            >>> import interp
            >>> text = interp.corpora.batches(interp.load("tiny-gpt2"), "bundled", limit=30, bos=True)
            >>> effect = interp.frequency.study(interp.load("tiny-gpt2"), text, scales=[0, 1], progress=False)
            >>> print(effect.summary())  # doctest: +ELLIPSIS
            FrequencyStudy: tiny-gpt2 on bundled text
            <BLANKLINE>
            Without ...
        """
        sentences = []
        for finding in self.findings:
            rule = textwrap.indent(textwrap.fill(finding.rule, _WIDE - 2), "  ")
            sentences.append(f"{finding}\n{rule}")
        sentences = sentences or list(self.section.notes)
        for caveat in self.caveats:
            sentences.append(f"Note: {caveat}.")
        answer = [str(self.answer)] if self.answer else []
        return "\n\n".join([f"{type(self).__name__}: {self.where}", *answer, *sentences])

    def figures(self) -> "dict[str, Figure]":
        """Draw the figures of the page, by name. Each has a method `save`, to use it in a paper.

        The beginning of a name is enough if it belongs to only one figure: `"curve"` is `"curve_ln"` for a model with
        one bias. Raises KeyError, with the names of all figures, for any other name, and ValueError for a result that
        has no page, such as a sweep of probes.

        Examples:
            >>> import interp
            >>> from interp.testing import toy_decoder
            >>> classes = {"first": [7, 8]}
            >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
            >>> list(study.figures())[:2]
            ['dimension_means', 'attention']
        """
        return _Figures(self.section.figures)

    def to_csv(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write each table, and the findings, as `directory/<analysis>_<table>.csv`. Arrays of more than
        `interp.results.dense.MOST_ROWS` rows are left out.

        Raises FileExistsError before anything is written if one of these files exists.

        Examples:
            >>> import interp, tempfile
            >>> from interp.testing import toy_decoder
            >>> classes = {"first": [7, 8]}
            >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     study.to_csv(directory)[-1].name
            'attention_findings.csv'
        """
        tables = {name: dense.table for name, dense in self.dense.items() if not dense.is_large}
        tables.update(self._named_tables)
        return export(tables, directory, self.analysis, ["csv"])

    def to_latex(self, table: str | None = None, *, columns: Sequence[str] | None = None) -> str:
        """Write a table, or the `findings`, for a paper: with the headings of the page and intervals after their
        values; see `interp.results.latex.latex`.

        Args:
            table: its name. Default: the first that the command prints.
            columns: names of the columns to show. A comment at the end names those that are not shown by default.

        Raises ValueError if the result has no table of that name, or if the table lacks one of these columns.

        Examples:
            >>> Result(provenance={}).to_latex("findings")
            '% this table is empty\\n'
        """
        tables = dict(self._named_tables)
        if table is None:
            table, (_, rows) = next(iter(self.shown.items()))
            tables.setdefault(table, rows)
        if table not in tables:
            suggestion = meant(table, tables)
            raise ValueError(
                f"{type(self).__name__} has no table {table!r}{suggestion}; expected one of {', '.join(tables)}"
            )
        return latex(tables[table], **self.look(table, columns))

    def look(self, table: str, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Return how a table looks in a paper: the arguments of `interp.results.latex.latex`."""
        return {"headings": self.headings, "columns": columns, "usual": self.in_paper.get(table)}

    @property
    def _named_tables(self) -> dict[str, pd.DataFrame]:
        """The tables, including a table of the findings."""
        return dict(self.tables, findings=findings_table(self.findings))

    def save(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write `directory/<analysis>/<table>.parquet` and `result.json`, either completely or not at all.

        A table of more than `interp.results.dense.MOST_ROWS` rows is written as `<table>.safetensors` (see
        `Dense.save`).

        Raises FileExistsError if that folder exists, unless `overwrite` is set; and in any case if it holds anything
        that interp did not write.
        """
        target = local_path(directory) / self.analysis
        if target.exists() and not overwrite:
            raise FileExistsError(f"{target} already holds a result; choose another directory or overwrite it")
        with in_turn(target.parent), replacing_directory(target, listed=result_names) as temporary:
            tidy = dict(self.tables)
            large = []
            for name, dense in self.dense.items():
                if dense.is_large:
                    dense.save(temporary / f"{name}.safetensors")
                    large.append(name)
                else:
                    tidy[name] = dense.table
            for name, table in tidy.items():
                table.to_parquet(temporary / f"{name}.parquet", index=False)
            described = {
                "analysis": self.analysis, "tables": [*tidy], "arrays": large, "provenance": self.provenance,
            }  # fmt: skip
            (temporary / "result.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        return target

    @classmethod
    def load(cls: type[_R], directory: str | os.PathLike[str]) -> _R:
        """Read what `save` wrote, or what an earlier version wrote as part of another analysis
        (`interp.results.earlier`). Labelled arrays are mapped, and read only when they are used.

        Raises FileNotFoundError if there is no such result, and ValueError if it belongs to another analysis or lacks
        tables.
        """
        run = local_path(directory)
        moved = moved_from(run, cls.analysis)
        analysis = moved.analysis if moved else cls.analysis
        source = run / analysis
        described = source / "result.json"
        if not described.is_file():
            raise FileNotFoundError(f"{source} holds no result of interp {cls.analysis}")
        saved = _read(described, lambda path: json.loads(path.read_text(encoding="utf-8")))
        if not isinstance(saved, dict):
            raise ValueError(f"{described} holds a {type(saved).__name__}, expected an object; run the analysis again")
        if saved.get("analysis") != analysis:
            raise ValueError(f"{source} holds a result of {saved.get('analysis')!r}, expected {analysis!r}")
        files = {}
        for name in moved.tables if moved else (*cls.table_names(), *cls.dense_names()):
            files[name] = file_of(source, moved.tables[name] if moved else name)
        for name in cls.dense_names():
            mapped = source / f"{name}.safetensors"
            if mapped.is_file():
                files[name] = mapped
        if missing := ", ".join(name for name, file in files.items() if not file.is_file()):
            reason = "another version of interp saved it, or it is damaged"
            raise ValueError(f"{source} lacks {missing}: {reason}; run the analysis again")
        if not isinstance(saved.get("provenance"), dict):
            raise ValueError(f"{described} has no provenance; run the analysis again")
        _check_provenance(described, saved["provenance"])
        readers: dict[str, Callable[[Path], Any]] = {}
        for item in fields(cls):
            if item.type is pd.DataFrame:
                readers[item.name] = partial(_read_table, item.name)
            elif item.type is Dense:
                readers[item.name] = partial(_read_dense, **item.metadata)
        tables = {name: _read(file, readers[name]) for name, file in files.items()}
        if moved:
            return cls(**moved.brought_up_to_date(tables, saved["provenance"]))
        return cls(provenance=saved["provenance"], **tables)


class _Figures(dict[str, "Figure"]):
    """Figures by name, or by the beginning of a name that only one of them has."""

    def __missing__(self, name: str) -> "Figure":
        names = [figure for figure in self if figure.startswith(f"{name}_")]
        if len(names) == 1:
            return self[names[0]]
        raise KeyError(f"no figure {name!r}{meant(name, self)}; expected one of {', '.join(self)}")


def _read_table(name: str, path: Path) -> pd.DataFrame:
    return of_today(name, pd.read_parquet(path))


def _read_dense(path: Path, dims: Sequence[str], fewer: Mapping[str, Sequence[str]] | None = None) -> Dense:
    return Dense.load(path) if path.suffix == ".safetensors" else Dense.of_table(pd.read_parquet(path), dims, fewer)


def _read(path: Path, reader: Callable[[Path], Any]) -> Any:
    """The contents of a file. Raises ValueError if it cannot be read."""
    try:
        return reader(path)
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); run the analysis again") from None


def _check_provenance(path: Path, provenance: Mapping[str, Any]) -> None:
    """Raise ValueError for an entry of another type than its readers expect."""
    for name, kinds in _READ.items():
        outer, _, inner = name.rpartition(".")
        entries = provenance.get(outer, {}) if outer else provenance
        value = entries.get(inner)
        if inner in entries and not isinstance(value, kinds) and not (value is None and kinds == (int, float)):
            expected = " or ".join(kind.__name__ for kind in kinds)
            problem = f"{name} in the provenance is {value!r:.40}, expected {expected}"
            raise ValueError(f"{path} is damaged ({problem}); run the analysis again")


def provenance(model: Any, read: Mapping[str, Any], **entries: Any) -> dict[str, Any]:
    """Collect what is needed to reproduce a result: model, data, settings, kind of machine and versions.

    Raises ValueError for a name in `entries` that already stands for something else, such as how the text was read.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> about = provenance(toy_decoder(), {"corpus": "a text"}, k=3)
        >>> about["model"], about["corpus"], about["k"]
        ('toy gpt2', 'a text', 3)
        >>> about["weight_hash"] == provenance(toy_decoder(seed=1), {})["weight_hash"]
        False
    """
    from interp.models.identity import n_parameters, origin, weight_hash
    from interp.models.running import active_hooks
    from interp.models.sites import view

    source = origin(model)
    model_view = view(model)
    description: dict[str, Any] = {
        "model": source.name,
        "revision": source.revision,
        "quantised_from": source.quantised_from,
        "adapter": source.adapter,
        "weight_hash": weight_hash(model),
        "architecture": f"{type(model).__name__}, {model.cfg.n_layers} layers, d_model {model.cfg.d_model}, "
        f"{model.cfg.n_heads} heads, vocabulary {model.W_U.shape[1]:,}",
        "backend": "hooked" if model_view.wrapped is None else "bridge",
        "attention": model_view.attention_path,
        "n_layers": model.cfg.n_layers,
        "n_parameters": n_parameters(model),
        "device": str(model.W_U.device),
        "dtype": str(model.W_U.dtype).removeprefix("torch."),
    }
    description.update(read)
    description["active_hooks"] = active_hooks(model)
    recorded = dict(description)
    recorded["versions"] = dict(python=platform.python_version(), **versions(*DECIDING, "torch", "numpy"))
    recorded["commit"] = _commit()
    recorded["date"] = datetime.now(UTC).date().isoformat()
    for name, value in entries.items():
        if recorded.get(name, value) != value:
            conflict = f"provenance already has {name}={recorded[name]!r}, found {name}={value!r} as well"
            raise ValueError(f"{conflict}; record the second one under another name")
    description.update(entries)
    description.update(recorded)
    return description


def versions(*packages: str) -> dict[str, str | None]:
    """Return the installed version of each package, or None if it is not installed."""
    versions: dict[str, str | None] = dict.fromkeys(packages)
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _commit() -> str | None:
    """The git commit of the interp source tree, with `-dirty` if it was edited; None outside a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10).strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
