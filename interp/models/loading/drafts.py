"""The two kinds of model that can take transformers' weights, one block at a time."""

import copy
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from torch import Tensor

from interp.models.hooked import NoHead
from interp.models.loading.pretrained import HOOKED, MASKED, SEQ2SEQ, context_of, headless
from interp.models.loading.spread import Placement
from interp.models.loading.streaming import Workspace, blocks_of, wide_type
from interp.models.views import Tokens, memory_order

__all__ = ["Bridged", "Draft", "Hooked", "read_again"]
__dir__ = __all__.copy

_REST = "what is in no block"


class Draft(ABC):
    """A TransformerLens model, and the transformers model whose weights it will get.

    The weights of `reference` are those of the files. `model` takes them over one block at a time.
    """

    model: Any
    reference: Any

    @abstractmethod
    def output(self, block: str, batch: Tokens, arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
        """Return what a block of the model returns for the arguments of transformers' block, with the same weights."""

    @contextmanager
    def read_patterns(self) -> Iterator[None]:
        """A context in which attention runs as if its pattern were read."""
        with ExitStack() as handles:
            for block in getattr(self.model, "blocks", ()):
                if hasattr(block, "attn"):
                    handle = block.attn.hook_pattern.register_forward_hook(lambda module, arguments, pattern: None)
                    handles.callback(handle.remove)
            yield

    @property
    @abstractmethod
    def parts(self) -> list[str]:
        """The parts of the model outside of blocks, by the names that `settle` takes."""

    @abstractmethod
    def settle(self, part: str, dtype: torch.dtype, placement: Placement) -> None:
        """Give a block of the model, or one of `parts`, its final weights."""


class Hooked(Draft):
    """A `HookedTransformer` or `HookedEncoder` in which nothing is folded or centred.

    TransformerLens would read the config and the tokenizer again by name (without the revision), so both are saved to
    a temporary directory.
    """

    def __init__(self, source: Any, tokenizer: Any, config: Any, neutral: str) -> None:
        from transformer_lens import HookedEncoder, HookedTransformer, loading_from_pretrained as tl_loading

        from interp.models.loading.hooked_sdpa import fuse

        self.reference = source
        lacks_head = headless(config)
        config = copy.deepcopy(config)
        config.architectures = [HOOKED[config.model_type]]
        if config.model_type == "gpt2":
            config.n_ctx = config.n_positions
        config.save_pretrained(neutral)
        cfg = tl_loading.get_pretrained_model_config(_Path(neutral), hf_cfg=config.to_dict(), device="cpu")
        if (positions := context_of(config)) is not None:
            cfg.n_ctx = min(cfg.n_ctx, positions)  # TransformerLens assumes 2,048 for Mistral
        state = tl_loading.get_pretrained_state_dict(neutral, cfg, hf_model=source)
        views = _views(state.values(), source.parameters())
        self._weights = {name: views.get(weight, weight.detach()) for name, weight in state.items()}
        cfg.tokenizer_name = None
        cfg.model_name = config.model_type
        if config.model_type == "bert":
            self.model = HookedEncoder(cfg, tokenizer, move_to_device=False)
            if lacks_head:
                self.model.mlm_head = self.model.unembed = NoHead(cfg.d_model, cfg.d_vocab)
                self.model.setup()  # without the hook points of the head
        else:
            tokenizer = _with_bos(tokenizer, neutral)
            self.model = HookedTransformer(
                cfg, tokenizer, default_padding_side="right" if tokenizer else None, move_to_device=False
            )
            if self.model.tokenizer is not None:
                self.model.tokenizer.name_or_path = config.model_type  # TransformerLens also looks for "gemma" here
        fuse(self.model)

    def output(self, block: str, batch: Tokens, arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
        ours = self._bound(block)
        x = arguments[0] if arguments else named["hidden_states"]
        if self.model.cfg.attention_dir == "causal":
            return ours(x)
        return ours(x, additive_attention_mask=-1e5 * (1 - batch.mask)[:, None, None].to(x))

    @property
    def parts(self) -> list[str]:
        names = []
        for name, child in self.model.named_children():
            if name != "blocks" and list(child.parameters()):
                names.append(name)
        return names

    def settle(self, part: str, dtype: torch.dtype, placement: Placement) -> None:
        module = self._bound(part)
        device = placement.of(part)
        for name, parameter in module.named_parameters():
            parameter.data = _laid_out(name, parameter.data, dtype, device, gated=self.model.cfg.gated_mlp)
        _use_fast_gelu(module)
        if part not in self.parts:
            for parameter in self.reference.get_submodule(part).parameters():
                parameter.data = parameter.data.new_empty(1).expand(parameter.shape)  # a shape without memory

    def _bound(self, part: str) -> Any:
        """A part of the model whose parameters are views of the reference's weights."""
        path = part if part in self.parts else f"blocks.{part.rpartition('.')[2]}"
        module = self.model.get_submodule(path)
        prefix = f"{path}."
        state = {}
        for name, weight in self._weights.items():
            if name.startswith(prefix):
                state[name.removeprefix(prefix)] = weight.tensor() if isinstance(weight, _View) else weight
        module.load_state_dict(state, strict=False, assign=True)
        return module


class Bridged(Draft):
    """A `TransformerBridge` around a transformers model, which it changes in place."""

    def __init__(self, source: Any, tokenizer: Any, config: Any, neutral: str) -> None:
        from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
        from transformer_lens.model_bridge import TransformerBridge

        from interp.models.loading.bridge_sdpa import fuse

        if (kind := type(source).__name__) not in SUPPORTED_ARCHITECTURES:
            raise ValueError(f"TransformerLens {version('transformer-lens')} has no adapter for {kind}")
        config.architectures = source.config.architectures = [kind]
        self.reference = copy.deepcopy(source, {id(parameter): parameter for parameter in source.parameters()})
        config.save_pretrained(neutral)
        source.set_attn_implementation("eager")  # the implementation that returns attention patterns
        reread = _with_bos(tokenizer or _stand_in(), neutral)
        self.model = TransformerBridge.boot_transformers(
            neutral, hf_model=source, tokenizer=reread, device=str(source.device), dtype=source.dtype
        )
        fuse(self.model)
        self.reference.set_attn_implementation(source.config._attn_implementation)  # blocks of both share a mask
        self._wrapped = source
        parameters = set(self.reference.parameters())
        derived = set(source.parameters()) - parameters
        self._views = _views(derived, parameters)
        self._copies = derived - set(self._views)
        self.model.cfg.model_name = config.model_type
        self.model.cfg.n_ctx = context_of(config) or self.model.cfg.n_ctx
        if tokenizer is None or config.model_type in MASKED | SEQ2SEQ:
            self.model.tokenizer = tokenizer
        else:
            self.model.tokenizer.padding_side = "right"
            self.model.tokenizer.name_or_path = config.model_type

    def output(self, block: str, batch: Tokens, arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
        module = self._wrapped.get_submodule(block)
        self._renew_views()
        copies = self._copies.intersection(module.parameters())
        with Workspace(wide_type(self.reference)).converted(copies):
            output = module(*arguments, **named)
        return output[0] if isinstance(output, tuple) else output

    @property
    def parts(self) -> list[str]:
        return [_REST]

    def settle(self, part: str, dtype: torch.dtype, placement: Placement) -> None:
        blocks = tuple(f"{name}." for name in blocks_of(self.reference))
        for name, parameter in self.reference.named_parameters():
            if name.startswith(f"{part}.") or (part == _REST and not name.startswith(blocks)):
                parameter.data = parameter.data.to(placement.of(name), dtype)
        if part == _REST:
            for parameter in self._copies:
                parameter.data = parameter.data.to(dtype=dtype)
        self._renew_views()

    def _renew_views(self) -> None:
        """Renew views of weights that have moved, such as the queries in a joint matrix of queries, keys and values."""
        for parameter, view in self._views.items():
            parameter.data = view.tensor()


@dataclass(frozen=True)
class _View:
    """Where a tensor lies in the memory of a parameter, whose data may be replaced."""

    owner: torch.nn.Parameter
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]

    def tensor(self) -> Tensor:
        """Return that part of the parameter as it is now."""
        memory = self.owner.data
        return memory.as_strided(self.shape, self.stride, memory.storage_offset() + self.offset)


def _views(tensors: Iterable[Tensor], parameters: Iterable[torch.nn.Parameter]) -> dict[Tensor, _View]:
    """Where tensors lie in the memory of these parameters, without those that lie elsewhere."""
    starts = {parameter.data_ptr(): parameter for parameter in parameters}
    places = sorted(starts)
    views: dict[Tensor, _View] = {}
    for tensor in tensors:
        start = tensor.data_ptr()
        owner = starts[places[max(bisect_right(places, start) - 1, 0)]]
        offset = start - owner.data_ptr()
        if 0 <= offset < owner.nbytes:
            views[tensor] = _View(owner, offset // owner.element_size(), tensor.shape, tensor.stride())
    return views


def read_again(tokenizer: Any, directory: str, **options: Any) -> Any:
    """Save a tokenizer to its own directory, where TransformerLens finds its files."""
    if tokenizer is None:
        return None
    tokenizer.save_pretrained(directory)
    return transformers.AutoTokenizer.from_pretrained(directory, **options)


def _with_bos(tokenizer: Any, directory: str) -> Any:
    """A tokenizer that puts its BOS before every text, which TransformerLens would otherwise read once more."""
    if getattr(tokenizer, "bos_token", None) is not None:
        with suppress(ValueError):  # not every BOS can be put by every tokenizer
            return read_again(tokenizer, directory, add_bos_token=True)
    return read_again(tokenizer, directory)


def _stand_in() -> Any:
    """A tokenizer for the bridge of a model that has none; the bridge would otherwise look for one on the hub."""
    vocabulary = {"<|endoftext|>": 0, "a": 1}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")


class _Path(str):
    """A path that hides its name from TransformerLens, which looks for names of models ("llama", "gemma") in it."""

    def lower(self) -> str:
        return ""

    def __contains__(self, part: object) -> bool:
        return False


def _laid_out(name: str, weight: Tensor, dtype: torch.dtype, device: torch.device, *, gated: bool) -> Tensor:
    """A copy of a parameter in its `memory_order`. Shape and values stay the same."""
    order = memory_order(name, weight.ndim, gated=gated)
    permuted = weight.permute(order)
    copied = torch.empty(permuted.shape, dtype=dtype, device=device).copy_(permuted)
    return copied.permute(*np.argsort(order))


def _use_fast_gelu(module: Any) -> None:
    """Replace GPT-2's GELU, which takes TransformerLens eight operations, by torch's function of the same formula."""
    from transformer_lens.utilities.activation_functions import gelu_new

    for part in module.modules():
        if getattr(part, "act_fn", None) is gelu_new:
            part.act_fn = partial(torch.nn.functional.gelu, approximate="tanh")
