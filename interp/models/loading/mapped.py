"""Weights that are mapped from their files, and releasing what was read from them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from interp.support import memory

__all__ = ["MappedFiles"]

_MAPPINGS = Path("/proc/self/maps")


class MappedFiles:
    """The mappings of files in which the weights of a transformers model lie.

    A tensor of a mapped file is read when it is used. What has been read counts as memory of the process until it is
    released, or until all tensors of that file are gone. Weights that were converted or put together when the model was
    read lie elsewhere. Systems other than Linux do not say where files are mapped; nothing is released there.
    """

    def __init__(self, model: Any, files: Iterable[Path]) -> None:
        weights = [parameter.data for parameter in model.parameters()]
        names = {str(file.resolve()) for file in files}
        self._mappings: list[tuple[int, int]] = []
        self._weights = []  # as long as they exist, nothing else is mapped there
        for line in _MAPPINGS.read_text(encoding="utf-8").splitlines() if _MAPPINGS.is_file() else ():
            addresses, *_, name = line.split(maxsplit=5)
            if name not in names:
                continue
            first, _, last = addresses.partition("-")
            start = int(first, 16)
            end = int(last, 16)
            inside = [weight for weight in weights if start <= weight.data_ptr() < end]
            if inside:
                self._mappings.append((start, end))
                self._weights.append(inside[0])

    def release(self) -> None:
        """Forget what was read from the files. It is read again when it is used."""
        for start, end in self._mappings:
            memory.release(start, end)
