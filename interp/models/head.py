"""The prediction head of any model, in one form.

A decoder's logits are `((x − m)/s ⊙ γ + b_LN) W_U + b_last`. In BERT, `x' = GELU(x W_fc + b_fc)` replaces x.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.models.embeddings import Embeddings
from interp.models.sites import Model, view
from interp.models.verify import verify_head
from interp.models.views import HeadTensors
from interp.support.checks import check_choice
from interp.support.choices import Bias

__all__ = ["BIASES", "LOAD_RAW", "PredictionHead", "is_identity", "prediction_head", "real_tokens"]
__dir__ = __all__.copy

BIASES: tuple[Bias, ...] = get_args(Bias)
_DESCRIPTION = {
    "ln": "layer-norm bias b_LN before the unembedding",
    "fc": "dense-layer bias b_FC in the prediction head",
    "last": "output bias b_last on the logits",
}
LOAD_RAW = "load the model raw (interp.load, from_pretrained_no_processing, a bridge without processing)"
"""What to do instead of using a folded model."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictionHead(HeadTensors):
    """A view of the prediction head, without copies: the tensors of the model, and which biases exist.

    `unscaled` is the model's `W_U`, `[d_model, d_vocab]`. `gamma` and `b_ln` are the scale and bias of the final norm
    (None if there are none, or if they are folded into `W_U` and `b_U`). Only BERT has `W_fc` and `b_fc`. `b_last` is
    the bias added to the logits. If a model multiplies its logits by a `scale` (Cohere, Granite), `W_U` and the biases
    include that factor. `cap` is the soft cap of the logits, applied as `cap · tanh(logits / cap)`. `folded` means that
    TransformerLens has folded the norm into the unembedding; `b_U` then contains `b_LN W_U` up to a constant over the
    vocabulary.
    """

    b_U: Float[Tensor, " d_vocab"]
    b_last: Float[Tensor, " d_vocab"] | None
    tokenizer: Any
    why_absent: dict[str, str]
    folded: bool

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """`scale · unscaled`: the model's own tensor, or a copy if the model multiplies its logits."""
        return self.unscaled if self.scale == 1 else self.scale * self.unscaled

    @property
    def embeddings(self) -> Embeddings:
        """The columns of `W_U`, which can be read in blocks."""
        return Embeddings(self.unscaled, self.scale)

    @property
    def wide(self) -> torch.dtype:
        """The dtype of `W_U`, but at least float32."""
        return torch.promote_types(self.unscaled.dtype, torch.float32)

    @cached_property
    def real(self) -> Bool[Tensor, " d_vocab"]:
        """Which rows of the vocabulary are tokens. A padded vocabulary has more rows than tokens."""
        return _real(self.tokenizer, self.unscaled)

    @property
    def d_vocab(self) -> int:
        return self.unscaled.shape[1]

    @property
    def biases(self) -> tuple[Bias, ...]:
        """The biases that exist and can be scaled, in the order ln, fc, last."""
        return tuple(bias for bias in BIASES if bias not in self.why_absent)

    def require(self, bias: str) -> None:
        """Raise `ValueError` unless this head has that bias and it can be scaled."""
        check_choice("bias", bias, BIASES)
        if bias in self.why_absent:
            reason = self.why_absent[bias]
            available = ", ".join(self.biases) or "none"
            raise ValueError(f"this model has no {_DESCRIPTION[bias]} to scale: {reason}; available here: {available}")

    @cached_property
    def _ln_effect(self) -> Float[Tensor, " d_vocab"]:
        return self.b_U if self.b_ln is None else self.embeddings.dot(self.b_ln.to(self.wide)[None])[0]

    def refuse_cap(self, consequence: str) -> None:
        """Raise `ValueError` if the logits are soft-capped, so that an edit of them has no closed form."""
        if self.cap is not None:
            raise ValueError(
                f"this model soft-caps its logits (at {self.cap:g}) after the unembedding, so {consequence}"
            )

    def effect(self, bias: Bias) -> Float[Tensor, " d_vocab"]:
        """Return what a bias adds to each logit: `b_LN W_U` for ln (up to a constant if folded), `b_last` for last.

        Units: logits (nats). Raises ValueError if there is no such bias, and for fc, whose effect is not constant.
        """
        self.require(bias)
        if bias == "fc":
            raise ValueError("the effect of b_FC differs between positions; use hooks.scale_bias to see it")
        if bias == "last":
            assert self.b_last is not None
            return self.b_last
        return self._ln_effect

    def of_residual(self, vectors: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
        """Return what vectors in a decoder's final residual stream become in the unembedding's input, up to the final
        norm's division: `(v − mean v) ⊙ γ`. An RMSNorm does not subtract the mean, and without a norm they stay the
        same."""
        if self.gamma is None:
            return vectors
        centred = vectors if self.norm == "rms" else vectors - vectors.mean(-1, keepdim=True)
        return centred * self.gamma.to(vectors)

    def encoder_logits(self, resid: Float[Tensor, "*pos d_model"], fc: float = 1.0) -> Float[Tensor, "*pos d_vocab"]:
        """Return BERT's logits from the final residual stream, with b_fc multiplied by `fc`."""
        assert self.gamma is not None
        assert self.b_ln is not None
        return (self.encoder_norm(resid, fc) * self.gamma + self.b_ln) @ self.W_U + self.b_U


def prediction_head(model: Model) -> PredictionHead:
    """Return the prediction head of a TransformerLens model, raw or folded.

    If a folded `b_U` may mix b_LN with the head's own bias, neither counts as existing, and `require` says why.

    Raises ValueError for a bridge whose head does not agree with its view (see `interp.models.verify`).
    """
    verify_head(model)
    tensors = view(model).head()
    b_U = tensors.b_U
    if b_U is not None and tensors.scale != 1:
        b_U = tensors.scale * b_U
    identity = tensors.gamma is not None and tensors.b_ln is not None and is_identity(tensors.gamma, tensors.b_ln)
    folded = tensors.norm == "folded" or (identity and b_U is not None and tensors.W_fc is None)
    fields = dict(vars(tensors), b_U=tensors.unscaled.new_zeros(tensors.unscaled.shape[1]) if b_U is None else b_U)
    if folded:
        fields.update(gamma=None, b_ln=None)
    return PredictionHead(
        **fields,
        b_last=None if folded else b_U,
        tokenizer=model.tokenizer,
        why_absent=_why_absent(tensors, folded),
        folded=folded,
    )


def is_identity(gamma: Float[Tensor, " d_model"], bias: Float[Tensor, " d_model"]) -> bool:
    """Whether a norm's scale and bias are 1 and 0, as TransformerLens leaves them when it folds."""
    return bool((gamma == 1).all()) and not bool(bias.any())


def _why_absent(tensors: HeadTensors, folded: bool) -> dict[str, str]:
    """For each bias that cannot be scaled, the reason."""
    absent = {}
    if tensors.W_fc is None:
        absent["fc"] = "only a BERT-like head has a dense layer"
    if folded:
        return absent | _why_absent_where_folded(tensors)
    if tensors.b_U is None:
        absent["last"] = "the unembedding has no bias (b_U is zero)"
    norms = {
        None: "there is no final norm",
        "rms": "its final norm is an RMSNorm, which has no bias",
        "folded rms": "its final norm is an RMSNorm, which has no bias",
        "layer without bias": "its final LayerNorm has no bias",
    }
    if tensors.norm in norms:
        absent["ln"] = norms[tensors.norm]
    return absent


def _why_absent_where_folded(tensors: HeadTensors) -> dict[str, str]:
    """The biases that do not exist after the norm was folded: `b_U = b_LN W_U − mean` if the head had no bias."""
    if tensors.b_U is None:
        return dict.fromkeys(("ln", "last"), "the layer norm is folded and b_U is zero, so no bias is left")
    if not tensors.had_bias:
        return {"last": "the layer norm is folded into b_U, and the head had no bias of its own"}
    ambiguity = (
        "the layer norm was folded, or has weight 1 and bias 0 while b_U is not zero: b_U may contain b_LN W_U, the "
        f"head's own bias, or both, and for this architecture they cannot be told apart; {LOAD_RAW}"
    )
    return dict.fromkeys(("ln", "last"), ambiguity)


def real_tokens(model: Model) -> Bool[Tensor, " d_vocab"]:
    """Mark which rows of the output vocabulary are tokens: those that the tokenizer knows, or all if there is no
    tokenizer.

    Pythia, for example, has more rows than tokens; the surplus rows are untrained.
    """
    return _real(model.tokenizer, model.W_U)


def _real(tokenizer: Any, W_U: Float[Tensor, "d_model d_vocab"]) -> Bool[Tensor, " d_vocab"]:
    rows = torch.arange(W_U.shape[1], device=W_U.device)
    if tokenizer is None:
        return torch.ones_like(rows, dtype=torch.bool)
    return torch.isin(rows, torch.tensor(list(tokenizer.get_vocab().values()), device=rows.device))
