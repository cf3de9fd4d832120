"""Units (residual dimensions, MLP neurons, dimensions of heads) that tell the sentences of minimal pairs apart, and
which of them tasks share."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
