"""A forward pass of a transformers model in float32, with weights converted one block at a time.

The weights are in their files, or in memory in a narrower type. Never more than one block is held in float32.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from interp.models.embeddings import Embeddings

__all__ = ["Watch", "Workspace", "blocks_of", "streamed"]

Watch: TypeAlias = Callable[[str, tuple[Any, ...], dict[str, Any], Tensor], None]
"""Called after each block while it is in float32, with its name, its arguments and the hidden states it returns."""


def blocks_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The blocks of a transformers model, by name: the members of its outermost lists of modules."""
    found: dict[str, torch.nn.Module] = {}
    for name, module in model.named_modules():
        nested = any(name.startswith(f"{block}.") or name == block for block in found)
        if isinstance(module, torch.nn.ModuleList) and not nested:
            found |= {f"{name}.{number}": block for number, block in enumerate(module)}
    return found


class Workspace:
    """Memory for parameters in float32, the same for one block after another."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    @contextmanager
    def widened(self, parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
        """A context in which parameters are at least in float32. Afterwards they are as before."""
        before = [(one, one.data) for one in parameters]
        narrow = [(one, data) for one, data in before if torch.promote_types(data.dtype, torch.float32) != data.dtype]
        sizes = [data.numel() for _, data in narrow]
        if len(self._memory) < sum(sizes):
            self._memory = torch.empty(sum(sizes))
        try:
            for (one, data), part in zip(narrow, self._memory[: sum(sizes)].split(sizes), strict=True):
                one.data = part.view(data.shape).copy_(data)
            yield
        finally:
            for one, data in before:
                one.data = data


@contextmanager
def streamed(model: Any, watch: Watch, done: Callable[[str], None]) -> Iterator[None]:
    """A context in which the model runs in float32. Each block is converted while it runs and is watched; `done` is
    called with its name when it has been converted back."""
    blocks, head = blocks_of(model), model.get_output_embeddings()
    inside = {id(part) for block in blocks.values() for part in block.modules()}
    outside = [one for one in model.modules() if id(one) not in inside and one is not head]
    of_block = Workspace()
    wide: dict[int, ExitStack] = {}

    def enter(module: torch.nn.Module, *_: Any) -> None:
        is_block = id(module) in inside
        space = of_block if is_block else Workspace()
        wide[id(module)] = ExitStack()
        wide[id(module)].enter_context(space.widened(module.parameters(recurse=is_block)))

    def leave(module: torch.nn.Module, *_: Any) -> None:
        wide.pop(id(module)).close()

    def watched(name: str, block: torch.nn.Module) -> Callable[..., None]:
        def call(_: Any, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            watch(name, arguments, named, output[0] if isinstance(output, tuple) else output)
            leave(block)
            done(name)

        return call

    with ExitStack() as hooks:
        for module in [*blocks.values(), *outside]:
            hooks.callback(module.register_forward_pre_hook(enter).remove)
        for module in outside:
            hooks.callback(module.register_forward_hook(leave).remove)
        for name, block in blocks.items():
            hooks.callback(block.register_forward_hook(watched(name, block), with_kwargs=True).remove)
        if head is not None:
            head.forward = partial(_logits, head)
            hooks.callback(delattr, head, "forward")
        try:
            yield
        finally:
            for stack in wide.values():
                stack.close()


def _logits(head: Any, hidden: Tensor) -> Tensor:
    """The output of an unembedding whose matrix is converted to float32 one block of types at a time."""
    logits = Embeddings(head.weight.mT).dot(hidden.flatten(0, -2)).unflatten(0, hidden.shape[:-1])
    return logits if head.bias is None else logits + head.bias.to(logits)
