"""What the decomposition of a model's attention scores costs, from its config alone."""

from dataclasses import dataclass
from typing import Any

import transformers

from interp.models import ARCHITECTURES
from interp.paths import model_directory

_GATED = ("llama", "mistral", "qwen2")


@dataclass(frozen=True)
class Cost:
    """Memory of the sums in bytes, floating-point operations a token, and rows of the table `scores`.

    A multiplication and an addition are two operations. `forward` is the blocks' matrix products, without the
    attention's own `4 T n_heads d_head` and without the unembedding.
    """

    n_layers: int
    n_heads: int
    d_model: int
    n_classes: int
    contribution_bytes: int
    profile_bytes: int
    forward: float
    contributions: float
    centred: float
    rows: int

    @property
    def ratio(self) -> float:
        """What mean and key-centred contributions add to the forward pass."""
        return (self.contributions + self.centred) / self.forward


def cost(name: str, *, n_classes: int | None = None, sequence: int = 128) -> Cost:
    """The cost of `ScoreContributions` and `DimensionProfile` for a hub name or a directory with a config.json.

    Causal models: `2 n_heads d_head d_model` operations a token and layer for the means, and as many for each class
    but one to centre them. Encoders sum over a sequence first: that for each class, twice, once a `sequence` of tokens.

    Raises FileNotFoundError where there is no config, ValueError for an unsupported architecture.
    """
    directory = model_directory(name, weights=False)
    try:
        config: Any = transformers.AutoConfig.from_pretrained(str(directory or name), trust_remote_code=False)
    except OSError as error:
        raise FileNotFoundError(f"no config of {name!r} is to be had: {str(error).splitlines()[0]}") from None
    if config.model_type not in ARCHITECTURES:
        raise ValueError(f"{name} is a {config.model_type} model; expected one of {', '.join(ARCHITECTURES)}")
    encoder = config.model_type == "bert"
    classes = n_classes or (4 if encoder else 3)
    layers, heads, d_model = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
    d_head = getattr(config, "head_dim", None) or d_model // heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    d_mlp = next((getattr(config, n) for n in ("intermediate_size", "n_inner", "ffn_dim") if getattr(config, n, 0)), 0)
    matrices = 3 if config.model_type in _GATED else 2
    weights = d_model * d_head * (2 * heads + 2 * keys) + matrices * d_model * (d_mlp or 4 * d_model)
    product = 2.0 * heads * d_head * d_model
    once = classes * product / sequence if encoder else product
    return Cost(
        n_layers=layers,
        n_heads=heads,
        d_model=d_model,
        n_classes=classes,
        contribution_bytes=8 * layers * heads * classes * (2 * d_model + d_head + 1),
        profile_bytes=8 * 3 * (2 * layers + 1) * classes * d_model,
        forward=2.0 * layers * weights,
        contributions=layers * once,
        centred=layers * (once if encoder else (classes - 1) * product),
        rows=layers * heads * classes * d_model,
    )
