"""Sums over the minimal pairs of one task, by unit, from which the tables of units are made.

A *unit* is a dimension of the residual stream at a hidden state, an MLP neuron after its activation, or a dimension of
the output z of an attention head. Let g and b be its values for the good and the bad sentence of a pair. For each fold
of the pairs, the sums are the moments of g − b, from which t follows; `Σ ± (g − b)` with random signs, which gives the
same t with labels flipped within pairs; `Σ sign(g − b)`; and histograms of g and of b. No state of a sentence is kept.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
import xxhash
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.corpora.batching import Batch, Batches
from interp.corpora.positions import read_at
from interp.models.sites import Model, Recipe, hook_name, state_name, view
from interp.passes import moments
from interp.passes.observers import Observer, fingerprint
from interp.passes.reading import TOKENS_AT_ONCE
from interp.support.choices import Position

__all__ = ["BINS", "Of", "Place", "Scale", "UnitSums", "folds_of", "pair_batches", "places"]
__all__ += ["scaled_bins", "signs_of"]

Of = Literal["residual", "neurons", "heads"]
BINS = 32
"""The number of bins of a histogram, with equal shares of a normal distribution with the unit's mean and SD."""


class Place(NamedTuple):
    """A place where units are read: a hidden state of the residual stream, or a block's neurons or heads."""

    of: Of
    at: int
    hook: str
    width: int

    @property
    def key(self) -> str:
        return f"{self.of}.{self.at}"


def places(model: Model) -> list[Place]:
    """Every place of a model that has units. A mixture of experts has no MLP neurons."""
    cfg = model.cfg
    seen = view(model)
    sites = [Place("residual", state, state_name(model, state), cfg.d_model) for state in range(cfg.n_layers + 1)]
    layers = range(cfg.n_layers)
    if seen.d_mlp and not seen.refused("mlp_post"):
        sites += [Place("neurons", layer, hook_name(model, "mlp_post", layer), seen.d_mlp) for layer in layers]
    if not seen.refused("z"):
        sites += [Place("heads", layer, hook_name(model, "z", layer), cfg.n_heads * cfg.d_head) for layer in layers]
    return sorted(sites, key=lambda place: get_args(Of).index(place.of))


def folds_of(n_groups: int, folds: int, seed: int = 0) -> Int[np.ndarray, " groups"]:
    """The fold of each group of pairs, drawn at random, with equally many groups in each fold."""
    return np.asarray(np.random.default_rng([seed, n_groups]).permutation(np.arange(n_groups) % folds))


def signs_of(n_groups: int, flips: int, seed: int = 0) -> Float[np.ndarray, "flips groups"]:
    """Random signs: −1 where the labels of a group of pairs are flipped."""
    return np.random.default_rng([seed, n_groups]).choice([-1.0, 1.0], (flips, n_groups))


def pair_batches(
    model: Model,
    rows: Sequence[list[int]],
    tasks: Sequence[Int[np.ndarray, " pairs"]],
    position: Position,
    settings: dict[str, Any],
) -> Batches:
    """Batches of whole pairs, each of one task, the good sentence before the bad.

    Args:
        rows: token ids of all sentences, two per pair.
        tasks: the pairs of the table that each task has.
        position: where a sentence is read.
        settings: the settings that identify these sentences.
    """
    pairs = np.concatenate(list(tasks))
    sides = [rows[2 * pair + side] for pair in pairs for side in (0, 1)]
    settings = dict(settings, corpus="minimal pairs", position=position, context=max(map(len, rows)))
    settings["fingerprint"] = xxhash.xxh3_128(json.dumps(sides).encode()).hexdigest()
    settings["sizes"] = list(map(len, tasks))

    def read() -> Iterator[Batch]:
        for task in tasks:
            for group in _of_like_length(rows, task):
                batch = Batch.of([rows[2 * pair + side] for pair in group for side in (0, 1)], n_texts=2 * len(group))
                stretches = torch.tensor(group).repeat_interleave(2)
                where = read_at(model, batch.mask, position)
                chosen = torch.arange(batch.tokens.shape[1]) == where[:, None]
                chosen = batch.mask.bool() if position == "mean" else chosen
                yield replace(batch, read=chosen, stretches=stretches)

    return Batches(settings, 2 * len(pairs), read)


def _of_like_length(rows: Sequence[list[int]], task: Int[np.ndarray, " pairs"]) -> Iterator[list[int]]:
    """Pairs of a task in order of length, as many as make a batch."""
    length = {int(pair): max(len(rows[2 * pair]), len(rows[2 * pair + 1])) for pair in task}
    ordered = sorted(length, key=lambda pair: length[pair])
    size = max(1, TOKENS_AT_ONCE // (2 * max(length.values())))
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


class _OfTask(Observer):
    """Listens to the pairs of one task, at every place."""

    def __init__(self, model: Model, where: Sequence[Place], pairs: Int[np.ndarray, " pairs"], **options: Any) -> None:
        places = [place.key for place in where]
        super().__init__(model.W_U.device, places=places, pairs=fingerprint(pairs), **options)
        self.model = model
        self.where = list(where)
        self.number = {int(pair): number for number, pair in enumerate(pairs)}

    def hooks(self, batch: Batch) -> Recipe:
        assert batch.stretches is not None
        pairs = batch.stretches[::2].tolist()
        if pairs[0] not in self.number:
            return []
        numbers = torch.tensor([self.number[pair] for pair in pairs], device=self.device)
        return [(place.hook, partial(self._read, batch=batch, place=place, numbers=numbers)) for place in self.where]

    def _read(self, activation: Tensor, hook: object, batch: Batch, place: Place, numbers: Tensor) -> None:
        chosen = batch.select(activation.flatten(2)).to(self.device)
        if batch.n_read > len(batch.tokens):  # the mean over positions
            row = batch.read.nonzero()[:, 0].to(self.device)
            sums = chosen.new_zeros(len(batch.tokens), place.width, dtype=torch.float32)
            chosen = sums.index_add_(0, row, chosen.float()) / row.bincount()[:, None]
        self.take(place, chosen.float(), numbers)

    def take(self, place: Place, values: Float[Tensor, "rows width"], numbers: Int[Tensor, " pairs"]) -> None:
        """Add the values of the units at a place for some pairs of the task, given by number: good, bad, good, bad …"""
        raise NotImplementedError


class Scale(_OfTask):
    """Mean and SD of every unit over some sentences of a task, by which histograms are binned."""

    axes: ClassVar = {"{}": f"moments: {moments.ROWS[1]} 1 width"}

    def __init__(self, model: Model, where: Sequence[Place], pairs: Int[np.ndarray, " pairs"]) -> None:
        super().__init__(model, where, pairs)
        for place in where:
            self.add_states(model.cfg, [place.key], width=place.width)

    def take(self, place: Place, values: Float[Tensor, "rows width"], numbers: Int[Tensor, " pairs"]) -> None:
        wide = values.double()
        self.add(place.key, moments.by_group(wide, wide.new_ones(len(wide), 1)))

    def of(self, place: Place) -> tuple[Float[Tensor, " width"], Float[Tensor, " width"]]:
        """Mean and SD; the SD is 1 if nothing varies."""
        sd = moments.variance(self.state[place.key])[0].sqrt()
        return moments.mean(self.state[place.key])[0].float(), torch.where(sd > 0, sd, 1.0).float()


class UnitSums(_OfTask):
    """The sums of a task; see the module.

    Args:
        pairs: the numbers of the pairs in the table of all pairs.
        fold: the fold of each pair.
        signs: for each time that labels are flipped at random within pairs, 1 or −1 for each pair.
        scale: the scale from a sample of the same task.
    """

    axes: ClassVar = {
        "difference.{}": f"moments: {moments.ROWS[1]} folds width",
        "flipped.{}": "folds flips width",
        "signs.{}": "folds width",
        "counts.{}": f"folds 2 {BINS} width",
    }

    def __init__(
        self,
        model: Model,
        where: Sequence[Place],
        pairs: Int[np.ndarray, " pairs"],
        fold: Int[np.ndarray, " pairs"],
        signs: Float[np.ndarray, "flips pairs"],
        *,
        scale: Scale,
    ) -> None:
        self.folds = int(fold.max()) + 1
        described = {"fold": fingerprint(fold), "signs": fingerprint(signs)}
        described["scale"] = fingerprint(torch.cat([part for place in where for part in scale.of(place)]))
        super().__init__(model, where, pairs, **described)
        self.scale = {place.key: tuple(part.to(self.device) for part in scale.of(place)) for place in where}
        self.fold = torch.from_numpy(fold).to(self.device)
        self.signs = torch.from_numpy(signs).to(self.device)
        for place in where:
            self.add_states(model.cfg, [place.key], width=place.width, folds=self.folds, flips=len(signs))

    def take(self, place: Place, values: Float[Tensor, "rows width"], numbers: Int[Tensor, " pairs"]) -> None:
        good, bad = rearrange(values, "(pair side) width -> side pair width", side=2).double()
        fold = self.fold[numbers]
        difference = good - bad
        member = torch.nn.functional.one_hot(fold, self.folds).to(difference)
        signs = rearrange(member.T[:, None] * self.signs[:, numbers], "fold flip pair -> (fold flip) pair")
        self.add(f"flipped.{place.key}", (signs @ difference).view(self.folds, -1, place.width))
        self.add(f"signs.{place.key}", member.T @ difference.sign())
        difference_moments = moments.by_group(difference, member)
        self.add(f"difference.{place.key}", difference_moments)
        if not bool(difference_moments.isfinite().all()):
            raise ValueError(f"{place.hook} has NaN or infinite values; check the model's weights and dtype")
        first = rearrange(2 * fold[:, None] + torch.arange(2, device=self.device), "pair side -> (pair side) 1")
        cells = scaled_bins(values, *self.scale[place.key]).add_(BINS * first)
        counts = torch.zeros(self.folds * 2 * BINS, place.width, dtype=torch.float32, device=self.device)
        counts.scatter_add_(0, cells, counts.new_ones(()).expand(cells.shape))
        self.add(f"counts.{place.key}", counts.view(self.folds, 2, BINS, -1))


def scaled_bins(
    values: Float[Tensor, "rows width"], mean: Float[Tensor, " width"], sd: Float[Tensor, " width"]
) -> Int[Tensor, "rows width"]:
    """The bin of each value: `⌊BINS · Φ((x − mean) / sd)⌋`. The outermost bins are unbounded."""
    share = (values - mean).mul_(math.sqrt(0.5) / sd).erf_().add_(1)  # 2Φ, in place: the costliest part of a pass
    return share.mul_(BINS / 2).clamp_(0, BINS - 1).long()
