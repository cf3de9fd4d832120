"""What the page says about `interp directions`."""

from interp.analyses.directions.figures import direction_cosines
from interp.analyses.directions.tables import DirectionStudy
from interp.figures.section import Section

__all__ = ["DEFINITIONS", "section"]

DEFINITIONS = {
    "Directions": "In the space of the unembedding's input h. −A and unigram are the slopes of log α and of the log "
    "word frequency on the output embeddings, PC their principal axes. Three kinds come from the residual stream "
    "through the final norm, (x − mean x) ⊙ γ: outlier dimensions, what is written by the neurons that change the loss "
    "most along log u, and the directions in which keys grow towards those of attention sinks.",
    "Overlap": "Mean squared cosine of the principal angles of two subspaces: 1 if one lies in the other. Random "
    "rotations of one of them are the control, in closed form for cosines; p is adjusted over all pairs (Benjamini and "
    "Hochberg).",
}


def section(study: DirectionStudy) -> Section:
    """Return what the page says about `interp directions`; every number comes from the result."""
    figures = {"cosines": direction_cosines(study)}
    tables = {
        "Cosines of directions, beside random rotations": study.cosines,
        "Overlaps of subspaces, beside random rotations": study.overlaps,
    }
    absent = "; ".join(f"{name} ({reason})" for name, reason in study.provenance.get("absent", {}).items())
    notes = (f"Not among the directions: {absent}.",) if absent else ()
    return Section("cosines", study.findings, notes, DEFINITIONS, figures, tables, study.provenance)
