"""What is measured while a corpus is read: sets of named tensors, each with a reduction."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from interp.corpora.batching import Batch
from interp.models.sites import Recipe
from interp.passes import groups, largest, moments
from interp.passes.checkpoint import SAME
from interp.support.checks import check_choice, check_same

__all__ = ["Observer", "Reduction", "fingerprint"]

Reduction = Literal["sum", "max", "min", "moments", "largest", "groups"]
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
_KEPT = 2**20  # vectors that fingerprints are projected on are kept up to this length, and longer ones drawn anew


class Observer:
    """Statistics of a corpus that can be merged. They are named tensors, each reduced by sum, max or min, merged as in
    `interp.passes.moments` or `interp.passes.largest`, or summed within groups of texts (`interp.passes.groups`).

    A subclass declares its tensors with `add_state` or, where `--dry-run` needs their sizes, by `axes`. It returns
    reading hooks from `hooks`, and calls `add` in them. What is added during a batch stays in scratch memory until
    `commit`, so a failed forward pass leaves nothing behind.

    States are float64 tensors, on the CPU for devices without float64. `state` maps names to tensors.

    Args:
        device: the device of the states.
        options: every argument that changes what is added. Observers can be merged and resumed only if their options
            are equal, and observers with exactly the same options are filled once (`interp.passes.shared`).

    Examples:
        >>> from interp.corpora import batches
        >>> from interp.models.sites import hook_name
        >>> from interp.passes.reading import observe
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

    axes: ClassVar[Mapping[str, str]] = {}
    """The axes of tensors by name, such as `"groups n_heads d_model"`, or with a reduction `"max: d_model"`.

    An axis is a number, an attribute of the model's config, or a size that is given to `add_states`; `groups` is the
    number of groups of texts, and also the reduction. A name with `{}` stands for several tensors, such as one for each
    layer. Those of base classes are included."""

    def __init__(self, device: torch.device | str = "cpu", **options: Any) -> None:
        self.device = torch.device("cpu" if torch.device(device).type == "mps" else device)
        self.options = dict(observer=f"{type(self).__module__}.{type(self).__qualname__}", **options)
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
            self._n_groups = shape[0]
            self.add_state(_SIZE, (), "max")
        self.state[name] = _filled(shape, _NEUTRAL[reduce], self.device)
        self.reductions[name] = reduce

    def add_states(self, cfg: Any, each: Iterable[Any] = (), /, **sizes: int | None) -> None:
        """Declare the tensors of `axes`, from the model's config and the sizes of other axes.

        Args:
            each: what `{}` in a name stands for.
            sizes: those that are None leave out the tensors with this axis.
        """
        for name, reduction, shape in _declared(type(self), cfg, each, sizes):
            self.add_state(name, shape, reduction)

    @classmethod
    def n_bytes(cls, cfg: Any, each: Iterable[Any] = (), /, **sizes: int | None) -> int:
        """Count the bytes of these tensors, for `add_states` with the same arguments and no model. A
        `interp.models.shapes.Shape` will do as a config."""
        n_numbers = 0
        has_groups = False
        for _, reduction, shape in _declared(cls, cfg, each, sizes):
            n_numbers += math.prod(shape)
            has_groups = has_groups or reduction == "groups"
        return 8 * (n_numbers + has_groups)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been committed yet."""
        return all(bool((value == _NEUTRAL[self.reductions[name]]).all()) for name, value in self.state.items())

    def hooks(self, batch: Batch) -> Recipe:
        """Return hooks that read the activations of this batch and call `add`."""
        raise NotImplementedError

    def add(self, name: str, value: Shaped[Tensor, "*shape"] | float | int, *, group: int | None = None) -> None:
        """Add a value of the state's shape to the batch's scratch memory; `group` is needed if the state has groups."""
        new = (value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)).to(self.device)
        self._check(name, new.shape, in_group=group is not None)
        sums = self._scratch.get(name) if group is None else self._by_group.get((name, group))
        combine = _COMBINE[self.reductions[name]]
        # a copy, because the caller may still write to its own
        sums = new.to(torch.float64, copy=True) if sums is None else combine(sums, new)
        if group is None:
            self._scratch[name] = sums
        else:
            self._by_group[name, group] = sums

    def _check(self, name: str, value_shape: tuple[int, ...], *, in_group: bool) -> None:
        """Raise ValueError for a state that was not declared, or that does not take values of this shape."""
        if name not in self.state:
            raise ValueError(f"no state {name!r} was declared; expected one of {', '.join(self.state)}")
        if in_group != (self.reductions[name] == "groups"):
            needed = "no group" if in_group else "a group, from groups_of(batch)"
            raise ValueError(f"state {name!r} is reduced by {self.reductions[name]}; call add with {needed}")
        if value_shape != (shape := self.state[name].shape[in_group:]):
            raise ValueError(f"state {name!r} has shape {tuple(shape)}, found a value of {tuple(value_shape)}")

    def add_at(self, name: str, places: Int[Tensor, " n"], values: Shaped[Tensor, "*shape n"], *, group: int) -> None:
        """Add values at some places of the last dimension, which may be the same, and zeros everywhere else."""
        self._at_places.append((name, group, places.to(self.device), values.to(self.device, torch.float64)))

    def groups_of(self, batch: Batch) -> list[int]:
        """Return the group of texts that each row of a batch belongs to, for `add`, as the number of its first text.

        Groups are just large enough for all texts that were read to fit.
        """
        stretches = [0] * len(batch.tokens) if batch.stretches is None else batch.stretches.tolist()
        size = self._size_for(stretches)
        return [stretch // size * size for stretch in stretches]

    def groups_of_positions(self, batch: Batch) -> Int[Tensor, " pos"]:
        """Return the group of texts for each position that is read, on the CPU."""
        return torch.tensor(self.groups_of(batch))[:, None].expand(batch.read.shape)[batch.read.cpu()]

    def add_rows(self, name: str, values: Shaped[Tensor, "batch *shape"], batch: Batch) -> None:
        """Add the values of each row of a batch to the row's group of texts."""
        self.add_to_groups(name, values, torch.tensor(self.groups_of(batch)))

    def add_to_groups(self, name: str, values: Shaped[Tensor, "n *shape"], groups: Int[Tensor, " n"]) -> None:
        """Add each value to its group of texts."""
        self._check(name, values.shape[1:], in_group=True)
        present, index = groups.to(self.device).unique(return_inverse=True)
        sums = values.new_zeros(len(present), *values.shape[1:], dtype=torch.float64, device=self.device)
        self._of_groups.append((name, present, sums.index_add_(0, index, values.to(sums))))

    def _size_for(self, stretches: Iterable[int]) -> int:
        """How many stretches a group needs for all of these to be in a group."""
        return groups.fitting(max(stretches), self._n_groups, self.stretches_per_group)

    @property
    def stretches_per_group(self) -> int:
        """How many consecutive texts, or pieces of longer texts, make up a group."""
        return int(self.state[_SIZE].clamp(min=1))

    def commit(self) -> None:
        """Merge the scratch memory into the state."""
        starts = [group for _, group in self._by_group]
        starts += [group for _, group, _, _ in self._at_places]
        for _, present, _ in self._of_groups:
            starts += present.tolist()
        if starts:
            self.add(_SIZE, self._size_for(starts))
        self.merge_state(self._scratch)
        for (name, group), value in self._by_group.items():
            self.state[name][group // self.stretches_per_group] += value
        for name, present, sums in self._of_groups:
            self.state[name].index_add_(0, present // self.stretches_per_group, sums)
        for name, group, places, values in self._at_places:
            self.state[name][group // self.stretches_per_group].index_add_(-1, places, values)
        self.discard()

    def discard(self) -> None:
        """Discard the scratch memory."""
        self._scratch = {}
        self._by_group = {}
        self._of_groups = []
        self._at_places = []

    def clear(self) -> None:
        """Forget everything."""
        self.discard()
        state = self.state
        self.state = {}
        for name, value in state.items():
            self.add_state(name, tuple(value.shape), self.reductions[name])

    def merge(self, other: "Observer") -> None:
        """Merge the state of another observer into this one, as if this one had read both corpora.

        Raises ValueError for an observer with other options.
        """
        check_same("cannot merge these observers", other.options, self.options, rel_tol=SAME)
        self.merge_state(other.state)

    def merge_state(self, values: Mapping[str, Tensor]) -> None:
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


def _declared(
    observer: type[Observer], cfg: Any, each: Iterable[Any], sizes: Mapping[str, int | None]
) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """The tensors of an observer's `axes`: name, reduction and shape."""
    sizes = dict(sizes)
    sizes.setdefault("groups", groups.MOST)
    items = list(each)
    for part in reversed(observer.__mro__):
        for name, described in vars(part).get("axes", {}).items():
            reduction, _, axes = described.rpartition(": ")
            reduction = reduction or ("groups" if axes.startswith("groups") else "sum")
            shape = [_length(axis, cfg, sizes) for axis in axes.split()]
            if None not in shape:
                for item in items if "{}" in name else [""]:
                    yield name.format(item), reduction, tuple(shape)


def _length(axis: str, cfg: Any, sizes: Mapping[str, int | None]) -> Any:
    if axis.isdecimal():
        return int(axis)
    return sizes[axis] if axis in sizes else getattr(cfg, axis)


def _filled(shape: tuple[int, ...], value: float, device: torch.device) -> Float[Tensor, "*shape"]:
    """A tensor filled with one value. On the CPU, zeros take memory only where they are written to."""
    if value == 0 and device.type == "cpu":
        return torch.from_numpy(np.zeros(shape))
    return torch.full(shape, value, dtype=torch.float64, device=device)


def fingerprint(values: Shaped[np.ndarray | Tensor, "*shape"]) -> dict[str, Any]:
    """Identify numbers for an observer's `options`: their shape and four random projections.

    Options are compared to five digits, so that numbers computed in float32 on another device, or with another number
    of threads, count as the same, and numbers that differ by more do not.
    """
    numbers = torch.as_tensor(values).detach().double().cpu().numpy()
    flat = numbers.ravel()
    finite = flat
    not_finite = np.zeros(1)
    if not np.isfinite(flat).all():
        finite = np.where(np.isfinite(flat), flat, 0.0)
        not_finite = np.where(np.isnan(flat), 3.0, np.where(np.isposinf(flat), 2.0, np.isneginf(flat)))
    directions = _directions(flat.size) if flat.size < _KEPT else _directions.__wrapped__(flat.size)
    projections = []
    for direction in directions:
        projections.append([float(direction @ finite), float(direction[: len(not_finite)] @ not_finite)])
    return {"shape": list(numbers.shape), "projections": projections}


@functools.lru_cache(maxsize=1)
def _directions(size: int) -> Float[np.ndarray, "4 size"]:
    """What numbers are projected on."""
    return np.random.default_rng(0).standard_normal((4, size))
