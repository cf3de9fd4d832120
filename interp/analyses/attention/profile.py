"""The profile of every dimension of the residual stream on a text."""

import os

import pandas as pd

from interp.corpora import token_classes
from interp.corpora.batching import Text
from interp.corpora.classes import KeyClasses
from interp.instruments.profile import DimensionProfile
from interp.models.sites import Model

__all__ = ["dimension_profile"]
__dir__ = __all__.copy


def dimension_profile(
    model: Model,
    text_or_batches: Text,
    *,
    key_classes: KeyClasses = None,
    batch_size: int | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Measure the mean, SD and largest magnitude of every dimension of the residual stream, by state and token class.

    State 0 is the embeddings, and state L + 1 is the residual stream after block L. These are Hugging Face's
    `hidden_states`, except that in causal models the last of those comes after the final norm. SDs are population SDs
    over tokens.

    Returns the table `dims` of an `AttentionStudy`, including the class `all`. A class without tokens in the text has
    no rows.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> table = dimension_profile(toy_decoder(), ["w0 w1 w2"] * 20, key_classes={"first": [7, 8]}, progress=False)
        >>> table["key_class"].unique().tolist()
        ['first', 'other', 'all']
    """
    observer = DimensionProfile(model, token_classes(model, key_classes))
    observer.read(text_or_batches, batch_size=batch_size, progress=progress, checkpoint=checkpoint)
    return observer.table
