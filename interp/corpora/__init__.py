"""Text: sources, minimal pairs, batches for a model, token classes and token counts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
