"""Text sources, the batches that a model reads, token classes and token counts."""

from interp.corpora.batches import Batch, Batches, Text, as_batches, batches, sample_positions
from interp.corpora.classes import KeyClasses, TokenClasses, token_classes
from interp.corpora.counts import count_unigrams, shipped_counts, unigrams_of
from interp.corpora.sources import Corpus, load

__all__ = [
    "Batch", "Batches", "Corpus", "KeyClasses", "Text", "TokenClasses", "as_batches", "batches", "count_unigrams",
    "load", "sample_positions", "shipped_counts", "token_classes", "unigrams_of",
]  # fmt: skip
