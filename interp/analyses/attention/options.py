"""The options and the declaration of `interp attention`."""

from typing import Literal

from interp.analyses.declare import Analysis, option, option_class
from interp.analyses.options import CountsOptions, KeyClasses, TextOptions
from interp.support.choices import Average, Mode, Rule, Several, Weights

__all__ = ["ANALYSIS", "OUTLIERS", "AttentionOptions", "Where"]

Where = Literal["keys", "residual"]
"""What dimensions are removed from: the keys of a block, or the residual stream that enters it."""
OUTLIERS: dict[Where, int] = {"keys": 16, "residual": 3}
"""How many outlier dimensions are removed one by one, at most: those that are outliers in the most states."""


@option_class
class AttentionOptions(CountsOptions, TextOptions):
    layers: Several[int] | None = option(default=None, help="TransformerLens' block numbers. Default: all.")
    key_classes: KeyClasses = option(
        default=None,
        help='Classes of keys, as {"name": [token ids]} or {"kana": ["hiragana", "katakana"]} (docs/languages.md). '
        "Default: special tokens, the first position of causal models, commas and periods, other.",
        cli=dict,
    )
    weights: Weights = option(
        default="mean", help="How pairs of query and key are weighted: equally, or by their attention."
    )
    scaled: bool = option(default=False, help="Divide contributions by √d_head, which gives nats.")
    average: Average = option(
        default="pair",
        help="pair: average over all pairs; sentence: average within each sentence, then over sentences.",
    )
    rule: Rule = option(
        default="robust", help="Outliers by median and MAD over dimensions (robust), or by mean and SD (sd)."
    )
    k: float | int | None = option(
        default=None,
        help="Outliers lie beyond K times 1.4826 MAD, or K SD. Default: 3 (sd), or .05 per state in noise (robust).",
    )
    mode: Mode = option(default="mean", help="What a removed dimension is set to.")
    ablation: bool = option(
        default=True, help="Remove outlier dimensions from the keys in a second pass, and measure attention again."
    )
    sample: int | None = option(default=None, help="Compute contributions on N texts drawn at random.", least=1)
    seed: int = option(default=0, help="Seed for the sample and the random dimensions.", kind="seed", least=0)


ANALYSIS = Analysis(
    name="attention",
    title="Attention by residual dimension",
    question="Which residual dimensions decide attention, and to which tokens?",
    help="Attention scores by residual dimension, outlier dimensions, and what removing them does to attention.",
    reads="text",
    options=AttentionOptions,
    answer="interp.analyses.attention.tables:study",
    result="interp.analyses.attention.tables:AttentionStudy",
    check="interp.analyses.attention.tables:check_asked",
    cost="interp.analyses.attention.tables:dry_run",
    impossible="interp.analyses.attention.tables:why_impossible",
    lacks="interp.analyses.attention.tables:lacks",
    paper={"corpus": "stsb", "sample": 100, "scaled": False, "rule": "sd", "bos": "auto"},
    paper_help="STS-B sentences, unscaled contributions of 100 of them, outliers beyond 3 SD",
)
