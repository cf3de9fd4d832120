"""Random directions in the prediction head's input, in place of b_LN, E[h] and −A.

Removing any vector from the head's input changes predictions. So b_LN and each direction are compared with random
directions: of any kind with the same norm, or with the same effect, which is the SD over types of what a direction adds
to the logits; and sums of output embeddings, as they are and centred, with the same norm.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from interp.instruments.controls import DirectionKind, random_directions
from interp.instruments.directions import Vectors, added_logits
from interp.instruments.divergences import Distribution, kl, perplexity
from interp.instruments.predictions import MeanPredictions, Means, Variant
from interp.instruments.regression import raw_head
from interp.models.sites import Model

__all__ = ["KINDS", "Draws", "farthest", "plug_in", "ranks"]
__dir__ = __all__.copy

_DRAWN_AS: dict[str, DirectionKind] = {
    "norm": "isotropic",
    "effect": "isotropic",
    "embeddings": "embeddings",
    "centred embeddings": "centred embeddings",
}
KINDS = tuple(_DRAWN_AS)
"""What is random: any direction, of equal norm or of equal effect, or a sum of embeddings, of equal norm."""
_EDITS = ["bias", "scale", "kind", "draw", "norm", "effect_sd"]
_MEASURED = ["kl_unigram_model", "delta_kl", "perplexity", "delta_nll", "excess_nll"]


class Draws(NamedTuple):
    """Random directions to compare vectors with. `edits` has one row per variant of `predictions` (bias, scale, kind,
    draw, norm, effect_sd)."""

    edits: pd.DataFrame
    predictions: MeanPredictions

    @classmethod
    def of(
        cls,
        model: Model,
        vectors: Vectors,
        scales: Sequence[float],
        *,
        n: int,
        u: Distribution,
        classes: Int[np.ndarray, " d_vocab"],
        seed: int,
    ) -> "Draws":
        """Draw n directions of each of `KINDS` for each vector and scale. The same n directions are scaled for each
        vector.

        Args:
            u: the unigram distribution. Effects are computed over the types that occur.
            classes: the class of each type in which NLL is summed.
        """
        head = raw_head(model)
        seen = head.real.cpu() & torch.from_numpy(u > 0)
        real = head.embeddings.of(head.real.cpu().numpy())
        effects = {}
        for kind, drawn_as in _DRAWN_AS.items():
            effects[kind] = added_logits(head, random_directions(real, drawn_as, n, seed=seed))
        rows, variants = [], []
        for bias, vector in vectors.items():
            norm = float(vector.double().norm())
            sd = float(added_logits(head, vector[None])[0, seen].std())
            for kind, of_unit in effects.items():
                spread = of_unit[:, seen].std(1)
                lengths = sd / spread if kind == "effect" else torch.full_like(spread, norm)
                for scale in scales:
                    for draw, (length, effect) in enumerate(zip(lengths.tolist(), of_unit, strict=True)):
                        rows.append((bias, scale, kind, draw, length, length * float(spread[draw])))
                        name = f"random direction {draw} ({kind}) for {bias} × {scale:g}"
                        variants.append(Variant((scale - 1) * length * effect, name=name))
        return cls(pd.DataFrame(rows, columns=_EDITS), MeanPredictions(model, variants, classes=classes))

    def table(self, u: Distribution, unedited: Means, nll_by_class: Float[np.ndarray, " classes"]) -> pd.DataFrame:
        """List the random edits, as `controls` of a study: `edits`, and what each of them changes relative to the
        unedited model, whose mean NLL in each class is given."""
        kl_before = kl(u, unedited.distribution)
        rows = []
        for variant in range(len(self.edits)):
            means = self.predictions.means(variant)
            distance = kl(u, means.distribution)
            change = means.nll - unedited.nll
            excess = (means.nll_by_class - nll_by_class)[0] - change
            rows.append((distance, distance - kl_before, perplexity(means.nll), change, excess))
        return self.edits.join(pd.DataFrame(rows, columns=_MEASURED))


def farthest(table: pd.DataFrame) -> pd.DataFrame:
    """Select the rows at the λ nearest to 0."""
    return table[table["scale"].abs() == table["scale"].abs().min()]


def ranks(kl: pd.DataFrame, controls: pd.DataFrame) -> pd.DataFrame:
    """Rank the ΔKL of b_LN and each direction among its controls, for each λ and each kind of control.

    Args:
        kl, controls: tables of `ControlStudy`.

    Returns a table with one row per bias, λ and kind, in which `p = rank / (n_controls + 1)`.
    """
    rows = []
    own_columns = ["delta_kl", "delta_kl_low", "delta_kl_high"]
    merged = controls.merge(plug_in(kl)[["bias", "scale", *own_columns]], on=["bias", "scale"], suffixes=("_drawn", ""))
    for names, part in merged.groupby(["bias", "scale", "kind"], sort=False):
        values = part[own_columns].iloc[0]
        drawn = part["delta_kl_drawn"].to_numpy()
        rank = 1 + int((drawn >= values["delta_kl"]).sum())
        rows.append(
            (*names, len(drawn), *values, drawn.min(), np.median(drawn), drawn.max(), rank, rank / (len(drawn) + 1))
        )
    columns = ["bias", "scale", "kind", "n_controls", *own_columns, "control_low", "control_median", "control_high"]
    return pd.DataFrame(rows, columns=[*columns, "rank", "p"])


def plug_in(kl: pd.DataFrame) -> pd.DataFrame:
    """Put the intervals of ΔKL in `kl` around the value that is not corrected for bias, because those of random
    directions are not."""
    moved = kl["delta_kl"] - kl["delta_kl_corrected"]
    kl = kl.assign(delta_kl_low=kl["delta_kl_low"] + moved, delta_kl_high=kl["delta_kl_high"] + moved)
    return kl.drop(columns="delta_kl_corrected")
