from . import (
    batching as batching,
    classes as classes,
    counts as counts,
    pairs as pairs,
    seq2seq as seq2seq,
    sources as sources,
    unigrams as unigrams,
)
from .batching import Batches as Batches, batches as batches
from .classes import token_classes as token_classes
from .counts import count_unigrams as count_unigrams
from .sources import load as load
from .unigrams import Unigrams as Unigrams
