"""One pass over a corpus, many observers: alone, side by side, resumed, and on many processes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
