"""What notebooks and pages show in addition to plotly figures: circuitsvis views of tokens, and figures as images.

circuitsvis interprets tokens as HTML: `<s>` would strike out what follows, and `</script>` would end the script that
contains the tokens of a view.
"""

from collections.abc import Iterable
from html import escape
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.io.base_renderers import PngRenderer

__all__ = ["as_html", "show_images"]


def as_html(tokens: Iterable[str]) -> list[str]:
    """Escape tokens for a circuitsvis view, so that it shows them literally."""
    return [escape(token, quote=False) for token in tokens]


class _OnWhite(PngRenderer):
    """PNG on white, so that dark ink can be read on a dark page."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        on_white = dict(fig_dict, layout=dict(fig_dict["layout"], paper_bgcolor="white"))
        return super().to_mimebundle(on_white)


def show_images() -> None:
    """Make a notebook show plotly figures as PNG images from now on. Figures are shown as usual if this is not
    possible.

    It needs kaleido, and Chrome or Chromium (on the `PATH` or in `BROWSER_PATH`).
    """
    try:
        go.Figure().to_image("png")
    except (ValueError, RuntimeError):
        return
    pio.renderers["interp-images"] = _OnWhite(width=800, scale=1.4)
    pio.renderers.default = "interp-images"
