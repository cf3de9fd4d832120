"""Training of the two small models that ship with the package: a GPT-2 and a BERT, on plain text, on a CPU."""

from interp.training.run import train

__all__ = ["train"]
