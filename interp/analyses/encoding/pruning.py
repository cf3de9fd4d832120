"""How many dimensions of the output embeddings can be removed before predictions change? Does the order matter?"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.analyses.encoding.options import Basis, Order
from interp.analyses.encoding.regression import Fit
from interp.corpora.batching import Batch, Text, predicted_batches
from interp.instruments.divergences import js, perplexity
from interp.instruments.logits import LogitsObserver, at_head
from interp.instruments.regression import raw_head
from interp.models.embeddings import Embeddings
from interp.models.shapes import Shape
from interp.models.sites import Model, hook_name
from interp.models.softmax import exponentials, over_positions, over_types
from interp.passes.budget import Pass
from interp.passes.observers import fingerprint
from interp.passes.reading import observe
from interp.results.intervals import Jackknife, about, from_sums
from interp.results.verdicts import FEWEST_CONTROLS
from interp.support.checks import check_choice, check_choices, check_seed

__all__ = ["FRACTIONS", "ORDERS", "ORDER_COLUMNS", "PRUNED", "Agreements", "PrunedPredictions"]
__all__ += ["curve_positions", "pruning_curve", "random_orders", "removal_order"]
__dir__ = __all__.copy

ORDERS: tuple[Order, ...] = get_args(Order)
FRACTIONS = tuple(round(0.05 * i, 2) for i in range(20))
PRUNED = 0.3
"""The fraction of the dimensions that the paper removes."""
ORDER_COLUMNS = ["order", "draw", "fraction", "n_dims", "top1_agreement", "top1_agreement_low", "top1_agreement_high"]
ORDER_COLUMNS += ["n_positions"]
_ELEMENTS_AT_ONCE = 2**23
_FEWEST_POSITIONS, _MOST_POSITIONS, _MOST_LOGITS = 500, 5_000, 2**26
_LOGITS: Any = {"per_logit": 4 * 6, "at_once": _ELEMENTS_AT_ONCE}  # six copies of the logits, as a dry run counts


class PrunedPredictions(LogitsObserver):
    """Predictions when dimensions of the unembedding's input are removed, block by block.

    The logits of a fraction are those of the fraction before minus `h[:, block] W[block]`, so a whole order costs one
    unembedding and one softmax per fraction. `E_p[l']` in the KL is `h' · E_p[W]`, which is also a sum over dimensions.

    After `observe` there is the `table` that `pruning_curve` returns.

    Args:
        fit: the fit that ranks the dimensions.
        orders, basis, fractions, seed: see `pruning_curve`.
    """

    axes: ClassVar = {
        "{}.probability": "fractions d_vocab",
        "{}.sums": "groups fractions 3",  # KL, top-1 agreement, NLL
        "probability": "d_vocab",
        "positions": "groups 2",  # all positions, and those with a target
    }

    def __init__(
        self, model: Model, fit: Fit, orders: Sequence[Order], basis: Basis, fractions: Sequence[float | int], seed: int
    ) -> None:
        head = raw_head(model)
        rotation = None if basis == "axis" else fit.components
        head.refuse_cap("predictions without some dimensions are no differences of them")
        self.basis = basis
        self.fractions = list(map(float, fractions))
        self.counts = [round(fraction * model.cfg.d_model) for fraction in fractions]
        self.orders = {order: removal_order(fit, order, basis, seed=seed) for order in orders}
        described: dict[str, Any] = {"orders": self.orders, "counts": self.counts}
        described["rotation"] = {} if rotation is None else fingerprint(rotation)
        super().__init__(model, [hook_name(model, "head_input")], at_once=_ELEMENTS_AT_ONCE, **described)
        self.embeddings = Embeddings(head.unscaled)  # the input is multiplied by the scale of the logits in their place
        self.rotation = None if rotation is None else torch.from_numpy(rotation).to(head.unscaled.device, head.wide)
        # whole rows are read, so the rows of W_U must be contiguous
        self.W = head.unscaled.contiguous() if self.rotation is None else self.embeddings.dot(self.rotation)
        self.add_states(model.cfg, orders, fractions=len(self.counts), d_vocab=head.d_vocab)

    @classmethod
    def cost(cls, size: Shape, orders: Sequence[Order], fractions: int, share: float) -> Pass:
        """Estimate the cost at a share of the positions, from the shape of a model, with W_U in rows or its principal
        coordinates."""
        return at_head(
            size, what="pruning", text="some of the text", step=1, share=share,
            sums=cls.n_bytes(size, orders, fractions=fractions), copies=4 * size.d_model * size.d_vocab,
            flops=(4.0 * size.d_model + 6.0 * len(orders) * fractions) * size.d_vocab, **_LOGITS,
        )  # fmt: skip

    def beside(self, batch: Batch) -> list[Tensor]:
        return [self.groups_of_positions(batch)]

    def read(
        self,
        full: Float[Tensor, "pos d_vocab"],
        targets: Int[Tensor, " pos"],
        h: Float[Tensor, "pos d_model"],
        groups: Int[Tensor, " pos"],
    ) -> None:
        h = self.head.scale * h.to(full)
        best = full.argmax(1)
        p, offset = exponentials(full)
        Z = over_types(p)
        log_Z = Z[0].log() + offset[:, 0]
        p /= Z.T.to(p)
        mean = torch.ones_like(Z)
        self.add("probability", over_positions(p, mean, out=Z.new_empty(1, p.shape[1]))[0])
        scored = targets >= 0
        self.add_to_groups("positions", torch.stack([torch.ones_like(scored), scored], 1), groups)
        expected = self.embeddings.total(p)  # E_p[W], [positions, d_model]
        if self.rotation is not None:
            h, expected = h @ self.rotation.T, expected @ self.rotation.T.to(expected)
        buffer = torch.empty_like(p)
        for name, order in self.orders.items():
            logits = full.clone()
            lost = torch.zeros_like(log_Z)  # E_p[l − l']
            probability = log_Z.new_empty(len(self.counts), full.shape[1])
            values = log_Z.new_empty(len(full), len(self.counts), 3)
            for i, (start, stop) in enumerate(pairwise([0, *self.counts])):
                if block := order[start:stop]:
                    logits.addmm_(h[:, block], self.W[block].to(full), alpha=-1)
                    lost += (h[:, block] * expected[:, block]).sum(1)
                top = logits.amax(1, keepdim=True)
                e, offset = exponentials(logits, peak=top, out=buffer)
                Z = over_types(e)
                over_positions(e, Z.reciprocal(), out=probability[i : i + 1])
                log_Z_pruned = Z[0].log() + offset[:, 0]
                nll = log_Z_pruned - logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
                agrees = (logits.gather(1, best[:, None]) >= top)[:, 0]
                kl = lost + log_Z_pruned - log_Z
                values[:, i] = torch.stack([kl, agrees.to(nll), nll.where(scored, 0)], 1)
            self.add(f"{name}.probability", probability)
            self.add_to_groups(f"{name}.sums", values, groups)

    @property
    def table(self) -> pd.DataFrame:
        full = self.mean_of("probability")
        tables = []
        for order in self.orders:
            kl, agreement, nll = self._means(order)
            columns: dict[str, Any] = {"basis": self.basis, "order": order}
            columns.update(fraction=self.fractions, n_dims=self.counts)
            for end, values in _with_ends(kl):
                columns[f"kl{end}"] = np.maximum(values, 0)
            columns["js"] = [js(full, pruned) for pruned in self.mean_of(f"{order}.probability")]
            for end, values in _with_ends(agreement):
                columns[f"top1_agreement{end}"] = values.clip(0, 1)
            for end, values in _with_ends(nll):
                columns[f"perplexity{end}"] = list(map(perplexity, values))
            tables.append(pd.DataFrame(columns))
        return pd.concat(tables, ignore_index=True)

    @property
    def intervals(self) -> dict[str, Any]:
        """What a result records about these intervals (`interp.results.intervals.about`)."""
        return about(len(self._groups("positions")), self.stretches_per_group)

    def _means(self, order: Order) -> list[Jackknife]:
        """KL, top-1 agreement and NLL by fraction, as means over positions with their intervals."""
        self.check_read()
        sums, positions = self._groups(f"{order}.sums"), self._groups("positions")
        intervals = []
        for number, over in enumerate((0, 0, 1)):
            parts = [sums[..., number], positions[:, [over]]]
            intervals.append(from_sums(np.divide, parts, positions[:, over], self.stretches_per_group))
        return intervals

    def _groups(self, name: str) -> Float[np.ndarray, "groups *shape"]:
        return self.state[name][self.state["positions"][:, 0] > 0].cpu().numpy()


def _with_ends(interval: Jackknife) -> list[tuple[str, Float[np.ndarray, " fractions"]]]:
    return [("", interval.value), ("_low", interval.low), ("_high", interval.high)]


def curve_positions(d_vocab: int) -> int:
    """Return over how many random positions a study averages its pruning curves: 5,000, or as many as have 2²⁶ logits,
    but at least 500."""
    return max(_FEWEST_POSITIONS, min(_MOST_POSITIONS, _MOST_LOGITS // d_vocab))


def removal_order(fit: Fit, order: Order, basis: Basis = "axis", *, seed: int = 0) -> list[int]:
    """The dimensions in the order in which they are removed.

    `"spearman"` and `"slope"` begin with those least related to token probability, by |Spearman with −log α| and by
    |slope|. `"reverse"` is the reverse of `"spearman"`, and `"random"` is drawn at random.

    Raises ValueError for an unknown order or basis, and a seed below 0.
    """
    check_choice("order", order, ORDERS)
    check_choice("basis", basis, get_args(Basis))
    seed = check_seed(seed)
    dims = fit.dims[fit.dims["basis"] == basis]
    if order == "random":
        return np.random.default_rng(seed).permutation(len(dims)).tolist()
    key = dims["slope" if order == "slope" else "spearman"].abs().fillna(0).to_numpy()
    rising = np.argsort(key, kind="stable").tolist()
    return rising[::-1] if order == "reverse" else rising


def pruning_curve(
    model: Model,
    text_or_batches: Text,
    *,
    fit: Fit,
    basis: Basis = "axis",
    order: Order | Sequence[Order] = ("spearman", "random", "reverse"),
    fractions: Sequence[float | int] = FRACTIONS,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
    checkpoint: str | None = None,
) -> pd.DataFrame:
    """Remove dimensions of the unembedding's input and compare predictions, for all fractions and orders in one pass.

    Cho et al. (2025), §5, rank dimensions by how strongly they are related to token probability, and remove the least
    related ones. To use fewer positions, pass `interp.corpora.batching.sample_positions(batches, share)`.

    Args:
        fit: a fit of this model, which ranks the dimensions (on its text).
        basis: dimensions of `W_U`, or principal components of its columns.
        order: one or several of the orders of `removal_order`.
        fractions: increasing fractions of the dimensions to remove.
        seed: the seed for the random order.

    Returns the table `pruning` of an `EncodingStudy`: the mean over positions of KL(p_full‖p_pruned), and the JS
    divergence between the corpus-mean distributions, both in nats. Intervals come from leaving out groups of texts
    (`interp.results.intervals`), and are NaN for fewer than 20 texts.

    Raises ValueError for a fit of another model, an unknown order or basis, fractions that do not increase from 0 to
    below 1, a seed below 0, and a folded model.

    Examples:
        >>> from interp import encoding
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> fit = encoding.fit(model, text, progress=False)
        >>> curve = pruning_curve(model, text, fit=fit, order="spearman", fractions=[0, 0.5], progress=False)
        >>> curve["fraction"].tolist()
        [0.0, 0.5]
    """
    fit.require(model)
    orders = [order] if isinstance(order, str) else list(order)
    check_choices("order", orders, ORDERS)
    fractions = list(fractions)
    if not fractions or not all(0 <= f < 1 for f in fractions) or fractions != sorted(set(fractions)):
        raise ValueError(f"fractions must increase from 0 and stay below 1, found {fractions}")
    pruned = PrunedPredictions(model, fit, orders, basis, fractions, seed)
    prepared = predicted_batches(model, text_or_batches, batch_size=batch_size)
    observe(model, prepared, pruned, progress=progress, checkpoint=checkpoint)
    return pruned.table


class Agreements(LogitsObserver):
    """At how many positions the most probable token stays the same without some dimensions of the unembedding's input,
    for many sets of dimensions. A set costs one product with its rows of W_U and one maximum."""

    axes: ClassVar = {"positions": "groups", "same": "groups sets"}

    def __init__(self, model: Model, sets: Sequence[Sequence[int]]) -> None:
        self.sets = list(map(list, sets))
        super().__init__(model, [hook_name(model, "head_input")], at_once=_ELEMENTS_AT_ONCE, sets=self.sets)
        self.head.refuse_cap("predictions without some dimensions are no differences of them")
        self.add_states(model.cfg, sets=len(self.sets))

    @classmethod
    def cost(cls, size: Shape, share: float) -> Pass:
        """Estimate the cost of `random_orders` at a share of the positions, from the shape of a model."""
        sets = 1 + FEWEST_CONTROLS
        rows = round(PRUNED * size.d_model) * size.d_vocab
        return at_head(
            size, what="random orders", text="some of the text", step=2, share=share, sums=cls.n_bytes(size, sets=sets),
            copies=4 * rows, flops=2.0 * sets * rows, **_LOGITS,
        )  # fmt: skip

    def beside(self, batch: Batch) -> list[Tensor]:
        return [self.groups_of_positions(batch)]

    def read(
        self,
        full: Float[Tensor, "pos d_vocab"],
        targets: Int[Tensor, " pos"],
        h: Float[Tensor, "pos d_model"],
        groups: Int[Tensor, " pos"],
    ) -> None:
        h = self.head.scale * h.to(full)
        best = full.argmax(1, keepdim=True)
        is_same = torch.empty(len(full), len(self.sets), dtype=torch.bool, device=full.device)
        for number, dims in enumerate(self.sets):
            logits = torch.addmm(full, h[:, dims], self.head.unscaled[dims].to(full), alpha=-1)
            is_same[:, number] = (logits.gather(1, best) >= logits.amax(1, keepdim=True))[:, 0]
        self.add_to_groups("positions", torch.ones(len(groups)), groups)
        self.add_to_groups("same", is_same, groups)

    @property
    def table(self) -> pd.DataFrame:
        """The share of positions for each set, with its 95 % interval over texts, and the number of positions."""
        self.check_read()
        read = self.state["positions"] > 0
        agreements = self.state["same"][read].cpu().numpy()
        positions = self.state["positions"][read].cpu().numpy()
        share = from_sums(np.divide, [agreements, positions[:, None]], positions, self.stretches_per_group)
        share = share._replace(least=0, most=1)
        columns = {"top1_agreement": share.value, "top1_agreement_low": share.low, "top1_agreement_high": share.high}
        return pd.DataFrame(columns).assign(n_positions=int(positions.sum()))


def random_orders(model: Model, fit: Fit, *, seed: int) -> tuple[Agreements, pd.DataFrame]:
    """The observer for the order by |Spearman| and for 39 random ones, each without the share of dimensions that the
    paper removes, and a table with a row for each (order, draw, fraction, n_dims)."""
    ranked = removal_order(fit, "spearman")
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(len(ranked)).tolist() for _ in range(FEWEST_CONTROLS)]
    n_dims = round(PRUNED * len(ranked))
    rows = [("spearman", 0)]
    rows += [("random", draw) for draw in range(FEWEST_CONTROLS)]
    table = pd.DataFrame(rows, columns=["order", "draw"]).assign(fraction=PRUNED, n_dims=n_dims)
    return Agreements(model, [order[:n_dims] for order in (ranked, *drawn)]), table
