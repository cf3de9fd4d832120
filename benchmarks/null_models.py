"""Draws of `null_cells.py` that run a small model: attention without dimensions of its keys, and attention sinks."""

from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from interp import corpora
from interp.analyses.attention.findings import steered
from interp.analyses.attention.frames import FrameDraws, Removal
from interp.analyses.sinks.findings import sink_findings
from interp.analyses.sinks.shuffled import ShuffledKeys
from interp.instruments.sinks import Sinks
from interp.models.sites import Model, Recipe, hook_name
from interp.passes.observers import observe
from interp.results.findings import Verdict
from interp.testing import toy_decoder

__all__ = ["random_sink", "removed_dimensions"]

D_MODEL = 64
N_ROWS = 40
_FREQUENT = range(7, 27)  # a class of tokens
_QK_SCALE = 3.0  # scores then have an SD of about 10, so that attention is to few keys


@cache
def one_block() -> Model:
    return toy_decoder(n_layer=1, n_embd=D_MODEL, n_positions=32)


def tokens(length: int) -> Tensor:
    return torch.randint(7, 67, (N_ROWS, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def with_new_weights(rng: np.random.Generator) -> Model:
    """The model with normal embeddings, queries and keys; the norm is that of the architecture."""
    model = one_block()
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    attn = model.blocks[0].attn
    scales = {model.embed.W_E: 1.0, model.pos_embed.W_pos: 0.3}
    scales |= dict.fromkeys([attn.W_Q, attn.W_K], _QK_SCALE / D_MODEL**0.5)
    scales |= dict.fromkeys([attn.b_Q, attn.b_K], 0.5)
    for parameter, scale in scales.items():
        parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return model


@torch.no_grad()
def removed_dimensions(rng: np.random.Generator, *, n_dims: int, raised: float) -> Verdict:
    """Whether dimensions that are large at a class of tokens steer attention: together, if there are several.

    Args:
        raised: by how much, for each of them, they raise the scores of keys that have them. With 0 they point anywhere.
    """
    model = with_new_weights(rng)
    dims = rng.choice(D_MODEL, n_dims, replace=False).tolist()
    attn = model.blocks[0].attn
    for dim in dims:
        model.embed.W_E[_FREQUENT, dim] += 4
        attn.W_K[:, dim] += raised * attn.b_Q
    text = corpora.batches(model, tokens(16))
    classes = corpora.token_classes(model, {"frequent": _FREQUENT})
    removal = Removal.of(dims, {0: np.zeros(D_MODEL)}, tested=1, seed=int(rng.integers(2**31)))
    draws = FrameDraws(model, classes, removal, seed=int(rng.integers(2**31)))
    observe(model, text, draws, progress=False)
    return next(iter(steered(draws.table, {}, "keys"))).verdict


def noise(rng: np.random.Generator, sd: float, planted: float) -> Recipe:
    """Hooks that replace queries and keys by normal noise, for which scores have this SD. A planted first key points
    along the mean of all queries."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))

    def drawn(activation: Tensor, hook: Any, site: str) -> Tensor:
        values = sd**0.5 * torch.randn(activation.shape, generator=generator)
        if planted and site == "q":
            values[..., 0] += planted
        if planted and site == "k":
            values[:, 0, :, 0] += planted
        return values.to(activation)

    return [(hook_name(one_block(), site, 0), partial(drawn, site=site)) for site in ("q", "k")]


def random_sink(rng: np.random.Generator, *, length: int, sd: float = 2.0, planted: float = 0.0) -> Verdict:
    """Whether there is a sink at the first position with random queries and keys, or with a planted first key."""
    model = one_block()
    text = corpora.batches(model, tokens(length))
    sinks = Sinks(model, corpora.token_classes(model))
    shuffled = ShuffledKeys(model, range(N_ROWS), seed=int(rng.integers(2**31)))
    with model.hooks(fwd_hooks=noise(rng, sd, planted)):
        observe(model, text, sinks, shuffled, progress=False)
    tables = dict.fromkeys(["dims", "writers"], pd.DataFrame())
    tables |= {"heads": sinks.table, "measures": sinks.measures, "draws": shuffled.table}
    return sink_findings(tables, 0.3)[0].verdict
