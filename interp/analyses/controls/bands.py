"""The cost of an edit of the prediction head for rare and frequent words: NLL and calibration by band of word
frequency.

A band is a share of the text, not of the vocabulary: with five bands, the first has the most frequent types, which
together make up a fifth of the tokens, and the last has the rarest types. P(band | context), the total probability that
the model gives to the types of a band, is compared with whether the next token is in the band.

Source of the calibration error: Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian
Binning", AAAI 2015.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from interp.instruments.divergences import Distribution
from interp.instruments.measures import with_ends
from interp.instruments.predictions import Calibration, MeanPredictions
from interp.results.intervals import jackknife, summed_others

__all__ = ["band_nll", "band_table", "frequency_bands"]
__dir__ = __all__.copy

_MEASURED = ["nll", "delta_nll", "excess_nll", "calibration_error", "delta_calibration_error"]
_COLUMNS = ["bias", "scale", "band", "unigram_low", "unigram_high", "n_types", "n_scored", "share", "predicted"]
_COLUMNS += [*with_ends(_MEASURED), "calibration_floor"]


def frequency_bands(u: Distribution, n: int) -> Int[np.ndarray, " d_vocab"]:
    """Divide types into bands: the band of each, 0 for the most frequent. Types are sorted by decreasing frequency, and
    the band of a type is the n-th part of all tokens in which its middle lies. Types that are equally frequent are in
    the same band, by the middle of all of them, and types that never occur in the last one.

    A type with more than an n-th part of the tokens may leave the next band empty; then there are fewer bands.

    Examples:
        >>> frequency_bands(np.array([0.1, 0.4, 0.0, 0.3, 0.2]), 2).tolist()
        [1, 0, 1, 1, 1]
    """
    _, number = np.unique(-u, return_inverse=True)
    shares = np.bincount(number, weights=u)
    middle = shares.cumsum() - shares / 2
    bands = np.minimum((n * middle).astype(np.int64), n - 1)[number]
    return np.unique(bands, return_inverse=True)[1].astype(np.int64)


def band_nll(
    predictions: MeanPredictions, variant: int, bands: Int[np.ndarray, " d_vocab"]
) -> tuple[Float[np.ndarray, "groups bands"], Float[np.ndarray, "groups bands"]]:
    """Sum the NLL of a variant by group of texts and band of the true token, and the number of tokens. Its NLL
    must have been kept by type."""
    one_hot = np.eye(bands.max() + 1)[bands]
    nll, count = predictions.nll_by_group(variant)
    return nll @ one_hot, count @ one_hot


def band_table(
    predictions: MeanPredictions,
    edits: pd.DataFrame,
    u: Distribution,
    bands: Int[np.ndarray, " d_vocab"],
    unedited: int,
) -> pd.DataFrame:
    """Measure how each edit changes each band: the table `bands` of a study.

    Args:
        predictions: predictions made with these bands, with NLL by type. The first variants are the edits.
        edits: the bias and scale of each edit.
        unedited: the number of the variant to compare with.
    """
    variants = [*range(len(edits)), unedited]
    summed = [band_nll(predictions, variant, bands) for variant in variants]
    nll = np.stack([band_sums for band_sums, _ in summed], 1)
    count = summed[0][1][:, None]
    calibrations = predictions.calibration_leaving_out()
    left_out = zip(summed_others(nll), summed_others(count), calibrations, strict=True)
    without = [_measured(sums, counts, calibration, variants) for sums, counts, calibration in left_out]
    calibration = predictions.calibration
    values = _measured(nll.sum(0), count.sum(0), calibration, variants)
    interval = jackknife(values, np.stack(without), predictions.sizes, predictions.stretches_per_group)
    n_bands = int(bands.max()) + 1
    of_type = pd.DataFrame({"band": bands, "u": u}).query("u > 0").groupby("band")["u"].agg(["min", "max", "size"])
    of_type = of_type.reindex(range(n_bands))
    table = edits.merge(pd.DataFrame({"band": np.arange(1, n_bands + 1)}), how="cross")
    columns = {"unigram_low": of_type["min"], "unigram_high": of_type["max"], "n_types": of_type["size"]}
    columns.update(n_scored=count.sum((0, 1)), share=calibration.share[unedited])
    for name, of_band in columns.items():
        table[name] = np.tile(of_band, len(edits))
    table["predicted"] = calibration.predicted[: len(edits)].ravel()
    table["calibration_floor"] = calibration.floor[: len(edits)].ravel()
    for number, name in enumerate(_MEASURED):
        for end, ends in {"": interval.value, "_low": interval.low, "_high": interval.high}.items():
            table[f"{name}{end}"] = ends[number, :-1].ravel()
    return table.astype({"n_types": int, "n_scored": int})[_COLUMNS]


def _measured(
    nll: Float[np.ndarray, "kept bands"],
    count: Float[np.ndarray, "1 bands"],
    calibration: Calibration,
    variants: list[int],
) -> Float[np.ndarray, "measures kept bands"]:
    """Each of `_MEASURED` for the variants that are kept. The last of these is the unedited model."""
    with np.errstate(invalid="ignore", divide="ignore"):  # some band never has the true token
        by_band, overall = nll / count, nll.sum(1, keepdims=True) / count.sum()
    excess = by_band - by_band[-1:]
    error = calibration.error[variants]
    return np.stack([by_band, excess, excess - (overall - overall[-1:]), error, error - error[-1:]])
