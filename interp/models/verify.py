"""Identities that hold for every model that interp reads correctly, checked on two rows before a bridge is used.

A `TransformerBridge` may wrap an architecture that was never tested. What its view says must reproduce the model's own
numbers; otherwise the question is refused.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from interp.models.embeddings import Embeddings
from interp.models.running import active_hooks, firing
from interp.models.sites import Model, Recipe, hook_name, trunk_output, view
from interp.models.views import Attention, HeadTensors, Site, Tokens, View

__all__ = ["verify_all", "verify_head", "verify_neurons", "verify_queries", "verify_scores", "verify_values"]

_ROWS, _LENGTH = 2, 16
_LONGEST = 512
_LIMITS = ("attention_chunk_size", "original_max_position_embeddings", "sliding_window", "window_size")
"""Settings beyond which a model may treat positions differently, so that the rows must be longer."""
_LEAST_ATTENTION = 1e-20
_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}  # some models compute a softmax in float32 whatever their dtype
_TOLERANCE_OF_HALF = 0.25
_FAILURES = (AttributeError, KeyError, IndexError, TypeError, RuntimeError)


@dataclass(frozen=True)
class _Check:
    """Hooks that read two equal rows of a model, and the error of an identity that follows from what they have read and
    from the logits."""

    recipe: Recipe
    error: Callable[[Tensor], float]
    length: int = _LENGTH


@dataclass(frozen=True)
class _Identity:
    """An identity, which function checks it, what is refused without it, and what differs if it does not hold."""

    name: str
    check: Callable[[Model, View], _Check]
    what: str
    units: str


_verified: WeakKeyDictionary[Model, dict[str, int]] = WeakKeyDictionary()


def verify_head(model: Model) -> None:
    """Raise ValueError unless the tensors of the prediction head reproduce the model's logits.

    Checked once for a bridge: `x̂ = (x − m)/s`, `h = x̂ ⊙ γ + b_LN`, `logits = scale · (h W_U + b_U)`, soft-capped if
    the model does that, and for BERT with `x' = GELU(x W_fc + b_fc)` before it.
    """
    _verify(model, _HEAD)


def verify_scores(model: Model) -> None:
    """Raise ValueError unless queries, keys, scale, window and rotation reproduce the model's attention.

    Checked once for a bridge, in every layer: the log-softmax of `(R q) · (R (x W_K + b_K)) / scale` over the keys that
    a query sees, against the logarithm of the attention probabilities.
    """
    _verify(model, _SCORES)


def verify_queries(model: Model) -> None:
    """Raise ValueError unless W_Q makes the queries, up to a bias, from the input of attention.

    Checked once for a bridge, in every layer: `q_m − q_1 = (x_m − x_1) W_Q`. An adapter on the queries is not in W_Q.
    """
    _verify(model, _QUERIES)


def verify_neurons(model: Model) -> None:
    """Raise ValueError unless the neurons of the last MLP add their rows of W_out to the residual stream.

    Checked once for a bridge. This detects a norm after the MLP, or a factor on its output.
    """
    _verify(model, _NEURONS)


def verify_values(model: Model) -> None:
    """Raise ValueError unless the input of W_O is the values weighted by attention, `z = Σ α v`.

    Checked once for a bridge. This detects a norm or a gate between the two.
    """
    _verify(model, _VALUES)


def verify_all(model: Model) -> None:
    """Check what `verify_head`, `verify_scores`, `verify_neurons` and `verify_values` check, in one forward pass.

    Nothing is raised: what does not hold is refused when it is used.
    """
    model_view = view(model)
    if model_view.wrapped is None:
        return
    identities = (_HEAD, _SCORES, _NEURONS, _VALUES)
    checks = {}
    for identity in identities:
        with suppress(ValueError, *_FAILURES):
            checks[identity.name] = identity.check(model, model_view)
    modules = _modules(model_view)
    try:
        errors = _errors(model, model_view, list(checks.values()))
    except (ValueError, *_FAILURES):  # of one of them
        for identity in identities:
            with suppress(ValueError):
                _verify(model, identity)
        return
    for name, error in zip(checks, errors, strict=True):
        if error <= _allowed(model):
            _verified.setdefault(model, {})[name] = modules


def _verify(model: Model, identity: _Identity) -> None:
    model_view = view(model)
    if model_view.wrapped is None:
        return
    model_view.refuse_drawn()
    modules = _modules(model_view)
    if _verified.get(model, {}).get(identity.name) == modules:
        return
    if hooks := active_hooks(model):
        reason = f"hooks are active on it ({', '.join(hooks[:3])})"
        remedy = f"call interp.models.verify.{identity.name}(model) once without them"
        raise RuntimeError(f"this TransformerBridge has not been checked yet, and {reason}; {remedy}")
    kind = type(model_view.wrapped).__name__
    try:
        (error,) = _errors(model, model_view, [identity.check(model, model_view)])
    except _FAILURES as failure:
        raise ValueError(f"{identity.what} cannot be computed for this {kind}: {failure}") from failure
    if not error <= _allowed(model):
        differs = f"{identity.units} differ by {error:.1e} from the model's own (allowed {_allowed(model):.0e})"
        raise ValueError(f"{identity.what} cannot be computed for this {kind}: {differs}, so interp cannot use them")
    _verified.setdefault(model, {})[identity.name] = modules


def _modules(model_view: View) -> int:
    """A number that changes with the modules of a model, such as adapters."""
    return hash(tuple((name, type(module).__name__) for name, module in model_view.wrapped.named_modules()))


def _allowed(model: Model) -> float:
    return _TOLERANCE.get(model.W_U.dtype, _TOLERANCE_OF_HALF)


@torch.no_grad()
def _errors(model: Model, model_view: View, checks: Sequence[_Check]) -> list[float]:
    """The errors of several checks, read in one forward pass without dropout."""
    length = min(max(check.length for check in checks), model.cfg.n_ctx)
    row = torch.randint(model.cfg.d_vocab, (1, length), generator=torch.Generator().manual_seed(0))
    tokens = row.expand(_ROWS, length).to(model.W_U.device)
    mask = torch.ones_like(tokens)
    training = [module for module in {*model.modules(), *model_view.wrapped.modules()} if module.training]
    try:
        if training:
            model.eval()
        recipe: Recipe = []
        for check in checks:
            recipe.extend(check.recipe)
        with firing(model, recipe):
            logits = model_view.run(Tokens(tokens, mask, tokens, mask), None).float()
        return [check.error(logits) for check in checks]
    finally:
        for module in training:
            module.training = True


def _check_head(model: Model, model_view: View) -> _Check:
    head = model_view.head()
    if head.norm == "folded rms":
        return _Check([], lambda logits: 0.0)  # the matrices of such a head are never read
    names = {"h": hook_name(model, "head_input"), "x": trunk_output(model)}
    if head.norm is not None and model_view.refused("head_norm") is None:
        names["normed"] = hook_name(model, "head_norm")
    activations: dict[str, Tensor] = {}

    def keep(activation: Tensor, hook: object, name: str) -> None:
        activations[name] = activation.float()

    def error(logits: Tensor) -> float:
        u = Embeddings(head.unscaled).dot(activations["h"].flatten(0, 1)).view_as(logits)
        u = u if head.b_U is None else u + head.b_U.float()
        pairs = [(head.finished(u), logits)]
        if head.norm is not None:
            normed = _normed(head, activations["x"])
            h = normed if head.gamma is None else normed * head.gamma.float()
            pairs.append((h if head.b_ln is None else h + head.b_ln.float(), activations["h"]))
            pairs += [(normed, activations["normed"])] if "normed" in activations else []
        return _largest([(ours - theirs).abs().max() / theirs.abs().max().clamp(min=1) for ours, theirs in pairs])

    return _Check([(name, partial(keep, name=key)) for key, name in names.items()], error)


def _largest(errors: list[Tensor]) -> float:
    """The largest value; NaN if one of them is NaN."""
    return float(torch.stack(errors).max()) if errors else 0.0


def _normed(head: HeadTensors, x: Tensor) -> Tensor:
    if head.W_fc is not None and head.b_fc is not None:
        return replace(head, W_fc=head.W_fc.float(), b_fc=head.b_fc.float()).encoder_norm(x)
    centred = x if head.norm == "rms" else x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + head.eps).sqrt()


def _linear_layers(model: Model, model_view: View) -> list[int]:
    """The layers whose scores are sums over residual dimensions."""
    return [layer for layer in range(model.cfg.n_layers) if not model_view.attention(layer).why_not]


def _check_layers(
    model: Model,
    model_view: View,
    layers: Iterable[int],
    sites: Sequence[Site],
    error: Callable[[Attention, dict[Site, Tensor]], Tensor],
) -> _Check:
    """The largest error in some layers, each computed from the activations at these sites in float32. `attn_input`
    stands for x, the input of W_Q and W_K."""
    errors: list[Tensor] = []
    recipe: Recipe = []

    def keep(activation: Tensor, hook: object, site: Site, layer: int, activations: dict[Site, Tensor]) -> None:
        activations[site] = activation.float()
        if len(activations) == len(sites):  # in some models the pattern comes last
            attention = model_view.attention(layer).to(activation.device, torch.float32)
            if "attn_input" in activations:
                activations["attn_input"] = attention.input_of(activations["attn_input"])
            errors.append(error(attention, activations))
            activations.clear()

    for layer in layers:
        activations: dict[Site, Tensor] = {}
        for site in sites:
            before_norm = site != "attn_input" or model_view.attention(layer).normed_before
            name = hook_name(model, site if before_norm else "resid_pre", layer)
            recipe.append((name, partial(keep, site=site, layer=layer, activations=activations)))
    return _Check(recipe, lambda logits: _largest(errors))


def _check_scores(model: Model, model_view: View) -> _Check:
    layers = _linear_layers(model, model_view)
    check = _check_layers(model, model_view, layers, ("attn_input", "q", "pattern"), _score_error)
    return replace(check, length=_long_enough(model_view))


def _check_queries(model: Model, model_view: View) -> _Check:
    def error(attention: Attention, activations: dict[Site, Tensor]) -> Tensor:
        x, q = activations["attn_input"], activations["q"]
        between = torch.einsum("bmd,hde->bmhe", x - x[:, :1], attention.W_Q)
        return (q - q[:, :1] - between).abs().max() / q.abs().max().clamp(min=1)

    return _check_layers(model, model_view, _linear_layers(model, model_view), ("attn_input", "q"), error)


def _long_enough(model_view: View) -> int:
    """A row length beyond every limit of the config that is short enough to be exceeded."""
    config = model_view.wrapped.config.get_text_config()
    limits = [getattr(config, name, None) for name in _LIMITS]
    limits.append((getattr(config, "rope_parameters", None) or {}).get("original_max_position_embeddings"))
    length = _LENGTH
    for limit in limits:
        if isinstance(limit, int) and limit <= _LONGEST:
            length = max(length, limit + 8)
    return length


def _check_values(model: Model, model_view: View) -> _Check:
    def error(attention: Attention, activations: dict[Site, Tensor]) -> Tensor:
        pattern, v = activations["pattern"], activations["v"]
        expected = torch.einsum("bhqk,bkhd->bqhd", pattern, v.repeat_interleave(pattern.shape[1] // v.shape[2], 2))
        return (activations["z"] - expected).abs().max() / expected.abs().max().clamp(min=1)

    return _check_layers(model, model_view, range(model.cfg.n_layers), ("v", "pattern", "z"), error)


def _check_neurons(model: Model, model_view: View) -> _Check:
    last = model.cfg.n_layers - 1
    W_out = model_view.W_out(last).to(model.W_U.device).float()
    edit = torch.randn(W_out.shape[0], generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(W_out)
    resid: list[Tensor] = []

    def edit_second_row(neurons: Tensor, hook: object) -> Tensor:
        first, second = neurons.chunk(_ROWS)  # some models have no axis of rows here
        return torch.cat([first, (second + edit).to(neurons.dtype)])

    def error(logits: Tensor) -> float:
        plain, edited = resid[0].float()
        expected = edit @ W_out
        return float((edited - plain - expected).abs().max() / expected.abs().max().clamp(min=1))

    return _Check(
        [(hook_name(model, "mlp_post", last), edit_second_row),
         (trunk_output(model), lambda activation, hook: resid.append(activation))],
        error,
    )  # fmt: skip


def _score_error(attention: Attention, activations: dict[Site, Tensor]) -> Tensor:
    x = activations["attn_input"]
    q = activations["q"]
    pattern = activations["pattern"]
    k = torch.einsum("bnd,hde->bnhe", x, attention.W_K) + attention.b_K
    if attention.rotation is not None:
        q, k = attention.rotation.forth(q), attention.rotation.forth(k)
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    scores = torch.einsum("bmhe,bnhe->bhmn", q, k) / attention.scale
    visible = attention.span.mask(x.shape[1]).to(x.device)
    alpha = pattern * visible
    alpha = alpha / alpha.sum(-1, keepdim=True)
    compared = visible & (alpha > _LEAST_ATTENTION)
    error = (scores.masked_fill(~visible, -torch.inf).log_softmax(-1) - alpha.log())[compared].abs()
    hidden = (pattern * ~visible).amax()
    return error.max() if hidden < _LEAST_ATTENTION else torch.full_like(hidden, torch.inf)


_HEAD = _Identity("verify_head", _check_head, "its prediction head", "logits")
_SCORES = _Identity("verify_scores", _check_scores, "attention scores", "log-probabilities of attention")
_QUERIES = _Identity("verify_queries", _check_queries, "what a dimension adds to queries", "queries")
_NEURONS = _Identity("verify_neurons", _check_neurons, "what a neuron adds", "residual streams")
_VALUES = _Identity("verify_values", _check_values, "what attention moves", "weighted values")
