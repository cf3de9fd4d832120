"""The figure that every plot returns: a plotly figure that can also be saved for a paper."""

import base64
import os
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from interp.support.paths import check_matplotlib

__all__ = ["Figure", "with_arrays"]

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
        written: Path = resolve_name("interp.figures.paper:save")(self, path, width=width, style=style)
        return written


def with_arrays(figure: go.Figure) -> go.Figure:
    """Make a copy of a figure in which every array is a numpy array. In one that `plotly.io.read_json` has read, arrays
    are mappings with base64.

    Examples:
        >>> import plotly.io
        >>> read = plotly.io.from_json(Figure().add_scatter(y=np.array([1.5, 4.0])).to_json())
        >>> type(read.data[0].y).__name__, with_arrays(read).data[0].y
        ('dict', array([1.5, 4. ]))
    """
    return go.Figure(_decoded(figure.to_dict()))


def _decoded(part: Any) -> Any:
    if isinstance(part, list | tuple):
        return [_decoded(item) for item in part]
    if not isinstance(part, dict):
        return part
    if not {"bdata", "dtype"} <= part.keys():
        return {name: _decoded(item) for name, item in part.items()}
    array = np.frombuffer(base64.b64decode(part["bdata"]), np.dtype(part["dtype"]))
    shape = part.get("shape", array.shape)
    return array.reshape(list(map(int, shape.split(","))) if isinstance(shape, str) else shape)
