"""Who writes word frequency: what each component adds to E[h], the mean input of the unembedding.

A decoder's last residual stream is a sum over components, `x = Σ_c x_c`: the embeddings, and the attention and the MLP
of each block. With the final norm `h = N(x)/s(x) ⊙ γ + b_LN`, where N subtracts the mean over dimensions in a LayerNorm
and nothing in an RMSNorm,

    E[h] = Σ_c m_c + b_LN,    m_c = E[N(x_c)/s(x)] ⊙ γ,

where each position has the s of its own stream. The least-squares slope of what a vector m adds to the logits, `m W_U`,
on log u over the types that occur is linear in m:

    τ(m) = m · β,    β = Σ_w (log u_w − mean) E_w / Σ_w (log u_w − mean)²,

so the slopes of components add up to that of E[h], and so do those of dimensions, `m_j β_j`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.analyses.frequency.options import DRAWS
from interp.corpora.batching import Batch, Text, as_batches
from interp.corpora.counts import Counts, word_frequencies
from interp.instruments.controls import DirectionKind, random_directions, rank_correlations
from interp.instruments.directions import refuse_hooks
from interp.instruments.measures import with_ends
from interp.instruments.regression import raw_head
from interp.models.head import PredictionHead
from interp.models.running import firing
from interp.models.sites import Model, Recipe, Site, hook_name, state_name, trunk_output, view
from interp.passes.execution import Passes, Reading, runs
from interp.passes.observers import Observer
from interp.passes.reading import forward
from interp.results.intervals import Jackknife, from_sums
from interp.support.words import count

__all__ = ["FrequencyWriters", "MeanParts", "writers"]
__dir__ = __all__.copy

_PARTS: dict[Site, str] = {"attn_out": "attention", "mlp_out": "MLP"}
_APART = 0.02  # share of E[h] that rounding in bfloat16 may leave unexplained
_KINDS: tuple[DirectionKind, ...] = ("isotropic", "embeddings")


@dataclass(frozen=True, eq=False)
class FrequencyWriters:
    """The result of `writers`. Intervals are at 95 %, by leaving out groups of texts, and NaN for fewer than 20 texts.

    - `components` (component, layer, norm, slope, slope_low, slope_high, cumulative_slope, spearman, p_isotropic,
      p_embeddings): one row for the embeddings, each attention and each MLP, in the order in which they write, and
      then for b_LN if there is one, the attention and the MLPs of all blocks, and E[h], the sum. `norm` is |m_c|,
      `slope` the nats by which m_c W_U rises when u is e times as large, `cumulative_slope` its sum so far, and
      `spearman` the correlation of m_c W_U with log u. `p_…` is the rank of |slope| among 399 random directions of the
      same norm (`interp.instruments.controls.random_directions`).
    - `dims` (dim, share, cumulative_share, slope, each with `_low` and `_high`): the dimensions of E[h], largest
      first: their share of |E[h]|², its sum so far, and their part of the slope.
    """

    components: pd.DataFrame
    dims: pd.DataFrame


class MeanParts(Observer):
    """Sums over positions of what each component writes, divided by s, and of the head's input, by group of texts. The
    blocks read each batch twice, because s is known only at their end.

    Raises ValueError for an encoder, whose hidden states are normed after each block.

    Examples:
        >>> from interp.corpora import batches
        >>> from interp.passes.reading import observe
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> parts = MeanParts(model, raw_head(model))
        >>> observe(model, batches(model, ["w0 w1 w2"] * 20, context=12), parts, progress=False)
        >>> parts.vectors().shape
        (9, 16)
    """

    axes: ClassVar = {"positions": "groups", "input": "groups d_model", "{}": "groups d_model"}

    def __init__(self, model: Model, head: PredictionHead) -> None:
        if view(model).encoder:
            raise ValueError("hidden states of an encoder are normed after each block, and no sum over components")
        super().__init__(model.W_U.device)
        self.model, self.head = model, head
        sites = [site for site in _PARTS if hook_name(model, site, 0) in model.hook_dict]  # not all have MLPs
        self.names: list[tuple[str, int | None]] = [("embeddings", None)]
        self.sites = [state_name(model, 0)]
        for layer in range(model.cfg.n_layers):
            for site in sites:
                self.names.append((_PARTS[site], layer))
                self.sites.append(hook_name(model, site, layer))
        self.add_states(model.cfg, self.sites)

    def hooks(self, batch: Batch) -> Recipe:
        scales: list[Tensor] = []
        with firing(self.model, [(trunk_output(self.model), lambda x, hook: scales.append(self._scale(x)))]):
            forward(self.model, batch, self.model.cfg.n_layers)
        weight = batch.read / scales[0]
        self.add_rows("positions", batch.read.sum(1), batch)
        recipe: Recipe = [(site, partial(self._add_part, site, batch, weight)) for site in self.sites]
        return [*recipe, (hook_name(self.model, "head_input"), partial(self._add_input, batch))]

    def _add_part(self, name: str, batch: Batch, weight: Tensor, activation: Tensor, hook: object) -> None:
        sums = einsum(activation.to(weight), weight, "batch pos d_model, batch pos -> batch d_model")
        self.add_rows(name, sums, batch)

    def _add_input(self, batch: Batch, activation: Tensor, hook: object) -> None:
        self.add_to_groups("input", batch.select(activation), self.groups_of_positions(batch))

    def _scale(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos"]:
        x = x.to(self.head.wide)
        if self.head.norm is None:
            return torch.ones_like(x[..., 0])
        centred = x if self.head.norm == "rms" else x - x.mean(-1, keepdim=True)
        return (centred.square().mean(-1) + self.head.eps).sqrt()

    @property
    def writers(self) -> list[tuple[str, int | None]]:
        """The components, and b_LN if there is one, with their blocks."""
        return [*self.names, *([] if self.head.b_ln is None else [("b_LN", None)])]

    def vectors(self) -> Float[np.ndarray, "component d_model"]:
        """Compute m_c of each of `writers`, of all attention and all MLPs, and E[h].

        Raises ValueError if the components do not add up to E[h].
        """
        vectors: Float[np.ndarray, "component d_model"] = self.jackknife(lambda vectors: vectors).value
        written = vectors[: len(self.writers)].sum(0)
        mean = vectors[-1]
        if not np.linalg.norm(written - mean) <= _APART * np.linalg.norm(mean):
            raise ValueError(
                "attention and MLPs do not add up to the input of this model's unembedding (because of norms after "
                "them, or multipliers), so its writers cannot be determined"
            )
        return vectors

    def jackknife(self, measure: Callable[[Any], Any]) -> Jackknife:
        """Compute a function of `vectors`, with its interval."""
        read = self.state["positions"] > 0
        sums = [torch.stack([self.state[site][read] for site in self.sites], 1), self.state["input"][read]]
        arrays = [part.cpu().numpy() for part in (*sums, self.state["positions"][read])]
        return from_sums(
            lambda *group_sums: measure(self._vectors(*group_sums)), arrays, arrays[-1], self.stretches_per_group
        )

    def _vectors(self, parts: Any, inputs: Any, n: Any) -> Float[np.ndarray, "component d_model"]:
        written = self.head.of_residual(torch.from_numpy(parts / n)).numpy()
        biases = [] if self.head.b_ln is None else [self.head.b_ln.detach().cpu().double().numpy()]
        names = np.array([name for name, _ in self.names])
        of_kind = [written[names == name].sum(0) for name in _PARTS.values()]
        return np.stack([*written, *biases, *of_kind, inputs / n])


@runs
def writers(
    model: Model, text_or_batches: Text, *, unigram: Counts | None = None, progress: bool = True
) -> Passes[FrequencyWriters]:
    """Find which components write the direction along which the mean prediction follows word frequency, and in which
    dimensions it lies.

    Args:
        text_or_batches: the text that the model reads.
        unigram: word frequencies; see `interp.frequency.study`. Default: those of the text.

    Raises:
        ValueError: the model is an encoder, folded, or such that its attention and MLPs do not add up to the head's
            input; or log u does not vary over three types or more.
        RuntimeError: the head has other hooks.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> ledger = writers(model, interp.corpora.load("bundled", limit=60), progress=False)
        >>> ledger.components.query("component == 'E[h]'")["slope"].round(1).item()
        0.8
    """
    refuse_hooks(model)
    head = raw_head(model)
    prepared = as_batches(model, text_or_batches)
    counts = word_frequencies(model, prepared, unigram)
    u = counts.distribution
    seen = (u > 0) & head.real.cpu().numpy()
    if (n_different := len(set(u[seen]))) < 2 or seen.sum() < 3:
        occurring = f"{seen.sum():,} types occur, with {count(n_different, 'frequency')}"
        raise ValueError(f"log u must vary over three types or more, but {occurring}; give more text")
    parts = MeanParts(model, head)
    yield [Reading("writers of word frequency", prepared, [parts])]

    log_u = np.log(u[seen])
    embeddings = head.embeddings.of(seen)
    centred = log_u - log_u.mean()
    beta = embeddings.total(torch.from_numpy(centred / (centred @ centred))[None].to(model.W_U.device))[0].cpu().numpy()
    vectors = parts.vectors()
    names = parts.writers
    rows = [*names, *((f"all {name}", None) for name in _PARTS.values()), ("E[h]", None)]
    table = pd.DataFrame(rows, columns=["component", "layer"]).astype({"layer": "Int64"})
    table["norm"] = np.linalg.norm(vectors, axis=1)
    slope = parts.jackknife(lambda vectors: vectors @ beta)
    table[with_ends(["slope"])] = np.stack([slope.value, slope.low, slope.high], 1)
    table["cumulative_slope"] = table["slope"][: len(names)].cumsum()
    added = embeddings.dot(torch.from_numpy(vectors).to(model.W_U.device)).cpu().numpy()
    table["spearman"] = rank_correlations(log_u, added)
    for kind in _KINDS:
        drawn = np.abs(random_directions(head.embeddings.of(head.real.cpu().numpy()), kind, DRAWS).numpy() @ beta)
        larger = (drawn >= np.abs(vectors @ beta)[:, None] / table["norm"].to_numpy()[:, None]).sum(1)
        table[f"p_{kind}"] = (1 + larger) / (1 + DRAWS)
    return FrequencyWriters(table, _dims(parts, vectors[-1], beta))


def _dims(parts: MeanParts, mean: Float[np.ndarray, " d_model"], beta: Float[np.ndarray, " d_model"]) -> pd.DataFrame:
    """The table `dims`."""
    order = np.argsort(-np.square(mean), kind="stable")

    def shares(vectors: Float[np.ndarray, "component d_model"]) -> Float[np.ndarray, " d_model"]:
        square = np.square(vectors[-1][order])
        return np.asarray(square / square.sum())

    table = pd.DataFrame({"dim": order})
    measures: dict[str, Callable[[Any], Any]] = {"share": shares, "cumulative_share": lambda v: shares(v).cumsum()}
    measures["slope"] = lambda vectors: vectors[-1][order] * beta[order]
    for name, measure_of in measures.items():
        estimate = parts.jackknife(measure_of)
        table[with_ends([name])] = np.stack([estimate.value, estimate.low, estimate.high], 1)
    return table
