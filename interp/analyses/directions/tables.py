"""Cosines of directions and overlaps of subspaces of one model on one text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from interp.analyses.directions.columns import IN_PAPER, MEANINGS
from interp.analyses.directions.comparisons import cosine_table, members, overlap_table, rotation_table
from interp.analyses.directions.findings import answer, direction_findings, tested
from interp.analyses.directions.options import DirectionOptions
from interp.analyses.directions.sources import Spread, find_sources, sources_cost
from interp.corpora import Batches
from interp.corpora.batching import Text, predicted_batches
from interp.corpora.counts import unigrams_of
from interp.corpora.sources import roughly_tokens
from interp.instruments.directions import refuse_hooks
from interp.instruments.neurons import SCANNED
from interp.instruments.regression import raw_head
from interp.models.shapes import shape_with
from interp.models.sites import Model
from interp.passes.budget import Cost
from interp.passes.execution import Passes, asks
from interp.results.findings import Answer, Finding, over_texts
from interp.results.result import Result, provenance
from interp.support.checks import check_mask_rate, check_seed

__all__ = ["DirectionStudy", "check_asked", "dry_run", "study", "why_impossible"]

_SHOWN = 12  # pairs of directions


@dataclass(frozen=True, eq=False)
class DirectionStudy(Result):
    """The result of `study`.

    - `cosines` (name_a, name_b, of_a, of_b, cosine±, null_95, by_construction, p, p_adjusted): one row for every two
      directions; see `interp.directions.comparisons.cosine_table`.
    - `overlaps` (name_a, name_b, n_dims_a, n_dims_b, overlap±, null_mean, null_high, by_construction, p, p_adjusted):
      one row for every two subspaces; see `interp.directions.comparisons.overlap_table`.
    - `rotations` (name_a, name_b, draw, value): one row per pair and random rotation of one of the two.

    The provenance has the `dims`, `neurons` and `heads` (layer, key head) that were compared, and says what is `absent`
    from this text, and why.
    """

    analysis: ClassVar[str] = "directions"
    page: ClassVar[str | None] = "interp.analyses.directions.page"
    columns: ClassVar = MEANINGS
    in_paper: ClassVar = IN_PAPER

    cosines: pd.DataFrame
    overlaps: pd.DataFrame
    rotations: pd.DataFrame

    @property
    def answer(self) -> Answer | None:
        return answer(self.cosines)

    @property
    def findings(self) -> tuple[Finding, ...]:
        findings = direction_findings(self.cosines, self.overlaps, self.rotations)
        return over_texts(findings, self.provenance.get("intervals", {}))

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        closest = tested(self.cosines).head(_SHOWN).drop(columns=["of_a", "of_b", "by_construction", "p"])
        return {
            "cosines": (f"the largest cosines that are not so by construction: {self.where}", closest),
            "overlaps": (f"overlaps of subspaces: {self.where}", self.overlaps.drop(columns=["null_high", "p"])),
        }


def check_asked(options: DirectionOptions) -> None:
    """Raise ValueError or TypeError for options that are impossible for every model."""
    check_mask_rate(options.mask_rate)
    check_seed(options.seed)


def why_impossible(model: Model) -> str | None:
    """Return why the directions of a model cannot be compared, or None if they can."""
    try:
        raw_head(model).refuse_cap("log-probabilities are no linear function of its input")
    except ValueError as error:
        return str(error)
    return None


@asks(DirectionOptions)
def study(model: Model, text: Text, options: DirectionOptions) -> Passes[DirectionStudy]:
    """Compare the directions that three papers find in a model, in the space of the unembedding's input.

    These are directions of word frequency (b_LN, E[h] and the slope of log u), of output embeddings (the slope −A of
    token probability, principal axes, and neurons that act along log u), and of attention (outlier dimensions, and the
    direction that draws keys towards those of sinks). Cosines of two directions and overlaps of two subspaces are
    compared with those under random rotations. There is one pass over the text, and for decoders there are three more
    for neurons.

    `text` is anything `interp.corpora.batches` takes, or its batches.

    Raises ValueError for a model that is folded or soft-caps its logits, for fewer usable types than dimensions, and
    for counts, a mask_rate or a seed that cannot be used. Raises RuntimeError while the prediction head has other
    hooks.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> found = study(toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20, progress=False)
        >>> found.overlaps[["name_a", "name_b"]].to_numpy().tolist()[0]
        ['word frequency', 'principal axes']
    """
    if reason := why_impossible(model):
        raise ValueError(reason)
    check_asked(options)
    refuse_hooks(model)
    drawn = {} if isinstance(text, Batches) else {"seed": options.seed}
    prepared = predicted_batches(model, text, **options.text, mask_rate=options.mask_rate, **drawn)
    unigram = unigrams_of(model, prepared, options.unigram, column=options.column)
    sources = yield from find_sources(model, prepared, unigram, seed=options.seed)

    predictions = sources.predictions
    spread = Spread(predictions.sizes, predictions.stretches_per_group)
    directions, subspaces = members(model, sources)
    cosines = cosine_table(directions, spread)
    overlaps = overlap_table(subspaces, spread, seed=options.seed)
    record = provenance(
        model,
        prepared.about,
        dims=sources.dims,
        neurons=sources.neurons,
        heads=[list(head) for head in sources.heads],
        absent=sources.absent,
        intervals=predictions.intervals,
        n_tokens=predictions.n_tokens,
    )
    return DirectionStudy(
        provenance=record,
        cosines=cosines,
        overlaps=overlaps,
        rotations=rotation_table(cosines, overlaps, model.cfg.d_model, seed=options.seed),
    )


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `study` with these options, without a model.

    Raises the errors of `interp.models.shapes.shape`.
    """
    size = shape_with(name, options)
    if size.why_no_head:
        return Cost(lines=[f"directions: {size.why_no_head}"])
    chosen = DirectionOptions.of(options)
    tokens = roughly_tokens(data, limit=chosen.limit, column=chosen.column)
    share = 0.0 if tokens is None else min(1.0, SCANNED / tokens)  # a text of unknown length is taken to be long
    return Cost(passes=tuple(sources_cost(size, chosen.context, share)))
