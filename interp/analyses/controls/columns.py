"""What the columns of `interp controls`'s tables mean."""

from interp.results.columns import COMMON, Column

__all__ = ["IN_PAPER", "MEANINGS"]

MEANINGS = COMMON | {
    "norm": Column("norm", "Norm of the direction."),
    "effect_sd": Column("effect, nats", "SD, over the types that occur, of what the direction adds to the logits."),
    "delta_nll": Column("ΔNLL, nats", "Change of the mean negative log-likelihood of the true tokens."),
    "excess_nll": Column("excess ΔNLL, nats", "ΔNLL of the band minus that of all tokens."),
    "band": Column("band", "Band of word frequency, each an equal part of the text; 1 is the most frequent."),
    "share": Column("share", "Share of the true tokens; for an outlier dimension, of positions where it is extreme."),
    "predicted": Column("predicted", "Mean probability that the model gives to the band as a whole."),
    "nll": Column("NLL, nats", "Mean negative log-likelihood of the band's true tokens."),
    "calibration_error": Column("calibration error", "Calibration error of the band's probability, in ten bins."),
    "delta_calibration_error": Column("Δ calibration error", "Difference from λ = 1."),
    "calibration_floor": Column("calibration error, floor", "The error if tokens were drawn from the predictions."),
    "mean": Column("mean", "Mean of the dimension of the head's input."),
    "part": Column(
        "kept",
        "What is kept of the head's input: all, the outliers alone, or all but the outliers.",
        {"all": "everything", "alone": "only these", "without": "all but these"},
    ),
    "of": Column(
        "dimensions",
        "The outlier dimensions, or a random part of the same norm.",
        {"outliers": "outlier dimensions", "random": "a random part of the same norm"},
    ),
    "surprisal": Column("surprisal, nats", "Mean negative log-likelihood of the true tokens."),
    "entropy": Column("entropy, nats", "Mean entropy of the predicted distribution."),
    "n_predicted": Column("tokens predicted", "Number of distinct tokens that are the most probable one somewhere."),
    "n_controls": Column("controls", "Number of random directions that it is ranked among."),
    "control_low": Column("lowest control", "The smallest ΔKL of a random direction."),
    "control_median": Column("median control", "The median ΔKL of the random directions."),
    "control_high": Column("highest control", "The largest ΔKL of a random direction."),
    "rank": Column("rank", "Rank of ΔKL among the random directions; 1 is above all."),
}
IN_PAPER = {
    "bands": ["bias", "scale", "band", "share", "nll", "delta_nll", "calibration_error", "calibration_floor"],
    "controls": ["bias", "kind", "scale", "draw", "delta_kl", "delta_nll"],
    "outliers": ["part", "of", "n_dims", "kl_unigram_model", "surprisal", "n_predicted"],
}
"""The columns that wide tables have in a paper, unless others are named."""
