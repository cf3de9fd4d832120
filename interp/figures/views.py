"""What notebooks and pages show beside plotly's own figures: circuitsvis views of tokens, and figures as images.

A token may hold a `<`, which would end the script element that the tokens of a view stand in.
"""

from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.io.base_renderers import PngRenderer

__all__ = ["safe", "shielded", "show_images"]

_STAND_IN, _STAND_IN_AS_JSON = "\ue000", "\\ue000"


def shielded(tokens: Iterable[str]) -> list[str]:
    """The tokens with a stand-in for each `<`."""
    return [token.replace("<", _STAND_IN) for token in tokens]


def safe(view: Any) -> Any:
    """The view with every stand-in as an escaped `<`."""
    for name in ("local_src", "cdn_src"):
        setattr(view, name, getattr(view, name).replace(_STAND_IN_AS_JSON, "\\u003c"))
    return view


class _OnWhite(PngRenderer):
    """PNG on white, so that dark ink can be read on a dark page."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        on_white = fig_dict | {"layout": fig_dict["layout"] | {"paper_bgcolor": "white"}}
        return super().to_mimebundle(on_white)


def show_images() -> None:
    """From now on a notebook shows plotly figures as PNG images; as plotly does where that cannot be done.

    It needs kaleido and Chrome or Chromium (on the `PATH`, or where `BROWSER_PATH` says).
    """
    try:
        go.Figure().to_image("png")
    except (ValueError, RuntimeError):
        return
    pio.renderers["interp-images"] = _OnWhite(width=800, scale=1.4)
    pio.renderers.default = "interp-images"
