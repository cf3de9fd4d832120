"""Statistics of every dimension of the residual stream: by token class, and in relation to frequency and attention."""

from functools import partial, reduce
from typing import ClassVar, Literal, TypeAlias, get_args

import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor

from interp.corpora.batching import Batch
from interp.corpora.classes import TokenClasses
from interp.instruments.keys import KeyClassBatch, KeyObserver, attention_hooks, table_of
from interp.models.edits import jointly
from interp.models.qk import qk_circuit
from interp.models.sites import Model, Recipe, state_name, view
from interp.passes import moments
from interp.passes.observers import Observer, fingerprint
from interp.support.checks import check_choice, check_table
from interp.support.choices import Rule

__all__ = ["DimensionCorrelations", "DimensionProfile", "check_rule", "find_outliers"]
__all__ += ["noise_count", "outlier_counts", "outlier_threshold"]
__dir__ = __all__.copy

_Of: TypeAlias = Literal["residual", "attn_input"]
_IN_NOISE = 0.05  # the number of outliers in noise at the default threshold of the robust rule


class DimensionProfile(KeyObserver):
    """Mean, SD and largest magnitude of every dimension by token class, in the residual stream or in the input of
    attention.

    After `observe` there is the `table` described in `dimension_profile`.
    """

    axes: ClassVar = {"{}.moments": f"moments: {moments.ROWS[1]} classes d_model", "{}.max_abs": "max: classes d_model"}

    def __init__(self, model: Model, classes: TokenClasses, *, of: _Of = "residual") -> None:
        super().__init__(model, classes, range(model.cfg.n_layers + (of == "residual")), of=of)
        self.of = of
        self.add_to_layers()

    def layer_hooks(self, layer: int, keys: KeyClassBatch) -> Recipe:
        if self.of == "residual":
            return jointly([state_name(self.model, layer)], partial(self._read, layer, keys))
        circuit = qk_circuit(self.model, layer)
        names = circuit.input_name, circuit.query_name  # only the second of these fires once in every model
        return jointly(names, lambda x, q: self._read(layer, keys, circuit.attn_input(x)))

    def _read(self, state: int, keys: KeyClassBatch, activation: Tensor) -> None:
        one_hot = keys.counts[keys.real]
        x = activation[keys.real].to(one_hot)
        largest = torch.full_like(self.state[f"{state}.max_abs"], -torch.inf)
        for number in one_hot.any(0).nonzero()[:, 0].tolist():
            largest[number] = x[one_hot[:, number].bool()].abs().amax(0)
        self.add(f"{state}.max_abs", largest)
        self.add(f"{state}.moments", moments.by_group(x, one_hot))

    @property
    def table(self) -> pd.DataFrame:
        """One row per state, class and dimension, including the class `all`."""
        by_class = self.of_layers("moments")[..., self.present, :]
        largest = self.of_layers("max_abs")[..., self.present, :]
        by_class = rearrange(by_class, "layer part key_class dim -> part layer key_class dim")
        all_classes = reduce(moments.merged, by_class.unbind(2))
        with_all = torch.cat([by_class, all_classes[:, :, None]], 2)
        largest = torch.cat([largest, largest.amax(1, keepdim=True)], 1)
        keys = {"state": self.layers, "key_class": [*self.names, "all"], "dim": range(largest.shape[2])}
        columns = {"mean": moments.mean(with_all), "sd": moments.variance(with_all).sqrt(), "max_abs": largest}
        columns["n_tokens"] = with_all[0].long()
        table = table_of(keys, columns)
        return table[["state", "dim", *table.columns.drop(["state", "dim"])]]


class DimensionCorrelations(Observer):
    """Correlation of each dimension of the attention input with log u of the token and with the attention it receives.

    After `observe` there is the `table` `correlations` of an `interp.attention.AttentionStudy`. Correlations are
    Pearson's. The attention that a token receives is averaged over heads and over the queries that see it.
    """

    axes: ClassVar = {"{}.moments": f"moments: {moments.ROWS[2]} 2 d_model"}

    def __init__(self, model: Model, log_unigram: Float[Tensor, " d_vocab"]) -> None:
        super().__init__(model.W_U.device, log_unigram=fingerprint(log_unigram))
        self.model = model
        self.log_unigram = log_unigram.double()
        self.layers = range(model.cfg.n_layers)
        self.add_states(model.cfg, self.layers)

    def hooks(self, batch: Batch) -> Recipe:
        log_u = self.log_unigram.to(batch.tokens.device)[batch.tokens][batch.mask.bool()]
        recipe: Recipe = []
        for layer in self.layers:
            recipe.extend(self._hooks(layer, batch, log_u))
        return recipe

    def _hooks(self, layer: int, batch: Batch, log_u: Tensor) -> Recipe:
        block = view(self.model).attention(layer)
        real = batch.mask.bool()

        def read(attention: Tensor, x: Tensor) -> None:
            attention = attention.mean(1)
            viewers = block.span.over_queries(real.to(attention.dtype))
            y = torch.stack([log_u, (attention / viewers.clamp(min=1))[real].double()], 1)
            self.add(f"{layer}.moments", moments.of_pairs(block.input_of(x)[real].double(), y))

        return attention_hooks(self.model, layer, batch, read, "input")

    @property
    def table(self) -> pd.DataFrame:
        layer_moments = torch.stack([self.state[f"{layer}.moments"] for layer in self.layers], 1)
        frequency, attention = moments.correlation(layer_moments).unbind(1)
        columns = {"log_unigram": frequency, "attention_received": attention, "n_tokens": layer_moments[0, :, 0].long()}
        return table_of({"layer": self.layers, "dim": range(self.model.cfg.d_model)}, columns)


def find_outliers(profile: pd.DataFrame, *, k: float | int | None = None, rule: Rule = "robust") -> pd.DataFrame:
    """Find the dimensions whose mean is far from the means of the other dimensions of the same state.

    With the rule `robust`, the condition is `|x̄_j − median| > k · 1.4826 MAD`. The median and the median absolute
    deviation are taken over the dimensions of a state, of means over all tokens, so outliers do not affect the scale
    that they are measured by. With the rule `sd`, it is `|x̄_j − μ| > k σ`, with the mean and the population SD (Maruta
    and Matsuzaki read outliers off a figure); here one large outlier hides smaller ones. If the MAD is 0, 1.2533 times
    the mean absolute deviation replaces 1.4826 MAD (Iglewicz and Hoaglin 1993).

    Args:
        profile: the table of `dimension_profile`.
        k: the threshold. Default: that of `outlier_threshold`, which is the k at which noise of as many dimensions
            gives .05 outliers with the rule `robust` (4.0 for 768 dimensions, 4.4 for 4,096), and 3 with the rule `sd`,
            where noise gives 2.1 and 11.1 outliers.
        rule: `"robust"` or `"sd"`; see above.

    Returns the table `outliers` of an `interp.attention.AttentionStudy`. `z` is `(x̄_j − μ)/σ` and `robust_z` is
    `(x̄_j − median)/(1.4826 MAD)`, whatever the rule. Ties in rank are broken by the largest score of the rule.

    Raises ValueError for a k that is not above 0, for an unknown rule, and for a table that has missing values or mixes
    two runs.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> means = 0.05 * rng.normal(size=768)
        >>> means[[1, 2, 3]] = [100.0, 3.0, -2.0]
        >>> profile = pd.DataFrame({"state": 0, "key_class": "all", "dim": range(768), "mean": means})
        >>> find_outliers(profile)["dim"].tolist(), find_outliers(profile, rule="sd")["dim"].tolist()
        ([1, 2, 3], [1])
    """
    check_rule(k, rule)
    table = _scored(profile)
    score = table["robust_z" if rule == "robust" else "z"].abs()
    chosen = score > _thresholds(table, k, rule)
    table, score = table[chosen], score[chosen]
    sizes = score.groupby(table["dim"])
    of_dim = pd.DataFrame({"n_states": sizes.count(), "largest": sizes.max()})
    of_dim = of_dim.sort_values(["n_states", "largest"], ascending=False).assign(rank=range(1, len(of_dim) + 1))
    table = table.join(of_dim[["rank", "n_states"]], on="dim")
    return table.sort_values(["rank", "state"]).reset_index(drop=True)


def outlier_counts(profile: pd.DataFrame, *, k: float | int | None = None, rule: Rule = "robust") -> pd.DataFrame:
    """Count how many dimensions of each state are outliers by either rule, and how many there would be in noise.

    Args:
        k: the threshold of `rule`. The other rule has its default.

    Returns a table (state, rule, k, n_outliers, in_noise); see `find_outliers` and `noise_count`.

    Raises the errors of `find_outliers`.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> profile = pd.DataFrame({"state": 0, "key_class": "all", "dim": range(768), "mean": rng.normal(size=768)})
        >>> outlier_counts(profile).round(2)
           state    rule     k  n_outliers  in_noise
        0      0  robust  3.99           0      0.05
        1      0      sd  3.00           4      2.07
    """
    check_rule(k, rule)
    table = _scored(profile)
    parts = []
    for counted_rule in get_args(Rule):
        n_outliers = (
            find_outliers(profile, k=k if counted_rule == rule else None, rule=counted_rule).groupby("state").size()
        )
        limits = (
            _thresholds(table, k if counted_rule == rule else None, counted_rule)
            .groupby(table["state"])
            .agg(["first", "size"])
        )
        in_noise = [noise_count(size, limit) for limit, size in limits.itertuples(index=False)]
        part = pd.DataFrame({"rule": counted_rule, "k": limits["first"]})
        parts.append(part.assign(n_outliers=n_outliers.reindex(limits.index, fill_value=0), in_noise=in_noise))
    return pd.concat(parts).rename_axis("state").reset_index().sort_values("state", kind="stable", ignore_index=True)


def noise_count(d_model: int, k: float) -> float:
    """Compute how many of `d_model` dimensions lie beyond k in N(0, 1) noise: `2 d (1 − Φ(k))`.

    The rules estimate centre and spread from the same dimensions. Noise then gives .11 outliers in place of .05 with
    the rule `robust` for 128 dimensions, .067 for 768 and .054 for 4,096, and 2.04 in place of 2.07 with the rule `sd`
    for 768.

    Examples:
        >>> round(noise_count(768, 3.0), 2), round(noise_count(4096, 3.0), 2)
        (2.07, 11.06)
    """
    return float(2 * d_model * norm.sf(k))


def outlier_threshold(d_model: int, k: float | int | None = None, rule: Rule = "robust") -> float:
    """Return the k of `find_outliers` for a state of `d_model` dimensions: the given value, or the default of the rule.

    Examples:
        >>> [round(outlier_threshold(d_model), 2) for d_model in (128, 768, 4096)]
        [3.55, 3.99, 4.37]
    """
    if k is not None:
        return float(k)
    return 3.0 if rule == "sd" else float(norm.isf(_IN_NOISE / (2 * d_model)))


def check_rule(k: float | int | None, rule: str) -> None:
    """Raise ValueError unless k is above 0 (or None), and the rule is one of `find_outliers`."""
    if k is not None and not k > 0:
        raise ValueError(f"k must be above 0, found {k}")
    check_choice("rule", rule, get_args(Rule))


def _scored(profile: pd.DataFrame) -> pd.DataFrame:
    """The means over all tokens, with the scores of both rules."""
    key = ["state", "dim", "key_class"]
    check_table(profile, "profile", [*key, "mean"], key)
    table = profile.loc[profile["key_class"] == "all", ["dim", "state", "mean"]]
    state = table["state"]
    means = table["mean"].groupby(state)
    sd = means.transform("std", ddof=0)
    deviation = table["mean"] - means.transform("median")
    spread = 1.4826 * deviation.abs().groupby(state).transform("median")
    spread = spread.where(spread > 0, 1.2533 * deviation.abs().groupby(state).transform("mean"))
    z = (table["mean"] - means.transform("mean")) / sd.where(sd > 0)
    return table.assign(z=z, robust_z=deviation / spread.where(spread > 0))


def _thresholds(table: pd.DataFrame, k: float | int | None, rule: Rule) -> pd.Series:
    """The k of each row."""
    sizes = table.groupby("state")["dim"].transform("size")
    return sizes.map({size: outlier_threshold(size, k, rule) for size in sizes.unique().tolist()})
