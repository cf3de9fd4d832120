"""What pages show of each analysis."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from interp.attention import AttentionStudy, comparison as attention_sides, page as attention
from interp.encoding import EncodingStudy, comparison as encoding_sides, page as encoding
from interp.figures.runs import Sides
from interp.figures.section import Question, Section
from interp.frequency import BiasEffect, comparison as frequency_sides, page as frequency
from interp.generation import GenerationSweep, comparison as generation_sides, page as generation
from interp.probing import ProbingStudy, comparison as probing_sides, page as probing
from interp.results import Result


@dataclass(frozen=True, eq=False)
class Analysis:
    """The kind of its results, which question it belongs to, and what is shown of one result and of several."""

    result: type[Result]
    question: Question
    title: str
    definitions: dict[str, str]
    section: Callable[[Any], Section]
    sides: Callable[[Mapping[str, Any]], Sides]


ANALYSES: dict[str, Analysis] = {
    analysis.result.analysis: analysis
    for analysis in (
        Analysis(
            BiasEffect, "frequency", frequency.TITLE, frequency.DEFINITIONS,
            frequency.section, frequency_sides.sides,
        ),
        Analysis(
            GenerationSweep, "frequency", generation.TITLE, generation.DEFINITIONS,
            generation.section, generation_sides.sides,
        ),
        Analysis(
            AttentionStudy, "attention", attention.TITLE, attention.DEFINITIONS,
            attention.section, attention_sides.sides,
        ),
        Analysis(
            EncodingStudy, "encoding", encoding.TITLE, encoding.DEFINITIONS,
            encoding.section, encoding_sides.sides,
        ),
        Analysis(
            ProbingStudy, "probing", probing.TITLE, probing.DEFINITIONS,
            probing.section, probing_sides.sides,
        ),
    )
}  # fmt: skip
"""By the name of the analysis, in the order of the page."""


def section(result: Result) -> Section:
    """What the page says of a result."""
    return ANALYSES[result.analysis].section(result)
