"""RoPE: applies the rotation `R_n` or its inverse to the vector at each position n, with each library's own tables."""

from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor

from interp.models.views import Rotation

__all__ = ["Halves", "Hooked", "Pairs"]


class Hooked(Rotation):
    """RoPE as in TransformerLens' attention."""

    def __init__(self, attn: Any) -> None:
        self._attn = attn

    def turned(self, vectors: Tensor, sign: Literal[1, -1]) -> Tensor:
        if sign == 1:
            rotated: Tensor = self._attn.apply_rotary(vectors)
            return rotated
        length = vectors.shape[1]
        width = self._attn.cfg.rotary_dim
        cos = self._attn.rotary_cos[None, :length, None]
        sin = self._attn.rotary_sin[None, :length, None]
        turned, unturned = vectors[..., :width], vectors[..., width:]
        return torch.cat([turned * cos - self._attn.rotate_every_two(turned * sin), unturned], -1)


class Halves(Rotation):
    """RoPE computed by the function in the model's own transformers module, from its tables of cosines and sines."""

    def __init__(self, rotary: Any, apply: Any, layer_type: str | None) -> None:
        self._rotary, self._apply, self._layer_type = rotary, apply, layer_type

    def turned(self, vectors: Tensor, sign: Literal[1, -1]) -> Tensor:
        positions = torch.arange(vectors.shape[1], device=vectors.device)[None]
        kind = {} if self._layer_type is None else {"layer_type": self._layer_type}
        cos, sin = self._rotary(vectors, positions, **kind)
        cos = cos.to(vectors)
        sin = sin.to(vectors)
        heads = rearrange(vectors, "batch pos head d_head -> batch head pos d_head")
        columns = 2 if self._apply.__module__.endswith("gpt_oss") else 1  # columns of a head per column of the tables
        width = min(vectors.shape[-1], cos.shape[-1] * columns)
        turned = self._apply(heads[..., :width], heads[..., :width], cos, sign * sin)[0]
        both = torch.cat([turned, heads[..., width:]], -1)
        return rearrange(both, "batch head pos d_head -> batch pos head d_head")


class Pairs(Rotation):
    """RoPE of GPT-J, which rotates pairs of neighbouring dimensions."""

    def __init__(self, attn: Any) -> None:
        self._attn = attn

    def turned(self, vectors: Tensor, sign: Literal[1, -1]) -> Tensor:
        table = self._attn.embed_positions[: vectors.shape[1]].to(vectors)
        sin, cos = table.repeat_interleave(2, -1)[None, :, None].chunk(2, -1)
        turned, unturned = vectors[..., : cos.shape[-1]], vectors[..., cos.shape[-1] :]
        perpendicular = torch.stack([-turned[..., 1::2], turned[..., ::2]], -1).flatten(-2)
        return torch.cat([turned * cos + sign * perpendicular * sin, unturned], -1)
