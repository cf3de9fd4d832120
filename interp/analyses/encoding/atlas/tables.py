"""The tables of an atlas: cosines of directions and overlaps of subspaces, with intervals and compared with random
rotations."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from interp.analyses.encoding.atlas.rotations import (
    cosines,
    large_cosine,
    overlaps,
    p_of_cosine,
    p_of_overlap,
    random_overlaps,
)
from interp.analyses.encoding.atlas.sources import Seen, Spread
from interp.analyses.encoding.neurons import why_impossible as why_no_neurons
from interp.analyses.encoding.regression import Fit
from interp.instruments.regression import raw_head
from interp.models.sites import Model, view

__all__ = [
    "PAIRS",
    "ROTATIONS",
    "SUBSPACES",
    "Member",
    "chosen_neurons",
    "direction_tables",
    "members",
    "most_dims",
    "pair_table",
]
__all__ += ["rotation_table", "subspace_table"]

_MOST = 10  # the largest number of dimensions of a subspace
_SHOWN = 3  # directions of each kind
_HIGH = 0.975
PAIRS = ["name_a", "name_b", "of_a", "of_b", "cosine", "cosine_low", "cosine_high", "null_95", "by_construction", "p"]
PAIRS += ["p_adjusted"]
SUBSPACES = ["name_a", "name_b", "n_dims_a", "n_dims_b", "overlap", "overlap_low", "overlap_high", "null_mean"]
SUBSPACES += ["null_high", "by_construction", "p", "p_adjusted"]
ROTATIONS = ["name_a", "name_b", "draw", "value"]
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


def most_dims(d_model: int) -> int:
    """The largest number of dimensions of a subspace: 10, but at most a quarter of all dimensions.

    Examples:
        >>> most_dims(768), most_dims(16)
        (10, 4)
    """
    return max(1, min(_MOST, d_model // 4))


def members(model: Model, fit: Fit, seen: Seen, neurons: pd.DataFrame) -> tuple[list[Member], list[Member]]:
    """The directions of an atlas, in the order of the figure, and its subspaces.

    E[h] is in no subspace: outlier dimensions are defined by a large mean, so they would contain it whether or not they
    are related to word frequency.

    Args:
        neurons: the table of `interp.encoding.frequency_neurons`, or an empty one.
    """
    limit = most_dims(model.cfg.d_model)
    frequency = [Member(name, name, seen.frequency[name][:, None]) for name in _FREQUENCY if name in seen.frequency]
    turned = fit.components[:limit] * np.where(fit.components[:limit] @ fit.slope > 0, -1.0, 1.0)[:, None]
    chosen = chosen_neurons(neurons, limit)
    independent = [member.vectors for member in frequency if member.kind != "E[h]"]
    words = Member("word frequency", "frequency", _together(independent))
    axes = Member("principal axes", "PC", turned[None])
    writers = Member("neurons", "neuron", _written(model, chosen)[None])
    dims = Member("outlier dimensions", "dim", np.eye(model.cfg.d_model)[seen.dims][None])
    keys = Member("sink keys", "sink key", seen.keys)
    directions = [
        *frequency,
        *_first([f"PC{number}" for number in range(1, limit + 1)], axes),
        *_first([f"neuron {neuron}" for neuron in chosen], writers),
        *_first([f"dim {dim}" for dim in seen.dims], dims),
        *([_mean_direction(keys)] if seen.heads else []),
    ]
    return directions, [member for member in (words, axes, writers, dims, keys) if member.vectors.shape[1]]


def chosen_neurons(neurons: pd.DataFrame, most: int) -> list[int]:
    """The neurons in the table `neurons` that change the loss most through the unigram direction."""
    effects = neurons.reindex(columns=["neuron", "through_unigram"]).dropna()
    ranked = effects.sort_values("through_unigram", key=np.abs, ascending=False, kind="stable")["neuron"]
    return [int(neuron) for neuron in ranked.head(most)]


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


def pair_table(directions: Sequence[Member], spread: Spread) -> pd.DataFrame:
    """Cosines of every two directions (name_a, name_b, of_a, of_b, cosine, cosine_low, cosine_high, null_95,
    by_construction, p, p_adjusted).

    `of_a` and `of_b` say what the directions belong to: word frequency, output embeddings or attention. `null_95` is
    the |cosine| that a random rotation of one of them exceeds 5 times in 100, `p` is the probability of at least this
    value, and `p_adjusted` is corrected over all pairs (Benjamini and Hochberg). Intervals come from leaving out groups
    of texts, and are NaN if there are too few. A pair that is close or orthogonal `by_construction` is not tested.

    Examples:
        >>> one, other = Member("b_LN", "b_LN", np.eye(1, 64)[None]), Member("-A", "-A", np.ones((1, 1, 64)))
        >>> found = pair_table([one, other], Spread(np.ones(1), 1))
        >>> found[["cosine", "null_95", "p"]].round(3).values.tolist()
        [[0.125, 0.244, 0.321]]
    """
    rows = []
    for a, b in combinations(directions, 2):
        values = cosines(a.vectors[:, 0], b.vectors[:, 0])
        rows.append((a.name, b.name, _OF[a.kind], _OF[b.kind], *_interval(values, spread, least=-1.0)))
    table = pd.DataFrame(rows, columns=PAIRS[:7])
    d_model = directions[0].vectors.shape[2]
    p = [p_of_cosine(cosine, d_model) for cosine in table["cosine"]]
    return _tested(table.assign(null_95=large_cosine(d_model)), directions, p)[PAIRS]


def subspace_table(subspaces: Sequence[Member], spread: Spread, *, seed: int = 0) -> pd.DataFrame:
    """Overlaps of every two subspaces (name_a, name_b, n_dims_a, n_dims_b, overlap, overlap_low, overlap_high,
    null_mean, null_high, by_construction, p, p_adjusted).

    `null_mean` and `null_high` are the mean and the 97.5th percentile over random rotations of one of the subspaces.
    The other columns are as in `pair_table`.

    Args:
        seed: the seed for the rotations.

    Examples:
        >>> one, other = Member("one", "neuron", np.eye(2, 64)[None]), Member("other", "PC", np.eye(4, 64)[None])
        >>> subspace_table([one, other], Spread(np.ones(1), 1))[["overlap", "null_mean", "p"]].values.tolist()
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
    return _tested(pd.DataFrame(rows, columns=SUBSPACES[:9]), subspaces, p)[SUBSPACES]


def rotation_table(
    pairs: pd.DataFrame, subspaces: pd.DataFrame, d_model: int, *, draws: int = _DRAWS, seed: int = 0
) -> pd.DataFrame:
    """The cosine of b_LN and −A, and the overlaps of subspaces, when one of the two is rotated at random: a table
    (name_a, name_b, draw, value) of those that are not `by_construction`.

    Args:
        pairs, subspaces: the tables `directions` and `subspaces`.
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
    tables = [
        pd.DataFrame({"name_a": a, "name_b": b, "draw": range(draws), "value": values})
        for (a, b), values in drawn.items()
    ]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=ROTATIONS)


def _interval(values: Float[np.ndarray, " draws"], spread: Spread, *, least: float) -> tuple[float, float, float]:
    """The value for the whole text, and the ends of its interval."""
    low, high = spread.ends(values)
    return float(values[0]), float(np.maximum(low, least)), float(np.minimum(high, 1.0))


def _tested(table: pd.DataFrame, compared: Sequence[Member], p: Sequence[float]) -> pd.DataFrame:
    """The table with p-values, also adjusted, for the pairs that are not related by construction."""
    kinds = [(a.kind, b.kind) for a, b in combinations(compared, 2)]
    constructed = np.array([pair in _BY_CONSTRUCTION for pair in kinds], dtype=bool)
    values = np.where(constructed, np.nan, p)
    adjusted = np.full(len(values), np.nan)
    if not constructed.all():
        adjusted[~constructed] = stats.false_discovery_control(values[~constructed], method="bh")
    return table.assign(by_construction=constructed, p=values, p_adjusted=adjusted)


def direction_tables(
    model: Model, fit: Fit, seen: Seen, neurons: pd.DataFrame, *, atlas: bool, seed: int
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """The table `directions` of a study, and with `atlas` also `subspaces` and `rotations`, which are empty otherwise,
    and their part of the provenance.
    """
    directions, subspaces = members(model, fit, seen, neurons)
    pairs = pair_table(directions, seen.spread)
    if not atlas:
        empty = {"subspaces": pd.DataFrame(columns=SUBSPACES), "rotations": pd.DataFrame(columns=ROTATIONS)}
        return {"directions": pairs, **empty}, {}
    chosen = chosen_neurons(neurons, most_dims(model.cfg.d_model))
    absent = dict(seen.absent)
    if not chosen:
        absent["neurons"] = why_no_neurons(model) or "no neuron was read"
    record = {"dims": seen.dims, "neurons": chosen, "heads": [list(head) for head in seen.heads], "absent": absent}
    shared = subspace_table(subspaces, seen.spread, seed=seed)
    rotations = rotation_table(pairs, shared, model.cfg.d_model, seed=seed)
    return {"directions": pairs, "subspaces": shared, "rotations": rotations}, record
