"""What the columns of `interp encoding`'s tables mean."""

from interp.results.columns import COMMON, Column

__all__ = ["BASIS_WORD", "IN_PAPER", "MEANINGS", "ORDER_WORD"]

BASIS_WORD = {"axis": "axes of W_U", "pca": "principal axes"}
ORDER_WORD = {
    "spearman": "least |Spearman| first",
    "slope": "least |slope| first",
    "reverse": "most |Spearman| first",
}
MEANINGS = COMMON | {
    "rank": Column("rank", "Rank by size; 1 is the largest. Of a regression: that of its matrix."),
    "target": Column(
        "target",
        "The quantity that is regressed on the output embeddings.",
        {"-log alpha": "−log α", "shuffled": "−log α, shuffled", "untrained": "−log α of an untrained model"},
    ),
    "spread": Column("SD of log α", "Standard deviation of log α over types."),
    "logit_scale": Column("logits ×", "What the logits are multiplied by before the softmax; 1 for the model itself."),
    "predictor": Column(
        "predictor",
        "What predicts −log α: the fit (on other types), −E[log p], or −E[log p] − ½ Var(log p).",
        {"first order": "−E[log p]", "second order": "−E[log p] − ½ Var(log p)"},
    ),
    "corr2": Column("squared correlation", "Squared correlation of the prediction with −log α over types."),
    "r2_corrected": Column("R², corrected", "R² without the bias that comes from finitely many positions."),
    "beyond": Column("fit minus this", "R² of the fit minus that of the prediction without a fit."),
    "beyond_corrected": Column("fit minus this, corrected", "The same without the bias from finitely many positions."),
    "median_variance": Column("Var(log p)", "Median over types of the variance of log p over positions."),
    "r2": Column("R²", "Share of the variance over types that the regression explains."),
    "adj_r2": Column("adjusted R²", "R² adjusted for the number of dimensions."),
    "cv_r2": Column("cross-validated R²", "R² on types that were left out of the fit."),
    "n_never_predicted": Column("never predicted", "Types left out because their α is 0."),
    "n_not_tokens": Column("not tokens", "Types left out because the tokenizer has no token for them."),
    "alpha": Column("α", "Mean output probability of the token over the text."),
    "predicted": Column("predicted −log α", "Value that the regression predicts for the token."),
    "pc1": Column("axis 1", "Coordinate of the output embedding on its first principal axis."),
    "pc2": Column("axis 2", "Coordinate of the output embedding on its second principal axis."),
    "basis": Column("basis", "Whether dimensions of W_U or principal axes of its columns are removed.", BASIS_WORD),
    "slope": Column("slope", "Coefficient of the dimension in the regression."),
    "standardised_slope": Column("slope × SD", "Coefficient times the SD of the dimension over types."),
    "spearman_shuffled": Column("ρ, α shuffled", "The same correlation with the values of α in random order."),
    "explained_variance": Column("variance", "Share of the variance of the output embeddings along the axis."),
    "r2_of_whole": Column("R² on the whole text", "How well the fit to the smaller text predicts −log α of the whole."),
    "order": Column("order", "Order in which dimensions are removed.", ORDER_WORD),
    "fraction": Column("removed", "Fraction of the dimensions that are removed."),
    "kl": Column("KL, nats", "Mean KL divergence between the predictions with all dimensions and those without."),
    "js": Column("JS, nats", "Divergence between the mean predictions with all dimensions and without them."),
    "top1_agreement": Column("same top token", "Share of positions where the most probable token stays the same."),
    "agreement": Column("same tokens", "Share of the new tokens that the whole model has at the same place."),
    "same_texts": Column("same texts", "Share of the texts that are as the whole model continues them."),
    "group": Column("tokens", "Frequency group of the tokens: frequent, middling or rare."),
    "text": Column(
        "text",
        "The text of the fit or another; of a token, the number of its text, from 0.",
        {"fitted": "of the fit", "other": "another"},
    ),
    "shift": Column("shift", "How the token's logit is changed."),
    "weights": Column(
        "weights",
        "How the shift is distributed over the dimensions; only for the regression.",
        {"": "–", "least_norm": "least norm"},
    ),
    "requested": Column("requested", "The ratio of probabilities that was asked for."),
    "achieved": Column("achieved", "The ratio of mean probabilities that was measured."),
    "kl_others": Column("KL of others, nats", "How far the distribution over all other tokens moves."),
    "error": Column("|log error|", "Median over tokens and ratios of |log(achieved/requested)|."),
    "n_positions": Column("positions", "Number of positions averaged over."),
    "neuron": Column("neuron", "Number of the neuron in the last MLP, counted from 0."),
    "w_out_norm": Column("‖w_out‖", "Norm of the vector that the neuron writes."),
    "logit_var": Column("logit variance", "Variance over the vocabulary of the cosine of w_out with the unembedding."),
    "mean_activation": Column("mean activation", "Mean over the text."),
    "delta_loss": Column("Δloss, nats", "Change of the loss when the neuron is set to its mean."),
    "delta_entropy": Column("Δentropy, nats", "Change of the predictions' entropy when the neuron is set to its mean."),
    "delta_kl_unigram": Column("ΔKL(p‖u), nats", "Change of the distance between predictions and word frequency."),
    "delta_loss_frozen": Column("Δloss, norm frozen, nats", "The same with the scale of the final norm fixed."),
    "delta_entropy_frozen": Column("Δentropy, norm frozen, nats", "The same with the scale of the final norm fixed."),
    "through_unigram": Column("through log u", "Part of Δloss due to the change of the logits along log u."),
    "exact": Column("exact?", "Whether the effect is computed exactly, rather than to second order."),
    "step": Column("step", "Training step."),
    "loss": Column("loss, nats", "Mean negative log-likelihood."),
}
IN_PAPER = {
    "regression": ["target", "adj_r2", "cv_r2", "n_types", "n_dims"],
    "theory": ["predictor", "r2", "corr2", "slope", "beyond"],
    "pruning": ["basis", "order", "fraction", "top1_agreement", "kl", "perplexity"],
    "steering": ["token", "group", "shift", "weights", "requested", "achieved", "kl_others"],
    "neurons": ["layer", "neuron", "w_out_norm", "logit_var", "delta_loss", "delta_entropy", "delta_kl_unigram"],
    "contexts": ["neuron", "activation", "before", "token", "after"],
}
"""The columns that wide tables have in a paper, unless others are named."""
