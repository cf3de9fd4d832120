"""One run on many processes: which part of the work a process does, and how the parts are combined.

There are two ways. Under `torchrun` the processes form a `torch.distributed` group (gloo on CPUs, NCCL on GPUs). After
each pass the sums are reduced, and all processes continue with the total. With `--shard i/n` (for the job arrays of a
scheduler, without a group) a process does its part and leaves it in the run's directory; `interp merge` combines the
parts and does the rest.

Batches are formed before they are divided, and part i takes batches i, i + n, …, so both ways read the same batches.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch

from interp.models.loading.spread import own_gpus

__all__ = ["Part", "Unmerged", "group", "is_shard", "meet", "part", "parts_of", "shard", "writes"]
__dir__ = __all__.copy


class Unmerged(Exception):
    """The rest of a run needs parts of other processes that do not exist yet."""


@dataclass(frozen=True)
class Part:
    """Part `index` of `of` parts, in a `torch.distributed` group or alone."""

    index: int
    of: int
    grouped: bool

    def __contains__(self, number: int) -> bool:
        """Whether a numbered piece of work belongs to this part."""
        return number % self.of == self.index

    def name(self, path: Path) -> Path:
        """Return the file of this part, next to that of the whole."""
        return path.with_suffix(f".part-{self.index}-of-{self.of}{path.suffix}")


_PATIENCE = timedelta(days=30)  # for the longest work of another process; torchrun takes care of processes that die
_WHOLE = Part(0, 1, grouped=False)
_part: ContextVar[Part] = ContextVar("part", default=_WHOLE)


def part() -> Part:
    """Return the part of the work that this process does inside `group` or `shard`; otherwise the whole."""
    return _part.get()


def is_shard() -> bool:
    """Whether this process does a part given by `shard`."""
    return part() is not _WHOLE and not part().grouped


def writes() -> bool:
    """Whether this process writes results, which in a group is rank 0."""
    return not part().grouped or part().index == 0


@contextmanager
def shard(index: int, n_parts: int) -> Iterator[None]:
    """Do only part `index` of `n_parts` parts of what runs inside.

    Raises `Unmerged` when other parts are needed to go on, and ValueError unless 0 ≤ index < n_parts.
    """
    if not 0 <= index < n_parts:
        raise ValueError(f"found shard {index}/{n_parts}, expected i/n with 0 ≤ i < n")
    token = _part.set(Part(index, n_parts, grouped=False))
    try:
        yield
    finally:
        _part.reset(token)


@contextmanager
def group(device: str | None = None) -> Iterator[None]:
    """Divide what runs inside among the processes of a `torch.distributed` group. This is the existing group, or one of
    the processes that `torchrun` started, which ends with the context. A single process does everything.

    Args:
        device: the device that processes run on. Default: one GPU each, if there are GPUs.

    Raises ValueError if there are more processes than GPUs.
    """
    starts_group = not torch.distributed.is_initialized()
    if starts_group and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if starts_group:
        on_gpus = torch.cuda.is_available() and device != "cpu"
        if on_gpus:
            torch.cuda.set_device(own_gpus()[0])
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", timeout=_PATIENCE)
    here = Part(torch.distributed.get_rank(), torch.distributed.get_world_size(), grouped=True)
    token = _part.set(here)
    try:
        yield
    finally:
        _part.reset(token)
        if starts_group:
            torch.distributed.destroy_process_group()


def meet(missing: Sequence[Path]) -> None:
    """Wait for the group after work that is divided among parts, or raise `Unmerged` if files are missing."""
    here = part()
    if here.grouped:
        torch.distributed.barrier()
    elif missing:
        needed = missing[0].name + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        done = f"part {here.index} of {here.of} has done what it can do alone"
        raise Unmerged(f"{done}; the rest needs {needed} from the other parts")


def parts_of(path: Path) -> list[Path]:
    """Return the files of all parts of a whole, existing or not. There are as many parts as run here, or else as many
    as the division that has left most files. The list is empty if the whole is not divided."""
    n_parts = part().of
    if n_parts == 1:
        pattern = re.compile(re.escape(path.stem) + r"\.part-(\d+)-of-(\d+)" + re.escape(path.suffix))
        totals: Counter[int] = Counter()
        for file in path.parent.glob("*"):
            if match := pattern.fullmatch(file.name):
                totals[int(match[2])] += 1
        n_parts = max(totals, key=lambda total: (totals[total] == total, totals[total]), default=0)
    return [Part(index, n_parts, grouped=False).name(path) for index in range(n_parts)]
