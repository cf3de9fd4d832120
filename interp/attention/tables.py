"""Question 2 in whole: contributions, gaps, attention, outliers and ablation of one model on one text."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Integer

from interp.attention.ablation import Mode, ablate
from interp.attention.patterns import AttentionByClass
from interp.attention.profile import DimensionCorrelations, DimensionProfile, check_k, find_outliers
from interp.attention.scores import Average, ScoreContributions, Weights, gaps, warn_of_absent
from interp.checks import check_mode, check_seed, whole_number
from interp.corpora import Batches, KeyClasses, Text, as_batches, batches, token_classes, unigrams_of
from interp.corpora.unigrams import Unigrams
from interp.models.head import real_tokens
from interp.models.qk import check_layers
from interp.models.sites import Model
from interp.results import Result, provenance
from interp.run.passes import Passes, Reading, run


@dataclass(frozen=True, eq=False)
class AttentionStudy(Result):
    """What `study` found.

    - `scores`, `gaps`: see `interp.attention.score_contributions` and `gaps`.
    - `totals` (layer, head, key_class, contributions, key_bias, score): the mean score as what the dimensions and
      b_K make of it.
    - `attention`: see `interp.attention.attention_by_class`.
    - `dims`, `outliers`, `ablation`: see `dimension_profile`, `find_outliers`, `ablation_effect`.
    - `correlations` (layer, dim, log_unigram, attention_received, n_tokens): Pearson correlation over tokens of a
      dimension of the attention input with log u of the token, and with the attention the token receives.
    """

    analysis: ClassVar[str] = "attention"

    scores: pd.DataFrame
    gaps: pd.DataFrame
    totals: pd.DataFrame
    attention: pd.DataFrame
    dims: pd.DataFrame
    outliers: pd.DataFrame
    ablation: pd.DataFrame
    correlations: pd.DataFrame

    @property
    def by_layer(self) -> pd.DataFrame:
        """Attention by layer and class of the key, mean over heads."""
        groups = self.attention.groupby(["layer", "key_class"], sort=False)
        return groups[["sum", "mean", "norm_weighted", "uniform"]].mean().reset_index()

    @property
    def largest_gaps(self) -> pd.DataFrame:
        """By layer and class with a gap: the dimension of the largest mean |gap| share, and how many make 90 %."""
        means = self.gaps.groupby(["layer", "key_class", "dim"], sort=False)[["abs_share", "n_dims_90_abs"]].mean()
        table = means.reset_index().dropna(subset="abs_share")
        if table.empty:
            return table
        largest = table.groupby(["layer", "key_class"], sort=False)["abs_share"].idxmax()
        return table.loc[largest].reset_index(drop=True)

    @property
    def ablated(self) -> pd.DataFrame:
        """Change of attention to each class but `other` with a key dimension removed, by layer and set."""
        table = self.ablation.assign(change=self.ablation["attention_after"] - self.ablation["attention_before"])
        table = table[table["key_class"] != "other"]
        return table.groupby(["layer", "key_class", "set"], sort=False).agg(
            attention_before=("attention_before", "first"), mean_change=("change", "mean"),
            largest_fall=("change", "min"), largest_rise=("change", "max"),
        ).reset_index()  # fmt: skip


def study(
    model: Model,
    text_or_batches: Text,
    *,
    layers: Sequence[int] | None = None,
    key_classes: KeyClasses = None,
    weights: Weights = "mean",
    scaled: bool = False,
    average: Average = "pair",
    k: float | int = 3.0,
    mode: Mode = "mean",
    unigram: Unigrams | Integer[np.ndarray, " d_vocab"] | str | os.PathLike[str] | None = None,
    sample: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
    directory: str | os.PathLike[str] | None = None,
) -> AttentionStudy:
    """Which dimensions decide attention to which tokens, in one pass; then what removing outliers does, in another.

    Args:
        text_or_batches: anything `interp.corpora.batches` takes, or its batches; nothing masked.
        layers, key_classes, weights, scaled, average: see `interp.attention.score_contributions`.
        k: see `find_outliers`.
        mode: see `ablation_effect`.
        unigram: token counts for the correlations; the model's own, or else this text's.
        sample: take the contributions from this many texts, drawn at random, a text a row, in a pass of their own (the
            paper: 100).
        seed: of the sample and of the random dimensions.
        directory: see `interp.run.passes.run`.

    Raises ValueError as those functions do, for an unknown mode, a sample below 1 and batches of masked text.
    """
    analysis = study_passes(
        model, text_or_batches, layers=layers, key_classes=key_classes, weights=weights, scaled=scaled,
        average=average, k=k, mode=mode, unigram=unigram, sample=sample, seed=seed, batch_size=batch_size,
    )  # fmt: skip
    return run(model, analysis, progress=progress, directory=directory)


def study_passes(
    model: Model,
    text_or_batches: Text,
    *,
    layers: Sequence[int] | None = None,
    key_classes: KeyClasses = None,
    weights: Weights = "mean",
    scaled: bool = False,
    average: Average = "pair",
    k: float | int = 3.0,
    mode: Mode = "mean",
    unigram: Unigrams | Integer[np.ndarray, " d_vocab"] | str | os.PathLike[str] | None = None,
    sample: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
) -> Passes[AttentionStudy]:
    """`study` for `interp.run.passes`: one reading of everything, then one of the ablation."""
    chosen = check_layers(model, layers)
    check_k(k)
    check_mode(mode)
    seed = check_seed(seed)
    sample = None if sample is None else whole_number(sample, "sample", least=1)
    classes = token_classes(model, key_classes)
    prepared = as_batches(model, text_or_batches, batch_size=batch_size)
    if prepared.settings.get("mask_rate") is not None:
        raise ValueError("these batches are masked; attention is read from the text itself, so leave mask_rate out")
    counts = unigrams_of(model, prepared, unigram)
    log_unigram = torch.from_numpy(counts.log_prior(real_tokens(model).cpu().numpy()))

    contributions = ScoreContributions(model, classes, layers=chosen, weights=weights, scaled=scaled, average=average)
    attention = AttentionByClass(model, classes, layers=chosen)
    residual, inputs = DimensionProfile(model, classes), DimensionProfile(model, classes, of="attn_input")
    correlations = DimensionCorrelations(model, log_unigram)
    where = prepared if sample is None else _sampled(model, prepared, sample, seed)
    yield [
        Reading("attention", prepared, [attention, residual, inputs, correlations]),
        Reading("attention scores", where, [contributions]),
    ]
    profile = residual.table
    warn_of_absent(classes, profile["key_class"])
    outliers = find_outliers(profile, k=k)
    scores = contributions.scores
    apart = gaps(scores)
    ablation = yield from ablate(
        model, prepared, classes, inputs.table, outliers, apart, chosen, "keys", mode, seed, progress=False
    )
    return AttentionStudy(
        provenance=provenance(
            model,
            prepared.about,
            unigram={"corpus": counts.corpus, "n_tokens": counts.n_tokens},
            layers=chosen,
            weights=weights,
            scaled=scaled,
            average=average,
            k=float(k),
            mode=mode,
            sample=sample,
            key_classes=list(classes.names),
            n_tokens=int(profile.loc[profile["key_class"] == "all", "n_tokens"].iloc[0]),
        ),
        scores=scores,
        gaps=apart,
        totals=contributions.totals,
        attention=attention.table,
        dims=profile,
        outliers=outliers,
        ablation=ablation,
        correlations=correlations.table,
    )


def _sampled(model: Model, prepared: Batches, sample: int, seed: int) -> Batches:
    """Batches of some of the texts, a text a row."""
    if prepared.corpus is None:
        raise ValueError("a sample needs texts; token ids have none")
    texts = list(prepared.corpus)
    picked = np.random.default_rng(seed).choice(len(texts), size=min(sample, len(texts)), replace=False)
    settings: dict[str, Any] = {name: prepared.settings[name] for name in ("context", "bos", "eos", "batch_size")}
    return batches(model, [texts[i] for i in sorted(picked)], layout="texts", **settings)
