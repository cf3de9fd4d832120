"""Question 2: which residual dimensions decide an attention score, and where attention goes."""

from interp.attention.cost import Cost, cost
from interp.attention.patterns import AttentionByClass, attention_by_class
from interp.attention.scores import (
    ScoreContributions,
    check_decomposition,
    gaps,
    score_contributions,
    score_contributions_at,
)

__all__ = [
    "AttentionByClass", "Cost", "ScoreContributions", "attention_by_class", "check_decomposition", "cost", "gaps",
    "score_contributions", "score_contributions_at",
]  # fmt: skip
