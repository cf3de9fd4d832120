"""Recipes: functions that return `[(hook name, hook function), …]` for a model you already have.

Pass a recipe wherever TransformerLens takes hooks. Recipes compose with `+`:

    with model.hooks(fwd_hooks=scale_bias(model, "ln", 0.5) + adjust_logits(model, log_prior, 0.3)):
        logits = model(tokens)

A recipe acts on every position in the same way and edits no parameter. It has no effect after the context ends.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Real
from torch import Tensor

from interp.checks import check_choice, check_mode, finite_number
from interp.declare import Mode, Several, listed
from interp.models.head import Bias, prediction_head
from interp.models.qk import check_dims, qk_circuit
from interp.models.running import firing
from interp.models.sites import Model, Recipe, Site, hook_name, state_name, trunk_output, view

__all__ = ["ablate_dims", "adjust_logits", "capture", "firing", "prune_output_dims", "scale_bias"]


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

    return [(name, keep)]


def jointly(names: Sequence[str], function: Callable[..., Any]) -> Recipe:
    """Call a function with the activations at these hook points, in this order, when the last of them fires. Its return
    value replaces the last activation; None leaves it unchanged.
    """
    seen: dict[str, Tensor] = {}

    def keep(activation: Tensor, hook: Any, name: str) -> Any:
        seen[name] = activation
        return function(*map(seen.pop, names)) if name == names[-1] else None

    return [(name, partial(keep, name=name)) for name in names]


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
    if bias == "fc":

        def rescale(trunk: Tensor, normalized: Tensor) -> Tensor:
            return head.encoder_norm(trunk, factor).to(normalized.dtype)

        return jointly([trunk_output(model), hook_name(model, "head_norm")], rescale)
    if bias == "ln" and not head.folded:
        assert head.b_ln is not None
        return _add(model, "head_input", (factor - 1) * head.b_ln)
    return _add(model, "logits", (factor - 1) * head.effect(bias))


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
    prediction_head(model).refuse_cap("they cannot be adjusted exactly")
    prior, d_vocab = torch.as_tensor(log_prior), model.W_U.shape[1]
    if (shape := tuple(prior.shape)) != (d_vocab,):
        raise ValueError(f"log_prior must have one value for each of {d_vocab} tokens, found shape {shape}")
    if not torch.isfinite(prior).all():
        raise ValueError("log_prior has infinite or NaN values; smooth the counts with Unigrams.log_prior()")
    if (prior > 0).any():
        raise ValueError("log_prior must be log-probabilities, at most 0; found larger values (are these counts?)")
    tau = finite_number(tau, "tau")
    wide = torch.promote_types(model.W_U.dtype, torch.float32)
    return _add(model, "logits", -tau * prior.to(model.W_U.device, wide))


def ablate_dims(
    model: Model,
    layer: int,
    dims: Several[int],
    *,
    where: Literal["keys", "queries", "residual"],
    mode: Mode = "zero",
    means: Float[np.ndarray | Tensor, " d_model"] | None = None,
) -> Recipe:
    """Remove residual dimensions from one block: from its keys, from its queries, or from the residual stream it reads.

    `"keys"` and `"queries"` replace `x_j` by `m_j` exactly, and only in the keys (or queries) of that block: at every
    token, `Σ_j (x_j − m_j) W_K[j]` is subtracted from the key, where x is the attention input after `·γ + b`. Values
    and the residual stream do not change. `"residual"` sets the dimensions in the residual stream that enters the block
    (layer n_layers means the final one, which the prediction head reads). `m` is 0, or with `mode="mean"` the given
    means: of x for keys and queries, of the residual stream for `"residual"`. Recipes for different dimensions of the
    same keys compose. A recipe for the residual stream must come before one for the keys of the same block.

    Args:
        dims: dimensions of the residual stream, 0 … d_model − 1. An empty list removes nothing.
        means: one value per dimension, `[d_model]`.

    Raises ValueError for a layer or dimension that does not exist, for an unknown mode, for `mode="mean"` without means
    and for means that are not finite; also for keys and queries if scores are not sums over residual dimensions (see
    `interp.models.qk.qk_circuit`). Raises TypeError for a layer or dimension that is not a whole number.

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
    fill = torch.zeros(model.cfg.d_model) if means is None else torch.as_tensor(means)
    if fill.shape != (model.cfg.d_model,):
        raise ValueError(f"means must be [{model.cfg.d_model}], found {tuple(fill.shape)}")
    if fill.is_complex():
        raise ValueError("means are complex; expected the mean of each dimension, a real number")
    if not torch.isfinite(fill).all():
        raise ValueError("means has NaN or infinite values; expected the mean of each dimension")
    fill = fill[chosen].to(model.W_U.dtype)
    if where == "residual":

        def overwrite(resid: Tensor, hook: Any) -> Tensor:
            resid = resid.clone()
            resid[..., chosen] = fill.to(resid)
            return resid

        return [(state_name(model, layer), overwrite)]
    circuit = qk_circuit(model, layer)
    rows = (circuit.W_K_stored if where == "keys" else circuit.W_Q)[:, chosen]

    def subtract(activation: Tensor, projected: Tensor) -> Tensor:
        excess = circuit.attn_input(activation.detach())[..., chosen] - fill.to(activation.device)
        projection = einsum(
            excess, rows.to(activation.device), "batch pos dim, head dim d_head -> batch pos head d_head"
        )
        return projected - projection.to(projected.dtype)

    return jointly([circuit.input_name, hook_name(model, "k" if where == "keys" else "q", layer)], subtract)


def prune_output_dims(
    model: Model, dims: Several[int], *, basis: Float[np.ndarray | Tensor, "d_model d_model"] | None = None
) -> Recipe:
    """Set dimensions of the unembedding's input to zero, as if those rows of an untied `W_U` were zero.

    Zeroing the rows of a tied matrix would also change the input embeddings; this recipe does not.

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
    chosen = check_dims(model, dims)
    name, d_model = hook_name(model, "head_input"), model.cfg.d_model
    if basis is None:
        return [(name, lambda h, hook: h.index_fill(-1, torch.tensor(chosen, device=h.device), 0))]
    rows = torch.as_tensor(basis).double()
    if rows.shape != (d_model, d_model) or not torch.allclose(rows @ rows.T, torch.eye(d_model).to(rows), atol=1e-4):
        raise ValueError(f"basis must be [{d_model}, {d_model}] with orthonormal rows, found {tuple(rows.shape)}")
    removed = rows[chosen].to(model.W_U)
    return [(name, lambda h, hook: h - (h @ removed.T) @ removed)]


def _add(model: Model, site: Literal["head_input", "logits"], vector: Float[Tensor, " d"]) -> Recipe:
    """Add a vector to the unembedding's input, or to the model's logits (which may be scaled after their site)."""
    if site == "logits":
        vector = vector / view(model).head().scale
    return [(hook_name(model, site), lambda activation, hook: (activation + vector).to(activation.dtype))]
