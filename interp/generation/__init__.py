"""Question 1, in what a model writes: text decoded with hooks active."""

from interp.generation.decoding import DECODERS, PRESETS, Decoder, Generation, generate

__all__ = ["DECODERS", "PRESETS", "Decoder", "Generation", "generate"]
