"""The choices that options and arguments have in common, as types. Imports nothing heavy."""

from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal, TypeAlias, TypeVar

__all__ = ["Average", "Backend", "Bias", "Bos", "Direction", "Dtype", "Layout", "Mode", "Position", "Rule", "Scaled"]
__all__ += ["Several", "Spread", "Weights", "listed"]
__dir__ = __all__.copy

_T = TypeVar("_T")
Several: TypeAlias = _T | Sequence[_T]
"""One value or a list of values. An option turns it into a tuple."""

Layout: TypeAlias = Literal["packed", "texts"]
"""The rows of a batch: texts joined together, or one text per row."""
Bos: TypeAlias = bool | Literal["auto", "rows", "texts"]
"""Where a beginning-of-sequence token stands; see `interp.corpora.frames`."""
Bias: TypeAlias = Literal["ln", "fc", "last"]
"""The biases of a prediction head: of its last norm, of the dense layer before that (BERT), and of the logits."""
Direction: TypeAlias = Literal["mean", "slope"]
"""Directions in a prediction head's input: its mean, and the slope of log-probability on the output embeddings."""
Scaled: TypeAlias = Literal["ln", "mean"]
"""What is scaled while text is generated: b_LN, or the mean input of the unembedding."""
Backend: TypeAlias = Literal["hooked", "bridge"]
"""TransformerLens' own implementation of a model, or transformers' implementation in a `TransformerBridge`."""
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "float64", "auto"]
"""The type of a model's weights in memory; auto is that of its files."""
Spread: TypeAlias = Literal["auto", "balanced", "balanced_low_0", "sequential"]
"""How accelerate divides a model among GPUs."""
Mode: TypeAlias = Literal["zero", "mean"]
"""What a removed dimension is set to."""
Position: TypeAlias = Literal["eos", "last", "mean", "cls"]
"""Where the vector of a sentence is read: at the token that ends it, its last own token, [CLS], or all, as a mean."""
Rule: TypeAlias = Literal["robust", "sd"]
"""How outliers are found: by median and MAD over dimensions, or by mean and SD."""
Weights: TypeAlias = Literal["mean", "attention"]
"""How pairs of a query and a key are weighted."""
Average: TypeAlias = Literal["pair", "sentence"]
"""What means are over: all pairs of a query and a key, or the means of sentences."""


def listed(values: Any) -> list[Any]:
    """Return the given values as a list, also if a single name or number was given.

    Examples:
        >>> listed("ln"), listed(3), listed((1, 2))
        (['ln'], [3], [1, 2])
    """
    return [values] if isinstance(values, str | Real) else list(values)
