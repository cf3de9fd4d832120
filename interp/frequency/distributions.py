"""What the questions share: observers of predictions and of one site, divergences, perplexity."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.special import rel_entr
from torch import Tensor

from interp.corpora.batching import Batch
from interp.hooks import jointly
from interp.models.head import prediction_head
from interp.models.running import head_is_hooked
from interp.models.sites import Model, Recipe, Site, check_vocabulary, hook_name, trunk_output
from interp.run.observers import Observer, fingerprint

__all__ = ["Distribution", "LogitsObserver", "MeanPredictions", "SiteMean", "Variant", "js", "kl", "kl_where_seen"]
__all__ += ["perplexity", "real_logits"]

Distribution = Float[np.ndarray, " d_vocab"]

_ELEMENTS_AT_ONCE = 2**22
_LARGEST_LOG_RANGE = 60.0
"""Beyond this range of a shift (in nats) float32 loses the small terms of the shared exponential."""


@dataclass(frozen=True, eq=False)
class Variant:
    """An edit of the prediction head: a vector added to all logits, or b_FC of an encoder multiplied by `fc`.

    `name` says in words what it is, in a refused checkpoint.
    """

    shift: Float[Tensor, " d_vocab"] | None = None
    fc: float = 1.0
    name: str = ""


class LogitsObserver(Observer):
    """Calls its `read(logits, targets, *activations)`, which a subclass defines, at the positions that are read.

    Logits are in float32 at least, and −∞ on rows of the vocabulary that are no tokens. The states `n` and `n_scored`
    count the positions that were read, and those of them whose target is known.

    Args:
        names: hook points of the activations.
        at_once: how many logits a call may have; all that a batch has by default.
    """

    read: Callable[..., None]

    def __init__(self, model: Model, names: Sequence[str] = (), *, at_once: int | None = None, **options: Any) -> None:
        super().__init__(model.W_U.device, **options)
        self.model, self.names, self.at_once, self.head = model, names, at_once, prediction_head(model)
        self.add_state("n", ())
        self.add_state("n_scored", ())

    def hooks(self, batch: Batch) -> Recipe:
        def read_batch(*activations: Tensor) -> None:
            *others, logits = map(batch.select, activations)
            self.add("n", len(logits))
            self.add("n_scored", (batch.read_targets >= 0).sum())
            rows = max(1, len(logits) if self.at_once is None else self.at_once // logits.shape[1])
            parts = zip(*(values.split(rows) for values in (logits, batch.read_targets, *others)), strict=True)
            self.read_parts((self.predicted(part), *beside) for part, *beside in parts)

        return jointly([*self.names, hook_name(self.model, "logits")], read_batch)

    def read_parts(self, parts: Iterator[tuple[Tensor, ...]]) -> None:
        """`read` each part of a batch."""
        for part in parts:
            self.read(*part)

    def predicted(self, unembedded: Float[Tensor, "pos d_vocab"]) -> Float[Tensor, "pos d_vocab"]:
        """The model's logits, from what flows at the site `logits`; −∞ on rows of the vocabulary that are no tokens."""
        return real_logits(self.head.finished(unembedded), self.head.real)

    def mean_of(self, name: str, over: str = "n") -> Float[np.ndarray, "*shape"]:
        """A state that is a sum over the positions that were read (or scored), averaged over them.

        Raises ValueError where none was read.
        """
        if not self.state["n"]:
            raise ValueError("no position was read, so there is no mean; give more text or a higher mask_rate")
        return (self.state[name] / self.state[over]).cpu().numpy()


class MeanPredictions(LogitsObserver):
    """Corpus-mean predicted distribution and NLL under any number of head edits, in one pass.

    For each variant v, summed over the positions that are read: `Σ softmax(logits_v)` by token and
    `Σ −log p_v(target)` by target type. Variants that add a vector c to the logits share one exponential: with
    `e = exp(logits − max)` and `w = exp(c)`, `Z = e·w` and `p = w ⊙ e / Z`, so n of them cost one exponential and
    two skinny matrix products. A shift whose values range over more than 60 nats is computed on its own. Rows of the
    vocabulary that are no tokens (`PredictionHead.real`) take no part: the softmax is over the tokens.

    After `observe`: `distributions` `[n_variants, d_vocab]`, `n_tokens`, `n_scored`, `nll`, `balanced_nll`.

    Raises:
        ValueError: a model that does not predict the tokens it reads, logits that are soft-capped (a shift of the
            logits is then no shift of the head), fc on a model without b_FC, shifts or logits that are not finite.
        RuntimeError: fc while somebody else has hooks on the head, whose edits a recomputed head would not have.
    """

    def __init__(self, model: Model, variants: Sequence[Variant]) -> None:
        if not variants:
            raise ValueError("MeanPredictions needs at least one variant; Variant() is the model as it is")
        check_vocabulary(model)
        described = [vars(v) | {"shift": None if v.shift is None else fingerprint(v.shift)} for v in variants]
        self._scales_fc = any(v.fc != 1.0 for v in variants)
        names = [trunk_output(model)] if self._scales_fc else []
        super().__init__(model, names, at_once=_ELEMENTS_AT_ONCE, variants=described)
        self.variants = tuple(variants)
        if any(v.shift is not None for v in variants):
            self.head.refuse_cap("a vector added to them is not an edit of its head")
        if self._scales_fc:
            self.head.require("fc")
        d_vocab = model.W_U.shape[1]
        zero = torch.zeros(d_vocab, dtype=torch.float64, device=model.W_U.device)
        self._shifts = torch.stack([zero if v.shift is None else v.shift.to(zero) for v in variants])
        if not torch.isfinite(self._shifts).all():
            raise ValueError("a shift of the logits has NaN or infinite values; are the model's weights finite?")
        narrow = self._shifts.amax(1) - self._shifts.amin(1) < _LARGEST_LOG_RANGE
        self._shared = [i for i, v in enumerate(variants) if v.fc == 1.0 and narrow[i]]
        self._alone = [i for i in range(len(variants)) if i not in self._shared]
        for name in ("probability", "nll"):
            self.add_state(name, (len(variants), d_vocab))
        self.add_state("count", (d_vocab,))

    def hooks(self, batch: Batch) -> Recipe:
        if self._scales_fc and head_is_hooked(self.model):
            raise RuntimeError("b_FC cannot be scaled here while other hooks are active on the prediction head")
        return super().hooks(batch)

    def read_parts(self, parts: Iterator[tuple[Tensor, ...]]) -> None:
        """Add this batch's sums, from the logits and, where b_FC is scaled, the last residual stream before them."""
        probability, by_type = (torch.zeros_like(self.state[name]) for name in ("probability", "nll"))
        for logits, targets, *trunk in parts:
            nll = torch.zeros(len(self.variants), len(targets), dtype=torch.float64, device=logits.device)
            together = self._read_shared(logits, targets, probability, nll)
            for i in self._alone if together else range(len(self.variants)):
                fc = self.variants[i].fc
                edited = logits if fc == 1.0 else real_logits(self.head.encoder_logits(trunk[0], fc), self.head.real)
                self._read_one(edited, targets, i, probability, nll)
            scored = targets >= 0
            self.add("count", torch.bincount(targets[scored], minlength=logits.shape[1]))
            by_type.index_add_(1, targets[scored], nll[:, scored].to(by_type.device))
        if not torch.isfinite(by_type).all() or not torch.isfinite(probability).all():
            raise ValueError("the model's predictions are not finite (NaN or infinite logits): check weights and dtype")
        self.add("probability", probability)
        self.add("nll", by_type)

    def _read_shared(self, logits: Tensor, targets: Tensor, probability: Tensor, nll: Tensor) -> bool:
        """All variants of moderate shift from one exponential; False, and nothing read, where it loses terms."""
        if not self._shared:
            return True
        shifts = self._shifts[self._shared]
        top = shifts.amax(1, keepdim=True)
        weights = (shifts - top).exp()
        peak = logits.amax(1, keepdim=True)
        target_logits = logits.gather(1, targets.clamp(min=0)[:, None])
        shared = (logits - peak).exp_()
        Z = shared @ weights.T.to(shared)
        shares = Z.reciprocal().T
        sums = shares @ shared
        if self._underflows(sums, shares.sum(1, keepdim=True)):
            return False
        probability[self._shared] += (weights * sums).to(probability)
        log_Z = peak + Z.log()
        nll[self._shared] = (top + log_Z.T - target_logits.T - shifts[:, targets.clamp(min=0)]).to(nll)
        return True

    def _read_one(self, logits: Tensor, targets: Tensor, i: int, probability: Tensor, nll: Tensor) -> None:
        """One variant by itself, in float64 where float32 has no number as small as its probabilities."""
        log_p = (logits + self._shifts[i].to(logits)).log_softmax(1)
        sums = log_p.exp().sum(0)
        if logits.dtype != torch.float64 and self._underflows(sums, torch.ones_like(sums) * len(logits)):
            log_p = (logits.to(self._shifts.dtype) + self._shifts[i]).log_softmax(1)
            sums = log_p.exp().sum(0)
        nll[i] = -log_p.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        probability[i] += sums.to(probability)

    def _underflows(self, sums: Tensor, most: Tensor) -> bool:
        """Whether a token's sum is so small a part of what it could be that terms of it may have been lost."""
        small = sums < most * (torch.finfo(sums.dtype).tiny / torch.finfo(torch.float32).eps ** 1.5)
        return bool((small & self.head.real).any())

    @property
    def n_tokens(self) -> int:
        """Positions that were read."""
        return int(self.state["n"])

    @property
    def n_scored(self) -> int:
        """Positions with a known target, which the NLL averages over."""
        return int(self.state["n_scored"])

    @property
    def distributions(self) -> Float[np.ndarray, "n_variants d_vocab"]:
        """`q_v(w)`, the mean over positions of the predicted probability (of probabilities, not of logs)."""
        return self.mean_of("probability")

    @property
    def nll(self) -> Float[np.ndarray, " n_variants"]:
        """Mean NLL of the true token, weighted by token, in nats; NaN where no target was known."""
        return (self.state["nll"].sum(1) / self.state["n_scored"]).cpu().numpy()

    @property
    def balanced_nll(self) -> Float[np.ndarray, " n_variants"]:
        """NLL averaged within each token type, then over the types that occur (the balanced error), in nats."""
        seen = self.state["count"] > 0
        return (self.state["nll"][:, seen] / self.state["count"][seen]).mean(1).cpu().numpy()


class SiteMean(Observer):
    """Mean of what flows at a site, `[width]`, over the positions that are read; a batch is summed in `dtype`."""

    def __init__(
        self, model: Model, site: Site, width: int, *, layer: int | None = None, dtype: torch.dtype = torch.float64
    ) -> None:
        self.name, self.dtype = hook_name(model, site, layer), dtype
        super().__init__(model.W_U.device, site=self.name)
        self.add_state("sum", (width,))
        self.add_state("n", ())

    def hooks(self, batch: Batch) -> Recipe:
        def read(activation: Tensor, hook: object) -> None:
            chosen = batch.select(activation)
            self.add("sum", chosen.sum(0, dtype=self.dtype))
            self.add("n", len(chosen))

        return [(self.name, read)]

    @property
    def mean(self) -> Float[Tensor, " width"]:
        return self.state["sum"] / self.state["n"]


def real_logits(logits: Float[Tensor, "pos d_vocab"], real: Bool[Tensor, " d_vocab"]) -> Float[Tensor, "pos d_vocab"]:
    """Logits in float32 at least, −∞ on rows of the vocabulary that are no tokens."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide if bool(real.all()) else wide.masked_fill(~real, -torch.inf)


def kl(p: Distribution, q: Distribution) -> float:
    """`KL(p‖q) = Σ p log(p/q)` in nats, over types with p > 0; infinite where q = 0 there."""
    return float(rel_entr(p, q).sum())


def js(p: Distribution, q: Distribution) -> float:
    """Jensen–Shannon divergence `½ KL(p‖m) + ½ KL(q‖m)`, `m = (p + q)/2`, in nats; at most log 2."""
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


def kl_where_seen(q: Distribution, u: Distribution) -> tuple[float, float]:
    """`KL(q‖u)` over types with u > 0, q renormalised there; and the mass of q on the other types."""
    seen = u > 0
    kept = q[seen].sum()
    return kl(q[seen] / kept, u[seen]), float(max(0.0, q.sum() - kept))


def perplexity(nll: float) -> float:
    """`exp` of a mean NLL in nats; infinite rather than an error where that overflows, NaN for NaN."""
    return math.inf if nll > 700 else math.exp(nll)
