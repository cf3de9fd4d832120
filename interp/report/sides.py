"""What stands side by side of several runs of one analysis: key numbers, figures, and what differs most."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from interp.encoding import EncodingStudy
from interp.frequency import BiasEffect
from interp.generation import GenerationSweep
from interp.generation.sweep import HUMAN
from interp.outliers import AttentionStudy
from interp.plots import compare
from interp.plots.style import DECODER_NAME
from interp.probing import ProbingStudy
from interp.report.encoding import steering_error
from interp.report.probing import by_state

_PRUNED = 0.3  # by the paper
_PROBES = {"dense": "Dense probes", "l0": "Sparse probes", "dense_untrained": "Dense probes of untrained models"}


@dataclass(frozen=True, eq=False)
class Sides:
    """A row of numbers and a trace in each figure for every run, and one sentence of what differs most."""

    numbers: pd.DataFrame
    figures: dict[str, go.Figure]
    summary: str


def frequency_sides(effects: Mapping[str, BiasEffect]) -> Sides:
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
    numbers = _table(rows)
    figures = {
        f"kl_{bias}": compare.kl(having, bias) for bias, having in _shared(effects, lambda one: one.kl["bias"].unique())
    }
    added = numbers.reindex(columns=["kl", "kl_without_ln"]).diff(axis=1)["kl_without_ln"]
    return Sides(numbers, figures, _extremes("What removing b_LN adds to KL(u‖q)", added, "{:+z.3f} nats"))


def generation_sides(sweeps: Mapping[str, GenerationSweep]) -> Sides:
    rows: dict[str, dict[str, Any]] = {}
    largest, smallest = _shared_ends(sweeps)
    for name, sweep in sweeps.items():
        by_scale = sweep.metrics.set_index(["decoder", "scale"])
        human = by_scale.loc[HUMAN].iloc[0]
        names = [decoder for decoder in sweep.metrics["decoder"].unique() if decoder != HUMAN]
        rows[name] = {"largest_scale": largest, "smallest_scale": smallest}
        for at, scale in (("largest", largest), ("smallest", smallest)):
            rows[name][f"perplexity_at_{at}"] = by_scale["perplexity"].get((names[0], scale), np.nan)
        rows[name]["human_diversity"] = human["diversity"]
        for decoder in names:
            for at, scale in (("largest", largest), ("smallest", smallest)):
                value = by_scale["diversity"].get((decoder, scale), np.nan)
                rows[name][f"{DECODER_NAME.get(decoder, decoder)}_at_{at}"] = value
    numbers = _table(rows)
    decoders_of = _shared(sweeps, lambda one: [name for name in one.metrics["decoder"].unique() if name != HUMAN])
    figures = {f"diversity_{i}": compare.diversity(having, name) for i, (name, having) in enumerate(decoders_of)}
    added = numbers["perplexity_at_smallest"] - numbers["perplexity_at_largest"]
    what = f"What scaling b_LN from λ = {largest:g} to {smallest:g} adds to the perplexity"
    if not largest > smallest:
        added[:] = np.nan
        what = "What scaling b_LN down adds to the perplexity"
    return Sides(numbers, figures, _extremes(what, added, "{:+z.2f}"))


def _shared_ends(sweeps: Mapping[str, GenerationSweep]) -> tuple[float, float]:
    """The largest and the smallest λ that all runs have, one-λ runs aside unless all are; NaN where they share none."""
    scales = [set(sweep.metrics["scale"].dropna()) for sweep in sweeps.values()]
    shared = set.intersection(*([one for one in scales if len(one) > 1] or scales))
    return max(shared, default=np.nan), min(shared, default=np.nan)


def attention_sides(studies: Mapping[str, AttentionStudy]) -> Sides:
    rows: dict[str, dict[str, Any]] = {}
    for name, study in studies.items():
        width = study.dims["dim"].nunique()
        share = study.gaps["n_dims_90_abs"].mean() / width
        rows[name] = {"n_dims": width, "n_outlier_dims": study.outliers["dim"].nunique(), "share_for_90": share}
        special = study.attention[study.attention["key_class"] != "other"]
        rows[name] |= {f"attention_{key}": value for key, value in special.groupby("key_class")["sum"].mean().items()}
        removed = study.ablation[(study.ablation["set"] == "outlier") & (study.ablation["key_class"] != "other")]
        rows[name]["largest_fall"] = (removed["attention_after"] - removed["attention_before"]).min()
    numbers = _table(rows)
    classes = _shared(studies, lambda one: [name for name in one.attention["key_class"].unique() if name != "other"])
    figures = {f"attention_{i}": compare.attention(having, name) for i, (name, having) in enumerate(classes)}
    figures["spread"] = compare.spread(studies)
    what = "The share of dimensions that makes 90 % of what sets a class of keys apart"
    return Sides(numbers, figures, _extremes(what, numbers["share_for_90"], "{:.0%}"))


def encoding_sides(studies: Mapping[str, EncodingStudy]) -> Sides:
    rows: dict[str, dict[str, Any]] = {}
    for name, study in studies.items():
        r2 = study.regression.set_index("target")["adj_r2"]
        rows[name] = {"adj_r2": r2["-log alpha"], "adj_r2_shuffled": r2["shuffled"]}
        for basis, part in _ranked(study).groupby("basis", sort=False):
            at = part.iloc[(part["fraction"] - _PRUNED).abs().argmin()]
            rows[name][f"top1_without_{at['fraction']:.0%}_{basis}"] = at["top1_agreement"]
        missed = steering_error(study.steering)
        fitted = missed[missed["text"] == "fitted"].set_index("mode")["all"]
        rows[name] |= {f"steering_{mode}": value for mode, value in fitted.items()}
    numbers = _table(rows)
    figures = {"fit": compare.fit(studies)}
    for basis, having in _shared(studies, lambda one: _ranked(one)["basis"].unique()):
        figures[f"pruning_{basis}"] = compare.pruning(having, basis)
    what = "Adjusted R² of −log α on the output embeddings"
    return Sides(numbers, figures, _extremes(what, numbers["adj_r2"], "{:.3f}"))


def _ranked(study: EncodingStudy) -> pd.DataFrame:
    return study.pruning[study.pruning["order"] == "spearman"]


def probing_sides(studies: Mapping[str, ProbingStudy]) -> Sides:
    tables = {name: by_state(study) for name, study in studies.items()}
    rows: dict[str, dict[str, Any]] = {}
    for name, study in studies.items():
        state = study.provenance["state"]
        rows[name] = {
            "n_tasks": len(study.tasks),
            "state": state,
            "model_accuracy": study.tasks["model_accuracy"].mean(),
        }
        rows[name] |= tables[name].set_index("state").loc[state].to_dict()
    numbers = _table(rows)
    figures = {
        measure: compare.probes(having, measure, _PROBES[measure], {name: studies[name].provenance for name in having})
        for measure, having in _shared(tables, lambda one: [name for name in _PROBES if name in one])
    }
    best = numbers.filter(["dense", "l0", "topk"]).max(axis=1)
    what = "What the best probes add to a bag of words in accuracy"
    return Sides(numbers, figures, _extremes(what, best - numbers["bag_of_words"], "{:+z.3f}"))


def _table(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows.values()), index=list(rows))


def _shared(results: Mapping[str, Any], names: Callable[[Any], Iterable[Any]]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each name that two results or more have, with those."""
    known = {run: list(names(result)) for run, result in results.items()}
    for name in dict.fromkeys(one for of_run in known.values() for one in of_run):
        having = {run: result for run, result in results.items() if name in known[run]}
        if len(having) > 1:
            yield name, having


def _extremes(what: str, values: pd.Series, form: str) -> str:
    """Between which runs a number varies, and how far, in the digits that are printed."""
    known = values.dropna().sort_values()
    if known.empty:
        return f"{what} is known of no run."
    least, most = (form.format(known.iloc[i]) for i in (0, -1))
    if least == most:
        return f"{what} is {least} in {'all' if len(known) == len(values) else ', '.join(map(str, known.index))}."
    return f"{what} goes from {least} in {known.index[0]} to {most} in {known.index[-1]}."
