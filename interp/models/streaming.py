"""A forward pass of a transformers model in float32 whose weights are widened a block at a time.

The weights lie in their files, or in memory in a narrower type; no more of them than a block is ever held in float32.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["Watch", "Workspace", "blocks_of", "sliced_linear", "streamed"]

Watch: TypeAlias = Callable[[str, tuple[Any, ...], dict[str, Any], Tensor], None]
"""What is called after each block, while it is wide: with its name, its arguments and the hidden states it returns."""

_NUMBERS_PER_SLICE = 2**23


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
        """Parameters in float32 at least, as they were again afterwards."""
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


def sliced_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` with the weight, of many rows, widened to the type of x a slice at a time."""
    rows = max(1, _NUMBERS_PER_SLICE // weight.shape[1])
    out = torch.cat([x @ part.to(x).T for part in weight.split(rows)], -1)
    return out if bias is None else out + bias.to(out)


@contextmanager
def streamed(model: Any, watch: Watch, done: Callable[[str], None]) -> Iterator[None]:
    """Within this context the model runs in float32. Each block is widened while it runs and is watched, and `done` is
    called with its name when it is narrow again."""
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
            head.forward = lambda hidden: sliced_linear(hidden, head.weight, head.bias)
            hooks.callback(delattr, head, "forward")
        try:
            yield
        finally:
            for stack in wide.values():
                stack.close()
