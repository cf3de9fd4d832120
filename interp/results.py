"""Results: tidy tables with provenance, saved as Parquet and JSON."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pandas as pd

from interp.disk.files import replacing_directory
from interp.disk.marks import result_names

_R = TypeVar("_R", bound="Result")
_SHOWN_ROWS = 20
DECIDING = ("interp", "transformer-lens", "transformers", "tokenizers")
"""The packages of which a half-done computation is not continued by another version."""


@dataclass(frozen=True, eq=False)
class Result:
    """Base of all results: a frozen dataclass whose fields are tables (`pandas.DataFrame`) and `provenance`.

    A subclass sets `analysis`, the name of its folder in a run directory.
    """

    analysis: ClassVar[str]

    provenance: dict[str, Any]

    @classmethod
    def table_names(cls) -> tuple[str, ...]:
        return tuple(item.name for item in fields(cls) if item.type is pd.DataFrame)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        return {name: getattr(self, name) for name in self.table_names()}

    @property
    def where(self) -> str:
        """The model and what it read, to call a result by."""
        return f"{Path(self.provenance['model']).name} on {self.provenance['corpus']}"

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        """What a command prints: tables by name, each with a title."""
        name, table = next(iter(self.tables.items()))
        return {name: (f"{name}: {self.where}", table.head(_SHOWN_ROWS))}

    def save(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write `directory/<analysis>/<table>.parquet` and `result.json`, all of it or nothing.

        Raises FileExistsError if that folder exists, unless `overwrite`; and in any case where it holds what interp did
        not write.
        """
        target = Path(directory) / self.analysis
        if target.exists() and not overwrite:
            raise FileExistsError(f"{target} already holds a result; choose another directory or overwrite it")
        with replacing_directory(target, listed=result_names) as temporary:
            for name, table in self.tables.items():
                table.to_parquet(temporary / f"{name}.parquet", index=False)
            described = {"analysis": self.analysis, "tables": list(self.tables), "provenance": self.provenance}
            text = json.dumps(described, indent=2)
            (temporary / "result.json").write_text(text + "\n", encoding="utf-8")
        return target

    @classmethod
    def load(cls: type[_R], directory: str | os.PathLike[str]) -> _R:
        """Read what `save` wrote.

        Raises FileNotFoundError where there is no such result, ValueError where it is another analysis or lacks tables.
        """
        source = Path(directory) / cls.analysis
        if not (source / "result.json").is_file():
            raise FileNotFoundError(f"{source} holds no result of interp {cls.analysis}")
        saved = _read_json(source / "result.json")
        if saved.get("analysis") != cls.analysis:
            raise ValueError(f"{source} holds a result of {saved.get('analysis')!r}, expected {cls.analysis!r}")
        missing = [name for name in cls.table_names() if not (source / f"{name}.parquet").is_file()]
        if missing:
            raise ValueError(
                f"{source} lacks {', '.join(missing)}: it was saved by another version of interp, or files were "
                "removed; make it again"
            )
        if not isinstance(saved.get("provenance"), dict):
            raise ValueError(f"{source / 'result.json'} says nothing of where the result comes from; make it again")
        tables = {name: _read_table(source / f"{name}.parquet") for name in cls.table_names()}
        return cls(provenance=saved["provenance"], **tables)


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ValueError for anything else."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); make it again") from None
    if not isinstance(read, dict):
        raise ValueError(f"{path} holds a {type(read).__name__}, expected an object; make it again")
    return read


def _read_table(path: Path) -> pd.DataFrame:
    """A Parquet table. Raises ValueError for a damaged one."""
    try:
        return pd.read_parquet(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}); make it again") from None


def provenance(model: Any, read: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What a reader needs to make a result again: model, what was read of it, settings, machine kind and versions."""
    from interp.models import origin, weight_hash
    from interp.models.running import active_hooks

    source = origin(model)
    return {
        "model": source.name,
        "revision": source.revision,
        "weight_hash": weight_hash(model),
        "architecture": f"{type(model).__name__}, {model.cfg.n_layers} layers, d_model {model.cfg.d_model}, "
        f"{model.cfg.n_heads} heads, vocabulary {model.W_U.shape[1]:,}",
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
    try:
        run = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None
