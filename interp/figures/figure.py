"""The figure that every plot returns: a plotly figure that can also be saved for a paper."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from interp.declare import find
from interp.paths import check_matplotlib

__all__ = ["Figure"]

if TYPE_CHECKING:
    from interp.figures.paper import PaperStyle


class Figure(go.Figure):
    """A plotly figure with a method `save`.

    Examples:
        >>> import tempfile
        >>> out = Figure().add_scatter(x=[1, 2, 3], y=[1, 4, 9])
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     out.save(f"{directory}/squares.pdf", width=3.3).name
        'squares.pdf'
    """

    def save(self, path: str | os.PathLike[str], *, width: float | int = 3.3, style: "PaperStyle" = "paper") -> Path:
        """Write the figure for a paper, as PDF, SVG or PNG; see `interp.figures.paper.save`.

        Raises the errors of that function, and ValueError without the extra `interp[figures]`.
        """
        check_matplotlib()
        written: Path = find("interp.figures.paper:save")(self, path, width=width, style=style)
        return written
