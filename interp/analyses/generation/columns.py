"""What the columns of `interp generation`'s tables mean."""

from interp.results.columns import COMMON, Column
from interp.support.words import DECODER_NAME

__all__ = ["IN_PAPER", "MEANINGS"]

_GRAMS = {1: "tokens", 2: "pairs of tokens", 3: "triples of tokens", 4: "runs of four tokens"}
MEANINGS = COMMON | {
    "decoder": Column(
        "decoder",
        "How the next token is chosen; human: what people wrote after the same prompts.",
        DECODER_NAME | {"human": "people", "beam": "beam search"},
    ),
    "prompt_id": Column("number of the prompt", "Number of the prompt, counted from 0."),
    "prompt": Column("prompt", "The beginning of the text, which is continued."),
    "text": Column("text", "The continuation."),
    "token_ids": Column("token ids", "The continuation as token ids."),
    "diversity_se": Column("SE of diversity", "Standard error of the diversity over texts, by the jackknife."),
    "perplexity": Column("perplexity", "Of the model with b_LN (or E[h]) scaled, on the text of the prompts."),
    "mauve_mean": Column("MAUVE", "Similarity to human text, at most 1; mean over seeds of the clustering."),
    "mauve_sd": Column("SD of MAUVE", "Standard deviation over seeds of the clustering."),
    "gain": Column("gain", "MAUVE of half of the prompts at the λ that is best on the others, minus that at λ = 1."),
    "frequent_share": Column("frequent tokens", "Share of tokens of the types that make up half of the corpus."),
    "measure": Column("measure", "Measure of the texts.", {"frequent_share": "frequent tokens", "mauve": "MAUVE"}),
    "value": Column("value", "Value of the measure at this λ."),
    "difference": Column("difference", "Difference from λ = 1, with the same prompts."),
}
for _n, _what in _GRAMS.items():
    MEANINGS[f"distinct_{_n}"] = Column(f"distinct {_n}-grams", f"Distinct {_what} divided by all {_what}.")
IN_PAPER = {
    "texts": ["decoder", "scale", "prompt", "text"],
    "metrics": ["decoder", "scale", "diversity", "repetition", "frequent_share", "perplexity", "mauve_mean"],
}
"""The columns that wide tables have in a paper, unless others are named."""
