"""What cannot be drawn: a note takes its place on the page, and the rest is written."""

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from interp.results.result import Result
from interp.support.checks import warn

__all__ = ["Written"]

_T = TypeVar("_T")
_ADVICE = "If another version of interp saved this result, or it is damaged, run the analysis again; otherwise please "
_ADVICE += "report this, with what INTERP_DEBUG=1 shows"


@dataclass
class Written:
    """A file for which results are drawn: the results that could be, and a note for everything that could not."""

    path: Path
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def attempt(self, drawing: str, draw: Callable[[], _T], instead: Callable[[str], _T]) -> _T:
        """What `draw` returns, or `instead` of it something made from the note on why it failed. The note is also
        given as a warning. With INTERP_STRICT=1 the exception is raised; with INTERP_DEBUG=1 it is printed.

        Args:
            drawing: what is drawn, as the beginning of a sentence.
        """
        try:
            return draw()
        except Exception as error:
            if os.environ.get("INTERP_STRICT") == "1":
                raise
            if os.environ.get("INTERP_DEBUG") == "1":
                traceback.print_exc()
            where = "outside interp"
            for frame, line in traceback.walk_tb(error.__traceback__):
                name = frame.f_globals.get("__name__", "")
                if name.startswith("interp."):
                    where = f"{name}, line {line}"
            note = f"{drawing} could not be drawn ({type(error).__name__}: {error}; {where}). {_ADVICE}"
            self.notes.append(note)
            warn(note)
            return instead(note)
