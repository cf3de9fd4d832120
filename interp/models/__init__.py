"""Models with raw weights, and what interp needs from them: sites, prediction head, QK circuit and hooks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
