from .accuracy import (
    minimal_pair_accuracy as minimal_pair_accuracy,
    sentence_log_probability as sentence_log_probability,
)
from .causal import ablation_effect as ablation_effect
from .probes import (
    Probe as Probe,
    pair_scores as pair_scores,
    probe as probe,
    steer as steer,
    token_scores as token_scores,
)
from .shared import general as general, overlap as overlap, transfer as transfer
from .sparse import SparseProbe as SparseProbe
from .states import States as States, collect as collect
from .sweeps import Sweep as Sweep, sweep as sweep
from .tables import ProbingStudy as ProbingStudy, study as study
