"""What the columns of `interp generation`'s tables mean."""

from interp.columns import COMMON, Column

__all__ = ["MEANINGS"]

_GRAMS = {1: "tokens", 2: "pairs of tokens", 3: "triples of tokens", 4: "runs of four tokens"}
MEANINGS = COMMON | {
    "decoder": Column("decoder", "How the next token is chosen; human: what people wrote after the same prompts."),
    "prompt_id": Column("prompt", "Number of the prompt."),
    "prompt": Column("prompt", "The beginning that is continued."),
    "text": Column("text", "The continuation."),
    "token_ids": Column("token ids", "The continuation in tokens."),
    "diversity": Column("diversity", "Mean of the shares of distinct n-grams, n = 1 to 4, over all texts together."),
    "diversity_se": Column("SE of diversity", "Its standard error over texts, by the jackknife."),
    "diversity_text": Column("diversity within a text", "The same within each text, mean over texts."),
    "perplexity": Column("perplexity", "Of the model with b_LN scaled, on the text that the prompts are from."),
    "mauve_mean": Column("MAUVE", "Likeness to human text, 1 for alike; mean over seeds of the clusters."),
    "mauve_sd": Column("SD of MAUVE", "Over seeds of the clusters."),
    "frequent_share": Column("frequent tokens", "Share of tokens among the types that make up half of the corpus."),
    "repetition": Column("repetition", "Share of 4-grams that stood in the same text before."),
    "n_texts": Column("texts", "How many texts."),
    "measure": Column("measure", "What is measured of the texts."),
    "value": Column("value", "The measure at this λ."),
    "difference": Column("difference", "From λ = 1 after the same prompts."),
}
for _n, _what in _GRAMS.items():
    MEANINGS[f"distinct_{_n}"] = Column(f"distinct {_n}-grams", f"Share of all {_what} that differ.")
    MEANINGS[f"distinct_{_n}_text"] = Column(f"distinct {_n}-grams in a text", "The same within each text, mean.")
