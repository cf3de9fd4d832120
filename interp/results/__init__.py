"""Tidy tables with provenance, findings and their intervals: saved, loaded and exported."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
