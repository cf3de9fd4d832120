"""Runs in processes of their own, which can be interrupted, and a check of the files that they leave.

A run is forked from this process after the imports and before any work, so that it is interrupted in its work and not
in imports. Checkpoints are kept every half second rather than every 20 seconds (training: 120).
"""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as parquet
from safetensors import safe_open

sys.path.append(str(Path(__file__).parents[1] / "tools"))

import training.command
import training.run

import interp.analyses.report
import interp.pages
import interp.passes.reading
import interp.plots
import interp.results.result
from interp.cli import main

SECONDS_BETWEEN_CHECKPOINTS = 0.5
_PATIENCE = 60  # seconds until a process that was told to end is killed
_ENDED = "already holds", "holds no unfinished run", "found no parts of a run", "; wait until it has ended"
_TIMED = "seconds", "threads"  # of training.json


class Ended(NamedTuple):
    """How a run ended: its exit code (negative for a signal), what it wrote to stderr, and its seconds."""

    code: int
    said: str
    seconds: float

    @property
    def is_done(self) -> bool:
        """Whether it ended by itself, had already ended when it was restarted, or left the work to another process."""
        return self.code == 0 or (self.code == 2 and any(words in self.said for words in _ENDED))


def start(line: list[str], log: Path, *, largest: int | None = None, rank: dict[str, str] | None = None) -> int:
    """Start a command line of interp, or of `tools/train.py` if it begins with `train`; returns the process id.

    Args:
        said: the file for stderr.
        largest: a limit on the size of files, in bytes.
        rank: the environment that torchrun gives to a process.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        for number, file in ((1, os.devnull), (2, log)):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background processes ignore it
        interp.passes.reading.SECONDS_BETWEEN_CHECKPOINTS = SECONDS_BETWEEN_CHECKPOINTS
        interp.results.result._commit = lambda: None  # files of the project may be edited between two runs
        training.run.SAVE_SECONDS = SECONDS_BETWEEN_CHECKPOINTS  # type: ignore[assignment]
        os.environ.update(rank or {})
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        code = training.command.main(line[1:]) if line[0] == "train" else main(line)
        sys.stderr.flush()
        os._exit(code)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(99)


def run(
    line: list[str],
    log: Path,
    *,
    after: float | None = None,
    sends: signal.Signals = signal.SIGKILL,
    largest: int | None = None,
) -> Ended:
    """Run a command line to its end, or send it a signal after some seconds."""
    began = time.monotonic()
    pid = start(line, log, largest=largest)
    if after is not None:
        while time.monotonic() - began < after and not _has_ended(pid):
            time.sleep(0.002)
        if time.monotonic() - began >= after:
            os.kill(pid, sends)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Ended(code, log.read_text(encoding="utf-8"), time.monotonic() - began)


def run_ranks(line: list[str], log: Path, *, after: float | None = None, victim: int = 0, ranks: int = 2) -> Ended:
    """Run a command line on several processes in the environment of torchrun, and kill one of them after some seconds.

    When a process fails, the others are told to end, as torchrun does. The exit code is that of the victim, or else the
    first one that is not 0.
    """
    began = time.monotonic()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
    }  # fmt: skip
    files = [log.with_name(f"{log.name}-{rank}") for rank in range(ranks)]
    running = {}
    for rank, file in enumerate(files):
        running[rank] = start(line, file, rank=dict(group, RANK=str(rank), LOCAL_RANK=str(rank)))
    pids = dict(running)
    code = 0
    signalled: float | None = None
    while running:
        elapsed = time.monotonic() - began
        if after is not None and elapsed >= after and victim in running:
            os.kill(pids[victim], signal.SIGKILL)
            after = None
        for rank in [rank for rank, pid in running.items() if _has_ended(pid)]:
            ended = os.waitstatus_to_exitcode(os.waitpid(running.pop(rank), 0)[1])
            code = ended if rank == victim and ended else code or ended
        if code and running and (signalled is None or elapsed - signalled > _PATIENCE):
            for pid in running.values():
                os.kill(pid, signal.SIGTERM if signalled is None else signal.SIGKILL)
            signalled = elapsed
        time.sleep(0.002)
    return Ended(code, "\n".join(file.read_text(encoding="utf-8") for file in files), time.monotonic() - began)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def run_together(lines: list[list[str]], log: Path) -> list[Ended]:
    """Run command lines at the same time, and wait for all."""
    began = time.monotonic()
    files = [log.with_name(f"{log.name}-{number}") for number in range(len(lines))]
    pids = [start(line, file) for line, file in zip(lines, files, strict=True)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    seconds = time.monotonic() - began
    return [Ended(code, file.read_text(encoding="utf-8"), seconds) for code, file in zip(codes, files, strict=True)]


def contents(out: Path) -> dict[str, bytes]:
    """What a run wrote, by path, without the entries that depend on its time."""
    files = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    for name in [name for name in files if name.endswith("training.json")]:
        record = json.loads(files[name])
        files[name] = json.dumps({key: value for key, value in record.items() if key not in _TIMED}).encode()
    return files


def truncated(out: Path) -> list[str]:
    """Files that have their final name but cannot be read to the end."""

    def safetensors(path: Path) -> None:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                file.get_tensor(name)

    readers: dict[str, Callable[[Path], Any]] = {
        ".parquet": parquet.read_table,
        ".safetensors": safetensors,
        ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
        ".html": lambda path: path.read_text(encoding="utf-8").rindex("</html>"),
        ".pt": training.run.load_resume,
    }
    unreadable = []
    for path in out.rglob("*"):
        if path.is_file() and not any(".tmp" in part for part in path.relative_to(out).parts):
            try:
                readers.get(path.suffix, lambda path: None)(path)
            except Exception as error:
                unreadable.append(f"{path.relative_to(out)} ({type(error).__name__})")
    return unreadable


@contextmanager
def disk(folder: Path, size: int) -> Iterator[Callable[[], None] | None]:
    """A folder on a disk of a given size; yields a function that makes room on it, or None if it cannot be mounted."""
    folder.mkdir(exist_ok=True)
    mounted = os.geteuid() == 0 and not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    ).returncode  # fmt: skip
    if not mounted:
        yield None
        return
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=1g", str(folder)], check=True) and None
    finally:
        subprocess.run(["umount", str(folder)], check=True)
