"""Hook functions of recipes. Each acts at one hook point of the model it was made for, and several of them at one hook
point give the same result in any order."""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from interp.models.running import hooks_here
from interp.models.sites import Model, Recipe

__all__ = ["Edit", "Reading", "Replaced", "joint_edit", "jointly", "recipe_of"]


class Replaced(NamedTuple):
    """Dimensions that are replaced by constants m_j: `x_j − m_j` is removed, from the dimensions themselves or `along`
    other directions."""

    dims: list[int]
    fill: Float[Tensor, " dim"]
    along: Float[Tensor, "dim d_model"] | None = None

    def excess(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos dim"]:
        return x[..., self.dims] - self.fill.to(x)

    def __call__(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos d_model"]:
        if self.along is not None:
            return x - self.excess(x) @ self.along.to(x)
        filled = x.clone()
        filled[..., self.dims] = self.fill.to(x)
        return filled


class Edit:
    """A hook function that edits the activation at one hook point of one model.

    Args:
        function: (activation, hook point) → the edited activation, or None if it stays as it is.
        zeroes: whether the edit sets part of the activation to zero. That part remains zero, whatever other edits at
            this hook point add before or after.
        parts: the modules whose parameters the function reads.

    Raises ValueError when it is called at a hook point of another model (also of a copy), or after the modules have
    been replaced, as an adapter does.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        function: Callable[..., Any],
        *,
        zeroes: bool = False,
        parts: Iterable[torch.nn.Module] = (),
    ) -> None:
        self.point = model.hook_dict[name]
        self.name = name
        self.function = function
        self.zeroes = zeroes
        self.parts = list(parts)
        self.replaces: Replaced | None = None
        """Dimensions that are replaced in what is projected to this hook point."""
        self.moves: Callable[[Tensor], Tensor] | None = None
        """How activations are moved among positions."""
        self._classes = self._classes_of_parts()

    def __call__(self, activation: Tensor, hook: Any) -> Tensor | None:
        if getattr(hook, "_target", hook) is not self.point:  # a bridge passes the hook point under another name
            problem = f"this recipe belongs to another model, or to the one this was copied from (at {self.name})"
            raise ValueError(f"{problem}; make it for this model")
        if self._classes_of_parts() != self._classes:
            problem = (
                f"the modules that this recipe reads at {self.name} were replaced after it was made (by an adapter?)"
            )
            raise ValueError(f"{problem}; make it again, and merge an adapter first if it is refused")
        return self.edit(activation)

    def edit(self, activation: Tensor) -> Tensor | None:
        """Return the edited activation, in which what earlier edits have set to zero is still zero."""
        edited = self.function(activation, self.point)
        if edited is None or self.zeroes:
            return edited
        for earlier in self.earlier():
            edited = earlier.function(edited, self.point) if earlier.zeroes else edited
        return edited

    def earlier(self) -> list["Edit"]:
        """Return the edits before this one at its hook point."""
        edits = _edits_at(self.point)
        return edits[: edits.index(self)] if self in edits else []

    def later(self) -> list["Edit"]:
        """Return the edits after this one at its hook point."""
        edits = _edits_at(self.point)
        return edits[edits.index(self) + 1 :] if self in edits else []

    def _classes_of_parts(self) -> list[type]:
        return [type(module) for part in self.parts for module in part.modules()]

    def __deepcopy__(self, memo: Any) -> "Edit":
        return self  # like any function, so that a copy of the model does not get a recipe of its own

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.name}>"


class Reading(Edit):
    """A hook function that reads an activation as it is after all edits at its hook point, also those that come later,
    and leaves it as it is."""

    def edit(self, activation: Tensor) -> None:
        for later in self.later():
            edited = None if isinstance(later, Reading) else later.edit(activation)
            activation = activation if edited is None else edited
        self.function(activation, self.point)


def _edits_at(point: Any) -> list[Edit]:
    return [function for function in hooks_here(point) if isinstance(function, Edit)]


def jointly(names: Sequence[str], function: Callable[..., Any]) -> Recipe:
    """Call a function with the activations at these hook points, in this order, when the last of them fires. Its return
    value replaces the last activation; None leaves it unchanged. Threads do not see each other's activations.

    Raises RuntimeError if the last hook point fires without the others, or if the same recipe is active twice.
    """
    scratch = threading.local()

    def keep(activation: Tensor, hook: Any, name: str) -> Any:
        latest = vars(scratch)
        latest[name] = activation
        if name != names[-1]:
            return None
        if missing := [absent for absent in names if absent not in latest]:
            reason = "the forward pass began after it, or the same recipe is active twice"
            raise RuntimeError(f"{name} fired without {', '.join(missing)} before it: {reason}")
        return function(*map(latest.pop, names))

    return [(name, partial(keep, name=name)) for name in names]


def joint_edit(
    model: Model, names: Sequence[str], function: Callable[..., Any], *, parts: Iterable[torch.nn.Module] = ()
) -> list[Edit]:
    """Apply `jointly` to one model: a `Reading` at each hook point but the last, where the `Edit` is."""
    *reads, (_, edit) = jointly(names, function)
    readings = [Reading(model, name, keep) for name, (_, keep) in zip(names[:-1], reads, strict=True)]
    return [*readings, Edit(model, names[-1], edit, parts=parts)]


def recipe_of(edits: Iterable[Edit]) -> Recipe:
    return [(edit.name, edit) for edit in edits]
