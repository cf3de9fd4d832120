"""What a model is: where it came from, and the hashes of its weights and config."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import xxhash

from interp.models.sites import Model, check_model, view
from interp.models.views import memory_order

__all__ = ["Origin", "check_weights", "config_hash", "origin", "reading_once", "set_origin", "weight_hash"]


@dataclass(frozen=True)
class Origin:
    """Where a loaded model came from: the name given, the hub revision, and its directory if it is local."""

    name: str
    revision: str | None
    directory: Path | None


def origin(model: Model) -> Origin:
    """Where a model came from; for one that was not loaded by `load`, its config's name."""
    found = getattr(model, "interp_origin", None)
    return found if isinstance(found, Origin) else Origin(model.cfg.model_name or "custom", None, None)


def set_origin(model: Any, source: Origin) -> None:
    """Note where a model came from."""
    model.interp_origin = source


_finite: set[str] = set()  # hashes of weights that were found to be finite
_once: ContextVar[WeakKeyDictionary[Model, dict[str, Any]] | None] = ContextVar("once", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """Within one public call weights are hashed and checked once; nothing is remembered after it."""
    token = _once.set(WeakKeyDictionary() if _once.get() is None else _once.get())
    try:
        yield
    finally:
        _once.reset(token)


def _known_of(model: Model) -> dict[str, Any]:
    """What is known of the weights of a model, for as long as `reading_once` lasts."""
    check_model(model)
    once = _once.get()
    return {} if once is None else once.setdefault(model, {})


def weight_hash(model: Model) -> str:
    """A 128-bit hash (xxh3) of every parameter's name, shape and bytes: equal hashes, equal weights.

    It is the same for a `HookedTransformer` or `HookedEncoder` and for a `TransformerBridge` of the same weights.
    """
    known = _known_of(model)
    if "hash" not in known:
        digest, named = xxhash.xxh3_128(), dict(view(model).parameters())
        gated = any(name.endswith("W_gate") for name in named)
        for name, parameter in sorted(named.items()):
            digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
            laid_out = parameter.permute(memory_order(name, parameter.ndim, gated=gated))
            digest.update(laid_out.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        known["hash"] = digest.hexdigest()
    return str(known["hash"])


def config_hash(model: Model) -> str:
    """A hash of what decides a forward pass beside the weights: the config, each layer's scale of the scores, and how
    attention is computed."""
    seen = view(model)
    about = seen.config() | {"attention": seen.attention_path}
    return xxhash.xxh3_128(json.dumps(about, sort_keys=True).encode()).hexdigest()


def check_weights(model: Model) -> None:
    """Raise ValueError for a parameter that is not finite; TransformerLens turns attention of NaN into 0 silently."""
    found = None if _once.get() is None else weight_hash(model)  # which is wanted later
    if found in _finite:
        return
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter.detach().sum(dtype=torch.float32)) and not torch.isfinite(parameter).all():
            raise ValueError(f"weight {name} of this model has NaN or infinite values; load or train it again")
    if found is not None:
        _finite.add(found)
