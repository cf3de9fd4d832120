"""What the columns of `interp attention`'s tables mean."""

from interp.results.columns import COMMON, Column

__all__ = ["IN_PAPER", "MEANINGS"]

MEANINGS = COMMON | {
    "rank": Column("rank", "Rank by size; 1 is the largest, or the dimension that is an outlier in the most states."),
    "mean": Column("mean", "Mean over pairs of a query and a key; for a dimension, over tokens."),
    "centred_mean": Column("centred mean", "The contribution minus its mean over all keys that the same query sees."),
    "ln_bias_mean": Column("of the norm's bias", "The part of the mean from the bias of the preceding norm."),
    "n_dims_90": Column("dimensions for 90 %", "The fewest dimensions whose shares add up to 90 % of the gap."),
    "n_dims_90_abs": Column("dimensions for 90 % of |gap|", "The fewest dimensions with 90 % of the sum of |gap|."),
    "contributions": Column("of dimensions", "What the residual dimensions of the key add to the mean score."),
    "key_bias": Column("of b_K", "What the key bias adds to the mean score."),
    "sum": Column("attention", "Attention to all keys of the class, mean over queries; the classes add up to 1."),
    "norm_weighted": Column("norm-weighted", "Sum of ‖α v W_O‖ over the class, mean over queries."),
    "sd": Column("SD", "Standard deviation of the dimension over tokens."),
    "max_abs": Column("largest", "Largest magnitude."),
    "z": Column("z", "Distance from the mean over the state's dimensions, in standard deviations."),
    "robust_z": Column("robust z", "Distance from the median over the state's dimensions, divided by 1.4826 MAD."),
    "text": Column("text", "Number of the text in the corpus, counted from 0."),
    "n_states": Column("states", "Number of hidden states in which the dimension is an outlier."),
    "max_ratio": Column("times the median", "The largest value as a multiple of the median magnitude in its row."),
    "set": Column(
        "set",
        "Why it is removed: outlier; driver (the largest gap between classes there); random control.",
        {"driver": "largest gap", "random": "random control"},
    ),
    "magnitude": Column("RMS", "Root mean square of the dimension."),
    "removed": Column("RMS removed", "Root mean square of what is taken away when the dimension is removed."),
    "where": Column(
        "removed from",
        "Removed from the keys of the layer alone, or from the residual stream entering it.",
        {"residual": "residual stream"},
    ),
    "attention_before": Column("before", "Attention to the class before anything is removed."),
    "attention_after": Column("after", "Attention to the class after the dimension is removed."),
    "change_low": Column("change, low", "Lower end of the 95 % interval of the change."),
    "change_high": Column("change, high", "Upper end of the 95 % interval of the change."),
    "change": Column("change", "Attention to the class after the removal minus before."),
    "mean_change": Column("mean change", "Change of attention, mean over the dimensions of the set."),
    "largest_fall": Column("largest fall", "Largest fall caused by one dimension of the set."),
    "largest_rise": Column("largest rise", "Largest rise caused by one dimension of the set."),
    "head_before": Column("head, before", "Attention before, in the head that changes most."),
    "head_after": Column("head, after", "Attention after, in the head that changes most."),
    "log_unigram": Column("r with log u", "Correlation over tokens between the dimension and log word frequency."),
    "attention_received": Column("r with attention", "Correlation over tokens with the attention that they draw."),
    "dims": Column("removed", "The outlier dimension that is removed, or all of them together."),
    "kind": Column(
        "instead of it",
        "The dimensions are removed; their values are put back along random directions, also with keys that change as "
        "much; other dimensions are removed.",
        {"removed": "the dimensions", "frame": "random directions", "ordinary": "other dimensions"},
    ),
    "log_odds": Column("change of log-odds", "Largest change of log(a / (1 − a)), a the attention to the class."),
    "n_controls": Column("draws", "Number of draws of each control."),
    "of_directions": Column("along random directions", "Largest change with the same values along random directions."),
    "of_ordinary": Column("other dimensions", "Largest change without other dimensions, as many at a time."),
    "outlier_share": Column(
        "share of outliers", "The part of the gap from outlier dimensions; below 0 if they lower it."
    ),
    "control_share": Column("largest share of others", "The same for as many other dimensions, those that add most."),
    "share_beyond": Column("beyond others", "The share of outliers minus the largest share of others."),
    "rule": Column(
        "rule",
        "How outliers are defined: robust, by median and MAD; sd, by mean and SD.",
        {"robust": "median and MAD", "sd": "mean and SD"},
    ),
    "k": Column("k", "Threshold of an outlier: its distance from the centre, in 1.4826 MAD or in SD."),
    "in_noise": Column("in noise", "Number of outliers expected in random noise of as many dimensions."),
    "n_outliers": Column("outliers", "Number of outlier dimensions in the state."),
}
_CHANGE = ["attention_before", "attention_after", "change_low", "change_high"]
IN_PAPER = {
    "ablation": ["layer", "dim", "set", "key_class", *_CHANGE],
    "frames": ["dims", "kind", "draw", "layer", "key_class", "log_odds"],
    "contexts": ["dim", "state", "activation", "before", "token", "after"],
}
"""The columns that wide tables have in a paper, unless others are named."""
