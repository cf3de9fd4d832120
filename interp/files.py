"""Files and folders that are whole or not there, whatever happens to the process, the disk or the machine.

What is written goes to a temporary name in the same folder, to the disk (fsync), and then by one rename to its place.
"""

import errno
import glob
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

_TOKEN = secrets.token_hex(4)  # in containers, processes of the same number follow one another
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What `OSError.errno` is where there is no room to write."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that takes the place of the file `path` at the end, whole and on disk, or not at all.

    Raises OSError with `path` and a number of `FULL` where there is no room for it.
    """
    temporary = _temporary(path)
    with writing(path):
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing_directory(target: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `target` at the end, whole and on disk, or is gone after an exception.

    Raises OSError as `replacing` does.
    """
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(target)
        try:
            temporary.mkdir()
            yield temporary
            for path in (*temporary.rglob("*"), temporary):
                _sync(path)
            if target.exists():
                old = temporary.with_suffix(".old.tmp")
                os.replace(target, old)
                os.replace(temporary, target)
                _delete(old)
            else:
                os.replace(temporary, target)
            _sync(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a folder in one step: whatever befalls the process, nothing of it is left under its name."""
    temporary = _temporary(folder)
    os.replace(folder, temporary)
    shutil.rmtree(temporary)


def _delete(path: Path) -> None:
    """A folder with all that is in it, a file, or a link and not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def tidy(path: Path) -> None:
    """Remove what killed processes of this machine left of `path`, under temporary names."""
    mark = _mark(path)
    for left in path.parent.glob(f"{glob.escape(mark)}*.tmp"):
        pid, token = left.name.removeprefix(mark).split(".")[:2]
        gone = not _lives(int(pid)) or (int(pid) == os.getpid() and token != _TOKEN) if pid.isdecimal() else False
        if gone:
            with suppress(OSError):  # another process may be at it too
                _delete(left)


def checksum(content: bytes) -> str:
    """XXH3, 128 bits."""
    return xxhash.xxh3_128(content).hexdigest()


def _temporary(path: Path) -> Path:
    """A name beside `path` that no other process takes. What killed processes of this machine left of it is removed."""
    tidy(path)
    return path.with_name(f"{_mark(path)}{os.getpid()}.{_TOKEN}.tmp")


def _mark(path: Path) -> str:
    return f".{path.name}.{platform.node()}-"


def _lives(pid: int) -> bool:
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _sync(path: Path) -> None:
    """Have the disk hold what was written to a file, or what a folder lists."""
    if path.is_dir():
        if os.name != "posix":
            return
        descriptor = os.open(path, os.O_RDONLY)
    else:
        descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise OSError with the path that was being written where the room ran out; not all libraries do."""
    try:
        yield
    except Exception as error:
        said = re.search(r"\(os error (\d+)\)|\bcode: (\d+)", str(error))
        number = error.errno if isinstance(error, OSError) else said and int(said[1] or said[2])
        if number in FULL:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
