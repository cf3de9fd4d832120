"""What the page says about `interp controls`."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.analyses.controls import figures as plots
from interp.analyses.controls.draws import farthest, plug_in
from interp.analyses.controls.tables import ControlStudy
from interp.figures.draw import add_series, error_bars, only
from interp.figures.figure import Figure
from interp.figures.runs import Sides, draw_runs, extremes, numbers_of, shared
from interp.figures.section import Section
from interp.figures.style import GREY, TITLE_NAME, Style, figure, run_styles
from interp.results.columns import COMMON

__all__ = ["DEFINITIONS", "section", "sides"]

DEFINITIONS = {
    "Random directions": "These replace b_LN, E[h] or −A and have its norm, or its effect, which is the SD of what it "
    "adds to the logits over the types that occur; or they are sums of output embeddings with random weights, as they "
    "are or centred over types. Rank 1 is above all of them.",
    "E[h], −A": "The mean of the input h of the unembedding, and the slope of the log of the mean predicted "
    "probability on the output embeddings.",
    "KL(u‖q)": "The divergence of the mean prediction q from word frequency u, in nats. Intervals are around the value "
    "that is not corrected for the number of positions, like those of random directions.",
    "Bands": "Types grouped by word frequency, each band an equal part of the text; 1 is the most frequent. The "
    "calibration error is that of a band's probability in ten bins (Naeini et al. 2015); its floor is what chance "
    "makes of it.",
    "Outlier dimensions": "Dimensions that lie more than 3 SD from the mean over a position's dimensions, at more than "
    "half of the positions (after Macocco et al. 2025). For predictions from these alone, all others are zero. Random "
    "parts have the same norm at each position.",
}


def section(study: ControlStudy) -> Section:
    """Return what the page says about `interp controls`; every number comes from the result."""
    figures = {"controls": plots.random_directions(study)}
    tables = {"Beside random directions": study.ranks}
    if not study.bands.empty:
        figures["bands"] = plots.bands(study)
        tables["By band of word frequency"] = study.bands
    if not study.outliers.empty:
        figures["outliers"] = plots.outlier_parts(study)
        tables["Outlier dimensions of the head's input"] = study.outliers
    notes = () if len(study.outliers) else ("The head's input has no outlier dimension.",)
    return Section("controls", study.findings, notes, DEFINITIONS, figures, tables, study.provenance)


def sides(studies: Mapping[str, ControlStudy]) -> Sides:
    numbers = numbers_of({name: _numbers(study) for name, study in studies.items()})
    figures = {}
    for bias, having in shared(studies, lambda study: study.controls["bias"].unique()):
        figures[f"controls_{bias}"] = _controls(having, bias)
    for bias, having in shared(studies, lambda study: study.bands["bias"].unique()):
        figures[f"bands_{bias}"] = _bands(having, bias)
    for _, having in shared(studies, lambda study: study.outliers["of"].unique()[:1]):
        figures["outliers"] = _outlier_parts(having)
    quantity = (
        "What removing b_LN, or else E[h], adds to KL(u‖q), beyond the median of random directions of equal norm,"
    )
    beyond = pd.Series({name: _beyond(study) for name, study in studies.items()})
    return Sides(DEFINITIONS, numbers, figures, extremes(quantity, beyond, "{:+z.3f} nats"))


def _beyond(study: ControlStudy) -> float:
    """ΔKL of the first direction minus the median of random directions of equal norm."""
    first = farthest(study.ranks).query("kind == 'norm'").iloc[0]
    return float(first["delta_kl"] - first["control_median"])


def _numbers(study: ControlStudy) -> dict[Any, Any]:
    """Ranks among random directions, what the rarest band loses, and KL from outlier dimensions alone and without
    them."""
    row: dict[Any, Any] = {}
    for rank in farthest(study.ranks).to_dict("records"):
        kind = rank["kind"].replace(" ", "_")
        row[f"rank_{rank['bias']}_{kind}"] = rank["rank"]
        row["n_controls"] = rank["n_controls"]
    for band in farthest(study.bands).groupby("bias", sort=False).tail(1).itertuples():
        row[f"excess_nll_rarest_{band.bias}"] = band.excess_nll
    parts = study.outliers[study.outliers["of"] == "outliers"].set_index("part")["kl_unigram_model"]
    row.update(parts.drop("all", errors="ignore").add_prefix("kl_outliers_"))
    return row


def _controls(studies: Mapping[str, ControlStudy], bias: str) -> Figure:
    """What removing b_LN or a direction does to KL(u‖q), next to random directions, with one line for each run."""
    title = f"ΔKL(u‖q) without {TITLE_NAME[bias]}, beside random directions"
    out = figure(title, "ΔKL(u‖q), nats", "", subtitle="at the λ nearest to 0, with 95 % interval")
    symbols = {"norm": "circle-open", "effect": "x-thin-open", "embeddings": "square-open"}
    for number, (name, look) in enumerate(run_styles(list(studies)).items()):
        drawn = farthest(only(studies[name].controls, "bias", bias))
        for kind, part in drawn.groupby("kind", sort=False):
            points = pd.Series(look["name"], part["delta_kl"].round(4))
            symbol = symbols.get(str(kind), "diamond-open")
            random: Style = {"name": COMMON["kind"].words[str(kind)], "color": GREY, "symbol": symbol}
            add_series(out, points, random, hover="%{x:+.3f}", mode="markers", legend=not number)
        estimate = plug_in(farthest(only(studies[name].kl, "bias", bias))).set_index("bias")
        bars = error_bars(estimate["delta_kl"], estimate["delta_kl_low"], estimate["delta_kl_high"])
        value = pd.Series(look["name"], estimate["delta_kl"].round(4))
        options: dict[str, Any] = {"mode": "markers", "size": 11, "legend": False, "error_x": bars}
        add_series(out, value, look, hover="%{x:+.3f}", **options)
    return out.update_yaxes(autorange="reversed", type="category")


def _bands(studies: Mapping[str, ControlStudy], bias: str) -> Figure:
    """What the tokens of each band of word frequency lose without b_LN or a direction."""
    title = f"What rare and frequent words lose without {TITLE_NAME[bias]}"
    x, subtitle = "share of the text in more frequent words", "by band of word frequency, at the λ nearest to 0"
    out = figure(title, x, "Δ NLL, nats", subtitle=subtitle)
    lines = {}
    for name, study in studies.items():
        table = farthest(only(study.bands, "bias", bias)).set_index("band")["delta_nll"]
        lines[name] = table.set_axis((table.index - 0.5) / len(table))
    draw_runs(out, lines, list(studies))
    return out.update_xaxes(range=[0, 1])


def _outlier_parts(studies: Mapping[str, ControlStudy]) -> Figure:
    """KL(u‖q) from the outlier dimensions of the head's input alone, and without them."""
    names = {"all": "all dimensions", "without": "without outliers", "alone": "outliers alone"}
    out = figure("Outlier dimensions of the head's input", "", "KL(u‖q), nats")
    lines = {}
    for name, study in studies.items():
        outlying = only(study.outliers, "of", "outliers").set_index("part")
        lines[name] = outlying["kl_unigram_model"].rename(names)
    draw_runs(out, lines, list(studies))
    return out.update_xaxes(type="category", categoryorder="array", categoryarray=list(names.values()))
