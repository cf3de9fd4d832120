"""Whether b_LN, the mean input of the prediction head and its outlier dimensions differ from random directions."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from interp.analyses.controls.bands import band_nll, band_table, frequency_bands
from interp.analyses.controls.columns import IN_PAPER, MEANINGS
from interp.analyses.controls.draws import KINDS, Draws, ranks
from interp.analyses.controls.findings import answer, band_findings, outlier_findings
from interp.analyses.controls.options import ControlOptions
from interp.analyses.controls.outliers import OUTLIER_COLUMNS, OutlierDims, Outliers, outlier_dims
from interp.corpora.batching import Text, predicted_batches
from interp.corpora.counts import word_frequencies
from interp.corpora.sources import roughly_tokens
from interp.instruments.directions import (
    Vectors,
    added_logits,
    check_directions,
    directions_cost,
    head_directions,
    refuse_hooks,
    why_no_directions,
)
from interp.instruments.logits import at_head
from interp.instruments.measures import measures
from interp.instruments.predictions import MeanPredictions, Variant
from interp.instruments.regression import raw_head
from interp.models.shapes import shape_with
from interp.models.sites import Model
from interp.passes.budget import Cost
from interp.passes.execution import Passes, Reading, asks, side_by_side
from interp.passes.groups import MOST
from interp.results.findings import Answer, Finding, over_texts
from interp.results.result import Result, provenance
from interp.results.verdicts import FEWEST_CONTROLS
from interp.support.checks import check_mask_rate, check_scales, whole_number
from interp.support.choices import Direction, Several, listed

__all__ = ["ControlStudy", "check_asked", "dry_run", "study", "why_impossible"]

_FEWEST_BANDS = 2
_COPIES = 6  # copies of the sums without each group of texts
_KL = ["kl_unigram_model", "delta_kl", "delta_kl_corrected", "delta_kl_low", "delta_kl_high", "perplexity"]


@dataclass(frozen=True, eq=False)
class ControlStudy(Result):
    """The result of `study`.

    - `controls` (bias, scale, kind, draw, norm, effect_sd, kl_unigram_model, delta_kl, perplexity, delta_nll,
      excess_nll): one row per random direction, in place of b_LN and of each direction, and scale.
    - `kl` (bias, scale, kl_unigram_model, delta_kl, delta_kl_corrected±, perplexity): one row per bias or direction,
      and scale, as in `interp.frequency.FrequencyStudy`.
    - `bands` (bias, scale, band, unigram_low, unigram_high, n_types, n_scored, share, predicted, nll±, delta_nll±,
      excess_nll±, calibration_error±, delta_calibration_error±, calibration_floor): one row per bias or direction,
      scale and band of word frequency.
    - `outlier_dims` (dim, share, mean): one row per dimension of the head's input that is extreme at most positions.
    - `outliers` (part, of, draw, n_dims, kl_unigram_model±, js±, surprisal±, entropy±, n_predicted, n_tokens): one row
      per part of the head's input that predictions are made from, and draw of random parts, at no more than about 2,000
      positions. It is empty if there are no outlier dimensions.
    """

    analysis: ClassVar[str] = "controls"
    page: ClassVar[str | None] = "interp.analyses.controls.page"
    columns: ClassVar = MEANINGS
    in_paper: ClassVar = IN_PAPER

    controls: pd.DataFrame
    kl: pd.DataFrame
    bands: pd.DataFrame
    outlier_dims: pd.DataFrame
    outliers: pd.DataFrame

    @property
    def ranks(self) -> pd.DataFrame:
        """The rank of each ΔKL among those of random directions; see `interp.analyses.controls.draws.ranks`."""
        return ranks(self.kl, self.controls)

    @property
    def answer(self) -> Answer | None:
        return answer(self.bands)

    @property
    def findings(self) -> tuple[Finding, ...]:
        intervals = self.provenance.get("intervals", {})
        findings = [
            *band_findings(self.bands, self.controls, intervals),
            *outlier_findings(self.outlier_dims, self.outliers, intervals),
        ]
        return over_texts(findings, intervals)

    @property
    def shown(self) -> dict[str, tuple[str, pd.DataFrame]]:
        return {"ranks": (f"ranks: {self.where}", self.ranks)}


def check_asked(options: ControlOptions) -> None:
    """Raise ValueError for scales that repeat, are not finite or are 1, for unknown directions, an impossible
    mask_rate, and for fewer draws or bands than can be compared. Raise TypeError for numbers of them that are not
    whole."""
    check_mask_rate(options.mask_rate)
    check_scales(options.scales)
    if 1 in [float(scale) for scale in listed(options.scales)]:
        raise ValueError("with a scale of 1 nothing is edited; expected scales other than 1")
    check_directions(options.directions)
    whole_number(options.draws, "draws", least=FEWEST_CONTROLS)
    whole_number(options.bands, "bands", least=_FEWEST_BANDS)


def why_impossible(model: Model, directions: Several[Direction] = ("mean", "slope")) -> str | None:
    """Return why the question cannot be asked of a model with these directions, or None if it can."""
    reason = why_no_directions(model)
    if reason is None and not listed(directions) and raw_head(model).b_ln is None:
        return "this model's prediction head has no b_LN, and no direction is asked for; give directions"
    return reason


@asks(ControlOptions)
def study(model: Model, text: Text, options: ControlOptions) -> Passes[ControlStudy]:
    """Remove b_LN, E[h] and −A from the prediction head's input, and random directions in their place.

    Each is scaled by λ, which adds a constant vector to the logits, as in `interp.frequency.study`. It is
    compared with random directions in what this does to `KL(u‖q)`, and to the NLL of rare and frequent words. Outlier
    dimensions of the input, if there are any, are compared with random parts of it. There is one pass to find the
    directions and outlier dimensions, and one for everything else.

    `text` is anything `interp.corpora.batches` takes, or its batches. Word frequencies are those of
    `interp.frequency.study`.

    Raises:
        ValueError: a scale is 1, repeated or not finite; there are fewer than 39 draws, or one band; unigram counts
            belong to another vocabulary; the text has no position to read; or the model is folded, or soft-caps its
            logits.
        RuntimeError: the prediction head has other hooks.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w0 w0 w1 w1 w2"] * 20
        >>> counts = interp.corpora.count_unigrams(model, text)
        >>> found = study(model, text, unigram=counts, directions="mean", bands=2, progress=False)
        >>> found.ranks["kind"].tolist()[:4]
        ['norm', 'effect', 'embeddings', 'centred embeddings']
    """
    check_asked(options)
    if reason := why_impossible(model, options.directions):
        raise ValueError(reason)
    refuse_hooks(model)
    scales = [float(scale) for scale in listed(options.scales)]
    seed = options.seed or 0
    prepared = predicted_batches(model, text, **options.text, mask_rate=options.mask_rate, seed=options.seed)
    counts = word_frequencies(model, prepared, options.unigram, column=options.column)
    u = counts.distribution
    directions, dims = yield from side_by_side(
        head_directions(model, prepared, options.directions), outlier_dims(model, prepared)
    )
    head = raw_head(model)
    vectors: Vectors = ({} if head.b_ln is None else {"ln": head.b_ln.detach()}) | directions
    edits = pd.DataFrame(itertools.product(vectors, scales), columns=["bias", "scale"])
    effects = {name: added_logits(head, vector[None])[0] for name, vector in vectors.items()}
    variants = [Variant((scale - 1) * effects[name], name=f"{name} × {scale:g}") for name, scale in edits.to_numpy()]
    bands = frequency_bands(u, options.bands)
    predictions = MeanPredictions(model, [*variants, Variant(name="unedited")], grouped=True, bands=bands)
    draws = Draws.of(model, vectors, scales, n=options.draws, u=u, classes=bands, seed=seed)
    readings = [Reading("random directions", prepared, [predictions, draws.predictions])]
    parts = None
    if len(dims.table):
        parts = Outliers.of(model, dims.table["dim"].tolist(), n=options.draws, seed=seed)
        readings.append(Reading("outlier dimensions", parts.sample(prepared, dims.n_tokens, seed), [*parts]))
    yield readings

    unedited = len(edits)
    nll, count = (sums.sum(0) for sums in band_nll(predictions, unedited, bands))
    with np.errstate(invalid="ignore"):  # some band never has the true token
        before = nll / count
    tables: dict[str, Any] = {
        "controls": draws.table(u, predictions.means(unedited), before),
        "kl": edits.join(measures(predictions, u, unedited)[_KL]),
        "bands": band_table(predictions, edits, u, bands, unedited),
        "outlier_dims": dims.table,
        "outliers": pd.DataFrame(columns=OUTLIER_COLUMNS) if parts is None else parts.table(u),
    }
    record = provenance(
        model, prepared.about, unigram={"corpus": counts.corpus, "n_tokens": counts.n_tokens}, scales=scales,
        intervals=predictions.intervals, draws=options.draws, n_tokens=predictions.n_tokens,
    )  # fmt: skip
    return ControlStudy(provenance=record, **tables)


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `study` with these options, without a model: a pass that finds directions and outlier
    dimensions, and one for b_LN and the directions at each scale, with four kinds of random ones.

    Raises the errors of `interp.models.shapes.shape`.

    Examples:
        >>> dry_run("tiny-gpt2", None, {}).numbers["controls"]  # b_LN, E[h] and −A
        468
    """
    size = shape_with(name, options)
    chosen = ControlOptions.of(options)
    directions = listed(chosen.directions)
    n_vectors = len(directions) + ("ln" in size.biases)
    if size.why_no_head or not n_vectors:
        reason = size.why_no_head or "this model's prediction head has no b_LN, and no direction is asked for"
        return Cost(lines=[f"random directions: {reason}"])
    n = n_vectors * len(listed(chosen.scales))
    n_controls = len(KINDS) * chosen.draws * n
    edits: dict[str, Any] = {"what": "random directions", "step": 1}
    copies = 3 * 8 * n_controls * size.d_vocab  # shifts, their exponentials, and what is being added
    passes = [
        *directions_cost(size, directions),
        at_head(size, what="head input", sums=OutlierDims.n_bytes(size)),
        MeanPredictions.cost(size, n + 1, grouped=True, bands=chosen.bands, **edits),
        MeanPredictions.cost(size, n_controls, classes=chosen.bands, copies=copies, **edits),
        *Outliers.cost(size, chosen.draws, roughly_tokens(data, limit=chosen.limit, column=chosen.column)),
    ]
    between = sum(part.sums for part in passes) + _COPIES * 8 * MOST * size.d_vocab
    return Cost(passes=tuple(passes), between=between, numbers={"variants": n + 1, "controls": n_controls})
