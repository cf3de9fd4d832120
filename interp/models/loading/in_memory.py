"""A model of transformers that is in memory already, in a `TransformerBridge` that shares its weights."""

import copy
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from interp.models.identity import Origin, set_origin
from interp.models.loading.assembly import assembled
from interp.models.loading.drafts import read_again
from interp.models.loading.loader import quiet
from interp.models.loading.pretrained import SEQ2SEQ, Stored, model_class
from interp.models.sites import Model
from interp.support.checks import warn
from interp.support.memory import shown
from interp.support.paths import printable

__all__ = ["as_model"]
__dir__ = __all__.copy


def as_model(
    model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase | None = None
) -> Model:
    """Make the model that all functions of interp take from a model of transformers that is in memory.

    It is a `TransformerBridge` around a copy of the modules, which shares the weights, on the same device and in the
    same dtype. It is checked against transformers as in `interp.load`, and gives the same results as the saved model.
    It runs in eval mode. The modules, settings and gradients of the given model stay as they are, and its tokenizer is
    read by a copy.

    A training step that changes the weights in place also changes them for the returned model. For GPT-NeoX and BLOOM
    it does not: TransformerBridge takes queries, keys and values out of a joint matrix, so all weights are copied, and
    there is a warning. Call `as_model` again after moving or converting a model.

    Args:
        model: a causal or masked language model, BART or T5, as transformers builds it.
        tokenizer: the model's tokenizer. Without one, the returned model reads token ids only.

    Raises:
        TypeError: `model` is not a language model of transformers, or is wrapped by PEFT or `torch.compile`;
            `tokenizer` is not a tokenizer of transformers.
        ValueError: the architecture is not supported; the weights are quantised, offloaded, on several devices, on
            meta, of several types or not finite; modules were replaced or have hooks; the tokenizer has more tokens
            than the model, or cannot be copied; or the parity check fails.

    Examples:
        >>> import transformers
        >>> from interp.testing import toy_tokenizer
        >>> config = transformers.GPT2Config(vocab_size=67, n_positions=24, n_embd=16, n_layer=2, n_head=4)
        >>> hf = transformers.GPT2LMHeadModel(config)
        >>> model = as_model(hf, toy_tokenizer())
        >>> model.W_U.data_ptr() == hf.lm_head.weight.data_ptr()
        True
    """
    _check_class(model)
    source = model.name_or_path or type(model).__name__
    with quiet(), torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as directory:
        if reason := _why_not(model):
            raise ValueError(f"this {type(model).__name__} {reason}")
        _check_tokenizer(model, tokenizer)
        stored = _InMemory(source, None, copy.deepcopy(model.config), "bridge", directory, model, tokenizer)
        bridge, parity = assembled(f"this {type(model).__name__}", stored, model.dtype, model.device)
    bridge.eval()
    _copy_if_divided(bridge, model)
    set_origin(bridge, Origin(f"{printable(source)} in memory", None, None, parity=parity))
    return bridge


@dataclass(frozen=True)
class _InMemory(Stored):
    """A model in memory instead of one in files. Its tokenizer is saved in `directory`."""

    model: Any = None
    own_tokenizer: Any = None

    @property
    def files(self) -> list[Path]:
        return []

    def checked(self) -> Any:
        return self.mapped()

    def mapped(self) -> Any:
        """Make a copy of the model's modules and settings that shares its parameters and buffers."""
        shared = {}
        for module in self.model.modules():
            for part in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
                if isinstance(part, Tensor):
                    shared[id(part)] = _alias(part)
        return copy.deepcopy(self.model, shared).eval()

    def buffers(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return dict(self.model.named_non_persistent_buffers(remove_duplicate=False))

    def tokenizer(self) -> Any:
        self.config.save_pretrained(self.directory)
        reread = read_again(self.own_tokenizer, str(self.directory))
        if reread is not None and not _read_alike(reread, self.own_tokenizer):
            problem = f"this {type(self.own_tokenizer).__name__} reads text differently when it is saved and read again"
            raise ValueError(f"{problem}, as a {type(reread).__name__}; give the tokenizer that AutoTokenizer reads")
        return reread


def _alias(tensor: Tensor) -> Tensor:
    """The same numbers in the same memory, with a gradient, a device and a dtype of its own."""
    alias = tensor.detach()
    return torch.nn.Parameter(alias, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else alias


def _read_alike(first: Any, second: Any) -> bool:
    """Whether two tokenizers have the same tokens and divide a text that contains them in the same way."""
    text = second.decode(range(len(second)))
    if first.get_vocab() != second.get_vocab():
        return False
    ids = first(text, add_special_tokens=False)["input_ids"]
    return bool(ids == second(text, add_special_tokens=False)["input_ids"])


def _check_class(model: Any) -> None:
    kind = type(model).__name__
    if hasattr(model, "_orig_mod"):
        raise TypeError(f"found {kind} of torch.compile; give the model that was compiled, model._orig_mod")
    if hasattr(model, "merge_and_unload"):
        raise TypeError(f"found {kind} of PEFT; merge its adapter and give model.merge_and_unload()")
    if not isinstance(model, transformers.PreTrainedModel):
        raise TypeError(f"expected a language model of transformers, found {kind}; load one with interp.load")
    config = model.config
    expected = model_class(config)
    multimodal = config.get_text_config() is not config and not config.is_encoder_decoder
    if expected is None or multimodal or config.is_encoder_decoder != (config.model_type in SEQ2SEQ):
        raise TypeError(f"expected a causal or masked language model, BART or T5, found {kind}")
    if type(model) is not expected:
        raise TypeError(f"expected a {expected.__name__} for this config, found {kind}")


def _why_not(model: Any) -> str | None:
    """Why a model cannot be shared as it is."""
    modules, parameters = list(model.modules()), list(model.parameters())
    types = {str(parameter.dtype).removeprefix("torch.") for parameter in parameters}
    devices = {str(parameter.device) for parameter in parameters}
    if getattr(model, "is_quantized", False) or getattr(model.config, "quantization_config", None) is not None:
        return "has quantised weights; load it in a floating-point type"
    if any(hasattr(module, "_hf_hook") for module in modules):
        return "was offloaded or divided among devices by accelerate; load it on one device, without device_map"
    if "meta" in devices:
        return "has weights on meta, which holds no numbers; load its weights"
    if len(devices) > 1 or len(types) > 1:
        places = sorted(devices if len(devices) > 1 else types)
        return f"has weights of {' and '.join(places)}; move and convert all of them with model.to(…)"
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            problem = (
                f"has hooks or a forward function of its own on {name or 'itself'}, which may edit what it computes"
            )
            return f"{problem}; remove them, and give edits as recipes"
    with torch.device("meta"):
        plain = _parts(type(model)(copy.deepcopy(model.config)))
    parts = _parts(model)
    for name in sorted(parts.keys() | plain.keys()):
        if parts.get(name) != plain.get(name):
            problem = f"differs in {name} from the model that transformers builds from its config"
            return f"{problem}; merge adapters, and undo other changes to its modules"
    return None


def _parts(model: Any) -> dict[str, Any]:
    """The class of every module and the shape of every parameter."""
    parts: dict[str, Any] = {name: type(module) for name, module in model.named_modules()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parts[name] = tuple(parameter.shape)
    return parts


def _check_tokenizer(model: Any, tokenizer: Any) -> None:
    if tokenizer is None:
        return
    if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
        raise TypeError(f"expected a tokenizer of transformers, found {type(tokenizer).__name__}")
    rows = len(model.get_input_embeddings().weight)
    if len(tokenizer) > rows:
        problem = f"the tokenizer has {len(tokenizer):,} tokens, but the model has embeddings of {rows:,}"
        raise ValueError(f"{problem}; give the model's own tokenizer, or call model.resize_token_embeddings first")


def _copy_if_divided(bridge: Any, model: Any) -> None:
    """Copy all weights of a bridge if it cannot share some of them, so that it never mixes old weights with new."""
    shared = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    parameters = list(bridge.parameters())
    for parameter in parameters:
        if parameter.untyped_storage().data_ptr() not in shared and parameter.any():
            break
    else:
        return
    for parameter in parameters:
        parameter.data = parameter.data.clone()
    size = shown(sum(parameter.nbytes for parameter in parameters))
    problem = f"a TransformerBridge cannot share the queries, keys and values of a {type(model).__name__}"
    warn(f"{problem}, so all weights were copied ({size}); call as_model again after they change")
