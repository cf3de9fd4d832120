"""Attention scores by dimension of the residual stream, as tables of a text or of one sequence.

See `interp.instruments.scores` for the formula.
"""

import os

import pandas as pd
import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from interp.corpora import token_classes
from interp.corpora.batching import Text, check_ids
from interp.corpora.classes import KeyClasses
from interp.instruments.keys import activations
from interp.instruments.scores import ScoreContributions
from interp.models.qk import QKCircuit, check_layers
from interp.models.sites import Model, check_model
from interp.support.choices import Average, Several, Weights

__all__ = ["check_decomposition", "score_contributions", "score_contributions_at"]
__dir__ = __all__.copy

_LEAST_COMPARED = 1e-30


def score_contributions(
    model: Model,
    text_or_batches: Text,
    *,
    layers: Several[int] | None = None,
    key_classes: KeyClasses = None,
    weights: Weights = "mean",
    scaled: bool = False,
    centred: bool = True,
    average: Average = "pair",
    batch_size: int | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Compute the mean contribution of each residual dimension of the key to the score, by layer, head and key class.

    For a query at m and a key at n, `C_j = [(x_m W_Q + b_Q) W_Kᵀ]_j x_nj` (Maruta and Matsuzaki, eq. 6), where x is the
    attention input. With RoPE, `C_j = [W_K R_nᵀ R_m q_m]_j x_nj`. Contributions are to the numerator of the score,
    unless `scaled` divides them by √d_head (TransformerLens' `attn_scale`), which gives nats. Pairs are those that the
    model's mask allows; padding never counts.

    Args:
        text_or_batches: anything `interp.corpora.batches` takes, or its batches.
        layers: TransformerLens' block numbers. Default: all.
        key_classes: names and token ids, or `interp.corpora.classes.TokenClasses`; see `interp.corpora.token_classes`.
        weights: the `"mean"` over pairs, or weighted by `"attention"`: `Σ α C_j / Σ α`.
        centred: also compute `C_j` minus its mean over all keys that the same query sees. Only differences between keys
            affect attention.
        average: average over all `"pair"`s of the corpus, or over the means of `"sentence"`s.

    Returns the table `scores` of an `AttentionStudy`. The part of the norm's bias is the same for all keys only without
    RoPE. The class `all` has all keys (the paper's figure 4). A class without tokens in the text has no rows. The table
    takes 72 bytes per row, so for a model with billions of parameters use `scores` of a `ScoreContributions` or of a
    study.

    Raises ValueError if scores are not sums over residual dimensions (see `interp.models.qk.qk_circuit`), for a layer
    that does not exist, for padding on the left, and for a class function that does not return one class per token.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> classes = {"first": [7, 8]}
        >>> scores = score_contributions(toy_decoder(), ["w0 w1 w2"] * 20, key_classes=classes, progress=False)
        >>> len(scores) == 2 * 4 * 3 * 16  # layers, heads, classes and all keys, dimensions
        True
    """
    classes = token_classes(model, key_classes)
    observer = ScoreContributions(
        model, classes, layers=layers, weights=weights, scaled=scaled, centred=centred, average=average
    )
    observer.read(text_or_batches, batch_size=batch_size, progress=progress, checkpoint=checkpoint)
    return observer.scores.table


def score_contributions_at(
    model: Model, tokens: Int[Tensor, " pos"], layer: int, head: int, query: int, key: int, *, scaled: bool = False
) -> Float[Tensor, " d_model"]:
    """Compute the contribution of every residual dimension to one attention score: `C_j` of `score_contributions`.

    Args:
        tokens: the token ids of one sequence.
        query, key: the positions of the query and the key.

    Raises ValueError for a layer, head or position that does not exist, for a key that the query cannot see, and for
    tokens that are not a sequence the model can read.
    """
    tokens = _one_sequence(model, tokens)
    n_heads = model.cfg.n_heads
    length = len(tokens)
    if not (0 <= head < n_heads and 0 <= query < length and 0 <= key < length):
        expected = f"expected a head in 0 … {n_heads - 1} and positions in 0 … {length - 1}"
        raise ValueError(f"{expected}, found head {head}, query {query}, key {key}")
    ((circuit, x, q, _),) = activations(model, tokens, [layer])
    if not circuit.span.mask(length)[query, key]:
        raise ValueError(f"the query at {query} does not see the key at {key} in layer {layer}")
    contributions = _contributions(circuit, x, q[query])[head, key]
    return contributions / circuit.scale if scaled else contributions


def check_decomposition(
    model: Model, tokens: Int[Tensor, " pos"], *, layers: Several[int] | None = None
) -> pd.DataFrame:
    """Compare `Σ_j C_j + q_m · R b_K` with the model's own attention, for every pair that the model's mask allows.

    This self-test works for any model. It compares the log-softmax over keys of the scores, computed from dimensions
    and b_K, with the logarithm of the attention probabilities. In float64 the error is only rounding (below 1e-10).
    Probabilities below 1e-30 are left out, because float32 has few digits for them.

    Returns a table (layer, max_error, max_score) in nats. `max_score` is the largest score minus the mean of its query.

    Raises ValueError for a layer that does not exist, and for tokens that are not a sequence the model can read.
    """
    chosen = check_layers(model, layers)
    tokens = _one_sequence(model, tokens)
    rows = []
    for circuit, x, q, pattern in activations(model, tokens, chosen):
        constant = circuit.rotate(circuit.b_K.expand(1, len(tokens), -1, -1))[0]
        sums = torch.stack([_contributions(circuit, x, query).sum(-1) for query in q], 1)
        scores = sums + einsum(constant, q, "key head d_head, query head d_head -> head query key")
        visible = circuit.span.mask(len(tokens)).to(x.device)
        scores = (scores / circuit.scale).masked_fill(~visible, -torch.inf)
        log_alpha = (pattern * visible / (pattern * visible).sum(-1, keepdim=True)).log()
        compared = visible & (pattern > _LEAST_COMPARED)
        error = (scores.log_softmax(-1) - log_alpha)[compared].abs().max()
        centred = scores - torch.nanmean(scores.masked_fill(~visible, torch.nan), -1, keepdim=True)
        rows.append((circuit.layer, error.item(), centred[compared].abs().max().item()))
    return pd.DataFrame(rows, columns=["layer", "max_error", "max_score"])


def _one_sequence(model: Model, tokens: Tensor) -> Int[Tensor, " pos"]:
    """The ids of one sequence. Raises ValueError for another shape, for anything but whole numbers, and for ids without
    a token."""
    check_model(model)
    n_ctx = model.cfg.n_ctx
    tokens = torch.as_tensor(tokens)
    if tokens.ndim != 1 or tokens.dtype not in (torch.int64, torch.int32) or not 1 <= len(tokens) <= n_ctx:
        expected = f"the ids of one sequence, whole numbers [1 … {n_ctx}]"
        raise ValueError(f"tokens must be {expected}, found {tokens.dtype} {tuple(tokens.shape)}")
    check_ids(model, tokens)
    return tokens


def _contributions(
    circuit: QKCircuit, x: Float[Tensor, "key d_model"], q: Float[Tensor, "head d_head"]
) -> Float[Tensor, "head key d_model"]:
    """`C_j` of one query with all keys."""
    turned = circuit.rotate_back(q.expand(1, len(x), -1, -1))[0]
    return einsum(turned, circuit.W_K, "key head d_head, head d_model d_head -> head key d_model") * x
