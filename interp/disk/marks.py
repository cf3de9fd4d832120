"""What in a directory is interp's own, and what is the user's, which no flag replaces or removes.

A result is known by its `result.json`, a page by its generator, any other folder by the list of contents that lies in
it. In a folder of interp's, what it did not write is the user's. Imports nothing heavy.
"""

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeAlias

__all__ = ["CONTENTS", "FIGURES", "GENERATOR", "Listed", "check_own", "check_page", "contents", "result_names"]

CONTENTS = ".interp"
"""The list of what interp wrote in a folder, inside it."""
FIGURES = "figures"
"""The folder of a result in which its page keeps the figures."""
GENERATOR = '<meta name="generator" content="interp">'
"""What a page of interp's has in its head."""

_MOVE = "move it, or choose another place"
Listed: TypeAlias = Callable[[Path], Collection[str] | None]
"""A function from a folder to the names of what interp wrote in it, None for one that it did not make."""


def contents(folder: Path) -> Collection[str] | None:
    """What interp wrote in a folder by its own list, None where there is no such list."""
    try:
        return [*json.loads((folder / CONTENTS).read_text(encoding="utf-8"))["written by interp"], CONTENTS]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def result_names(folder: Path) -> Collection[str] | None:
    """The names of what `Result.save` and the page wrote in a folder, None for one that holds no result.

    Raises FileExistsError for a folder of figures that holds something else.
    """
    try:
        saved = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(saved, dict) or saved.get("analysis") != folder.name or "provenance" not in saved:
        return None
    check_own(folder / FIGURES)
    tables = saved.get("tables", [path.stem for path in folder.glob("*.parquet")])
    return ["result.json", FIGURES, *(f"{name}.parquet" for name in tables)]


def check_own(target: Path, listed: Listed = contents) -> None:
    """See that a folder may be replaced or removed: there is none, or nothing in it that interp did not write.

    Args:
        listed: the names of what interp wrote in a folder, None for one that it did not make.

    Raises FileExistsError naming what is in the way.
    """
    if not os.path.lexists(target):
        return
    what = "link" if target.is_symlink() else "folder" if target.is_dir() else "file"
    names = listed(target) if what == "folder" else None
    if names is None:
        raise FileExistsError(f"{target} is a {what} that interp did not make and would replace; {_MOVE}")
    if foreign := sorted(path.name for path in target.iterdir() if path.name not in names):
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise FileExistsError(f"{target} holds {foreign[0]}{more}, which interp did not write; {_MOVE}")


def check_page(directory: Path) -> None:
    """Raise FileExistsError where `directory/index.html` is something that interp did not write."""
    target = directory / "index.html"
    if not os.path.lexists(target):
        return
    if target.is_file() and not target.is_symlink():
        with target.open(encoding="utf-8", errors="replace") as file:
            if GENERATOR in file.read(4_096):
                return
    raise FileExistsError(f"{target} was not written by interp, and would be replaced; {_MOVE}")
