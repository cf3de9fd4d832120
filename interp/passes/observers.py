"""One pass over a corpus for many analyses.

An `Observer` is a set of named tensors, each with a reduction. `observe` runs every batch through the model once and
lets all observers listen.
"""

import functools
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from tqdm.auto import tqdm

from interp.corpora import Batches
from interp.corpora.batching import Batch, check_batches
from interp.models.identity import check_attention_weights, check_weights, is_finite
from interp.models.running import HooksOfOthers, firing, head_is_hooked, hooks_of_others, resolved
from interp.models.sites import (
    Model,
    Recipe,
    depth,
    hook_name,
    narrowing,
    state_name,
    trunk_output,
    view,
)
from interp.passes import groups, largest, moments
from interp.passes.checkpoint import SAME, Checkpoint, identity
from interp.support import memory
from interp.support.checks import check_choice, check_same
from interp.support.disk import uninterrupted

__all__ = ["Observer", "Reduction", "fingerprint", "forward", "observe", "observe_parts", "part_of"]

Reduction = Literal["sum", "max", "min", "moments", "largest", "groups"]
_Start: TypeAlias = tuple[int, Float[Tensor, "batch pos d_model"]]
"""A block, and the residual stream that enters it."""
_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": Tensor.add_,
    "max": torch.maximum,
    "min": torch.minimum,
    "moments": moments.merged,
    "largest": largest.merged,
    "groups": Tensor.add_,
}
"""How a second tensor is merged into the first, which is float64 and may be overwritten."""
_OVER_PROCESSES = {"moments": moments.all_reduce, "largest": largest.all_reduce}
_NEUTRAL = {"sum": 0.0, "max": -torch.inf, "min": torch.inf, "moments": 0.0, "largest": -torch.inf, "groups": 0.0}
_SIZE = "stretches_per_group"
SECONDS_BETWEEN_CHECKPOINTS = 20.0
LOGITS_AT_ONCE = 2**22
"""The prediction head reads a batch that has more logits in parts. Larger parts are slower on a CPU."""
_KEPT = 2**20  # vectors that fingerprints are projected on are kept up to this length, and longer ones drawn anew


class Observer:
    """Statistics of a corpus that can be merged. They are named tensors, each reduced by sum, max or min, merged as in
    `interp.passes.moments` or `interp.passes.largest`, or summed within groups of texts (`interp.passes.groups`).

    A subclass declares its tensors with `add_state`, returns reading hooks from `hooks`, and calls `add` in them. What
    is added during a batch stays in scratch memory until `commit`, so a failed forward pass leaves nothing behind.

    States are float64 tensors, on the CPU for devices without float64. `state` maps names to tensors.

    Args:
        device: the device of the states.
        options: every argument that changes what is added. Observers can be merged and resumed only if their options
            are equal, and observers with exactly the same options are filled once (`interp.passes.shared`).

    Examples:
        >>> from interp.corpora import batches
        >>> from interp.models.sites import hook_name
        >>> from interp.testing import toy_decoder
        >>> class MeanResidual(Observer):
        ...     def __init__(self, model, layer):
        ...         super().__init__(model.W_U.device, layer=layer)
        ...         self.name = hook_name(model, "resid_post", layer)
        ...         self.add_state("sum", (model.cfg.d_model,))
        ...         self.add_state("n", ())
        ...
        ...     def hooks(self, batch):
        ...         def read(resid, hook):
        ...             chosen = batch.select(resid)  # the positions that are read, no padding
        ...             self.add("sum", chosen.sum(0))
        ...             self.add("n", len(chosen))
        ...
        ...         return [(self.name, read)]
        >>> model = toy_decoder()
        >>> observer = MeanResidual(model, layer=0)
        >>> observe(model, batches(model, ["w0 w1 w2"] * 20, context=12), observer, progress=False)
        >>> observer.state["n"].item(), (observer.state["sum"] / observer.state["n"]).shape
        (60.0, torch.Size([16]))
    """

    of_rows: ClassVar[bool] = False
    """Whether it listens only at the prediction head, and reads each row by itself, so that the head may read a batch
    in parts."""

    def __init__(self, device: torch.device | str = "cpu", **options: Any) -> None:
        self.device = torch.device("cpu" if torch.device(device).type == "mps" else device)
        self.options = {"observer": f"{type(self).__module__}.{type(self).__qualname__}"} | options
        self.state: dict[str, Tensor] = {}
        self.reductions: dict[str, Reduction] = {}
        self._scratch: dict[str, Tensor] = {}
        self._by_group: dict[tuple[str, int], Tensor] = {}
        self._of_groups: list[tuple[str, Tensor, Tensor]] = []
        self._at_places: list[tuple[str, int, Tensor, Tensor]] = []

    def add_state(self, name: str, shape: tuple[int, ...], reduce: Reduction = "sum") -> None:
        """Declare a tensor, filled with the reduction's neutral element.

        With `"groups"` it holds one sum per group of texts, `[groups, …]`; all such states of an observer have the same
        groups.
        """
        check_choice("reduction", reduce, _COMBINE)
        if reduce == "groups" and _SIZE not in self.state:
            self.add_state(_SIZE, (), "max")
        self.state[name] = _filled(shape, _NEUTRAL[reduce], self.device)
        self.reductions[name] = reduce

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been committed yet."""
        return all(bool((value == _NEUTRAL[self.reductions[name]]).all()) for name, value in self.state.items())

    def hooks(self, batch: Batch) -> Recipe:
        """Hooks that read the activations of this batch and call `add`."""
        raise NotImplementedError

    def add(self, name: str, value: Shaped[Tensor, "*shape"] | float | int, *, group: int | None = None) -> None:
        """Add a value of the state's shape to the batch's scratch memory; `group` is needed if the state has groups."""
        new = (value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)).to(self.device)
        self._check(name, new.shape, in_group=group is not None)
        seen = self._scratch.get(name) if group is None else self._by_group.get((name, group))
        combine = _COMBINE[self.reductions[name]]
        # a copy, because the caller may still write to its own
        seen = new.to(torch.float64, copy=True) if seen is None else combine(seen, new)
        if group is None:
            self._scratch[name] = seen
        else:
            self._by_group[name, group] = seen

    def _check(self, name: str, found: tuple[int, ...], *, in_group: bool) -> None:
        """Raise ValueError for a state that was not declared, or that does not take values of this shape."""
        if name not in self.state:
            raise ValueError(f"no state {name!r} was declared; expected one of {', '.join(self.state)}")
        if in_group != (self.reductions[name] == "groups"):
            needed = "no group" if in_group else "a group, from groups_of(batch)"
            raise ValueError(f"state {name!r} is reduced by {self.reductions[name]}; call add with {needed}")
        if found != (shape := self.state[name].shape[in_group:]):
            raise ValueError(f"state {name!r} has shape {tuple(shape)}, found a value of {tuple(found)}")

    def add_at(self, name: str, places: Int[Tensor, " n"], values: Shaped[Tensor, "*shape n"], *, group: int) -> None:
        """`add` values at some places of the last dimension, which may be the same, and zeros everywhere else."""
        self._at_places.append((name, group, places.to(self.device), values.to(self.device, torch.float64)))

    def groups_of(self, batch: Batch) -> list[int]:
        """The group of texts that each row of a batch belongs to, for `add`.

        Groups are just large enough for all texts that were read to fit.
        """
        most = next(len(self.state[name]) for name, reduction in self.reductions.items() if reduction == "groups")
        stretches = [0] * len(batch.tokens) if batch.stretches is None else batch.stretches.tolist()
        size = groups.fitting(max(stretches), most, self.stretches_per_group)
        self.add(_SIZE, size)
        return [stretch // size for stretch in stretches]

    def groups_of_positions(self, batch: Batch) -> Int[Tensor, " pos"]:
        """The group of texts for each position that is read, on the CPU."""
        return torch.tensor(self.groups_of(batch))[:, None].expand(batch.read.shape)[batch.read.cpu()]

    def add_rows(self, name: str, values: Shaped[Tensor, "batch *shape"], batch: Batch) -> None:
        """`add` the values of each row of a batch to the row's group of texts."""
        self.add_to_groups(name, values, torch.tensor(self.groups_of(batch)))

    def add_to_groups(self, name: str, values: Shaped[Tensor, "n *shape"], groups: Int[Tensor, " n"]) -> None:
        """`add` each value to its group of texts."""
        self._check(name, values.shape[1:], in_group=True)
        found, which = groups.to(self.device).unique(return_inverse=True)
        sums = values.new_zeros(len(found), *values.shape[1:], dtype=torch.float64, device=self.device)
        self._of_groups.append((name, found, sums.index_add_(0, which, values.to(sums))))

    @property
    def stretches_per_group(self) -> int:
        """How many consecutive texts, or pieces of longer texts, make up a group."""
        return int(self.state[_SIZE].clamp(min=1))

    def commit(self) -> None:
        """Merge the scratch memory into the state."""
        self._take(self._scratch)
        for (name, group), value in self._by_group.items():
            self.state[name][group] += value
        for name, found, sums in self._of_groups:
            self.state[name].index_add_(0, found, sums)
        for name, group, places, values in self._at_places:
            self.state[name][group].index_add_(-1, places, values)
        self.discard()

    def discard(self) -> None:
        """Discard the scratch memory."""
        self._scratch, self._by_group, self._of_groups, self._at_places = {}, {}, [], []

    def clear(self) -> None:
        """Forget everything."""
        self.discard()
        state, self.state = self.state, {}
        for name, value in state.items():
            self.add_state(name, tuple(value.shape), self.reductions[name])

    def merge(self, other: "Observer") -> None:
        """Merge the state of another observer into this one, as if this one had read both corpora.

        Raises ValueError for an observer with other options.
        """
        check_same("cannot merge these observers", other.options, self.options, rel_tol=SAME)
        self._take(other.state)

    def _take(self, values: Mapping[str, Tensor]) -> None:
        """Merge values into the state according to its reductions."""
        size = int(values[_SIZE].clamp(min=1)) if _SIZE in values else 1
        self._regroup(size)
        for name, value in values.items():
            new = value.to(self.device)
            if self.reductions[name] == "groups":
                new = groups.coarser(new, self.stretches_per_group // size)
            self.state[name] = _COMBINE[self.reductions[name]](self.state[name], new)

    def _regroup(self, size: int) -> None:
        """Merge groups until each has `size` stretches."""
        if _SIZE not in self.state or size <= self.stretches_per_group:
            return
        for name, reduction in self.reductions.items():
            if reduction == "groups":
                self.state[name] = groups.coarser(self.state[name], size // self.stretches_per_group)
        self.state[_SIZE] = torch.full_like(self.state[_SIZE], size)

    def all_reduce(self) -> None:
        """Reduce the state over all processes of the `torch.distributed` group, in place."""
        operations = torch.distributed.ReduceOp
        if _SIZE in self.state:
            size = self.state[_SIZE].clone()
            torch.distributed.all_reduce(size, operations.MAX)
            self._regroup(int(size.clamp(min=1)))
        for name, reduction in self.reductions.items():
            if reduction in _OVER_PROCESSES:
                self.state[name] = _OVER_PROCESSES[reduction](self.state[name])
            else:
                operation = "SUM" if reduction == "groups" else reduction.upper()
                torch.distributed.all_reduce(self.state[name], getattr(operations, operation))


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
    if any(getattr(observer, "model", model) is not model for observer in observers):
        raise ValueError("an observer was made for another model; make it with this one")
    start, kept = 0, None
    if checkpoint is not None:
        described = {f"observer {number}": observer.options for number, observer in enumerate(observers)}
        kept = Checkpoint(Path(checkpoint), identity(model, batches=batches.settings, **described))
        if any(not observer.is_empty for observer in observers):
            raise ValueError("with a checkpoint the observers must be new, but one of these already holds data")
        tensors, done = kept.load()
        for name, value in tensors.items():
            index, _, state = name.partition(".")
            observers[int(index)].state[state] = value.to(observers[int(index)].device)
        if done is None:
            return
        start = done

    def save(done: int | None = None) -> None:
        if kept is not None:
            each = enumerate(observers)
            kept.save({f"{i}.{name}": value for i, one in each for name, value in one.state.items()}, done)

    done, hooks = start, hooks_of_others(model)
    saved = time.monotonic()
    bar = tqdm(total=batches.n_texts, unit="text", disable=None if progress else True, desc=what, smoothing=0.1)
    try:
        with bar, memory.reused():
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


def _filled(shape: tuple[int, ...], value: float, device: torch.device) -> Float[Tensor, "*shape"]:
    """A tensor filled with one value. On the CPU, zeros take memory only where they are written to."""
    if value == 0 and device.type == "cpu":
        return torch.from_numpy(np.zeros(shape))
    return torch.full(shape, value, dtype=torch.float64, device=device)


@torch.no_grad()
def feed(
    model: Model,
    batch: Batch,
    observers: tuple[Observer, ...],
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
            recipe = resolved(model, [hook for observer in observers for hook in observer.hooks(batch)])
            _run(model, batch, recipe, hooks, start)
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


def _parts(batch: Batch, most: int) -> Iterator[tuple[slice, Batch]]:
    """Consecutive rows of a batch, in which at most `most` positions are read, or one row."""
    ends = batch.read.sum(1).cumsum(0).tolist()
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        end = max(start + 1, bisect_right(ends, before + most))
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
    """`observe` in parts (see `part_of`), one after another. What is in the checkpoint of a part is not read again."""
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
            observer._take(state)


def part_of(batches: Batches, index: int, of: int) -> Batches:
    """Every `of`-th batch, from `index` on."""
    n_texts = None if batches.n_texts is None else -(-batches.n_texts // of)
    settings = batches.settings | {"part": [index, of]}
    return replace(batches, settings=settings, n_texts=n_texts, read=lambda: islice(batches, index, None, of))


def fingerprint(values: Shaped[np.ndarray | Tensor, "*shape"]) -> dict[str, Any]:
    """An identification of numbers for an observer's `options`: their shape and four random projections.

    Options are compared to five digits, so that numbers computed in float32 on another device, or with another number
    of threads, count as the same, and numbers that differ by more do not.
    """
    numbers = torch.as_tensor(values).detach().double().cpu().numpy()
    flat = numbers.ravel()
    finite, rest = flat, np.zeros(1)
    if not np.isfinite(flat).all():
        finite = np.where(np.isfinite(flat), flat, 0.0)
        rest = np.where(np.isnan(flat), 3.0, np.where(np.isposinf(flat), 2.0, np.isneginf(flat)))
    directions = _directions(flat.size) if flat.size < _KEPT else _directions.__wrapped__(flat.size)
    projections = [[float(r @ finite), float(r[: len(rest)] @ rest)] for r in directions]
    return {"shape": list(numbers.shape), "projections": projections}


@functools.lru_cache(maxsize=1)
def _directions(size: int) -> list[Float[np.ndarray, " size"]]:
    """What numbers are projected on."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(size) for _ in range(4)]
