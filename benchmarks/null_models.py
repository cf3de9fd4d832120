"""Draws of `null_cells.py` that run a small model: attention without dimensions of its keys, attention sinks, word
frequency in three architectures, and token probability in output embeddings."""

from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from torch import Tensor

from interp import corpora, encoding
from interp.analyses.attention.findings import steered
from interp.analyses.attention.frames import FrameDraws, Removal
from interp.analyses.encoding.findings import beyond_theory
from interp.analyses.frequency import study
from interp.analyses.sinks.findings import sink_findings
from interp.analyses.sinks.shuffled import ShuffledKeys
from interp.instruments.logits import SiteMean
from interp.instruments.sinks import Sinks
from interp.models.sites import Model, Recipe, hook_name
from interp.passes.reading import observe
from interp.results.findings import Verdict
from interp.testing import toy_bridge, toy_decoder, toy_encoder

__all__ = ["ARCHITECTURES", "linear_probability", "random_sink", "removed_dimensions", "word_frequency"]

D_MODEL = 64
N_ROWS = 40
_FREQUENT = range(7, 27)  # a class of tokens
_QK_SCALE = 3.0  # scores then have an SD of about 10, so that attention is to few keys

ARCHITECTURES = ("BERT", "GPT-2", "Llama")
_COUNTS = np.concatenate([np.zeros(7, int), 10_000 // np.arange(1, 61)])
_POLES = 0.7  # how much the logits of every type move with the two poles


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
    tables.update(heads=sinks.table, measures=sinks.measures, draws=shuffled.table)
    return sink_findings(tables, 0.3)[0].verdict


@cache
def two_blocks(architecture: str) -> Model:
    match architecture:
        case "BERT":
            return toy_encoder()
        case "GPT-2":
            return toy_decoder()
        case _:
            sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
            return toy_bridge(transformers.LlamaConfig(vocab_size=67, max_position_embeddings=24, **sizes))


@torch.no_grad()
def word_frequency(rng: np.random.Generator, *, architecture: str, planted: float = 0.0) -> Verdict:
    """Whether what b_LN (of a Llama, E[h]) adds to the logits follows word frequency in a model with a random
    unembedding, which may have been moved along log u there."""
    model = two_blocks(architecture)
    counts = np.concatenate([_COUNTS[:7], rng.permutation(_COUNTS[7:])])
    words = rng.choice(60, (20, 12), p=counts[7:] / counts.sum())
    masked = {"mask_rate": 0.3} if architecture == "BERT" else {}
    text = corpora.batches(model, [" ".join(f"w{word}" for word in row) for row in words], layout="texts", **masked)
    model.W_U.copy_(torch.randn(model.W_U.shape, generator=torch.Generator().manual_seed(int(rng.integers(2**31)))))
    if planted:
        log_u = torch.from_numpy(np.log(counts.clip(1))).float()
        model.W_U.add_(planted * torch.outer(_input_of_head(model, architecture, text), log_u - log_u[7:].mean()))
    biases = None if architecture == "Llama" else ["ln"]
    effect = study(model, text, unigram=counts, biases=biases, scales=[1], progress=False)
    return effect.findings[-1].verdict


def _input_of_head(model: Model, architecture: str, text: corpora.Batches) -> Tensor:
    """b_LN or, of a Llama, E[h], divided by its squared norm."""
    match architecture:
        case "BERT":
            direction = model.mlm_head.ln.b
        case "GPT-2":
            direction = model.ln_final.b
        case _:
            mean = SiteMean(model, "head_input", model.cfg.d_model)
            observe(model, text, mean, progress=False)
            direction = mean.mean.float()
    return direction / direction.square().sum()


def linear_probability(rng: np.random.Generator, *, planted: bool) -> Verdict:
    """Whether output embeddings of a random model encode token probability beyond what is true by construction, or
    those of a model whose predictions vary between two poles, by as much for all types, around a bias that sets α."""
    model = toy_decoder()
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
            if planted and ("blocks" in name or "pos_embed" in name or "b_U" in name):
                parameter.zero_()
        if planted:
            signs = torch.randint(0, 2, (2, 67), generator=generator) * 2.0 - 1
            model.embed.W_E.zero_()
            model.embed.W_E[:, 0] = signs[0]
            model.embed.W_E[:, 1] = -signs[0]
            model.ln_final.w.zero_()
            model.ln_final.w[:2] = 1
            model.ln_final.b.fill_(1)
            model.ln_final.b[:2] = 0
            model.W_U[0], model.W_U[1] = _POLES * signs[1], -_POLES * signs[1]
    return beyond_theory(encoding.fit(model, tokens(12), progress=False).theory).verdict
