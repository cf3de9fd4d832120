"""One text: the attention patterns of a layer, and what one dimension contributes to their scores."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from interp.attention.keys import activations
from interp.checks import unicode_text
from interp.corpora.batching import tokenizer_of
from interp.models.head import token_names
from interp.models.qk import check_dims
from interp.models.sites import Model

__all__ = ["AttentionInText", "attention_in_text"]


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


def attention_in_text(model: Model, text: str, layer: int, dim: int) -> AttentionInText:
    """The attention patterns of a layer on a text, beside what one dimension of the key contributes to their scores.

    Special tokens are those that the tokenizer adds.

    Raises ValueError for a layer or dimension that does not exist, where scores are no sum over dimensions, for a model
    without tokenizer or with weights that are not finite, and for a text without tokens or longer than the context.
    """
    check_dims(model, [dim])
    tokens = tokenizer_of(model)(unicode_text(text, "text"), return_tensors="pt")["input_ids"][0]
    length = len(tokens)
    if not 1 <= length <= model.cfg.n_ctx:
        raise ValueError(f"text has {length} tokens; expected 1 … {model.cfg.n_ctx} for this model")
    ((circuit, x, q, seen),) = activations(model, tokens, [layer], "pattern")
    direction = circuit.rotate(circuit.W_K[:, dim].expand(1, length, -1, -1))[0]
    scores = torch.einsum("mhe,nhe->hmn", q, direction) * x[:, dim] / circuit.scale
    visible = circuit.span.mask(length).to(scores.device)
    centred = (scores - (scores * visible).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)) * visible
    pattern, contribution = (values.float().cpu().numpy() for values in (seen, centred))
    names = token_names(model, tokens.tolist())
    return AttentionInText(names, layer, dim, pattern, contribution, circuit.span.causal)
