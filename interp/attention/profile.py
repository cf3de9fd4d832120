"""Statistics of every dimension of the residual stream: by token class, and against frequency and attention."""

import os
from functools import partial, reduce
from typing import Literal, TypeAlias

import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from interp.attention.keys import KeyClassBatch, KeyObserver, attention_hooks, table_of
from interp.checks import check_table
from interp.corpora import token_classes
from interp.corpora.batching import Batch, Text
from interp.corpora.classes import KeyClasses, TokenClasses
from interp.hooks import jointly
from interp.models.qk import qk_circuit
from interp.models.sites import Model, Recipe, state_name
from interp.run import moments
from interp.run.observers import Observer, fingerprint

__all__ = ["DimensionCorrelations", "DimensionProfile", "check_k", "dimension_profile", "find_outliers"]

_Of: TypeAlias = Literal["residual", "attn_input"]


class DimensionProfile(KeyObserver):
    """Mean, SD and largest magnitude of every dimension by token class: of the residual stream, or of what attention
    reads.

    After `observe`: `table`, which `dimension_profile` describes.
    """

    def __init__(self, model: Model, classes: TokenClasses, *, of: _Of = "residual") -> None:
        super().__init__(model, classes, range(model.cfg.n_layers + (of == "residual")), of=of)
        self.of = of
        shape = (len(classes.names), model.cfg.d_model)
        for state in self.layers:
            self.add_state(f"{state}.moments", (moments.ROWS[1], *shape), "moments")
            self.add_state(f"{state}.max_abs", shape, "max")

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        if self.of == "residual":
            return jointly([state_name(self.model, layer)], partial(self._read, layer, keys))
        circuit = qk_circuit(self.model, layer)
        names = circuit.input_name, circuit.query_name  # of these only the second fires once in every model
        return jointly(names, lambda x, q: self._read(layer, keys, circuit.attn_input(x)))

    def _read(self, state: int, keys: KeyClassBatch, activation: Tensor) -> None:
        one_hot = keys.counts[keys.real]
        x = activation[keys.real].to(one_hot)
        largest = torch.full_like(self.state[f"{state}.max_abs"], -torch.inf)
        for number in one_hot.any(0).nonzero()[:, 0].tolist():
            largest[number] = x[one_hot[:, number].bool()].abs().amax(0)
        self.add(f"{state}.max_abs", largest)
        self.add(f"{state}.moments", moments.by_group(x, one_hot))

    @property
    def table(self) -> pd.DataFrame:
        """One row for each state, class and dimension, with the class `all` too."""
        by_class, largest = (self.of_layers(name)[..., self.present, :] for name in ("moments", "max_abs"))
        by_class = rearrange(by_class, "layer part key_class dim -> part layer key_class dim")
        every = reduce(moments.merged, by_class.unbind(2))
        found = torch.cat([by_class, every[:, :, None]], 2)
        largest = torch.cat([largest, largest.amax(1, keepdim=True)], 1)
        keys = {"state": self.layers, "key_class": [*self.names, "all"], "dim": range(largest.shape[2])}
        columns = {"mean": moments.mean(found), "sd": moments.variance(found).sqrt(), "max_abs": largest}
        table = table_of(keys, columns | {"n_tokens": found[0].long()})
        return table[["state", "dim", *table.columns.drop(["state", "dim"])]]


class DimensionCorrelations(Observer):
    """Correlation of each dimension of the attention input with log u of the token and with the attention it receives.

    After `observe`: `table` (layer, dim, log_unigram, attention_received, n_tokens), Pearson correlations over
    tokens. The attention a token receives is averaged over heads and over the queries that see it.
    """

    def __init__(self, model: Model, log_unigram: Float[Tensor, " d_vocab"]) -> None:
        super().__init__(model.W_U.device, log_unigram=fingerprint(log_unigram))
        self.model, self.log_unigram, self.layers = model, log_unigram.double(), range(model.cfg.n_layers)
        for layer in self.layers:
            self.add_state(f"{layer}.moments", (moments.ROWS[2], 2, model.cfg.d_model), "moments")

    def hooks(self, batch: Batch) -> Recipe:
        log_u = self.log_unigram.to(batch.tokens.device)[batch.tokens][batch.mask.bool()]
        return [hook for layer in self.layers for hook in self._hooks(layer, batch, log_u)]

    def _hooks(self, layer: int, batch: Batch, log_u: Tensor) -> Recipe:
        circuit, real = qk_circuit(self.model, layer), batch.mask.bool()

        def read(attention: Tensor, x: Tensor) -> None:
            attention = attention.mean(1)
            viewers = circuit.span.up_to(real.flip(1).to(attention.dtype)).flip(1)
            y = torch.stack([log_u, (attention / viewers.clamp(min=1))[real].double()], 1)
            self.add(f"{layer}.moments", moments.of_pairs(circuit.attn_input(x)[real].double(), y))

        return attention_hooks(self.model, layer, batch, read, "input")

    @property
    def table(self) -> pd.DataFrame:
        found = torch.stack([self.state[f"{layer}.moments"] for layer in self.layers], 1)
        frequency, attention = moments.correlation(found).unbind(1)
        columns = {"log_unigram": frequency, "attention_received": attention, "n_tokens": found[0, :, 0].long()}
        return table_of({"layer": self.layers, "dim": range(self.model.cfg.d_model)}, columns)


def dimension_profile(
    model: Model,
    text_or_batches: Text,
    *,
    key_classes: KeyClasses = None,
    batch_size: int | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Mean, SD and largest magnitude of every dimension of the residual stream, by state and token class.

    State 0 is the embeddings and state L + 1 the residual stream after block L (Hugging Face's `hidden_states`,
    except that its last one is after the final norm in causal models). SDs are over tokens (population).

    Returns the table `dims` (state, dim, key_class, mean, sd, max_abs, n_tokens), with the class `all` too; a class
    without a token in the text has no row.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> table = dimension_profile(toy_decoder(), ["w0 w1 w2"] * 20, key_classes={"first": [7, 8]}, progress=False)
        >>> table["key_class"].unique().tolist()
        ['first', 'other', 'all']
    """
    observer = DimensionProfile(model, token_classes(model, key_classes))
    observer.read(text_or_batches, batch_size=batch_size, progress=progress, checkpoint=checkpoint)
    return observer.table


def find_outliers(profile: pd.DataFrame, *, k: float | int = 3.0) -> pd.DataFrame:
    """The dimensions whose mean lies more than k SDs from the mean over dimensions: `|mean_j − μ| > k σ`.

    μ and σ (population) are over the dimensions of a state, of means over all tokens.

    Args:
        profile: the table of `dimension_profile`.
        k: 3 is our choice; the paper reads outliers off a figure.

    Returns the table `outliers` (dim, state, mean, z, rank, n_states): one row for each state in which a dimension is
    an outlier; `rank` 1 is the dimension that is one in most states, ties by the largest |z|.

    Raises ValueError for a k that is not above 0, and for a table with values missing or of two runs.
    """
    check_k(k)
    key = ["state", "dim", "key_class"]
    check_table(profile, "profile", [*key, "mean"], key)
    table = profile.loc[profile["key_class"] == "all", ["dim", "state", "mean"]]
    means = table.groupby("state")["mean"]
    sd = means.transform("std", ddof=0)
    table = table.assign(z=(table["mean"] - means.transform("mean")) / sd.where(sd > 0))
    table = table[table["z"].abs() > k]
    sizes = table["z"].abs().groupby(table["dim"])
    of_dim = pd.DataFrame({"n_states": sizes.count(), "largest": sizes.max()})
    of_dim = of_dim.sort_values(["n_states", "largest"], ascending=False).assign(rank=range(1, len(of_dim) + 1))
    table = table.join(of_dim[["rank", "n_states"]], on="dim")
    return table.sort_values(["rank", "state"]).reset_index(drop=True)


def check_k(k: float | int) -> None:
    """Raise ValueError unless k is above 0."""
    if not k > 0:
        raise ValueError(f"k must be above 0, found {k}")
