"""A result in a notebook: its card from the page."""

import base64
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from markupsafe import Markup

from interp.analyses.registry import load
from interp.pages.page import style, templates
from interp.results.result import Result

__all__ = ["card"]

_WIDTH = 5.0  # inches of the figure


def card(result: Result) -> str:
    """The findings of a result next to its main figure, as HTML without scripts. Without matplotlib, it says what to
    install in place of the figure.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> classes = {"first": [7, 8]}
        >>> study = interp.attention.study(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> print(card(study).splitlines()[0])
        <div class="interp">
    """
    part = replace(result.section, contexts={})  # they need a script to open
    figure = part.figures[part.main]
    image = ""
    problem = ""
    try:
        with TemporaryDirectory() as folder:
            image = base64.b64encode(figure.save(Path(folder) / "figure.svg", width=_WIDTH).read_bytes()).decode()
    except ValueError as error:
        problem = str(error)
    return (
        templates()
        .get_template("card.html")
        .render(
            title=f"{load(result.analysis).title}: {result.where}",
            section=part,
            figure=figure,
            image=image,
            why=problem,
            style=Markup(style().replace(":root", "&")),
        )
    )
