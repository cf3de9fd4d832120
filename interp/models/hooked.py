"""The views of TransformerLens' own implementations: `HookedTransformer` and `HookedEncoder`."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from interp.models import rotary
from interp.models.views import Attention, HeadTensors, Read, Site, View, settings_of

__all__ = ["DECODER_NAMES", "HookedDecoder", "HookedEncoder", "NoHead"]

_OF_BOTH: dict[Site, str] = {
    "q": "blocks.{layer}.attn.hook_q",
    "k": "blocks.{layer}.attn.hook_k",
    "v": "blocks.{layer}.attn.hook_v",
    "attn_scores": "blocks.{layer}.attn.hook_attn_scores",
    "pattern": "blocks.{layer}.attn.hook_pattern",
    "z": "blocks.{layer}.attn.hook_z",
    "resid_pre": "blocks.{layer}.hook_resid_pre",
    "rotated_q": "blocks.{layer}.attn.hook_rot_q",
    "attn_out": "blocks.{layer}.hook_attn_out",
    "mlp_post": "blocks.{layer}.mlp.hook_post",
    "mlp_out": "blocks.{layer}.hook_mlp_out",
    "head_input": "unembed.hook_in",
    "logits": "unembed.hook_out",
}
DECODER_NAMES = _OF_BOTH.copy()
DECODER_NAMES["embed"] = "blocks.0.hook_resid_pre"
DECODER_NAMES["resid_post"] = "blocks.{layer}.hook_resid_post"
DECODER_NAMES["attn_input"] = "blocks.{layer}.ln1.hook_normalized"
DECODER_NAMES["head_norm"] = "ln_final.hook_normalized"
_ENCODER_NAMES = _OF_BOTH.copy()
_ENCODER_NAMES["embed"] = "hook_full_embed"
_ENCODER_NAMES["resid_post"] = "blocks.{layer}.hook_normalized_resid_post"
_ENCODER_NAMES["attn_input"] = "blocks.{layer}.hook_resid_pre"
_ENCODER_NAMES["head_norm"] = "mlm_head.ln.hook_normalized"
_POSITIONS = {
    "alibi": "ALiBi adds a bias that belongs to no residual dimension",
    "relative_positional_bias": "relative positions add a bias that belongs to no residual dimension",
    "shortformer": "position embeddings are added to queries and keys alone",
}
_OPTIONS = {
    "use_qk_norm": "queries and keys are normalised, so a score is not linear in the key's residual vector",
    "clip_qkv": "keys are clamped, so a score is not linear in the key's residual vector",
    "use_logn_attn": "queries are rescaled by position after their hook point",
    "use_attention_sinks": "the softmax has a sink in addition to the keys",
    "use_split_qkv_input": "queries, keys and values have one input per head; set this flag in model.cfg to False",
    "use_attn_in": "the attention has one input per head; set this flag in model.cfg to False",
    "load_in_4bit": "the weights are packed in 4 bits",
}
_NORMALISED_QK = ("OlmoeForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM")
_HEADS_WITHOUT_BIAS = ("GPT2LMHeadModel", "OPTForCausalLM", "GPTNeoForCausalLM", "GPTNeoXForCausalLM")
_NOT_OF_THE_PASS = {"device", "n_devices", "seed", "model_name", "tokenizer_name", "tokenizer_prepends_bos"}


class _Hooked(View):
    """What both have in common."""

    narrows_at = "resid_post"

    @property
    def d_mlp(self) -> int | None:
        return None if self.model.cfg.attn_only or not self.model.cfg.n_layers else self.model.cfg.d_mlp

    def live_attention(self, layer: int) -> Attention:
        if not self.encoder and self.model.cfg.attention_dir != "causal":
            raise ValueError("a HookedTransformer with bidirectional attention does not mask its padding")
        attn = self.model.blocks[layer].attn
        norm = self._norm_before(layer)
        grouped = hasattr(attn, "_W_K") and not self.model.cfg.ungroup_grouped_query_attention
        return Attention(
            W_Q=attn.W_Q,
            W_K=attn._W_K if grouped else attn.W_K,
            b_K=attn._b_K if grouped else attn.b_K,
            scale=float(attn.attn_scale),
            causal=not self.encoder,
            window=self.model.cfg.window_size if attn.attn_type == "local" else None,
            rotation=rotary.Hooked(attn) if self.model.cfg.positional_embedding_type == "rotary" else None,
            gamma=getattr(norm, "w", None),
            ln_bias=getattr(norm, "b", None),
            normed_before=not self.encoder and self.model.cfg.normalization_type is not None,
            why_not=tuple(self._why_not()),
        )

    def _norm_before(self, layer: int) -> Any:
        """The norm that the attention of a block reads through."""
        raise NotImplementedError

    def _why_not(self) -> Iterator[str]:
        cfg = self.model.cfg
        for name, reason in _OPTIONS.items():
            if getattr(cfg, name, None):
                yield reason
        if cfg.attn_scores_soft_cap > 0:
            yield "scores are soft-capped"
        if cfg.original_architecture in _NORMALISED_QK:
            yield _OPTIONS["use_qk_norm"]
        if (positions := cfg.positional_embedding_type) not in ("standard", "rotary"):
            yield _POSITIONS.get(positions, f"interp does not know positions of type {positions!r}")

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters. Leaves out biases that are zero, which other implementations lack, and parameters that are
        not used."""
        for name, parameter in self.model.named_parameters():
            path, _, leaf = name.rpartition(".")
            leaf = leaf.lstrip("_")
            if not name.startswith(("pooler.", "nsp_head.")) and not (leaf.startswith("b") and not parameter.any()):
                yield f"{path}.{leaf}", parameter.detach()

    def config(self) -> dict[str, Any]:
        config = settings_of(self.model.cfg, _NOT_OF_THE_PASS)
        config["scales"] = [float(block.attn.attn_scale) for block in self.model.blocks]
        return config

    def first_value(self, name: str) -> Literal["ones", "zeros", "drawn"]:
        leaf = name.rpartition(".")[2].lstrip("_")
        return "ones" if leaf == "w" else "zeros" if leaf.startswith("b") else "drawn"


class NoHead(torch.nn.Module):
    """In place of the prediction head of an encoder that has none. Its `W_U` has a shape, a type and a device, and is
    zero."""

    why = "this model has no prediction head: its files have the encoder alone; attention and probing need none"

    zero: Tensor

    def __init__(self, d_model: int, d_vocab: int) -> None:
        super().__init__()
        self.shape = d_model, d_vocab
        self.register_buffer("zero", torch.zeros(1), persistent=False)

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        return self.zero.expand(self.shape)

    @property
    def b_U(self) -> Float[Tensor, " d_vocab"]:
        return self.zero.expand(self.shape[1])

    def forward(self, resid: Tensor) -> Tensor:
        raise ValueError(self.why)


class HookedDecoder(_Hooked):
    """A `HookedTransformer`."""

    encoder = False
    names = DECODER_NAMES

    def _norm_before(self, layer: int) -> Any:
        return getattr(self.model.blocks[layer], "ln1", None)

    def live_head(self) -> HeadTensors:
        cfg = self.model.cfg
        final = getattr(self.model, "ln_final", None)
        norms = {None: None, "LN": "layer", "RMS": "rms", "RMSPre": "folded rms", "LNPre": "folded"}
        norm: Any = "rms" if cfg.final_rms and cfg.normalization_type == "LN" else norms[cfg.normalization_type]
        return HeadTensors(
            unscaled=self.model.W_U,
            b_U=self.model.b_U if self.model.b_U.any() else None,
            norm=norm,
            eps=float(cfg.eps),
            gamma=getattr(final, "w", None),
            b_ln=getattr(final, "b", None),
            had_bias=cfg.original_architecture not in _HEADS_WITHOUT_BIAS,
            cap=cfg.output_logits_soft_cap if cfg.output_logits_soft_cap > 0 else None,
        )

    def run(self, batch: Read, stop: int | None) -> Any:
        return self.model(batch.tokens, attention_mask=self._mask(batch), stop_at_layer=stop)

    @property
    def starts_within(self) -> bool:
        return self.model.cfg.positional_embedding_type != "shortformer"  # whose blocks all read the positions

    def run_from(
        self, layer: int, resid: Float[Tensor, "batch pos d_model"], batch: Read, stop: int | None = None
    ) -> Any:
        return self.model(resid, attention_mask=self._mask(batch), start_at_layer=layer, stop_at_layer=stop)

    def _mask(self, batch: Read) -> Tensor | None:
        # Right padding changes nothing at real positions of a causal model, unless it pads on the left by default.
        pads_left = self.model.tokenizer is not None and self.model.tokenizer.padding_side == "left"
        return batch.mask if pads_left else None


class HookedEncoder(_Hooked):
    """A `HookedEncoder`."""

    encoder = True
    names = _ENCODER_NAMES
    starts_within = True

    def _norm_before(self, layer: int) -> Any:
        return self.model.blocks[layer - 1].ln2 if layer else self.model.embed.ln

    @property
    def why_no_head(self) -> str | None:
        return NoHead.why if isinstance(self.model.unembed, NoHead) else None

    def refused(self, site: Site) -> str | None:
        return self.why_no_head if site in ("head_norm", "head_input", "logits") else None

    def live_head(self) -> HeadTensors:
        if self.why_no_head:
            raise ValueError(self.why_no_head)
        mlm = self.model.mlm_head
        eps = float(self.model.cfg.eps)
        tensors = {"gamma": mlm.ln.w, "b_ln": mlm.ln.b, "W_fc": mlm.W, "b_fc": mlm.b}
        return HeadTensors(self.model.W_U, self.model.b_U, "layer", eps, **tensors)

    def run(self, batch: Read, stop: int | None) -> Any:
        run = self.model if stop is None else self.model.encoder_output
        return run(batch.tokens, one_zero_attention_mask=None if bool(batch.mask.all()) else batch.mask)

    def run_from(
        self, layer: int, resid: Float[Tensor, "batch pos d_model"], batch: Read, stop: int | None = None
    ) -> Any:
        hidden = rearrange(batch.mask == 0, "batch pos -> batch 1 1 pos")
        added = torch.where(hidden, -torch.inf, 0.0) if bool(hidden.any()) else None
        for block in list(self.model.blocks)[layer:stop]:
            resid = block(resid, added)
        return resid if stop is not None else self.model.unembed(self.model.mlm_head(resid))
