"""The results in a directory."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from interp.analyses import load, names
from interp.checks import warn
from interp.results import Result

__all__ = ["Run", "find_runs", "saved_results", "showing"]


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory with its results by analysis."""

    directory: Path
    results: dict[str, Result]


@contextmanager
def showing(places: Iterable[Path]) -> Iterator[None]:
    """Raises ValueError where a result lacks what is shown of it: columns, rows, or entries of its provenance."""
    try:
        yield
    except (KeyError, IndexError, AttributeError, TypeError, ValueError, StopIteration) as error:
        what, why = " or ".join(map(str, places)), f"{type(error).__name__}: {error}"
        told = f"{what} is no result of this version of interp, or is damaged ({why}); make it again"
        raise ValueError(told) from error


def find_runs(directory: str | os.PathLike[str]) -> list[Run]:
    """The directory itself, where it holds results, and its subdirectories that do; hidden ones aside.

    A result that cannot be read, such as one of another version, is left out with a warning.

    Raises FileNotFoundError where there is no result.
    """
    runs = []
    for folder, found in saved_results(directory).items():
        results = {}
        for name in found:
            try:
                results[name] = load(name).kind.load(folder)
            except (OSError, ValueError, KeyError) as error:
                warn(f"left out {folder / name}: {error}")
        if results:
            runs.append(Run(folder, results))
    if not runs:
        raise FileNotFoundError(f"{directory} holds no result that can be read; expected the --out of one run or more")
    return runs


def saved_results(directory: str | os.PathLike[str]) -> dict[Path, list[str]]:
    """What results a directory and its subdirectories hold, hidden ones aside."""
    root = Path(directory)
    folders = [root, *(path for path in sorted(root.glob("[!.]*")) if path.is_dir())]
    found = {folder: [name for name in names() if (folder / name / "result.json").is_file()] for folder in folders}
    return {folder: held for folder, held in found.items() if held}
