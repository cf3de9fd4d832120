from . import pruning as pruning, regression as regression, training as training, writing as writing
from .pruning import pruning_curve as pruning_curve
from .regression import few_shot as few_shot, fit as fit
from .steering import steer as steer, steering_report as steering_report
from .tables import EncodingStudy as EncodingStudy, frequency_neurons as frequency_neurons, study as study
from .training import dynamics as dynamics
