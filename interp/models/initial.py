"""A model as it might have been before training."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from interp.checks import check_seed
from interp.memory import available
from interp.models.identity import Origin, origin, set_origin
from interp.models.sites import Model, check_model, view
from interp.models.streaming import blocks_of

__all__ = ["untrained"]

_FIRST_SD = 0.02


def untrained(model: Model, *, seed: int = 0) -> Model:
    """A copy of a model as it might have been before training: the control for what the architecture alone can do.

    Matrices are drawn from N(0, .02²), as GPT-2's and BERT's first weights are; biases are 0, the scales of norms 1.
    One seed gives other matrices to a hooked model than to a bridge, whose parameters have other names. Where memory
    has no room for a second model, the matrices of a block are drawn whenever it runs and forgotten after it: the same
    numbers, for the time that drawing takes.

    Raises TypeError for what is no model, ValueError for a seed outside 0 … 2**63 − 1.

    Examples:
        >>> import interp
        >>> fresh = untrained(interp.load("tiny-gpt2"))
        >>> bool(fresh.ln_final.b.any())
        False
    """
    check_model(model)
    generator = torch.Generator().manual_seed(check_seed(seed))
    size = sum(one.numel() * one.element_size() for one in model.parameters())
    lean = size > available(str(model.W_U.device))
    inside = {one for block in _blocks(model) for one in block.parameters() if lean and one.ndim > 1}
    fresh = view(model).copied({id(one): _shape_of(one) for one in inside})
    fresh.reset_hooks()
    draws: dict[torch.nn.Parameter, Tensor] = {}
    with torch.no_grad():
        for name, parameter in sorted(fresh.named_parameters()):
            state = generator.get_state()
            drawn = _draw(parameter, generator)
            first = view(fresh).first_value(name)
            values = {"ones": torch.ones(()), "zeros": torch.zeros(()), "drawn": drawn}[first]
            if parameter.is_contiguous() or 0 not in parameter.stride():
                parameter.copy_(values)
            elif first == "drawn":
                draws[parameter] = state
                parameter.data = drawn.flatten()[:1].to(parameter).expand(parameter.shape)  # tells it from others
            else:
                parameter.data = values.to(parameter).expand(parameter.shape).clone()
    for block in _blocks(fresh) if draws else ():
        _draw_when_run(block, draws)
    set_origin(fresh, Origin(f"{origin(model).name} untrained", None, None))
    return fresh


def _blocks(model: Model) -> Iterable[torch.nn.Module]:
    return blocks_of(view(model).wrapped or model).values()


def _shape_of(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """A parameter of the same shape, all of one number, which alone takes memory."""
    return torch.nn.Parameter(parameter.data.new_zeros(1).expand(parameter.shape), parameter.requires_grad)


def _draw(parameter: Tensor, generator: torch.Generator) -> Tensor:
    return _FIRST_SD * torch.randn(parameter.shape, generator=generator)


def _draw_when_run(block: torch.nn.Module, draws: dict[torch.nn.Parameter, Tensor]) -> None:
    """Let the matrices of a block be drawn, from these states of the generator, when it runs, and no longer kept."""
    own = {one: draws[one] for one in block.parameters() if one in draws}
    rest = {one: one.data for one in own}

    def draw(*_: Any) -> None:
        for parameter, state in own.items():
            generator = torch.Generator()
            generator.set_state(state)
            parameter.data = _draw(parameter, generator).to(parameter)

    def forget(*_: Any) -> None:
        for parameter, data in rest.items():
            parameter.data = data

    block.register_forward_pre_hook(draw)
    block.register_forward_hook(forget, always_call=True)
