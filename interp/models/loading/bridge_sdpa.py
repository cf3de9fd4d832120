"""Computes the attention of a `TransformerBridge` with torch's `scaled_dot_product_attention`, as transformers does.

This makes no array of queries × keys. If there are hooks on the scores, the pattern or the rotated queries and keys,
the bridge's own code runs, which computes these.
"""

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformer_lens.model_bridge.generalized_components import (
    AttentionBridge,
    JointQKVAttentionBridge,
    JointQKVPositionEmbeddingsAttentionBridge,
    PositionEmbeddingsAttentionBridge,
)

__all__ = ["FusedJoint", "FusedJointPositions", "FusedPositions", "fuse"]

_OF_THE_BRIDGE = (
    "hook_attn_scores", "hook_pattern", "hook_rot_q", "hook_rot_k", "hook_cos", "hook_sin", "hook_attn_in",
    "hook_q_input", "hook_k_input", "hook_v_input", "hook_result", "hook_q_normed", "hook_k_normed",
)  # fmt: skip
"""Hook points that only the bridge's own code reaches."""
_OPTIONS = ("use_split_qkv_input", "use_attn_in", "use_attn_result")


def _is_ordinary(attn: Any) -> bool:
    """Whether something is read or set for which the bridge's own code must run."""
    for name in _OF_THE_BRIDGE:
        point = getattr(attn, name, None)
        if point is not None and (point._forward_hooks or point._backward_hooks):
            return True
    return attn.compatibility_mode or any(getattr(attn.config, name, False) for name in _OPTIONS)


class FusedPositions(PositionEmbeddingsAttentionBridge):
    """Rotary attention that computes scores and pattern only if they are read."""

    attention_path = "sdpa"

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Let transformers' own module compute attention, which contains the bridges of q, k, v and o."""
        kind = PositionEmbeddingsAttentionBridge if _is_ordinary(self) else AttentionBridge
        return kind.forward(self, *arguments, **named)


class FusedJoint(JointQKVAttentionBridge):
    """Attention with one matrix for queries, keys and values that computes scores and pattern only if they are read."""

    attention_path = "sdpa"

    def _reconstruct_attention(self: Any, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Any:
        mask = named.get("attention_mask")
        config = self.config
        if _is_ordinary(self) or self.is_cross_attention or (mask is not None and mask.ndim < 4):
            return super()._reconstruct_attention(q, k, v, **named)
        heads = config.n_heads, getattr(config, "n_key_value_heads", None) or config.n_heads
        q, k, v, batch, length, d_head = self._reshape_qkv_to_heads(q, k, v, *heads)
        if (turns := named.get("position_embeddings")) is not None:
            q, k = self._apply_rotary_pos_emb(q, k, *turns)
        k, v = self._update_kv_cache(k, v, **named)
        inverse = getattr(config, "scale_attn_by_inverse_layer_idx", False) and self._layer_idx is not None
        z = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None and self.is_causal and k.shape[2] == length,
            scale=d_head**-0.5 / (self._layer_idx + 1 if inverse else 1), enable_gqa=heads[0] != heads[1],
        )  # fmt: skip
        return self._apply_output_projection(self._reshape_attn_output(z, batch, length, heads[0], d_head)), None


class FusedJointPositions(FusedJoint, JointQKVPositionEmbeddingsAttentionBridge):
    """The same with rotary positions."""


_KINDS: dict[type, type] = {
    PositionEmbeddingsAttentionBridge: FusedPositions,
    JointQKVAttentionBridge: FusedJoint,
    JointQKVPositionEmbeddingsAttentionBridge: FusedJointPositions,
}


def fuse(bridge: Any) -> bool:
    """Make every block compute attention with `scaled_dot_product_attention`, in place. Returns whether this was done.

    It is not done if the model has a softmax or scores of a special kind, or if transformers has no such path.
    """
    blocks = getattr(bridge, "blocks", ())
    attentions = []
    for block in blocks:
        if hasattr(block, "attn"):
            if type(block.attn) not in _KINDS or not _is_plain(block.attn.original_component):
                return False
            attentions.append(block.attn)
    if not attentions:
        return False
    try:
        bridge.original_model.set_attn_implementation("sdpa")
    except (ValueError, ImportError):
        return False
    for attn in attentions:
        attn.__class__ = _KINDS[type(attn)]
    return True


def _is_plain(attention: Any) -> bool:
    for name in ("attn_logit_softcapping", "sinks"):
        if getattr(attention, name, None) is not None:
            return False
    return not getattr(attention, "reorder_and_upcast_attn", False)
