"""Where things are in each model class. The only module that spells hook-point names.

A *site* is a place in a model; `hook_name` resolves it to the hook point that TransformerLens calls there.
"""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from typing_extensions import TypeIs

from interp.checks import check_choice

__all__ = ["Model", "Recipe", "Site", "check_model", "check_vocabulary", "depth", "head_sites", "hook_name"]
__all__ += ["is_encoder", "state_name", "trunk_output"]

if TYPE_CHECKING:
    from transformer_lens import HookedEncoder, HookedTransformer

    Model: TypeAlias = HookedTransformer | HookedEncoder
else:  # TransformerLens takes seconds to import, and who has a model has imported it
    HookedEncoder = HookedTransformer = Model = Any

Recipe: TypeAlias = list[tuple[str | Callable[..., Any], Callable[..., Any]]]
"""`[(hook name, hook function), …]`, of the type of `fwd_hooks` in `model.hooks` and `model.run_with_hooks`."""

Site: TypeAlias = Literal[
    "embed", "resid_pre", "resid_post", "attn_input", "q", "rotated_q", "k", "v", "attn_scores", "pattern",
    "z", "mlp_post", "head_norm", "head_input", "logits",
]  # fmt: skip

_NAMES: dict[str, tuple[str, str]] = {
    "embed": ("blocks.0.hook_resid_pre", "hook_full_embed"),
    "resid_post": ("blocks.{layer}.hook_resid_post", "blocks.{layer}.hook_normalized_resid_post"),
    "resid_pre": ("blocks.{layer}.hook_resid_pre", "blocks.{layer}.hook_resid_pre"),
    "attn_input": ("blocks.{layer}.ln1.hook_normalized", "blocks.{layer}.hook_resid_pre"),
    "rotated_q": ("blocks.{layer}.attn.hook_rot_q", "blocks.{layer}.attn.hook_rot_q"),
    "mlp_post": ("blocks.{layer}.mlp.hook_post", "blocks.{layer}.mlp.hook_post"),
    "head_norm": ("ln_final.hook_normalized", "mlm_head.ln.hook_normalized"),
    "head_input": ("unembed.hook_in", "unembed.hook_in"),
    "logits": ("unembed.hook_out", "unembed.hook_out"),
    **{site: (f"blocks.{{layer}}.attn.hook_{site}",) * 2 for site in ("q", "k", "v", "attn_scores", "pattern", "z")},
}
_HEAD = re.compile(r"(ln_final|mlm_head|unembed)\.")
_BLOCK = re.compile(r"blocks\.(\d+)\.")


def _kind(cls: type) -> str | None:
    """The name of TransformerLens' class that this is or descends from."""
    theirs = {one.__name__ for one in cls.__mro__ if one.__module__.partition(".")[0] == "transformer_lens"}
    return next((name for name in ("HookedTransformer", "HookedEncoder") if name in theirs), None)


def check_model(model: object) -> None:
    """Raise `TypeError` unless `model` is a `HookedTransformer` or a `HookedEncoder`."""
    if _kind(type(model)) is None:
        found = f"{type(model).__module__}.{type(model).__name__}"
        raise TypeError(f"expected a HookedTransformer or HookedEncoder, found {found}; load one with interp.load")


def is_encoder(model: Model) -> TypeIs[HookedEncoder]:
    """Whether the model is a bidirectional masked-language model (`HookedEncoder`)."""
    check_model(model)
    return _kind(type(model)) == "HookedEncoder"


def check_vocabulary(model: Model, *, exact: bool = False) -> None:
    """Raise ValueError for a model that cannot predict every token it reads (`d_vocab_out`).

    More rows than tokens are padding, unless `exact`: what is predicted is read again.
    """
    found, expected = model.W_U.shape[1], model.cfg.d_vocab
    if found < expected or (exact and found > expected):
        what = f"predicts {found} classes and reads {expected} tokens"
        raise ValueError(f"this model {what}; expected a language model, which predicts the tokens it reads")


def hook_name(model: Model, site: Site, layer: int | None = None) -> str:
    """The hook point of a site.

    | site | what flows there |
    |---|---|
    | `embed` | the residual stream before block 0, `[batch, pos, d_model]` |
    | `resid_pre`, `resid_post` | the residual stream before and after block `layer` (HF's `hidden_states[layer]`, \
`hidden_states[layer + 1]`) |
    | `attn_input` | what the attention of block `layer` reads; before `·γ + b` where a norm comes first |
    | `q`, `k`, `v` | queries, keys and values, `[batch, pos, head, d_head]`; `rotated_q` after RoPE |
    | `attn_scores` | attention scores, scaled and masked, `[batch, head, query, key]` |
    | `pattern` | attention probabilities in block `layer`, `[batch, head, query, key]` |
    | `z` | the outputs of the heads before W_O, `[batch, pos, head, d_head]` |
    | `mlp_post` | the MLP's neurons in block `layer`, after the activation, `[batch, pos, d_mlp]` |
    | `head_norm` | the prediction head's layer norm before `·γ + b` |
    | `head_input` | the input of the unembedding, after `·γ + b` |
    | `logits` | the output of the unembedding, `[batch, pos, d_vocab]` |

    Raises:
        ValueError: an unknown site, a layer that does not exist, a layer where the site has none, a model without
            blocks.
    """
    check_choice("site", site, _NAMES)
    name = _NAMES[site][is_encoder(model)]
    if name.startswith("blocks.") and not model.cfg.n_layers:
        raise ValueError(f"this model has no blocks (n_layers=0), so no site {site!r}")
    if "{layer}" not in name:
        if layer is not None:
            raise ValueError(f"site {site!r} has no layer, found layer={layer}; leave it out")
        return name
    n_layers = model.cfg.n_layers
    if layer is None or not 0 <= layer < n_layers:
        raise ValueError(f"site {site!r} needs a layer in 0 … {n_layers - 1}, found {layer}")
    return name.format(layer=layer)


def state_name(model: Model, state: int) -> str:
    """The hook point of a hidden state: 0 is the embeddings, L + 1 the residual stream after block L.

    Raises ValueError for a state that does not exist.
    """
    if not 0 <= state <= model.cfg.n_layers:
        raise ValueError(f"hidden states are 0 … {model.cfg.n_layers}, found {state}")
    return hook_name(model, "resid_post", state - 1) if state else hook_name(model, "embed")


def trunk_output(model: Model) -> str:
    """The hook point of the last residual stream, which the prediction head reads."""
    return state_name(model, model.cfg.n_layers)


def depth(names: Iterable[str]) -> int | None:
    """How far a forward pass must run for every hook to fire: a number of blocks, or None for all and the head."""
    reached = list(names)
    if head_sites(reached):
        return None
    return max((int(match[1]) + 1 for match in map(_BLOCK.match, reached) if match), default=0)


def head_sites(names: Iterable[str]) -> list[str]:
    """Those hook points that are in the prediction head."""
    return [name for name in names if _HEAD.match(name)]
