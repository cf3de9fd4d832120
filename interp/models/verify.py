"""Identities that hold for every model that interp reads correctly, checked on one row before a bridge is used.

A `TransformerBridge` may wrap an architecture that was never tested. What its view says must reproduce the model's own
numbers; otherwise the question is refused.
"""

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from interp.models.embeddings import Embeddings
from interp.models.running import active_hooks, firing
from interp.models.sites import Model, hook_name, trunk_output, view
from interp.models.views import Attention, HeadTensors, Site, Tokens, View

__all__ = ["verify_head", "verify_neurons", "verify_queries", "verify_scores", "verify_values"]

_LENGTH = 16
_LONGEST = 512
_LIMITS = ("attention_chunk_size", "original_max_position_embeddings", "sliding_window", "window_size")
"""Settings beyond which a model may treat positions differently, so that the row must be longer."""
_LEAST_ATTENTION = 1e-20
_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}  # some models compute a softmax in float32 whatever their dtype
_TOLERANCE_OF_HALF = 0.25
_verified: WeakKeyDictionary[Model, dict[Callable[[Model], None], int]] = WeakKeyDictionary()


def verify_head(model: Model) -> None:
    """Raise ValueError unless the tensors of the prediction head reproduce the model's logits.

    Checked once for a bridge: `x̂ = (x − m)/s`, `h = x̂ ⊙ γ + b_LN`, `logits = scale · (h W_U + b_U)`, soft-capped if
    the model does that, and for BERT with `x' = GELU(x W_fc + b_fc)` before it.
    """
    _once(model, verify_head, _check_head, "its prediction head", "logits")


def verify_scores(model: Model) -> None:
    """Raise ValueError unless queries, keys, scale, window and rotation reproduce the model's attention.

    Checked once for a bridge, in every layer: the log-softmax of `(R q) · (R (x W_K + b_K)) / scale` over the keys that
    a query sees, against the logarithm of the attention probabilities.
    """
    _once(model, verify_scores, _check_scores, "attention scores", "log-probabilities of attention")


def verify_queries(model: Model) -> None:
    """Raise ValueError unless W_Q makes the queries, up to a bias, from the input of attention.

    Checked once for a bridge, in every layer: `q_m − q_1 = (x_m − x_1) W_Q`. An adapter on the queries is not in W_Q.
    """
    _once(model, verify_queries, _check_queries, "what a dimension adds to queries", "queries")


def verify_neurons(model: Model) -> None:
    """Raise ValueError unless the neurons of the last MLP add their rows of W_out to the residual stream.

    Checked once for a bridge. This detects a norm after the MLP, or a factor on its output.
    """
    _once(model, verify_neurons, _check_neurons, "what a neuron adds", "residual streams")


def verify_values(model: Model) -> None:
    """Raise ValueError unless the input of W_O is the values weighted by attention, `z = Σ α v`.

    Checked once for a bridge. This detects a norm or a gate between the two.
    """
    _once(model, verify_values, _check_values, "what attention moves", "weighted values")


def _once(
    model: Model, which: Callable[[Model], None], check: Callable[[Model, View], float], what: str, units: str
) -> None:
    seen = view(model)
    if seen.wrapped is None:
        return
    seen.refuse_drawn()
    modules = hash(tuple((name, type(one).__name__) for name, one in seen.wrapped.named_modules()))  # such as adapters
    if _verified.get(model, {}).get(which) == modules:
        return
    if hooks := active_hooks(model):
        why = f"hooks are active on it ({', '.join(hooks[:3])})"
        how = f"call interp.models.verify.{which.__name__}(model) once without them"
        raise RuntimeError(f"this TransformerBridge has not been checked yet, and {why}; {how}")
    kind, modules_of_both = type(seen.wrapped).__name__, {*model.modules(), *seen.wrapped.modules()}
    training = [one for one in modules_of_both if one.training]
    try:
        model.eval()
        with torch.no_grad():
            error = check(model, seen)
    except (AttributeError, KeyError, IndexError, TypeError, RuntimeError) as failure:
        raise ValueError(f"{what} cannot be computed for this {kind}: {failure}") from failure
    finally:
        for one in training:
            one.training = True
    allowed = _TOLERANCE.get(model.W_U.dtype, _TOLERANCE_OF_HALF)
    if not error <= allowed:
        differs = f"{units} differ by {error:.1e} from the model's own (allowed {allowed:.0e})"
        raise ValueError(f"{what} cannot be computed for this {kind}: {differs}, so interp cannot use them")
    _verified.setdefault(model, {})[which] = modules


def _row(model: Model, length: int) -> Tokens:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.cfg.d_vocab, (1, min(length, model.cfg.n_ctx)), generator=generator)
    tokens = tokens.to(model.W_U.device)
    return Tokens(tokens, torch.ones_like(tokens), tokens, torch.ones_like(tokens))


def _check_head(model: Model, seen: View) -> float:
    head = seen.head()
    if head.norm == "folded rms":
        return 0.0  # the matrices of such a head are never read
    names = {"h": hook_name(model, "head_input"), "u": hook_name(model, "logits"), "x": trunk_output(model)}
    if head.norm is not None and seen.refused("head_norm") is None:
        names["normed"] = hook_name(model, "head_norm")
    found: dict[str, Tensor] = {}

    def keep(activation: Tensor, hook: object, name: str) -> None:
        found[name] = activation.float()

    with firing(model, [(name, partial(keep, name=key)) for key, name in names.items()]):
        logits = seen.run(_row(model, _LENGTH), None).float()
    u = Embeddings(head.W_U).dot(found["h"][0])[None]
    u = u if head.b_U is None else u + head.b_U.float()
    finished = head.scale * u
    pairs = [(finished if head.cap is None else head.cap * torch.tanh(finished / head.cap), logits)]
    if head.norm is not None:
        normed = _normed(head, found["x"]) if head.W_fc is None else _encoder_norm(head, found["x"])
        h = normed if head.gamma is None else normed * head.gamma.float()
        pairs.append((h if head.b_ln is None else h + head.b_ln.float(), found["h"]))
        pairs += [(normed, found["normed"])] if "normed" in found else []
    return _largest([(ours - theirs).abs().max() / theirs.abs().max().clamp(min=1) for ours, theirs in pairs])


def _largest(errors: list[Tensor]) -> float:
    """The largest value; NaN if one of them is NaN."""
    return float(torch.stack(errors).max()) if errors else 0.0


def _normed(head: HeadTensors, x: Tensor) -> Tensor:
    centred = x if head.norm == "rms" else x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + head.eps).sqrt()


def _encoder_norm(head: HeadTensors, x: Tensor) -> Tensor:
    assert head.W_fc is not None
    assert head.b_fc is not None
    hidden = torch.nn.functional.gelu(x @ head.W_fc.float() + head.b_fc.float())
    return torch.nn.functional.layer_norm(hidden, hidden.shape[-1:], eps=head.eps)


def _check_scores(model: Model, seen: View) -> float:
    every = ((layer, seen.attention(layer)) for layer in range(model.cfg.n_layers))
    layers = [(layer, attention) for layer, attention in every if not attention.why_not]
    errors: list[Tensor] = []
    recipe = []
    for layer, attention in layers:
        found: dict[str, Tensor] = {}

        def keep(activation: Tensor, hook: object, key: str, found: dict[str, Tensor], attention: Attention) -> None:
            found[key] = activation.detach()
            if len(found) == 3:
                errors.append(_score_error(attention, found))
                found.clear()

        sites = {"x": "attn_input" if attention.normed_before else "resid_pre", "q": "q", "pattern": "pattern"}
        for key, site in sites.items():
            name = hook_name(model, site, layer)  # type: ignore[arg-type]
            recipe.append((name, partial(keep, key=key, found=found, attention=attention)))
    with firing(model, recipe):
        seen.run(_row(model, _long_enough(seen)), model.cfg.n_layers)
    return _largest(errors)


def _check_queries(model: Model, seen: View) -> float:
    every = ((layer, seen.attention(layer)) for layer in range(model.cfg.n_layers))
    errors: list[Tensor] = []
    recipe = []
    for layer, attention in [(layer, attention) for layer, attention in every if not attention.why_not]:
        inputs: list[Tensor] = []

        def compare(q: Tensor, hook: object, inputs: list[Tensor], attention: Attention) -> None:
            own, attention = q.float(), attention.to(q.device)
            x = _attention_input(attention, inputs.pop().float())
            between = torch.einsum("bmd,hde->bmhe", x - x[:, :1], attention.W_Q.float())
            errors.append((own - own[:, :1] - between).abs().max() / own.abs().max().clamp(min=1))

        x_name = hook_name(model, "attn_input" if attention.normed_before else "resid_pre", layer)
        recipe.append((x_name, lambda x, hook, inputs=inputs: inputs.append(x)))
        recipe.append((hook_name(model, "q", layer), partial(compare, inputs=inputs, attention=attention)))
    with firing(model, recipe):
        seen.run(_row(model, _LENGTH), model.cfg.n_layers)
    return _largest(errors)


def _attention_input(attention: Attention, activation: Tensor) -> Tensor:
    """x in float32, from the activation at the site `attn_input`."""
    if not attention.normed_before:
        return activation
    x = activation if attention.gamma is None else activation * attention.gamma.float()
    return x if attention.ln_bias is None else x + attention.ln_bias.float()


def _long_enough(seen: View) -> int:
    """A row length beyond every limit of the config that is short enough to be exceeded."""
    config = seen.wrapped.config.get_text_config()
    limits = [getattr(config, name, None) for name in _LIMITS]
    limits.append((getattr(config, "rope_parameters", None) or {}).get("original_max_position_embeddings"))
    return max([_LENGTH, *(limit + 8 for limit in limits if isinstance(limit, int) and limit <= _LONGEST)])


def _check_values(model: Model, seen: View) -> float:
    errors: list[Tensor] = []
    recipe = []
    keys: tuple[Site, ...] = ("v", "pattern", "z")
    for layer in range(model.cfg.n_layers):
        found: dict[str, Tensor] = {}

        def keep(activation: Tensor, hook: object, key: str, found: dict[str, Tensor]) -> None:
            found[key] = activation.float()
            if len(found) == len(keys):  # in some models the pattern comes last
                pattern, v = found["pattern"], found["v"]
                v = v.repeat_interleave(pattern.shape[1] // v.shape[2], 2)
                expected = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
                errors.append((found["z"] - expected).abs().max() / expected.abs().max().clamp(min=1))

        for key in keys:
            name = hook_name(model, key, layer)
            recipe.append((name, partial(keep, key=key, found=found)))
    with firing(model, recipe):
        seen.run(_row(model, _LENGTH), model.cfg.n_layers)
    return _largest(errors)


def _check_neurons(model: Model, seen: View) -> float:
    last = model.cfg.n_layers - 1
    W_out, tokens = seen.W_out(last).to(model.W_U.device).float(), _row(model, _LENGTH)
    edit = torch.randn(W_out.shape[0], generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(W_out)
    found: list[Tensor] = []
    read = [(trunk_output(model), lambda resid, hook: found.append(resid.float()))]
    edited = [(hook_name(model, "mlp_post", last), lambda neurons, hook: (neurons + edit).to(neurons.dtype))]
    for recipe in (read, edited + read):
        with firing(model, recipe):
            seen.run(tokens, model.cfg.n_layers)
    expected = edit @ W_out
    return float((found[1] - found[0] - expected).abs().max() / expected.abs().max().clamp(min=1))


def _score_error(attention: Attention, found: dict[str, Tensor]) -> Tensor:
    x, q, pattern = (found[key].float() for key in ("x", "q", "pattern"))
    attention = attention.to(x.device)
    x = _attention_input(attention, x)
    k = torch.einsum("bnd,hde->bnhe", x, attention.W_K.float()) + attention.b_K.float()
    if attention.rotation is not None:
        q, k = attention.rotation.forth(q), attention.rotation.forth(k)
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    scores = torch.einsum("bmhe,bnhe->bhmn", q, k) / attention.scale
    length = x.shape[1]
    visible = torch.ones(length, length, dtype=torch.bool, device=x.device)
    if attention.causal:
        visible = visible.tril()
    if attention.window is not None:
        visible = visible.triu(1 - attention.window)
    alpha = pattern * visible
    alpha = alpha / alpha.sum(-1, keepdim=True)
    compared = visible & (alpha > _LEAST_ATTENTION)
    error = (scores.masked_fill(~visible, -torch.inf).log_softmax(-1) - alpha.log())[compared].abs()
    hidden = (pattern * ~visible).amax()
    return error.max() if hidden < _LEAST_ATTENTION else torch.full_like(hidden, torch.inf)
