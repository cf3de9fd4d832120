"""One text: the attention patterns of a layer, and what one dimension contributes to their scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.checks import unicode_text
from interp.corpora.batching import tokenizer_of
from interp.models import check_weights
from interp.models.head import token_names
from interp.models.qk import check_dims, qk_circuit
from interp.models.running import running
from interp.models.sites import Model, hook_name


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


@torch.no_grad()
def attention_in_text(model: Model, text: str, layer: int, dim: int) -> AttentionInText:
    """The attention patterns of a layer on a text, beside what one dimension of the key contributes to their scores.

    Special tokens are those that the tokenizer adds.

    Raises ValueError for a layer or dimension that does not exist, where scores are no sum over dimensions, for a model
    without tokenizer or with weights that are not finite, and for a text without tokens or longer than the context.
    """
    check_dims(model, [dim])
    check_weights(model)
    circuit = qk_circuit(model, layer)
    tokens = tokenizer_of(model)(unicode_text(text, "text"), return_tensors="pt")["input_ids"].to(model.W_U.device)
    length = tokens.shape[1]
    if not 1 <= length <= model.cfg.n_ctx:
        raise ValueError(f"text has {length} tokens; expected 1 … {model.cfg.n_ctx} for this model")
    seen: dict[str, Tensor] = {}

    def keep(key: str) -> Any:
        return lambda activation, hook: seen.update({key: activation})

    names = {"input": circuit.input_name, "q": circuit.query_name, "pattern": hook_name(model, "pattern", layer)}
    with running(model, [(name, keep(key)) for key, name in names.items()]):
        model(tokens)
    x = circuit.attn_input(seen["input"])
    direction = circuit.rotate(circuit.W_K[:, dim].expand(1, length, -1, -1))[0]
    scores = torch.einsum("mhe,nhe->hmn", seen["q"][0], direction) * x[0, :, dim] / circuit.scale
    visible = circuit.span.mask(length).to(scores.device)
    centred = (scores - (scores * visible).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)) * visible
    pattern, contribution = (values.float().cpu().numpy() for values in (seen["pattern"][0], centred))
    names_of_tokens = token_names(model, tokens[0].tolist())
    return AttentionInText(names_of_tokens, layer, dim, pattern, contribution, circuit.span.causal)
