"""A model on several devices: which of them each of its parts is on, and how activations get from one to the next."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from interp.models.loading.pretrained import set_buffers
from interp.models.loading.streaming import blocks_of, modules_of
from interp.models.running import find_device
from interp.models.sites import Model, view
from interp.support import memory
from interp.support.checks import check_choice
from interp.support.words import argument

__all__ = ["DeviceMap", "Placement", "check_device_map", "own_gpus", "placed"]
__dir__ = __all__.copy

_WAYS = ("auto", "balanced", "balanced_low_0", "sequential")
DeviceMap: TypeAlias = str | Mapping[str, str | int | torch.device]
"""One of accelerate's ways to divide a model among the GPUs that there are, or the device of each part, by its name in
transformers' model (`{"model.layers.0": 0, …}`)."""


@dataclass(frozen=True)
class Placement:
    """The device of each part of a transformers model, by name; what is inside a part goes with it."""

    parts: Mapping[str, torch.device]

    def of(self, name: str) -> torch.device:
        """Return the device of a parameter or module."""
        inside = [part for part in self.parts if part in ("", name) or name.startswith(f"{part}.")]
        return self.parts[max(inside, key=len)]

    @property
    def devices(self) -> list[torch.device]:
        """Every device once."""
        return list(dict.fromkeys(self.parts.values()))

    def finish(self, model: Model, dtype: torch.dtype, buffers: Mapping[str, torch.Tensor]) -> None:
        """Convert and move the remaining parts of a model, give the transformers model of a bridge its buffers, and let
        blocks and the parts outside of them take inputs from any device."""
        view(model).to(dtype)
        wrapped = view(model).wrapped
        if wrapped is not None:
            stored = {}
            for name, _ in wrapped.named_buffers(remove_duplicate=False):
                if (of_file := _transformers_name(name)) in buffers:
                    stored[name] = buffers[of_file]
            set_buffers(wrapped, stored)
        if len(self.devices) == 1:
            view(model).to(*self.devices)
            return
        for module_name, module in wrapped.named_modules():
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(self.of(_transformers_name(module_name)))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(self.of(_transformers_name(module_name))))
        blocks = blocks_of(wrapped)
        inside = modules_of(blocks)
        entered = dict(blocks)
        for name, submodule in wrapped.named_modules():
            tensors = [*submodule.parameters(), *submodule.buffers()]
            if tensors and inside.isdisjoint(submodule.modules()):
                entered[name] = submodule
        for name, module in entered.items():
            module.register_forward_pre_hook(partial(_bring, self.of(_transformers_name(name))), with_kwargs=True)
        model.cfg.device = str(self.devices[0])
        model.cfg.n_devices = len(self.devices)


def _transformers_name(name: str) -> str:
    """The name in transformers of a module that a bridge has wrapped."""
    return ".".join(part for part in name.split(".") if part != "_original_component")


def _bring(
    device: torch.device, module: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs of a module, moved to its device."""
    from accelerate.utils import send_to_device

    inputs: tuple[tuple[Any, ...], dict[str, Any]] = send_to_device((arguments, named), device)
    return inputs


def check_device_map(device_map: object, device: object, backend: object) -> None:
    """Raise TypeError for anything but a device map. Raise ValueError for an unknown way to spread, and if a device or
    another backend is given too."""
    if isinstance(device_map, str):
        check_choice("device_map", device_map, _WAYS)
    elif not isinstance(device_map, Mapping):
        expected = f"one of {', '.join(_WAYS)}, or the device of each part"
        raise TypeError(f"device_map must be {expected}, found {device_map!r}; a single device is device=")
    if device is not None or backend == "hooked":
        conflict = "device" if device is not None else "backend='hooked'"
        raise ValueError(f"device_map spreads a TransformerBridge over several devices; leave {conflict} out")


def placed(model: Any, where: torch.device | DeviceMap, dtype: torch.dtype) -> Placement:
    """Decide where the parts of a transformers model go in the requested type: all to one device, or as a map says.

    Raises ValueError for an unknown way to spread, a device that does not exist, a part without a device, a part that
    the model does not have, a model that does not fit on the GPUs, and a map with both GPUs and CPU.
    """
    if isinstance(where, torch.device):
        return Placement({"": where})
    device_map: Mapping[str, Any] = _divided(model, where, dtype) if isinstance(where, str) else where
    parts = {name: _existing_device(place) for name, place in device_map.items()}
    modules = {name for name, _ in model.named_modules()}
    if foreign := sorted(set(parts) - modules):
        available = _abbreviated(modules - {""})
        raise ValueError(f"device_map names {foreign[0]!r}, which this model does not have; it has {available}")
    for name, _ in model.named_parameters(remove_duplicate=False):
        if not any(part == "" or name.startswith(f"{part}.") for part in parts):
            raise ValueError(f"device_map has no device for {name}; add one for it, or for a module that contains it")
    placement = Placement(parts)
    for name, block in blocks_of(model).items():
        across = {str(placement.of(f"{name}.{place}")) for place, _ in block.named_parameters()}
        if len(across) > 1:
            raise ValueError(f"device_map divides {name} among {_abbreviated(across)}; keep each block on one device")
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(parameter), name)
        if placement.of(first) != placement.of(name):
            raise ValueError(f"device_map divides {first} and {name}, which are one matrix; give both the same device")
    if len({device.type for device in parts.values()}) > 1:
        devices = _abbreviated(set(map(str, parts.values())))
        raise ValueError(f"device_map must be all GPUs or all CPU, found {devices}")
    return placement


def _existing_device(device: str | int | torch.device) -> torch.device:
    """An existing device, with its number if it is a GPU."""
    if device is None:
        raise ValueError("device_map has None for a device; expected cpu, cuda:0, …")
    usable = find_device(f"cuda:{device}" if isinstance(device, int) else device)
    return torch.device("cpu") if usable.type == "cpu" else torch.device(usable.type, usable.index or 0)


def _divided(model: Any, way: str, dtype: torch.dtype) -> dict[str, Any]:
    from accelerate.utils import get_balanced_memory, infer_auto_device_map

    if not (gpus := own_gpus()):
        return {"": "cpu"}
    options = {"no_split_module_classes": sorted(model._no_split_modules or ()), "dtype": dtype}
    room: dict[int | str, Any] = {number: memory.available(f"cuda:{gpu}") for number, gpu in enumerate(gpus)}
    total = sum(room.values())
    if way != "sequential":
        room["cpu"] = 0
        room = get_balanced_memory(model, room, low_zero=way == "balanced_low_0", **options)
    layout = infer_auto_device_map(model, room, **options)
    if {"cpu", "disk"} & set(layout.values()):
        gpu_names = f"GPU{'s' * (len(gpus) > 1)} {', '.join(map(str, gpus))}"
        lacking = f"the model does not fit in {memory.shown(total)} ({gpu_names})"
        raise memory.DoesNotFit(f"{lacking}; use a smaller dtype, or more GPUs")
    return {name: gpus[number] for name, number in layout.items()}


def own_gpus() -> list[int]:
    """Return the GPUs that this process may spread a model over: all GPUs, or its share if `torchrun` runs several
    processes on a machine.

    Raises ValueError if there are more processes than GPUs.
    """
    gpus = torch.cuda.device_count()
    rank, processes = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if gpus and processes > gpus:
        raise ValueError(f"{processes} processes for {gpus} GPUs; start {gpus}, or add {argument('device', 'cpu')}")
    return list(range(rank * gpus // processes, (rank + 1) * gpus // processes))


def _abbreviated(names: set[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:6]) + (", …" if len(ordered) > 6 else "")
