"""Running a model that other threads may be running too.

Hooks belong to a model, not to a thread: a hook set by one thread fires on the batches of all threads. So every forward
pass of interp is inside `running`, which lets interp's threads take turns, and whose hooks act only in its own thread.
"""

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch

from interp.models.sites import Model, head_sites, view

__all__ = ["Hooks", "HooksOfOthers", "active_hooks", "find_device", "firing", "head_is_hooked", "hooks_here"]
__all__ += ["hooks_of_others", "resolved", "running"]
__dir__ = __all__.copy

Hooks: TypeAlias = Sequence[tuple[str | Callable[..., Any], Callable[..., Any]]]
"""A `Recipe`: hook points by name, or by a function that says which names are meant, as in TransformerLens."""
HooksOfOthers: TypeAlias = frozenset[tuple[str, int]]

_OF_EDITED_NORMS = "A forward hook edited hook_scale/hook_normalized"  # TransformerBridge warns of this each time
_levels = itertools.count(1_000_000)  # levels of hook contexts; those of TransformerLens itself stay small
_locks: WeakKeyDictionary[Model, threading.RLock] = WeakKeyDictionary()
_making_a_lock = threading.Lock()


@contextmanager
def running(model: Model, recipe: Hooks = (), *, expected: HooksOfOthers | None = None) -> Iterator[set[str]]:
    """Exclusive use of a model, with the hooks of a recipe, for as long as the context lasts.

    Other threads that run the same model through interp wait. A thread that runs it without interp is not affected by
    these hooks. No hook remains after an exception. The context yields the names of the hooks that have fired so far.
    If a model is on several devices, hooks see every activation on the device of the unembedding.

    Args:
        recipe: `[(hook name, hook function), …]`, added after existing hooks.
        expected: the value of `hooks_of_others` at the start of a computation with several passes.

    Raises:
        ValueError: the model does not have such a hook point.
        RuntimeError: the model is a bridge in training mode, with dropout; `torch.autocast` is on, whose precision
            provenance would not show; or other hooks were set or removed in the meantime.
    """
    thread = threading.get_ident()
    level = next(_levels)
    home = model.W_U.device
    fired: set[str] = set()

    def own(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(activation: Any, hook: Any) -> Any:
            if threading.get_ident() != thread:
                return None
            fired.add(name)
            return _on_home_device(home, function, activation, hook)

        hooked.of_thread = (thread, function)  # type: ignore[attr-defined]
        return hooked

    with _lock_of(model):
        wrapped = view(model).wrapped
        for module in () if wrapped is None else wrapped.modules():
            if isinstance(module, torch.nn.Dropout) and module.p and module.training:
                problem = "this model is in training mode, so dropout would give different numbers each time"
                raise RuntimeError(f"{problem}; call model.eval()")
        if torch.is_autocast_enabled(model.W_U.device.type):
            raise RuntimeError("torch.autocast is on, which no provenance shows; load the model in that dtype instead")
        before = hooks_of_others(model)
        _check_unchanged(before, before if expected is None else expected)
        points = model.hook_dict
        hooks = resolved(model, recipe)
        try:
            for name, function in hooks:
                points[name].add_hook(own(name, function), level=level)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", _OF_EDITED_NORMS)
                yield fired
            _check_unchanged(hooks_of_others(model, level), before)
        finally:
            for name, _ in hooks:
                points[name].remove_hooks(level=level)


def _on_home_device(home: torch.device, function: Callable[..., Any], activation: Any, hook: Any) -> Any:
    """The result of a hook function that sees the activation on another device."""
    if not isinstance(activation, torch.Tensor) or activation.device == home:
        return function(activation, hook=hook)
    edited = function(activation.to(home), hook=hook)
    return edited if edited is None else edited.to(activation.device)


def hooks_here(point: Any) -> list[Callable[..., Any]]:
    """Return the hook functions at a hook point that act in this thread, in the order in which they are called."""
    functions = []
    for handle in point.fwd_hooks:
        hook = getattr(handle, "user_hook", None)
        thread, function = getattr(hook, "of_thread", (None, hook))
        if function is not None and thread in (None, threading.get_ident()):
            functions.append(function)
    return functions


def resolved(model: Model, recipe: Hooks) -> list[tuple[str, Callable[..., Any]]]:
    """Return the hooks of a recipe, each with the name of its hook point. Raises ValueError if there is no such hook
    point."""
    hooks: list[tuple[str, Callable[..., Any]]] = []
    points = model.hook_dict
    for point, function in recipe:
        if callable(point):
            # a hook point of a bridge has several names
            names = list({id(points[name]): name for name in filter(point, points)}.values())
        else:
            names = [point]
        if not names or names[0] not in points:
            raise ValueError(f"this model has no hook point {point!r}; see model.hook_dict for those it has")
        for name in names:
            hooks.append((name, function))
    return hooks


def hooks_of_others(model: Model, level: int | None = None) -> HooksOfOthers:
    """Return every hook on the model, with the name of its hook point, except those of one context (`level`). The lock
    keeps out hooks of other threads."""
    hooks = set()
    names: dict[Any, str] = {}  # a hook point of a bridge has several
    with _lock_of(model):
        for name, point in model.hook_dict.items():
            names.setdefault(point, name)
        for point, name in names.items():
            for handle in (*point.fwd_hooks, *point.bwd_hooks):
                if (level is None or handle.context_level != level) and not _is_of_the_library(handle):
                    hooks.add((name, id(handle.hook)))
    return frozenset(hooks)


def _is_of_the_library(handle: Any) -> bool:
    """Whether a hook was set permanently by TransformerLens itself, as in bridges."""
    function = getattr(handle, "user_hook", None)
    return bool(handle.is_permanent) and str(getattr(function, "__module__", "")).startswith("transformer_lens.")


def active_hooks(model: Model) -> list[str]:
    """Return the hook points that have hooks at this moment."""
    return sorted({name for name, _ in hooks_of_others(model)})


def head_is_hooked(model: Model) -> bool:
    """Whether the prediction head has hooks at this moment."""
    return bool(head_sites(active_hooks(model)))


def _lock_of(model: Model) -> threading.RLock:
    with _making_a_lock:
        return _locks.setdefault(model, threading.RLock())


def _check_unchanged(hooks: HooksOfOthers, expected: HooksOfOthers) -> None:
    if hooks != expected:
        problem = f"hooks on {', '.join(sorted({name for name, _ in hooks ^ expected}))} were set or removed"
        remedy = "edit a model in one thread, or give each thread a copy (interp.models.sites.view(model).copied())"
        raise RuntimeError(
            f"{problem} while the model was running, so they acted on only some of the batches; {remedy}"
        )


@contextmanager
def firing(model: Model, recipe: Hooks, *, expected: HooksOfOthers | None = None) -> Iterator[None]:
    """Like `running`, but all hooks must have fired when the context ends.

    Raises RuntimeError if a hook point was never reached (some need a flag of the model), and the errors of `running`.

    Examples:
        >>> from interp.hooks import scale_bias
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> with firing(model, scale_bias(model, "ln", 0)):
        ...     resid = model("w1 w2", stop_at_layer=1)  # stops before the head, where the hook is
        Traceback (most recent call last):
        RuntimeError: hook points ... never fired in this model's forward pass
    """
    with running(model, recipe, expected=expected) as fired:
        yield
    if waiting := {name for name, _ in resolved(model, recipe)} - fired:
        raise RuntimeError(f"hook points {', '.join(sorted(waiting))} never fired in this model's forward pass")


def find_device(device: str | torch.device | None) -> torch.device:
    """Find a usable device. Raises ValueError for an unknown device, or for CUDA if there is none."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {str(device)!r} cannot be used here: {str(error).splitlines()[0]}") from None
    if torch.device(device).type == "meta":
        raise ValueError("device 'meta' holds no numbers; expected cpu, cuda, …")
    return torch.device(device)
