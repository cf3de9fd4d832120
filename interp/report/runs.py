"""The results in a directory."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from interp.encoding import EncodingStudy
from interp.frequency import BiasEffect
from interp.generation import GenerationSweep
from interp.outliers import AttentionStudy
from interp.probing import ProbingStudy
from interp.results import Result

_KINDS: tuple[type[Result], ...] = (BiasEffect, GenerationSweep, AttentionStudy, EncodingStudy, ProbingStudy)


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
    except (KeyError, IndexError, AttributeError, TypeError, StopIteration) as error:
        raise ValueError(
            f"{' or '.join(map(str, places))} is no result of this version of interp, or is damaged "
            f"({type(error).__name__}: {error}); make it again"
        ) from error


def find_runs(directory: str | os.PathLike[str]) -> list[Run]:
    """The directory itself, where it holds results, and its subdirectories that do.

    Raises FileNotFoundError where there is no result.
    """
    root = Path(directory)
    runs = []
    for folder in [root, *sorted(path for path in root.glob("*") if path.is_dir())]:
        kinds = [kind for kind in _KINDS if (folder / kind.analysis / "result.json").is_file()]
        if kinds:
            runs.append(Run(folder, {kind.analysis: kind.load(folder) for kind in kinds}))
    if not runs:
        raise FileNotFoundError(
            f"{root} holds no result, nor do its subdirectories; expected the --out of a run, with a folder such as "
            "frequency in it"
        )
    return runs
