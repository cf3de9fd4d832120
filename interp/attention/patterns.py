"""Where attention goes: by class of the key, per layer and head."""

import os
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.scores import KeyClassBatch, warn_of_absent
from interp.corpora import Batch, KeyClasses, Text, TokenClasses, as_batches, token_classes
from interp.models.qk import check_layers, span
from interp.models.sites import Model, Recipe, hook_name
from interp.run.observers import Observer, observe


class AttentionByClass(Observer):
    """Sums of attention probabilities, and of value-weighted ones, by layer, head and class of the key.

    After `observe`: `table`, which `attention_by_class` describes.

    Raises ValueError for a layer that does not exist.
    """

    def __init__(self, model: Model, classes: TokenClasses, *, layers: Sequence[int] | None = None) -> None:
        self.layers = check_layers(model, layers)
        super().__init__(model.W_U.device, layers=self.layers, **classes.describe(model.cfg.d_vocab))
        self.model, self.classes = model, classes
        n_classes = len(classes.names)
        for layer in self.layers:
            self.add_state(f"{layer}.attention", (model.cfg.n_heads, n_classes))
            self.add_state(f"{layer}.norm", (model.cfg.n_heads, n_classes))
            self.add_state(f"{layer}.uniform", (n_classes,))
            self.add_state(f"{layer}.pairs", (n_classes,))
        self.add_state("queries", ())

    def hooks(self, batch: Batch) -> Recipe:
        keys = KeyClassBatch(batch, self.classes, self.model.W_U.dtype)
        self.add("queries", keys.real.sum())
        recipe: Recipe = []
        for layer in self.layers:
            recipe += self._hooks(layer, keys)
        return recipe

    def _hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        seen: dict[str, Tensor] = {}

        def read_value(v: Tensor, hook: object) -> None:
            seen["v"] = v

        def read_pattern(pattern: Tensor, hook: object) -> None:
            W_O = self.model.blocks[layer].attn.W_O.to(keys.one_hot.dtype)
            gram = torch.einsum("hed,hfd->hef", W_O, W_O)
            v, pattern = seen.pop("v").to(W_O), pattern.to(W_O)
            v = v.repeat_interleave(W_O.shape[0] // v.shape[2], 2)
            size = torch.einsum("bnhe,hef,bnhf->bhn", v, gram, v).clamp(min=0).sqrt()
            received = (pattern * keys.real[:, None, :, None]).sum(2)
            self.add(f"{layer}.attention", torch.einsum("bhn,bnc->hc", received, keys.one_hot))
            self.add(f"{layer}.norm", torch.einsum("bhn,bnc->hc", received * size, keys.one_hot))
            counts = span(self.model, layer).up_to(keys.counts) * keys.real[..., None]
            self.add(f"{layer}.pairs", counts.sum((0, 1)))
            self.add(f"{layer}.uniform", (counts / counts.sum(-1, keepdim=True).clamp(min=1)).sum((0, 1)))

        return [
            (hook_name(self.model, "v", layer), read_value),
            (hook_name(self.model, "pattern", layer), read_pattern),
        ]

    def by_class(self, layer: int) -> Float[np.ndarray, "head classes"]:
        """Attention summed over the keys of a class, averaged over queries."""
        if not self.state["queries"]:
            raise ValueError("no query was read; observe a corpus first")
        return (self.state[f"{layer}.attention"] / self.state["queries"]).cpu().numpy()

    @property
    def table(self) -> pd.DataFrame:
        """One row a layer, head and class; classes without a token have none."""
        queries = self.state["queries"].item()
        rows = []
        for layer in self.layers:
            attention = self.by_class(layer)
            norm, uniform, pairs = (
                self.state[f"{layer}.{name}"].cpu().numpy() for name in ("norm", "uniform", "pairs")
            )
            for head in range(len(attention)):
                for number in np.flatnonzero(pairs):
                    values = attention[head, number], attention[head, number] * queries / pairs[number]
                    more = norm[head, number] / queries, uniform[number] / queries
                    rows.append((layer, head, self.classes.names[number], *values, *more, int(queries)))
        columns = ["layer", "head", "key_class", "sum", "mean", "norm_weighted", "uniform", "n_queries"]
        return pd.DataFrame(rows, columns=columns)


def attention_by_class(
    model: Model,
    text_or_batches: Text,
    *,
    layers: Sequence[int] | None = None,
    key_classes: KeyClasses = None,
    batch_size: int | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """How much attention goes to each class of key, per layer and head.

    Returns the table `attention` (layer, head, key_class, sum, mean, norm_weighted, uniform, n_queries): `sum` is the
    attention to a class summed over its keys, averaged over all queries (Clark et al. 2019), so that it adds up to 1
    over the classes; `mean` the average over (query, key) pairs; `norm_weighted` the sum of `‖α v W_O‖` averaged over
    queries (Kobayashi et al. 2020); `uniform` what `sum` would be if attention were uniform over the keys a query sees.

    Raises ValueError for a layer that does not exist, padding on the left and a class function that returns something
    else than a class for each token.
    """
    classes = token_classes(model, key_classes)
    observer = AttentionByClass(model, classes, layers=layers)
    prepared = as_batches(model, text_or_batches, batch_size=batch_size)
    observe(model, prepared, observer, progress=progress, checkpoint=checkpoint)
    table = observer.table
    warn_of_absent(classes, table["key_class"])
    return table
