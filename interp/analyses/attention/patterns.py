"""Where attention goes: in one text, and by class of the key."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.corpora import token_classes
from interp.corpora.batching import Text
from interp.corpora.classes import KeyClasses, TokenClasses
from interp.corpora.sentences import sentence_rows
from interp.instruments.keys import GroupedKeyObserver, KeyClassBatch, activations, attention_hooks, table_of
from interp.models.qk import check_dims, check_layers
from interp.models.sites import Model, Recipe, view
from interp.models.spelling import token_names
from interp.models.verify import verify_values
from interp.support.choices import Bos, Several

__all__ = ["AttentionByClass", "AttentionInText", "attention_by_class", "attention_in_text"]
__dir__ = __all__.copy


@dataclass(frozen=True, eq=False)
class AttentionInText:
    """The result of `attention_in_text`.

    `pattern` has the attention probabilities. `contribution` is what dimension `dim` of the key adds to each score, in
    nats (divided by √d_head as in the model), minus its mean over the keys that the query sees; it is 0 at keys that
    the query does not see. `causal` means that a query sees no key after itself.
    """

    tokens: list[str]
    layer: int
    dim: int
    pattern: Float[np.ndarray, "head query key"]
    contribution: Float[np.ndarray, "head query key"]
    causal: bool


def attention_in_text(model: Model, text: str, layer: int, dim: int, *, bos: Bos = "auto") -> AttentionInText:
    """Return the attention patterns of a layer on a text, and the contribution of one dimension of the key to the
    scores.

    Args:
        bos: whether to put the beginning-of-sequence token before the text. `"auto"`: see `interp.corpora.batches`. An
            encoder reads `[CLS] … [SEP]`.

    Raises ValueError for a layer or dimension that does not exist, for a model whose scores are not sums over
    dimensions, that has no tokenizer or whose weights are not finite, and for a text without tokens or longer than the
    context.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> attention_in_text(toy_decoder(), "w1 w2 w3", layer=1, dim=5, bos=True).pattern.shape
        (4, 4, 4)
    """
    check_dims(model, [dim])
    (ids,) = sentence_rows(model, [text], bos=bos)
    ((circuit, x, q, probabilities),) = activations(model, torch.tensor(ids), [layer])
    direction = circuit.at_positions(circuit.W_K[:, dim][None], len(ids))[0]
    scores = einsum(q, direction, "query head d_head, key head d_head -> head query key") * x[:, dim] / circuit.scale
    visible = circuit.span.mask(len(ids)).to(scores.device)
    centred = (scores - (scores * visible).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)) * visible
    pattern = probabilities.float().cpu().numpy()
    contribution = centred.float().cpu().numpy()
    return AttentionInText(token_names(model, ids), layer, dim, pattern, contribution, circuit.span.causal)


class AttentionByClass(GroupedKeyObserver):
    """Sums of attention probabilities, plain and weighted by values, by layer, head and class of the key.

    After `observe` there are the `table` described in `attention_by_class`, and `by_layer`, its mean over heads.

    Raises ValueError for a layer that does not exist.
    """

    axes: ClassVar = {
        "{}.norm": "n_heads classes", "{}.uniform": "classes", "{}.pairs": "classes",
        "{}.attention": "groups n_heads classes",
    }  # fmt: skip

    def __init__(self, model: Model, classes: TokenClasses, *, layers: Several[int] | None = None) -> None:
        chosen = check_layers(model, layers)
        super().__init__(model, classes, chosen, layers=chosen)
        self.moves_values = _moves_values(model)
        self.add_to_layers()

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        return attention_hooks(self.model, layer, keys.batch, partial(self._read, layer, keys), "v")

    def _read(self, layer: int, keys: KeyClassBatch, attention: Tensor, v: Tensor) -> None:
        W_O = view(self.model).W_O(layer).to(keys.one_hot)
        gram = einsum(W_O, W_O, "head d_head d_model, head other d_model -> head d_head other")
        v = v.to(W_O).repeat_interleave(W_O.shape[0] // v.shape[2], 2)
        squares = einsum(v, gram, v, "batch key head d_head, head d_head other, batch key head other -> batch head key")
        size = squares.clamp(min=0).sqrt()
        attention = attention.to(W_O)
        self.add_rows(f"{layer}.attention", keys.by_row(attention), keys.batch)
        self.add(f"{layer}.norm", keys.by_row(attention * size).sum(0))
        counts = view(self.model).attention(layer).span.up_to(keys.counts) * keys.real[..., None]
        self.add(f"{layer}.pairs", counts.sum((0, 1)))
        self.add(f"{layer}.uniform", (counts / counts.sum(-1, keepdim=True).clamp(min=1)).sum((0, 1)))

    def by_class(self, layer: int) -> Float[np.ndarray, "head classes"]:
        """Sum attention over the keys of a class, and average it over queries."""
        return (self.state[f"{layer}.attention"].sum(0) / self.tokens.sum()).cpu().numpy()

    @property
    def table(self) -> pd.DataFrame:
        """One row per layer, head and class. Classes without tokens have no rows."""
        return self.by_head(self._sums(lambda attention: attention) | self._others)

    @property
    def by_layer(self) -> pd.DataFrame:
        """Means over heads: one row per layer and class that is present."""
        columns = self._sums(lambda attention: attention.mean(-2))
        means = self._others
        for name in ("mean", "norm_weighted", "uniform"):
            columns[name] = means[name].mean(1)
        return table_of({"layer": self.layers, "key_class": self.names}, columns)

    @property
    def _others(self) -> dict[str, Tensor]:
        """The columns without intervals."""
        present = self.present
        queries = self.tokens.sum()
        attention = self.of_layers("attention").sum(1)[..., present]
        norm = self.of_layers("norm")[..., present]
        uniform = self.of_layers("uniform")[:, None, present]
        pairs = self.of_layers("pairs")[:, None, present]
        weighted = norm / queries if self.moves_values else torch.full_like(norm, torch.nan)
        return {
            "mean": attention / pairs, "norm_weighted": weighted, "uniform": uniform / queries,
            "n_queries": queries.long(),
        }  # fmt: skip

    def _sums(self, select: Callable[[np.ndarray], np.ndarray]) -> dict[str, Tensor]:
        """A function of the attention by layer, head and class, averaged over queries, with its interval."""
        sums = np.stack([self.by_group(layer, "attention") for layer in self.layers], 1)[..., self.present]
        interval = self.jackknife(lambda attention, queries: attention / queries, select(sums), self.queries)
        ends = {"sum": interval.value, "sum_low": interval.low.clip(0), "sum_high": interval.high.clip(max=1)}
        return {name: torch.from_numpy(values) for name, values in ends.items()}


def _moves_values(model: Model) -> bool:
    """Whether the output of a head is its values weighted by attention, with no norm or gate in between."""
    try:
        verify_values(model)
    except ValueError:
        return False
    return True


def attention_by_class(
    model: Model,
    text_or_batches: Text,
    *,
    layers: Several[int] | None = None,
    key_classes: KeyClasses = None,
    batch_size: int | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Measure how much attention goes to each class of key, by layer and head.

    Returns the table `attention` of an `AttentionStudy`: `sum` as in Clark et al. (2019), with intervals by leaving out
    groups of texts (`interp.results.intervals.jackknife`), and `norm_weighted` as in Kobayashi et al. (2020), which is
    NaN for a bridge with a norm or gate between the values and W_O.

    Raises ValueError for a layer that does not exist, for padding on the left, and for a class function that does not
    return one class per token.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> table = attention_by_class(toy_decoder(), ["w0 w1 w2"] * 20, key_classes={"first": [7, 8]}, progress=False)
        >>> table["key_class"].unique().tolist()
        ['first', 'other']
    """
    observer = AttentionByClass(model, token_classes(model, key_classes), layers=layers)
    observer.read(text_or_batches, batch_size=batch_size, progress=progress, checkpoint=checkpoint)
    return observer.table
