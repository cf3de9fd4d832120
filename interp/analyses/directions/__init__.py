"""Directions that three papers find in a model, in one space: word frequency in the prediction head, outlier dimensions
and attention, and token probability in output embeddings.

The space is that of the unembedding's input h, where most directions already are: b_LN, E[h], the slopes of log α and
log u on the output embeddings, and the principal axes of these. Vectors x of the residual stream are mapped to it by
`(x − mean x) ⊙ γ`, up to the scale of the final norm. So dimensions keep their places, and this map is applied to what
neurons write and to the directions that draw keys towards those of sinks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
