"""A small model of the same kind as another, of which the same questions can be asked."""

import inspect
from typing import Any

__all__ = ["miniature"]
__dir__ = __all__.copy

_SIZES: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 32, "n_embd": 32, "d_model": 32, "num_hidden_layers": 2, "n_layer": 2,
    "num_layers": 2, "num_attention_heads": 4, "n_head": 4, "num_heads": 4, "attention_heads": 4,
    "intermediate_size": 64, "ffn_dim": 64, "n_inner": 64, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 24, "n_positions": 24, "num_experts": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "sliding_window": 8, "window_size": 8, "rotary_dim": 4,
    "word_embed_proj_dim": 32, "pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 6, "query_pre_attn_scalar": 8,
}  # fmt: skip
_OWN: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "roberta": {"max_position_embeddings": 26, "pad_token_id": 1},
    "granite": {"logits_scaling": 2.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    "falcon": {"num_kv_heads": 1, "ffn_hidden_size": 128},
}


def miniature(config: Any) -> Any:
    """Make a transformers config of the same kind with two blocks, a width of 32 and a vocabulary of 67. What is not a
    size, such as norms of queries and keys, is as in the given config.

    Examples:
        >>> import transformers
        >>> small = miniature(transformers.Gemma2Config())
        >>> small.num_hidden_layers, small.hidden_size, small.attn_logit_softcapping
        (2, 32, 50.0)
    """
    settings = config.to_dict()
    settings.pop("quantization_config", None)
    names = {*settings, *inspect.signature(type(config).__init__).parameters}
    sizes = {name: value for name, value in _SIZES.items() if name in names}
    sizes.update(_OWN.get(config.model_type, {}))
    if types := getattr(config, "layer_types", None):
        both = ["sliding_attention", "full_attention"]
        sizes["layer_types"] = both if set(both) <= set(types) else types[:2]
    settings.update(sizes)
    return type(config).from_dict(settings)
