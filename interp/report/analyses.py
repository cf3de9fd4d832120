"""What pages show of each analysis."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from interp.encoding import EncodingStudy
from interp.frequency import BiasEffect
from interp.generation import GenerationSweep
from interp.outliers import AttentionStudy
from interp.probing import ProbingStudy
from interp.report import attention, encoding, frequency, generation, probing, sides
from interp.report.section import Question, Section
from interp.results import Result


@dataclass(frozen=True, eq=False)
class Analysis:
    """The kind of its results, which question it belongs to, and what is shown of one result and of several."""

    result: type[Result]
    question: Question
    title: str
    definitions: dict[str, str]
    section: Callable[[Any], Section]
    sides: Callable[[Mapping[str, Any]], sides.Sides]


ANALYSES: dict[str, Analysis] = {
    analysis.result.analysis: analysis
    for analysis in (
        Analysis(
            BiasEffect, "frequency", frequency.TITLE, frequency.DEFINITIONS,
            frequency.frequency_section, sides.frequency_sides,
        ),
        Analysis(
            GenerationSweep, "frequency", generation.TITLE, generation.DEFINITIONS,
            generation.generation_section, sides.generation_sides,
        ),
        Analysis(
            AttentionStudy, "attention", attention.TITLE, attention.DEFINITIONS,
            attention.attention_section, sides.attention_sides,
        ),
        Analysis(
            EncodingStudy, "encoding", encoding.TITLE, encoding.DEFINITIONS,
            encoding.encoding_section, sides.encoding_sides,
        ),
        Analysis(
            ProbingStudy, "probing", probing.TITLE, probing.DEFINITIONS,
            probing.probing_section, sides.probing_sides,
        ),
    )
}  # fmt: skip
"""By the name of the analysis, in the order of the page."""
