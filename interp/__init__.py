"""interp: mechanistic interpretability of language models, as hook functions on TransformerLens."""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
