"""Parts of the word-frequency analysis beyond the four papers, off by default: directions in the head's input, random
controls, bands of word frequency, and outlier dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Int

from interp.analyses.frequency.bands import BAND_COLUMNS, band_nll, band_table, check_bands, frequency_bands
from interp.analyses.frequency.directions import (
    CONTROL_COLUMNS,
    Controls,
    Vectors,
    check_controls,
    check_directions,
    controlled,
    head_directions,
)
from interp.analyses.frequency.options import FrequencyOptions
from interp.analyses.frequency.outliers import OUTLIER_COLUMNS, Outliers, outlier_dims
from interp.corpora import Batches
from interp.instruments.divergences import Distribution
from interp.instruments.predictions import MeanPredictions
from interp.instruments.regression import raw_head
from interp.models.running import head_is_hooked
from interp.models.sites import Model
from interp.passes.execution import Passes, Reading, side_by_side
from interp.support.checks import check_scales
from interp.support.choices import Bias, listed

__all__ = ["Further", "check_asked", "look_further"]


@dataclass(frozen=True, eq=False)
class Further:
    """The additional questions: the `vectors` to scale, the band of each type, and the observers for the rest."""

    vectors: Vectors
    bands: Int[np.ndarray, " d_vocab"]
    measures_bands: bool
    controls: Controls | None
    dims: pd.DataFrame
    parts: Outliers | None
    sampled: Batches | None

    def readings(self, prepared: Batches, predictions: MeanPredictions) -> list[Reading]:
        """The readings that are needed, including the predictions of the edits."""
        controls = [self.controls.predictions] if self.controls else []
        readings = [Reading("word frequency", prepared, [predictions, *controls])]
        if self.parts is not None and self.sampled is not None:
            readings.append(Reading("outlier dimensions", self.sampled, self.parts.observers))
        return readings

    def tables(
        self, predictions: MeanPredictions, edits: pd.DataFrame, u: Distribution, unedited: int
    ) -> dict[str, pd.DataFrame]:
        """The tables of `BiasEffect` that these questions fill, by name. A table that was not asked for is empty."""
        found = {"controls": pd.DataFrame(columns=CONTROL_COLUMNS), "bands": pd.DataFrame(columns=BAND_COLUMNS)}
        found |= {"outlier_dims": self.dims, "outliers": pd.DataFrame(columns=OUTLIER_COLUMNS)}
        if self.controls:
            nll, count = (one.sum(0) for one in band_nll(predictions, unedited, self.bands))
            found["controls"] = controlled(self.controls, u, predictions.means(unedited), nll / count)
        if self.measures_bands:
            found["bands"] = band_table(predictions, edits, u, self.bands, unedited)
        if self.parts is not None:
            found["outliers"] = self.parts.table(u)
        return found


def check_asked(options: FrequencyOptions) -> None:
    """Raise the errors of `check_scales`, `check_directions`, `check_controls` and `check_bands`."""
    check_scales(options.scales)
    check_directions(options.directions)
    check_controls(options.controls, listed(options.scales))
    check_bands(options.bands)


def look_further(
    model: Model,
    prepared: Batches,
    biases: Sequence[Bias],
    scales: Sequence[float],
    u: Distribution,
    options: FrequencyOptions,
) -> Passes[Further]:
    """Prepare the additional questions, with at most one pass before that of the edits.

    Raises the errors of `head_directions`, and ValueError for controls or outlier dimensions of a folded model. Raises
    RuntimeError for any of these while the prediction head has other hooks, because its input may then not be what the
    logits are computed from.
    """
    if (options.directions or options.controls or options.outliers) and head_is_hooked(model):
        what = "directions, controls and outlier dimensions of the head's input"
        raise RuntimeError(f"{what} cannot be scaled while other hooks are active on the prediction head; remove them")
    seed = options.seed or 0
    looking = [outlier_dims(model, prepared)] if options.outliers else []
    vectors, *looked = yield from side_by_side(head_directions(model, prepared, options.directions or ()), *looking)
    bands, controls = frequency_bands(u, options.bands or 1), None
    if options.controls:
        b_ln = raw_head(model).b_ln
        of_bias: Vectors = {} if "ln" not in biases or b_ln is None else {"ln": b_ln.detach()}
        controls = Controls.of(model, of_bias | vectors, scales, n=options.controls, u=u, classes=bands, seed=seed)
    dims, parts, sampled = pd.DataFrame(columns=["dim", "share", "mean"]), None, None
    if looked and len(dims := looked[0].table):
        parts = Outliers.of(model, dims["dim"].tolist(), controls=options.controls, seed=seed)
        sampled = parts.sample(prepared, looked[0].n_tokens, seed)
    return Further(vectors, bands, options.bands > 0, controls, dims, parts, sampled)
