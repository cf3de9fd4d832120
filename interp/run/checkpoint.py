"""Tables that a run keeps, so that it goes on from them when it was killed."""

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from interp.checks import check_same
from interp.disk.files import checksum, replacing_directory
from interp.run import distributed

_SETTINGS = "settings.json"


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
