"""Shared parts of the attention observers: classes of keys, activations of a layer that are read together, and
tables."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.corpora.batching import Batch, Text, as_batches
from interp.corpora.classes import TokenClasses
from interp.models.edits import jointly
from interp.models.identity import check_weights
from interp.models.qk import QKCircuit, input_name, qk_circuit
from interp.models.running import active_hooks, running
from interp.models.shapes import Shape
from interp.models.sites import Model, Recipe, hook_name
from interp.passes.budget import Pass
from interp.passes.observers import Observer
from interp.passes.reading import forward, observe
from interp.results.intervals import Jackknife, about, from_sums
from interp.support.checks import warn

__all__ = ["GroupedKeyObserver", "KeyClassBatch", "KeyObserver", "activations", "attention_cost"]
__all__ += ["attention_hooks", "is_edited"]
__all__ += ["over_queries", "received", "table_of"]
__dir__ = __all__.copy

_PAST_KEYS = ("hook_rot_q", "hook_rot_k", "hook_attn_scores", "hook_pattern")


class KeyClassBatch:
    """Which tokens of a batch are real, and their classes as one-hot vectors: `one_hot` at least in float32, and
    `counts` in float64 for sums that must be exact."""

    def __init__(self, batch: Batch, classes: TokenClasses, dtype: torch.dtype) -> None:
        if bool((batch.mask.diff(dim=1) > 0).any()):
            raise ValueError("a row of this batch is padded on the left; pad on the right (corpora.batches does)")
        self.batch = batch
        self.real = batch.mask.bool()
        self._padded = not bool(self.real.all())
        one_hot = torch.nn.functional.one_hot(classes(batch.tokens), len(classes.names)) * self.real[..., None]
        self.one_hot = one_hot.to(torch.promote_types(dtype, torch.float32))
        self.counts = one_hot.double() if one_hot.device.type != "mps" else one_hot.float()

    def zero_padded(self, values: Float[Tensor, "batch pos *rest"]) -> Float[Tensor, "batch pos *rest"]:
        """Return the values, with 0 at padding."""
        return values * self.real.view(*self.real.shape, *(1,) * (values.ndim - 2)) if self._padded else values

    def by_row(self, values: Float[Tensor, "batch head key"]) -> Float[Tensor, "batch head classes"]:
        """Sum over the keys of each class, for each row."""
        return einsum(values, self.one_hot, "batch head key, batch key classes -> batch head classes")


class KeyObserver(Observer):
    """An observer of some layers that distinguishes keys by class. `layer_hooks` returns the hooks of one layer.

    Args:
        layers: TransformerLens' block numbers, or hidden states. The observer's states are named `"{layer}.{name}"`.
        options: see `Observer`. The description of the classes is added.

    A batch that is padded on the left is refused with ValueError.
    """

    axes: ClassVar = {"tokens": "classes"}

    def __init__(self, model: Model, classes: TokenClasses, layers: Iterable[int], /, **options: Any) -> None:
        super().__init__(model.W_U.device, **options, **classes.describe(model.cfg.d_vocab, model.cfg.n_ctx))
        self.model = model
        self.classes = classes
        self.layers = list(layers)

    def hooks(self, batch: Batch) -> Recipe:
        keys = KeyClassBatch(batch, self.classes, self.model.W_U.dtype)
        self.add("tokens", keys.counts.sum((0, 1)))
        recipe: Recipe = []
        for layer in self.layers:
            recipe.extend(self.layer_hooks(layer, keys))
        return recipe

    def add_to_layers(self, **sizes: int | None) -> None:
        """Declare the tensors of `axes`, those with `{}` in their names for every layer."""
        self.add_states(self.model.cfg, self.layers, classes=len(self.classes.names), **sizes)

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        raise NotImplementedError

    @property
    def tokens(self) -> Float[Tensor, " classes"]:
        """The number of tokens of each class that were read, as queries and keys. Raises ValueError if there are
        none."""
        if not self.state["tokens"].any():
            raise ValueError("no token was read; observe a corpus first")
        return self.state["tokens"]

    @property
    def present(self) -> list[int]:
        """The classes that have tokens in the corpus."""
        return self.tokens.nonzero()[:, 0].tolist()

    @property
    def names(self) -> list[str]:
        """The names of the classes in `present`."""
        return [self.classes.names[number] for number in self.present]

    def of_layers(self, name: str) -> Float[Tensor, "layer *shape"]:
        """Return a state of every layer."""
        return torch.stack([self.state[f"{layer}.{name}"] for layer in self.layers])

    def per_query(self, name: str) -> Float[np.ndarray, "*shape"]:
        """Return a state that is a sum over queries, averaged over them."""
        return (self.state[name] / self.tokens.sum()).cpu().numpy()

    def by_head(self, columns: Mapping[str, Tensor], **keys: Sequence[Any]) -> pd.DataFrame:
        """Make a table with one row per layer, head and class that is present, and per combination of `keys`."""
        heads = range(self.model.cfg.n_heads)
        return table_of(dict(layer=self.layers, head=heads, key_class=self.names, **keys), columns)

    def read(
        self, text: Text, *, batch_size: int | None, progress: bool, checkpoint: str | os.PathLike[str] | None
    ) -> None:
        """Observe a text, and warn about classes without tokens in it."""
        batches = as_batches(self.model, text, batch_size=batch_size)
        observe(self.model, batches, self, progress=progress, checkpoint=checkpoint)
        self.warn_of_absent()

    def warn_of_absent(self) -> None:
        """Say once which classes have no token in the corpus. Of the default ones, that is not said of `bos` and
        `first`: one of them is where rows begin."""
        names = self.names
        begins = {"bos", "first"} if {"bos", "first"} <= {*self.classes.names} else set()
        if absent := [name for name in self.classes.names if name not in names and name not in begins]:
            warn(f"no token of class {', '.join(absent)} in this text, so the tables have no rows for it")


class GroupedKeyObserver(KeyObserver):
    """A `KeyObserver` that also keeps sums by group of texts (`interp.passes.groups`), from which intervals come."""

    axes: ClassVar = {"queries": "groups"}

    def hooks(self, batch: Batch) -> Recipe:
        self.add_rows("queries", batch.mask.sum(1), batch)
        return super().hooks(batch)

    def by_group(self, layer: int, name: str) -> Float[np.ndarray, "groups *shape"]:
        """Return a state of the groups that were read."""
        return self._read_groups(f"{layer}.{name}")

    def jackknife(self, measure: Callable[..., Any], *sums: Float[np.ndarray, "groups ..."]) -> Jackknife:
        """Apply `interp.results.intervals.from_sums` to sums by group, where the size of a group is its number of
        queries."""
        return from_sums(measure, sums, self.queries, self.stretches_per_group)

    @property
    def queries(self) -> Float[np.ndarray, " groups"]:
        """The number of queries in each group of texts."""
        return self._read_groups("queries")

    @property
    def intervals(self) -> dict[str, Any]:
        """What a result records about these intervals (`interp.results.intervals.about`)."""
        return about(len(self.queries), self.stretches_per_group)

    def _read_groups(self, name: str) -> Float[np.ndarray, "groups *shape"]:
        return self.state[name][self.state["queries"] > 0].cpu().numpy()


def attention_hooks(
    model: Model,
    layer: int,
    batch: Batch,
    read: Callable[[Tensor, Tensor], None],
    site: Literal["input", "v"],
    *,
    first_query: int = 0,
) -> Recipe:
    """Return hooks that call `read` with the attention that each key of a layer receives from real queries, from
    `first_query` on, `[batch, head, key]` at least in float32, and with the input of the attention or the values.

    The attention is computed from queries and keys, a few queries at a time and once for all observers of the batch.
    The pattern is used instead if it is edited, or if queries and keys alone do not determine it.
    """
    real = batch.mask.bool()
    circuit = _circuit(model, layer, batch)
    queries = real & (torch.arange(real.shape[1], device=real.device) >= first_query)
    values = [hook_name(model, "v", layer)] if site == "v" else []
    inputs = [] if values else [input_name(model, layer)]
    if circuit is None:

        def from_pattern(other: Tensor, pattern: Tensor) -> None:
            wide = torch.promote_types(pattern.dtype, torch.float32)
            read(received([(slice(None), slice(None), pattern.to(wide))], queries, pattern.shape[1]), other)

        return jointly([*inputs, *values, hook_name(model, "pattern", layer)], from_pattern)

    def from_queries(*flow: Tensor) -> None:
        (q, k), (other,) = (flow[:2], flow[2:]) if values else (flow[1:], flow[:1])
        key = "received", layer, first_query
        if key not in batch.shared:
            batch.shared[key] = received(circuit.patterns(q, k, real), queries, q.shape[2])
        read(batch.shared[key], other)

    return jointly([*inputs, circuit.query_name, hook_name(model, "k", layer), *values], from_queries)


def attention_cost(size: Shape, context: int | None) -> Pass:
    """Estimate the cost of `attention_hooks` in every layer, from the shape of a model. Attention is computed again
    from queries and keys, or patterns are read where these do not determine it."""
    row = size.row(context)
    return Pass(
        per_token=0 if size.linear_scores else 12 * size.n_heads * row,
        flops=size.attention(row) / 2,
    )


def _circuit(model: Model, layer: int, batch: Batch) -> QKCircuit | None:
    """The circuit that computes the attention of a layer from queries and keys, or None if something else takes
    part."""
    if is_edited(model, batch):
        return None
    try:
        return qk_circuit(model, layer)
    except ValueError:
        return None


def is_edited(model: Model, batch: Batch) -> bool:
    """Whether there are hooks between the keys and the pattern, which a computation from the keys would miss."""
    if "edited" not in batch.shared:
        batch.shared["edited"] = any(name.endswith(_PAST_KEYS) for name in active_hooks(model))
    return bool(batch.shared["edited"])


def received(
    patterns: Iterable[tuple[slice, slice, Float[Tensor, "batch head query key"]]],
    chosen: Bool[Tensor, "batch pos"],
    n_heads: int,
) -> Float[Tensor, "batch head pos"]:
    """Compute the attention that each key receives from these queries, from patterns of a few queries and keys at a
    time."""
    total: Tensor | None = None
    for queries, keys, pattern in patterns:
        if total is None:
            total = pattern.new_zeros(len(chosen), n_heads, chosen.shape[1])
        total[..., keys] += over_queries(pattern, chosen[:, queries])
    assert total is not None
    return total


def over_queries(
    pattern: Float[Tensor, "batch head query key"], real: Bool[Tensor, "batch query"]
) -> Float[Tensor, "batch head key"]:
    """Sum over the real queries."""
    return (real[:, None, None].to(pattern.dtype) @ pattern).squeeze(2)


@torch.no_grad()
def activations(
    model: Model, tokens: Int[Tensor, " pos"], layers: Sequence[int]
) -> list[
    tuple[QKCircuit, Float[Tensor, "pos d_model"], Float[Tensor, "pos head d_head"], Float[Tensor, "head query key"]]
]:
    """Compute the circuit, attention input, (rotated) queries and attention pattern of each layer, for one sequence."""
    check_weights(model)
    circuits = [qk_circuit(model, layer) for layer in layers]
    activations = []

    def keep(circuit: QKCircuit, x: Tensor, q: Tensor, pattern: Tensor) -> None:
        activations.append((circuit, circuit.attn_input(x)[0], circuit.rotate(q)[0], pattern[0]))

    recipe: Recipe = []
    for circuit in circuits:
        names = circuit.input_name, circuit.query_name, hook_name(model, "pattern", circuit.layer)
        recipe += jointly(names, partial(keep, circuit))
    with running(model, recipe):
        forward(model, Batch.of([tokens.tolist()]).to(model.W_U.device), max(layers) + 1)
    return activations


def table_of(keys: Mapping[str, Any], columns: Mapping[str, Tensor]) -> pd.DataFrame:
    """Make a table with one row per combination of the keys. The columns are tensors that broadcast to these."""
    index = pd.MultiIndex.from_product(list(keys.values()), names=list(keys))
    values = {name: column.cpu().expand(index.levshape).numpy().ravel() for name, column in columns.items()}
    return pd.DataFrame(values, index).reset_index()
