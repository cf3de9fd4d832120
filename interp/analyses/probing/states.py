"""Hidden states of minimal pairs: one vector per sentence and layer."""

import json
import os
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
import xxhash
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from interp.corpora.batching import Batch
from interp.corpora.frames import settled_bos, tokenizer_of
from interp.corpora.pairs import check_pairs, sentences_of
from interp.corpora.positions import frame_of, read_at, state_rows
from interp.corpora.sentences import encode, together
from interp.corpora.tokens import Counted
from interp.models.identity import config_hash, weight_hash
from interp.models.running import active_hooks, hooks_of_others, running
from interp.models.shapes import Shape
from interp.models.sites import Model, Recipe, check_model, depth, is_encoder, state_name
from interp.passes import distributed
from interp.passes.budget import Pass
from interp.passes.checkpoint import Checkpoint, identity, is_finished
from interp.passes.contexts import LargestTokens
from interp.passes.reading import TOKENS_AT_ONCE, forward
from interp.support.checks import check_choice, whole_number
from interp.support.choices import Bos, Position, Several, listed
from interp.support.disk import uninterrupted
from interp.support.paths import local_path

__all__ = ["States", "batches_of", "collect", "collect_cost", "stored_type"]
__dir__ = __all__.copy

SENTENCES_PER_SHARD = 8_192
_MOST = 2e9  # bytes that are kept without a directory


@dataclass(frozen=True, eq=False)
class States:
    """One vector for each sentence of each pair, by state.

    `pairs` is the table that was read. `states` are the numbers of the states: 0 for the embeddings and L + 1 after
    block L. `width` is the length of a vector. `load(state)` returns `[pairs,
    2, width]`, with good before bad. Probes are fitted on `device`. `rows` are the token ids of the sentences, good and
    bad in turn. `tokens` has the tokens at which each dimension is largest, if `collect` was asked for them.
    """

    pairs: pd.DataFrame
    states: tuple[int, ...]
    width: int
    settings: dict[str, Any]
    device: str = "cpu"
    rows: Sequence[list[int]] = field(default=(), repr=False)
    tokens: LargestTokens | None = field(default=None, repr=False)
    _shards: tuple[Checkpoint, ...] = field(default=(), repr=False)
    _kept: dict[int, Float[np.ndarray, "pairs 2 width"]] = field(default_factory=dict, repr=False)

    @property
    def tasks(self) -> list[str]:
        """The tasks, in the order of the pairs."""
        return list(dict.fromkeys(self.pairs["UID"]))

    def load(self, state: int) -> Float[np.ndarray, "pairs 2 width"]:
        """The vectors of one state.

        Raises ValueError for a state that was not collected, for a damaged shard, if the vectors do not belong to
        `pairs`, and for values that are not finite.
        """
        if state not in self.states:
            raise ValueError(f"state {state} was not collected; found {', '.join(map(str, self.states))}")
        if self._shards:
            name = str(state)
            parts = [shard.load([name])[0][name] for shard in self._shards]
            vectors = _by_pair(torch.cat(parts))
        else:
            vectors = self._kept[state]
        if len(vectors) != len(self.pairs):
            mismatch = f"state {state} was collected from {len(vectors)} pairs, but `pairs` has {len(self.pairs)}"
            raise ValueError(f"{mismatch}; collect the pairs that are wanted, or name their tasks")
        _check_finite(vectors, state)
        return vectors


@torch.no_grad()
def collect(
    model: Model,
    pairs: pd.DataFrame,
    *,
    states: Several[int] | None = None,
    position: Position | None = None,
    bos: Bos = "auto",
    largest: bool = False,
    directory: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> States:
    """Read one vector per sentence and hidden state from a model, in one pass, without keeping anything else.

    Args:
        pairs: a table from `interp.corpora.pairs`.
        states: hidden states of the residual stream, 0 (the embeddings) … n_layers. Default: all.
        position: where a sentence is read. `"eos"` is an appended end-of-sequence token (an encoder's `[SEP]`), and the
            default for causal models. `"last"` is the last token of the sentence, and `"mean"` the mean over all its
            tokens, including special ones. `"cls"` is an encoder's `[CLS]`, and its default.
        bos: put the beginning-of-sequence token first. `"auto"`: see `interp.corpora.batches`.
        largest: keep for each dimension the 20 tokens of all sentences at which it is largest
            (`interp.probing.contexts.neuron_tokens`).
        directory: a directory for safetensors shards. A run that was killed resumes with the shard it was writing. More
            than 2 GB of states need one.

    Raises ValueError for a table without pairs, for a sentence that is longer than the context or has no tokens, for
    the tokenizer of another model, for a state that does not exist, for states that are not finite or too large, for a
    directory of another run, and for a directory while hooks are active on the model. Raises TypeError for arguments of
    another type.

    Examples:
        >>> import interp
        >>> model = interp.load("tiny-gpt2")
        >>> pairs = interp.corpora.pairs.load("bundled", tasks=["reflexive_number"], limit=60)
        >>> states = collect(model, pairs, states=[6], bos=True, progress=False)
        >>> states.states
        (6,)
    """
    check_model(model)
    check_pairs(pairs)
    position = ("cls" if is_encoder(model) else "eos") if position is None else position
    check_choice("position", position, get_args(Position))
    names = {state: state_name(model, state) for state in _numbers(model, states)}
    width = model.cfg.d_model
    sentences = sentences_of(pairs)
    rows = state_rows(model, sentences, position, bos=bos)
    tokenizer = tokenizer_of(model)
    counted = Counted.of(np.concatenate(encode(tokenizer, sentences)), tokenizer)
    settings: dict[str, Any] = {
        "weight_hash": weight_hash(model), "config_hash": config_hash(model),
        "token_ids": xxhash.xxh3_128(json.dumps(rows).encode()).hexdigest(),
        "pairs": xxhash.xxh3_128("\0".join([*pairs["sentence_good"], *pairs["sentence_bad"]]).encode()).hexdigest(),
        "states": list(names), "position": position, "bos": settled_bos(model, bos),
    }  # fmt: skip
    settings.update(frame_of(model, rows[0], position, bos))
    settings["unknown_share"] = counted.checked(tokenizer, "the sentences").share
    settings["active_hooks"] = active_hooks(model)
    size = 4.0 * len(rows) * width * len(names)
    if directory is None and size > _MOST:
        raise ValueError(f"the states take {size / 1e9:.1f} GB, and memory is for {_MOST / 1e9:.1f}; give a directory")
    device = str(model.W_U.device) if model.W_U.is_cuda else "cpu"
    collected = States(pairs.reset_index(drop=True), tuple(names), width, settings, device, rows)
    with tqdm(total=len(rows), unit="sentence", disable=None if progress else True, desc="collecting") as bar:
        if directory is None:
            tokens = LargestTokens(model, names, width) if largest else None
            vectors = _read(model, rows, names, position, bar, tokens)
            return replace(collected, tokens=tokens, _kept={state: _by_pair(vectors[str(state)]) for state in names})
        described = dict(identity(model, states=settings, largest=largest))
        shards = []
        for number, start in enumerate(range(0, len(rows), SENTENCES_PER_SHARD)):
            path = local_path(directory) / f"states-{number:05d}.safetensors"
            described["first sentence"] = start
            shards.append(Checkpoint(path, dict(described)))
            part = rows[start : start + SENTENCES_PER_SHARD]
            if number in distributed.part() and shards[-1].load([])[1] is not None:
                tokens = LargestTokens(model, names, width) if largest else None
                _read(model, part, names, position, bar, tokens, start, shards[-1])
            else:
                bar.update(len(part))
        distributed.meet([shard.path for shard in shards if not is_finished(shard.path)])
    tokens = LargestTokens(model, names, width) if largest else None
    if tokens is not None:
        for shard in shards:
            of_shard = copy(tokens)
            of_shard.state = shard.load(tokens.state)[0]
            tokens.merge(of_shard)
    return replace(collected, tokens=tokens, _shards=tuple(shards))


def _numbers(model: Model, states: Several[int] | None) -> list[int]:
    """The states to read. Raises ValueError for states that do not exist or are named twice."""
    every = list(range(model.cfg.n_layers + 1))
    numbers = every if states is None else [whole_number(number, "state") for number in listed(states)]
    if not numbers or len(set(numbers)) < len(numbers) or not set(numbers) <= set(every):
        raise ValueError(f"states must be different numbers in 0 … {every[-1]}, found {numbers}")
    return numbers


def _read(
    model: Model,
    rows: list[list[int]],
    names: dict[int, str],
    position: Position,
    bar: Any,
    tokens: LargestTokens | None = None,
    first: int = 0,
    shard: Checkpoint | None = None,
) -> dict[str, Float[Tensor, "sentences width"]]:
    """The vectors of all rows, whose numbers begin with `first`. A shard stores them, on Ctrl-C those read so far, and
    the next call resumes from it."""
    stored, done = ({}, 0) if shard is None else shard.load()
    token_state = {} if tokens is None else tokens.state
    for name in token_state:
        if name in stored:
            token_state[name] = stored.pop(name)
    empty = torch.zeros(len(rows), model.cfg.d_model, dtype=stored_type(model.W_U.dtype, position))
    vectors = {str(state): empty.clone() for state in names}
    vectors.update(stored)
    start = done
    hooks = hooks_of_others(model)
    try:
        for number, (chosen, batch) in enumerate(batches_of(model, rows)):
            if number >= (start or 0):
                recipe = _recipe(model, names, position, batch, vectors, chosen)
                if tokens is not None:
                    recipe += tokens.hooks(replace(batch, rows=first + torch.tensor(chosen)))
                with running(model, recipe, expected=hooks):
                    forward(model, batch, depth(names.values()))
                with uninterrupted():
                    if tokens is not None:
                        tokens.commit()
                    done = number + 1
            bar.update(len(chosen))
    except KeyboardInterrupt:
        if shard is not None and done != start:
            with uninterrupted():
                shard.save(dict(vectors, **token_state), done)
        raise
    for state, values in vectors.items():
        _check_finite(values.float().numpy(), state)
    if shard is not None:
        shard.save(dict(vectors, **token_state))
    return vectors


def stored_type(dtype: torch.dtype, position: Position | None) -> torch.dtype:
    """The type that states of a model with weights of a type are stored in: theirs, if it has 16 bits and they are not
    means, else float32."""
    return dtype if dtype.itemsize == 2 and position != "mean" else torch.float32


def _by_pair(vectors: Float[Tensor, "sentences width"]) -> Float[np.ndarray, "pairs 2 width"]:
    return rearrange(vectors.float().numpy(), "(pair side) width -> pair side width", side=2)


def _check_finite(values: Float[np.ndarray, "..."], state: object) -> None:
    if not np.isfinite(values).all():
        raise ValueError(f"state {state} has NaN or infinite values; check the model's weights and dtype")


def collect_cost(size: Shape, lengths: Sequence[int], n_states: int, *, stored: torch.dtype, twin: int) -> list[Pass]:
    """Estimate the cost of `collect` for sentences of these lengths, from the shape of a model, with states `stored` in
    a type, and for an untrained model, which takes `twin` bytes."""
    longest = max(lengths)
    shard = stored.itemsize * min(len(lengths), SENTENCES_PER_SHARD) * n_states * size.d_model
    largest = LargestTokens.n_bytes(size, range(n_states), width=size.d_model)
    read: Any = {"text": "sentences", "size": (max(1, TOKENS_AT_ONCE // longest), longest)}
    return [
        Pass(what="states", sums=shard + largest, **read),
        Pass(what="states of an untrained model", step=1, sums=shard, copies=twin, **read),
    ]


def batches_of(model: Model, rows: list[list[int]]) -> Iterator[tuple[list[int], Batch]]:
    """Batches of rows in order of length, which need little padding on the right, with the numbers of their rows."""
    by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for group in together(by_length, lambda i: len(rows[i]), TOKENS_AT_ONCE):
        yield group, Batch.of([rows[i] for i in group]).to(model.W_U.device)


def _recipe(
    model: Model, names: dict[int, str], position: Position, batch: Batch, into: dict[str, Tensor], chosen: list[int]
) -> Recipe:
    """Hooks that keep one vector of each row of a batch."""
    where = read_at(model, batch.mask, position)

    def keep(activation: Tensor, hook: object, state: int) -> None:
        if position == "mean":
            real = batch.mask[..., None]
            picked = (activation.float() * real).sum(1) / real.sum(1)
        else:
            picked = activation[torch.arange(len(activation), device=activation.device), where]
        into[str(state)][chosen] = picked.to(into[str(state)].dtype).cpu()

    return [(name, partial(keep, state=state)) for state, name in names.items()]
