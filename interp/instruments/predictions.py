"""Mean predictions of a model and of edits of its prediction head, from one pass, and their calibration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.corpora.batching import Batch
from interp.instruments.divergences import Distribution
from interp.instruments.logits import LogitsObserver, at_head, real_logits
from interp.models.running import head_is_hooked
from interp.models.shapes import Shape
from interp.models.sites import Model, Recipe, Site, check_vocabulary, hook_name, trunk_output
from interp.models.softmax import exponentials, over_positions, over_types
from interp.passes.budget import Pass
from interp.passes.groups import MOST
from interp.passes.observers import fingerprint
from interp.results.intervals import about, summed_others

__all__ = ["Calibration", "MeanPredictions", "Means", "Variant"]
__dir__ = __all__.copy

_ELEMENTS_AT_ONCE = 2**22
_COPIES = 6  # copies of these logits in float32
_BINS = 10  # bins of probability, for calibration
_NOT_FINITE = "the model's predictions are not finite (NaN or infinite logits): check weights and dtype"
_LARGEST_LOG_RANGE = 60.0
"""Beyond this range of a shift (in nats), float32 loses the small terms of the shared exponential."""


@dataclass(frozen=True, eq=False)
class Variant:
    """An edit of the prediction head: a vector added to all logits, or b_FC of an encoder multiplied by `fc`.

    `name` describes it in words, for the error about a checkpoint that does not fit.
    """

    shift: Float[Tensor, " d_vocab"] | None = None
    fc: float = 1.0
    name: str = ""


@dataclass(frozen=True, eq=False)
class Means:
    """Means over positions of the predictions of one variant: the `distribution` `q(w)`, and the mean NLL of the true
    token over tokens (`nll`) and within each class of tokens (`nll_by_class`; by default each type is a class). NLL is
    in nats, and NaN where no target is known."""

    distribution: Distribution
    nll: float
    nll_by_class: Float[np.ndarray, " classes"]


@dataclass(frozen=True, eq=False)
class Calibration:
    """How often a band of words is the true token, against the probability it is given, for each variant.

    `count` is how many positions gave a band a probability in each of ten bins of equal width, `mass` the sum of these
    probabilities p, `true` how many of these positions had a token of the band, and `variance` is `Σ p (1 − p)`.
    """

    count: Float[np.ndarray, "n_variants bands bins"]
    mass: Float[np.ndarray, "n_variants bands bins"]
    true: Float[np.ndarray, "n_variants bands bins"]
    variance: Float[np.ndarray, "n_variants bands bins"]

    @property
    def error(self) -> Float[np.ndarray, "n_variants bands"]:
        """The expected calibration error `Σ_bins |mass − true| / n` (Naeini et al. 2015)."""
        return np.abs(self.mass - self.true).sum(-1) / self.count.sum(-1)

    @property
    def floor(self) -> Float[np.ndarray, "n_variants bands"]:
        """The error to expect where true tokens are drawn from these probabilities, so that there is none but chance.

        The mean absolute deviation of a sum of independent draws with variance v is taken to be `√(2v/π)`, that of a
        normal distribution, and `2v` where that is less, as for a few draws of small probability.
        """
        return np.minimum(np.sqrt(2 * self.variance / np.pi), 2 * self.variance).sum(-1) / self.count.sum(-1)

    @property
    def predicted(self) -> Float[np.ndarray, "n_variants bands"]:
        """The mean probability of each band."""
        return self.mass.sum(-1) / self.count.sum(-1)

    @property
    def share(self) -> Float[np.ndarray, "n_variants bands"]:
        """The share of each band among the true tokens."""
        return self.true.sum(-1) / self.count.sum(-1)


class _Positions(NamedTuple):
    """Some positions: their true tokens, and the `groups` of texts that they are from with their `lengths`. For each
    row of the sums, what is filled in: sums of probabilities by group, and by position NLL and the probability of each
    band.
    """

    targets: Int[Tensor, " pos"]
    groups: list[int]
    lengths: list[int]
    sums: list[Float[Tensor, "rows d_vocab"]]
    nll: Float[Tensor, "rows pos"]
    mass: Float[Tensor, "rows bands pos"]

    def add_up(self, e: Float[Tensor, "pos d_vocab"], Z: Float[Tensor, "n pos"], rows: slice) -> Tensor:
        """Fill in the sums of `e / Z` for some rows. Returns their totals over groups."""
        parts = (e.split(self.lengths), Z.reciprocal().split(self.lengths, 1), self.sums)
        total = torch.zeros_like(self.sums[0][rows]) if len(self.sums) > 1 else self.sums[0][rows]
        for part, shares, sums in zip(*parts, strict=True):
            over_positions(part, shares, out=sums[rows])
            if len(self.sums) > 1:
                total += sums[rows]
        return total

    @property
    def at_targets(self) -> Int[Tensor, "pos 1"]:
        """The true tokens, or 0 where they are not known."""
        return self.targets.clamp(min=0)[:, None]


class MeanPredictions(LogitsObserver):
    """The mean predicted distribution and NLL over a corpus, under any number of edits of the head, in one pass.

    For each variant v, two sums are kept over the positions that are read: `Σ softmax(logits_v)` by token, and
    `Σ −log p_v(target)` by target type. Variants that add a vector c to the logits share one exponential: with
    `e = exp(logits)` and `w = exp(c)`, `Z = e·w` and `p = w ⊙ e / Z`, so n variants cost one exponential and two skinny
    matrix products. All unedited variants are computed once, from `Z = Σ e`. A shift whose values span more than 60
    nats is computed separately. The softmax is over tokens only; rows of the vocabulary that are not tokens
    (`PredictionHead.real`) are left out. Z, q and the probability of the target have a relative error of about 1e-7
    where logits are float32 (see `interp.models.softmax`).

    After `observe` there are `distributions` `[n_variants, d_vocab]`, `n_tokens`, `n_scored`, `nll`, and the `means` of
    each variant. With `grouped` there is also `leaving_out`, the means without each group of texts, for
    `interp.results.intervals.jackknife`.

    Args:
        grouped: keep separate sums for 20 groups of texts (see `interp.passes.groups`), which takes 20 times the
            memory.
        classes: the class of each type, 0, 1, …, in which NLL is summed. Default: each type is a class.
        bands: the band of each type, 0, 1, …, for `calibration`; −1 for none.

    Raises:
        ValueError: the model does not predict the tokens it reads; its logits are soft-capped (so that shifting them is
            not an edit of the head); fc is given for a model without b_FC; or shifts or logits are not finite.
        RuntimeError: fc is given while the head has other hooks, whose edits a recomputed head would not include.
    """

    axes: ClassVar = {
        "positions": "groups",
        "probability": "groups rows d_vocab",  # divided by shared weights
        "nll": "groups rows classes",
        "count": "groups classes",
        "calibration": f"groups 4 rows bands {_BINS}",
    }

    def __init__(
        self,
        model: Model,
        variants: Sequence[Variant],
        *,
        grouped: bool = False,
        classes: Int[np.ndarray, " d_vocab"] | None = None,
        bands: Int[np.ndarray, " d_vocab"] | None = None,
    ) -> None:
        if not variants:
            raise ValueError("MeanPredictions needs at least one variant; Variant() is the model as it is")
        check_vocabulary(model)
        described = [dict(vars(v), shift=None if v.shift is None else fingerprint(v.shift)) for v in variants]
        self._scales_fc = any(v.fc != 1.0 for v in variants)
        names = [trunk_output(model)] if self._scales_fc else [hook_name(model, site) for site in self.reads]
        options: dict[str, Any] = {"variants": described, "grouped": grouped}
        for name, of_type in {"classes": classes, "bands": bands}.items():
            options[name] = None if of_type is None else fingerprint(of_type)
        super().__init__(model, names, at_once=_ELEMENTS_AT_ONCE, **options)
        self.variants = tuple(variants)
        d_vocab = model.W_U.shape[1]
        device = model.W_U.device
        self._classes = torch.as_tensor(np.arange(d_vocab) if classes is None else classes, device=device)
        self._band_of = None if bands is None else torch.as_tensor(bands, device=device)
        self._bands = [] if bands is None else [np.flatnonzero(bands == band) for band in range(bands.max() + 1)]
        if any(v.shift is not None for v in variants):
            self.head.refuse_cap("a vector added to them is not an edit of its head")
        if self._scales_fc:
            self.head.require("fc")
        zero = torch.zeros(d_vocab, dtype=torch.float64, device=device)
        shifts = torch.stack([zero if v.shift is None else v.shift.to(zero) for v in variants])
        if not torch.isfinite(shifts).all():
            raise ValueError("a shift of the logits has NaN or infinite values; are the model's weights finite?")
        self._arrange(shifts)
        self._all_real = bool(self.head.real.all())
        self._room: Tensor | None = None
        sizes = {"groups": MOST if grouped else 1, "rows": len(self._rows), "variants": len(variants)}
        n_classes = int(self._classes.max()) + 1
        self.add_states(model.cfg, d_vocab=d_vocab, classes=n_classes, bands=len(self._bands) or None, **sizes)

    @classmethod
    def cost(
        cls,
        size: Shape,
        n: int,
        /,
        *,
        grouped: bool = False,
        classes: int | None = None,
        bands: int | None = None,
        **fields: Any,
    ) -> Pass:
        """Estimate the cost of n variants, from the shape of a model. In addition to sums there are the weights of all
        variants, and copies of the logits that are read together. Each variant costs one product with all logits.

        Args:
            classes, bands: how many there are.
            fields: other fields of the `Pass`.
        """
        sizes = {"groups": MOST if grouped else 1, "rows": n, "variants": n, "bands": bands}
        costs = {
            "sums": cls.n_bytes(size, classes=classes or size.d_vocab, **sizes), "per_batch": 2 * 8 * n * size.d_vocab,
            "per_logit": _COPIES * 4, "at_once": _ELEMENTS_AT_ONCE, "flops": 4.0 * n * size.d_vocab,
        }  # fmt: skip
        return at_head(size, **costs | fields)

    def _arrange(self, shifts: Float[Tensor, "n_variants d_vocab"]) -> None:
        """Give each variant a row of the sums: all unedited ones the first, then those that share its exponential, then
        those that are computed separately."""
        tops = shifts.amax(1, keepdim=True)
        narrow = (tops[:, 0] - shifts.amin(1) < _LARGEST_LOG_RANGE).tolist()
        unedited, together, separate = [], [], []
        for i, variant in enumerate(self.variants):
            if variant.fc != 1.0 or self.reads or not narrow[i]:
                separate.append(i)
            elif shifts[i].any():
                together.append(i)
            else:
                unedited.append(i)
        self._rows = [*unedited[:1], *together, *separate]
        self._row_of = [0 if i in unedited else self._rows.index(i) for i in range(len(self.variants))]
        self._n_unedited = len(unedited[:1])
        self._n_shared = self._n_unedited + len(together)
        self._shifts, self._tops = shifts[self._rows], tops[self._rows]
        self._weights = (self._shifts - self._tops).exp_()
        self._weights[self._n_shared :] = 1.0

    reads: ClassVar[tuple[Site, ...]] = ()
    """Sites that a subclass edits the logits from."""

    def hooks(self, batch: Batch) -> Recipe:
        if self._scales_fc and head_is_hooked(self.model):
            raise RuntimeError("b_FC cannot be scaled here while other hooks are active on the prediction head")
        return super().hooks(batch)

    def beside(self, batch: Batch) -> list[Tensor]:
        return [self.groups_of_positions(batch)]

    def read(self, logits: Tensor, targets: Tensor, *inputs: Tensor) -> None:
        """Add the sums for some positions, from the logits, the activations that variants are computed from (the final
        residual stream if b_FC is scaled), and the group of each position."""
        if not len(targets):
            return
        *activations, groups = inputs
        if bool((groups.diff() < 0).any()):
            groups, order = groups.sort(stable=True)
            logits = logits[order.to(logits.device)]
            targets = targets[order.to(targets.device)]
            activations = [activation[order.to(activation.device)] for activation in activations]
        unique, counts = torch.unique_consecutive(groups, return_counts=True)
        present = unique.tolist()
        lengths = counts.tolist()
        nll = torch.zeros(len(self._rows), len(targets), dtype=torch.float64, device=logits.device)
        mass = nll.new_zeros(len(self._rows), len(self._bands), len(targets))
        sums = [nll.new_empty(len(self._rows), logits.shape[1]) for _ in present]
        positions = _Positions(targets, present, lengths, sums, nll, mass)
        for row in range(self._n_shared if self._read_shared(logits, positions) else 0, len(self._rows)):
            self._read_one(self.edited(self._rows[row], logits, *activations), row, positions)
        _check_finite(nll[:, targets >= 0])
        parts = (targets.split(lengths), sums, nll.split(lengths, 1), mass.split(lengths, 2))
        for group, true, probability, its_nll, its_mass in zip(present, *parts, strict=True):
            scored = true >= 0
            self.add("positions", len(true), group=group)
            self.add("probability", probability, group=group)
            classes = self._classes[true[scored]]
            self.add_at("nll", classes, its_nll[:, scored], group=group)
            self.add_at("count", classes, torch.ones_like(classes), group=group)
            if self._band_of is not None:
                self.add("calibration", _binned(its_mass[:, :, scored], self._band_of[true[scored]]), group=group)

    def edited(self, variant: int, logits: Tensor, *activations: Tensor) -> Tensor:
        """Compute the logits of a variant without its shift, from the model's logits and the activations that it
        reads."""
        fc = self.variants[variant].fc
        return logits if fc == 1.0 else real_logits(self.head.encoder_logits(activations[0], fc), self.head.real)

    def _read_shared(self, logits: Tensor, positions: _Positions) -> bool:
        """Fill in the rows of variants without a shift or with a moderate one, divided by their weights, from one
        exponential. Returns whether it did, because otherwise terms would be lost."""
        rows, edited = slice(self._n_shared), slice(self._n_unedited, self._n_shared)
        if not self._n_shared:
            return False
        e, offset = self._exponentials(logits)
        first = 1 - self._n_unedited
        Z = over_types(e, self._weights[edited])[first:]
        log_Z = Z.log()
        _check_finite(log_Z)
        if self._underflows(positions.add_up(e, Z, rows), Z, logits.dtype):
            return False
        if self._n_unedited:
            self.look_unedited(logits, log_Z[0] + offset[:, 0], positions.groups, positions.lengths)
        true = logits.gather(1, positions.at_targets)[:, 0] - offset[:, 0].double()
        positions.nll[rows] = log_Z + self._tops[rows] - true - self._shifts[rows, positions.at_targets[:, 0]]
        for number, types in enumerate(self._bands):
            positions.mass[rows, number] = over_types(e[:, types], self._weights[edited, types])[first:] / Z
        return True

    def _exponentials(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """`exponentials`, in memory that is used again for the next positions of a batch."""
        if self._room is None or len(self._room) < len(logits) or self._room.dtype != logits.dtype:
            self._room = torch.empty_like(logits)
        return exponentials(logits, out=self._room[: len(logits)])

    def discard(self) -> None:
        super().discard()
        self._room = None

    def _read_one(self, logits: Tensor, row: int, positions: _Positions) -> None:
        """Fill in the row of one variant, in float64 if its logits are shifted or its probabilities are too small for
        float32."""
        if bool(self._shifts[row].any()):
            logits = logits.double() + self._shifts[row]
        e, offset = self._exponentials(logits)
        Z = over_types(e)
        log_Z = Z.log()
        _check_finite(log_Z)
        total = positions.add_up(e, Z, slice(row, row + 1))
        if logits.dtype != torch.float64 and self._underflows(total, Z, logits.dtype):
            self._read_one(logits.double(), row, positions)
            return
        if row < self._n_unedited:
            self.look_unedited(logits, log_Z[0] + offset[:, 0], positions.groups, positions.lengths)
        self.look(self._rows[row], logits, e, Z[0])
        positions.nll[row] = log_Z[0] + offset[:, 0] - logits.gather(1, positions.at_targets)[:, 0]
        for number, types in enumerate(self._bands):
            positions.mass[row, number] = over_types(e[:, types])[0] / Z[0]
        for sums in positions.sums:
            sums[row] /= self._weights[row]

    def look(self, variant: int, logits: Tensor, e: Tensor, Z: Tensor) -> None:
        """For subclasses: called with the logits of a variant that is computed separately, with their exponentials and
        with the sums of these over the types, which are multiples of the probabilities."""

    def look_unedited(self, logits: Tensor, log_Z: Tensor, groups: list[int], lengths: list[int]) -> None:
        """For subclasses: called with the unedited logits and the logarithm of the sum of their exponentials, at
        positions in the order of the groups of texts that they are from, so many of each."""

    def _underflows(self, sums: Tensor, Z: Tensor, dtype: torch.dtype) -> bool:
        """Whether a token's sum of `e / Z` is so small that terms may have been lost, in e or in its quotient."""
        least = (sums if self._all_real else sums[..., self.head.real]).amin(1)
        smallest = torch.finfo(dtype).tiny / torch.finfo(torch.float32).eps ** 1.5
        return bool((least < (1 + Z.reciprocal()).sum(1) * smallest).any())

    @property
    def n_tokens(self) -> int:
        """The number of positions that were read."""
        return int(self.state["n"])

    @property
    def n_scored(self) -> int:
        """The number of positions with a known target, over which NLL is averaged."""
        return int(self.state["n_scored"])

    @property
    def distributions(self) -> Float[np.ndarray, "n_variants d_vocab"]:
        """`q_v(w)`, the mean over positions of the predicted probability (of probabilities, not of logs). Raises
        ValueError if no position was read."""
        self.check_read()
        sums = torch.zeros_like(self._weights)
        for group in self._groups.tolist():
            sums += self.state["probability"][group]
        q = sums.mul_(self._weights).div_(self.state["positions"].sum())
        return q[self._row_of].cpu().numpy()

    @property
    def nll(self) -> Float[np.ndarray, " n_variants"]:
        """Mean NLL of the true token of each variant, in nats; NaN where no target was known."""
        return np.array([self.means(number).nll for number in range(len(self.variants))])

    def means(self, variant: int) -> Means:
        """Compute the means of one variant over all positions. Raises ValueError if no position was read."""
        self.check_read()
        return self._means(*(sums.sum(0) for sums in self._sums(variant)))

    def leaving_out(self, variant: int) -> Iterator[Means]:
        """Compute the means of one variant without each group of texts, in the order of `sizes`."""
        return map(self._means, *map(summed_others, self._sums(variant)))

    def nll_by_group(
        self, variant: int
    ) -> tuple[Float[np.ndarray, "groups classes"], Float[np.ndarray, "groups classes"]]:
        """Return the summed NLL of one variant by group of texts and class of the true token, and the number of
        tokens."""
        _, nll, _, count = self._sums(variant)
        return nll, count

    @property
    def calibration(self) -> Calibration:
        """The calibration of the bands over all positions with a known target."""
        return self._calibration(self.state["calibration"].sum(0).cpu().numpy())

    def calibration_leaving_out(self) -> list[Calibration]:
        """Return the calibration without each group of texts, in the order of `sizes`."""
        return list(map(self._calibration, summed_others(self.state["calibration"][self._groups].cpu().numpy())))

    def _calibration(self, sums: Float[np.ndarray, "4 rows bands bins"]) -> Calibration:
        return Calibration(*sums[:, self._row_of])

    @property
    def sizes(self) -> Float[np.ndarray, " groups"]:
        """The number of positions read in each group of texts."""
        return self.state["positions"][self._groups].cpu().numpy()

    @property
    def intervals(self) -> dict[str, Any]:
        """What a result records about intervals from these groups (`interp.results.intervals.about`)."""
        return about(len(self.sizes), self.stretches_per_group)

    @property
    def _groups(self) -> Int[Tensor, " groups"]:
        return self.state["positions"].nonzero()[:, 0]

    def _sums(self, variant: int) -> list[np.ndarray]:
        """Sums by group: probabilities, NLL by class, positions, and how often the target is in each class."""
        groups = self._groups
        row = self._row_of[variant]
        probability = self.state["probability"][groups, row] * self._weights[row]
        nll = self.state["nll"][groups, row]
        sums = [probability, nll, self.state["positions"][groups], self.state["count"][groups]]
        return [tensor.cpu().numpy() for tensor in sums]

    @staticmethod
    def _means(probability: np.ndarray, nll: np.ndarray, positions: float, count: np.ndarray) -> Means:
        with np.errstate(invalid="ignore"):  # some class never has the target
            return Means(probability / positions, float(nll.sum() / count.sum()), nll / count)


def _check_finite(values: Tensor) -> None:
    if not torch.isfinite(values).all():
        raise ValueError(_NOT_FINITE)


def _binned(mass: Float[Tensor, "n bands pos"], true: Int[Tensor, " pos"]) -> Float[Tensor, "4 n bands bins"]:
    """For each band and bin of probability: the number of positions, the sum of their probabilities, how often the band
    was true, and the variance of that."""
    n, bands, _ = mass.shape
    bin_of = (mass * _BINS).long().clamp(0, _BINS - 1)
    is_true = (true == torch.arange(bands, device=true.device)[:, None]).to(mass).expand(n, -1, -1)
    sums = mass.new_zeros(4, n, bands, _BINS)
    for into, values in zip(sums, (torch.ones_like(mass), mass, is_true, mass * (1 - mass)), strict=True):
        into.scatter_add_(2, bin_of, values)
    return sums
