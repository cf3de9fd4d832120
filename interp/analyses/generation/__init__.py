"""Question 1 in generated text, which is decoded with hooks active."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
