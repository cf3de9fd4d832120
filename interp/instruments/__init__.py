"""What several questions measure with: observers, divergences, regressions, decoding. They know no question."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
