"""Question 4: which few dimensions hold a grammatical distinction?"""

from interp.probing.accuracy import minimal_pair_accuracy, sentence_log_probability
from interp.probing.causal import ablation_effect
from interp.probing.probe import Probe, pair_scores, probe, steer, token_scores
from interp.probing.sparse import SparseProbe
from interp.probing.states import States, collect
from interp.probing.study import ProbingStudy, study
from interp.probing.sweep import Sweep, sweep
from interp.probing.transfer import general, overlap, transfer

__all__ = [
    "Probe", "ProbingStudy", "SparseProbe", "States", "Sweep", "ablation_effect", "collect", "general",
    "minimal_pair_accuracy", "overlap", "pair_scores", "probe", "sentence_log_probability", "steer", "study", "sweep",
    "token_scores", "transfer",
]  # fmt: skip
