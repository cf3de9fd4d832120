"""What a model is: where it came from, and the hashes of its weights and config."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet

import torch
import xxhash

from interp.models.sites import Model, check_model

_NOT_OF_THE_PASS = {"device", "n_devices", "seed", "model_name", "tokenizer_name", "tokenizer_prepends_bos"}


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


@dataclass(frozen=True)
class _Once:
    """What is known of the weights of models, for as long as `reading_once` lasts."""

    hashes: WeakKeyDictionary[Model, str] = field(default_factory=WeakKeyDictionary)
    finite: WeakSet[Model] = field(default_factory=WeakSet)


_once: ContextVar[_Once | None] = ContextVar("once", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """Within one public call weights are hashed and checked once; nothing is remembered after it."""
    token = _once.set(_once.get() or _Once())
    try:
        yield
    finally:
        _once.reset(token)


def weight_hash(model: Model) -> str:
    """A 128-bit hash (xxh3) of every parameter's name, shape and bytes: equal hashes, equal weights."""
    check_model(model)
    once = _once.get() or _Once()
    if model in once.hashes:
        return once.hashes[model]
    digest = xxhash.xxh3_128()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        laid_out = parameter.mT if name == "unembed.W_U" else parameter  # in memory the vocabulary comes first
        digest.update(laid_out.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    once.hashes[model] = digest.hexdigest()
    return once.hashes[model]


def config_hash(model: Model) -> str:
    """A hash of what decides a forward pass beside the weights: the config, and each layer's scale of the scores."""
    check_model(model)
    config = {key: str(value) for key, value in model.cfg.to_dict().items() if key not in _NOT_OF_THE_PASS}
    scales = [float(block.attn.attn_scale) for block in model.blocks]
    return xxhash.xxh3_128(json.dumps([config, scales], sort_keys=True).encode()).hexdigest()


def check_weights(model: Model) -> None:
    """Raise ValueError for a parameter that is not finite; TransformerLens turns attention of NaN into 0 silently."""
    check_model(model)
    once = _once.get() or _Once()
    if model in once.finite:
        return
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter.detach().sum(dtype=torch.float32)) and not torch.isfinite(parameter).all():
            raise ValueError(f"weight {name} of this model has NaN or infinite values; load or train it again")
    once.finite.add(model)
