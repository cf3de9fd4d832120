"""One pass over a corpus for many observers, which can be resumed and divided among many processes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
