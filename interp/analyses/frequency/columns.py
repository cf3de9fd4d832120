"""What the columns of `interp frequency`'s tables mean."""

from interp.results.columns import COMMON, Column
from interp.support.words import BIAS_WORD

__all__ = ["IN_PAPER", "MEANINGS"]

MEANINGS = COMMON | {
    "bias": Column("bias", "What is scaled: b_LN, b_FC or b_last; mean is E[h], slope is −A.", BIAS_WORD),
    "kl_corrected": Column(
        "KL, corrected, nats", "KL(u‖q) without the bias that comes from averaging over finitely many positions."
    ),
    "delta_kl": Column("ΔKL, nats", "How much further q is from word frequency than at λ = 1."),
    "delta_kl_corrected": Column("ΔKL, corrected, nats", "Difference of corrected KL from λ = 1."),
    "js_corrected": Column("JS, corrected, nats", "JS without the bias that comes from finitely many positions."),
    "kl_model_unigram": Column("KL(q‖u), nats", "The divergence in the other direction, over types with u > 0."),
    "dropped_mass": Column("mass left out", "Probability that q gives to types that are not in the counts."),
    "delta_perplexity": Column("Δ perplexity", "Difference from λ = 1."),
    "balanced_nll": Column("balanced NLL, nats", "Negative log-likelihood, averaged over types rather than tokens."),
    "n_scored": Column("scored", "Number of positions whose next token is known."),
    "count": Column("count", "How often the token occurs in the counts that define u."),
    "unigram": Column("u", "Relative frequency of the token in the counts."),
    "projection_ln": Column("b_LN W_U, nats", "What b_LN adds to the token's logit."),
    "projection_mean": Column("E[h] W_U, nats", "What the mean input of the head adds to the token's logit."),
    "projection_slope": Column("−A W_U, nats", "What the slope of log-probability adds to the token's logit."),
    "bias_last": Column("b_last, nats", "What b_last adds to the token's logit."),
    "probability": Column("q", "Mean predicted probability of the token."),
    "bin": Column("bin", "Number of the bin; bins have equal width in log u."),
    "unigram_low": Column("u, from", "Lower edge of the bin or band of word frequency."),
    "unigram_high": Column("u, to", "Upper edge of the bin or band of word frequency."),
    "geometric_mean": Column("q, geometric mean", "exp of the mean of log q over the types of the bin."),
    "geometric_sd": Column("geometric SD", "exp of the SD of log q over the types of the bin; a factor."),
    "slope": Column("slope τ", "Slope of the bias in the logits on log u: τ of an equivalent logit adjustment."),
    "n_controls": Column("controls", "Number of random directions or orders that it is compared with."),
    "control_spearman": Column("largest ρ of controls", "The largest rank correlation of any control."),
    "tau": Column("τ", "Strength of the logit adjustment logits − τ log u."),
    "kind": Column("equal in", "What a random direction shares with the bias: its norm, or its effect."),
    "norm": Column("norm", "Norm of the direction."),
    "effect_sd": Column("effect, nats", "SD, over the types that occur, of what the direction adds to the logits."),
    "delta_nll": Column("ΔNLL, nats", "Change of the mean negative log-likelihood of the true tokens."),
    "excess_nll": Column("excess ΔNLL, nats", "ΔNLL of the band minus that of all tokens."),
    "band": Column("band", "Band of word frequency, each an equal part of the text; 1 is the most frequent."),
    "share": Column(
        "share", "Share of the true tokens; for an outlier dimension, of the positions where it is extreme."
    ),
    "predicted": Column("predicted", "Mean probability that the model gives to the band as a whole."),
    "nll": Column("NLL, nats", "Mean negative log-likelihood of the band's true tokens."),
    "calibration_error": Column("calibration error", "Calibration error of the band's probability, in ten bins."),
    "delta_calibration_error": Column("Δ calibration error", "Difference from λ = 1."),
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
    "n_random": Column("random directions", "Number of random directions that it is ranked among."),
    "control_low": Column("lowest control", "The smallest ΔKL of a random direction."),
    "control_median": Column("median control", "The median ΔKL of the random directions."),
    "control_high": Column("highest control", "The largest ΔKL of a random direction."),
    "rank": Column("rank", "Rank of ΔKL among the random directions; 1 is above all."),
}
_DIVERGENCES = ["kl_corrected", "delta_kl_corrected", "delta_kl", "perplexity", "kl_unigram_model", "balanced_nll"]
IN_PAPER = {
    "kl": ["bias", "scale", *_DIVERGENCES],
    "adjustment": ["tau", *_DIVERGENCES],
    "types": ["token", "count", "unigram", "projection_ln"],
    "bands": ["bias", "scale", "band", "share", "nll", "delta_nll", "calibration_error"],
    "controls": ["bias", "kind", "scale", "draw", "delta_kl", "delta_nll"],
    "outliers": ["part", "of", "n_dims", "kl_unigram_model", "surprisal", "n_predicted"],
}
"""The columns that wide tables have in a paper, unless others are named."""
