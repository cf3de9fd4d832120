"""Results → plotly figures. Figures are returned, never shown; they read in grey and to the colour-blind."""

from interp.plots.attention import (
    ablation,
    attention_by_layer,
    attention_view,
    contribution_table,
    contributions,
    dimension_means,
    outlier_values,
)
from interp.plots.encoding import (
    dimension_slopes,
    direction_cosines,
    dynamics,
    neurons,
    probability_fit,
    pruning,
    steering,
)
from interp.plots.frequency import bias_curve, kl_by_scale, projection
from interp.plots.generation import generation_tradeoff, text_measure

__all__ = [
    "ablation", "attention_by_layer", "attention_view", "bias_curve", "contribution_table", "contributions",
    "dimension_means", "dimension_slopes", "direction_cosines", "dynamics", "generation_tradeoff", "kl_by_scale",
    "neurons", "outlier_values", "probability_fit", "projection", "pruning", "steering", "text_measure",
]  # fmt: skip
