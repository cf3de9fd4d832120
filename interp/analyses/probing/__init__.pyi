from . import (
    probes as probes,
    scores as scores,
    shared as shared,
    sparse as sparse,
    states as states,
    sweeps as sweeps,
)
from .accuracy import (
    ablation_effect as ablation_effect,
    minimal_pair_accuracy as minimal_pair_accuracy,
)
from .probes import probe as probe, steer as steer, token_scores as token_scores
from .scores import sentence_scores as sentence_scores
from .shared import overlap as overlap, transfer as transfer
from .states import collect as collect
from .sweeps import sweep as sweep
from .tables import ProbingStudy as ProbingStudy, study as study
