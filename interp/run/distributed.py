"""One run on many processes: which of its work is this process's, and how the parts meet.

Two ways. Under `torchrun` the processes are a `torch.distributed` group (gloo on CPUs, NCCL on GPUs): after each pass
the sums are reduced, and all processes go on with the whole. With `--shard i/n` (arrays of a job scheduler, no group)
a process does its part and leaves it in the run's directory; `interp merge` puts the parts together and does the rest.

Batches are formed before they are shared out, and part i takes i, i + n, …: so every way reads the same batches.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch

from interp.models.spread import own_gpus

__all__ = ["Part", "Unmerged", "group", "is_shard", "meet", "part", "parts_of", "shard", "writes"]


class Unmerged(Exception):
    """The rest of a run needs the parts of other processes, which are not there yet."""


@dataclass(frozen=True)
class Part:
    """Part `index` of `of`, in a `torch.distributed` group or alone."""

    index: int
    of: int
    grouped: bool

    def __contains__(self, number: int) -> bool:
        """Whether a numbered piece of work belongs to this part."""
        return number % self.of == self.index

    def name(self, path: Path) -> Path:
        """The file of this part beside that of the whole."""
        return path.with_suffix(f".part-{self.index}-of-{self.of}{path.suffix}")


_PATIENCE = timedelta(days=30)  # for the longest piece of work of another process; torchrun sees to dead ones
_WHOLE = Part(0, 1, grouped=False)
_part: ContextVar[Part] = ContextVar("part", default=_WHOLE)


def part() -> Part:
    """The part that this process does, inside `group` or `shard`; else the whole."""
    return _part.get()


def is_shard() -> bool:
    """Whether this process does what `shard` says."""
    return part() is not _WHOLE and not part().grouped


def writes() -> bool:
    """Whether this process writes results: rank 0 of a group."""
    return not part().grouped or part().index == 0


@contextmanager
def shard(index: int, of: int) -> Iterator[None]:
    """Do part `index` of `of` parts of what runs inside; raises `Unmerged` where that is not enough to go on.

    Raises ValueError unless 0 ≤ index < of.
    """
    if not 0 <= index < of:
        raise ValueError(f"shard {index}/{of}: expected i/n with 0 ≤ i < n")
    token = _part.set(Part(index, of, grouped=False))
    try:
        yield
    finally:
        _part.reset(token)


@contextmanager
def group(device: str | None = None) -> Iterator[None]:
    """Share what runs inside among the processes of a `torch.distributed` group: the one there is, or that of the
    processes that `torchrun` started, which is left again at the end. Alone, do nothing.

    Args:
        device: what the processes run on; by default a GPU each, where there are any.

    Raises ValueError for more processes than GPUs.
    """
    own = not torch.distributed.is_initialized()
    if own and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if own:
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
        if own:
            torch.distributed.destroy_process_group()


def meet(missing: Sequence[Path]) -> None:
    """After a piece of work that parts share: wait for the group, or raise `Unmerged` for what is not there."""
    here = part()
    if here.grouped:
        torch.distributed.barrier()
    elif missing:
        needed = missing[0].name + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        done = f"part {here.index} of {here.of} is done as far as it can be"
        raise Unmerged(f"{done}; the rest needs {needed} of the other parts")


def parts_of(path: Path) -> list[Path]:
    """The files of all parts of a whole, there or not: of as many parts as run here, else as have left most files.

    Empty where the whole is not divided.
    """
    here = part()
    pattern = re.compile(re.escape(path.stem) + r"\.part-(\d+)-of-(\d+)" + re.escape(path.suffix))
    found = [int(match[2]) for file in path.parent.glob("*") if (match := pattern.fullmatch(file.name))]
    of = here.of if here.of > 1 else max(found, key=lambda of: (found.count(of) == of, found.count(of)), default=0)
    return [Part(index, of, grouped=False).name(path) for index in range(of)]
