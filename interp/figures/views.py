"""circuitsvis views of tokens that may hold a `<`, which would end the script element that the tokens stand in."""

from collections.abc import Iterable
from typing import Any

__all__ = ["safe", "shielded"]

_STAND_IN, _STAND_IN_AS_JSON = "\ue000", "\\ue000"


def shielded(tokens: Iterable[str]) -> list[str]:
    """The tokens with a stand-in for each `<`."""
    return [token.replace("<", _STAND_IN) for token in tokens]


def safe(view: Any) -> Any:
    """The view with every stand-in as an escaped `<`."""
    view.local_src, view.cdn_src = (
        page.replace(_STAND_IN_AS_JSON, "\\u003c") for page in (view.local_src, view.cdn_src)
    )
    return view
