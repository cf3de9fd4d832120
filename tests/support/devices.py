"""Several devices on a machine that has one: tensors carry a device name, and no operation may mix two devices."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

_FACTORIES = (
    torch.zeros, torch.ones, torch.empty, torch.full, torch.arange, torch.tensor, torch.as_tensor, torch.rand,
    torch.randn, torch.eye, torch.linspace, torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like,
    torch.triu_indices, torch.tril_indices, torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full,
    torch.Tensor.new_empty, torch.Tensor.new_tensor,
)  # fmt: skip
_CPU, _META = torch.device("cpu"), torch.device("meta")
_MAY_MIX = ("copy_", "index", "index_put_", "index_put")
_where: dict[int, tuple[torch.device, Any]] = {}
"""The devices of storages, which are kept alive so that no other storage is mistaken for them."""
_within: list[torch.device] = [_CPU]
"""What a function of several operations creates is on the device of its inputs."""


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def device_of(tensor: torch.Tensor) -> torch.device:
    return _META if tensor.is_meta else _where.get(_key(tensor), (_CPU,))[0]


def _put(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device in (_CPU, _META):
        _where.pop(_key(tensor), None)
    else:
        _where[_key(tensor)] = device, tensor.untyped_storage()
    return tensor


class _Checked(TorchDispatchMode):
    """Every operation runs on the device of its inputs, and refuses inputs on two devices, as a GPU would."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_flatten((args, kwargs or {}))[0] if isinstance(one, torch.Tensor)]
        devices = {device_of(one) for one in given if device_of(one) != _META and (one.ndim or device_of(one) != _CPU)}
        name = func.__name__.split(".")[0]
        if len(devices) > 1 and name not in _MAY_MIX:
            raise RuntimeError(f"{name}: all tensors must be on the same device, found {sorted(map(str, devices))}")
        here = device_of(given[0]) if name in _MAY_MIX else next(iter(devices), _within[-1] if not given else _CPU)
        before = {_key(one) for one in given}
        output = func(*args, **(kwargs or {}))
        for one in tree_flatten(output)[0]:
            if isinstance(one, torch.Tensor) and _key(one) not in before:
                _put(one, here)
        return output


class _Named(TorchFunctionMode):
    """Devices are requested and reported by name, while the numbers stay where they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == torch.Tensor.device.__get__:
            return device_of(args[0])
        if func == torch.Tensor.is_cuda.__get__:
            return device_of(args[0]).type == "cuda"
        if func is torch.Tensor.numpy and device_of(args[0]) != _CPU:
            raise TypeError(f"can't convert {device_of(args[0])} device type tensor to numpy; use Tensor.cpu() first")
        if func is torch.Tensor.cpu:
            func, args = torch.Tensor.to, (args[0], "cpu")
        if func is torch.Tensor.to:
            return self._moved(args[0], *args[1:], **kwargs)
        if func in _FACTORIES and kwargs.get("device") is not None and torch.device(kwargs["device"]) != _META:
            device = torch.device(kwargs.pop("device"))
            made = func(*args, **kwargs)
            return _put(made.clone() if func is torch.as_tensor else made, device)
        if func is torch.Tensor.new_tensor:
            return _put(func(*args, **kwargs), device_of(args[0]))
        flat = tree_flatten((args, kwargs))[0]
        _within.append(next((device_of(one) for one in flat if isinstance(one, torch.Tensor)), _CPU))
        try:
            return func(*args, **kwargs)
        finally:
            _within.pop()

    def _moved(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        wanted, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
        for one in args:
            if isinstance(one, torch.Tensor):
                wanted, dtype = device_of(one), one.dtype
            elif isinstance(one, torch.dtype):
                dtype = one
            elif isinstance(one, str | torch.device) or type(one) is int:
                wanted = one
        device = torch.device(f"cuda:{wanted}" if type(wanted) is int else wanted or device_of(tensor))
        if device == _META:
            return tensor.to(device, dtype)
        same = device_of(tensor) == device
        converted = tensor if dtype is None else tensor.to(dtype)
        if same:
            return converted.clone() if kwargs.get("copy") else converted
        if _key(converted) == _key(tensor):
            converted = converted.clone()
        return _put(converted, device)


@contextmanager
def several_devices() -> Iterator[None]:
    """A context in which `cuda:0`, `cuda:1`, … are devices."""
    _where.clear()
    try:
        with _Checked(), _Named():
            yield
    finally:
        _where.clear()


__all__ = ["device_of", "several_devices"]
