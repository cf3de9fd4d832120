"""A run directory → one self-contained HTML page."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from interp.encoding import EncodingStudy
from interp.files import replacing
from interp.frequency import BiasEffect
from interp.generation import GenerationSweep
from interp.outliers import AttentionStudy
from interp.probing import ProbingStudy
from interp.report.attention import attention_section
from interp.report.encoding import encoding_section
from interp.report.frequency import frequency_section
from interp.report.generation import generation_section
from interp.report.probing import probing_section
from interp.report.section import Section
from interp.results import Result

_TEMPLATE = Path(__file__).parent / "page.html"
_SECTIONS: tuple[tuple[type[Result], Callable[[Any], Section]], ...] = (
    (BiasEffect, frequency_section),
    (GenerationSweep, generation_section),
    (AttentionStudy, attention_section),
    (EncodingStudy, encoding_section),
    (ProbingStudy, probing_section),
)


def write_page(directory: str | os.PathLike[str], sections: dict[str, list[Section]] | None = None) -> Path:
    """Write `directory/index.html` from the results in it, or in its subdirectories.

    The page opens from disk without a network: plotly is inside, once.

    Args:
        sections: by heading (a model's name); read from the results in the directory if not given.

    Raises FileNotFoundError where there is no result.
    """
    root = Path(directory)
    sections = sections or _sections(root)
    if not sections:
        raise FileNotFoundError(f"{root} holds no result to write a page of")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    page = template.render(
        title=" · ".join(sections),
        groups=sections,
        plotlyjs=get_plotlyjs(),
        figure_json=_figure_json,
        cell=_cell,
    )
    target = root / "index.html"
    with replacing(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target


def _sections(root: Path) -> dict[str, list[Section]]:
    found: dict[str, list[Section]] = {}
    for kind, section in _SECTIONS:
        name = f"{kind.analysis}/result.json"
        for path in sorted([*root.glob(name), *root.glob(f"*/{name}")]):
            result = kind.load(path.parent.parent)
            heading = f"{Path(result.provenance['model']).name} on {result.provenance['corpus']}"
            found.setdefault(heading, []).append(section(result))
    return found


def _figure_json(figure: go.Figure) -> str:
    """A figure as JSON that is safe inside a script element."""
    text = figure.to_json()
    for character, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(character, code)
    return text


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        number = float(value)
        return "–" if np.isnan(number) else f"{number:.4g}" if abs(number) < 1000 else f"{number:,.0f}"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
