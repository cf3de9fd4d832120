"""A run directory → one self-contained HTML page."""

from interp.report.attention import attention_section
from interp.report.frequency import frequency_section
from interp.report.page import write_page
from interp.report.section import Section

__all__ = ["Section", "attention_section", "frequency_section", "write_page"]
