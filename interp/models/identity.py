"""The identity of a model: where it came from, and hashes of its weights and config."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import xxhash
from torch import Tensor

from interp.models.sites import Model, check_model, view
from interp.models.views import memory_order

__all__ = ["Origin", "check_attention_weights", "check_weights", "config_hash", "is_finite", "n_parameters", "origin"]
__all__ += ["reading_once", "set_origin", "weight_hash"]
__dir__ = __all__.copy


@dataclass(frozen=True)
class Origin:
    """Where a loaded model came from: the given name, the hub revision, and the directory if its weights are there as
    they are; the types of quantised weights of a GGUF file; the path and the hash of an adapter merged into them; and
    the largest difference from transformers when it was loaded, by what was compared."""

    name: str
    revision: str | None
    directory: Path | None
    quantised_from: str | None = None
    adapter: Mapping[str, str] | None = None
    parity: Mapping[str, float] = field(default_factory=dict)


def origin(model: Model) -> Origin:
    """Tell where a model came from. If it was not loaded by `load`, the name is that of its config."""
    stored = getattr(model, "interp_origin", None)
    return stored if isinstance(stored, Origin) else Origin(model.cfg.model_name or "custom", None, None)


def set_origin(model: Any, source: Origin) -> None:
    """Record where a model came from."""
    model.interp_origin = source


_HASHES: ContextVar[WeakKeyDictionary[Model, str] | None] = ContextVar("hashes", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """A context in which weights are hashed only once. Nothing is remembered afterwards."""
    token = _HASHES.set(WeakKeyDictionary() if _HASHES.get() is None else _HASHES.get())
    try:
        yield
    finally:
        _HASHES.reset(token)


def weight_hash(model: Model) -> str:
    """Hash (xxh3, 128 bits) every parameter's name, shape and bytes. Equal hashes mean equal weights.

    A `HookedTransformer` or `HookedEncoder` and a `TransformerBridge` with the same weights have the same hash.
    """
    check_model(model)
    hashes = _HASHES.get()
    if hashes is not None and model in hashes:
        return hashes[model]
    digest = xxhash.xxh3_128()
    named = dict(view(model).parameters())
    gated = any(name.endswith("W_gate") for name in named)
    for name, parameter in sorted(named.items()):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        laid_out = parameter.permute(memory_order(name, parameter.ndim, gated=gated))
        digest.update(laid_out.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    if hashes is not None:
        hashes[model] = digest.hexdigest()
    return digest.hexdigest()


def n_parameters(model: Model) -> int:
    """Count the parameters of a model. An unembedding that is the transpose of the embedding counts once.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> n_parameters(toy_decoder()) - n_parameters(toy_decoder(n_layer=1))
        3280
    """
    parameters = dict(view(model).parameters())
    W_U = parameters.get("unembed.W_U")
    tied = False
    for name, parameter in parameters.items():
        if W_U is not None and name.endswith("embed.W_E"):
            tied = tied or torch.equal(parameter.to(W_U.device), W_U.T)
    total = sum(parameter.numel() for parameter in parameters.values())
    return total - W_U.numel() if tied and W_U is not None else total


def config_hash(model: Model) -> str:
    """Hash everything other than the weights that decides a forward pass: the config, the scale of the scores in each
    layer, and how attention is computed."""
    model_view = view(model)
    description = model_view.config()
    description["attention"] = model_view.attention_path
    return xxhash.xxh3_128(json.dumps(description, sort_keys=True).encode()).hexdigest()


def check_weights(model: Model, only: Callable[[str], bool] = lambda name: True) -> None:
    """Raise ValueError for a parameter that is not finite, of those whose name is in `only`."""
    check_model(model)
    for name, parameter in model.named_parameters():
        if not only(name) or is_finite(parameter.detach()):
            continue
        if not torch.isfinite(parameter).all():
            raise ValueError(f"weight {name} of this model has NaN or infinite values; load or train it again")


def check_attention_weights(model: Model) -> None:
    """Apply `check_weights` to queries and keys. TransformerLens silently turns attention of NaN into 0; NaN in any
    other weight shows in the residual stream."""
    check_weights(model, lambda name: ".attn." in name and not name.endswith(("_V", "_O")))


def is_finite(values: Tensor) -> bool:
    """Whether the sum of the values is finite. If it is, so are they."""
    return bool(torch.isfinite(values.sum(dtype=torch.float32)))
