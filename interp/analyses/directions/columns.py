"""What the columns of `interp directions`' tables mean."""

from interp.results.columns import COMMON, Column

__all__ = ["IN_PAPER", "MEANINGS"]

MEANINGS = COMMON | {
    "p": Column("p", "Probability that a random rotation gives at least as much."),
    "name_a": Column("direction 1", "The first direction.", {"-A": "−A"}),
    "name_b": Column("direction 2", "The second direction.", {"-A": "−A"}),
    "null_95": Column("|cosine| by chance", "The 95th percentile of |cosine| between random directions."),
    "of_a": Column("about 1", "What the first direction describes: word frequency, output embeddings or attention."),
    "of_b": Column("about 2", "What the second direction describes."),
    "by_construction": Column("by construction?", "Whether they are related in any model; such pairs are not tested."),
    "n_dims_a": Column("dimensions 1", "Number of dimensions of the first subspace."),
    "n_dims_b": Column("dimensions 2", "Number of dimensions of the second subspace."),
    "overlap": Column("overlap", "Mean squared cosine of the principal angles; 1 if the smaller lies in the larger."),
    "null_mean": Column("by chance", "Mean overlap of randomly rotated subspaces."),
    "null_high": Column("by chance, 97.5 %", "97.5th percentile of the overlap of randomly rotated subspaces."),
    "value": Column("value", "Cosine or overlap of the two under a random rotation."),
}
IN_PAPER = {
    "cosines": ["name_a", "name_b", "cosine", "null_95", "p_adjusted"],
    "overlaps": ["name_a", "name_b", "n_dims_a", "n_dims_b", "overlap", "null_mean", "p_adjusted"],
}
"""The columns that wide tables have in a paper, unless others are named."""
