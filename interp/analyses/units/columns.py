"""What the columns of `interp units`' tables mean."""

from interp.results.columns import COMMON, Column

__all__ = ["IN_PAPER", "KINDS", "MEANINGS", "SWAPPED"]

KINDS = {"residual": "residual dimensions", "neurons": "MLP neurons", "heads": "dimensions of heads"}
"""The kinds of units."""
SWAPPED = {"words": "a swapped word", "numbers": "a swapped number"}
"""What differs between the two sentences of a control pair, both of which are grammatical."""
_CONTROL = Column("control", "none for a task itself; otherwise what is swapped in its control.", SWAPPED)

MEANINGS = COMMON | {
    "difference": Column("difference", "Mean overlap within groups minus that between groups."),
    "control": _CONTROL,
    "control_a": _CONTROL._replace(label="control 1"),
    "control_b": _CONTROL._replace(label="control 2"),
    "of": Column("kind", "Kind of unit: residual stream, MLP neurons, or outputs of attention heads.", KINDS),
    "at": Column("at", "Where it is: the hidden state of a residual dimension, the block of a neuron or head."),
    "unit": Column("unit", "Number of the unit there."),
    "t": Column("t", "t statistic of the differences within pairs."),
    "overlap": Column("overlap", "Share of the top units that are also chosen by other pairs."),
    "null": Column("labels flipped", "Mean overlap when labels are flipped at random within pairs."),
    "null_high": Column("labels flipped, 95 %", "95th percentile of the overlap, or |cosine|, with labels flipped."),
    "auc": Column("AUC", "Probability that the unit is larger for a good sentence than for a bad one."),
    "auc_error": Column("error of AUC", "Largest error that computing the AUC from a histogram can cause."),
    "error": Column("error of AUC", "Largest error that computing the AUC from a histogram can cause."),
    "parts": Column("chosen by", "Share of the parts of the pairs in whose top it is."),
    "pair_share": Column("pairs told apart", "Share of pairs in which the unit is larger for the good sentence."),
    "by": Column("grouped by", "How tasks are grouped: by field or by phenomenon.", {"linguistics_term": "phenomenon"}),
    "within": Column("within", "Mean overlap of two tasks of the same group."),
    "between": Column("between", "Mean overlap of two tasks of different groups."),
    "n_groups": Column("groups", "Number of groups."),
    "above": Column("tasks above", "Number of tasks with a larger overlap than flipped labels, at a p of at most .05."),
}
IN_PAPER = {
    "consistency": ["task", "control", "of", "overlap", "null", "null_high", "p_adjusted"],
    "separability": ["task", "control", "of", "at", "unit", "auc", "pair_share"],
}
"""The columns that wide tables have in a paper, unless others are named."""
