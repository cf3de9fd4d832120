"""How much memory a model takes, from its widths alone.

    peak = process + weights + max(loading, batch, …),    batch = blocks + logits + what is read of them

`interp.passes.budget` adds what analyses hold. `interp.corpora.batches` and `interp.load` also use this module.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from interp.models.sites import Model, view
from interp.support import memory

__all__ = [
    "CONVERTING",
    "LOADING",
    "PROCESS",
    "TOKENS_PER_ROW",
    "Widths",
    "default_rows",
    "floating_type",
    "room_for_batches",
    "weights_of",
    "widths",
]

PROCESS = 600 * 2**20
"""Bytes of a process that has imported torch, transformers and TransformerLens, measured with torch 2.13 for CPUs."""
LOADING = 0.25
"""The most that loading takes in addition to the weights, as a share of them (`interp.models.loading.assembly`)."""
CONVERTING = 8
"""The most bytes that it takes to convert a weight of a GGUF file, or to merge an adapter into it."""
TOKENS_PER_ROW = 1_024
"""The longest row that is made by default."""
_TOKENS_PER_BATCH = 4_096
_LOGITS_PER_BATCH = 2**26
_OF_ROOM = 0.5


def floating_type(dtype: torch.dtype | str) -> torch.dtype:
    """Return a floating-point type, given by its name or as it is. Raises ValueError for anything else."""
    named = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
    if not isinstance(named, torch.dtype) or not named.is_floating_point:
        expected = "a floating-point type such as 'bfloat16' or torch.bfloat16, or 'auto'"
        raise ValueError(f"dtype must be {expected}, found {named!r}")
    return named


@dataclass(frozen=True, kw_only=True)
class Widths:
    """The widths that decide how much a forward pass holds. `gated` means that MLPs have gates, and `eager` that
    attention makes arrays of queries × keys (`interp.models.views.View.attention_path`)."""

    n_heads: int
    n_key_value_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    d_vocab: int
    gated: bool
    eager: bool = False

    def block_bytes(self, rows: int, context: int, itemsize: int) -> int:
        """Estimate the bytes that a block holds while b `rows` of T tokens, the `context`, pass through it.

            b T (6 d_model + max(4 (n_heads + n_key_value_heads) d_head, (2 or, gated, 4) d_mlp)) numbers

        These are the residual stream, its normed copies, and the activations of attention or of the MLP, whichever are
        larger. If attention is `eager`, there are `3 b n_heads T²` more.

        Examples:
            >>> heads = {"n_heads": 12, "n_key_value_heads": 12, "d_head": 64}
            >>> gpt2 = Widths(d_model=768, d_mlp=3072, d_vocab=50257, gated=False, **heads)
            >>> memory.shown(gpt2.block_bytes(4, 1024, itemsize=4))
            '168 MiB'
        """
        attention = 4 * (self.n_heads + self.n_key_value_heads) * self.d_head
        mlp = (4 if self.gated else 2) * self.d_mlp
        pairs = 3 * self.n_heads * context if self.eager else 0
        return rows * context * itemsize * (6 * self.d_model + max(attention, mlp) + pairs)

    def head_bytes(self, positions: float | int, itemsize: int) -> int:
        """Estimate the bytes that the prediction head holds for some positions: logits, and three times the residual
        stream."""
        return round(positions * itemsize * (self.d_vocab + 3 * self.d_model))


def widths(model: Model) -> Widths:
    """Return the widths of a loaded model.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> widths(toy_decoder()).d_model
        16
    """
    cfg = model.cfg
    return Widths(
        n_heads=cfg.n_heads,
        n_key_value_heads=getattr(cfg, "n_key_value_heads", None) or cfg.n_heads,
        d_model=cfg.d_model,
        d_head=cfg.d_head,
        d_mlp=view(model).d_mlp or getattr(cfg, "d_mlp", None) or 0,
        d_vocab=model.W_U.shape[1],
        gated=bool(getattr(cfg, "gated_mlp", False)),
        eager=view(model).attention_path == "eager",
    )


def weights_of(model: Model) -> dict[str, int]:
    """Count the bytes of a model's parameters on each device. Shared memory counts once."""
    storages = set()
    sizes: Counter[str] = Counter()
    for parameter in model.parameters():
        storage = parameter.untyped_storage()
        if storage.data_ptr() not in storages:
            storages.add(storage.data_ptr())
            sizes[str(parameter.device)] += storage.nbytes()
    return dict(sizes)


def room_for_batches(weights: Mapping[str, int]) -> float:
    """Estimate the bytes that a batch of default size may take: half of the memory of the machine (or the limit of the
    container, or the memory of the GPU with the least left) after subtracting the process and the `weights` on each
    device. What else is running does not matter."""
    return min(_OF_ROOM * (memory.total(device) - PROCESS - size) for device, size in weights.items())


def default_rows(sizes: Widths, context: int, *, itemsize: int, room: float | int) -> int:
    """Return the default number of rows of a batch: as many as make about 4,096 tokens and 2²⁶ logits. If these take
    more than the `room`, it is the largest power of two that fits, and at least 1.

    Examples:
        >>> heads = {"n_heads": 12, "n_key_value_heads": 12, "d_head": 64}
        >>> gpt2 = Widths(d_model=768, d_mlp=3072, d_vocab=50257, gated=False, **heads)
        >>> default_rows(gpt2, 128, itemsize=4, room=2**30), default_rows(gpt2, 128, itemsize=4, room=2**27)
        (10, 4)
    """
    rows = max(1, min(_TOKENS_PER_BATCH // context, _LOGITS_PER_BATCH // (context * sizes.d_vocab)))
    while rows > 1 and room < max(
        sizes.block_bytes(rows, context, itemsize), sizes.head_bytes(rows * context, itemsize)
    ):
        rows = 2 ** ((rows - 1).bit_length() - 1)
    return rows
