"""Run work in separate processes, which may be killed.

They are forked from a process that has imported the large libraries and interp's toys, but not its command line, so
that they start within a second and look up the packages that extend interp afresh.
"""

import functools
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Self

import pytest
from toys import ROOT

_FORKS: Any = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["circuitsvis", "datasets", "jinja2", "pandas", "plotly.graph_objects", "processes", "pyarrow.parquet", "pytest",
     "rich.console", "scipy.stats", "sklearn.linear_model", "tqdm.auto", "transformer_lens", "typer",
     *(f"transformers.models.{kind}.modeling_{kind}" for kind in ("gpt2", "bert"))]
)  # fmt: skip


@functools.cache
def _started() -> None:
    """Start the process that others are forked from, which finds modules only by `PYTHONPATH`."""
    folders = (".", "tools", "tests", "tests/support")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / folder) for folder in folders))
        forkserver.ensure_running()


class Process:
    """Call a function that can be pickled in a separate process."""

    def __init__(self, work: Callable[[], object]) -> None:
        _started()
        self._said = tempfile.TemporaryDirectory()
        self._out, self._err = (Path(self._said.name, name) for name in ("out", "err"))
        self.process = _FORKS.Process(target=_run, args=(work, self._out, self._err, os.getcwd()))
        self.process.start()

    def when(self, path: Path) -> Self:
        """Wait until a file exists."""
        while not path.exists():
            assert self.process.is_alive(), f"the run ended before {path.name} was there: {self._err.read_text()}"
            time.sleep(0.002)
        return self

    def send(self, number: signal.Signals) -> Self:
        os.kill(self.process.pid, number)
        return self

    def end(self, code: int = 0) -> tuple[str, str]:
        """Wait for the end; returns what was written to standard output and standard error."""
        self.process.join()
        said = self._out.read_text(encoding="utf-8"), self._err.read_text(encoding="utf-8")
        self._said.cleanup()
        assert self.process.exitcode == code, said[1]
        return said


def _run(work: Callable[[], object], out: Path, err: Path, home: str) -> None:
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(home)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background processes ignore it
    sys.exit(work())


class Script(Process):
    """Run code with some names defined."""

    def __init__(self, code: str, **names: object) -> None:
        super().__init__(partial(exec, code, names))


class Command(Process):
    """Run a command line of interp, or of `tools/train.py` if it begins with `train`.

    Args:
        arguments: the line.
        prepare: called first; a function that can be pickled.
        packages: a directory with packages that are installed alongside interp.
    """

    def __init__(
        self, arguments: Sequence[object], *, prepare: Callable[[], None] | None = None, packages: Path | None = None
    ) -> None:
        super().__init__(partial(_command, [str(argument) for argument in arguments], prepare, packages))


def _command(arguments: list[str], prepare: Callable[[], None] | None, packages: Path | None) -> int:
    if packages is not None:
        sys.path.insert(0, str(packages))
    if prepare is not None:
        prepare()
    from toys import run_command

    return run_command(arguments)


def _patch(place: str, change: Callable[[Any], Any]) -> None:
    """Replace `module:name` or `module:class.name` by `change` of its value."""
    module, _, name = place.partition(":")
    *within, last = name.split(".")
    holder = functools.reduce(getattr, within, importlib.import_module(module))
    setattr(holder, last, change(getattr(holder, last)))


def often() -> None:
    """Write a checkpoint after every batch, and write and read each slowly enough to be interrupted."""

    def slowly(work: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **options: (time.sleep(0.02), work(*given, **options))[1]

    for place in ("interp.passes.reading:SECONDS_BETWEEN_CHECKPOINTS", "training.run:SAVE_SECONDS"):
        _patch(place, lambda seconds: 0.0)
    for name in ("save", "load"):
        _patch(f"interp.passes.checkpoint:Checkpoint.{name}", slowly)
    _patch("training.run:write_resume", slowly)


def without_room() -> None:
    """From the first checkpoint on, no file can grow beyond 500 bytes."""
    often()

    def full(save: Callable[..., Any]) -> Callable[..., Any]:
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
        return lambda *given: (limit(), save(*given))[1]

    _patch("interp.passes.checkpoint:Checkpoint.save", full)


def without_room_for_output() -> None:
    """Make standard output a full disk."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def signalled(place: str, calls: int, number: signal.Signals, matching: str = "") -> None:
    """Send a signal to this process at the start of call number `calls` of a function, counting only calls whose first
    argument contains `matching`."""
    seen = 0

    def change(work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **options: Any) -> Any:
            nonlocal seen
            seen += matching in str(given[:1])
            if seen == calls:
                os.kill(os.getpid(), number)
            return work(*given, **options)

        return counted

    _patch(place, change)
