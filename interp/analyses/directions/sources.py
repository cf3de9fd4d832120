"""The sources of the directions that are compared, from one pass over the text and those of
`interp.encoding.frequency_neurons`.

The key of a sink has a direction within its head. Its direction in the residual stream is the one in which the stream
must move for keys of that head to grow fastest towards the sink's key: `γ ⊙ W_K k`, where k is the mean key at the
first position minus that at all other positions. Keys are taken before RoPE, which does not change the first position.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from interp.corpora import Batches
from interp.corpora.batching import Batch
from interp.corpora.classes import TokenClasses
from interp.corpora.unigrams import Unigrams
from interp.instruments.divergences import Distribution
from interp.instruments.keys import attention_cost
from interp.instruments.neurons import SCANNED, frequency_neurons, neurons_cost, why_no_neurons
from interp.instruments.predictions import MeanPredictions, Variant
from interp.instruments.profile import DimensionProfile, find_outliers
from interp.instruments.regression import least_squares, minus_log, raw_head, regressions, taking_part
from interp.instruments.sinks import Sinks, fewest_tokens, position_bins
from interp.models.qk import qk_circuit, why_no_scores
from interp.models.shapes import Shape
from interp.models.sites import Model, Recipe, hook_name, is_encoder
from interp.passes.budget import Pass
from interp.passes.execution import Passes, Reading
from interp.passes.observers import Observer
from interp.results.intervals import jackknife, summed_others

__all__ = ["DirectionSums", "Sources", "Spread", "find_sources", "lacks", "most_dims", "sources_cost"]
__dir__ = __all__.copy

_MOST = 10  # the largest number of dimensions of a subspace
_EPSILON = 0.3  # share of attention, as in interp sinks
_WHY_NO_FREQUENCY = {
    "b_LN": "the final norm has no bias, or it is 0",
    "unigram": "the counts have no more types than there are dimensions",
}
_EVERY = TokenClasses(("any",), torch.zeros_like)


class Spread(NamedTuple):
    """The groups of texts that are left out in turn: how many positions each has, and how many texts."""

    sizes: Float[np.ndarray, " groups"]
    texts_per_group: int

    def ends(self, values: Float[np.ndarray, " draws"]) -> tuple[float, float]:
        """The ends of the 95 % interval of a value, given for the whole text and then without each group; or given
        alone if it does not depend on the text."""
        without = np.broadcast_to(values[1:] if len(values) > 1 else values, len(self.sizes))
        interval = jackknife(values[0], without, self.sizes, self.texts_per_group)
        return float(interval.low), float(interval.high)


class Sources(NamedTuple):
    """Where directions come from, for the whole text and then without each group of texts; only for the whole text if
    there are too few groups for intervals, or if they do not depend on the text.

    - `frequency` has `b_LN`, `-A`, `E[h]` and `unigram`, except those that the model or the counts do not have.
    - `axes` are the first principal axes of the output embeddings, each turned towards −A.
    - `neurons` are those of the last MLP that change the loss most through the unigram direction, and `dims` the first
      outlier dimensions of the residual stream by rank.
    - `heads` are the layers and key heads with a sink at the first position, in decreasing order of its attention, and
      `keys` are the directions of these keys in the unembedding's input.
    - `predictions` are the mean predictions of the text by group of texts.
    - `absent` says why a direction is missing that is not in `lacks`.
    """

    frequency: dict[str, Float[np.ndarray, "_ d_model"]]
    axes: Float[np.ndarray, "axes d_model"]
    neurons: list[int]
    dims: list[int]
    heads: list[tuple[int, int]]
    keys: Float[np.ndarray, "_ _ d_model"]
    predictions: MeanPredictions
    absent: dict[str, str]


class DirectionSums(Observer):
    """Sums, by group of texts, of the unembedding's input at positions that are read, and of the keys of layers at the
    first position of a row and at all others."""

    axes: ClassVar = {
        "positions": "groups",
        "input": "groups d_model",
        "tokens": "groups 2",
        "{}.keys": "groups 2 key_heads d_head",
    }

    def __init__(self, model: Model, layers: Sequence[int]) -> None:
        super().__init__(model.W_U.device, layers=list(layers))
        self.model = model
        self.layers = list(layers)
        key_heads = qk_circuit(model, self.layers[0]).W_K_stored.shape[0] if self.layers else 0
        self.add_states(model.cfg, self.layers, key_heads=key_heads)

    def hooks(self, batch: Batch) -> Recipe:
        real = batch.mask.bool()
        first = torch.arange(real.shape[1], device=real.device) == 0
        parts = torch.stack([real & first, real & ~first], 1)
        self.add_rows("tokens", parts.sum(2), batch)
        recipe: Recipe = [(hook_name(self.model, "head_input"), partial(self._read_input, batch))]
        for layer in self.layers:
            recipe.append((hook_name(self.model, "k", layer), partial(self._read_keys, layer, batch, parts)))
        return recipe

    def _read_input(self, batch: Batch, activation: Tensor, hook: object) -> None:
        groups = self.groups_of_positions(batch)
        self.add_to_groups("positions", torch.ones(len(groups)), groups)
        self.add_to_groups("input", batch.select(activation), groups)

    def _read_keys(self, layer: int, batch: Batch, parts: Bool[Tensor, "batch 2 pos"], k: Tensor, hook: object) -> None:
        wide = k.to(torch.promote_types(k.dtype, torch.float32))
        sums = einsum(parts.to(wide), wide, "row part pos, row pos head d_head -> row part head d_head")
        self.add_rows(f"{layer}.keys", sums, batch)

    def mean_input(self, *, grouped: bool) -> Float[np.ndarray, "draws d_model"]:
        """E[h] over the whole text, and with `grouped` also without each group."""
        read = self.state["positions"] > 0
        total = _draws(self.state["input"][read], grouped=grouped)
        n = _draws(self.state["positions"][read], grouped=grouped)
        return (total / n[:, None]).cpu().numpy()

    def keys_apart(self, layer: int, *, grouped: bool) -> Float[Tensor, "draws head d_head"]:
        """The mean key at the first position minus that at all others, over the whole text and without each group."""
        read = self.state["positions"] > 0
        total = _draws(self.state[f"{layer}.keys"][read], grouped=grouped)
        n = _draws(self.state["tokens"][read], grouped=grouped)
        first, later = (total / n[..., None, None]).unbind(1)
        return first - later


def _draws(sums: Float[Tensor, "groups *shape"], *, grouped: bool) -> Float[Tensor, "draws *shape"]:
    """The sum of all groups, and with `grouped` also the sums without each group."""
    whole = sums.sum(0, keepdim=True)
    return torch.cat([whole, torch.as_tensor(summed_others(sums.cpu().numpy())).to(whole)]) if grouped else whole


def most_dims(d_model: int) -> int:
    """Return the largest number of dimensions of a subspace: 10, but at most a quarter of all dimensions.

    Examples:
        >>> most_dims(768), most_dims(16)
        (10, 4)
    """
    return max(1, min(_MOST, d_model // 4))


def lacks(model: Model) -> dict[str, str]:
    """Return what the comparison of a model's directions leaves out, and why."""
    of_neurons = why_no_neurons(model)
    reasons = {} if of_neurons is None else {"neurons": of_neurons}
    if is_encoder(model):
        reason = "there is a dense layer between the residual stream and the unembedding, so their dimensions differ"
        reasons["outlier dimensions"] = reason
        reasons["sink keys"] = reason
        return reasons
    refused = why_no_scores(model)
    if refused is None and model.cfg.n_ctx < fewest_tokens(model):
        refused = f"sinks need rows of {fewest_tokens(model)} tokens or more"
    if refused is not None:
        reasons["sink keys"] = refused
    return reasons


def find_sources(model: Model, prepared: Batches, unigram: Unigrams, *, seed: int = 0) -> Passes[Sources]:
    """Find the sources of directions in a text, in one pass, and for decoders three more for neurons of the last MLP.

    Args:
        seed: the seed for the positions that the effects of neurons are averaged over.
    """
    lacking = lacks(model)
    layers = [] if "sink keys" in lacking else list(range(model.cfg.n_layers))
    sums = DirectionSums(model, layers)
    predictions = MeanPredictions(model, [Variant()], grouped=True)
    profile = None if "outlier dimensions" in lacking else DimensionProfile(model, _EVERY)
    sinks = Sinks(model, _EVERY, epsilon=_EPSILON) if layers else None
    observers = [observer for observer in (sums, predictions, profile, sinks) if observer is not None]
    yield [Reading("directions", prepared, observers)]
    most = most_dims(model.cfg.d_model)
    neurons: list[int] = []
    if "neurons" not in lacking:
        share = min(1.0, SCANNED / predictions.n_tokens)
        effects = yield from frequency_neurons.passes(model, prepared, unigram=unigram, share=share, seed=seed)
        exact = effects[effects["exact"]].set_index("neuron")["through_unigram"].abs()
        neurons = exact.sort_values(ascending=False, kind="stable").index[:most].tolist()
    grouped = "none" not in predictions.intervals
    frequency, axes = _of_head(model, sums, predictions, unigram.distribution, grouped=grouped)
    absent = dict(_WHY_NO_FREQUENCY)
    for name in frequency:
        absent.pop(name, None)
    dims: list[int] = []
    if profile is not None:
        inside = profile.table.query("state < @model.cfg.n_layers")
        dims = find_outliers(inside)["dim"].drop_duplicates().tolist()[:most]
        if not dims:
            absent["outlier dimensions"] = "no hidden state before the last has one"
    heads: list[tuple[int, int]] = []
    keys = np.zeros((1, 0, model.cfg.d_model))
    if sinks is not None:
        heads, reason = _sink_heads(sinks, most)
        if heads:
            keys = _of_keys(model, sums, heads, grouped=grouped)
        else:
            absent["sink keys"] = reason
    return Sources(frequency, axes[:most], neurons, dims, heads, keys, predictions, absent)


def sources_cost(size: Shape, context: int | None, share: float) -> list[Pass]:
    """Estimate the cost of `find_sources` from the shape of a model.

    Args:
        share: the share of the positions that the effects of neurons are averaged over.
    """
    layers = range(0 if size.encoder else size.n_layers)
    read = MeanPredictions.cost(size, 1, grouped=True, what="directions")
    sums = read.sums + DirectionSums.n_bytes(size, layers, key_heads=size.n_key_value_heads)
    if size.encoder:  # which has no outlier dimensions, sinks and neurons here
        return [replace(read, sums=sums)]
    sums += DimensionProfile.n_bytes(size, range(size.n_layers + 1), classes=1)
    sums += Sinks.n_bytes(size, layers, classes=1, bins=len(position_bins(size.n_ctx)))
    flops = read.flops + attention_cost(size, context).flops
    per_token = 4 * 8 * size.n_heads * size.d_head
    return [replace(read, sums=sums, per_token=per_token, flops=flops), *neurons_cost(size, share)]


def _of_head(
    model: Model, sums: DirectionSums, predictions: MeanPredictions, u: Distribution, *, grouped: bool
) -> tuple[dict[str, Float[np.ndarray, "_ d_model"]], Float[np.ndarray, "d_model d_model"]]:
    """The directions of word frequency in the space of the unembedding's input, with their norms, and the principal
    axes of the output embeddings."""
    head = raw_head(model)
    real = head.real.cpu().numpy()
    alphas = predictions.distributions
    if grouped:
        alphas = np.stack([alphas[0], *(means.distribution for means in predictions.leaving_out(0))])
    use = taking_part(head.embeddings, alphas[0], real & (alphas > 0).all(0))
    targets = [minus_log(alpha[use]) for alpha in alphas]
    decomposition, fitted = least_squares(head.embeddings.of(use), *targets, n_real=int(real.sum()))
    slopes = np.stack([regression.slope for regression in fitted])
    vectors = {"-A": -slopes, "E[h]": sums.mean_input(grouped=grouped)}
    if head.b_ln is not None and bool(head.b_ln.any()):
        vectors["b_LN"] = head.b_ln.detach().double().cpu().numpy()[None]
    occurring = real & (u > 0)
    if occurring.sum() > model.cfg.d_model + 1:
        vectors["unigram"] = -regressions(head.embeddings, [u], use=occurring)[0].slope[None]
    axes = decomposition.components
    return vectors, axes * np.where(axes @ slopes[0] > 0, -1.0, 1.0)[:, None]


def _sink_heads(sinks: Sinks, limit: int) -> tuple[list[tuple[int, int]], str]:
    """The layers and key heads with a query head that has a sink at the first position, in decreasing order of its
    attention; and the reason if there are none."""
    try:
        first = sinks.table.query("first_position == 0")
    except ValueError as error:  # no row was long enough
        return [], str(error).partition(";")[0]
    stored = {layer: len(qk_circuit(sinks.model, layer).W_K_stored) for layer in sinks.layers}
    shared = sinks.model.cfg.n_heads // first["layer"].map(stored)
    attention = first.assign(head=first["head"] // shared).groupby(["layer", "head"])["attention"].max()
    ranked = attention[attention > sinks.epsilon].sort_values(ascending=False, kind="stable")
    reason = f"no head's mean attention to the first position is above {sinks.epsilon:g}"
    return [(int(layer), int(head)) for layer, head in ranked.index[:limit]], reason


def _of_keys(
    model: Model, sums: DirectionSums, heads: Sequence[tuple[int, int]], *, grouped: bool
) -> Float[np.ndarray, "draws heads d_model"]:
    """The directions of the keys of heads in the space of the unembedding's input."""
    towards = {}
    for layer in dict(heads):
        towards[layer] = qk_circuit(model, layer).towards(sums.keys_apart(layer, grouped=grouped))
    head = raw_head(model)
    directions = torch.stack([towards[layer][:, number] for layer, number in heads], 1)
    return head.of_residual(directions.flatten(0, 1)).unflatten(0, directions.shape[:2]).cpu().numpy()
