"""transformers' `generate` for a `HookedTransformer`, through a shell that looks like a transformers model."""

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry
from transformers import Cache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer
else:
    HookedTransformer = Any

__all__ = ["HeadsFirst", "HookedCache", "Shell"]
__dir__ = __all__.copy


_heads_first = partial(rearrange, pattern="batch pos head d_head -> batch head pos d_head")
_positions_first = partial(rearrange, pattern="batch head pos d_head -> batch pos head d_head")


class HeadsFirst(TransformerLensKeyValueCacheEntry):
    """Keys and values of a layer, `[batch, pos, head, d_head]`, with the positions of a head next to each other in
    memory.

    The attention's matrix products can then read them directly; otherwise they would copy all of them at every step.
    """

    past_keys: Float[Tensor, "batch pos head d_head"]
    past_values: Float[Tensor, "batch pos head d_head"]

    def append(
        self, new_keys: Float[Tensor, "batch new head d_head"], new_values: Float[Tensor, "batch new head d_head"]
    ) -> tuple[Float[Tensor, "batch pos head d_head"], Float[Tensor, "batch pos head d_head"]]:
        keys = torch.cat([_heads_first(self.past_keys), _heads_first(new_keys)], dim=2)
        values = torch.cat([_heads_first(self.past_values), _heads_first(new_values)], dim=2)
        self.past_keys = _positions_first(keys)
        self.past_values = _positions_first(values)
        return self.past_keys, self.past_values

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        rows = rows.to(self.past_keys.device)
        self.past_keys = _positions_first(_heads_first(self.past_keys).index_select(0, rows))
        self.past_values = _positions_first(_heads_first(self.past_values).index_select(0, rows))


class HookedCache(Cache):
    """TransformerLens' key-value cache in place of transformers' own. Each call of `generate` makes a new one."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.kv: TransformerLensKeyValueCache | None = None

    def of(self, model: HookedTransformer, rows: int) -> TransformerLensKeyValueCache:
        """Return the cache that the model reads and extends; empty at first."""
        if self.kv is None:
            self.kv = TransformerLensKeyValueCache.init_cache(model.cfg, model.W_U.device, rows)
            self.kv.entries = [HeadsFirst(entry.past_keys, entry.past_values) for entry in self.kv.entries]
        return self.kv

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.kv is None else self.kv[layer_idx].past_keys.shape[1]

    def reorder_cache(self, beam_idx: Int[Tensor, " rows"]) -> None:
        """Make row i continue from what was row `beam_idx[i]`."""
        assert self.kv is not None
        for entry in self.kv.entries:
            cast("HeadsFirst", entry).reorder(beam_idx)
        mask = self.kv.previous_attention_mask
        self.kv.previous_attention_mask = mask.index_select(0, beam_idx.to(mask.device))


class Shell(PreTrainedModel, GenerationMixin):
    """What `GenerationMixin` needs from a model, around a `HookedTransformer` with any hooks that are active on it.

    With a cache, the trunk reads only the new tokens, and the prediction head only the last position. Without a cache,
    both read whole rows at every step. The hooked model is not a submodule, so the shell has no parameters to move or
    save.
    """

    config_class = PreTrainedConfig
    main_input_name = "input_ids"

    def __init__(self, model: HookedTransformer) -> None:
        super().__init__(PreTrainedConfig.from_dict({"vocab_size": model.cfg.d_vocab}))
        self._hooked = (model,)  # a tuple, which nn.Module does not register

    @property
    def device(self) -> torch.device:
        return self._hooked[0].W_U.device

    @property
    def dtype(self) -> torch.dtype:
        return self._hooked[0].W_U.dtype

    def forward(
        self,
        input_ids: Int[Tensor, "batch new"],
        attention_mask: Int[Tensor, "batch pos"] | None = None,
        past_key_values: HookedCache | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Compute logits `[batch, kept, d_vocab]` at the last position with a cache, otherwise at all positions.

        transformers gives no mask if there is no padding, and TransformerLens would then derive one from the token ids.
        So it always gets a mask here, for the new positions, since its cache keeps that of the earlier ones.
        """
        (model,) = self._hooked
        n_layers = model.cfg.n_layers
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -input_ids.shape[1] :]
        kv = None if past_key_values is None else past_key_values.of(model, len(input_ids))
        resid = model(input_ids, attention_mask=mask, past_kv_cache=kv, stop_at_layer=n_layers)
        logits = model(resid if kv is None else resid[:, -1:], start_at_layer=n_layers)
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)
