"""How much memory there is: of the machine, of the container the process runs in, or of a GPU."""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

__all__ = ["GIB", "DoesNotFit", "available", "give_back", "peak", "release", "shown", "total"]
__dir__ = __all__.copy

GIB = 2**30
_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_STATUS = Path("/proc/self/status")
_LIMITS = {
    "memory.max": ("memory.current", "inactive_file"),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
}
"""The files with the limit and usage of a control group, and the entry for what it can give up (versions 2 and 1)."""
_NOT_NEEDED = 4  # MADV_DONTNEED of Linux


class DoesNotFit(ValueError):
    """More memory is needed than there is."""


def available(device: str = "cpu") -> int:
    """Return the number of bytes that a process can still take without swapping.

    This is what psutil says, or on Linux what is left of the limits of the process's control groups (a container, a
    cluster job) if that is less. On a GPU, `torch.cuda.mem_get_info` tells.

    Examples:
        >>> 0 < available() <= total()
        True
    """
    if device.startswith("cuda"):
        return _of_gpu(device)[0]
    free = psutil.virtual_memory().available
    for limit, used in _groups():
        free = min(free, limit - used)
    return max(0, free)


def total(device: str = "cpu") -> int:
    """Return the bytes of memory of the machine, or the limit of the process's control groups if that is less; for a
    GPU, its own memory. It does not depend on what else is running.

    Examples:
        >>> total() > 2**28
        True
    """
    if device.startswith("cuda"):
        return _of_gpu(device)[1]
    size = psutil.virtual_memory().total
    for limit, _ in _groups():
        size = min(size, limit)
    return size


def peak() -> int:
    """Return the largest number of bytes of memory that this process has used so far. On systems other than Linux it
    may include memory of the process that started this one.

    Examples:
        >>> peak() > 2**20
        True
    """
    if _STATUS.is_file():
        for line in _STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def give_back() -> None:
    """Return freed memory to the system. The C library of Linux (glibc) would otherwise keep it for later: tens of MiB,
    or up to a fifth of a model's weights after it has been loaded.

    Examples:
        >>> give_back()
    """
    library = _c_library()
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def release(start: int, end: int) -> None:
    """Forget what was read from a file that is mapped between these addresses, on Linux. It is read again when it is
    used; what was written there is lost."""
    if (library := _c_library()) is not None:
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _NOT_NEEDED)


def shown(size: float | int) -> str:
    """Write a number of bytes in readable form.

    Examples:
        >>> shown(3.25 * 2**30), shown(5 * 2**20), shown(300 * 2**10)
        ('3.2 GiB', '5 MiB', '300 KiB')
    """
    for unit, n_bytes, digits in (("GiB", GIB, 1), ("MiB", 2**20, 0)):
        if size >= n_bytes:
            return f"{size / n_bytes:,.{digits}f} {unit}"
    return f"{size / 2**10:,.0f} KiB"


def _c_library() -> Any:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def _of_gpu(device: str) -> tuple[int, int]:
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return free, total


def _groups() -> Iterator[tuple[int, int]]:
    """The limit of each control group of the process, and the memory in use that it cannot give up."""
    if not _OWN_GROUPS.is_file():
        return
    for line in _OWN_GROUPS.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = _GROUPS / controllers
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                yield from _limit(folder)


def _limit(folder: Path) -> Iterator[tuple[int, int]]:
    for name, (used, reclaimable) in _LIMITS.items():
        if not (folder / name).is_file():
            continue
        limit = (folder / name).read_text(encoding="utf-8").strip()
        if limit.isdecimal():
            gives_up = 0
            for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines():
                key, size = line.split()
                if key == reclaimable:
                    gives_up = int(size)
            yield int(limit), int((folder / used).read_text(encoding="utf-8")) - gives_up
