"""The control of the sink rate: the same queries with the keys of each row shuffled.

In a causal row, early positions are seen by queries that see little else, and heads with large scores attend strongly
to some key whatever its position. Both remain if the key vectors of a row's tokens are shuffled: in each draw a row has
one permutation, for all heads and blocks, and scores are computed again from the queries and the shuffled keys, before
RoPE, with the mask of the positions (`interp.hooks.permute_keys`, in one block at a time). If position and key have
nothing to do with each other, the rate of the text as it stands is a draw like any other.
"""

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.corpora.batching import Batch, Batches
from interp.instruments.keys import is_edited
from interp.instruments.sinks import FEWEST_QUERIES, checked_epsilon, fewest_tokens, first_query
from interp.models.edits import jointly
from interp.models.qk import QKCircuit, check_layers, qk_circuit
from interp.models.sites import Model, Recipe, hook_name
from interp.passes.observers import Observer
from interp.results.verdicts import FEWEST_CONTROLS
from interp.support.choices import Several

__all__ = ["DRAWS", "MOST_ROWS", "ShuffledKeys", "sampled_rows"]
__dir__ = __all__.copy

DRAWS = FEWEST_CONTROLS
MOST_ROWS = 64
"""The most rows whose keys are shuffled."""
_AMONG = 10_000  # rows from the beginning of the text that these are drawn from


def sampled_rows(model: Model, text: Batches, seed: int) -> list[int]:
    """Draw the numbers of at most 64 rows at random from those among the first 10,000 rows in which the first
    position counts. None if the rows of the text are unknown."""
    rows = text.rows() if text.rows else ()
    long = [row.number for row in islice(rows, _AMONG) if len(row.ids) >= fewest_tokens(model)]
    chosen = np.random.default_rng(seed).choice(len(long), min(MOST_ROWS, len(long)), replace=False)
    return [long[place] for place in sorted(chosen.tolist())]


class _Shuffled(NamedTuple):
    """Rows of a batch: their places in it, and the source of each position's key in each draw."""

    places: Int[Tensor, " row"]
    sources: Int[Tensor, "draw row pos"]
    real: Bool[Tensor, "row pos"]


class ShuffledKeys(Observer):
    """The sink rate of the first position (`interp.instruments.sinks.Sinks`) with the keys of some rows shuffled.

    After `observe` there is the `table`. It is empty where none of the rows was read, and where hooks of others edit
    what comes between keys and attention.

    Args:
        rows: the numbers of the rows in the corpus.
        layers, epsilon: see `interp.instruments.sinks.Sinks`.
        seed: the seed of the permutations, which depend on the row and not on the batch.

    Raises ValueError if scores cannot be computed from queries and keys (`interp.models.qk.qk_circuit`), for a layer
    that does not exist, and for an ε outside 0 … 1.

    Examples:
        >>> from interp.corpora import batches
        >>> from interp.passes.reading import observe
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> text = batches(model, ["w0 w1 w2"] * 20, context=24)
        >>> observer = ShuffledKeys(model, sampled_rows(model, text, seed=0), epsilon=0.2)
        >>> observe(model, text, observer, progress=False)
        >>> len(observer.table)
        39
    """

    axes: ClassVar = {"{}.above": "draws n_heads", "{}.rows": ""}

    def __init__(
        self,
        model: Model,
        rows: Sequence[int],
        *,
        layers: Several[int] | None = None,
        epsilon: float = 0.3,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.layers = check_layers(model, layers)
        self.rows = set(rows)
        self.epsilon = checked_epsilon(epsilon)
        self.seed = seed
        self.circuits = [qk_circuit(model, layer) for layer in self.layers]
        super().__init__(model.W_U.device, rows=list(rows), layers=self.layers, epsilon=self.epsilon, seed=seed)
        self.add_states(model.cfg, self.layers, draws=DRAWS)

    def hooks(self, batch: Batch) -> Recipe:
        numbers = [] if batch.rows is None or is_edited(self.model, batch) else batch.rows.tolist()
        places = [place for place, number in enumerate(numbers) if number in self.rows]
        if not places:
            return []
        real = batch.mask[places].bool()
        sources = torch.arange(real.shape[1]).repeat(DRAWS, len(places), 1)
        for row, (place, length) in enumerate(zip(places, real.sum(1).tolist(), strict=True)):
            rng = np.random.default_rng([self.seed, numbers[place]])
            for draw in range(DRAWS):
                sources[draw, row, :length] = torch.from_numpy(rng.permutation(length))
        device = real.device
        shuffled = _Shuffled(torch.tensor(places, device=device), sources.to(device), real)
        recipe: Recipe = []
        for circuit in self.circuits:
            names = [circuit.query_name, hook_name(self.model, "k", circuit.layer)]
            recipe += jointly(names, partial(self._read, circuit, shuffled))
        return recipe

    def _read(self, circuit: QKCircuit, shuffled: _Shuffled, q: Tensor, k: Tensor) -> None:
        real = shuffled.real.to(q.device)
        first = first_query(circuit.span)
        q, k = q[shuffled.places.to(q.device)], k[shuffled.places.to(k.device)]
        queries = real & (torch.arange(real.shape[1], device=real.device) >= first)
        viewers = circuit.span.over_queries(queries.double())[:, 0]
        counts = viewers >= FEWEST_QUERIES
        above = []
        for sources in shuffled.sources.to(k.device):
            moved = k.gather(1, sources[..., None, None].expand_as(k))
            drawn = _to_first(circuit, q, moved, real, queries) / viewers.clamp(min=1)[:, None]
            above.append(((drawn > self.epsilon) & counts[:, None]).sum(0))
        self.add(f"{circuit.layer}.above", torch.stack(above))
        self.add(f"{circuit.layer}.rows", counts.sum())

    @property
    def table(self) -> pd.DataFrame:
        """One row per draw (draw, rate): the share of layers, heads and rows with a sink at the first position."""
        rows = torch.stack([self.state[f"{layer}.rows"] for layer in self.layers])
        above = torch.stack([self.state[f"{layer}.above"] for layer in self.layers])[rows > 0]
        rates = (above / rows[rows > 0, None, None]).mean((0, 2)) if len(above) else torch.zeros(0)
        table = pd.DataFrame({"draw": range(len(rates)), "rate": rates.cpu().numpy()})
        return table.astype({"draw": "int64", "rate": "float64"})


def _to_first(
    circuit: QKCircuit, q: Tensor, k: Tensor, real: Bool[Tensor, "row pos"], queries: Bool[Tensor, "row pos"]
) -> Float[Tensor, "row head"]:
    """The attention to the first position, summed over some queries."""
    total = torch.zeros(len(q), q.shape[2], dtype=torch.float64, device=q.device)
    for part, _, pattern in circuit.patterns(q, k, real):
        total += (pattern[..., 0] * queries[:, None, part]).sum(-1)
    return total
