"""Question 4: which few dimensions hold a grammatical distinction?"""

from interp.probing.accuracy import minimal_pair_accuracy, sentence_log_probability
from interp.probing.sparse import SparseProbe
from interp.probing.states import States, collect
from interp.probing.sweep import Sweep, sweep
from interp.probing.transfer import transfer

__all__ = [
    "SparseProbe", "States", "Sweep", "collect", "minimal_pair_accuracy", "sentence_log_probability", "sweep",
    "transfer",
]  # fmt: skip
