"""What a model's config.json alone says of its size: enough to count memory and operations before loading it."""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from interp.checks import whole_number
from interp.models.pretrained import MASKED, model_class, read_config
from interp.paths import model_directory

__all__ = ["Cost", "Shape", "cost", "shape"]

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; `block_weights` are those of the matrices of one block that a token passes through, of
    experts as many as are chosen for it."""

    encoder: bool
    n_layers: int
    n_heads: int
    n_key_value_heads: int
    d_model: int
    d_head: int
    block_weights: int

    @property
    def forward(self) -> float:
        """Operations per token of the blocks' matrix products, without attention's own `4 T n_heads d_head` per layer.

        A multiplication and an addition are two operations.
        """
        return 2.0 * self.n_layers * self.block_weights


class Cost(NamedTuple):
    """What `--dry-run` prints: `lines` to read, or `numbers` by name with `--json`."""

    numbers: dict[str, Any]
    lines: list[str]


def cost(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """What any analysis costs: the forward passes."""
    size = shape(name)
    lines = [
        f"{size.n_layers} layers, {size.n_heads} heads, d_model {size.d_model}",
        f"weights of the blocks: {size.n_layers * size.block_weights * 4 / 2**20:,.0f} MiB in float32",
        f"blocks of the forward pass: {size.forward / 1e9:,.3f} GFLOP per token",
    ]
    return Cost(asdict(size) | {"forward": size.forward}, lines)


def shape(name: str) -> Shape:
    """The shape of a hub name or a directory with a config.json.

    Raises FileNotFoundError where there is no config, ValueError for an unsupported architecture and a size below 1,
    TypeError for a size that is no whole number.
    """
    directory = model_directory(name, weights=False)
    config = read_config(str(directory or name))

    def size(what: str, value: Any) -> int:
        return whole_number(value, f"{what} in the config.json of {name}", least=1)

    heads = size("num_attention_heads", config.num_attention_heads)
    d_model = size("hidden_size", config.hidden_size)
    return Shape(
        encoder=config.model_type in MASKED,
        n_layers=size("num_hidden_layers", config.num_hidden_layers),
        n_heads=heads,
        n_key_value_heads=size("num_key_value_heads", getattr(config, "num_key_value_heads", None) or heads),
        d_model=d_model,
        d_head=size("head_dim", getattr(config, "head_dim", None) or d_model // heads),
        block_weights=_weights_of_block(config),
    )


def _weights_of_block(config: Any) -> int:
    """Numbers in the matrices of a block (the fourth, where the first ones may be of another kind)."""
    number = min(config.num_hidden_layers, 4)
    config = copy.deepcopy(config)
    config.num_hidden_layers = number
    with torch.device("meta"):
        model = model_class(config)(config)
    n_experts = next((getattr(config, name) for name in _EXPERTS if getattr(config, name, None)), None)
    chosen = 1.0 if n_experts is None else getattr(config, "num_experts_per_tok", n_experts) / n_experts
    total = 0.0
    for name, parameter in model.named_parameters():
        if f".{number - 1}." in name and parameter.ndim > 1 and "bias" not in name:
            total += parameter.numel() * (chosen if ".experts." in name else 1)
    return round(total)
