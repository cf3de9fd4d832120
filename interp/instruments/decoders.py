"""Decoders by name, and how many rows they continue together. Imports nothing heavy."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

__all__ = ["CACHED_TOKENS", "DECODERS", "NEW_TOKENS", "PRESETS", "PROMPTS", "PROMPT_TOKENS", "Decoder"]
__all__ += ["batch_rows"]
__dir__ = __all__.copy

Decoder: TypeAlias = Literal["greedy", "beam", "sample", "top_k", "top_p"]
"""A decoder by name. `PRESETS` has the settings that each name stands for."""
DECODERS: tuple[Decoder, ...] = get_args(Decoder)
"""The names of decoders."""
CACHED_TOKENS = 8_192
"""The largest number of tokens whose keys and values are kept together, unless a single prompt needs more."""
PROMPTS = 100
"""The number of prompts, unless another is asked for."""
PROMPT_TOKENS = 10
"""The number of tokens of a prompt, unless another is asked for."""
NEW_TOKENS = 50
"""The number of tokens of a continuation, unless another is asked for."""
PRESETS: Mapping[Decoder, Mapping[str, Any]] = {
    "greedy": {"do_sample": False, "num_beams": 1},
    "beam": {"do_sample": False, "num_beams": 4},
    "sample": {"do_sample": True, "num_beams": 1, "top_k": 0, "top_p": 1.0},
    "top_k": {"do_sample": True, "num_beams": 1, "top_k": 50, "top_p": 1.0},
    "top_p": {"do_sample": True, "num_beams": 1, "top_k": 0, "top_p": 0.95},
}
"""The transformers settings that a decoder's name stands for, all with temperature 1 and no penalties."""


def batch_rows(length: int) -> int:
    """Return the number of rows of this many tokens, prompt and continuation, that are continued together. A prompt has
    a row for each of its beams or samples."""
    return max(1, CACHED_TOKENS // length)
