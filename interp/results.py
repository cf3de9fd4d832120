"""Results: tidy tables with provenance, saved as Parquet and JSON; large ones as labelled arrays."""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pandas as pd

from interp.columns import COMMON, Column
from interp.dense import Dense
from interp.disk import replacing_directory, result_names
from interp.findings import Finding

__all__ = ["Result", "provenance"]

_R = TypeVar("_R", bound="Result")
_SHOWN_ROWS = 20
DECIDING = ("interp", "transformer-lens", "transformers", "tokenizers")
"""The packages of which a half-done computation is not continued by another version."""


@dataclass(frozen=True, eq=False)
class Result:
    """Base of all results: a frozen dataclass whose fields are tables (`pandas.DataFrame`) and `provenance`.

    A table whose rows grow with the model is an `interp.dense.Dense`; its field says how to read it from a tidy table:
    `field(metadata={"dims": …})`, and `fewer` where there is (see `Dense.of_table`). A subclass sets `analysis`, the
    name of its folder in a run directory, and `columns`, what the columns of its tables are called and mean where they
    are not those of `interp.columns.COMMON`.

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
    columns: ClassVar[Mapping[str, Column]] = COMMON

    provenance: dict[str, Any]

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
    def where(self) -> str:
        """The model and what it read, to call a result by."""
        return f"{Path(self.provenance['model']).name} on {self.provenance['corpus']}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the result says, the most important first: each with its interval, control, verdict and rule."""
        return ()

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        """What a command prints: tables by name, each with a title."""
        name, table = next(iter(self.tables.items()))
        return {name: (f"{name}: {self.where}", table.head(_SHOWN_ROWS))}

    def save(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write `directory/<analysis>/<table>.parquet` and `result.json`, all of it or nothing.

        A table of more than `interp.dense.MOST_ROWS` rows is written as `<table>.safetensors` (see `Dense.save`).

        Raises FileExistsError if that folder exists, unless `overwrite`; and in any case where it holds what interp did
        not write.
        """
        target = Path(directory) / self.analysis
        if target.exists() and not overwrite:
            raise FileExistsError(f"{target} already holds a result; choose another directory or overwrite it")
        with replacing_directory(target, listed=result_names) as temporary:
            large = {name: dense for name, dense in self.dense.items() if dense.is_large}
            for name, dense in large.items():
                dense.save(temporary / f"{name}.safetensors")
            tidy = self.tables | {name: dense.table for name, dense in self.dense.items() if name not in large}
            for name, table in tidy.items():
                table.to_parquet(temporary / f"{name}.parquet", index=False)
            files = {"tables": [*tidy], "arrays": [*large]}
            described = {"analysis": self.analysis, **files, "provenance": self.provenance}
            (temporary / "result.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        return target

    @classmethod
    def load(cls: type[_R], directory: str | os.PathLike[str]) -> _R:
        """Read what `save` wrote; labelled arrays are mapped, and read when they are used.

        Raises FileNotFoundError where there is no such result, ValueError where it is another analysis or lacks tables.
        """
        source = Path(directory) / cls.analysis
        described = source / "result.json"
        if not described.is_file():
            raise FileNotFoundError(f"{source} holds no result of interp {cls.analysis}")
        saved = _read(described, lambda path: json.loads(path.read_text(encoding="utf-8")))
        if not isinstance(saved, dict):
            raise ValueError(f"{described} holds a {type(saved).__name__}, expected an object; make it again")
        if saved.get("analysis") != cls.analysis:
            raise ValueError(f"{source} holds a result of {saved.get('analysis')!r}, expected {cls.analysis!r}")
        files = {name: source / f"{name}.parquet" for name in (*cls.table_names(), *cls.dense_names())}
        mapped = {name: source / f"{name}.safetensors" for name in cls.dense_names()}
        files |= {name: file for name, file in mapped.items() if file.is_file()}
        if missing := ", ".join(name for name, file in files.items() if not file.is_file()):
            why = "another version of interp saved it, or it is damaged"
            raise ValueError(f"{source} lacks {missing}: {why}; make it again")
        if not isinstance(saved.get("provenance"), dict):
            raise ValueError(f"{described} says nothing of where the result comes from; make it again")
        readers: dict[str, Callable[[Path], Any]] = dict.fromkeys(cls.table_names(), pd.read_parquet)
        readers |= {item.name: partial(_read_dense, **item.metadata) for item in fields(cls) if item.type is Dense}
        return cls(provenance=saved["provenance"], **{name: _read(files[name], read) for name, read in readers.items()})


def _read_dense(path: Path, dims: Sequence[str], fewer: Mapping[str, Sequence[str]] | None = None) -> Dense:
    return Dense.load(path) if path.suffix == ".safetensors" else Dense.of_table(pd.read_parquet(path), dims, fewer)


def _read(path: Path, reader: Callable[[Path], Any]) -> Any:
    """What a file holds. Raises ValueError for one that cannot be read."""
    try:
        return reader(path)
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); make it again") from None


def provenance(model: Any, read: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What a reader needs to make a result again: model, what was read of it, settings, machine kind and versions.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> about = provenance(toy_decoder(), {"corpus": "a text"}, k=3)
        >>> about["model"], about["corpus"], about["k"]
        ('toy gpt2', 'a text', 3)
        >>> about["weight_hash"] == provenance(toy_decoder(seed=1), {})["weight_hash"]
        False
    """
    from interp.models.identity import origin, weight_hash
    from interp.models.running import active_hooks
    from interp.models.sites import view

    source, seen = origin(model), view(model)
    return {
        "model": source.name,
        "revision": source.revision,
        "weight_hash": weight_hash(model),
        "architecture": f"{type(model).__name__}, {model.cfg.n_layers} layers, d_model {model.cfg.d_model}, "
        f"{model.cfg.n_heads} heads, vocabulary {model.W_U.shape[1]:,}",
        "backend": "hooked" if seen.wrapped is None else "bridge",
        "attention": seen.attention_path,
        "n_layers": model.cfg.n_layers,
        "device": str(model.W_U.device),
        "dtype": str(model.W_U.dtype).removeprefix("torch."),
        **read,
        "active_hooks": active_hooks(model),
        **more,
        "versions": {"python": platform.python_version()} | versions(*DECIDING, "torch", "numpy"),
        "commit": _commit(),
    }


def versions(*packages: str) -> dict[str, str | None]:
    """The installed version of each package, None where it is not installed."""
    found: dict[str, str | None] = dict.fromkeys(packages)
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _commit() -> str | None:
    """The git commit of the interp source tree, `-dirty` where it was edited; None outside a checkout."""
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10).strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
