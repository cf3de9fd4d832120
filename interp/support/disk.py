"""Writing files and folders: completely or not at all, and replacing only what interp wrote itself.

Output first goes to a folder next to its destination, which the running process keeps locked. It is then flushed to
disk (fsync) and moved to its destination by a single rename. So it is complete or absent, whatever happens to the
process, the disk or the machine.

A folder is replaced or removed only if everything in it was written by interp; no flag changes that. A result is
recognised by its `result.json`, a page by its generator, and any other folder by the list of contents inside it. Any
other file in such a folder belongs to the user. Imports nothing heavy.
"""

import errno
import json
import os
import re
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import xxhash

__all__ = ["CONTENTS", "FIGURES", "FULL", "GENERATOR", "OPTIONS", "Listed", "check_own", "check_page", "checksum"]
__all__ += ["contents", "in_turn", "occupied", "remove", "replacing", "replacing_directory", "result_names", "tidy"]
__all__ += ["uninterrupted"]
__dir__ = __all__.copy

try:
    import fcntl
except ImportError:  # on Windows, what killed processes left behind stays
    fcntl = None  # type: ignore[assignment]

_OLD = "old"  # the name, inside a new folder, of the folder that it replaces, until that is removed
_TEMPORARY = re.compile(r"\.(.+)\.interp-[0-9a-f]{16}\.tmp")
"""The names of temporary folders, with that of their destination."""
_OCCUPIED = {errno.EEXIST, errno.ENOTEMPTY}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""The values of `OSError.errno` when there is no room to write."""
CONTENTS = ".interp"
"""The list of what interp wrote in a folder, inside it."""
FIGURES = "figures"
"""The folder of a result in which its page keeps the figures."""
OPTIONS = "options.yaml"
"""The file in a result with the options to repeat its command."""
GENERATOR = '<meta name="generator" content="interp">'
"""The tag in the head of every page that interp writes."""
_MARKS = {"index.html": GENERATOR, "index.png": "Software\0interp"}  # of the page and its picture

_MOVE = "move it, or choose another place"
Listed: TypeAlias = Callable[[Path], Collection[str] | None]
"""A function that returns the names of what interp wrote in a folder, or None if interp did not make the folder."""


def contents(folder: Path) -> Collection[str] | None:
    """Return what interp wrote in a folder, according to the list inside it; None if there is no such list."""
    try:
        return [*json.loads((folder / CONTENTS).read_text(encoding="utf-8"))["written by interp"], CONTENTS]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def result_names(folder: Path) -> Collection[str] | None:
    """Return the names of what `Result.save` and the page wrote in a folder; None if it holds no result.

    Raises FileExistsError if the folder of figures holds something else, or if result.json does not list the names.
    """
    try:
        saved = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(saved, dict) or saved.get("analysis") != folder.name or "provenance" not in saved:
        return None
    check_own(folder / FIGURES)
    tables = saved.get("tables", [path.stem for path in folder.glob("*.parquet")])
    arrays = saved.get("arrays", [])
    if not isinstance(tables, list) or not isinstance(arrays, list):
        raise FileExistsError(f"{folder / 'result.json'} is damaged: its tables and arrays are not lists; {_MOVE}")
    tables = [f"{name}.parquet" for name in tables]
    arrays = [f"{name}.safetensors" for name in arrays]
    return ["result.json", OPTIONS, FIGURES, *tables, *arrays]


def check_own(target: Path, listed: Listed = contents) -> None:
    """Check that a folder may be replaced or removed: it does not exist, or interp wrote everything in it.

    Args:
        listed: returns the names of what interp wrote in a folder, or None if interp did not make it.

    Raises FileExistsError naming what is in the way.
    """
    if not os.path.lexists(target):
        return
    kind = "link" if target.is_symlink() else "folder" if target.is_dir() else "file"
    entries = sorted(os.listdir(target)) if kind == "folder" else []  # before the names of what other processes add
    names = listed(target) if kind == "folder" else None
    if names is None:
        raise FileExistsError(f"{target} is a {kind} that interp did not make and would have to replace; {_MOVE}")
    if foreign := [name for name in entries if name not in names and not _TEMPORARY.fullmatch(name)]:
        remainder = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise FileExistsError(f"{target} holds {foreign[0]}{remainder}, which interp did not write; {_MOVE}")


def check_page(directory: Path, name: str = "index.html") -> None:
    """Raise FileExistsError if the page in a directory, or its picture `index.png`, was not written by interp."""
    target = directory / name
    if not os.path.lexists(target):
        return
    if target.is_file() and not target.is_symlink():
        with target.open(encoding="utf-8", errors="replace") as file:
            if _MARKS[name] in file.read(4_096):
                return
    raise FileExistsError(f"{target} was not written by interp, and would be replaced; {_MOVE}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that replaces the file `path` at the end, complete and on disk, or not at all.

    Raises OSError with `path` and one of the numbers in `FULL` if there is no room.
    """
    with _writing(path), _scratch(path) as folder:
        temporary = folder / path.name
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)


@contextmanager
def replacing_directory(target: Path, *, listed: Listed | None = None) -> Iterator[Path]:
    """A temporary folder that replaces `target` at the end, complete and on disk. After an exception it is removed.

    Args:
        listed: see `check_own`. By default the folder gets a list of its contents, and that list is used.

    Raises FileExistsError as `check_own` does, before anything is written, and OSError as `replacing` does.
    """
    check_own(target, listed or contents)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _writing(target), _scratch(target) as folder:
        temporary = folder / target.name
        temporary.mkdir()
        yield temporary
        if listed is None:
            names = sorted(path.name for path in temporary.iterdir())
            (temporary / CONTENTS).write_text(json.dumps({"written by interp": names}), encoding="utf-8")
        for path in (*temporary.rglob("*"), temporary):
            _sync(path)
        with uninterrupted():
            _swap(temporary, target, folder / _OLD)
        _sync(target.parent)


def _swap(new: Path, target: Path, old: Path) -> None:
    """Rename `new` to `target`, and what is there to `old`, also while other processes do the same."""
    while True:
        with suppress(FileNotFoundError):
            os.replace(target, old)
        try:
            os.replace(new, target)
            return
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            shutil.rmtree(old, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a folder in one step, so that no part of it is ever left under its name."""
    with _scratch(folder) as scratch:
        os.replace(folder, scratch / folder.name)


def tidy(path: Path) -> None:
    """Remove what killed processes left next to `path`, unless a running process has it locked.

    A folder that was about to be replaced is restored.
    """
    for leftover in path.parent.glob("*.tmp"):
        if (match := _TEMPORARY.fullmatch(leftover.name)) and match[1] == path.name and not leftover.is_symlink():
            with suppress(OSError), _locked(leftover):  # another process may also be removing it, or holds the lock
                if (leftover / _OLD).exists() and not os.path.lexists(path):  # killed between the two renames
                    os.replace(leftover / _OLD, path)
                shutil.rmtree(leftover)


def checksum(content: bytes) -> str:
    """Hash bytes with XXH3, 128 bits."""
    return xxhash.xxh3_128(content).hexdigest()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until this context ends. Does nothing outside the main thread, which alone receives it."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            before(*waiting[0])


@contextmanager
def in_turn(*folders: Path) -> Iterator[None]:
    """Wait until no other process is inside this context for one of these folders. Does not wait where folders cannot
    be locked."""
    with ExitStack() as locks:
        for folder in sorted({folder.resolve() for folder in folders}):
            with suppress(OSError):
                locks.enter_context(_locked(folder, waits=True))
        yield


@contextmanager
def occupied(folder: Path, does: str, *, shared: bool = False) -> Iterator[None]:
    """Make a folder and keep other processes out of it, or only those that do not share it too.

    Folders that were made for it and are empty at the end are removed. Raises FileExistsError if another process is in
    it; `does` says what that process does.
    """
    absent = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    with ExitStack() as lock:
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                inode = lock.enter_context(_locked(folder, shared=shared))
            except BlockingIOError:
                advice = "wait until it has ended, or choose another directory"
                raise FileExistsError(f"another process {does}; {advice}") from None
            except OSError:  # without locks, nobody is kept out
                break
            with suppress(FileNotFoundError):
                if folder.stat().st_ino == inode:
                    break
            lock.close()  # the process that was in it has just removed it
        try:
            yield
        finally:
            for parent in absent:
                with suppress(OSError):  # it is not empty, or was removed
                    parent.rmdir()


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A folder next to `path` that this process keeps locked during the context and removes afterwards."""
    tidy(path)
    while True:
        folder = path.with_name(f".{path.name}.interp-{secrets.token_hex(8)}.tmp")
        folder.mkdir()
        with ExitStack() as lock:
            with suppress(OSError):  # without locks, no other process removes this folder either
                lock.enter_context(_locked(folder))
            if not folder.exists():  # removed by another process before it was locked
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


@contextmanager
def _locked(folder: Path, *, waits: bool = False, shared: bool = False) -> Iterator[int]:
    """Keep a folder locked during the context, at most until the process ends. Yields its inode.

    Raises BlockingIOError if another process holds the lock, unless this one `waits` for it, and OSError if the system
    has no such locks.
    """
    if fcntl is None:
        raise OSError("no locks on folders here")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if waits else fcntl.LOCK_NB))
        yield os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    """Flush a file, or the listing of a folder, to disk."""
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """If the disk is full, raise OSError with the path that was being written, which not all libraries give."""
    try:
        yield
    except Exception as error:
        code = re.search(r"\(os error (\d+)\)|\bcode: (\d+)", str(error))
        number = error.errno if isinstance(error, OSError) else code and int(code[1] or code[2])
        if number in FULL:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
