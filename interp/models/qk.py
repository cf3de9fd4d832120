"""The query–key circuit of a block, which turns residual vectors into scores, in one form for every model.

`S[m, n] = (R_m q_m) · (R_n (x_n W_K + b_K))` with `q_m = x_m W_Q + b_Q`, where R is the rotation of RoPE, or the
identity in a model without RoPE.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from interp.models.head import LOAD_RAW, is_identity
from interp.models.sites import Model, check_model, hook_name, view
from interp.models.spans import Span
from interp.models.verify import verify_scores
from interp.models.views import Attention, View
from interp.support.checks import whole_number
from interp.support.choices import Several, listed

SCORES_AT_ONCE = 2**18  # scores that fit in a processor's cache

__all__ = ["SCORES_AT_ONCE", "QKCircuit", "check_dims", "check_layers", "input_name", "qk_circuit", "refuse_folded"]
__all__ += ["why_no_scores", "why_unreadable"]
__dir__ = __all__.copy


@dataclass(frozen=True, eq=False)
class QKCircuit:
    """A view of one block's keys and scores.

    `W_K` `[n_heads, d_model, d_head]` and `b_K` `[n_heads, d_head]` have one slice per query head, repeated if query
    heads share their keys; `W_K_stored` has one slice per head of `hook_k`. Scores are divided by `scale`. `ln_bias` is
    the part of x that all tokens share: the bias of the norm that x comes from. Weights are those of the model, moved
    to the `device` of the unembedding if the block is on another device.
    """

    layer: int
    input_name: str
    query_name: str
    device: torch.device
    _attention: Attention

    def read_again(self, model: Model) -> "QKCircuit":
        """Return the circuit as the model's parameters are now, through which gradients flow."""
        return replace(self, _attention=view(model).live_attention(self.layer))

    @property
    def span(self) -> Span:
        """Which keys each query sees."""
        return self._attention.span

    @property
    def W_Q(self) -> Float[Tensor, "n_heads d_model d_head"]:
        return self._attention.W_Q.to(self.device)

    @property
    def W_K_stored(self) -> Float[Tensor, "n_kv_heads d_model d_head"]:
        return self._attention.W_K.to(self.device)

    @property
    def W_K(self) -> Float[Tensor, "n_heads d_model d_head"]:
        return self.W_K_stored.repeat_interleave(self._groups, 0) if self._groups > 1 else self.W_K_stored

    @property
    def b_K(self) -> Float[Tensor, "n_heads d_head"]:
        stored = self._attention.b_K.to(self.device)
        return stored.repeat_interleave(self._groups, 0) if self._groups > 1 else stored

    @property
    def ln_bias(self) -> Float[Tensor, " d_model"] | None:
        return None if (bias := self._attention.ln_bias) is None else bias.to(self.device)

    @property
    def rotates(self) -> bool:
        """Whether keys and queries are rotated by position (RoPE)."""
        return self._attention.rotation is not None

    @property
    def scale(self) -> float:
        return self._attention.scale

    @property
    def _groups(self) -> int:
        return self._attention.W_Q.shape[0] // self._attention.W_K.shape[0]

    def attn_input(self, activation: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """Compute x, the input of W_Q and W_K, from the activation at the site `attn_input`."""
        return self._attention.input_of(activation)

    def at_positions(
        self, directions: Float[Tensor, "n head d_head"], length: int
    ) -> Float[Tensor, "n #key head d_head"]:
        """Compute `R_n k` for each vector k at each position n of a row. Without RoPE it is the same at all positions,
        and is given once."""
        n_keys = length if self.rotates else 1
        return self.rotate(directions[:, None].expand(-1, n_keys, -1, -1))

    def towards(self, k: Float[Tensor, "*n kv_head d_head"]) -> Float[Tensor, "*n kv_head d_model"]:
        """Compute `γ ⊙ W_K k`: the direction in which the normalised input of attention must move for the key of a head
        (before RoPE) to grow fastest along the vector k."""
        direction = einsum(self.W_K_stored.to(k), k, "head d_model d_head, ... head d_head -> ... head d_model")
        gamma = self._attention.gamma if self._attention.normed_before else None
        return direction if gamma is None else direction * gamma.to(direction)

    def rotate(self, k: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_head"]:
        """Compute `R_n k_n` for the vector at each position n."""
        return k if self._attention.rotation is None else self._attention.rotation.forth(k)

    def patterns(
        self,
        q: Float[Tensor, "batch pos head d_head"],
        k: Float[Tensor, "batch pos kv_head d_head"],
        real: Bool[Tensor, "batch pos"],
    ) -> Iterator[tuple[slice, slice, Float[Tensor, "batch head query key"]]]:
        """Yield attention probabilities for a few queries at a time, each with the slices of queries and keys they
        belong to. No array over all queries and all keys is made. `q` and `k` are the activations of these sites,
        before RoPE."""
        for queries, keys, scores in self.scores(q, k, real):
            yield queries, keys, scores.softmax(-1)

    def scores(
        self,
        q: Float[Tensor, "batch pos head d_head"],
        k: Float[Tensor, "batch pos kv_head d_head"],
        real: Bool[Tensor, "batch pos"],
    ) -> Iterator[tuple[slice, slice, Float[Tensor, "batch head query key"]]]:
        """Yield attention scores for a few queries at a time, −∞ at keys that a query does not see; see `patterns`."""
        wide = torch.promote_types(q.dtype, torch.float32)
        q = self.rotate(q).to(wide) / self.scale
        k = self.rotate(k).to(wide)
        k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
        batch, length, heads = q.shape[:3]
        step = max(1, SCORES_AT_ONCE // (batch * heads * length))
        for start in range(0, length, step):
            queries = slice(start, min(start + step, length))
            keys = slice(0, queries.stop if self.span.causal else length)
            in_span = self.span.mask(length, queries)[:, keys].to(q.device)
            visible = in_span & (
                real[:, None, None, keys] | ~real[:, None, queries, None]
            )  # padding, whose rows are never read
            scores = einsum(
                q[:, queries], k[:, keys], "batch query head d_head, batch key head d_head -> batch head query key"
            )
            yield queries, keys, scores.masked_fill_(~visible, -torch.inf)

    def rotate_back(self, u: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_head"]:
        """Compute `R_nᵀ u_n` for the vector at each position n."""
        return u if self._attention.rotation is None else self._attention.rotation.back(u)


def qk_circuit(model: Model, layer: int) -> QKCircuit:
    """Return the query–key circuit of a block.

    Raises ValueError for a layer that does not exist; for a folded model, whose weights are centred; and for a model
    whose scores are not sums over residual dimensions (ALiBi and relative positions, normalised or clamped queries and
    keys, soft-capped scores).
    """
    query_name = hook_name(model, "q", layer)
    model_view = view(model)
    model_view.refuse_drawn()
    attention = model_view.attention(layer)
    if attention.why_not:
        reasons = "; ".join(attention.why_not)
        raise ValueError(f"attention scores of this model cannot be decomposed by residual dimension: {reasons}")
    refuse_folded(model_view)
    verify_scores(model)
    return QKCircuit(
        layer=layer,
        input_name=input_name(model, layer),
        query_name=query_name,
        device=model.W_U.device,
        _attention=attention,
    )


def why_no_scores(model: Model) -> str | None:
    """Return why attention scores of a model cannot be decomposed by residual dimension, or None if they can."""
    try:
        for layer in range(model.cfg.n_layers):
            qk_circuit(model, layer)
    except ValueError as error:
        return str(error)
    return None


def why_unreadable(model: Model) -> str | None:
    """Return why attention cannot be studied (its patterns do not exist, or weights are not those that the model was
    trained with), or None if it can."""
    model_view = view(model)
    try:
        model_view.refuse_drawn()
        for layer in range(model.cfg.n_layers):
            hook_name(model, "pattern", layer)
            model_view.attention(layer)
        refuse_folded(model_view)
    except ValueError as error:
        return str(error)
    return None


def input_name(model: Model, layer: int) -> str:
    """Return the hook point of the activation from which `Attention.input_of` computes the input of a block's
    attention."""
    return hook_name(model, "attn_input" if view(model).attention(layer).normed_before else "resid_pre", layer)


def refuse_folded(model_view: View) -> None:
    """Raise ValueError for a model whose norms are folded into its weights."""
    if model_view.encoder:
        return
    first = model_view.attention(0)
    identity = first.gamma is not None and first.ln_bias is not None and is_identity(first.gamma, first.ln_bias)
    if str(model_view.head().norm).startswith("folded") or (
        identity and first.W_K.mean(1).abs().max() < 1e-5 * first.W_K.abs().max()
    ):
        problem = "this model's layer norms are folded into its weights, which changes what each dimension contributes"
        raise ValueError(f"{problem}; {LOAD_RAW}")


def check_layers(model: Model, layers: Several[int] | None) -> list[int]:
    """Check the given layers as a list; all layers for None.

    Raises ValueError for a layer that does not exist or is given twice, and TypeError for anything but whole numbers,
    or if `model` is not a model.
    """
    check_model(model)
    return _distinct(range(model.cfg.n_layers) if layers is None else layers, model.cfg.n_layers, "layers", "a layer")


def check_dims(model: Model, dims: Several[int]) -> list[int]:
    """Check the given dimensions of the residual stream as a list.

    Raises ValueError for a dimension that does not exist or is given twice, and TypeError for anything but whole
    numbers, or if `model` is not a model.
    """
    check_model(model)
    return _distinct(dims, model.cfg.d_model, "dims", "a dimension")


def _distinct(numbers: Several[int], n: int, name: str, item: str) -> list[int]:
    chosen = [whole_number(number, item) for number in listed(numbers)]
    if not chosen or len(set(chosen)) < len(chosen) or not 0 <= min(chosen) <= max(chosen) < n:
        raise ValueError(f"{name} must be different numbers in 0 … {n - 1}, found {chosen}")
    return chosen
