"""Attention sinks and massive activations: where they are, what makes them, and which components write them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
