"""Question 2: which residual dimensions decide an attention score, and where attention goes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
