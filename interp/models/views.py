"""What interp needs from a model, whatever its class: one view for each of TransformerLens' classes.

All other modules use a view. Only views know how a `HookedTransformer`, a `HookedEncoder` and a `TransformerBridge`
differ.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.models.spans import Span

__all__ = ["Attention", "FinalNorm", "HeadTensors", "Model", "Read", "Rotation", "Site", "Tokens", "View"]
__all__ += ["memory_order", "settings_of"]

if TYPE_CHECKING:
    from transformer_lens import HookedEncoder, HookedTransformer
    from transformer_lens.model_bridge import TransformerBridge

    Model: TypeAlias = HookedTransformer | HookedEncoder | TransformerBridge
else:  # TransformerLens takes seconds to import, and whoever has a model has imported it
    Model = Any

Site: TypeAlias = Literal[
    "embed", "resid_pre", "resid_post", "attn_input", "q", "rotated_q", "k", "v", "attn_scores", "pattern",
    "z", "attn_out", "mlp_post", "mlp_out", "head_norm", "head_input", "logits",
]  # fmt: skip

FinalNorm = Literal["layer", "layer without bias", "rms", "folded", "folded rms", None]
"""The norm before the unembedding; `folded` if its scale and bias are in the unembedding."""


def memory_order(name: str, ndim: int, *, gated: bool) -> tuple[int, ...]:
    """Return the order in memory of the dimensions of a TransformerLens parameter, as `interp.load` lays it out. It is
    the order in which TransformerLens multiplies the parameter, so that no call copies it.

    Args:
        gated: whether the model's MLPs are gated.
    """
    if name.endswith("W_O"):
        return (2, 0, 1)
    turned = name.endswith(("W_Q", "W_K", "W_V", "W_U")) or (gated and "mlp.W_" in name)
    return {2: (1, 0), 3: (0, 2, 1)}[ndim] if turned else tuple(range(ndim))


def settings_of(config: Any, left_out: Container[str]) -> dict[str, Any]:
    """Return the settings of a config as text, without some of them."""
    return {name: str(value) for name, value in config.to_dict().items() if name not in left_out}


@dataclass(frozen=True, eq=False)
class _Tensors:
    def detached(self) -> Self:
        """Return the same tensors, without gradients."""
        return self._changed(Tensor.detach)

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Self:
        """Return the same tensors on a device, in a type."""
        return self._changed(lambda tensor: tensor.to(device, dtype))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                changed[name] = change(value)
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class HeadTensors(_Tensors):
    """The tensors of a prediction head. A tensor that the head does not have is None.

    The logits are `scale · (h unscaled + b_U)`, and then `cap · tanh(logits / cap)` if there is a cap. `b_U` is None if
    it is zero. `had_bias` says that the `b_U` of a folded model may contain more than b_LN W_U.
    """

    unscaled: Float[Tensor, "d_model d_vocab"]
    b_U: Float[Tensor, " d_vocab"] | None
    norm: FinalNorm
    eps: float
    gamma: Float[Tensor, " d_model"] | None = None
    b_ln: Float[Tensor, " d_model"] | None = None
    W_fc: Float[Tensor, "d_model d_model"] | None = None
    b_fc: Float[Tensor, " d_model"] | None = None
    had_bias: bool = True
    scale: float = 1.0
    cap: float | None = None

    def encoder_norm(self, resid: Float[Tensor, "*pos d_model"], fc: float = 1.0) -> Float[Tensor, "*pos d_model"]:
        """Compute BERT's `(x' − m)/s` with `x' = GELU(x W_fc + fc·b_fc)`: the output of the norm before `·γ + b`."""
        assert self.W_fc is not None
        assert self.b_fc is not None
        hidden = torch.nn.functional.gelu(resid @ self.W_fc + fc * self.b_fc)
        return torch.nn.functional.layer_norm(hidden, hidden.shape[-1:], eps=self.eps)

    def finished(self, unembedded: Float[Tensor, "*pos d_vocab"]) -> Float[Tensor, "*pos d_vocab"]:
        """Return the model's logits, scaled and soft-capped, from the activation at the site `logits`."""
        logits = unembedded if self.scale == 1 else self.scale * unembedded
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


class Rotation(ABC):
    """RoPE of a layer: `R_n` for the vector at each position n."""

    def forth(self, vectors: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_head"]:
        return self.turned(vectors, 1)

    def back(self, vectors: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_head"]:
        return self.turned(vectors, -1)

    @abstractmethod
    def turned(
        self, vectors: Float[Tensor, "batch pos head d_head"], sign: Literal[1, -1]
    ) -> Float[Tensor, "batch pos head d_head"]:
        """Rotate vectors by their positions, or with sign −1 back."""


@dataclass(frozen=True, eq=False)
class Attention(_Tensors):
    """The queries and keys of a block.

    `W_K` and `b_K` are as stored, with one slice per head of the site `k`. `gamma` and `ln_bias` are the scale and bias
    of the norm before the attention. With `normed_before`, the site `attn_input` comes before them, otherwise after.
    """

    W_Q: Float[Tensor, "n_heads d_model d_head"]
    W_K: Float[Tensor, "n_kv_heads d_model d_head"]
    b_K: Float[Tensor, "n_kv_heads d_head"]
    scale: float
    causal: bool
    window: int | None = None
    rotation: Rotation | None = None
    gamma: Float[Tensor, " d_model"] | None = None
    ln_bias: Float[Tensor, " d_model"] | None = None
    normed_before: bool = True
    why_not: tuple[str, ...] = ()
    """Why scores are not sums over residual dimensions."""

    @property
    def span(self) -> Span:
        """Which keys each query sees."""
        return Span(self.causal, self.window)

    def input_of(self, activation: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """Compute x, the input of W_Q and W_K, from the activation at the site `attn_input`."""
        if not self.normed_before:
            return activation
        x = activation if self.gamma is None else activation * self.gamma.to(activation.device)
        return (x if self.ln_bias is None else x + self.ln_bias.to(activation.device)).to(self.W_K.dtype)


@runtime_checkable
class Read(Protocol):
    """What a model reads at once, such as an `interp.corpora.batching.Batch`. `source` is for encoder-decoders."""

    @property
    def tokens(self) -> Int[Tensor, "batch pos"]: ...
    @property
    def mask(self) -> Int[Tensor, "batch pos"]: ...
    @property
    def source(self) -> Int[Tensor, "batch source"] | None: ...
    @property
    def source_mask(self) -> Int[Tensor, "batch source"] | None: ...


@dataclass(frozen=True, eq=False)
class Tokens:
    """Rows without padding, to test a model with."""

    tokens: Int[Tensor, "batch pos"]
    mask: Int[Tensor, "batch pos"]
    source: Int[Tensor, "batch source"] | None = None
    source_mask: Int[Tensor, "batch source"] | None = None

    def to(self, device: torch.device) -> "Tokens":
        source = None if self.source is None else self.source.to(device)
        source_mask = None if self.source_mask is None else self.source_mask.to(device)
        return Tokens(self.tokens.to(device), self.mask.to(device), source, source_mask)


class View(ABC):
    """A model as interp sees it. A view holds the model and copies nothing."""

    narrows_at: ClassVar[Literal["resid_post", "head_input"]]
    """The last site at which positions can be dropped, so that the unembedding does not have to read them."""

    wrapped: Any = None
    """The transformers model that it wraps, if any."""
    reads_source: ClassVar[bool] = False
    """Whether encoder and decoder read different texts (BART, T5)."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    @abstractmethod
    def encoder(self) -> bool:
        """Whether it is a bidirectional masked-language model."""

    @property
    @abstractmethod
    def names(self) -> Mapping[Site, str]:
        """The hook point of each site, with `{layer}` if it depends on the layer."""

    def refused(self, site: Site) -> str | None:
        """Return why a site cannot be used in this model, or None if it can."""
        return None

    @property
    def why_no_head(self) -> str | None:
        """Why the model predicts no tokens, or None if it does."""
        return None

    @property
    def attention_path(self) -> Literal["sdpa", "eager"]:
        """Whether blocks compute attention with `scaled_dot_product_attention`, without an array of queries × keys,
        when scores and pattern are not read."""
        paths = set()
        for block in getattr(self.model, "blocks", ()):
            paths.add(getattr(getattr(block, "attn", None), "attention_path", "eager"))
        return "sdpa" if paths == {"sdpa"} else "eager"

    @property
    @abstractmethod
    def d_mlp(self) -> int | None:
        """The number of neurons of an MLP, or None if it has no neurons that an output matrix reads."""

    def refuse_drawn(self) -> None:
        """Raise ValueError for a model whose weights exist only while a block runs (`interp.models.untrained`)."""
        blocks = getattr(self.model, "blocks", None)
        # at most one block, the one that is running, has its matrices; the others have none
        parts = [blocks[0], blocks[-1]] if blocks else [self.model]
        for part in parts:
            matrices = [parameter for parameter in part.parameters() if parameter.ndim > 1]
            if matrices and matrices[0].numel() > 1 and not any(matrices[0].stride()):
                problem = "memory had no room for this untrained model, so its weights exist only while a block runs"
                raise ValueError(f"{problem} and cannot be read; make it on a machine with room for a second model")

    @abstractmethod
    def live_head(self) -> HeadTensors:
        """Return the prediction head, with the model's own tensors, through which gradients flow."""

    @abstractmethod
    def live_attention(self, layer: int) -> Attention:
        """Return the queries and keys of a block, with the model's own tensors, through which gradients flow."""

    def head(self) -> HeadTensors:
        return self.live_head().detached()

    def attention(self, layer: int) -> Attention:
        return self.live_attention(layer).detached()

    def W_O(self, layer: int) -> Float[Tensor, "n_heads d_head d_model"]:
        return self.model.blocks[layer].attn.W_O.detach()

    def W_out(self, layer: int) -> Float[Tensor, "d_mlp d_model"]:
        return self.model.blocks[layer].mlp.W_out.detach()

    @abstractmethod
    def run(self, batch: Read, stop: int | None) -> Any:
        """Run the blocks before block `stop`. None also runs the prediction head and returns the logits."""

    @property
    def starts_within(self) -> bool:
        """Whether a forward pass can begin at a block (`run_from`)."""
        return False

    def run_from(
        self, layer: int, resid: Float[Tensor, "batch pos d_model"], batch: Read, stop: int | None = None
    ) -> Any:
        """Run block `layer` and the later blocks before block `stop` on the residual stream that enters block `layer`.
        None also runs the prediction head and returns the logits. With layer n_layers, only the head runs, on any
        positions."""
        raise NotImplementedError

    @abstractmethod
    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Return every parameter, under a name that does not depend on the class or the version of TransformerLens."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return everything other than the weights that decides a forward pass."""

    @abstractmethod
    def first_value(self, name: str) -> Literal["ones", "zeros", "drawn"]:
        """Return the value of a parameter before training, given its name in `model.named_parameters()`."""

    def copied(self, instead: Mapping[int, Any] | None = None) -> Any:
        """Make a copy of the model, including hooks, that shares nothing with it. `instead` maps the ids of parts to
        their replacements."""
        return copy.deepcopy(self.model, dict(instead or {}))

    def to(self, *where: torch.device | torch.dtype) -> None:
        """Move or convert the model. TransformerLens' own `to` reads all weights as often as there are any."""
        for target in where:
            torch.nn.Module.to(self.model, target)
            if isinstance(target, torch.dtype):
                self.model.cfg.dtype = target
            else:
                self.model.cfg.device = str(self.model.W_U.device)
