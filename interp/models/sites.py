"""Places in a model. A *site* is a place, and `hook_name` gives the TransformerLens hook point there."""

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, get_args

from interp.models.bridge import Bridge, EncoderDecoder
from interp.models.hooked import HookedDecoder, HookedEncoder
from interp.models.views import Model, Site, View
from interp.support.checks import check_choice, whole_number

__all__ = ["Model", "Recipe", "Site", "check_model", "check_vocabulary", "depth", "head_sites", "hook_name"]
__all__ += ["how_to_load", "is_encoder", "narrowing", "state_name", "trunk_output", "view"]
__dir__ = __all__.copy

Recipe: TypeAlias = list[tuple[str | Callable[..., Any], Callable[..., Any]]]
"""`[(hook name, hook function), …]`, the type of `fwd_hooks` in `model.hooks` and `model.run_with_hooks`."""

_VIEWS: dict[str, type[View]] = {
    "HookedTransformer": HookedDecoder,
    "HookedEncoder": HookedEncoder,
    "TransformerBridge": Bridge,
}
_HEAD = re.compile(r"(decoder_)?ln_final\.|mlm_head\.|unembed\.|hook_unembed$")
_BLOCK = re.compile(r"blocks\.(\d+)\.")


def view(model: Any) -> View:
    """Return the view of a model, which depends on its class.

    Raises `TypeError` for anything that is not a TransformerLens model, and for one that runs elsewhere. Raises
    `ValueError` for a bridge whose model is quantised or is not a supported language model.
    """
    for cls in type(model).__mro__:
        if cls.__name__ in _VIEWS and cls.__module__.partition(".")[0] == "transformer_lens":
            kind = _VIEWS[cls.__name__]
            if kind is Bridge and getattr(model.original_model.config, "is_encoder_decoder", False):
                return EncoderDecoder(model)
            return kind(model)
    if type(model).__name__ == "RemoteBridge":
        raise TypeError("a RemoteBridge runs its model elsewhere and has no weights; boot a TransformerBridge instead")
    class_name = f"{type(model).__module__}.{type(model).__name__}"
    expected = "a HookedTransformer, HookedEncoder or TransformerBridge"
    raise TypeError(f"expected {expected}, found {class_name}; {how_to_load(model) or 'load one with interp.load'}")


def how_to_load(model: object) -> str:
    """Return what to do with a model of transformers, which TransformerLens must wrap first; empty for anything
    else."""
    remedy = "call interp.models.as_model(model, tokenizer) once and give what it returns"
    return remedy if hasattr(model, "save_pretrained") else ""


def check_model(model: object) -> None:
    """Raise `TypeError` unless `model` is a TransformerLens model, and `ValueError` for a hooked one whose weights or
    config, but not both, are of a half-precision type, with which it cannot run."""
    if view(model).wrapped is not None:
        return
    checked: Any = model
    stored = str(checked.W_U.dtype).removeprefix("torch.")
    expected = str(checked.cfg.dtype).removeprefix("torch.")
    if stored != expected and {stored, expected} & {"float16", "bfloat16"}:
        problem = f"this model's weights are {stored}, but its config says {expected}, so it cannot run"
        raise ValueError(
            f"{problem}; convert it with model.to(torch.{stored}), which changes both, not with model.half()"
        )


def is_encoder(model: Model) -> bool:
    """Whether the model is a bidirectional masked-language model."""
    return view(model).encoder


def check_vocabulary(model: Model, *, exact: bool = False) -> None:
    """Raise ValueError for a model without a prediction head, or one that cannot predict every token it reads
    (`d_vocab_out`).

    Surplus output rows count as padding, unless `exact` is set because predictions are read again.
    """
    if reason := view(model).why_no_head:
        raise ValueError(reason)
    n_predicted = model.W_U.shape[1]
    d_vocab = model.cfg.d_vocab
    if n_predicted < d_vocab or (exact and n_predicted > d_vocab):
        problem = f"predicts {n_predicted} classes and reads {d_vocab} tokens"
        raise ValueError(f"this model {problem}; expected a language model, which predicts the tokens it reads")


def hook_name(model: Model, site: Site, layer: int | None = None) -> str:
    """Return the hook point of a site.

    | site | activation |
    |---|---|
    | `embed` | the residual stream before block 0, `[batch, pos, d_model]` |
    | `resid_pre`, `resid_post` | the residual stream before and after block `layer` (HF's `hidden_states[layer]`, \
`hidden_states[layer + 1]`) |
    | `attn_input` | the input of the attention of block `layer`; before `·γ + b` if a norm comes first |
    | `q`, `k`, `v` | queries, keys and values, `[batch, pos, head, d_head]`; `rotated_q` after RoPE |
    | `attn_scores` | attention scores, scaled and masked, `[batch, head, query, key]` |
    | `pattern` | attention probabilities in block `layer`, `[batch, head, query, key]` |
    | `z` | the outputs of the heads before W_O, `[batch, pos, head, d_head]` |
    | `attn_out`, `mlp_out` | the outputs of attention and MLP of block `layer`, `[batch, pos, d_model]` |
    | `mlp_post` | the MLP's neurons in block `layer`, after the activation, `[batch, pos, d_mlp]` |
    | `head_norm` | the prediction head's layer norm before `·γ + b` |
    | `head_input` | the input of the unembedding, after `·γ + b` |
    | `logits` | the output of the unembedding, `[batch, pos, d_vocab]`, before a scale or a soft cap of the logits |

    Raises:
        ValueError: the site is unknown; the layer does not exist, or the site has no layer; the model has no blocks;
            or a `TransformerBridge` does not have the site or shows something else there.
        TypeError: the layer is not a whole number.
    """
    check_choice("site", site, get_args(Site))
    model_view = view(model)
    if reason := model_view.refused(site):
        raise ValueError(f"this model has no site {site!r}: {reason}")
    name = model_view.names[site]
    if name.startswith("blocks.") and not model.cfg.n_layers:
        raise ValueError(f"this model has no blocks (n_layers=0), so no site {site!r}")
    if "{layer}" not in name:
        if layer is not None:
            raise ValueError(f"site {site!r} has no layer, found layer={layer}; leave it out")
        return name
    n_layers = model.cfg.n_layers
    if layer is None or not 0 <= whole_number(layer, "a layer") < n_layers:
        raise ValueError(f"site {site!r} needs a layer in 0 … {n_layers - 1}, found {layer}")
    return name.format(layer=layer)


def state_name(model: Model, state: int) -> str:
    """Return the hook point of a hidden state: 0 is the embeddings, L + 1 the residual stream after block L.

    Raises ValueError for a state that does not exist, and TypeError for anything but a whole number.
    """
    if not 0 <= whole_number(state, "a hidden state") <= model.cfg.n_layers:
        raise ValueError(f"hidden states are 0 … {model.cfg.n_layers}, found {state}")
    return hook_name(model, "resid_post", state - 1) if state else hook_name(model, "embed")


def trunk_output(model: Model) -> str:
    """Return the hook point of the final residual stream, which the prediction head reads."""
    return state_name(model, model.cfg.n_layers)


def narrowing(model: Model) -> str:
    """Return the hook point at which positions can be dropped, so that the unembedding does not read them."""
    return trunk_output(model) if view(model).narrows_at == "resid_post" else hook_name(model, "head_input")


def depth(names: Iterable[str]) -> int | None:
    """Return how far a forward pass must run for every hook to fire: a number of blocks, or None for the whole
    model."""
    names = list(names)
    if head_sites(names):
        return None
    n_blocks = 0
    for name in names:
        if match := _BLOCK.match(name):
            n_blocks = max(n_blocks, int(match[1]) + 1)
    return n_blocks


def head_sites(names: Iterable[str]) -> list[str]:
    """Return the hook points that are in the prediction head."""
    return list(filter(_HEAD.match, names))
