"""Question 2, continued: outlier dimensions of the residual stream, and what they do to attention.

Source: Maruta and Matsuzaki on BERT's outlier dimensions and attention to `[CLS]`, `[SEP]`, commas and periods.
"""

from interp.outliers.ablation import KeyAblation, ablation_effect
from interp.outliers.profile import DimensionCorrelations, DimensionProfile, dimension_profile, find_outliers
from interp.outliers.study import AttentionStudy, study

__all__ = [
    "AttentionStudy", "DimensionCorrelations", "DimensionProfile", "KeyAblation", "ablation_effect",
    "dimension_profile", "find_outliers", "study",
]  # fmt: skip
