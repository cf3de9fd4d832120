"""One atlas of directions: what three papers find in a model, word frequency in the prediction head, outlier dimensions
and attention, token probability in output embeddings, compared in one space.

The space is that of the unembedding's input h, in which most of it is: b_LN, E[h], the slopes of log α and log u on the
output embeddings, and principal axes of these. What is in the residual stream x comes there, but for the scale of the
final norm, as `(x − mean x) ⊙ γ`: dimensions keep their places, and what neurons write and what draws keys towards
those of sinks are taken through it.
"""

__all__: list[str] = []
