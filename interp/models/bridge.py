"""The view of a `TransformerBridge`, which wraps transformers' own model.

The bridge's config repeats settings of other models and is wrong for architectures that differ from them. So windows,
scales, norms and widths are read from transformers' config and from the modules.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any, ClassVar, Literal

from torch import Tensor

from interp.models.hooked import DECODER_NAMES
from interp.models.rotary import Halves, Pairs
from interp.models.views import Attention, FinalNorm, HeadTensors, Read, Rotation, Site, View, settings_of

__all__ = ["Bridge", "EncoderDecoder", "why_not_linear"]

_HOOKED = ("gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "llama", "mistral", "qwen2", "bert")
"""Kinds that also exist as a HookedTransformer or HookedEncoder, whose parameter names are used for them."""
_NORMED_AFTER = ("olmo2", "olmo3", "exaone4")
"""Decoders with norms after attention and MLP, so that attention reads the residual stream itself."""
_NORMS_OF_KEYS = ("k_norm", "k_layernorm", "key_layernorm")
_HEADS_WITHOUT_BIAS = ("gpt2", "gpt_neo", "gpt_neox", "opt")
_WINDOWED, _WHOLE = ("local", "sliding_attention"), ("global", "full_attention")
_NOT_OF_THE_PASS = {
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "id2label",
    "label2id", "return_dict", "output_attentions", "output_hidden_states", "chunk_size_feed_forward", "problem_type",
    "bos_token_id", "eos_token_id", "pad_token_id", "tokenizer_class", "_attn_implementation",
    "_attn_implementation_autoset", "_experts_implementation",
}  # fmt: skip


class Bridge(View):
    """A `TransformerBridge` with raw weights, of a causal or a masked language model."""

    _blocks = "blocks"
    _classes: tuple[str, ...] = ("CausalLM", "LMHeadModel", "MaskedLM")

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.wrapped = model.original_model
        self._config: Any = self.wrapped.config.get_text_config()
        self._kind: str = self._config.model_type.removesuffix("_text")
        kind = type(self.wrapped).__name__
        if not (hasattr(model, self._blocks) and kind.endswith(self._classes)):
            expected = "a causal or masked language model, BART or T5"
            raise ValueError(f"this TransformerBridge wraps a {kind}; expected {expected}")
        if getattr(self._config, "quantization_config", None) is not None:
            raise ValueError("this TransformerBridge has quantised weights; load the model in a floating-point type")

    @property
    def encoder(self) -> bool:
        return str(self.model.cfg.architecture).endswith("ForMaskedLM")

    @property
    def names(self) -> dict[Site, str]:
        return DECODER_NAMES | ({"attn_input": DECODER_NAMES["resid_pre"]} if self._normed_after else {})

    narrows_at = "head_input"

    @property
    def _normed_after(self) -> bool:
        return self.encoder or self._kind in _NORMED_AFTER

    def refused(self, site: Site) -> str | None:
        plain = type(getattr(self.model.blocks[0], "attn", None)).__name__ == "AttentionBridge"
        if site in ("attn_scores", "pattern") and plain and self.wrapped.config._attn_implementation != "eager":
            remedy = 'bridge.original_model.set_attn_implementation("eager")'
            return f"its attention runs without computing patterns; call {remedy}"
        if site in ("attn_scores", "rotated_q"):
            classes = {cls.__name__ for cls in type(self.model.blocks[0].attn).__mro__}
            if site == "attn_scores" and plain:
                return "TransformerBridge shows the pattern there, and edits have no effect; use 'pattern'"
            joint = any(name.startswith("JointQKV") for name in classes)
            if site == "rotated_q" and (joint or "PositionEmbeddingsAttentionBridge" not in classes):
                return "TransformerBridge does not show rotated queries in this architecture; use 'q'"
        if site == "mlp_post" and self.d_mlp is None:
            return "its MLPs are not one matrix each (a mixture of experts?), so they have no neurons of their own"
        return None

    @property
    def d_mlp(self) -> int | None:
        widths = set()
        for block in self.model.blocks:
            matrix = getattr(getattr(block, "mlp", None), "W_out", None)
            widths.add(None if matrix is None else matrix.shape[0])
        return widths.pop() if len(widths) == 1 else None

    def live_head(self) -> HeadTensors:
        final = self._final_norm
        gamma = _tensor(final, "weight")
        bias = _tensor(final, "bias")
        if gamma is not None and self._offset:
            gamma = 1 + gamma
        norm: FinalNorm = None if final is None else "layer" if bias is not None else "layer without bias"
        if "RMS" in type(final).__name__ or "RMS" in type(getattr(final, "original_component", None)).__name__:
            norm = "rms"
        if self.model._weights_processed and gamma is not None and bool((gamma == 1).all()):
            norm = "folded rms" if norm == "rms" else "folded"
        dense = self.model.mlm_head if self.encoder else None
        multiplied = getattr(self._config, "logit_scale", None)
        divided = getattr(self._config, "logits_scaling", None)
        tensors = {
            "b_U": self.model.b_U if self.encoder or self.model.b_U.any() else None,  # BART's final_logits_bias
            "gamma": gamma,
            "b_ln": bias,
            "W_fc": None if dense is None else dense.weight.T,
            "b_fc": None if dense is None else dense.bias,
        }
        W_U = self.model.W_U
        for name, tensor in tensors.items():
            tensors[name] = None if tensor is None else tensor.to(W_U.device)
        return HeadTensors(
            unscaled=W_U,
            norm=norm,
            eps=float(self.model.cfg.eps),
            had_bias=self._kind not in _HEADS_WITHOUT_BIAS,
            scale=float(multiplied or 1) / float(divided or 1),
            cap=getattr(self._config, "final_logit_softcapping", None),
            **tensors,
        )

    @property
    def _final_norm(self) -> Any:
        return getattr(self.model, "ln_final", None)

    @property
    def _offset(self) -> bool:
        """Whether norms multiply by 1 + weight."""
        return bool(self.model.cfg.rmsnorm_uses_offset) or self._kind == "nemotron"

    def live_attention(self, layer: int) -> Attention:
        if not hasattr(self.model.blocks[layer], "attn"):
            raise ValueError(f"layer {layer} of this model has no attention")
        attn = self.model.blocks[layer].attn
        norm = self._norm_before(layer)
        gamma = _tensor(norm, "weight")
        bias = _tensor(norm, "bias")
        W_K, b_K = attn.W_K, attn.b_K
        return Attention(
            W_Q=attn.W_Q,
            W_K=W_K,
            b_K=W_K.new_zeros(W_K.shape[0], W_K.shape[2]) if b_K is None else b_K,
            scale=self._scale(attn.original_component, W_K.shape[2]),
            causal=not self.encoder,
            window=self._window(layer),
            rotation=self._rotation(attn.original_component, layer),
            gamma=1 + gamma if gamma is not None and self._offset else gamma,
            ln_bias=bias,
            normed_before=not self._normed_after,
            why_not=tuple(why_not_linear(self._config, attn.original_component)),
        )

    def _norm_before(self, layer: int) -> Any:
        if not self._normed_after:
            return getattr(self.model.blocks[layer], "ln1", None)
        if not self.encoder:
            return None
        return self.model.blocks[layer - 1].ln2 if layer else self.model.embed_ln

    def _scale(self, attn: Any, d_head: int) -> float:
        """The number that scores are divided by."""
        if self._kind == "gpt_neo":
            return 1.0
        if (divisor := getattr(attn, "scale_attn", None)) is not None:
            return float(divisor)
        factor = getattr(attn, "scaling", getattr(attn, "inv_norm_factor", None))
        return d_head**0.5 if factor is None else 1 / float(factor)

    def _window(self, layer: int) -> int | None:
        config = self._config
        kinds = getattr(config, "attention_layers" if self._kind == "gpt_neo" else "layer_types", None)
        width = getattr(config, "window_size" if self._kind == "gpt_neo" else "sliding_window", None)
        if kinds is not None:
            if kinds[layer] not in (*_WINDOWED, *_WHOLE):
                raise ValueError(f"layer {layer} of this model is of type {kinds[layer]!r}, which interp does not know")
            return width if kinds[layer] in _WINDOWED else None
        return width if getattr(config, "use_sliding_window", True) else None

    def _rotation(self, attn: Any, layer: int) -> Rotation | None:
        if hasattr(attn, "embed_positions"):
            return Pairs(attn)
        rotary = getattr(self.wrapped.base_model, "rotary_emb", None)
        apply = getattr(sys.modules[type(attn).__module__], "apply_rotary_pos_emb", None)
        without = self._kind == "cohere2" and self._window(layer) is None
        if rotary is None or apply is None or without or not getattr(attn, "use_rope", True):
            return None
        rotary = getattr(rotary, "original_component", rotary)
        by_type = "layer_type" in signature(rotary.forward).parameters
        return Halves(rotary, apply, self._config.layer_types[layer] if by_type else None)

    def run(self, batch: Read, stop: int | None) -> Any:
        arguments: dict[str, Any] = {"attention_mask": batch.mask}
        if not self.encoder:
            arguments["use_cache"] = False
        if stop is not None and self.encoder:
            return self.wrapped.base_model(batch.tokens, **arguments)
        if stop is None or stop < self.model.cfg.n_layers:
            stop = None if stop is None else max(stop, 1)
            return self.model(batch.tokens, stop_at_layer=stop, **arguments)
        if "logits_to_keep" in signature(self.wrapped.forward).parameters:
            return self.model(batch.tokens, logits_to_keep=1, **arguments)
        return self.wrapped.base_model(batch.tokens, **arguments)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Return parameters with the names and shapes of TransformerLens' own implementation if there is one; otherwise
        those of transformers, without what the bridge adds."""
        hooked = list(self._hooked_parameters()) if self._kind in _HOOKED else []
        named = set()
        for name, value in hooked:
            named.add(value.untyped_storage().data_ptr())
            if "b_" not in name or value.any():
                yield name, value
        for name, parameter in self.wrapped.named_parameters():
            name = name.replace("._original_component", "")
            added = ".qkv." in name or (name == "lm_head.bias" and not parameter.any())
            if not added and parameter.untyped_storage().data_ptr() not in named:
                yield name, parameter.detach()

    def _hooked_parameters(self) -> Iterator[tuple[str, Tensor]]:
        model = self.model
        outer = "embed." if self.encoder else ""
        yield f"{outer}embed.W_E", model.embed.W_E.detach()
        if hasattr(model, "pos_embed"):
            offset = 2 if self._kind == "opt" else 0
            yield f"{outer}pos_embed.W_pos", model.pos_embed.W_pos.detach()[offset:]
        modules: list[tuple[str, Any, tuple[str, ...]]] = []
        for layer, block in enumerate(model.blocks):
            path = f"blocks.{layer}"
            modules.append((f"{path}.attn", block.attn, ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")))
            modules.append((f"{path}.mlp", block.mlp, ("W_in", "b_in", "W_gate", "W_out", "b_out")))
            modules.append((f"{path}.ln1", block.ln1, ("w", "b")))
            modules.append((f"{path}.ln2", getattr(block, "ln2", block.ln1), ("w", "b")))
        modules.append(("mlm_head.ln" if self.encoder else "ln_final", self._final_norm, ("w", "b")))
        modules.append(("unembed", model, ("W_U", "b_U")))
        for path, module, leaves in modules:
            for leaf in leaves:
                tensor = _tensor(module, leaf)
                if tensor is not None:
                    yield f"{path}.{leaf}", tensor.detach()
        if self.encoder:
            types = self.wrapped.base_model.embeddings.token_type_embeddings
            yield "embed.token_type_embed.W_token_type", types.weight.detach()
            yield "embed.ln.w", model.embed_ln.weight.detach()
            yield "embed.ln.b", model.embed_ln.bias.detach()
            yield "mlm_head.W", model.mlm_head.weight.detach().T
            yield "mlm_head.b", model.mlm_head.bias.detach()

    def config(self) -> dict[str, Any]:
        config = settings_of(self._config, _NOT_OF_THE_PASS)
        config["scales"] = []
        for block in self.model.blocks:
            attention = getattr(getattr(block, "attn", None), "original_component", None)
            config["scales"].append(str(getattr(attention, "scaling", None)))
        return config

    def first_value(self, name: str) -> Literal["ones", "zeros", "drawn"]:
        parameter = self.wrapped.get_parameter(name.removeprefix("original_model."))
        if name.endswith("bias"):
            return "zeros"
        return "drawn" if parameter.ndim > 1 or not name.endswith("weight") else "zeros" if self._offset else "ones"

    def copied(self, instead: Mapping[int, Any] | None = None) -> Any:
        """Make a copy whose blocks capture what they read in the copy. TransformerLens' own hooks refer to the
        original."""
        for module in self.wrapped.modules():  # tensors left by a forward pass with gradients cannot be copied
            for name, value in vars(module).items():
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    setattr(module, name, value.detach())
        fresh = super().copied(instead)
        for block in getattr(fresh, self._blocks):
            block._teardown_capture_hooks()
            block._maybe_wire_capture_hooks()
        return fresh


class EncoderDecoder(Bridge):
    """A bridge of BART or T5: its decoder, prediction head, and predictions of a target after a source."""

    _blocks = "decoder_blocks"
    _classes = ("ForConditionalGeneration",)
    reads_source = True
    names: ClassVar[dict[Site, str]] = {
        "embed": "decoder_blocks.0.hook_in",
        "resid_post": "decoder_blocks.{layer}.hook_out",
        "head_input": "unembed.hook_in",
        "logits": "unembed.hook_out",
    }
    d_mlp = None

    def refused(self, site: Site) -> str | None:
        if site not in self.names:
            return "interp reads only the decoder's residual stream and prediction head of an encoder-decoder"
        return None

    @property
    def _final_norm(self) -> Any:
        return getattr(self.model, "decoder_ln_final", None)

    def live_head(self) -> HeadTensors:
        head = super().live_head()
        scaled = getattr(self._config, "scale_decoder_outputs", False) and head.gamma is not None
        return replace(head, gamma=head.gamma * head.unscaled.shape[0] ** -0.5) if scaled else head

    def live_attention(self, layer: int) -> Attention:
        empty = self.model.W_U.new_zeros(1, 1, 1)
        reasons = ("the decoder's queries also see the source, through separate keys",)
        return Attention(empty, empty, empty[0], 1.0, causal=True, why_not=reasons)

    def run(self, batch: Read, stop: int | None) -> Any:
        if batch.source is None:
            remedy = "make the batches with interp.corpora.seq2seq.teacher_forced"
            raise ValueError(f"an encoder-decoder reads pairs of a source and a target; {remedy}")
        options = {"decoder_input_ids": batch.tokens, "decoder_attention_mask": batch.mask, "use_cache": False}
        return self.wrapped(batch.source, attention_mask=batch.source_mask, **options).logits

    def config(self) -> dict[str, Any]:
        return settings_of(self._config, _NOT_OF_THE_PASS)


def why_not_linear(config: Any, attn: Any) -> Iterator[str]:
    """Return why the scores of an attention module of transformers are not sums over residual dimensions of the key.

    Args:
        config: that of the language model.
    """
    if any(getattr(attn, name, None) is not None for name in _NORMS_OF_KEYS):
        yield "queries and keys are normalised, so a score is not linear in the key's residual vector"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        yield "scores are soft-capped"
    if config.model_type in ("bloom", "mpt") or getattr(config, "alibi", False):
        yield "ALiBi adds a bias that belongs to no residual dimension"
    if getattr(config, "clip_qkv", None) is not None:
        yield "keys are clamped, so a score is not linear in the key's residual vector"
    rope = getattr(config, "rope_parameters", None) or {}
    if getattr(config, "attn_temperature_tuning", False) or "llama_4_scaling_beta" in rope:
        yield "queries are rescaled by position after their hook point"
    if getattr(attn, "sinks", None) is not None:
        yield "the softmax has a sink in addition to the keys"


def _tensor(module: Any, name: str) -> Tensor | None:
    value = getattr(module, name, None)
    return value if isinstance(value, Tensor) else None
