"""Outlier dimensions of the prediction head's input: predictions from them alone, and without them.

A dimension is an outlier if, at more than half of the positions, its value lies more than 3 SD from the mean over the
dimensions at that position. The outliers' part of the input, h_O, is unembedded alone (with all other dimensions set to
zero), and so is the input without it. Both are compared with random parts `h_O R`, where R rotates h_O into the space
of the input, so that at every position a random part has the norm of h_O.

Source: Macocco, Graichen, Boleda and Baroni, "Not a nuisance but a useful heuristic: Outlier dimensions favor frequent
tokens in language models", BlackboxNLP 2025. The threshold is ours.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.corpora import Batches
from interp.corpora.batching import MASK_RATE, Batch, sample_positions
from interp.instruments.divergences import Distribution, js, kl
from interp.instruments.logits import real_logits
from interp.instruments.measures import with_ends
from interp.instruments.predictions import MeanPredictions, Means, Variant
from interp.instruments.regression import raw_head
from interp.models.shapes import Shape
from interp.models.sites import Model, Recipe, Site, hook_name
from interp.models.softmax import over_types
from interp.passes.budget import Pass
from interp.passes.execution import Passes, Reading
from interp.passes.observers import Observer, fingerprint
from interp.results.intervals import jackknife, summed_others

__all__ = ["OUTLIER_COLUMNS", "OutlierDims", "Outliers", "PartPredictions", "outlier_dims"]
__dir__ = __all__.copy

_SD = 3.0
_MOST_POSITIONS = 2_000
"""The number of random positions to predict at. Each of them needs all logits again for every part."""
_MEASURED = ("kl_unigram_model", "js", "surprisal", "entropy")
OUTLIER_COLUMNS = ["part", "of", "draw", "n_dims", *with_ends(list(_MEASURED)), "n_predicted", "n_tokens"]


class OutlierDims(Observer):
    """How often each dimension of the head's input is extreme, and its mean.

    After `observe` there are the `table` `outlier_dims` of a `ControlStudy`, and the number of positions `n_tokens`.
    """

    axes: ClassVar = {"extreme": "d_model", "sum": "d_model", "n": ""}

    def __init__(self, model: Model) -> None:
        super().__init__(model.W_U.device, sd=_SD)
        self.name = hook_name(model, "head_input")
        self.add_states(model.cfg)

    def hooks(self, batch: Batch) -> Recipe:
        def read(activation: Tensor, hook: object) -> None:
            x = batch.select(activation).to(torch.promote_types(activation.dtype, torch.float32))
            if not len(x):  # nothing was read, so there is no SD
                return
            sd, mean = torch.std_mean(x, 1, keepdim=True)
            self.add("extreme", ((x - mean).abs() > _SD * sd).sum(0))
            self.add("sum", x.sum(0))
            self.add("n", len(x))

        return [(self.name, read)]

    @property
    def n_tokens(self) -> int:
        return int(self.state["n"])

    @property
    def table(self) -> pd.DataFrame:
        share = (self.state["extreme"] / self.state["n"]).cpu().numpy()
        mean = (self.state["sum"] / self.state["n"]).cpu().numpy()
        dims = pd.DataFrame({"dim": np.arange(len(share)), "share": share, "mean": mean})
        return dims[dims["share"] > 0.5].sort_values("share", ascending=False).reset_index(drop=True)


class PartPredictions(MeanPredictions):
    """Predictions from parts of the head's input alone, and without them.

    The variants are the unedited model and, for each part, the predictions from it `alone` and `without` it. In
    addition to the values of `MeanPredictions` there are the mean `entropies` of the predictions, and the number of
    different tokens that are most likely at some position (`n_predicted`).

    Args:
        dims: the dimensions of the head's input that are rotated into the parts.
        parts: for each part, what a unit of each of these dimensions becomes in the space of the head's input.
    """

    reads: ClassVar[tuple[Site, ...]] = ("head_input",)
    axes: ClassVar = {"entropy": "groups variants", "likeliest": "variants d_vocab"}

    def __init__(
        self, model: Model, dims: Sequence[int], parts: Float[Tensor, "n dims d_model"], *, grouped: bool = False
    ) -> None:
        variants = [Variant(name="unedited")]
        for number in range(len(parts)):
            variants.append(Variant(name=f"part {number} alone"))
            variants.append(Variant(name=f"part {number} without"))
        super().__init__(model, variants, grouped=grouped)
        self.options.update(dims=list(dims), parts=fingerprint(parts))
        self.dims = list(dims)
        wide = parts.to(model.W_U.device, self.head.wide)
        self._effects = self.head.embeddings.dot(wide.flatten(0, 1)).unflatten(0, parts.shape[:2])

    def edited(self, variant: int, logits: Tensor, *activations: Tensor) -> Tensor:
        if not variant:
            return logits
        part, is_without = divmod(variant - 1, 2)
        added = activations[0][:, self.dims].to(self._effects) @ self._effects[part]
        return logits - added.to(logits) if is_without else real_logits(added + self.head.b_U.to(added), self.head.real)

    def read(self, logits: Tensor, targets: Tensor, *arguments: Tensor) -> None:
        self._entropy = torch.zeros(len(self.variants), len(targets), dtype=torch.float64, device=logits.device)
        self._likeliest = torch.zeros(len(self.variants), logits.shape[1], dtype=torch.float32, device=logits.device)
        super().read(logits, targets, *arguments)
        groups, lengths = torch.unique_consecutive(arguments[-1].sort()[0], return_counts=True)
        for group, entropy in zip(groups.tolist(), self._entropy.split(lengths.tolist(), 1), strict=True):
            self.add("entropy", entropy.sum(1), group=group)
        self.add("likeliest", self._likeliest)

    def look(self, variant: int, logits: Tensor, e: Tensor, Z: Tensor) -> None:
        self._entropy[variant] = over_types(torch.special.entr(e / Z.to(e)[:, None]))[0]
        self._likeliest[variant] = torch.bincount(logits.argmax(1), minlength=logits.shape[1])

    @property
    def n_predicted(self) -> list[int]:
        """How many different tokens are most likely at some position, by variant."""
        return (self.state["likeliest"] > 0).sum(1).tolist()

    def entropies(self) -> tuple[Float[np.ndarray, " n_variants"], Float[np.ndarray, "groups n_variants"]]:
        """Compute the mean entropy of the predictions of each variant, in nats, and the same without each group of
        texts."""
        sums = self.state["entropy"][self._groups].cpu().numpy()
        sizes = self.sizes[:, None]
        with np.errstate(invalid="ignore"):  # only one group has any positions
            return sums.sum(0) / sizes.sum(), summed_others(sums) / summed_others(sizes)


class Outliers(NamedTuple):
    """The part of a head's input in its outlier dimensions, and random parts of the same norm."""

    own: PartPredictions
    random: PartPredictions

    @classmethod
    def of(cls, model: Model, dims: Sequence[int], *, n: int, seed: int) -> "Outliers":
        """Choose the part in some dimensions, and n random ones."""
        d_model = model.cfg.d_model
        k = len(dims)
        axes = torch.eye(d_model, dtype=torch.float64)[list(dims)][None]
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(n, d_model, k, generator=generator, dtype=torch.float64)
        random = PartPredictions(model, dims, torch.linalg.qr(drawn)[0].mT)
        return cls(PartPredictions(model, dims, axes, grouped=True), random)

    @staticmethod
    def cost(size: Shape, draws: int, tokens: int | None) -> list[Pass]:
        """Estimate the cost, from the shape of a model, if a hundredth of the dimensions are outliers.

        Args:
            tokens: the length of the text, roughly. A text of unknown length is taken to be long.
        """
        mask = MASK_RATE if size.encoder else 1.0
        share = 0.0 if tokens is None else min(mask, _MOST_POSITIONS / tokens)
        fields: dict[str, Any] = {"what": "outlier dimensions", "text": "some of the text", "step": 1, "share": share}
        dims = 1 + size.d_model // 100
        parts = []
        for n in (1, draws):
            variants = 1 + 2 * n
            fields.update(copies=4 * n * dims * size.d_vocab, flops=variants * (2.0 * dims + 6.0) * size.d_vocab)
            parts.append(PartPredictions.cost(size, variants, grouped=n == 1, **fields))
        return parts

    def sample(self, prepared: Batches, n_tokens: int, seed: int) -> Batches:
        """Draw a sample of the `n_tokens` positions at which predictions from parts are made."""
        return sample_positions(prepared, min(1.0, _MOST_POSITIONS / n_tokens), seed=seed)

    def table(self, u: Distribution) -> pd.DataFrame:
        """List what parts of the head's input predict, as `outliers` of a study."""
        random = _table(self.random, u, "random").query("part != 'all'")
        return pd.concat([_table(self.own, u, "outliers"), random], ignore_index=True)


def _table(predictions: PartPredictions, u: Distribution, origin: str) -> pd.DataFrame:
    numbers = range(len(predictions.variants))
    entropies, without_each = predictions.entropies()
    values = np.stack([_measured(predictions.means(variant), u, entropies[variant]) for variant in numbers])
    rows: dict[str, Any] = {
        "part": ["all", *["alone", "without"] * (len(numbers) // 2)],
        "of": origin,
        "draw": [0, *np.repeat(np.arange(len(numbers) // 2), 2)],
        "n_dims": len(predictions.dims),
    }
    ends = dict.fromkeys(("_low", "_high"), np.full_like(values, np.nan))
    if len(predictions.state["positions"]) > 1:
        leaving = []
        for number in numbers:
            left_out = zip(predictions.leaving_out(number), without_each[:, number], strict=True)
            leaving.append([_measured(means, u, entropy) for means, entropy in left_out])
        interval = jackknife(values, np.swapaxes(leaving, 0, 1), predictions.sizes, predictions.stretches_per_group)
        ends = {"_low": interval.low, "_high": interval.high}
    for number, name in enumerate(_MEASURED):
        rows[name] = values[:, number]
        for end, ends_values in ends.items():
            rows[f"{name}{end}"] = ends_values[:, number]
    table = pd.DataFrame(rows).assign(n_predicted=predictions.n_predicted, n_tokens=predictions.n_tokens)
    return table[OUTLIER_COLUMNS]


def _measured(means: Means, u: Distribution, entropy: float) -> Float[np.ndarray, " measures"]:
    return np.array([kl(u, means.distribution), js(u, means.distribution), means.nll, entropy])


def outlier_dims(model: Model, prepared: Batches) -> Passes[OutlierDims]:
    """Find the outlier dimensions of the head's input, from one pass. Raises ValueError for a folded model."""
    raw_head(model)
    observer = OutlierDims(model)
    yield [Reading("head input", prepared, [observer])]
    return observer
