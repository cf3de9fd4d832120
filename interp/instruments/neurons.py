"""Token-frequency and entropy neurons of the last MLP layer.

Source: Stolfo et al. 2024, "Confidence Regulation Neurons in Language Models". Setting neuron i from its activation a
to its mean adds `δ w` with `δ = mean − a` to the final residual stream. Without another unembedding, this gives

    logits' = [s (logits − c) + δ v]/s' + c,   v = w̃ W_U,   w̃ = (w − mean w) ⊙ γ,   c = b_LN W_U + b_U,

where s and s' are the scales of the final norm before and after (an RMSNorm does not subtract the mean). `s' = s` is
the frozen scale.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.corpora.batching import Text, as_batches, sample_positions
from interp.corpora.counts import Counts, unigrams_of
from interp.instruments.logits import LogitsObserver, SiteMean
from interp.instruments.regression import raw_head
from interp.models.head import real_tokens
from interp.models.shapes import Shape
from interp.models.sites import Model, hook_name, is_encoder, trunk_output, view
from interp.models.softmax import log_partition, over_types
from interp.models.verify import verify_neurons
from interp.passes.budget import Pass
from interp.passes.execution import Passes, Reading, runs
from interp.passes.observers import fingerprint
from interp.support.checks import check_seed

__all__ = ["NEURONS", "SCANNED", "NeuronEffects", "frequency_neurons", "neurons_cost", "why_no_neurons"]
__dir__ = __all__.copy

SCANNED = 500
"""Random positions that studies average the effects of neurons over."""

_NEURONS_AT_ONCE = 16  # few enough for their rows over the vocabulary to stay in the cache
_OF_SCORED = ("delta_loss", "delta_loss_frozen", "through_unigram")  # averaged over the positions whose target is known
_EFFECTS = ["delta_loss", "delta_entropy", "delta_kl_unigram", "delta_loss_frozen", "delta_entropy_frozen"]
_EFFECTS += ["through_unigram"]
NEURONS = ["layer", "neuron", "w_out_norm", "logit_var", "mean_activation", *_EFFECTS, "exact"]
_EXACT = 50  # neurons whose effects are exact


class _LastMLP:
    """The neurons of the last MLP in terms of the prediction head.

    `w` and `w_scaled` (w̃) are `[neurons, d_model]`. The embeddings (columns of W_U) and the constant c are over the
    tokens of the vocabulary, whose rows are `types`.
    """

    def __init__(self, model: Model) -> None:
        if reason := why_no_neurons(model):
            raise ValueError(reason)
        head = raw_head(model)
        self.centred = head.norm != "rms"
        self.eps = head.eps
        self.types = slice(None) if bool(head.real.all()) else head.real
        self.embeddings = head.embeddings.of(head.real.cpu().numpy())
        b_ln = 0 if head.b_ln is None else self.embeddings.dot(head.b_ln.to(head.wide)[None])[0]
        self.constant = head.b_U[self.types].to(head.wide) + b_ln
        view(model).refuse_drawn()
        w = view(model).W_out(model.cfg.n_layers - 1).to(model.W_U.device, head.wide)
        self.w = w - w.mean(1, keepdim=True) if self.centred else w
        self.w_scaled = head.of_residual(w)

    def logit_variances(self) -> Float[Tensor, " neurons"]:
        """The variance over the vocabulary of cos(w̃, W_U[:, w]): `ŵ C ŵ`, where C is the covariance of the unit
        columns.
        """
        n = 0
        total = self.w.new_zeros(self.w.shape[1], dtype=torch.float64)
        for units in self._unit_embeddings():
            n += len(units)
            total = total + units.sum(0)
        mean = total / n
        covariance = torch.zeros_like(total.outer(total))
        for units in self._unit_embeddings():
            centred = units - mean
            covariance.addmm_(centred.T, centred, alpha=1 / n)
        w = torch.nn.functional.normalize(self.w_scaled.double(), eps=0.0)
        return torch.linalg.vecdot(w @ covariance, w)

    def _unit_embeddings(self) -> Iterator[Float[Tensor, "types d_model"]]:
        """The embeddings divided by their norms, in float64. Embeddings of norm 0 are left out."""
        for _, block in self.embeddings.blocks():
            size = block.norm(dim=1, keepdim=True)
            yield (block / size)[size[:, 0] > 0]


def why_no_neurons(model: Model) -> str | None:
    """Why the effects of a model's last neurons have no closed form, or None if they have one."""
    if is_encoder(model):
        return "frequency neurons are for causal models: BERT's last MLP is not read by its unembedding"
    if view(model).d_mlp is None:
        return "this model has no MLP with one output matrix, so no neurons"
    try:
        verify_neurons(model)
        head = raw_head(model)
        head.refuse_cap("the closed form does not hold")
    except ValueError as error:
        return str(error)
    needed = "the closed form needs a final LayerNorm or RMSNorm, and this model has neither"
    return needed if head.gamma is None else None


def _log_p(logits: Float[Tensor, "pos types"]) -> Float[Tensor, "pos types"]:
    """Log-probabilities in the dtype of the logits, whose normaliser is a sum in float64."""
    return logits - log_partition(logits)[:, None].to(logits)


def _entropy(e: Tensor, exponents: Tensor, Z: Tensor) -> Tensor:
    """The entropy of `e / Z`, where e is the exponential of the exponents."""
    return Z.log() - over_types(e * exponents)[0] / Z


class NeuronEffects(LogitsObserver):
    """The effects of mean-ablating single neurons of the last MLP on predictions, by the closed form.

    After `observe` there is the `table` with the columns `delta_…` and `through_unigram` of `frequency_neurons`, one
    row per neuron.

    Args:
        neurons: the neurons to ablate.
        means: the value that each neuron of the layer is set to.
        log_unigram: log u over the vocabulary, finite.
        exact: compute one softmax per neuron and position. Otherwise effects are computed to second order in the change
            of the logits, from products of the probabilities with all neurons at once.
    """

    axes: ClassVar = dict.fromkeys(_EFFECTS, "neurons")

    def __init__(
        self,
        model: Model,
        neurons: Sequence[int],
        means: Float[Tensor, " neurons"],
        log_unigram: Float[Tensor, " d_vocab"],
        *,
        exact: bool,
    ) -> None:
        described = [fingerprint(means), fingerprint(log_unigram)]
        names = [hook_name(model, "mlp_post", model.cfg.n_layers - 1), trunk_output(model)]
        super().__init__(model, names, neurons=list(neurons), exact=exact, means_and_unigram=described)
        self.neurons = list(neurons)
        self.exact = exact
        self.mlp = mlp = _LastMLP(model)
        self.means = means.to(mlp.w)
        self.log_u = log_unigram.to(mlp.w)[mlp.types]
        self.place = torch.full_like(log_unigram, -1, dtype=torch.long, device=mlp.w.device)
        self.place[mlp.types] = torch.arange(len(self.log_u), device=mlp.w.device)
        direction = self.log_u.double() - self.log_u.double().mean()
        if not direction.any():
            raise ValueError("all tokens are equally frequent in these unigram counts; give the counts of a text")
        self.unigram_axis = (direction / direction.norm()).to(mlp.w)
        self.add_states(model.cfg, neurons=len(self.neurons))

    def read(
        self,
        logits: Float[Tensor, "pos d_vocab"],
        targets: Int[Tensor, " pos"],
        activation: Float[Tensor, "pos d_mlp"],
        resid: Float[Tensor, "pos d_model"],
    ) -> None:
        mlp = self.mlp
        logits = logits[:, mlp.types]
        targets = torch.where(targets >= 0, self.place[targets.clamp(min=0)], -1)
        activation = activation.to(logits)
        resid = resid.to(logits)
        resid = resid - resid.mean(1, keepdim=True) if mlp.centred else resid
        d = resid.shape[1]
        delta = (self.means - activation)[:, self.neurons].double()
        w = mlp.w[self.neurons]
        square = resid.double().square().sum(1, keepdim=True)
        moved = square + 2 * delta * (resid @ w.T).double() + delta.square() * w.double().square().sum(1)
        s = (square / d + mlp.eps).sqrt()
        s_live = (moved / d + mlp.eps).sqrt()
        effects = self._exactly if self.exact else self._roughly
        # the logits change by (a − 1)(logits − c) + b v, and with the scale frozen by b_frozen v
        for name, value in effects(logits, targets, s / s_live, delta / s_live, delta / s).items():
            self.add(name, value)

    def _exactly(self, logits: Tensor, targets: Tensor, a: Tensor, b: Tensor, b_frozen: Tensor) -> dict[str, Tensor]:
        """Sums of each effect over positions, from one row of logits per neuron and position."""
        mlp = self.mlp
        k = len(self.neurons)
        total = {name: torch.zeros(k, dtype=torch.float64, device=logits.device) for name in _EFFECTS}
        axis, log_u = self.unigram_axis, self.log_u
        a = a.to(logits)
        b = b.to(logits)
        b_frozen = b_frozen.to(logits)
        base = _log_p(logits)
        free = logits - mlp.constant
        free_along = over_types(free * axis)[0]
        p = base.exp()
        (Z,) = over_types(p)  # 1, except for the rounding of `base`
        log_Z = Z.log()
        entropy = _entropy(p, base, Z)
        freq = over_types(p * log_u)[0] / Z
        room = torch.empty(2, _NEURONS_AT_ONCE, len(axis), dtype=logits.dtype, device=logits.device)
        for start in range(0, k, _NEURONS_AT_ONCE):
            chunk = slice(start, start + _NEURONS_AT_ONCE)
            V = mlp.embeddings.dot(mlp.w_scaled[self.neurons[chunk]])
            along_v = over_types(V * axis)[0]
            live, e = room[:, : len(V)]
            for x, target in enumerate(targets.tolist()):
                grow = a[x, chunk, None] - 1
                add = b[x, chunk, None]
                torch.addcmul(base[x], add, V, out=live).addcmul_(grow, free[x])
                torch.exp(live, out=e)
                (Z,) = over_types(e)
                change = _entropy(e, live, Z) - entropy[x]
                total["delta_entropy"][chunk] += change
                total["delta_kl_unigram"][chunk] += freq[x] - over_types(e * log_u)[0] / Z - change
                if target >= 0:
                    at_target = grow[:, 0] * free[x, target] + add[:, 0] * V[:, target]
                    total["delta_loss"][chunk] += Z.log() - log_Z[x] - at_target
                    moved = grow[:, 0] * free_along[x] + add[:, 0] * along_v
                    without = torch.mul(-moved[:, None].to(e), axis, out=live).expm1_().mul_(e)
                    log_ratio = (over_types(without)[0] / Z).log1p() + moved * axis[target]
                    total["through_unigram"][chunk] -= log_ratio
                torch.addcmul(base[x], b_frozen[x, chunk, None], V, out=live)
                torch.exp(live, out=e)
                (Z,) = over_types(e)
                total["delta_entropy_frozen"][chunk] += _entropy(e, live, Z) - entropy[x]
                if target >= 0:
                    total["delta_loss_frozen"][chunk] += Z.log() - log_Z[x] - b_frozen[x, chunk] * V[:, target]
        if not torch.stack(list(total.values())).isfinite().all():
            raise ValueError("the effect of a neuron is not finite; are the model's weights and activations finite?")
        return total

    def _roughly(self, logits: Tensor, targets: Tensor, a: Tensor, b: Tensor, b_frozen: Tensor) -> dict[str, Tensor]:
        """Sums of each effect over positions, to second order in the change of the logits. `through_unigram` is NaN."""
        embeddings = self.mlp.embeddings
        w = self.mlp.w_scaled[self.neurons]
        scored = targets >= 0
        base = _log_p(logits)
        free = logits - self.mlp.constant
        p = base.exp()
        wide_w = w.double()

        def mean(values: Tensor) -> Tensor:
            """`E_p[values]`, `[positions, 1]`."""
            return over_types(p * values).T

        def mean_with_v(values: Tensor) -> Tensor:
            """`E_p[values · v]`, `[positions, neurons]`, without v."""
            return embeddings.total(p * values) @ wide_w.T

        mean_f = mean(free)
        mean_v = mean_with_v(torch.ones_like(p))
        f_v, f_f = mean_with_v(free) - mean_f * mean_v, mean(free * free) - mean_f**2
        log_u = self.log_u.expand_as(p)
        centred = [base - mean(base).to(base), log_u - mean(log_u).to(log_u)]
        weights = [p, p * centred[0], p * centred[1]]
        at_target = targets.clamp(min=0)
        v2 = mean_v.new_zeros(len(weights), *mean_v.shape)
        v_target = torch.empty_like(mean_v)
        for where, block in embeddings.in_small_blocks.blocks(p.dtype):
            v = block @ w.T
            here = (at_target >= where.start) & (at_target < where.stop)
            v_target[here] = v[at_target[here] - where.start].double()
            square = v.square_()
            v2 += torch.stack([weight[:, where] @ square for weight in weights])
        v_v = v2[0] - mean_v**2
        covariances = []  # covariances of g with f, v, (f, f), (f, v), (v, v)
        for g, g_v2 in zip(centred, v2[1:], strict=True):
            g_f = mean(g * free)
            g_v = mean_with_v(g)
            g_ff = mean(g * free * free) - 2 * mean_f * g_f
            g_fv = mean_with_v(g * free) - mean_f * g_v - mean_v * g_f
            covariances.append((g_f, g_v, g_ff, g_fv, g_v2 - 2 * mean_v * g_v))
        f_target = free.gather(1, at_target[:, None]).double()
        total = {}
        for name, grow, add in (("_frozen", torch.zeros_like(a), b_frozen), ("", a - 1, b)):
            variance = grow**2 * f_f + 2 * grow * add * f_v + add**2 * v_v
            # E_p'[g] − E_p[g] to second order: Cov(g, d) + ½ κ₃(g, d, d)
            moved = []
            for g_f, g_v, g_ff, g_fv, g_vv in covariances:
                second = grow**2 * g_ff + 2 * grow * add * g_fv + add**2 * g_vv
                moved.append(grow * g_f + add * g_v + second / 2)
            moved_l, moved_u = moved
            entropy = -moved_l - variance / 2
            loss = grow * (mean_f - f_target) + add * (mean_v - v_target) + variance / 2
            total[f"delta_entropy{name}"] = entropy.sum(0)
            total[f"delta_loss{name}"] = loss[scored].sum(0)
        total["delta_kl_unigram"] = (-entropy - moved_u).sum(0)
        total["through_unigram"] = torch.full_like(total["delta_loss"], torch.nan)
        return total

    @property
    def table(self) -> pd.DataFrame:
        table = pd.DataFrame({"neuron": self.neurons})
        for name in _EFFECTS:
            table[name] = self.mean_of(name, "n_scored" if name in _OF_SCORED else "n")
        return table


def neurons_cost(size: Shape, share: float) -> list[Pass]:
    """Estimate the cost of `frequency_neurons` at a share of the positions, from the shape of a model, with twelve
    copies of logits in float32."""
    weights = 4 * 2 * size.d_mlp * size.d_model
    read: Any = {"text": "a little of the text", "head": True, "share": share, "per_logit": 4 * 12, "copies": weights}
    all_sums = NeuronEffects.n_bytes(size, neurons=size.d_mlp)
    exact_sums = NeuronEffects.n_bytes(size, neurons=_EXACT)
    second_order = (8.0 * size.d_mlp + 12.0 * size.d_model) * size.d_vocab
    return [
        Pass(what="mean neurons", step=1, sums=SiteMean.n_bytes(size, width=size.d_mlp), copies=weights),
        Pass(what="neurons", step=2, sums=all_sums, flops=second_order, **read),
        Pass(what="neurons, exact", step=3, sums=exact_sums, flops=_EXACT * 20.0 * size.d_vocab, **read),
    ]


@runs
def frequency_neurons(
    model: Model,
    text_or_batches: Text,
    *,
    unigram: Counts | None = None,
    top: int | None = _EXACT,
    share: float | int = 1.0,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
) -> Passes[pd.DataFrame]:
    """Which neurons of the last MLP set the model's confidence, and which move its predictions towards word frequency?

    Each neuron is set to its mean over the text, one at a time, with the closed form described in the module. This
    takes two passes over the text (a screen needs a third) and no unembedding per neuron. Entropy neurons act through
    the scale of the final norm: they have a large `delta_entropy` but a small `delta_entropy_frozen`, a large norm and
    a small `logit_var`. Token-frequency neurons act along log u: `through_unigram` is a large part of their
    `delta_loss`.

    Args:
        unigram: token counts. Default: the model's own, or else those of this text.
        top: how many neurons to compute exactly after a screen of all to second order, by the better of their ranks in
            |Δloss| and |Δentropy|; with None, all are computed exactly, without a screen.
        share: the share of positions, chosen at random, that effects are averaged over. Means use all positions.

    Returns the table `neurons` of an `interp.encoding.EncodingStudy`. Differences are ablated minus plain, as means
    over positions. `through_unigram` is the part of `delta_loss` that disappears when the logits' change along log u is
    removed. `w_out_norm` is ‖w̃‖, and `logit_var` is the variance over the vocabulary of cos(w̃, W_U[:, w]).

    Raises ValueError for BERT, for a model without MLP or one that is folded or soft-capped, for counts of another
    vocabulary, for a share outside 0 … 1 and for a seed below 0.

    Examples:
        >>> from interp.corpora import count_unigrams
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> counts = count_unigrams(model, text)
        >>> table = frequency_neurons(model, text, unigram=counts, top=3, progress=False)
        >>> len(table) == model.cfg.d_mlp
        True
    """
    seed = check_seed(seed)
    mlp = _LastMLP(model)
    prepared = as_batches(model, text_or_batches, batch_size=batch_size)
    part = prepared if share == 1 else sample_positions(prepared, share, seed=seed)
    counts = unigrams_of(model, prepared, unigram)
    log_u = torch.from_numpy(counts.log_prior(real_tokens(model).cpu().numpy()))
    means = SiteMean(model, "mlp_post", len(mlp.w), layer=model.cfg.n_layers - 1)
    yield [Reading("mean neurons", prepared, [means])]
    chosen = list(range(len(mlp.w)))
    first = NeuronEffects(model, chosen, means.mean, log_u, exact=top is None)
    yield [Reading("neurons", part, [first])]
    effects = first.table
    if top is not None:
        rank = effects[["delta_loss", "delta_entropy"]].abs().rank(ascending=False).min(axis=1)
        chosen = sorted(rank.nsmallest(top).index)
        second = NeuronEffects(model, chosen, means.mean, log_u, exact=True)
        yield [Reading("neurons, exact", part, [second])]
        effects.loc[chosen] = second.table.set_axis(chosen)
    table = effects[["neuron"]].assign(
        w_out_norm=mlp.w_scaled.double().norm(dim=1).cpu().numpy(),
        logit_var=mlp.logit_variances().cpu().numpy(),
        mean_activation=means.mean.cpu().numpy(),
    )
    table.insert(0, "layer", model.cfg.n_layers - 1)
    return table.merge(effects.assign(exact=effects["neuron"].isin(chosen)))
