"""What the columns of `interp frequency`'s tables mean."""

from interp.results.columns import COMMON, Column

__all__ = ["IN_PAPER", "MEANINGS"]

MEANINGS = COMMON | {
    "kl_corrected": Column("KL, corrected, nats", "KL(u‖q) without the bias that comes from finitely many positions."),
    "js_corrected": Column("JS, corrected, nats", "JS without the bias that comes from finitely many positions."),
    "kl_model_unigram": Column("KL(q‖u), nats", "The divergence in the other direction, over types with u > 0."),
    "dropped_mass": Column("mass left out", "Probability that q gives to types that are not in the counts."),
    "delta_perplexity": Column("Δ perplexity", "Difference from λ = 1."),
    "balanced_nll": Column("balanced NLL, nats", "Negative log-likelihood, averaged over types rather than tokens."),
    "n_balanced": Column("types averaged", "Types of which u promises at least five among the scored tokens."),
    "n_absent": Column("of them absent", "Types promised that do not occur; the balanced NLL leaves them out."),
    "count": Column("count", "How often the token occurs in the counts that define u."),
    "unigram": Column("u", "Relative frequency of the token in the counts."),
    "projection_ln": Column("b_LN W_U, nats", "What b_LN adds to the token's logit."),
    "projection_mean": Column("E[h] W_U, nats", "What the mean input of the head adds to the token's logit."),
    "projection_slope": Column("−A W_U, nats", "What the slope of log-probability adds to the token's logit."),
    "bias_last": Column("b_last, nats", "What b_last adds to the token's logit."),
    "probability": Column("q", "Mean predicted probability of the token."),
    "bin": Column("bin", "Number of the bin; bins have equal width in log u."),
    "geometric_mean": Column("q, geometric mean", "exp of the mean of log q over the types of the bin."),
    "geometric_sd": Column("geometric SD", "exp of the SD of log q over the types of the bin; a factor."),
    "slope": Column("slope τ", "Slope of the bias in the logits on log u: τ of an equivalent logit adjustment."),
    "tau": Column("τ", "Strength of the logit adjustment logits − τ log u."),
}
_DIVERGENCES = ["kl_corrected", "delta_kl_corrected", "delta_kl", "perplexity", "kl_unigram_model", "balanced_nll"]
IN_PAPER = {
    "kl": ["bias", "scale", *_DIVERGENCES],
    "adjustment": ["tau", *_DIVERGENCES],
    "types": ["token", "count", "unigram", "projection_ln"],
}
"""The columns that wide tables have in a paper, unless others are named."""
