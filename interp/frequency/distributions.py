"""Mean predictions of a model and of edits of its prediction head, from one pass, and their calibration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.corpora.batching import Batch
from interp.frequency.divergences import Distribution
from interp.frequency.observers import LogitsObserver, real_logits
from interp.intervals import about, summed_others
from interp.models.running import head_is_hooked
from interp.models.sites import Model, Recipe, Site, check_vocabulary, hook_name, trunk_output
from interp.run.groups import MOST
from interp.run.observers import fingerprint

__all__ = ["Calibration", "MeanPredictions", "Means", "Variant"]

_ELEMENTS_AT_ONCE = 2**22
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
    token over tokens (`nll`), within each class of tokens (`nll_by_class`; by default each type is a class), and
    averaged over the classes that occur (`balanced_nll`). NLL is in nats, and NaN if no target is known."""

    distribution: Distribution
    nll: float
    balanced_nll: float
    nll_by_class: Float[np.ndarray, " classes"]


@dataclass(frozen=True, eq=False)
class Calibration:
    """How often a band of words is the true token, against the probability it is given, for each variant.

    `count` is how many positions gave a band a probability in each of ten bins of equal width, `mass` the sum of these
    probabilities, and `true` how many of these positions had a token of the band.
    """

    count: Float[np.ndarray, "n_variants bands bins"]
    mass: Float[np.ndarray, "n_variants bands bins"]
    true: Float[np.ndarray, "n_variants bands bins"]

    @property
    def error(self) -> Float[np.ndarray, "n_variants bands"]:
        """The expected calibration error `Σ_bins |mass − true| / n` (Naeini et al. 2015)."""
        return np.abs(self.mass - self.true).sum(-1) / self.count.sum(-1)

    @property
    def predicted(self) -> Float[np.ndarray, "n_variants bands"]:
        """The mean probability of each band."""
        return self.mass.sum(-1) / self.count.sum(-1)

    @property
    def share(self) -> Float[np.ndarray, "n_variants bands"]:
        """The share of each band among the true tokens."""
        return self.true.sum(-1) / self.count.sum(-1)


class MeanPredictions(LogitsObserver):
    """The mean predicted distribution and NLL over a corpus, under any number of edits of the head, in one pass.

    For each variant v, two sums are kept over the positions that are read: `Σ softmax(logits_v)` by token, and
    `Σ −log p_v(target)` by target type. Variants that add a vector c to the logits share one exponential: with
    `e = exp(logits − max)` and `w = exp(c)`, `Z = e·w` and `p = w ⊙ e / Z`, so n variants cost one exponential and two
    skinny matrix products. A shift whose values span more than 60 nats is computed separately. The softmax is over
    tokens only; rows of the vocabulary that are not tokens (`PredictionHead.real`) are left out.

    After `observe` there are `distributions` `[n_variants, d_vocab]`, `n_tokens`, `n_scored`, `nll`, and the `means` of
    each variant. With `grouped` there is also `leaving_out`, the means without each group of texts, for
    `interp.intervals.jackknife`.

    Args:
        grouped: keep separate sums for 20 groups of texts (see `interp.run.groups`), which takes 20 times the memory.
        classes: the class of each type, 0, 1, …, in which NLL is summed. Default: each type is a class.
        bands: the band of each type, 0, 1, …, for `calibration`; −1 for none.

    Raises:
        ValueError: the model does not predict the tokens it reads; its logits are soft-capped (so that shifting them is
            not an edit of the head); fc is given for a model without b_FC; or shifts or logits are not finite.
        RuntimeError: fc is given while the head has other hooks, whose edits a recomputed head would not include.
    """

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
        described = [vars(v) | {"shift": None if v.shift is None else fingerprint(v.shift)} for v in variants]
        self._scales_fc = any(v.fc != 1.0 for v in variants)
        names = [trunk_output(model)] if self._scales_fc else [hook_name(model, one) for one in self.reads]
        options: dict[str, Any] = {"variants": described, "grouped": grouped}
        for name, of_type in {"classes": classes, "bands": bands}.items():
            options[name] = None if of_type is None else fingerprint(of_type)
        super().__init__(model, names, at_once=_ELEMENTS_AT_ONCE, **options)
        self.variants = tuple(variants)
        d_vocab, device = model.W_U.shape[1], model.W_U.device
        self._classes = torch.as_tensor(np.arange(d_vocab) if classes is None else classes, device=device)
        self._band_of = None if bands is None else torch.as_tensor(bands, device=device)
        self._bands = [] if bands is None else [np.flatnonzero(bands == one) for one in range(bands.max() + 1)]
        if any(v.shift is not None for v in variants):
            self.head.refuse_cap("a vector added to them is not an edit of its head")
        if self._scales_fc:
            self.head.require("fc")
        zero = torch.zeros(d_vocab, dtype=torch.float64, device=device)
        self._shifts = torch.stack([zero if v.shift is None else v.shift.to(zero) for v in variants])
        if not torch.isfinite(self._shifts).all():
            raise ValueError("a shift of the logits has NaN or infinite values; are the model's weights finite?")
        tops = self._shifts.amax(1, keepdim=True)
        narrow = tops[:, 0] - self._shifts.amin(1) < _LARGEST_LOG_RANGE
        self._shared = [i for i, v in enumerate(variants) if v.fc == 1.0 and narrow[i] and not self.reads]
        self._alone = [i for i in range(len(variants)) if i not in self._shared]
        self._weights = (self._shifts - tops).exp_()
        self._weights[self._alone] = 1.0
        self._tops, self._factors = tops[self._shared], self._weights.to(self.head.wide)[self._shared]
        self._all_real = bool(self.head.real.all())
        self._room: Tensor | None = None
        most = MOST if grouped else 1
        self.add_state("positions", (most,), "groups")
        self.add_state("probability", (most, len(variants), d_vocab), "groups")  # divided by shared weights
        n_classes = int(self._classes.max()) + 1
        self.add_state("nll", (most, len(variants), n_classes), "groups")
        self.add_state("count", (most, n_classes), "groups")
        if self._bands:
            self.add_state("calibration", (most, 3, len(variants), len(self._bands), _BINS), "groups")

    reads: ClassVar[tuple[Site, ...]] = ()
    """Sites that a subclass edits the logits from."""

    def hooks(self, batch: Batch) -> Recipe:
        if self._scales_fc and head_is_hooked(self.model):
            raise RuntimeError("b_FC cannot be scaled here while other hooks are active on the prediction head")
        return super().hooks(batch)

    def beside(self, batch: Batch) -> list[Tensor]:
        return [self.groups_of_positions(batch)]

    def read(self, logits: Tensor, targets: Tensor, *others: Tensor) -> None:
        """Add the sums for some positions, from the logits, the activations that variants are computed from (the final
        residual stream if b_FC is scaled), and the group of each position."""
        if not len(targets):
            return
        *activations, groups = others
        if bool((groups.diff() < 0).any()):
            groups, order = groups.sort(stable=True)
            logits, targets, *activations = (one[order.to(one.device)] for one in (logits, targets, *activations))
        found, lengths = (one.tolist() for one in torch.unique_consecutive(groups, return_counts=True))
        nll = torch.zeros(len(self.variants), len(targets), dtype=torch.float64, device=logits.device)
        mass = nll.new_zeros(len(self.variants), len(self._bands), len(targets))
        sums = self._read_shared(logits, targets, lengths, nll, mass)
        for i in self._alone if sums else range(len(self.variants)):
            edited = self.edited(i, logits, *activations)
            sums[i] = self._read_one(edited, targets, i, lengths, nll, mass)
        _check_finite(nll[:, targets >= 0])
        probability = nll.new_empty(len(nll), logits.shape[1])
        for number, (group, true, its_nll, its_mass) in enumerate(
            zip(found, targets.split(lengths), nll.split(lengths, 1), mass.split(lengths, 2), strict=True)
        ):
            for i, of_groups in sums.items():
                probability[i] = of_groups[number]
            scored = true >= 0
            self.add("positions", len(true), group=group)
            self.add("probability", probability, group=group)
            classes = self._classes[true[scored]]
            self.add_at("nll", classes, its_nll[:, scored], group=group)
            self.add_at("count", classes, torch.ones_like(classes), group=group)
            if self._band_of is not None:
                self.add("calibration", _binned(its_mass[:, :, scored], self._band_of[true[scored]]), group=group)

    def edited(self, variant: int, logits: Tensor, *activations: Tensor) -> Tensor:
        """The logits of a variant without its shift, from the model's logits and the activations that it reads."""
        fc = self.variants[variant].fc
        return logits if fc == 1.0 else real_logits(self.head.encoder_logits(activations[0], fc), self.head.real)

    def _read_shared(
        self, logits: Tensor, targets: Tensor, lengths: list[int], nll: Tensor, mass: Tensor
    ) -> dict[int, Sequence[Tensor]]:
        """The sums of each variant with a moderate shift, divided by its weights, from one exponential, for each group
        of positions. Returns nothing and reads nothing if terms would be lost."""
        if not self._shared:
            return {}
        peak = logits.amax(1, keepdim=True)
        target_logits = logits.gather(1, targets.clamp(min=0)[:, None])
        shared = self._exponentials(logits, peak)
        factors = self._factors.to(shared)
        Z = shared @ factors.T
        _check_finite(Z)
        shares = Z.reciprocal().T
        sums = [share @ part for share, part in zip(shares.split(lengths, 1), shared.split(lengths), strict=True)]
        total = sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)
        if self._underflows(total, shares.sum(1, keepdim=True)):
            return {}
        log_Z = peak + Z.log()
        shifts = self._shifts[:, targets.clamp(min=0)][self._shared]
        nll[self._shared] = (self._tops + log_Z.T - target_logits.T - shifts).to(nll)
        for number, types in enumerate(self._bands):
            mass[self._shared, number] = ((shared[:, types] @ factors[:, types].T) / Z).T.to(mass)
        return dict(zip(self._shared, zip(*sums, strict=True), strict=True))

    def _exponentials(self, logits: Tensor, peak: Tensor) -> Tensor:
        """`exp(logits − peak)`, in memory that is used again for the next positions of a batch."""
        if self._room is None or len(self._room) < len(logits):
            self._room = torch.empty_like(logits)
        return torch.sub(logits, peak, out=self._room[: len(logits)]).exp_()

    def discard(self) -> None:
        super().discard()
        self._room = None

    def _read_one(
        self, logits: Tensor, targets: Tensor, i: int, lengths: list[int], nll: Tensor, mass: Tensor
    ) -> list[Tensor]:
        """The sums of one variant, divided by its weights, for each group of positions, in float64 if its probabilities
        are too small for float32."""
        log_p = (logits + self._shifts[i].to(logits)).log_softmax(1)
        if logits.dtype != torch.float64:
            total = log_p.exp().sum(0)
            if self._underflows(total, total.new_tensor(len(logits))):
                log_p = (logits.to(self._shifts.dtype) + self._shifts[i]).log_softmax(1)
        self.look(i, log_p)
        nll[i] = -log_p.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        for number, types in enumerate(self._bands):
            mass[i, number] = log_p[:, types].exp().sum(1)
        sums = [part.exp().sum(0) / self._weights[i] for part in log_p.split(lengths)]
        _check_finite(torch.stack(sums))
        return sums

    def look(self, variant: int, log_p: Tensor) -> None:
        """For subclasses: called with the predictions of a variant that is computed separately."""

    def _underflows(self, sums: Tensor, most: Tensor) -> bool:
        """Whether a token's sum is so small compared with its possible value that terms may have been lost."""
        least = (sums if self._all_real else sums[..., self.head.real]).amin(-1, keepdim=True)
        return bool((least < most * (torch.finfo(sums.dtype).tiny / torch.finfo(torch.float32).eps ** 1.5)).any())

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
        return sums.mul_(self._weights).div_(self.state["positions"].sum()).cpu().numpy()

    @property
    def nll(self) -> Float[np.ndarray, " n_variants"]:
        """Mean NLL of the true token of each variant, in nats; NaN where no target was known."""
        return np.array([self.means(number).nll for number in range(len(self.variants))])

    def means(self, variant: int) -> Means:
        """The means of one variant over all positions. Raises ValueError if no position was read."""
        self.check_read()
        return self._means(*(sums.sum(0) for sums in self._sums(variant)))

    def leaving_out(self, variant: int) -> Iterator[Means]:
        """The means of one variant without each group of texts, in the order of `sizes`."""
        return map(self._means, *map(summed_others, self._sums(variant)))

    def nll_by_group(
        self, variant: int
    ) -> tuple[Float[np.ndarray, "groups classes"], Float[np.ndarray, "groups classes"]]:
        """The summed NLL of one variant by group of texts and class of the true token, and the number of tokens."""
        _, nll, _, count = self._sums(variant)
        return nll, count

    @property
    def calibration(self) -> Calibration:
        """The calibration of the bands over all positions with a known target."""
        return Calibration(*self.state["calibration"].sum(0).cpu().numpy())

    def calibration_leaving_out(self) -> list[Calibration]:
        """The calibration without each group of texts, in the order of `sizes`."""
        return [Calibration(*one) for one in summed_others(self.state["calibration"][self._groups].cpu().numpy())]

    @property
    def sizes(self) -> Float[np.ndarray, " groups"]:
        """The number of positions read in each group of texts."""
        return self.state["positions"][self._groups].cpu().numpy()

    @property
    def intervals(self) -> dict[str, Any]:
        """What a result records about intervals from these groups (`interp.intervals.about`)."""
        return about(len(self.sizes), self.stretches_per_group)

    @property
    def _groups(self) -> Int[Tensor, " groups"]:
        return self.state["positions"].nonzero()[:, 0]

    def _sums(self, variant: int) -> list[np.ndarray]:
        """Sums by group: probabilities, NLL by class, positions, and how often the target is in each class."""
        groups = self._groups
        sums = [self.state["probability"][groups, variant] * self._weights[variant], self.state["nll"][groups, variant]]
        sums += [self.state[name][groups] for name in ("positions", "count")]
        return [one.cpu().numpy() for one in sums]

    @staticmethod
    def _means(probability: np.ndarray, nll: np.ndarray, positions: float, count: np.ndarray) -> Means:
        with np.errstate(invalid="ignore"):  # some class never has the target
            by_class, whole = nll / count, nll.sum() / count.sum()
        known = by_class[count > 0]
        return Means(probability / positions, float(whole), float(known.mean()) if len(known) else np.nan, by_class)


def _check_finite(values: Tensor) -> None:
    if not torch.isfinite(values).all():
        raise ValueError(_NOT_FINITE)


def _binned(mass: Float[Tensor, "n bands pos"], true: Int[Tensor, " pos"]) -> Float[Tensor, "3 n bands bins"]:
    """For each band and bin of probability: the number of positions, the sum of their probabilities, and how often the
    band was true."""
    n, bands, _ = mass.shape
    which = (mass * _BINS).long().clamp(0, _BINS - 1)
    is_true = (true == torch.arange(bands, device=true.device)[:, None]).to(mass).expand(n, -1, -1)
    sums = mass.new_zeros(3, n, bands, _BINS)
    for into, values in zip(sums, (torch.ones_like(mass), mass, is_true), strict=True):
        into.scatter_add_(2, which, values)
    return sums
