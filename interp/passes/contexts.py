"""The tokens at which a dimension or a neuron is largest, in their contexts."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.corpora import Batches
from interp.corpora.batching import Batch
from interp.corpora.contexts import CONTEXT, in_context
from interp.models.sites import Model, Recipe, state_name
from interp.passes import largest
from interp.passes.observers import Observer

__all__ = ["CONTEXTS", "KEPT", "LargestTokens"]

CONTEXTS = ["dim", "state", "rank", "activation", *CONTEXT]
KEPT = 20
"""The number of tokens that are kept for each dimension or neuron at each place."""


class LargestTokens(Observer):
    """The 20 tokens at which each dimension of the residual stream has the largest magnitude, in every hidden state; or
    each dimension, neuron or output of a head of other `sites`.

    Padding is left out, and so are batches that were made by hand and do not have the numbers of their rows. The tokens
    do not depend on how the text is divided into batches and parts: of equal magnitudes (`interp.passes.largest`), the
    first in the corpus are kept. This takes 320 bytes per dimension and state.

    After `observe` there is the `table`.

    Args:
        sites: hook points by the number of the state, or of the block; every hidden state by default.
        width: dimensions there; by default those of the residual stream.

    Examples:
        >>> from interp.corpora import batches
        >>> from interp.passes.reading import observe
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> model.W_E.data[9, 5] = 50.0  # of the token w2; elsewhere the dimension is small
        >>> observer, text = LargestTokens(model), batches(model, ["w0 w1 w2"] * 20, context=12)
        >>> observe(model, text, observer, progress=False)
        >>> table = observer.table(text, [(5, 0)])
        >>> table[["rank", "before", "token", "after", "text", "position"]].head(2)
           rank           before token               after  text  position
        0     1  w0 w1 w2 w0 w1     w2   w0 w1 w2 w0 w1 w2     1         5
        1     2  w0 w1 w2 w0 w1     w2   w0 w1 w2 w0 w1 w2     5         5
    """

    axes: ClassVar = {"{}.largest": f"largest: 2 width {KEPT}"}

    def __init__(self, model: Model, sites: Mapping[int, str] | None = None, width: int | None = None) -> None:
        all_sites = {state: state_name(model, state) for state in range(model.cfg.n_layers + 1)}
        self.model = model
        self.sites = all_sites if sites is None else dict(sites)
        width = width or model.cfg.d_model
        super().__init__(model.W_U.device, sites=list(map(list, self.sites.items())), width=width)
        self.add_states(model.cfg, self.sites, width=width)

    def hooks(self, batch: Batch) -> Recipe:
        if batch.rows is None:
            return []
        real = batch.mask.bool()
        first = batch.rows.to(real.device) * int(self.model.cfg.n_ctx)
        places = (first[:, None] + torch.arange(real.shape[1], device=real.device))[real]
        read = partial(self._read, real=real, places=places)
        return [(name, partial(read, number=number)) for number, name in self.sites.items()]

    def _read(
        self, values: Float[Tensor, "batch pos *width"], hook: object, real: Tensor, places: Tensor, number: int
    ) -> None:
        name = f"{number}.largest"
        self.add(name, largest.of_values(values.flatten(2)[real], places, self.state[name]))

    def table(self, read: Batches, units: Iterable[tuple[int, int]]) -> pd.DataFrame:
        """Return the tokens of some dimensions, as in the table `contexts` of an `interp.attention.AttentionStudy`; see
        `interp.corpora.contexts.in_context`.

        Args:
            read: the batches that were observed. If they do not have the numbers of their rows, the table is empty.
            units: dimensions, each with the number of its site.
        """
        rows = []
        for unit, number in units if read.rows else ():
            activations, places = self.state[f"{number}.largest"][:, unit].cpu()
            for rank, place in enumerate(places[places >= 0].long().tolist()):
                where = divmod(place, int(self.model.cfg.n_ctx))
                rows.append((unit, number, rank + 1, float(activations[rank]), *where))
        tokens = pd.DataFrame(rows, columns=[*CONTEXTS[:4], "row", "position"])
        types = dict.fromkeys(tokens, "int64")
        types["activation"] = "float64"
        tokens = tokens.astype(types)
        places = tokens[["row", "position"]].itertuples(index=False, name=None)
        return tokens[CONTEXTS[:4]].join(in_context(self.model, read, places))
