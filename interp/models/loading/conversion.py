"""Makes a directory of safetensors out of weights that are stored otherwise: in a GGUF file, or with an adapter of PEFT
that is to be merged. Such a model is then loaded like any other."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import xxhash
from safetensors import safe_open

from interp.models.footprint import CONVERTING
from interp.models.loading.assembly import PARITY_TOLERANCE, output, trial
from interp.models.loading.pretrained import Stored, set_buffers
from interp.support import memory
from interp.support.paths import is_gguf, short_name

__all__ = ["adapter_hash", "converted"]
__dir__ = __all__.copy

_LENGTH = 32


@contextmanager
def converted(name: str, stored: Stored, adapter: Path | None) -> Iterator[Stored]:
    """The stored model, with its weights in a temporary directory, in float32, if they are in a GGUF file or an adapter
    is merged into them. They take memory as a whole while they are converted, 8 bytes a weight at most.

    Raises ValueError for an adapter that is not of this model, cannot be merged, or after merging differs from what
    PEFT itself computes by more than 1e-4; `interp.support.memory.DoesNotFit` if there is no room; and the errors of
    `Stored.checked`.
    """
    if adapter is None and not is_gguf(stored.source):
        yield stored
        return
    needed = CONVERTING * stored.n_numbers
    free = memory.available("cpu")
    if needed > free:
        problem = f"converting the weights of {name} takes up to {memory.shown(needed)} of memory"
        raise memory.DoesNotFit(f"{problem}, but only {memory.shown(free)} is available; do it once on another machine")
    with TemporaryDirectory(prefix="weights-") as directory:
        _convert(name, stored, adapter, directory)
        memory.give_back()
        yield replace(stored, directory=directory)


@torch.no_grad()
def _convert(name: str, stored: Stored, adapter: Path | None, directory: str) -> None:
    """Save the weights, with an adapter merged into them, in a directory."""
    model = stored.checked()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.float32, copy=adapter is not None)
    set_buffers(model, stored.buffers(torch.float32))
    expected = None
    if adapter is not None:
        _check_base(adapter, [name, stored.source, str(getattr(stored.config, "_name_or_path", ""))])
        model = _adapted(model, adapter)
        batch = trial(stored.config, _LENGTH)
        expected = output(model.get_base_model(), stored.config, batch)
        model = _merged(model, adapter)
    vars(model).pop("hf_quantizer", None)  # the weights are not quantised any more
    for setting in ("quantization_config", "dtype"):
        vars(model.config).pop(setting, None)
    model.save_pretrained(directory)
    del model
    if expected is not None:
        outputs = output(replace(stored, directory=directory).mapped(), stored.config, batch)
        if not (difference := float((outputs - expected).abs().max())) < PARITY_TOLERANCE:
            problem = (
                f"its weights merged into those of {name} give predictions that differ by {difference:.1e} from PEFT's"
            )
            raise ValueError(f"{adapter} cannot be merged: {problem} (allowed {PARITY_TOLERANCE:.0e})")


def _check_base(adapter: Path, names: Sequence[str]) -> None:
    """Raise ValueError for an adapter that says it is of a model with none of these names."""
    base = _config_of(adapter).base_model_name_or_path
    if not base:
        return
    ours = {Path(name).stem if is_gguf(name) else short_name(name) for name in names if name}
    if not any(name.lower().partition(".gguf")[0].startswith(short_name(base).lower()) for name in ours):
        remedy = f"if they are one model, write {names[0]!r} as base_model_name_or_path in its adapter_config.json"
        raise ValueError(f"{adapter} is an adapter of {base!r}, not of {names[0]!r}; load that model, or {remedy}")


def _config_of(adapter: Path) -> Any:
    from peft import PeftConfig

    try:
        return PeftConfig.from_pretrained(str(adapter))
    except Exception as error:
        raise ValueError(f"{adapter}/adapter_config.json cannot be read by PEFT: {error}") from error


def _adapted(model: Any, adapter: Path) -> Any:
    """The model with the adapter, not yet merged. Raises ValueError for one that does not belong to the model."""
    from peft import PeftModel, get_peft_model_state_dict

    config = _config_of(adapter)
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if config.is_prompt_learning or config.is_adaption_prompt:
        problem = f"{adapter} ({kind}) adds vectors to what the model reads, which no weights contain"
        raise ValueError(f"{problem}; expected an adapter that can be merged, such as LoRA or DoRA")
    with safe_open(adapter / "adapter_model.safetensors", "np") as file:
        stored = set(file.keys())
    expected = {f"base_model.model.{name}" for name in model.state_dict()}
    try:
        with warnings.catch_warnings(action="ignore"):
            adapted = PeftModel.from_pretrained(model, str(adapter)).eval()
    except Exception as error:
        reason = " ".join(str(error).split())
        resized = "size mismatch" in reason and any(part in reason for part in ("embed", "lm_head", "wte"))
        remedy = (
            "it was trained with another vocabulary; save the merged model with the script that trained it" * resized
        )
        raise ValueError(f"{adapter} ({kind}) does not fit the model: {remedy or reason}") from error
    needed = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    if foreign := sorted((stored - needed - expected) | (needed - stored)):
        where = "it has" if foreign[0] in stored else "it lacks"
        raise ValueError(
            f"{adapter} ({kind}) is of another model: {where} {foreign[0]}; load the model it was made for"
        )
    return adapted


def _merged(adapted: Any, adapter: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return adapted.merge_and_unload(safe_merge=True)
    except Exception as error:
        raise ValueError(f"{adapter} cannot be merged by PEFT: {error}; expected LoRA, DoRA or the like") from error


def adapter_hash(adapter: Path) -> str:
    """Hash (xxh3, 128 bits) the weights of an adapter, and of its settings."""
    digest = xxhash.xxh3_128()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        digest.update((adapter / name).read_bytes())
    return digest.hexdigest()
