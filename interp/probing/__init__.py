"""Question 4: grammar. So far the model's own judgement of minimal pairs."""

from interp.probing.accuracy import minimal_pair_accuracy, sentence_log_probability

__all__ = ["minimal_pair_accuracy", "sentence_log_probability"]
