"""Recipes: functions that return `[(hook name, hook function), …]` for a model you already have.

Pass a recipe wherever TransformerLens takes hooks. Recipes compose with `+`:

    with model.hooks(fwd_hooks=scale_bias(model, "ln", 0.5) + adjust_logits(model, log_prior, 0.3)):
        logits = model(tokens)

A recipe acts on every position in the same way and edits no parameter. It has no effect after the context ends.

A recipe belongs to its model. It reads the model's parameters when a hook fires, so training steps, edits in place and
merged adapters count, and gradients are those of the function that the model computes with the recipe. With another
model, also with a copy, and after an adapter was attached to the weights it reads, it raises ValueError.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Real
from torch import Tensor

from interp.models.edits import Edit, Replaced, joint_edit, recipe_of
from interp.models.head import Bias, prediction_head
from interp.models.qk import QKCircuit, check_dims, check_layers, qk_circuit
from interp.models.running import firing
from interp.models.sites import Model, Recipe, Site, hook_name, state_name, trunk_output, view
from interp.models.verify import verify_queries
from interp.support.checks import check_choice, check_mode, finite_number
from interp.support.choices import Mode, Several, listed

__all__ = ["ablate_dims", "adjust_logits", "capture", "firing", "permute_keys", "prune_output_dims", "scale_bias"]
__all__ += ["shift_head_input"]
__dir__ = __all__.copy


def capture(
    model: Model, site: Site, into: dict[str, Float[Tensor, "_batch ..."]], *, layer: int | None = None
) -> Recipe:
    """Store the latest activation of a site in `into[hook name]`, detached.

    Raises ValueError for an unknown site or layer.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> model, seen = toy_decoder(), {}
        >>> with model.hooks(fwd_hooks=capture(model, "resid_post", seen, layer=1)):
        ...     logits = model("w1 w2", prepend_bos=False)
        >>> [tuple(activation.shape) for activation in seen.values()]
        [(1, 2, 16)]
    """
    name = hook_name(model, site, layer)

    def keep(activation: Tensor, hook: Any) -> None:
        into[name] = activation.detach()

    return [(name, Edit(model, name, keep))]


def scale_bias(model: Model, bias: Bias, factor: float | int) -> Recipe:
    """Multiply a bias of the prediction head by `factor`, as if the parameter had been multiplied.

    `"ln"` is the bias b_LN of the last layer norm before the unembedding. In a folded HookedTransformer it is scaled
    through `b_U`, which is exact up to a constant over the vocabulary. `"last"` is the bias added to the logits.
    `"fc"` is the bias of the dense layer in BERT's MLM head; the hook recomputes the dense layer, GELU and norm.

    Source: Kobayashi et al., Findings of ACL 2023, §3. The factor is relative to the model's own bias, so two recipes
    for the same bias do not multiply: for ln and last the total factor is `1 + (a − 1) + (b − 1)`, and for fc only the
    second recipe counts.

    Raises:
        ValueError: the model does not have this bias (RMSNorm has no b_LN, GPT-2 no b_FC), or the factor is not finite.
        TypeError: the factor is not a number.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> with model.hooks(fwd_hooks=scale_bias(model, "ln", 0.5)):
        ...     logits = model("w1 w2")
        >>> model.ln_final.b.data *= 0.5  # the same, permanently
        >>> torch.allclose(logits, model("w1 w2"), atol=1e-5)
        True
    """
    head = prediction_head(model)
    head.require(bias)
    if head.folded:
        head.refuse_cap("a folded bias cannot be scaled exactly")
    factor = finite_number(factor, "factor")
    parts = [part for name in ("ln_final", "decoder_ln_final", "mlm_head") if (part := getattr(model, name, None))]
    if bias == "fc":

        def rescale(trunk: Tensor, normalized: Tensor) -> Tensor:
            return view(model).live_head().encoder_norm(trunk, factor).to(normalized.dtype)

        names = [trunk_output(model), hook_name(model, "head_norm")]
        return recipe_of(joint_edit(model, names, rescale, parts=parts))
    in_input = bias == "ln" and not head.folded
    name = hook_name(model, "head_input" if in_input else "logits")

    def scale(activation: Tensor, hook: Any) -> Tensor:
        head = view(model).live_head()
        parameter = head.b_ln if in_input else head.b_U
        return activation if parameter is None else (activation + (factor - 1) * parameter).to(activation.dtype)

    return [(name, Edit(model, name, scale, parts=parts))]


def shift_head_input(model: Model, vector: Float[np.ndarray | Tensor, " d_model"]) -> Recipe:
    """Add a vector to the input h of the unembedding: `h + v`.

    With `v = (λ − 1) E[h]`, it scales the mean of h as `scale_bias` scales b_LN, in a model that has none.

    Raises ValueError for a vector of another length, or one that is not finite.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> with model.hooks(fwd_hooks=shift_head_input(model, torch.ones(16))):
        ...     logits = model("w1 w2")
        >>> torch.allclose(logits, model("w1 w2") + model.W_U.sum(0), atol=1e-5)
        True
    """
    head = prediction_head(model)
    added = _real(vector, "vector")
    d_model = model.cfg.d_model
    if tuple(added.shape) != (d_model,) or not torch.isfinite(added).all():
        raise ValueError(f"vector must have {d_model} finite numbers, found shape {tuple(added.shape)}")
    added = added.to(model.W_U.device, head.wide)
    name = hook_name(model, "head_input")
    return [(name, Edit(model, name, lambda h, hook: (h + added).to(h.dtype)))]


def adjust_logits(
    model: Model, log_prior: Real[np.ndarray | Tensor, " d_vocab"] | Sequence[float], tau: float | int
) -> Recipe:
    """Logit adjustment: `logits − τ log u` (Menon et al. 2021, eq. 9).

    Args:
        log_prior: the finite log-probability of each token, `[d_vocab]`, in nats. Use the smoothed
            `Unigrams.log_prior()`: an unseen token has log u = −∞, which would set its logit to +∞.
        tau: the strength τ. 1 removes the prior from a calibrated model, and 0 changes nothing.

    Raises:
        ValueError: the prior belongs to another vocabulary, or has infinite values or values above 0 (such as counts);
            or the model soft-caps its logits.

    Examples:
        >>> from interp.corpora import count_unigrams
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> log_prior = count_unigrams(model, ["w1 w2 w2"]).log_prior()
        >>> with model.hooks(fwd_hooks=adjust_logits(model, log_prior, 0.5)):
        ...     logits = model("w1 w2")
        >>> torch.allclose(logits, model("w1 w2") - 0.5 * torch.tensor(log_prior).float(), atol=1e-5)
        True
    """
    head = prediction_head(model)
    head.refuse_cap("they cannot be adjusted exactly")
    prior = _real(log_prior, "log_prior")
    d_vocab = model.W_U.shape[1]
    if (shape := tuple(prior.shape)) != (d_vocab,):
        raise ValueError(f"log_prior must have one value for each of {d_vocab} tokens, found shape {shape}")
    if not torch.isfinite(prior).all():
        raise ValueError("log_prior has infinite or NaN values; smooth the counts with Unigrams.log_prior()")
    if (prior > 0).any():
        raise ValueError("log_prior must be log-probabilities, at most 0; found larger values (are these counts?)")
    added = -finite_number(tau, "tau") / head.scale * prior.to(model.W_U.device, head.wide)
    name = hook_name(model, "logits")
    return [(name, Edit(model, name, lambda logits, hook: (logits + added).to(logits.dtype)))]


def ablate_dims(
    model: Model,
    layer: int,
    dims: Several[int],
    *,
    where: Literal["keys", "queries", "residual"],
    mode: Mode = "zero",
    means: Float[np.ndarray | Tensor, " d_model"] | None = None,
    along: Float[np.ndarray | Tensor, "dim d_model"] | None = None,
) -> Recipe:
    """Remove residual dimensions from one block: from its keys, from its queries, or from the residual stream it reads.

    `"keys"` and `"queries"` replace `x_j` by `m_j` exactly, and only in the keys (or queries) of that block: at every
    token, `Σ_j (x_j − m_j) W_K[j]` is subtracted from the key, where x is the attention input after `·γ + b`. Values
    and the residual stream do not change. `"residual"` sets the dimensions in the residual stream that enters the block
    (layer n_layers means the final one, which the prediction head reads). `m` is 0, or with `mode="mean"` the given
    means: of x for keys and queries, of the residual stream for `"residual"`.
    Recipes compose in any order; of two for the same dimension of the same keys, the last counts.

    With `along`, the same is removed from elsewhere: `x − Σ_i (x_{j_i} − m_{j_i}) r_i` replaces x, where r_i are the
    given directions. With random ones (`interp.instruments.rotations.random_frames`) this is a control of equal size.

    Args:
        dims: dimensions of the residual stream, 0 … d_model − 1. An empty list removes nothing.
        means: one value per dimension, `[d_model]`.
        along: one direction for each of `dims`, `[dims, d_model]`. Default: the axes of the dimensions themselves.

    Raises ValueError for a layer or dimension that does not exist, for an unknown mode, for `mode="mean"` without
    means, for means and directions that are not finite, and for directions that are not one per dimension; also for
    keys and queries if scores are not sums over residual dimensions (see `interp.models.qk.qk_circuit`). Raises
    TypeError for a layer or dimension that is not a whole number.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> model, seen = toy_decoder(), {}
        >>> recipe = ablate_dims(model, 1, [3, 5], where="residual")
        >>> with model.hooks(fwd_hooks=recipe + capture(model, "resid_pre", seen, layer=1)):
        ...     logits = model("w1 w2")
        >>> [resid[..., [3, 5]].any().item() for resid in seen.values()]
        [False]
    """
    chosen = check_dims(model, dims) if listed(dims) else []
    check_mode(mode)
    check_choice("where", where, ("keys", "queries", "residual"))
    if (mode == "mean") != (means is not None):
        raise ValueError("mode='mean' needs means= with one value per dimension, and mode='zero' takes no means")
    fill = torch.zeros(model.cfg.d_model) if means is None else _real(means, "means")
    if fill.shape != (model.cfg.d_model,):
        raise ValueError(f"means must be [{model.cfg.d_model}], found {tuple(fill.shape)}")
    fill = fill[chosen].to(model.W_U)
    if not torch.isfinite(fill).all():
        raise ValueError(f"means has values that are NaN, infinite or too large for {fill.dtype}")
    removed = Replaced(chosen, fill, None if along is None else _directions(model, along, len(chosen)))
    if where == "residual":
        name = state_name(model, layer)
        return [(name, Edit(model, name, lambda resid, hook: removed(resid)))]
    if where == "queries":
        verify_queries(model)
    return _ablate_projection(model, qk_circuit(model, layer), where, removed)


def _directions(model: Model, along: Any, n: int) -> Float[Tensor, "dim d_model"]:
    directions = _real(along, "along")
    if directions.shape != (n, model.cfg.d_model):
        raise ValueError(f"along must be [{n}, {model.cfg.d_model}], found {tuple(directions.shape)}")
    directions = directions.to(model.W_U)
    if not torch.isfinite(directions).all():
        raise ValueError(f"along has values that are NaN, infinite or too large for {directions.dtype}")
    return directions


def permute_keys(
    model: Model,
    permutation: Real[np.ndarray | Tensor, "*shape"] | Sequence[int],
    *,
    layers: Several[int] | None = None,
) -> Recipe:
    """Shuffle the keys of a row among its positions: position n gets the key vector of the token at `permutation[n]`.

    Keys are moved before RoPE, so that the rotation stays with the position, while a learnt position moves with the
    token. Queries, values, the mask and everything else stay where they are, and all heads of all these blocks get the
    same permutation. Recipes compose in any order, but two permutations do not commute.

    Args:
        permutation: the positions 0 … n − 1 of a row in another order, `[pos]`, or one such order for each row of a
            batch, `[batch, pos]`. Padding should stay where it is.
        layers: TransformerLens' block numbers. Default: all.

    Raises ValueError for anything but permutations, for a layer that does not exist, and, when the model runs, for rows
    of another number or length. Raises TypeError for positions that are not whole numbers.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> model, plain, moved = toy_decoder(), {}, {}
        >>> tokens = torch.tensor([[7, 8, 9]])
        >>> with model.hooks(fwd_hooks=capture(model, "k", plain, layer=0)):
        ...     logits = model(tokens)
        >>> with model.hooks(fwd_hooks=permute_keys(model, [2, 0, 1]) + capture(model, "k", moved, layer=0)):
        ...     logits = model(tokens)
        >>> [torch.equal(moved[name], keys[:, [2, 0, 1]]) for name, keys in plain.items()]
        [True]
    """
    order = _real(permutation, "permutation")
    if order.is_floating_point():
        raise TypeError(f"permutation must have whole numbers, found {order.dtype}")
    places = torch.arange(order.shape[-1] if order.ndim else 0, device=order.device)
    if order.ndim not in (1, 2) or not torch.equal(order.sort(-1).values, places.expand_as(order)):
        expected = "each of 0 … n − 1 once, [pos] or [batch, pos]"
        raise ValueError(
            f"permutation must have {expected}, found {order.tolist()!r:.60} of shape {tuple(order.shape)}"
        )

    def moved(k: Tensor) -> Tensor:
        if order.shape[-1] != k.shape[1] or (order.ndim == 2 and len(order) != len(k)):
            raise ValueError(f"a permutation of shape {tuple(order.shape)} cannot order {len(k)} rows of {k.shape[1]}")
        return k.gather(1, order.to(k.device).expand(len(k), -1)[..., None, None].expand_as(k))

    edits = []
    for layer in check_layers(model, layers):
        edit = Edit(model, hook_name(model, "k", layer), lambda k, hook: moved(k))
        edit.moves = moved
        edits.append(edit)
    return recipe_of(edits)


def _real(values: Any, name: str) -> Tensor:
    """Real numbers as a tensor. Raises TypeError for anything else (strings, truth values, complex numbers), and
    ValueError for whole numbers that are too large."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = ValueError if "verflow" in str(error) else TypeError
        raise kind(f"{name} must be real numbers, found {values!r:.60}") from error
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise TypeError(f"{name} must be real numbers, found {str(tensor.dtype).removeprefix('torch.')}")
    return tensor


def _ablate_projection(
    model: Model, circuit: QKCircuit, where: Literal["keys", "queries"], removed: Replaced
) -> Recipe:
    """Remove dimensions of x from the keys or queries of a block. Of two recipes for the same dimension, the last
    counts."""

    def subtract(activation: Tensor, projected: Tensor) -> Tensor:
        live = circuit.read_again(model)
        x = live.attn_input(activation)
        for earlier in edit.earlier():
            x = x if earlier.replaces is None else earlier.replaces(x)
        weight = (live.W_K_stored if where == "keys" else live.W_Q).to(x.device)
        rows = weight[:, removed.dims] if removed.along is None else removed.along.to(weight) @ weight
        projection = einsum(removed.excess(x), rows, "batch pos dim, head dim d_head -> batch pos head d_head")
        for earlier in edit.earlier():
            projection = projection if earlier.moves is None else earlier.moves(projection)
        return projected - projection.to(projected.dtype)

    names = [circuit.input_name, hook_name(model, "k" if where == "keys" else "q", circuit.layer)]
    *reading, edit = joint_edit(model, names, subtract, parts=[model.blocks[circuit.layer].attn])
    edit.replaces = removed
    return recipe_of([*reading, edit])


def prune_output_dims(
    model: Model, dims: Several[int], *, basis: Float[np.ndarray | Tensor, "d_model d_model"] | None = None
) -> Recipe:
    """Set dimensions of the unembedding's input to zero, as if those rows of an untied `W_U` were zero.

    Zeroing the rows of a tied matrix would also change the input embeddings; this recipe does not. The dimensions stay
    zero whatever other recipes add to them, before or after.

    Args:
        dims: the dimensions to remove, 0 … d_model − 1. With `basis` these are the numbers of its rows.
        basis: orthonormal directions as rows, such as `Fit.components`. Default: the axes.

    Raises ValueError for a dimension that does not exist, or for a basis that has the wrong size or is not orthonormal.
    Raises TypeError for a dimension that is not a whole number.

    Examples:
        >>> from interp.testing import toy_decoder
        >>> model, seen = toy_decoder(), {}
        >>> recipe = prune_output_dims(model, range(8))
        >>> with model.hooks(fwd_hooks=recipe + capture(model, "head_input", seen)):
        ...     logits = model("w1 w2")
        >>> [h.any(dim=(0, 1)).tolist() for h in seen.values()] == [[False] * 8 + [True] * 8]
        True
    """
    chosen = check_dims(model, dims) if listed(dims) else []
    name = hook_name(model, "head_input")
    d_model = model.cfg.d_model
    if basis is None:
        removed = Replaced(chosen, torch.zeros(len(chosen)))
        return [(name, Edit(model, name, lambda h, hook: removed(h), zeroes=True))]
    rows = torch.as_tensor(basis).double()
    if rows.shape != (d_model, d_model) or not torch.allclose(rows @ rows.T, torch.eye(d_model).to(rows), atol=1e-4):
        raise ValueError(f"basis must be [{d_model}, {d_model}] with orthonormal rows, found {tuple(rows.shape)}")
    directions = rows[chosen].to(model.W_U)
    return [(name, Edit(model, name, lambda h, hook: h - (h @ directions.T) @ directions, zeroes=True))]
