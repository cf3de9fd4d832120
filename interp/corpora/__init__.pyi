from . import pairs as pairs, unigrams as unigrams
from .batching import (
    Batch as Batch,
    Batches as Batches,
    Text as Text,
    as_batches as as_batches,
    batches as batches,
    sample_positions as sample_positions,
)
from .classes import KeyClasses as KeyClasses, TokenClasses as TokenClasses, token_classes as token_classes
from .counts import count_unigrams as count_unigrams, shipped_counts as shipped_counts, unigrams_of as unigrams_of
from .sources import Corpus as Corpus, Source as Source, load as load
from .unigrams import Unigrams as Unigrams
