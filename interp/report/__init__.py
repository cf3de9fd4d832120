"""A run directory → one self-contained HTML page."""

from interp.report.attention import attention_section
from interp.report.compare import write_comparison
from interp.report.encoding import encoding_section, removable, steering_error
from interp.report.frequency import frequency_section
from interp.report.generation import generation_section
from interp.report.page import write_page
from interp.report.probing import ablated, by_state, never_seen, probing_section
from interp.report.section import Section

__all__ = [
    "Section",
    "ablated",
    "attention_section",
    "by_state",
    "encoding_section",
    "frequency_section",
    "generation_section",
    "never_seen",
    "probing_section",
    "removable",
    "steering_error",
    "write_comparison",
    "write_page",
]
