"""Question 1, in what a model writes: text decoded with hooks active."""

from interp.generation.decoding import DECODERS, PRESETS, Decoder, Generation, generate
from interp.generation.metrics import MAUVE_MODEL, frequent_types, mauve_scores, text_features, text_metrics
from interp.generation.prompts import Prompts, prompts
from interp.generation.sweep import GenerationSweep, sweep

__all__ = [
    "DECODERS", "MAUVE_MODEL", "PRESETS", "Decoder", "Generation", "GenerationSweep", "Prompts", "frequent_types",
    "generate", "mauve_scores", "prompts", "sweep", "text_features", "text_metrics",
]  # fmt: skip
