"""Weights that are mapped from their files, and mapping them again, which releases what was read from them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

__all__ = ["MappedWeights"]

_COMPARED = 1024


class MappedWeights:
    """The parameters of a transformers model that lie in its safetensors files.

    A tensor of a mapped file is read when it is used. What has been read counts as memory of the process until all
    tensors of that file are gone. Parameters that were converted or put together when the model was read lie elsewhere.
    """

    def __init__(self, model: Any, files: Sequence[Path]) -> None:
        parameters = {name: parameter.data for name, parameter in model.named_parameters()}
        self._keys: dict[Path, dict[str, str]] = {}
        for path in files:
            with safe_open(path, "pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            self._keys[path] = _keys(parameters, tensors)

    def again(self, settled: tuple[str, ...] = ()) -> dict[str, Tensor]:
        """Return the same weights from a new mapping of the files, by the name of the parameter, without those whose
        names begin with one of `settled`."""
        weights: dict[str, Tensor] = {}
        for path, keys in self._keys.items():
            with safe_open(path, "pt") as file:
                for name, key in keys.items():
                    if not name.startswith(settled):
                        weights[name] = file.get_tensor(key)
        return weights


def _keys(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The keys under which a file has the parameters that are mapped from it.

    Two mappings of a file are a constant distance apart, by which each parameter is found whatever the file calls it.
    """
    distances = Counter(
        parameters[name].data_ptr() - tensors[key].data_ptr() for name, key in _namesakes(parameters, tensors)
    )
    if not distances:
        return {}
    distance, _ = distances.most_common(1)[0]
    places = {_place(tensor, tensor.data_ptr()): key for key, tensor in tensors.items()}
    keys: dict[str, str] = {}
    for name, parameter in parameters.items():
        key = places.get(_place(parameter, parameter.data_ptr() - distance))
        if key is not None:
            keys[name] = key
    alike = (torch.equal(_head(parameters[name]), _head(tensors[key])) for name, key in keys.items())
    return keys if all(alike) else {}


def _head(tensor: Tensor) -> Tensor:
    """The first numbers of a tensor, enough to tell it from others."""
    return tensor.flatten()[:_COMPARED]


def _place(tensor: Tensor, start: int) -> tuple[Any, ...]:
    return start, tensor.dtype, tensor.shape, tensor.stride()


def _namesakes(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Parameters and tensors of a file with the same name, apart from what one of them has in front of it."""
    for name in parameters:
        yield from ((name, key) for key in _suffixes(name) if key in tensors)
    for key in tensors:
        yield from ((name, key) for name in _suffixes(key) if name in parameters)


def _suffixes(name: str) -> list[str]:
    """A dotted name without none, one, two … of its first parts."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]
