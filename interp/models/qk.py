"""The query–key circuit of a block, seen as one thing in every model: what turns residual vectors into scores.

`S[m, n] = (R_m q_m) · (R_n (x_n W_K + b_K))`, `q_m = x_m W_Q + b_Q`, R the rotation of RoPE (the identity without).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from interp.checks import whole_number
from interp.models.head import LOAD_RAW, is_identity
from interp.models.sites import Model, check_model, hook_name, is_encoder

__all__ = ["QKCircuit", "Span", "check_dims", "check_layers", "qk_circuit", "span"]

_POSITIONS = {
    "alibi": "ALiBi adds a bias that belongs to no residual dimension",
    "relative_positional_bias": "relative positions add a bias that belongs to no residual dimension",
    "shortformer": "position embeddings are added to queries and keys alone",
}
_OPTIONS = {
    "use_qk_norm": "queries and keys are normalised, so a score is not linear in the key's residual vector",
    "clip_qkv": "keys are clamped, so a score is not linear in the key's residual vector",
    "use_logn_attn": "queries are rescaled by position after their hook point",
    "use_attention_sinks": "the softmax has a sink beside the keys",
    "use_split_qkv_input": "queries, keys and values have an input for each head; set model.cfg's flag to False",
    "use_attn_in": "the attention has an input for each head; set model.cfg's flag to False",
    "load_in_4bit": "the weights are packed in 4 bits",
}
_NORMALISED_QK = ("OlmoeForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM")


@dataclass(frozen=True)
class Span:
    """Which keys a query sees: all, those before it and itself (`causal`), or the last `window` of them."""

    causal: bool
    window: int | None

    def mask(self, length: int) -> Bool[Tensor, "query key"]:
        visible = torch.ones(length, length, dtype=torch.bool).tril(0 if self.causal else length)
        return visible if self.window is None else visible.triu(1 - self.window)

    def up_to(self, values: Shaped[Tensor, "batch pos *rest"]) -> Shaped[Tensor, "batch pos *rest"]:
        """For each query, the sum of the values over the keys it sees."""
        if not self.causal:
            return values.sum(1, keepdim=True).expand_as(values)
        sums = values.cumsum(1)
        if self.window is None or self.window >= values.shape[1]:
            return sums
        return torch.cat([sums[:, : self.window], sums[:, self.window :] - sums[:, : -self.window]], 1)


def span(model: Model, layer: int) -> Span:
    """Which keys the queries of a block see."""
    attn = model.blocks[layer].attn
    return Span(not is_encoder(model), model.cfg.window_size if attn.attn_type == "local" else None)


@dataclass(frozen=True, eq=False)
class QKCircuit:
    """A view of one block's keys and scores.

    `W_K` `[n_heads, d_model, d_head]` and `b_K` `[n_heads, d_head]` have a slice for each query head (grouped keys
    repeated); `W_K_stored` has one for each head that `hook_k` has. `scale` is what scores are divided by. `ln_bias`
    is the part of x that every token shares, the bias of the norm that x comes from.
    """

    layer: int
    W_Q: Float[Tensor, "n_heads d_model d_head"]
    W_K: Float[Tensor, "n_heads d_model d_head"]
    b_K: Float[Tensor, "n_heads d_head"]
    W_K_stored: Float[Tensor, "n_kv_heads d_model d_head"]
    gamma: Float[Tensor, " d_model"] | None
    ln_bias: Float[Tensor, " d_model"] | None
    scale: float
    span: Span
    input_name: str
    query_name: str
    _rotary: Any

    def attn_input(self, activation: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """x, what W_Q and W_K read, from what flows at the site `attn_input`."""
        if not self.span.causal:
            return activation
        x = activation if self.gamma is None else activation * self.gamma
        return (x if self.ln_bias is None else x + self.ln_bias).to(self.W_K.dtype)

    def rotate(self, k: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_head"]:
        """`R_n k_n` for the vector at each position n."""
        return k if self._rotary is None else self._rotary.apply_rotary(k)

    def rotate_back(self, u: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_head"]:
        """`R_nᵀ u_n` for the vector at each position n."""
        if self._rotary is None:
            return u
        length, width = u.shape[1], self._rotary.cfg.rotary_dim
        cos, sin = (table[None, :length, None] for table in (self._rotary.rotary_cos, self._rotary.rotary_sin))
        turned, rest = u[..., :width], u[..., width:]
        return torch.cat([turned * cos - self._rotary.rotate_every_two(turned * sin), rest], -1)


def qk_circuit(model: Model, layer: int) -> QKCircuit:
    """The query–key circuit of a block.

    Raises ValueError for a layer that does not exist and where a score is no sum over residual dimensions (ALiBi and
    relative positions, normalised or clamped queries and keys, soft-capped scores), or a folded model, whose weights
    are centred.
    """
    rotary = model.cfg.positional_embedding_type == "rotary"
    input_name = hook_name(model, "resid_pre" if model.cfg.normalization_type is None else "attn_input", layer)
    _refuse(model)
    attn: Any = model.blocks[layer].attn
    if not is_encoder(model):
        norm: Any = getattr(model.blocks[layer], "ln1", None)
    else:
        norm = model.blocks[layer - 1].ln2 if layer else model.embed.ln
    grouped = hasattr(attn, "_W_K") and not model.cfg.ungroup_grouped_query_attention
    gamma, bias = (getattr(norm, name, None) for name in ("w", "b"))
    return QKCircuit(
        layer=layer,
        W_Q=attn.W_Q.detach(),
        W_K=attn.W_K.detach(),
        b_K=attn.b_K.detach(),
        W_K_stored=(attn._W_K if grouped else attn.W_K).detach(),
        gamma=None if gamma is None else gamma.detach(),
        ln_bias=None if bias is None else bias.detach(),
        scale=float(attn.attn_scale),
        span=span(model, layer),
        input_name=input_name,
        query_name=hook_name(model, "rotated_q" if rotary else "q", layer),
        _rotary=attn if rotary else None,
    )


def check_layers(model: Model, layers: Sequence[int] | None) -> list[int]:
    """All layers, or those given.

    Raises ValueError for one that does not exist or is given twice, TypeError for what is no whole number or no model.
    """
    check_model(model)
    return _different(range(model.cfg.n_layers) if layers is None else layers, model.cfg.n_layers, "layers", "a layer")


def check_dims(model: Model, dims: Sequence[int]) -> list[int]:
    """Dimensions of the residual stream.

    Raises ValueError for one that does not exist or is given twice, TypeError for what is no whole number or no model.
    """
    check_model(model)
    return _different(dims, model.cfg.d_model, "dims", "a dimension")


def _different(numbers: Sequence[int], n: int, what: str, one: str) -> list[int]:
    chosen = [whole_number(number, one) for number in numbers]
    if not chosen or len(set(chosen)) < len(chosen) or not 0 <= min(chosen) <= max(chosen) < n:
        raise ValueError(f"{what} must be different numbers in 0 … {n - 1}, found {chosen}")
    return chosen


def _refuse(model: Model) -> None:
    """Raise ValueError for a model whose attention scores are no sum over residual dimensions, or that is folded."""
    cfg = model.cfg
    reasons = [why for name, why in _OPTIONS.items() if getattr(cfg, name, None)]
    if not is_encoder(model) and cfg.attention_dir != "causal":
        reasons.append("a HookedTransformer with bidirectional attention does not mask its padding")
    if cfg.attn_scores_soft_cap > 0:
        reasons.append("scores are soft-capped")
    if cfg.original_architecture in _NORMALISED_QK:
        reasons.append(_OPTIONS["use_qk_norm"])
    if (positions := cfg.positional_embedding_type) not in ("standard", "rotary"):
        reasons.append(_POSITIONS.get(positions, f"positions of type {positions!r} are not known here"))
    if reasons:
        why = "; ".join(reasons)
        raise ValueError(f"attention scores of this model cannot be decomposed by residual dimension: {why}")
    if is_encoder(model):
        return
    W_K = model.blocks[0].attn.W_K
    centred = is_identity(model.blocks[0].ln1) and W_K.mean(1).abs().max() < 1e-5 * W_K.abs().max()
    if centred or cfg.normalization_type in ("LNPre", "RMSPre"):
        what = "this model's layer norms are folded into its weights, which changes what each dimension contributes"
        raise ValueError(f"{what}; {LOAD_RAW}")
