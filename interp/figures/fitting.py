"""Makes text fit in a figure for a paper: folds labels, thins out ticks, and moves notes apart."""

import re
import textwrap
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text

from interp.figures.traces import INDEX, Plot

__all__ = ["POINTS", "fit", "folded"]

POINTS = 8
"""The size of all type except indices."""
_INCH = 72
_LINE = 1.25 * POINTS / _INCH
_FEW_ROWS = 10


def folded(text: str, width: float) -> str:
    """Break text into lines of at most this many inches."""
    return "\n".join(_wrapped(line, max(8, int(width * _INCH / (0.58 * POINTS)))) for line in text.split("\n"))


def _wrapped(text: str, letters: int) -> str:
    """Text broken into lines of at most this many letters, counting the visible letters of indices."""
    indices = INDEX.finditer(text)
    filled = textwrap.fill(INDEX.sub(lambda match: "\0" * len(match[1]), text), letters, break_long_words=False)
    return re.sub("\0+", lambda _: next(indices)[0], filled)


def fit(out: Figure, plots: list[Plot]) -> None:
    """Fold labels that are longer than their axis, and give the axes the height that they need."""
    for plot in plots:
        _name_ticks(plot)
    placed = False
    for _ in range(8):
        out.draw_without_rendering()
        lacking: dict[int, float] = {}
        for plot in plots:
            row = plot.axes.get_subplotspec().rowspan.start
            height = _height(plot) - plot.axes.get_window_extent().height / out.dpi
            lacking[row] = max(lacking.get(row, height), height)
        missing = sum(lacking.values())
        changed = [_fold(*label) for label in _labels(plots)]
        if abs(missing) < 0.02:
            changed.extend(map(_thin, plots))
        if abs(missing) < 0.02 and not any(changed):
            if placed:
                return
            for plot in plots:
                _place_notes(plot)
            placed = True
        out.set_figheight(max(0.8, out.get_figheight() + missing))


def _height(plot: Plot) -> float:
    """The height of axes in inches, in proportion to their width or as needed by their labels."""
    box = plot.axes.get_window_extent()
    categories = plot.categories("y")
    labels = plot.axes.get_yticklabels() if categories is not None or plot.y.tickvals is not None else []
    lines = [1 + label.get_text().count("\n") for label in labels]
    needed = len(lines) * _LINE * max((sum(two) / 2 for two in pairwise(lines)), default=1)
    return max(min(2.6, max(1.2, 0.66 * box.width / plot.axes.figure.dpi)), needed)


def _labels(plots: list[Plot]) -> Iterator[tuple[Text, float, float]]:
    """Labels of axes and colour bars and names of panels, each with its length and the available room."""
    for axes in plots[0].axes.figure.axes:
        yield axes.yaxis.label, axes.yaxis.label.get_window_extent().height, axes.get_window_extent().height
    for plot in plots:
        axes = plot.axes
        room = axes.figure.bbox.width / axes.get_subplotspec().get_gridspec().ncols - 6
        for label in (axes.xaxis.label, axes.title):
            yield label, label.get_window_extent().width, room


def _fold(label: Text, length: float, room: float) -> bool:
    """Fold a label that is longer than the height of its axes, or wider than its part of the page. Returns whether it
    was folded.
    """
    text = label.get_text().replace("\n", " ")
    if length <= room + 2 or " " not in text:
        return False
    lines = label.get_text().count("\n") + 2
    label.set_text(_wrapped(text, max(6, -(-len(text) // lines) + 3)))
    return True


def _name_ticks(plot: Plot) -> None:
    """Write long names of categories in two lines, and vertically at the bottom if they do not fit next to one
    another."""
    width = plot.axes.figure.get_figwidth() / plot.axes.get_subplotspec().get_gridspec().ncols
    if _named_ticks(plot, "y"):
        names = [label.get_text() for label in plot.axes.get_yticklabels()]
        room = (0.3 if len(names) <= _FEW_ROWS else 0.45) * width
        plot.axes.yaxis.set_ticks(plot.axes.get_yticks(), [folded(name, room) for name in names])
    if _named_ticks(plot, "x"):
        names = [label.get_text() for label in plot.axes.get_xticklabels()]
        room = 0.72 * width / max(1, len(names))
        longest = max(map(len, " ".join(names).split()), default=0)
        upright = longest * 0.58 * POINTS / _INCH <= room
        labels = [folded(name, room if upright else 1.3) for name in names]
        plot.axes.xaxis.set_ticks(plot.axes.get_xticks(), labels, rotation=0 if upright else 90)


def _named_ticks(plot: Plot, name: str) -> bool:
    axis = getattr(plot, name)
    return axis.ticktext is not None or plot.categories(name) is not None


def _thin(plot: Plot) -> bool:
    """Leave out tick labels that overlap, and numbers in cells that are too small. Returns whether any was left out."""
    changed = False
    for axis in (plot.axes.xaxis, plot.axes.yaxis):
        labels = [label for label in axis.get_ticklabels() if label.get_visible() and label.get_text()]
        step = 1
        while _overlap(labels[::step]):
            step += 1
        if step > 1:
            places = [label.get_position()[axis is plot.axes.yaxis] for label in labels[::step]]
            axis.set_ticks(places, [label.get_text() for label in labels[::step]])
            changed = True
    cells = [cell for cell in plot.axes.texts if cell.get_gid() == "cell"]
    if len(cells) > 1 and _overlap(cells):
        for cell in cells:
            cell.remove()
        changed = True
    return changed


def _place_notes(plot: Plot) -> None:
    """Move notes that lie outside the axes inside. Notes that overlap others go to another side of their point, or else
    one line higher. The panel's name stays above all of them."""
    inside = plot.axes.get_window_extent()
    placed: list[Any] = []
    for note in plot.axes.texts:
        if note.get_gid() != "note":
            continue
        box = note.get_window_extent().padded(1)
        across = max(0.0, inside.x0 + 2 - box.x0) - max(0.0, box.x1 - inside.x1)
        up = max(0.0, inside.y0 + 2 - box.y0)
        moves = [(across, up)]
        for x, y in _sides(note, box):
            moves.append((across + x, up + y))
        across, up = moves[0]
        for move in moves:
            if not _in_the_way(placed, box.translated(*move)):
                across, up = move
                break
        while below := _in_the_way(placed, box.translated(across, up)):
            up = below[0].y1 - box.y0 + 0.1
        placed.append(box.translated(across, up))
        x, y = note.get_position()
        note.set_position((x + across * _INCH / note.figure.dpi, y + up * _INCH / note.figure.dpi))
    if name := plot.axes.get_title():
        above = max([0.0, *(box.y1 - inside.y1 for box in placed)])
        plot.axes.set_title(name, pad=3 + above * _INCH / plot.axes.figure.dpi)


def _sides(note: Any, box: Any) -> list[tuple[float, float]]:
    """How far to move a note below the point that it names, and to the left and right of it."""
    if note.xycoords != ("data", "data"):
        return []
    x, y = note.axes.transData.transform(note.xy)
    sideways = (x - 3 - box.x1, x + 3 - box.x0)
    level = y - (box.y0 + box.y1) / 2
    below = y - 3 - box.y1
    sides = [(0.0, below)]
    for up in (level, 0.0, below):
        sides.extend((across, up) for across in sideways)
    return sides


def _in_the_way(boxes: list[Any], box: Any) -> list[Any]:
    """The boxes that a box overlaps."""
    return [other for other in boxes if other.overlaps(box)]


def _overlap(texts: list[Any]) -> bool:
    """Whether any two texts overlap."""
    boxes = [text.get_window_extent() for text in texts]
    return any(box.overlaps(other) for box, other in combinations(boxes, 2))
