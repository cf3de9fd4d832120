"""interp: mechanistic interpretability of language models, as hook functions on TransformerLens."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULES = (
    "attention", "corpora", "distributed", "distributions", "encoding", "frequency", "generation", "hooks", "lm_head",
    "models", "moments", "observers", "outliers", "pairs", "passes", "paths", "plots", "probing", "qk", "report",
    "results", "running", "sites", "survey", "training", "unigrams",
)  # fmt: skip
_FUNCTIONS = {"load": "models", "observe": "observers"}

__all__ = [*_FUNCTIONS, *_MODULES]

if TYPE_CHECKING:
    from interp.models import load as load
    from interp.observers import observe as observe


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"interp.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"interp.{_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module 'interp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
