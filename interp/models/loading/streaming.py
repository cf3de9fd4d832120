"""Forward passes of a transformers model in one type, with weights converted one block at a time.

The weights are in their files, or in memory in another type. Never more than one block is held in the type of the pass.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from interp.models.embeddings import Embeddings

__all__ = ["Watch", "Workspace", "blocks_of", "modules_of", "sampled", "streamed", "wide_type"]
__dir__ = __all__.copy

_NUMBER = re.compile(r"layer_?(id|idx|index|number)$")

Watch: TypeAlias = Callable[[str, tuple[Any, ...], dict[str, Any], Tensor], None]
"""Called after each block while it is converted, with its name, its arguments and the hidden states it returns."""


def blocks_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the blocks of a transformers model, by name: the members of its outermost lists of modules."""
    blocks: dict[str, torch.nn.Module] = {}
    for name, module in model.named_modules():
        nested = name in blocks or name.startswith(tuple(f"{block}." for block in blocks))
        if isinstance(module, torch.nn.ModuleList) and not nested:
            for number, block in enumerate(module):
                blocks[f"{name}.{number}"] = block
    return blocks


def modules_of(blocks: Mapping[str, torch.nn.Module]) -> set[torch.nn.Module]:
    """Return all modules of some blocks."""
    modules: set[torch.nn.Module] = set()
    for block in blocks.values():
        modules.update(block.modules())
    return modules


def wide_type(model: Any) -> torch.dtype:
    """Return the type in which a transformers model is compared: float32, or that of its weights if it is wider."""
    return torch.promote_types(model.dtype, torch.float32)


class Workspace:
    """Memory for parameters in one type, the same for one block after another."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._memory = torch.empty(0, dtype=dtype)

    @contextmanager
    def converted(self, parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
        """A context in which parameters are in that type. Afterwards they are as before."""
        before = [(parameter, parameter.data) for parameter in parameters]
        converted = [(parameter, data) for parameter, data in before if data.dtype != self._memory.dtype]
        sizes = [data.numel() for _, data in converted]
        if len(self._memory) < sum(sizes):
            self._memory = self._memory.new_empty(sum(sizes), device=converted[0][1].device)
        try:
            for (parameter, data), part in zip(converted, self._memory[: sum(sizes)].split(sizes), strict=True):
                parameter.data = part.view(data.shape).copy_(data)
            yield
        finally:
            for parameter, data in before:
                parameter.data = data


@contextmanager
def streamed(model: Any, dtype: torch.dtype, done: Callable[[str], None], watch: Watch | None = None) -> Iterator[None]:
    """A context in which the model runs in a type. Each block is converted while it runs and is watched; `done` is
    called with its name when it has been converted back."""
    space = Workspace(dtype)

    def run(name: str, block: Any, forward: Any, *arguments: Any, **named: Any) -> Any:
        with space.converted(block.parameters()):
            output = forward(*arguments, **named)
            if watch is not None:
                watch(name, arguments, named, _hidden(output))
        done(name)
        return output

    with _converted(model, dtype, run):
        yield


@contextmanager
def sampled(model: Any, dtype: torch.dtype, watch: Watch) -> Iterator[None]:
    """A context in which the model runs in a type, but only its first block of each kind, which is watched. The other
    blocks return what they are given.

    Blocks are of one kind if their modules have the same classes, settings and buffers, and if they are given the same
    mask and the same rotation.
    """
    space = Workspace(dtype)
    kinds: list[tuple[list[Any], list[Tensor]]] = []
    outputs: list[Any] = []

    def run(name: str, block: Any, forward: Any, *arguments: Any, **named: Any) -> Any:
        x = arguments[0] if arguments else named["hidden_states"]
        leaves = tree_leaves((arguments[1:], named))
        around = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf is not x]
        settings = _settings(block)
        tensors = [*block.buffers(), *around]
        for settings_of_kind, tensors_of_kind in kinds:
            if settings == settings_of_kind and _equal(tensors, tensors_of_kind):
                return (x, *outputs[-1][1:]) if isinstance(outputs[-1], tuple) else x
        kinds.append((settings, tensors))
        with space.converted(block.parameters()):
            outputs.append(forward(*arguments, **named))
            watch(name, arguments, named, _hidden(outputs[-1]))
        return outputs[-1]

    with _converted(model, dtype, run):
        yield


@contextmanager
def _converted(model: Any, dtype: torch.dtype, run: Callable[..., Any]) -> Iterator[None]:
    """A context in which everything outside of the blocks runs in a type, and each block through a function of its
    name, the block, its own forward function and what it is given."""
    blocks = blocks_of(model)
    head = model.get_output_embeddings()
    inside = modules_of(blocks)
    outside = [module for module in model.modules() if module not in inside and module is not head]
    wide: dict[int, ExitStack] = {}

    def enter(module: torch.nn.Module, *_: Any) -> None:
        wide[id(module)] = ExitStack()
        wide[id(module)].enter_context(Workspace(dtype).converted(module.parameters(recurse=False)))

    def leave(module: torch.nn.Module, *_: Any) -> None:
        wide.pop(id(module)).close()

    instead = {block: partial(run, name, block, block.forward) for name, block in blocks.items()}
    if head is not None:
        instead[head] = partial(_logits, head)
    with ExitStack() as changes:
        for module in outside:
            changes.callback(module.register_forward_pre_hook(enter).remove)
            changes.callback(module.register_forward_hook(leave).remove)
        for module, forward in instead.items():
            module.forward = forward
            changes.callback(delattr, module, "forward")
        try:
            yield
        finally:
            for stack in wide.values():
                stack.close()


def _hidden(output: Any) -> Tensor:
    """The hidden states among what a block returns."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


def _settings(block: torch.nn.Module) -> list[Any]:
    """The classes and the settings of all modules of a block, without its number."""
    settings = []
    for part in block.modules():
        for name, value in vars(part).items():
            if isinstance(value, bool | int | float | str) and not _NUMBER.search(name):
                settings.append((type(part), name, value))
    return settings


def _equal(first: list[Tensor], second: list[Tensor]) -> bool:
    if len(first) != len(second):
        return False
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _logits(head: Any, hidden: Tensor) -> Tensor:
    """The output of an unembedding whose matrix is converted one block of types at a time."""
    logits = Embeddings(head.weight.mT).dot(hidden.flatten(0, -2)).unflatten(0, hidden.shape[:-1])
    return logits if head.bias is None else logits + head.bias.to(logits)
