"""What `interp attention` is asked with."""

from dataclasses import dataclass
from typing import Literal

from interp.declare import Analysis, Mode, Several, option
from interp.options import CountsOptions, KeyClasses, TextOptions

__all__ = ["ANALYSIS", "AttentionOptions", "Average", "Rule", "Weights"]

Weights = Literal["mean", "attention"]
Average = Literal["pair", "sentence"]
Rule = Literal["robust", "sd"]


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(CountsOptions, TextOptions):
    layers: Several[int] | None = option(None, "TransformerLens' block numbers. Default: all.")
    key_classes: KeyClasses = option(
        None,
        'Classes of keys, as {"name": [token ids]} or {"kana": ["hiragana", "katakana"]} (docs/languages.md). Default: '
        "special tokens, the first position of causal models, commas and periods, other.",
        cli=dict,
    )
    weights: Weights = option("mean", "Each pair of query and key counts once, or by its attention.")
    scaled: bool = option(False, "Contributions in nats: divided by √d_head.")
    average: Average = option("pair", "Average over all pairs, or over the means of the sentences.")
    rule: Rule = option("robust", "What outliers are measured by: median and MAD over dimensions, or mean and SD.")
    k: float | int | None = option(
        None, "An outlier lies beyond K of these. Default: where noise gives .05 outliers in a state; 3 with SD."
    )
    mode: Mode = option("mean", "What a removed dimension is set to: zero or its mean.")
    ablation: bool = option(True, "Remove outlier dimensions from the keys in a second pass, and read attention again.")
    sinks: bool = option(False, "Attention sinks: which heads, which positions, what draws attention there.")
    epsilon: float = option(0.3, "A sink is where a head's mean attention from the queries that see it is above this.")
    sample: int | None = option(None, "Take the contributions from N texts drawn at random.", least=1)
    seed: int = option(0, "Of the sample and of the random dimensions.", least=0)


ANALYSIS = Analysis(
    name="attention",
    title="Attention by residual dimension",
    question="Which residual dimensions decide attention, and to which tokens?",
    help="Attention scores by residual dimension, outlier dimensions, and what removing them does to attention.",
    reads="text",
    options=AttentionOptions,
    answer="interp.attention.tables:study",
    result="interp.attention.tables:AttentionStudy",
    section="interp.attention.page:section",
    sides="interp.attention.page:sides",
    cost="interp.attention.costs:dry_run",
    impossible="interp.attention.tables:why_impossible",
    more={"sinks": True},
    paper={"corpus": "stsb", "sample": 100, "scaled": False, "rule": "sd"},
    paper_help="STS-B sentences, contributions of 100 of them, unscaled, outliers beyond 3 SD",
)
