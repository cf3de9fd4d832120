"""Text sources, and the batches that a model reads."""

from interp.corpora.batches import Batch, Batches, as_batches, batches, count_unigrams
from interp.corpora.sources import Corpus, load

__all__ = ["Batch", "Batches", "Corpus", "as_batches", "batches", "count_unigrams", "load"]
