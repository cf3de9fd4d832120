"""Cosines of directions and overlaps of subspaces, with intervals and compared with random rotations."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from interp.analyses.directions.rotations import (
    cosines,
    large_cosine,
    overlaps,
    p_of_cosine,
    p_of_overlap,
    random_overlaps,
)
from interp.analyses.directions.sources import Sources, Spread
from interp.instruments.regression import raw_head
from interp.models.sites import Model, view

__all__ = ["Member", "cosine_table", "members", "overlap_table", "rotation_table"]
__dir__ = __all__.copy

_SHOWN = 3  # directions of each kind
_HIGH = 0.975
_COSINES = ["name_a", "name_b", "of_a", "of_b", "cosine", "cosine_low", "cosine_high", "null_95"]
_COSINES += ["by_construction", "p", "p_adjusted"]
_OVERLAPS = ["name_a", "name_b", "n_dims_a", "n_dims_b", "overlap", "overlap_low", "overlap_high", "null_mean"]
_OVERLAPS += ["null_high", "by_construction", "p", "p_adjusted"]
_DRAWS = 199
_FREQUENCY = ("b_LN", "E[h]", "unigram", "-A")
_OF = {
    "b_LN": "word frequency", "E[h]": "word frequency", "unigram": "word frequency", "-A": "output embeddings",
    "PC": "output embeddings", "neuron": "output embeddings", "dim": "attention", "sink key": "attention",
}  # fmt: skip
_BY_CONSTRUCTION = {
    ("PC", "PC"), ("dim", "dim"),  # orthogonal
    ("b_LN", "E[h]"),  # b_LN is a summand of E[h]
    ("E[h]", "-A"),  # to first order A is −E[h]
    ("E[h]", "dim"), ("-A", "dim"), ("frequency", "dim"),  # such dimensions were chosen by their large mean
    ("unigram", "neuron"), ("frequency", "neuron"),  # the neurons were chosen by their effect along log u
}  # fmt: skip


class Member(NamedTuple):
    """A direction in the space of the unembedding's input, or a subspace spanned by k vectors: for the whole text and
    then without each group of texts, or a single set if it does not depend on the text."""

    name: str
    kind: str
    vectors: Float[np.ndarray, "draws k d_model"]


def members(model: Model, sources: Sources) -> tuple[list[Member], list[Member]]:
    """Return the directions, in the order of the figure, and the subspaces that are compared.

    E[h] is in no subspace: outlier dimensions are defined by a large mean, so they would contain it whether or not they
    are related to word frequency.
    """
    vectors = sources.frequency
    frequency = [Member(name, name, vectors[name][:, None]) for name in _FREQUENCY if name in vectors]
    independent = [member.vectors for member in frequency if member.kind != "E[h]"]
    words = Member("word frequency", "frequency", _together(independent))
    axes = Member("principal axes", "PC", sources.axes[None])
    writers = Member("neurons", "neuron", _written(model, sources.neurons)[None])
    dims = Member("outlier dimensions", "dim", np.eye(model.cfg.d_model)[sources.dims][None])
    keys = Member("sink keys", "sink key", sources.keys)
    directions = [
        *frequency,
        *_first([f"PC{number}" for number in range(1, len(sources.axes) + 1)], axes),
        *_first([f"neuron {neuron}" for neuron in sources.neurons], writers),
        *_first([f"dim {dim}" for dim in sources.dims], dims),
        *([_mean_direction(keys)] if sources.heads else []),
    ]
    return directions, [member for member in (words, axes, writers, dims, keys) if member.vectors.shape[1]]


def _written(model: Model, neurons: Sequence[int]) -> Float[np.ndarray, "neurons d_model"]:
    """What neurons of the last MLP write, in the space of the unembedding's input."""
    if not neurons:
        return np.zeros((0, model.cfg.d_model))
    weights = view(model).W_out(model.cfg.n_layers - 1)[list(neurons)].detach().to(model.W_U.device)
    head = raw_head(model)
    return head.of_residual(weights.to(head.wide)).cpu().double().numpy()


def _first(names: Sequence[str], subspace: Member) -> list[Member]:
    """The first vectors of a subspace, each as a direction."""
    return [Member(name, subspace.kind, subspace.vectors[:, [number]]) for number, name in enumerate(names[:_SHOWN])]


def _mean_direction(subspace: Member) -> Member:
    """The mean of the unit vectors of a subspace."""
    units = subspace.vectors / np.linalg.norm(subspace.vectors, axis=2, keepdims=True)
    return Member(subspace.kind, subspace.kind, units.mean(1, keepdims=True))


def _together(parts: Sequence[Float[np.ndarray, "_ _ d_model"]]) -> Float[np.ndarray, "draws k d_model"]:
    draws = max(len(part) for part in parts)
    return np.concatenate([np.broadcast_to(part, (draws, *part.shape[1:])) for part in parts], 1)


def cosine_table(directions: Sequence[Member], spread: Spread) -> pd.DataFrame:
    """Cosines of every two directions: the table `cosines` of a `DirectionStudy`.

    `null_95` is the |cosine| that a random rotation of one of them exceeds 5 times in 100, and `p` is the probability
    of at least this value. Intervals come from leaving out groups of texts, and are NaN if there are too few.

    Examples:
        >>> one, other = Member("b_LN", "b_LN", np.eye(1, 64)[None]), Member("-A", "-A", np.ones((1, 1, 64)))
        >>> found = cosine_table([one, other], Spread(np.ones(1), 1))
        >>> found[["cosine", "null_95", "p"]].round(3).values.tolist()
        [[0.125, 0.244, 0.321]]
    """
    rows = []
    for a, b in combinations(directions, 2):
        values = cosines(a.vectors[:, 0], b.vectors[:, 0])
        rows.append((a.name, b.name, _OF[a.kind], _OF[b.kind], *_interval(values, spread, least=-1.0)))
    table = pd.DataFrame(rows, columns=_COSINES[:7])
    d_model = directions[0].vectors.shape[2]
    p = [p_of_cosine(cosine, d_model) for cosine in table["cosine"]]
    return _tested(table.assign(null_95=large_cosine(d_model)), directions, p)[_COSINES]


def overlap_table(subspaces: Sequence[Member], spread: Spread, *, seed: int = 0) -> pd.DataFrame:
    """Overlaps of every two subspaces: the table `overlaps` of a `DirectionStudy`. One of the two is rotated at random
    for `null_mean`, `null_high` and `p`; intervals are as in `cosine_table`.

    Args:
        seed: the seed for the rotations.

    Examples:
        >>> one, other = Member("one", "neuron", np.eye(2, 64)[None]), Member("other", "PC", np.eye(4, 64)[None])
        >>> overlap_table([one, other], Spread(np.ones(1), 1))[["overlap", "null_mean", "p"]].values.tolist()
        [[1.0, 0.0625, 0.001]]
    """
    d_model = subspaces[0].vectors.shape[2]
    sizes = [member.vectors.shape[1] for member in subspaces]
    turned = random_overlaps(d_model, max(sizes), seed=seed) ** 2
    rows, p = [], []
    for a, b in combinations(subspaces, 2):
        k, m = a.vectors.shape[1], b.vectors.shape[1]
        by_chance = turned[:, :k, :m].sum((1, 2)) / min(k, m)
        ends = _interval(overlaps(a.vectors, b.vectors), spread, least=0.0)
        rows.append((a.name, b.name, k, m, *ends, max(k, m) / d_model, np.quantile(by_chance, _HIGH)))
        p.append(p_of_overlap(ends[0], by_chance))
    return _tested(pd.DataFrame(rows, columns=_OVERLAPS[:9]), subspaces, p)[_OVERLAPS]


def rotation_table(
    pairs: pd.DataFrame, subspaces: pd.DataFrame, d_model: int, *, draws: int = _DRAWS, seed: int = 0
) -> pd.DataFrame:
    """The cosine of b_LN and −A, and the overlaps of subspaces, when one of the two is rotated at random: the table
    `rotations` of a `DirectionStudy`, without those that are related `by_construction`.

    Args:
        pairs, subspaces: from `cosine_table` and `overlap_table`.
    """
    line = np.random.default_rng(seed).standard_normal((draws, d_model))
    drawn = {}
    if ((pairs["name_a"] == "b_LN") & (pairs["name_b"] == "-A")).any():
        drawn["b_LN", "-A"] = line[:, 0] / np.linalg.norm(line, axis=1)
    tested = subspaces[~subspaces["by_construction"]]
    largest = int(tested[["n_dims_a", "n_dims_b"]].to_numpy().max(initial=1))
    turned = random_overlaps(d_model, largest, draws=draws, seed=seed) ** 2
    for a, b, k, m in tested[["name_a", "name_b", "n_dims_a", "n_dims_b"]].itertuples(index=False):
        drawn[a, b] = turned[:, :k, :m].sum((1, 2)) / min(k, m)
    tables = []
    for (a, b), values in drawn.items():
        tables.append(pd.DataFrame({"name_a": a, "name_b": b, "draw": range(draws), "value": values}))
    return pd.concat(tables, ignore_index=True)


def _interval(values: Float[np.ndarray, " draws"], spread: Spread, *, least: float) -> tuple[float, float, float]:
    """The value for the whole text, and the ends of its interval."""
    low, high = spread.ends(values)
    return float(values[0]), float(np.maximum(low, least)), float(np.minimum(high, 1.0))


def _tested(table: pd.DataFrame, compared: Sequence[Member], p: Sequence[float]) -> pd.DataFrame:
    """The table with p-values, also adjusted, for the pairs that are not related by construction."""
    pairs = combinations(compared, 2)
    constructed = np.array([(a.kind, b.kind) in _BY_CONSTRUCTION for a, b in pairs], dtype=bool)
    values = np.where(constructed, np.nan, p)
    adjusted = np.full(len(values), np.nan)
    if not constructed.all():
        adjusted[~constructed] = stats.false_discovery_control(values[~constructed], method="bh")
    return table.assign(by_construction=constructed, p=values, p_adjusted=adjusted)
