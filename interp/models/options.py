"""What is asked of a model, for those who do not want to import one."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from interp.declare import option

__all__ = ["Bias", "Mode", "ModelOptions"]

Bias: TypeAlias = Literal["ln", "fc", "last"]
"""The biases of a prediction head: that of its last norm, of the dense layer before it (BERT), of the logits."""
Mode: TypeAlias = Literal["zero", "mean"]
"""What a removed dimension is set to."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model is loaded: the keywords of `interp.load`."""

    device: str | None = option(None, "cpu, cuda, …  Default: cuda if there is one.")
    dtype: str | None = option(None, "Of the weights: float32, bfloat16, float16 or float64. Default: float32.")
    revision: str | None = option(None, "Branch, tag or commit of a hub repository.")
    checkpoint: int | None = option(
        None, "Training step of a model that has them (Pythia, Stanford's GPT-2s).", least=0
    )
