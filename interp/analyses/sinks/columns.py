"""What the columns of `interp sinks`' tables mean."""

from interp.results.columns import COMMON, Column

__all__ = ["IN_PAPER", "MEANINGS"]

MEANINGS = COMMON | {
    "attention": Column("attention", "Mean over the queries that see the position."),
    "rate": Column("sink rate", "Share of rows and heads in which the position draws more attention than ε."),
    "query_norm": Column("|q|", "Mean norm of the queries."),
    "key_norm": Column("|k|", "Mean norm of the key."),
    "value_norm": Column("|v|", "Mean norm of the value."),
    "by_direction": Column("by direction", "Part of the gap that comes from the cosine between query and key."),
    "by_norm": Column("by norm", "Part of the gap that comes from the norm of the key."),
    "measure": Column(
        "measure",
        "What is measured at the first position.",
        {
            "direction_ratio": "due to direction, of the gap",
            "value_ratio": "norm of values, relative",
            "rate": "sink rate",
        },
    ),
    "value": Column("value", "Value of the measure, mean over heads."),
    "outlier": Column("outlier?", "Whether the dimension is an outlier in the state that enters the layer."),
    "massive": Column("massive?", "Whether the dimension has a massive activation in that state."),
    "component": Column("written by", "Embeddings, attention or MLP; earlier: present before tracking began."),
    "added": Column("added", "What the component adds, mean over activations; positive with the activation's sign."),
}
IN_PAPER = {"heads": ["layer", "head", "first_position", "attention", "rate", "gap", "by_direction", "by_norm"]}
"""The columns that wide tables have in a paper, unless others are named."""
