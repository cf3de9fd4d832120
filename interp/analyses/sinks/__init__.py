"""Attention sinks: which heads and positions they are, what draws attention there, and what writes massive
activations."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
