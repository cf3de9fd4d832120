"""The tokens at which a dimension of the residual stream is largest, in their contexts."""

from collections.abc import Iterable
from functools import partial

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.corpora import Batches
from interp.corpora.batching import Batch
from interp.corpora.contexts import CONTEXT, in_context
from interp.hooks import jointly
from interp.models.sites import Model, Recipe, state_name
from interp.run import largest
from interp.run.observers import Observer

__all__ = ["CONTEXTS", "KEPT", "LargestTokens"]

CONTEXTS = ["dim", "state", "rank", "activation", *CONTEXT]
KEPT = 20
"""The number of tokens that are kept for each dimension and state."""


class LargestTokens(Observer):
    """The 20 tokens at which each dimension of the residual stream has the largest magnitude, in every hidden state.

    Padding is left out, and so are batches that were made by hand and do not have the numbers of their rows. The tokens
    do not depend on how the text is divided into batches and parts: of equal magnitudes (`interp.run.largest`), the
    first in the corpus are kept. This takes 320 bytes per dimension and state.

    After `observe` there is the `table`.

    Examples:
        >>> from interp.corpora import batches
        >>> from interp.run.observers import observe
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

    def __init__(self, model: Model) -> None:
        super().__init__(model.W_U.device)
        self.model, self.states = model, range(model.cfg.n_layers + 1)
        for state in self.states:
            self.add_state(f"{state}.largest", (2, model.cfg.d_model, KEPT), "largest")

    def hooks(self, batch: Batch) -> Recipe:
        if batch.rows is None:
            return []
        real = batch.mask.bool()
        first = batch.rows.to(real.device) * int(self.model.cfg.n_ctx)
        places = (first[:, None] + torch.arange(real.shape[1], device=real.device))[real]
        names = [(state, state_name(self.model, state)) for state in self.states]
        return [hook for state, name in names for hook in jointly([name], partial(self._read, state, real, places))]

    def _read(self, state: int, real: Tensor, places: Tensor, stream: Float[Tensor, "batch pos d_model"]) -> None:
        name = f"{state}.largest"
        self.add(name, largest.of_values(stream[real], places, self.state[name]))

    def table(self, read: Batches, dims: Iterable[tuple[int, int]]) -> pd.DataFrame:
        """The tokens of some dimensions (dim, state, rank, activation, before, token, after, text, position); see
        `interp.corpora.contexts.in_context`.

        Args:
            read: the batches that were observed. If they do not have the numbers of their rows, the table is empty.
            dims: dimensions, each with a state.
        """
        rows = []
        for dim, state in dims if read.rows else ():
            activations, places = self.state[f"{state}.largest"][:, dim].cpu()
            for rank, place in enumerate(places[places >= 0].long().tolist()):
                rows.append((dim, state, rank + 1, float(activations[rank]), *divmod(place, int(self.model.cfg.n_ctx))))
        known = pd.DataFrame(rows, columns=[*CONTEXTS[:4], "row", "position"])
        known = known.astype(dict.fromkeys(known, "int64") | {"activation": "float64"})
        where = known[["row", "position"]].itertuples(index=False, name=None)
        return known[CONTEXTS[:4]].join(in_context(self.model, read, where))
