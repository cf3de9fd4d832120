"""The sizes of a model according to config.json and the headers of the safetensors files. They are enough to estimate
memory and operations before loading it; no weight is read."""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from interp.models.bridge import why_not_linear
from interp.models.footprint import TOKENS_PER_ROW, Widths, floating_type
from interp.models.hooked import NoHead
from interp.models.loading.pretrained import (
    HOOKED,
    MASKED,
    Stored,
    context_of,
    headless,
    model_class,
    on_hub,
    read_config,
)
from interp.support.checks import refuse, whole_number
from interp.support.choices import Backend, Bias
from interp.support.paths import adapter_directory, model_directory

__all__ = ["Shape", "shape", "shape_with"]

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_MLP_WIDTHS = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "encoder_ffn_dim")
_EAGER = ("bert", "roberta", "opt", "gptj", "gpt_neo", "bloom", "gpt_oss")
"""Kinds of models whose attention TransformerLens leaves to transformers, or that have special scores."""
_GATES = ("gate", "wi_1", "w3")
_IN_BLOCK = re.compile(r"\.\d+\.")


@dataclass(frozen=True, kw_only=True)
class Shape(Widths):
    """The sizes of a model according to its files.

    `block_weights` counts the weights of one block that a token passes through; of experts, only those that are chosen
    count. `parameters` counts all numbers of the checkpoint once, and `stored` is the type of most of them. `tied` says
    whether output and input embeddings are the same. `context` is the longest row, or None without a limit. `biases`
    are those of the prediction head, and `why_no_head` says why there is none. `hooked` says whether TransformerLens
    has its own implementation, `eager_bridge` whether a bridge runs transformers' eager attention, and `linear_scores`
    whether attention scores are sums over residual dimensions.
    """

    encoder: bool
    n_layers: int
    block_weights: int
    parameters: int
    stored: str
    tied: bool
    context: int | None
    biases: tuple[Bias, ...]
    why_no_head: str | None
    hooked: bool
    eager_bridge: bool
    linear_scores: bool

    @property
    def forward(self) -> float:
        """Operations per token for the matrix products of the blocks, without those between queries, keys and values.

        A multiplication and an addition are two operations.
        """
        return 2.0 * self.n_layers * self.block_weights

    @property
    def n_ctx(self) -> int:
        """The context of the model in memory."""
        return self.context or TOKENS_PER_ROW

    def attention(self, context: int) -> float:
        """Return the operations per token between queries, keys and values: `4 T n_heads d_head` per layer in rows of T
        tokens. Causal models need half of that, because queries see half of the keys."""
        return self.n_layers * (4.0 if self.encoder else 2.0) * context * self.n_heads * self.d_head

    def dtype(self, requested: str | None) -> torch.dtype:
        """Return the type of the weights in memory for a given `dtype` of `interp.load`. Raises ValueError if it is not
        a floating-point type."""
        return floating_type(self.stored if requested == "auto" else requested or "float32")

    def backend(self, requested: Backend | None) -> Backend:
        """Return the backend that `interp.load` uses, if TransformerLens can convert the model."""
        return requested or ("hooked" if self.hooked else "bridge")

    def weights_bytes(self, dtype: torch.dtype, backend: Backend) -> int:
        """Return the bytes of the weights in memory. TransformerLens' own models store output embeddings even if
        tied."""
        numbers = self.parameters + (self.d_model * self.d_vocab if backend == "hooked" and self.tied else 0)
        return numbers * dtype.itemsize

    def row(self, context: int | None) -> int:
        """Return the number of tokens in a row of text for a given `context`. Raises ValueError if the model cannot
        read as many."""
        longest = self.context or context or TOKENS_PER_ROW
        length = min(longest, TOKENS_PER_ROW) if context is None else context
        shortest = 3 if self.encoder else 2
        expected = f"context must be {shortest} … {longest} tokens for this model"
        refuse({f"{expected}, found {length}; choose one within this range": not shortest <= length <= longest})
        return length


def shape(name: str, revision: str | None = None, checkpoint: int | None = None) -> Shape:
    """Return the shape of a hub name or a directory with a config.json; the rest is as in `interp.load`.

    Raises FileNotFoundError if there is no config, ValueError for an unsupported architecture or a size below 1, and
    TypeError for a size that is not a whole number.

    Examples:
        >>> tiny = shape("tiny-gpt2")
        >>> tiny.d_model, tiny.n_layers, tiny.context, tiny.tied
        (192, 6, 128, True)
    """
    directory = model_directory(name, weights=False)
    source, revision = (str(directory), None) if directory else on_hub(name, revision, checkpoint)
    config = read_config(source, revision)

    def size(label: str, value: Any) -> int:
        return whole_number(value, f"{label} in the config.json of {name}", least=1)

    if getattr(config, "num_attention_heads", None) is None:
        raise ValueError(f"{name} is a {config.model_type!r} model without attention heads; expected a transformer")
    heads, d_model = size("num_attention_heads", config.num_attention_heads), size("hidden_size", config.hidden_size)
    n_key_value_heads = size("num_key_value_heads", getattr(config, "num_key_value_heads", None) or heads)
    d_head = size("head_dim", getattr(config, "head_dim", None) or d_model // heads)
    mlp = _first_of(config, _MLP_WIDTHS) or 4 * d_model
    n_layers = size("num_hidden_layers", config.num_hidden_layers)
    empty = _empty(name, config)
    weights = dict(empty.named_parameters())
    of_blocks = {label: weight for label, weight in weights.items() if _IN_BLOCK.search(label)}
    stored = Stored(source, revision, config, "bridge")
    is_floating = bool(stored.n_numbers) and stored.dtype.is_floating_point
    if getattr(config, "quantization_config", None) is not None and not is_floating:
        remedy = "give the same model in a floating-point type"
        raise ValueError(f"{name} has quantised weights, of which interp cannot tell the memory; {remedy}")
    declared = getattr(config, "dtype", None)
    return Shape(
        n_heads=heads,
        n_key_value_heads=n_key_value_heads,
        d_model=d_model,
        d_head=d_head,
        d_mlp=size("the width of the MLP", mlp),
        d_vocab=size("vocab_size", config.vocab_size),
        gated=any(part in label for label in of_blocks for part in _GATES),
        encoder=config.model_type in MASKED,
        n_layers=n_layers,
        block_weights=round(_active(config, of_blocks) / n_layers),
        parameters=stored.n_numbers or sum(weight.numel() for weight in weights.values()),
        stored=str(stored.dtype if stored.n_numbers else declared or torch.float32).removeprefix("torch."),
        tied=bool(getattr(config, "tie_word_embeddings", False)) and not headless(config),
        context=context_of(config),
        biases=tuple(_biases(config, weights)),
        why_no_head=NoHead.why if headless(config) else None,
        hooked=config.model_type in HOOKED,
        eager_bridge=config.model_type in _EAGER or bool(getattr(config, "attn_logit_softcapping", None)),
        linear_scores=not any([*why_not_linear(config, module)] for module in empty.modules()),
    )


def shape_with(name: str, options: Mapping[str, Any]) -> Shape:
    """Return the `shape` of a model that is loaded with these options. Raises the errors of `adapter_directory` too."""
    if (adapter := options.get("adapter")) is not None:
        adapter_directory(adapter)
    return shape(name, options.get("revision"), options.get("checkpoint"))


def _empty(name: str, config: Any) -> Any:
    """The transformers model of a config, whose weights take no memory."""
    try:
        with torch.device("meta"):
            return model_class(config)(copy.deepcopy(config))
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        reason = f"transformers cannot make a model of it: {error!r}"
        raise ValueError(f"the config.json of {name} is not that of a {config.model_type} model: {reason}") from error


def _first_of(config: Any, names: Iterable[str]) -> Any:
    """The first of these settings that a config has and that is not 0, or None."""
    for name in names:
        if value := getattr(config, name, None):
            return value
    return None


def _active(config: Any, weights: Mapping[str, torch.Tensor]) -> float:
    """The number of weights in matrices of these that a token passes through. Of experts, only some are chosen."""
    n_experts = _first_of(config, _EXPERTS)
    chosen = 1.0 if n_experts is None else getattr(config, "num_experts_per_tok", n_experts) / n_experts
    total = 0.0
    for name, weight in weights.items():
        if weight.ndim > 1 and "bias" not in name:
            total += weight.numel() * (chosen if ".experts." in name else 1)
    return total


def _biases(config: Any, names: Iterable[str]) -> Iterator[Bias]:
    """The biases of a prediction head; of a decoder's, found by the names of its parameters."""
    if config.model_type in MASKED:
        yield from () if headless(config) else ("ln", "fc", "last")
        return
    biases: set[Bias] = set()
    for name in names:
        *path, leaf = name.split(".")
        if leaf != "bias" or any(map(str.isdecimal, path)):  # of a block
            continue
        if ("norm" in path[-1] or "ln_f" in name) and "embed" not in name:
            biases.add("ln")
        if path[-1] in ("lm_head", "embed_out", "output"):
            biases.add("last")
    yield from sorted(biases, reverse=True)
