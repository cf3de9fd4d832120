"""Where attention goes: by class of the key, per layer and head, and in one text."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.keys import KeyClassBatch, KeyObserver, activations, received
from interp.corpora import token_classes
from interp.corpora.batching import Text
from interp.corpora.classes import KeyClasses, TokenClasses
from interp.corpora.sentences import sentence_rows
from interp.hooks import jointly
from interp.models.head import token_names
from interp.models.qk import check_dims, check_layers, span
from interp.models.sites import Model, Recipe, hook_name

__all__ = ["AttentionByClass", "AttentionInText", "attention_by_class", "attention_in_text"]


class AttentionByClass(KeyObserver):
    """Sums of attention probabilities, and of value-weighted ones, by layer, head and class of the key.

    After `observe`: `table`, which `attention_by_class` describes.

    Raises ValueError for a layer that does not exist.
    """

    def __init__(self, model: Model, classes: TokenClasses, *, layers: Sequence[int] | None = None) -> None:
        chosen = check_layers(model, layers)
        super().__init__(model, classes, chosen, layers=chosen)
        shape = (model.cfg.n_heads, len(classes.names))
        self.add_to_layers(attention=shape, norm=shape, uniform=shape[1:], pairs=shape[1:])

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        names = hook_name(self.model, "v", layer), hook_name(self.model, "pattern", layer)
        return jointly(names, partial(self._read, layer, keys))

    def _read(self, layer: int, keys: KeyClassBatch, v: Tensor, pattern: Tensor) -> None:
        W_O = self.model.blocks[layer].attn.W_O.to(keys.one_hot.dtype)
        gram = torch.einsum("hed,hfd->hef", W_O, W_O)
        v = v.to(W_O).repeat_interleave(W_O.shape[0] // v.shape[2], 2)
        size = torch.einsum("bnhe,hef,bnhf->bhn", v, gram, v).clamp(min=0).sqrt()
        attention = received(pattern.to(W_O), keys.real)
        self.add(f"{layer}.attention", keys.by_class(attention))
        self.add(f"{layer}.norm", keys.by_class(attention * size))
        counts = span(self.model, layer).up_to(keys.counts) * keys.real[..., None]
        self.add(f"{layer}.pairs", counts.sum((0, 1)))
        self.add(f"{layer}.uniform", (counts / counts.sum(-1, keepdim=True).clamp(min=1)).sum((0, 1)))

    def by_class(self, layer: int) -> Float[np.ndarray, "head classes"]:
        """Attention summed over the keys of a class, averaged over queries."""
        return self.per_query(f"{layer}.attention")

    @property
    def table(self) -> pd.DataFrame:
        """One row a layer, head and class; classes without a token have none."""
        present, queries = self.present, self.tokens.sum()
        attention, norm = (self.of_layers(name)[..., present] for name in ("attention", "norm"))
        uniform, pairs = (self.of_layers(name)[:, None, present] for name in ("uniform", "pairs"))
        columns = {"sum": attention / queries, "mean": attention / pairs, "norm_weighted": norm / queries}
        return self.by_head(columns | {"uniform": uniform / queries, "n_queries": queries.long()})


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
    observer = AttentionByClass(model, token_classes(model, key_classes), layers=layers)
    observer.read(text_or_batches, batch_size=batch_size, progress=progress, checkpoint=checkpoint)
    return observer.table


@dataclass(frozen=True, eq=False)
class AttentionInText:
    """What `attention_in_text` found.

    `pattern` holds attention probabilities. `contribution` is what dimension `dim` of the key adds to each score, in
    nats (divided by √d_head as the model does), less its mean over the keys that the query sees; 0 at keys that it does
    not see. `causal`: a query sees no key after itself.
    """

    tokens: list[str]
    layer: int
    dim: int
    pattern: Float[np.ndarray, "head query key"]
    contribution: Float[np.ndarray, "head query key"]
    causal: bool


def attention_in_text(model: Model, text: str, layer: int, dim: int, *, bos: bool | None = None) -> AttentionInText:
    """The attention patterns of a layer on a text, beside what one dimension of the key contributes to their scores.

    Args:
        bos: whether the beginning-of-sequence token stands before the text; by default where the model was trained so
            (`cfg.default_prepend_bos`). An encoder reads `[CLS] … [SEP]`.

    Raises ValueError for a layer or dimension that does not exist, where scores are no sum over dimensions, for a model
    without tokenizer or with weights that are not finite, and for a text without tokens or longer than the context.
    """
    check_dims(model, [dim])
    (ids,) = sentence_rows(model, [text], bos=bos)
    ((circuit, x, q, seen),) = activations(model, torch.tensor(ids), [layer], "pattern")
    direction = circuit.rotate(circuit.W_K[:, dim].expand(1, len(ids), -1, -1))[0]
    scores = torch.einsum("mhe,nhe->hmn", q, direction) * x[:, dim] / circuit.scale
    visible = circuit.span.mask(len(ids)).to(scores.device)
    centred = (scores - (scores * visible).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)) * visible
    pattern, contribution = (values.float().cpu().numpy() for values in (seen, centred))
    return AttentionInText(token_names(model, ids), layer, dim, pattern, contribution, circuit.span.causal)
