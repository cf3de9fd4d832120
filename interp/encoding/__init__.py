"""Question 3: how do output embeddings encode token probability?

Source: Cho et al., "Understanding Token Probability Encoding in Output Embeddings", COLING 2025.
"""

from interp.encoding.directions import directions
from interp.encoding.dynamics import checkpoints, dynamics
from interp.encoding.neurons import frequency_neurons
from interp.encoding.pruning import pruning_curve, removal_order
from interp.encoding.regression import Fit, Regression, few_shot, fit, fit_arrays
from interp.encoding.steering import steer, steering_report
from interp.encoding.study import EncodingStudy, study

__all__ = [
    "EncodingStudy", "Fit", "Regression", "checkpoints", "directions", "dynamics", "few_shot", "fit", "fit_arrays",
    "frequency_neurons", "pruning_curve", "removal_order", "steer", "steering_report", "study",
]  # fmt: skip
