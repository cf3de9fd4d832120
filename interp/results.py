"""Results: tidy tables with provenance, saved as Parquet and JSON."""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pandas as pd

from interp.checks import check_same
from interp.disk.files import checksum, replacing_directory
from interp.disk.marks import result_names
from interp.run import distributed

_R = TypeVar("_R", bound="Result")
_SETTINGS = "settings.json"
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


def kept(
    path: Path | None, settings: dict[str, Any], make: Callable[[], dict[str, pd.DataFrame]]
) -> dict[str, pd.DataFrame]:
    """Tables that an earlier run kept in a folder, or new ones, kept there for the next; None keeps nothing.

    Raises ValueError where the folder holds tables of other settings, naming what differs, or damaged ones.
    """
    if path is None:
        return make()
    if (path / _SETTINGS).is_file():
        return _known(path, json.loads(json.dumps(settings)))
    tables = make()
    with replacing_directory(path, listed=_kept_names) as temporary:
        for name, table in tables.items():
            table.to_parquet(temporary / f"{name}.parquet", index=False)
        written = {file.name: checksum(file.read_bytes()) for file in sorted(temporary.iterdir())}
        text = json.dumps({"settings": settings, "checksums": written})
        (temporary / _SETTINGS).write_text(text, encoding="utf-8")
    return tables


def _kept_names(folder: Path) -> Collection[str] | None:
    """The names of what `kept` wrote in a folder, None for one that it did not make."""
    try:
        return [*json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))["checksums"], _SETTINGS]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _known(path: Path, wanted: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables of a folder that `kept` made."""
    try:
        known = json.loads((path / _SETTINGS).read_text(encoding="utf-8"))
        settings, files = known["settings"], {path / name: value for name, value in known["checksums"].items()}
        damaged = [file.name for file, value in files.items() if checksum(file.read_bytes()) != value]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); delete it to make it anew") from None
    check_same(f"{path} belongs to another run (choose another directory, or delete it)", settings, wanted)
    if damaged:
        raise ValueError(f"{path} is damaged (checksum of {', '.join(damaged)}); delete it to make it anew")
    return {file.stem: pd.read_parquet(file) for file in files}


def kept_each(
    work: Sequence[tuple[Path | None, dict[str, Any], Callable[[], dict[str, pd.DataFrame]]]],
) -> list[dict[str, pd.DataFrame]]:
    """`kept` for each piece of work, shared out among processes (`interp.run.distributed`) where paths are given."""
    here = distributed.part()
    paths = [path for path, _, _ in work if path is not None]
    if here.of > 1 and len(paths) == len(work):
        for number, piece in enumerate(work):
            if number in here:
                kept(*piece)
        distributed.meet([path for path in paths if not (path / _SETTINGS).is_file()])
    return [kept(*piece) for piece in work]


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
