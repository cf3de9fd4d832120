"""Computes the attention of TransformerLens' own models with torch's `scaled_dot_product_attention`.

This makes no array of queries × keys. If there are hooks on the scores or the pattern, TransformerLens' own code runs,
which computes these.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from transformer_lens.components import AbstractAttention, Attention, GroupedQueryAttention
from transformer_lens.hook_points import HookPoint

__all__ = ["FusedAttention", "FusedGroupedQueryAttention", "fuse"]


class _Fused(AbstractAttention):
    attention_path = "sdpa"

    def forward(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor, *arguments: Any, **options: Any
    ) -> Tensor:
        mask = options.get("additive_attention_mask")
        unusual = [*arguments, *(value for name, value in options.items() if name != "additive_attention_mask")]
        if any(value is not None for value in unusual) or _is_ordinary(self):  # others: a cache, padding on the left
            return super().forward(query_input, key_input, value_input, *arguments, **options)
        q, k, v = self.calculate_qkv_matrices(query_input, key_input, value_input)
        if self.cfg.positional_embedding_type == "rotary":
            q = self.hook_rot_q(self.apply_rotary(q))
            k = self.hook_rot_k(self.apply_rotary(k))
        q = rearrange(q, "batch pos head d_head -> batch head pos d_head")
        k = rearrange(k, "batch pos head d_head -> batch head pos d_head")
        v = rearrange(v, "batch pos head d_head -> batch head pos d_head")
        z = self.hook_z(rearrange(_attended(self, q, k, v, mask), "batch head pos d_head -> batch pos head d_head"))
        W_O = rearrange(self.W_O, "head d_head d_model -> d_model (head d_head)")
        return linear(rearrange(z, "batch pos head d_head -> batch pos (head d_head)").to(W_O.dtype), W_O, self.b_O)


class FusedAttention(_Fused, Attention):
    """`Attention` that computes scores and pattern only if they are read."""


class FusedGroupedQueryAttention(_Fused, GroupedQueryAttention):
    """`GroupedQueryAttention` that computes scores and pattern only if they are read."""


def _is_ordinary(attn: Any) -> bool:
    """Whether scores or pattern are read, or a setting is on for which TransformerLens' own code must run."""
    cfg = attn.cfg
    options = (cfg.use_attn_result, cfg.load_in_4bit, cfg.use_attention_sinks, cfg.use_logn_attn, cfg.clip_qkv)
    plain = cfg.positional_embedding_type in ("standard", "rotary") and cfg.attn_scores_soft_cap <= 0
    return not plain or any(options) or _is_hooked(attn.hook_attn_scores) or _is_hooked(attn.hook_pattern)


def _is_hooked(point: HookPoint) -> bool:
    kinds = (point._forward_hooks, point._forward_pre_hooks, point._backward_hooks, point._backward_pre_hooks)
    return any(map(bool, kinds))


def _attended(attn: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Values weighted by attention. If queries see a window of keys, no other keys are read."""
    options: dict[str, Any] = {"scale": 1 / float(attn.attn_scale), "enable_gqa": k.shape[1] != q.shape[1]}
    length = q.shape[2]
    window = attn.cfg.window_size if attn.attn_type == "local" else None
    if window is None or window >= length:
        mask = mask if mask is None else mask.to(q.dtype)
        causal = attn.cfg.attention_dir == "causal"
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, **options)
    attended = []
    for start in range(0, length, window):
        first = max(0, start - window + 1)
        end = min(start + window, length)
        distance = torch.arange(start, end, device=q.device)[:, None] - torch.arange(first, end, device=q.device)
        visible = (distance >= 0) & (distance < window)
        attended.append(
            scaled_dot_product_attention(q[:, :, start:end], k[:, :, first:end], v[:, :, first:end], visible, **options)
        )
    return torch.cat(attended, 2)


def fuse(model: Any) -> None:
    """Make every block compute attention with `scaled_dot_product_attention`, in place."""
    kinds = {Attention: FusedAttention, GroupedQueryAttention: FusedGroupedQueryAttention}
    for block in model.blocks:
        block.attn.__class__ = kinds[type(block.attn)]
