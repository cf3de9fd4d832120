"""Statistics of every dimension of the residual stream: by token class, and against frequency and attention."""

import os
from functools import reduce
from typing import Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.scores import KeyClassBatch, warn_of_absent
from interp.checks import check_table
from interp.corpora import Batch, KeyClasses, Text, TokenClasses, as_batches, token_classes
from interp.models.qk import qk_circuit
from interp.models.sites import Model, Recipe, hook_name, state_name
from interp.run import moments
from interp.run.observers import Observer, fingerprint, observe


class DimensionProfile(Observer):
    """Mean, SD and largest magnitude of every dimension by token class: of the residual stream, or of what attention
    reads.

    After `observe`: `table`, which `dimension_profile` describes.
    """

    def __init__(
        self, model: Model, classes: TokenClasses, *, of: Literal["residual", "attn_input"] = "residual"
    ) -> None:
        super().__init__(model.W_U.device, of=of, **classes.describe(model.cfg.d_vocab))
        self.model, self.classes, self.of = model, classes, of
        self.n_states = model.cfg.n_layers + (of == "residual")
        shape = (len(classes.names), model.cfg.d_model)
        for state in range(self.n_states):
            self.add_state(f"{state}.moments", (moments.ROWS[1], *shape), "moments")
            self.add_state(f"{state}.max_abs", shape, "max")

    def hooks(self, batch: Batch) -> Recipe:
        keys = KeyClassBatch(batch, self.classes, torch.float64)
        one_hot = keys.one_hot[keys.real]
        return [hook for state in range(self.n_states) for hook in self._hooks(state, keys, one_hot)]

    def _hooks(self, state: int, keys: KeyClassBatch, one_hot: Tensor) -> Recipe:
        def read(activation: Tensor, hook: object) -> None:
            x = activation[keys.real].to(one_hot.dtype)
            largest = torch.full_like(self.state[f"{state}.max_abs"], -torch.inf)
            for number in keys.numbers[keys.real].unique().tolist():
                largest[number] = x[one_hot[:, number].bool()].abs().amax(0)
            self.add(f"{state}.max_abs", largest)
            self.add(f"{state}.moments", moments.by_group(x, one_hot))

        if self.of == "residual":
            return [(state_name(self.model, state), read)]
        circuit = qk_circuit(self.model, state)
        seen: list[Tensor] = []
        return [
            (circuit.input_name, lambda activation, hook: seen.append(activation)),
            (circuit.query_name, lambda q, hook: read(circuit.attn_input(seen[-1]), hook)),
        ]

    @property
    def table(self) -> pd.DataFrame:
        """One row a state, class and dimension, and the class `all`."""
        present = self.state["0.moments"][0, :, 0].nonzero()[:, 0].tolist()
        if not present:
            raise ValueError("no token was read; observe a corpus first")
        members = {self.classes.names[i]: [i] for i in present} | {"all": present}
        parts = []
        for state in range(self.n_states):
            by_class, largest = (self.state[f"{state}.{name}"].cpu() for name in ("moments", "max_abs"))
            for name, rows in members.items():
                found = reduce(moments.merged, by_class[:, rows].unbind(1))
                mean, sd = moments.mean(found), moments.variance(found).sqrt()
                columns = {"mean": mean, "sd": sd, "max_abs": largest[rows].amax(0)}
                values = {column: value.numpy() for column, value in columns.items()}
                where = {"state": state, "dim": np.arange(len(mean)), "key_class": name}
                parts.append(pd.DataFrame(where | values | {"n_tokens": int(found[0, 0])}))
        return pd.concat(parts, ignore_index=True)


class DimensionCorrelations(Observer):
    """Correlation of each dimension of the attention input with log u of the token and with the attention it receives.

    After `observe`: `table` (layer, dim, log_unigram, attention_received, n_tokens), Pearson correlations over
    tokens. The attention a token receives is averaged over heads and over the queries that see it.
    """

    def __init__(self, model: Model, log_unigram: Float[Tensor, " d_vocab"]) -> None:
        super().__init__(model.W_U.device, log_unigram=fingerprint(log_unigram))
        self.model, self.log_unigram = model, log_unigram.double()
        d_model = model.cfg.d_model
        for layer in range(model.cfg.n_layers):
            self.add_state(f"{layer}.moments", (moments.ROWS[2], 2, d_model), "moments")

    def hooks(self, batch: Batch) -> Recipe:
        y = self.log_unigram.to(batch.tokens.device)[batch.tokens]
        return [hook for layer in range(self.model.cfg.n_layers) for hook in self._hooks(layer, batch.mask.bool(), y)]

    def _hooks(self, layer: int, real: Tensor, log_u: Tensor) -> Recipe:
        circuit = qk_circuit(self.model, layer)
        seen: dict[str, Tensor] = {}

        def read_input(activation: Tensor, hook: object) -> None:
            seen["input"] = activation

        def read_pattern(pattern: Tensor, hook: object) -> None:
            x = circuit.attn_input(seen.pop("input"))[real].double()
            received = (
                (pattern.to(torch.promote_types(pattern.dtype, torch.float32)) * real[:, None, :, None]).sum(2).mean(1)
            )
            viewers = circuit.span.up_to(real.flip(1).to(received.dtype)).flip(1)
            y = torch.stack([log_u[real], (received / viewers.clamp(min=1))[real].double()], 1)
            self.add(f"{layer}.moments", moments.of_pairs(x, y))

        return [(circuit.input_name, read_input), (hook_name(self.model, "pattern", layer), read_pattern)]

    @property
    def table(self) -> pd.DataFrame:
        parts = []
        for layer in range(self.model.cfg.n_layers):
            found = self.state[f"{layer}.moments"].cpu()
            r = moments.correlation(found).numpy()
            columns = {"layer": layer, "dim": np.arange(r.shape[1]), "log_unigram": r[0], "attention_received": r[1]}
            parts.append(pd.DataFrame(columns | {"n_tokens": int(found[0, 0, 0])}))
        return pd.concat(parts, ignore_index=True)


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
    """
    classes = token_classes(model, key_classes)
    observer = DimensionProfile(model, classes)
    prepared = as_batches(model, text_or_batches, batch_size=batch_size)
    observe(model, prepared, observer, progress=progress, checkpoint=checkpoint)
    table = observer.table
    warn_of_absent(classes, table["key_class"])
    return table


def find_outliers(profile: pd.DataFrame, *, k: float | int = 3.0) -> pd.DataFrame:
    """The dimensions whose mean lies more than k SDs from the mean over dimensions: `|mean_j − μ| > k σ`.

    μ and σ (population) are over the dimensions of a state, of means over all tokens.

    Args:
        profile: the table of `dimension_profile`.
        k: 3 is our choice; the paper reads outliers off a figure.

    Returns the table `outliers` (dim, state, mean, z, rank, n_states): one row a state in which a dimension is an
    outlier; `rank` 1 is the dimension that is one in most states, ties by the largest |z|.

    Raises ValueError for a k that is not above 0, and for a table with values missing or of two runs.
    """
    check_k(k)
    key = ["state", "dim", "key_class"]
    check_table(profile, "profile", [*key, "mean"], key)
    table = profile.loc[profile["key_class"] == "all", ["dim", "state", "mean"]].copy()
    by_state = table.groupby("state")["mean"]
    deviation = table["mean"] - by_state.transform("mean")
    table["z"] = deviation / by_state.transform("std", ddof=0).where(lambda sd: sd > 0)
    table = table[table["z"].abs() > k]
    of_dim = table.assign(size=table["z"].abs()).groupby("dim")["size"].agg(["count", "max"])
    order = of_dim.sort_values(["count", "max"], ascending=False).index
    ranks = pd.Series(np.arange(1, len(order) + 1), index=order)
    table = table.assign(rank=table["dim"].map(ranks).astype(int), n_states=table["dim"].map(of_dim["count"]))
    return table.sort_values(["rank", "state"]).reset_index(drop=True)


def check_k(k: float | int) -> None:
    """Raise ValueError unless k is above 0."""
    if not k > 0:
        raise ValueError(f"k must be above 0, found {k}")
