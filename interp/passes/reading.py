"""Reading a corpus once for many observers: every batch runs through the model, and all of them listen."""

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from interp.corpora import Batches
from interp.corpora.batching import Batch, check_batches
from interp.models.identity import check_attention_weights, check_weights, is_finite
from interp.models.running import HooksOfOthers, firing, head_is_hooked, hooks_of_others, resolved
from interp.models.sites import Model, Recipe, depth, hook_name, narrowing, state_name, trunk_output, view
from interp.passes.checkpoint import Checkpoint, identity
from interp.passes.observers import Observer
from interp.support.disk import uninterrupted
from interp.support.paths import local_path

__all__ = ["LOGITS_AT_ONCE", "TOKENS_AT_ONCE", "feed", "forward", "observe", "observe_parts", "part_of"]

_Start: TypeAlias = tuple[int, Float[Tensor, "batch pos d_model"]]
"""A block, and the residual stream that enters it."""
SECONDS_BETWEEN_CHECKPOINTS = 20.0
TOKENS_AT_ONCE = 4_096
"""The most tokens, padding included, in a batch of sentences, unless a single sentence or pair has more."""
LOGITS_AT_ONCE = 2**22
"""The prediction head reads a batch that has more logits in parts. Larger parts are slower on a CPU."""


def observe(
    model: Model,
    batches: Batches,
    *observers: Observer,
    what: str = "reading",
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
) -> None:
    """Run a corpus through the model once and feed all observers, which are changed in place.

    Blocks after the last hook are not run. Logits are computed only if an observer listens at the prediction head, and
    only at positions that are read (unless the head has other hooks). Hooks that are active on the model stay active
    and come first, so observing inside `with model.hooks(fwd_hooks=…)` observes the edited model.

    Args:
        batches: the batches to read, from `interp.corpora.batches`.
        what: the name of the progress bar.
        progress: whether to show the progress bar (on a terminal or in a notebook).
        checkpoint: a file that is written every 20 seconds, on Ctrl-C and at the end. A run that was killed and is
            started again with the same checkpoint resumes from it and gives the same result, on a CPU to the last bit.

    Raises:
        ValueError: there are no observers, or one is given twice; observers or batches belong to another model; weights
            are not finite; or the checkpoint belongs to another model, corpus or option.
        RuntimeError: a hook of an observer never fired.

    Examples:
        >>> from interp.analyses.attention.patterns import AttentionByClass
        >>> from interp.corpora import batches, token_classes
        >>> from interp.testing import toy_decoder
        >>> model = toy_decoder()
        >>> observer = AttentionByClass(model, token_classes(model, {"first": [7, 8]}))
        >>> observe(model, batches(model, ["w0 w1 w2"] * 20, context=12), observer, progress=False)
        >>> observer.by_class(layer=0).shape
        (4, 2)
    """
    if not observers or len(set(map(id, observers))) < len(observers):
        raise ValueError(f"observe needs one or more different observers, found {len(observers)}")
    check_attention_weights(model)
    check_batches(model, batches)
    for observer in observers:
        if getattr(observer, "model", model) is not model:
            raise ValueError("an observer was made for another model; make it with this one")
    start, saved_run = 0, None
    if checkpoint is not None:
        described = {f"observer {number}": observer.options for number, observer in enumerate(observers)}
        saved_run = Checkpoint(local_path(checkpoint), identity(model, batches=batches.settings, **described))
        if any(not observer.is_empty for observer in observers):
            raise ValueError("with a checkpoint the observers must be new, but one of these already holds data")
        tensors, done = saved_run.load()
        for name, value in tensors.items():
            index, _, state = name.partition(".")
            observers[int(index)].state[state] = value.to(observers[int(index)].device)
        if done is None:
            return
        start = done

    def save(done: int | None = None) -> None:
        if saved_run is not None:
            tensors = {}
            for number, observer in enumerate(observers):
                for name, value in observer.state.items():
                    tensors[f"{number}.{name}"] = value
            saved_run.save(tensors, done)

    done = start
    hooks = hooks_of_others(model)
    saved = time.monotonic()
    bar = tqdm(total=batches.n_texts, unit="text", disable=None if progress else True, desc=what, smoothing=0.1)
    try:
        with bar:
            for number, batch in enumerate(batches):
                if number >= start:
                    feed(model, batch.to(model.W_U.device), observers, hooks)
                    with uninterrupted():
                        for observer in observers:
                            observer.commit()
                        done = number + 1
                    if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS:
                        save(done)
                        saved = time.monotonic()
                bar.update(batch.n_texts)
    except KeyboardInterrupt:
        if done > start:
            with uninterrupted():
                save(done)
        raise
    save()


@torch.no_grad()
def feed(
    model: Model,
    batch: Batch,
    observers: Sequence[Observer],
    hooks: HooksOfOthers,
    start: _Start | None = None,
) -> None:
    """Run one batch, from its tokens or from a block (`start`) with the residual stream that enters it. What observers
    add stays in their scratch memory.

    If all observers are `of_rows`, and there are many logits, the blocks read the batch at once, and the head a few of
    its rows at a time.
    """
    try:
        if all(observer.of_rows for observer in observers) and _has_parts(model, batch, start):
            resid = _resid_post(model, batch, hooks, start)
            for rows, part in _parts(batch, LOGITS_AT_ONCE // model.W_U.shape[1]):
                feed(model, part, observers, hooks, (model.cfg.n_layers, part.select(resid[rows])[None]))
        else:
            recipe: Recipe = []
            for observer in observers:
                recipe.extend(observer.hooks(batch))
            _run(model, batch, resolved(model, recipe), hooks, start)
    except BaseException:
        for observer in observers:
            observer.discard()
        raise


def _run(
    model: Model,
    batch: Batch,
    recipe: list[tuple[str, Callable[..., Any]]],
    hooks: HooksOfOthers,
    start: _Start | None,
) -> None:
    """Run one batch with hooks that read it."""
    stop = depth(name for name, _ in recipe)
    at_head = start is not None and start[0] == model.cfg.n_layers
    if stop is None and not at_head and not batch.reads_all and not head_is_hooked(model):
        recipe = [*recipe, (narrowing(model), lambda activation, hook: batch.select(activation)[None])]
    if (start is None or at_head) and stop != 0:
        last = hook_name(model, "logits") if stop is None else state_name(model, stop)
        recipe = [(last, lambda activation, hook: _check_finite(model, activation)), *recipe]
    with firing(model, recipe, expected=hooks):
        if start is None:
            forward(model, batch, stop)
        else:
            view(model).run_from(*start, batch)


def _has_parts(model: Model, batch: Batch, start: _Start | None) -> bool:
    """Whether the prediction head should read a batch in parts, and can."""
    return (
        batch.n_read * model.W_U.shape[1] > LOGITS_AT_ONCE
        and len(batch.tokens) > 1
        and (start is None or start[0] < model.cfg.n_layers)
        and view(model).starts_within
        and not head_is_hooked(model)
    )


def _resid_post(
    model: Model, batch: Batch, hooks: HooksOfOthers, start: _Start | None
) -> Float[Tensor, "batch pos d_model"]:
    """The residual stream of a batch after the last block."""
    streams: list[Tensor] = []
    recipe: Recipe = [(trunk_output(model), lambda stream, hook: streams.append(stream))]
    n_layers = model.cfg.n_layers
    with firing(model, recipe, expected=hooks):
        if start is None:
            forward(model, batch, n_layers)
        else:
            layer, resid = start
            view(model).run_from(layer, resid, batch, n_layers)
    return streams[0]


def _parts(batch: Batch, limit: int) -> Iterator[tuple[slice, Batch]]:
    """Consecutive rows of a batch, in which at most `limit` positions are read, or one row."""
    ends = batch.read.sum(1).cumsum(0).tolist()
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        end = max(start + 1, bisect_right(ends, before + limit))
        rows = slice(start, end)
        yield rows, batch.part(rows)
        start = end


def _check_finite(model: Model, activation: Tensor) -> None:
    """Raise ValueError if an activation shows that weights are not finite."""
    if not is_finite(activation):
        check_weights(model)


def forward(model: Model, batch: Batch, stop: int | None = None) -> Any:
    """Run the model up to block `stop`, or with None up to and including the prediction head, and return its output."""
    return view(model).run(batch, stop)


def observe_parts(
    model: Model, batches: Batches, *observers: Observer, checkpoints: Sequence[Path], what: str, progress: bool = True
) -> None:
    """Run `observe` in parts (see `part_of`), one after another. What is in the checkpoint of a part is not read
    again."""
    n = len(checkpoints)
    for observer in observers:
        observer.clear()
    for index, path in enumerate(checkpoints):
        before = [observer.state for observer in observers]
        for observer in observers:
            observer.clear()
        named = f"{what}, part {index + 1} of {n}"
        observe(model, part_of(batches, index, n), *observers, what=named, progress=progress, checkpoint=path)
        for observer, state in zip(observers, before, strict=True):
            observer.merge_state(state)


def part_of(batches: Batches, index: int, n_parts: int) -> Batches:
    """Select every `n_parts`-th batch, from `index` on."""
    n_texts = None if batches.n_texts is None else -(-batches.n_texts // n_parts)
    settings = dict(batches.settings, part=[index, n_parts])
    return replace(batches, settings=settings, n_texts=n_texts, read=lambda: islice(batches, index, None, n_parts))
