"""The picture of a page, which other sites show next to a link to it."""

import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.image import imread

from interp.figures.paper import SETTINGS
from interp.figures.section import Section
from interp.figures.style import GREY, INK
from interp.support.disk import replacing
from interp.support.words import sentence

__all__ = ["write_picture"]

_INCHES = (12.0, 6.3)
_DOTS = 100  # an inch: 1,200 by 630 pixels, as other sites expect
_DRAWN = 3.3  # inches of the figure, at which its type is as large as that of the text
_SPACED = 1.25
_WIDE = 540  # letters of one-point type in a line
_COLOURS = {"yes": "#00664d", "partly": "#7a5200"}


@matplotlib.rc_context(SETTINGS)
def write_picture(target: Path, title: str, part: Section) -> None:
    """Write a PNG of 1,200 by 630 pixels that shows a section's first findings next to its main figure."""
    with TemporaryDirectory() as folder:
        drawn = imread(part.figures[part.main].save(Path(folder) / "figure.png", width=_DRAWN))
    out = Figure(figsize=_INCHES, dpi=_DOTS)
    axes = out.add_axes((0.45, 0.05, 0.52, 0.9))
    axes.imshow(drawn)
    axes.set_axis_off()
    paragraphs: list[tuple[str, int, dict[str, Any]]] = [(f"interp · {title}", 14, {"color": GREY})]
    if part.findings:
        lead = part.findings[0]
        colour = _COLOURS.get(lead.verdict, GREY)
        paragraphs += [(lead.question, 22, {"weight": "bold"}), (sentence(lead.grounds), 14, {})]
        paragraphs.append((lead.answer.capitalize(), 22, {"color": colour}))
    else:
        paragraphs.append((part.notes[0], 18, {}))
    top = 0.93
    for text, points, look in paragraphs:
        lines = textwrap.wrap(text, _WIDE // points, max_lines=8, placeholder=" …")
        usual: dict[str, Any] = {"color": INK, "linespacing": _SPACED, "parse_math": False}
        out.text(0.03, top, "\n".join(lines), size=points, va="top", **usual | look)
        top -= (_SPACED * len(lines) + 1) * points / 72 / _INCHES[1]
    with replacing(target) as temporary:
        out.savefig(temporary, format="png", dpi=_DOTS, metadata={"Software": "interp"})
