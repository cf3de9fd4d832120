"""What every room uses: files, memory, paths, checks of arguments, and words. Knows nothing of models."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
