"""What a page says once, of all its parts: its models, the terms, the rules of verdicts, and what was left out."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from interp.analyses.declare import Analysis
from interp.figures.section import Section

__all__ = ["Entry", "left_out", "rules", "subjects", "terms"]


class Entry(NamedTuple):
    """A part as it stands on the page: with its anchor, the name of its model, and the HTML of its answer in the
    overview (`lead`) and of the whole (`body`)."""

    id: str
    label: str
    model: str
    analysis: Analysis
    section: Section
    lead: str = ""
    body: str = ""


def subjects(entries: Sequence[Entry]) -> dict[str, str]:
    """Say what each model is, what it read, with which version and when."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        provenance = entry.section.provenance
        for about in (provenance, *provenance.values()):
            if isinstance(about, Mapping) and "model" in about:
                runs.setdefault(Path(about["model"]).name, []).append(about)
    sentences = {}
    for model, abouts in runs.items():
        facts: dict[str, list[str]] = {}
        for about in abouts:
            for form, value in _facts(about).items():
                values = facts.setdefault(form, [])
                if value and value not in values:
                    values.append(value)
        clauses = [form.format(" and ".join(values)) for form, values in facts.items() if values]
        sentences[model] = " · ".join(clauses)
    return sentences


def _facts(provenance: Mapping[str, Any]) -> dict[str, str | None]:
    """What a provenance says of a run, by the form of the clause that says it."""
    n_parameters = provenance.get("n_parameters")
    return {
        "{}": provenance.get("architecture"),
        "{} parameters": f"{n_parameters:,}" if n_parameters else None,
        "read {}": provenance.get("corpus"),
        "with interp {}": provenance.get("versions", {}).get("interp"),
        "on {}": provenance.get("date"),
    }


def terms(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the meaning of each term. One with several meanings has the name of the analysis with it."""
    meanings: dict[str, dict[str, str]] = {}
    for entry in entries:
        for term, meaning in entry.section.definitions.items():
            meanings.setdefault(term, {}).setdefault(meaning, entry.analysis.name)
    glossary = {}
    for term, by_meaning in meanings.items():
        for meaning, name in by_meaning.items():
            glossary[term if len(by_meaning) == 1 else f"{term} ({name})"] = meaning
    return glossary


def rules(entries: Sequence[Entry]) -> list[str]:
    """Return how verdicts follow from numbers, each rule once, with s for the smallest effect of interest."""
    forms = []
    for entry in entries:
        for finding in entry.section.findings:
            forms.append(finding.rule if math.isnan(finding.smallest) else re.sub(r"\d+\.\d+", "s", finding.rule))
    return list(dict.fromkeys(forms))


def left_out(entries: Sequence[Entry]) -> dict[tuple[str, str], str]:
    """Return what was not asked of a model, and why, by model and name; see `interp.analyses.registry.left_out`."""
    reasons = {}
    for entry in entries:
        for name, reason in entry.section.provenance.get("left_out", {}).items():
            reasons[entry.model, name] = reason
    return reasons
