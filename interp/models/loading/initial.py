"""A model as it might have been before training."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from interp.models.identity import Origin, origin, set_origin
from interp.models.loading.streaming import blocks_of
from interp.models.sites import Model, check_model, view
from interp.support.checks import check_seed
from interp.support.memory import available, give_back

__all__ = ["untrained"]
__dir__ = __all__.copy

_FIRST_SD = 0.02
_DRAWN_AT_ONCE = 2**24
_TOGETHER = 16  # torch draws this many numbers per step; parts of whole steps are as in a matrix drawn at once
_CONTIGUOUS = torch.contiguous_format


def untrained(model: Model, *, seed: int = 0) -> Model:
    """Make a copy of a model as it might have been before training. It is a control for what the architecture alone can
    do.

    Matrices are drawn from N(0, .02²), like the initial weights of GPT-2 and BERT. Biases are 0 and the scales of norms
    are 1. The same seed gives different matrices to a hooked model and to a bridge, because their parameters have
    different names. If memory has no room for a second model, the matrices of a block are drawn whenever it runs and
    then forgotten. Activations are the same, but drawing takes time, and analyses that read weights refuse such a
    model.

    Raises TypeError if `model` is not a model, and ValueError for a seed outside 0 … 2**63 − 1.

    Examples:
        >>> import interp
        >>> fresh = untrained(interp.load("tiny-gpt2"))
        >>> bool(fresh.ln_final.b.any())
        False
    """
    check_model(model)
    generator = torch.Generator().manual_seed(check_seed(seed))
    size = sum(parameter.nbytes for parameter in model.parameters())
    shapes = {}  # of the matrices that no second model has room for
    if size > available(str(model.W_U.device)):
        for block in _blocks(model):
            for matrix in block.parameters():
                if matrix.ndim > 1:
                    shapes[id(matrix)] = _shape_of(matrix)
    fresh = view(model).copied(shapes)
    fresh.reset_hooks()
    draws: dict[torch.nn.Parameter, Tensor] = {}
    with torch.no_grad():
        for name, parameter in sorted(fresh.named_parameters()):
            state = generator.get_state()
            drawn = _drawn(parameter.shape, generator)
            first = view(fresh).first_value(name)
            is_held = parameter.is_contiguous() or 0 not in parameter.stride()
            if first != "drawn":
                value = torch.ones((), dtype=parameter.dtype, device=parameter.device) * (first == "ones")
                parameter.data = parameter.data if is_held else torch.empty_like(parameter, memory_format=_CONTIGUOUS)
                parameter.copy_(value)
            elif is_held:
                _fill(parameter, drawn)
            else:
                draws[parameter] = state
                number = next(drawn).flatten()[:1].to(parameter)
                parameter.data = number.expand(parameter.shape)  # distinguishes it from others
            for _ in drawn:  # so that the next parameter draws what follows
                pass
            give_back()
    for block in _blocks(fresh) if draws else ():
        _draw_when_run(block, draws)
    set_origin(fresh, Origin(f"{origin(model).name} untrained", None, None))
    return fresh


def _blocks(model: Model) -> Iterable[torch.nn.Module]:
    return blocks_of(view(model).wrapped or model).values()


def _shape_of(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """A parameter of the same shape that repeats one number and takes memory only for that."""
    return torch.nn.Parameter(parameter.data.new_zeros(1).expand(parameter.shape), parameter.requires_grad)


def _drawn(shape: torch.Size, generator: torch.Generator) -> Iterator[Tensor]:
    """The numbers of a matrix, a few rows at a time."""
    rows = max(_TOGETHER, _DRAWN_AT_ONCE // max(1, shape[1:].numel()) // _TOGETHER * _TOGETHER)
    for start in range(0, shape[0], rows):
        size = (min(rows, shape[0] - start), *shape[1:])
        yield _FIRST_SD * torch.randn(size, generator=generator, dtype=torch.float32)


def _fill(parameter: Tensor, drawn: Iterator[Tensor]) -> None:
    start = 0
    for rows in drawn:
        parameter[start : start + len(rows)] = rows
        start += len(rows)


def _draw_when_run(block: torch.nn.Module, draws: Mapping[torch.nn.Parameter, Tensor]) -> None:
    """Make a block draw its matrices from these states of the generator whenever it runs, and forget them afterwards.
    A copy of the block draws its own."""
    states = {name: draws[weight] for name, weight in block.named_parameters() if weight in draws}

    def draw(module: torch.nn.Module, *_: Any) -> None:
        for name, state in states.items():
            generator = torch.Generator()
            generator.set_state(state)
            parameter = module.get_parameter(name)
            parameter.data = torch.empty_like(parameter, memory_format=_CONTIGUOUS)
            _fill(parameter.data, _drawn(parameter.shape, generator))
        give_back()

    def forget(module: torch.nn.Module, *_: Any) -> None:
        for name in states:
            parameter = module.get_parameter(name)
            parameter.data = parameter.data.flatten()[:1].clone().expand(parameter.shape)

    block.register_forward_pre_hook(draw)
    block.register_forward_hook(forget, always_call=True)
