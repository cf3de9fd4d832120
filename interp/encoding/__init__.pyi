from .neurons import frequency_neurons as frequency_neurons
from .pruning import pruning_curve as pruning_curve, removal_order as removal_order
from .regression import (
    Fit as Fit,
    Regression as Regression,
    directions as directions,
    few_shot as few_shot,
    fit as fit,
    fit_arrays as fit_arrays,
)
from .steering import steer as steer, steering_report as steering_report
from .tables import EncodingStudy as EncodingStudy, study as study
from .training import checkpoints as checkpoints, dynamics as dynamics
