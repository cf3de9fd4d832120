"""The figures of a run directory, as files for a paper."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from interp.figures import paper
from interp.figures.paper import PaperStyle
from interp.figures.section import Section
from interp.pages.page import find_runs
from interp.pages.undrawn import Written
from interp.support.checks import check_choice
from interp.support.disk import replacing_directory

__all__ = ["check_figures", "write_figures", "written_figures"]


def write_figures(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    formats: Sequence[str] = ("pdf",),
    width: float | int = 3.3,
    style: PaperStyle = "paper",
) -> pd.DataFrame:
    """Write every figure of a run's page as a file for a paper, `out/<analysis>_<figure>.<format>`. Several runs get a
    folder each.

    Args:
        out: the folder to write to, which is replaced. Default: the folder `figures` in the directory.
        formats: one or more of pdf, svg and png.
        width: the width in inches: 3.3 for one column of two, 6.8 for both.
        style: `paper` leaves the title to the caption, `titled` writes it above the figure.

    Returns a table (file, caption) with one row per figure.

    Raises FileNotFoundError if there is no result, ValueError for another format, style or width, and FileExistsError
    if `out` holds anything that interp did not write.

    Examples:
        >>> import tempfile
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"first": [7, 8]}
        >>> found = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     saved = found.save(directory)
        ...     print(write_figures(directory, formats=["svg"])["file"].iloc[0])
        attention_dimension_means.svg
    """
    return written_figures(directory, out, formats=formats, width=width, style=style)[1]


def check_figures(formats: Sequence[str], width: float | int, style: PaperStyle) -> None:
    """Raise ValueError for a format, a width or a style that figures cannot have."""
    for form in formats:
        check_choice("format", form, paper.FORMATS)
    paper.check_look(width, style)


def written_figures(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    *,
    formats: Sequence[str],
    width: float | int,
    style: PaperStyle,
) -> tuple[Written, pd.DataFrame]:
    """Do what `write_figures` does, and tell what could not be drawn."""
    check_figures(formats, width, style)
    runs = find_runs(directory)
    rows = []
    written = Written(Path(directory) / "figures" if out is None else Path(out))
    with replacing_directory(written.path) as folder:
        for run in runs:
            within = Path(run.directory.name) if len(runs) > 1 else Path()
            (folder / within).mkdir(exist_ok=True)
            for analysis, result in run.results.items():
                drawing = f"interp {analysis} of {result.where}"
                part = written.attempt(
                    drawing, partial(getattr, result, "section"), partial(Section.undrawn, provenance=result.provenance)
                )
                for name, figure in part.figures.items():
                    files = [within / f"{analysis}_{name}.{ending}" for ending in formats]
                    for file in files:
                        paper.save(figure, folder / file, width=width, style=style)
                    rows.append((", ".join(map(str, files)), paper.caption(figure)))
    return written, pd.DataFrame(rows, columns=["file", "caption"])
