"""Results → plotly figures. Figures are returned, never shown; they read in grey and to the colour-blind."""

from interp.plots.frequency import bias_curve, kl_by_scale, projection

__all__ = ["bias_curve", "kl_by_scale", "projection"]
