"""What removing any direction from the prediction head's input does: random directions, rare and frequent words, and
outlier dimensions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
