"""What stands side by side of several results of `interp frequency`."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from interp.figures.runs import Sides, draw_runs, extremes, numbers_of, shared
from interp.figures.style import BIAS_NAME, figure
from interp.frequency.page import DEFINITIONS
from interp.frequency.tables import BiasEffect
from interp.models.head import Bias


def sides(effects: Mapping[str, BiasEffect]) -> Sides:
    rows: dict[str, dict[str, Any]] = {}
    for name, effect in effects.items():
        by_scale = effect.kl.pivot(index="bias", columns="scale", values=["kl_unigram_model", "perplexity"])
        row = {}
        for short, measure in (("kl", "kl_unigram_model"), ("perplexity", "perplexity")):
            values = by_scale[measure]
            if 1.0 in values:
                row[short] = values[1.0].iloc[0]
            if 0.0 in values:
                row |= {f"{short}_without_{bias}": value for bias, value in values[0.0].items()}
        row |= {f"spearman_{one.bias}": one.spearman for one in effect.projection.itertuples()}
        rows[name] = row
    numbers = numbers_of(rows)
    figures = {f"kl_{bias}": _kl(having, bias) for bias, having in shared(effects, lambda one: one.kl["bias"].unique())}
    added = numbers.reindex(columns=["kl", "kl_without_ln"]).diff(axis=1)["kl_without_ln"]
    return Sides(DEFINITIONS, numbers, figures, extremes("What removing b_LN adds to KL(u‖q)", added, "{:+z.3f} nats"))


def _kl(effects: Mapping[str, BiasEffect], bias: Bias = "ln") -> go.Figure:
    """KL(u‖q) against the scale of a bias."""
    out = figure(f"Distance from word frequency as {BIAS_NAME[bias]} goes", "scale λ of the bias", "KL(u‖q), nats")
    lines = {
        name: effect.kl[effect.kl["bias"] == bias].set_index("scale")["kl_unigram_model"].sort_index()
        for name, effect in effects.items()
    }
    draw_runs(out, lines, list(effects))
    out.update_yaxes(rangemode="tozero")
    return out
