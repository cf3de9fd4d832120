"""What stands side by side of several results of `interp frequency`."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from interp.figures.runs import Sides, draw_runs, extremes, numbers_of, shared
from interp.figures.style import BIAS_NAME, figure
from interp.frequency.page import DEFINITIONS
from interp.frequency.tables import BiasEffect
from interp.models.head import Bias

__all__ = ["sides"]


def sides(effects: Mapping[str, BiasEffect]) -> Sides:
    numbers = numbers_of({name: _numbers(effect) for name, effect in effects.items()})
    figures = {f"kl_{bias}": _kl(having, bias) for bias, having in shared(effects, lambda one: one.kl["bias"].unique())}
    added = numbers.reindex(columns=["kl", "kl_without_ln"]).diff(axis=1)["kl_without_ln"]
    return Sides(DEFINITIONS, numbers, figures, extremes("What removing b_LN adds to KL(u‖q)", added, "{:+z.3f} nats"))


def _numbers(effect: BiasEffect) -> dict[Any, Any]:
    """KL and perplexity as trained and without each bias, and how the projections follow word frequency."""
    row: dict[Any, Any] = {}
    for short, measure in (("kl", "kl_unigram_model"), ("perplexity", "perplexity")):
        values = effect.kl.set_index(["scale", "bias"])[measure]
        if 1.0 in values:
            row[short] = values[1.0].iloc[0]
        if 0.0 in values:
            row |= values[0.0].add_prefix(f"{short}_without_").to_dict()
    return row | effect.projection.set_index("bias")["spearman"].add_prefix("spearman_").to_dict()


def _kl(effects: Mapping[str, BiasEffect], bias: Bias = "ln") -> go.Figure:
    """KL(u‖q) against the scale of a bias."""
    out = figure(f"Distance from word frequency as {BIAS_NAME[bias]} goes", "scale λ of the bias", "KL(u‖q), nats")
    kl = {name: effect.kl.set_index(["bias", "scale"])["kl_unigram_model"] for name, effect in effects.items()}
    draw_runs(out, {name: values[bias].sort_index() for name, values in kl.items()}, list(effects))
    out.update_yaxes(rangemode="tozero")
    return out
