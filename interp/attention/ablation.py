"""What happens to attention when a dimension is taken away."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import hooks
from interp.attention.patterns import AttentionByClass
from interp.attention.profile import DimensionProfile
from interp.attention.scores import KeyClassBatch
from interp.checks import check_mode, check_seed, check_table
from interp.corpora import Batch, Batches, KeyClasses, Text, TokenClasses, as_batches, token_classes
from interp.models.options import Mode
from interp.models.qk import QKCircuit, check_layers, qk_circuit
from interp.models.running import running
from interp.models.sites import Model, Recipe, hook_name
from interp.run.observers import Observer, fingerprint, observe
from interp.run.passes import Passes, Reading, runs

Where = Literal["keys", "residual"]
_OUTLIERS = 3  # outlier dimensions that are ablated in each layer, the largest first
_CONTROLS = 5  # random dimensions beside them, and as many of matched magnitude


class KeyAblation(Observer):
    """Attention by class when one dimension of one layer's keys is replaced by a constant, for many at once.

    Exact, in one pass: a key dimension of a layer changes the scores of that layer alone, by
    `q_m · R_n W_K[j] (x_nj − m_j)`, so its softmax is computed again and nothing else.

    After `observe`: `before` `[head, classes]` and `after` `[dims, head, classes]` of each layer, attention summed
    over the keys of a class and averaged over queries.

    Args:
        fills: by layer and dimension, the constant m_j.
    """

    def __init__(self, model: Model, classes: TokenClasses, fills: Mapping[int, Mapping[int, float]]) -> None:
        described = {
            str(layer): {"dims": list(dims), "means": fingerprint(np.array(list(dims.values())))}
            for layer, dims in fills.items()
        }
        super().__init__(model.W_U.device, fills=described, **classes.describe(model.cfg.d_vocab))
        self.model, self.classes, self.fills = model, classes, fills
        shape = (model.cfg.n_heads, len(classes.names))
        for layer, dims in fills.items():
            self.add_state(f"{layer}.before", shape)
            self.add_state(f"{layer}.after", (len(dims), *shape))
        self.add_state("queries", ())

    def hooks(self, batch: Batch) -> Recipe:
        keys = KeyClassBatch(batch, self.classes, self.model.W_U.dtype)
        self.add("queries", keys.real.sum())
        return [hook for layer in self.fills for hook in self._hooks(qk_circuit(self.model, layer), keys)]

    def _hooks(self, circuit: QKCircuit, keys: KeyClassBatch) -> Recipe:
        seen: dict[str, Tensor] = {}
        layer = circuit.layer

        def read_input(activation: Tensor, hook: object) -> None:
            seen["input"] = activation

        def read_query(q: Tensor, hook: object) -> None:
            seen["q"] = q

        def read_scores(scores: Tensor, hook: object) -> None:
            x, q = circuit.attn_input(seen.pop("input")).to(keys.one_hot), seen.pop("q").to(keys.one_hot)
            scores = scores.to(x)
            self.add(f"{layer}.before", self._by_class(scores.softmax(-1), keys))
            after = []
            for dim, fill in self.fills[layer].items():
                direction = circuit.rotate(circuit.W_K[:, dim].expand(1, x.shape[1], -1, -1))[0].to(x)
                change = torch.einsum("bmhe,nhe->bhmn", q, direction) * (x[:, None, None, :, dim] - fill)
                after.append(self._by_class((scores - change / circuit.scale).softmax(-1), keys))
            self.add(f"{layer}.after", torch.stack(after))

        names = circuit.input_name, circuit.query_name, hook_name(self.model, "attn_scores", layer)
        return list(zip(names, (read_input, read_query, read_scores), strict=True))

    @staticmethod
    def _by_class(pattern: Tensor, keys: KeyClassBatch) -> Tensor:
        received = (pattern * keys.real[:, None, :, None]).sum(2)
        return torch.einsum("bhn,bnc->hc", received, keys.one_hot)

    def before(self, layer: int) -> Float[np.ndarray, "head classes"]:
        return (self.state[f"{layer}.before"] / self.state["queries"]).cpu().numpy()

    def after(self, layer: int) -> Float[np.ndarray, "dims head classes"]:
        return (self.state[f"{layer}.after"] / self.state["queries"]).cpu().numpy()


@runs
def ablation_effect(
    model: Model,
    text_or_batches: Text,
    outliers: pd.DataFrame,
    *,
    drivers: pd.DataFrame | None = None,
    layers: Sequence[int] | None = None,
    key_classes: KeyClasses = None,
    where: Where = "keys",
    mode: Mode = "mean",
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
) -> Passes[pd.DataFrame]:
    """Does attention to a class fall when an outlier dimension is removed, and only then?

    For each layer the outlier dimensions of the state that enters it (the three of largest |z|) are removed one at a
    time (`set` outlier), then for each class the dimension with the largest gap (`driver`), the five others whose
    root mean square is nearest to theirs (`matched`) and five random ones (`random`). Outliers are outlying, so look
    at `magnitude` (the root mean square) before calling matched dimensions equal.

    Args:
        outliers: the table of `find_outliers`.
        drivers: the table of `interp.attention.gaps`; by its mean over heads. None ablates outliers alone.
        layers: TransformerLens' block numbers; all.
        where: `"keys"` of the layer alone (see `interp.hooks.ablate_dims`): two passes in all. `"residual"`: the
            residual stream that enters the layer, and the layer's attention then: a pass a dimension and layer.
        mode: set the dimension to zero, or to its mean over tokens.
        seed: of the random dimensions.

    Returns the table `ablation` (layer, dim, set, magnitude, where, mode, key_class, attention_before,
    attention_after, head, head_before, head_after): attention summed over the keys of a class, averaged over queries
    and heads; and the same of the head in which it changes most.

    Raises ValueError for an unknown where or mode, a layer that does not exist, and tables with values missing, of two
    runs, or with a state, layer or dimension that the model does not have.
    """
    chosen = check_layers(model, layers)
    if where not in ("keys", "residual"):
        raise ValueError(f"unknown where {where!r}; expected 'keys' or 'residual'")
    check_mode(mode)
    seed = check_seed(seed)
    d_model, n_layers = model.cfg.d_model, model.cfg.n_layers
    check_table(outliers, "outliers", ["state", "dim", "z"], ["state", "dim"])
    _check_numbers(outliers, "outliers", {"state": n_layers + 1, "dim": d_model})
    if drivers is not None:
        key = ["layer", "head", "key_class", "dim"]
        check_table(drivers, "drivers", [*key, "gap"], key)
        _check_numbers(drivers, "drivers", {"layer": n_layers, "dim": d_model})
    classes = token_classes(model, key_classes)
    prepared = as_batches(model, text_or_batches, batch_size=batch_size)
    read = DimensionProfile(model, classes, of="attn_input" if where == "keys" else "residual")
    yield [Reading("profile", prepared, [read])]
    return (
        yield from ablate(model, prepared, classes, read.table, outliers, drivers, chosen, where, mode, seed, progress)
    )


def _check_numbers(table: pd.DataFrame, what: str, counts: Mapping[str, int]) -> None:
    """Raise ValueError for a table with a number that this model does not have in a column."""
    for column, count in counts.items():
        outside = table.loc[~table[column].isin(range(count)), column]
        if len(outside):
            raise ValueError(
                f"{what} has {column} {outside.iloc[0]}, this model has 0 … {count - 1}; give the table of this model"
            )


def ablate(
    model: Model,
    prepared: Batches,
    classes: TokenClasses,
    profile: pd.DataFrame,
    outliers: pd.DataFrame,
    drivers: pd.DataFrame | None,
    layers: Sequence[int],
    where: Where,
    mode: Mode,
    seed: int,
    progress: bool,
) -> Passes[pd.DataFrame]:
    """`ablation_effect` for `interp.run.passes`, with the profile of what is ablated at hand: at most one reading."""
    every = profile[profile["key_class"] == "all"].set_index(["state", "dim"])
    size = (every["mean"] ** 2 + every["sd"] ** 2) ** 0.5
    rng = np.random.default_rng(seed)
    driving = _drivers(drivers, layers)
    plan = {
        layer: _sets(outliers[outliers["state"] == layer], driving[layer], size.loc[layer], rng) for layer in layers
    }
    plan = {layer: sets for layer, sets in plan.items() if sets}
    columns = ["layer", "dim", "set", "magnitude", "where", "mode", "key_class", "attention_before", "attention_after"]
    if not plan:
        return pd.DataFrame(columns=[*columns, "head", "head_before", "head_after"])
    means = every["mean"]
    fills = {
        layer: {dim: float(means.loc[layer, dim]) if mode == "mean" else 0.0 for dim in sets}
        for layer, sets in plan.items()
    }
    if where == "keys":
        observer = KeyAblation(model, classes, fills)
        yield [Reading("ablation", prepared, [observer])]
        before = {layer: observer.before(layer) for layer in plan}
        after = {layer: observer.after(layer) for layer in plan}
    else:
        before, after = _through_the_stream(model, prepared, classes, fills, progress)
    rows = []
    for layer, sets in plan.items():
        for (dim, kind), changed in zip(sets.items(), after[layer], strict=True):
            for number in np.flatnonzero(before[layer].sum(0)):
                old, new = before[layer][:, number], changed[:, number]
                head = int(np.abs(new - old).argmax())
                what = layer, dim, kind, float(size.loc[layer, dim]), where, mode, classes.names[number]
                rows.append((*what, old.mean(), new.mean(), head, old[head], new[head]))
    return pd.DataFrame(rows, columns=[*columns, "head", "head_before", "head_after"])


def _drivers(gaps: pd.DataFrame | None, layers: Sequence[int]) -> dict[int, list[int]]:
    """For each layer the dimension of the largest mean gap of each class."""
    if gaps is None or gaps.empty:
        return {layer: [] for layer in layers}
    means = gaps.groupby(["layer", "key_class", "dim"])["gap"].mean().reset_index()
    largest = means.sort_values("gap").groupby(["layer", "key_class"]).tail(1)
    return {layer: largest.loc[largest["layer"] == layer, "dim"].unique().tolist() for layer in layers}


def _sets(outliers: pd.DataFrame, drivers: list[int], size: pd.Series, rng: np.random.Generator) -> dict[int, str]:
    """The dimensions to ablate in a layer, by kind; none where it has neither outlier nor driver."""
    order = outliers["z"].abs().sort_values(ascending=False).index
    outlying = outliers.loc[order, "dim"].head(_OUTLIERS).tolist()
    tested = dict.fromkeys(outlying, "outlier")
    tested |= {dim: "driver" for dim in drivers if dim not in tested}
    if not tested:
        return {}
    others = size.drop(list({*tested, *outliers["dim"]}))
    distance = (np.log(others + 1e-12) - np.log(size[list(tested)].mean() + 1e-12)).abs()
    matched = distance.nsmallest(_CONTROLS).index
    rest = others.drop(matched).index
    random = rng.choice(rest, size=min(_CONTROLS, len(rest)), replace=False)
    return tested | dict.fromkeys(map(int, matched), "matched") | dict.fromkeys(map(int, random), "random")


def _through_the_stream(
    model: Model, prepared: Batches, classes: TokenClasses, fills: Mapping[int, Mapping[int, float]], progress: bool
) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Attention by class of each layer, unhooked and with each dimension of the stream that enters it replaced."""

    def attention(layer: int) -> np.ndarray:
        observer = AttentionByClass(model, classes, layers=[layer])
        observe(model, prepared, observer, progress=progress)
        return observer.by_class(layer)

    before, after = {}, {}
    for layer, dims in fills.items():
        before[layer] = attention(layer)
        changed = []
        for dim, fill in dims.items():
            means = torch.full((model.cfg.d_model,), fill)
            with running(model, hooks.ablate_dims(model, layer, [dim], where="residual", mode="mean", means=means)):
                changed.append(attention(layer))
        after[layer] = np.stack(changed)
    return before, after
