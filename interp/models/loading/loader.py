"""Loading models with raw weights, checked against transformers."""

import copy
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, get_args

import torch
import transformers

from interp.models.footprint import floating_type
from interp.models.identity import Origin, set_origin
from interp.models.loading.assembly import WronglyConverted, assembled
from interp.models.loading.conversion import adapter_hash, converted
from interp.models.loading.gguf_files import header
from interp.models.loading.pretrained import Stored, headless, on_hub, place, read_config, why_not_converted
from interp.models.loading.spread import DeviceMap, check_device_map
from interp.models.running import find_device
from interp.models.sites import Model, how_to_load
from interp.support import memory
from interp.support.checks import check_choice, warn
from interp.support.choices import Backend
from interp.support.paths import adapter_directory, is_gguf, model_directory, printable
from interp.support.words import quantised_words

__all__ = ["load", "quiet"]
__dir__ = __all__.copy


def load(
    name_or_path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    device_map: DeviceMap | None = None,
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    checkpoint: int | None = None,
    backend: Backend | None = None,
    adapter: str | os.PathLike[str] | None = None,
) -> Model:
    """Load a language model with raw (unfolded, uncentred) weights and check it against transformers.

    Weights are read from safetensors only: no pickle is opened and no remote code is run. The model is the one that
    transformers' `from_pretrained` gives in the same dtype, whatever the type of the files: buffers made from a number,
    such as Gemma's `embed_scale`, are made in that dtype.

    In float32, each block is compared with transformers' block on the same input of 32 positions, where what it adds
    may differ by at most 1e-4. One block of each kind (window, rotation, mask) is compared on up to 512 positions, with
    5e-4 allowed at the last. Then the returned model is checked as a whole, by its log-probabilities of random tokens
    (for BERT also with padding). They may differ from those of transformers by at most 1e-4. In bfloat16 and float16
    they are compared with transformers in that type, and may differ by at most three times as much as these differ from
    transformers in float32. They may never differ by more than 1 nat, or 0.25 in root mean square, for bfloat16, and by
    more than 0.25 and 0.03 for float16.

    The matrices of a hooked model are laid out in memory so that TransformerLens does not copy them at each
    call. Loading takes at most 1.25 times the memory of the weights in the requested type. Weights that are larger than
    the available memory are refused. The exception is a bridge on the CPU in the type of the files (`dtype="auto"`):
    its weights stay in their files, and there is a warning.

    A BERT without a prediction head, such as a sentence encoder, is a `HookedEncoder` whose states are compared instead
    of its predictions. Whatever needs the head is refused.

    The weights of a GGUF file are first turned into float32 by transformers, and an adapter is first merged into the
    weights by PEFT, in float32. That takes up to 8 bytes of memory a weight, and writes 4 bytes a weight to the
    directory for temporary files. Provenance has the types of a file's quantised weights, which is what results are of,
    and the path and the hash of the adapter.

    Args:
        name_or_path: a bundled model (`interp.support.paths.bundled_models()`), a local Hugging Face directory, a GGUF
            file (`"model.gguf"`; needs the extra interp[gguf]) or a directory with one and no config.json, a hub name
            (`"EleutherAI/pythia-70m"`) or one of TransformerLens' short names (`"gpt2-medium"`, `"pythia-70m"`).
        device: the device of the model. Default: CUDA if available, else the CPU.
        device_map: how to spread a bridge over several devices instead, as in accelerate: `"auto"`, `"balanced"`,
            `"balanced_low_0"` or `"sequential"` over the GPUs of this process, or the device of each part by its name
            in transformers' model (`{"model.layers.0": 0, …}`).
        dtype: the dtype of the returned model, as a `torch.dtype` or its name, or `"auto"` for that of the files.
            Default: float32.
        revision: a branch, tag or commit of a hub repository.
        checkpoint: a training step, for models with published checkpoints (Pythia: revision `step{checkpoint}`; the
            Stanford CRFM GPT-2s: `checkpoint-{checkpoint}`).
        backend: `"hooked"` for TransformerLens' own implementation (`HookedTransformer`, or `HookedEncoder` for BERT),
            `"bridge"` for transformers' model in a `TransformerBridge`. Default: hooked if TransformerLens has an
            implementation and converts this model correctly, else bridge.
        adapter: the directory of an adapter of PEFT (LoRA, DoRA …) of this model, to merge into its weights. The model
            predicts what PEFT's own does (log-probabilities to 1e-4).

    Raises:
        FileNotFoundError: there is no such directory, or it has no config.json or no safetensors weights.
        ValueError: the architecture, an option, the device or the device map is not supported; the weights are larger
            than the memory, incomplete or not finite; there is a PEFT adapter instead of the weights or beside them;
            the adapter is of another model or vocabulary, or cannot be merged (prompt tuning); a GGUF file is damaged,
            or gguf is not installed; the parity check fails; or the backend is unknown or cannot load this model.

    Examples:
        >>> model = load("tiny-gpt2")
        >>> model.cfg.n_layers, model.cfg.d_model
        (6, 192)
    """
    if not isinstance(name_or_path, str | os.PathLike):
        remedy = how_to_load(name_or_path) or "give a string"
        raise TypeError(f"a model is a name or a path, found {type(name_or_path).__name__}; {remedy}")
    if dtype != "auto":
        dtype = floating_type(dtype or torch.float32)
    if backend is not None:
        check_choice("backend", backend, get_args(Backend))
    if device_map is not None:
        check_device_map(device_map, device, backend)
    name = str(name_or_path)
    where = find_device(device) if device_map is None else device_map
    directory = model_directory(name)
    if directory is None:
        source, revision = on_hub(name, revision, checkpoint)
    elif revision is None and checkpoint is None:
        source = str(directory)
    else:
        raise ValueError(f"{name} is a local directory: revision and checkpoint are for hub names; leave them out")
    folder = None if adapter is None else adapter_directory(str(adapter))
    with ExitStack() as temporary:
        with quiet():
            stored = Stored(source, revision, read_config(source, revision), "bridge")
            stored = temporary.enter_context(converted(name, stored, folder))
        model, parity = _loaded(name, stored, backend, dtype, where)
    if directory is None and (cached := place(source, revision)):
        revision = cached.name
    memory.give_back()
    model.eval()
    merged = None if folder is None else {"path": printable(str(adapter)), "hash": adapter_hash(folder)}
    types = header(source).quantised_from if is_gguf(source) else None
    if types is not None:
        warn(quantised_words(printable(name), types))
    unchanged = merged is None and not is_gguf(source)
    set_origin(model, Origin(printable(name), revision, directory if unchanged else None, types, merged, parity))
    return model


def _loaded(
    name: str, stored: Stored, backend: Backend | None, dtype: Any, where: torch.device | DeviceMap
) -> tuple[Model, dict[str, float]]:
    """A checked model, from the first backend that can load it, and its differences from transformers."""
    if not isinstance(where, torch.device):
        backend = "bridge"
    source, config = stored.source, stored.config
    with quiet():
        why_not_hooked = why_not_converted(source, config)
    if why_not_hooked and backend == "hooked":
        raise ValueError(why_not_hooked)

    if headless(config) and (why_not_hooked or backend == "bridge"):
        reason = (why_not_hooked or "TransformerLens has no bridge for it, so leave backend out").partition(";")[0]
        raise ValueError(f"{source} is a BERT without a prediction head, which needs a HookedEncoder: {reason}")

    def of(backend: Backend) -> tuple[Model, dict[str, float]]:
        chosen = replace(stored, config=copy.deepcopy(config), backend=backend)
        if not chosen.n_numbers:
            chosen.checked()  # downloads the weights
        loaded_dtype = chosen.dtype if dtype == "auto" else dtype
        if isinstance(where, torch.device):
            _check_room(name, chosen, loaded_dtype, where)
        with quiet():
            return assembled(name, chosen, loaded_dtype, where)

    if backend != "bridge" and not why_not_hooked:
        try:
            return of("hooked")
        except WronglyConverted:
            if backend == "hooked" or headless(config):
                raise
    return of("bridge")


def _check_room(name: str, stored: Stored, dtype: torch.dtype, device: torch.device) -> None:
    """Raise `DoesNotFit` for weights that are larger than the available memory, or warn if they stay in their files.

    The weights of a bridge on the CPU, in the type of the files, stay there: the system reads them when they are used,
    and drops them when it needs the memory.
    """
    has_copy = stored.backend == "hooked" and not headless(stored.config)
    tied = has_copy and getattr(stored.config, "tie_word_embeddings", False)
    numbers = stored.n_numbers
    numbers += min(numbers, stored.config.vocab_size * stored.config.hidden_size) if tied else 0
    free = memory.available(str(device))
    if numbers * dtype.itemsize <= free:
        return
    kind = str(dtype).removeprefix("torch.")
    problem = f"{name} has {memory.shown(numbers * dtype.itemsize)} of weights in {kind}"
    problem += f", but only {memory.shown(free)} of memory is available on {device}"
    if (stored.backend, device.type, dtype) == ("bridge", "cpu", stored.dtype):
        warn(f"{problem}; they stay in their files and are read from there whenever they are used, which is slow")
        return
    lighter = dtype.itemsize > 2 and 2 * numbers <= free
    smaller = f" a smaller dtype (bfloat16: {memory.shown(2 * numbers)}), or" if lighter else ""
    files = "dtype='auto' with backend='bridge' and device='cpu', which leaves the weights in their files"
    raise memory.DoesNotFit(f"{problem}; use{smaller} {files}")


@contextmanager
def quiet() -> Iterator[None]:
    """A context without the libraries' messages during loading. What matters is checked and raised."""
    disabled = logging.root.manager.disable
    progress_bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled)
        if progress_bars:
            transformers.utils.logging.enable_progress_bar()
