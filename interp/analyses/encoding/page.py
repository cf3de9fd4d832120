"""What the page says about `interp encoding`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from interp.analyses.encoding import figures as plots
from interp.analyses.encoding.columns import BASIS_WORD
from interp.analyses.encoding.figures import way_of_steering
from interp.analyses.encoding.pruning import PRUNED
from interp.analyses.encoding.tables import EncodingStudy
from interp.analyses.encoding.training import halfway
from interp.figures.draw import add_series, only
from interp.figures.figure import Figure
from interp.figures.runs import Sides, draw_runs, extremes, numbers_of, shared
from interp.figures.section import Contexts, Section
from interp.figures.style import GREY, figure, run_styles
from interp.support.words import count

__all__ = ["DEFINITIONS", "section", "sides"]

DEFINITIONS = {
    "Source": "Cho et al., “Understanding Token Probability Encoding in Output Embeddings”, COLING 2025 (arXiv "
    "2406.01468); neurons: Stolfo et al. 2024.",
    "α, A, B": "α_w is the mean output probability of token w, E_w its output embedding; −log α_w ≈ A·E_w + B by least "
    "squares over the vocabulary.",
    "Adjusted R²": "1 − (1 − R²)(n − 1)/(n − d − 1), n types and d dimensions.",
    "Cross-validated R²": "R² of types, a tenth at a time, predicted by the regression on the other nine tenths, with "
    "a 95 % interval.",
    "Theory": "−log α = −log E[p] is −E[log p] to first order in log p, and −E[log p] − ½ Var(log p) to second, with "
    "means over positions; −E[log p] = −E[h]·E_w + E[log Z] is linear whatever the model has learnt.",
    "Removed dimensions": "They are set to zero in the input of the unembedding. KL(full‖pruned) is a mean over "
    "positions, and top-1 agreement is the share of positions whose most probable token stays the same. The paper "
    "removes 30 %.",
    "Text without dimensions": "Prompts are continued greedily, and the new tokens are compared with those of the "
    "whole model at the same places. Perplexity is that on the text of the fit.",
    "Steering": "Multiplies α by a ratio r through the token's logit: by −log(r) h·u with A·u = 1 (regression), by log "
    "r (constant), or by the shift that solves for r (exact). The paper's u is Ω · A⁻¹ element by element, with "
    "weights Ω: here A_j²/‖A‖² (least norm), |A_j|/Σ|A| (weighted), or the same on the tenth of the dimensions with "
    "the largest |A_j| (top).",
    "Tokens of a neuron": "A click on a neuron shows the 20 tokens of the text at which its magnitude is largest.",
    "ΔH": "Change of the entropy of predictions when a neuron of the last MLP is set to its mean; w̃ = (w_out − mean) "
    "⊙ γ.",
}


def section(study: EncodingStudy) -> Section:
    """What the page says about `interp encoding`; every number comes from the result."""
    figures = {"fit": plots.probability_fit(study), "embeddings": plots.embedding_scatter(study)}
    figures["dimensions"] = plots.dimension_slopes(study)
    for basis in study.pruning["basis"].unique():
        figures[f"pruning_{basis}"] = plots.pruning(study, basis)
    written = study.pruned_texts
    for basis in written["basis"].unique():
        figures[f"texts_{basis}"] = plots.pruned_texts(written, basis)
    figures["steering"] = plots.steering(study)
    tables = {
        "−log α on the output embeddings": study.regression,
        "−log α by the fit, and without it": study.theory,
        "How much text the fit needs": study.few_shot,
        "Dimensions removed before top-1 agreement falls": study.removable,
        "Steering: median |log(achieved/requested)|": study.steering_error,
    }
    if not written.empty:
        tables["Text continued without some dimensions"] = written
    contexts = {}
    if not study.neurons.empty:
        figures["neurons"] = plots.neurons(study)
        strongest = study.neurons.sort_values("delta_entropy", key=abs, ascending=False).head(10)
        tables["Neurons of the largest effect on entropy"] = strongest
        contexts = _contexts(study, strongest["neuron"])
    if not study.dynamics.empty:
        figures["dynamics"] = plots.dynamics(study)
    notes = tuple(_notes(study))
    return Section("fit", study.findings, notes, DEFINITIONS, figures, tables, study.provenance, contexts=contexts)


def _contexts(study: EncodingStudy, neurons: Iterable[int]) -> dict[str, Contexts]:
    """The tokens at which neurons of the last MLP are largest."""
    caption = "The {} at which its magnitude is largest. Texts are counted from 0."
    contexts = {}
    for neuron in neurons:
        tokens = study.contexts[study.contexts["neuron"] == neuron]
        if len(tokens):
            contexts[f"neuron {neuron}"] = Contexts(caption.format(count(len(tokens), "token")), tokens)
    return contexts


def _notes(study: EncodingStudy) -> Iterator[str]:
    missed = study.steering_error.query("text == 'fitted' and group == 'all'")
    named = zip(missed["shift"], missed["weights"], missed["error"], strict=True)
    if parts := ", ".join(f"{way_of_steering(*way)} {value:.3f}" for *way, value in named):
        yield f"Steering by ratios from 1/5 to 5 misses by a median |log(achieved/requested)| of {parts}."
    if len(study.dynamics) > 2 and study.dynamics["spearman"].notna().any():
        early = halfway(study.dynamics).query("measure == 'spearman'")
        [(step, fallen)] = zip(early["step"], early["loss_share"], strict=True)
        yield (
            f"In training, the Spearman correlation of b_LN W_U with log u is halfway to its last value from step "
            f"{step:,} on, when the loss has fallen by {fallen:.0%} of all that it falls."
        )


def sides(studies: Mapping[str, EncodingStudy]) -> Sides:
    rows: dict[str, dict[str, Any]] = {}
    for name, study in studies.items():
        r2 = study.regression.set_index("target")
        rows[name] = {"adj_r2": r2.loc["-log alpha", "adj_r2"], "adj_r2_shuffled": r2.loc["shuffled", "adj_r2"]}
        for column in ("cv_r2", "cv_r2_low", "cv_r2_high"):
            rows[name][column] = r2.loc["-log alpha", column]
        for basis, part in _ranked(study).groupby("basis", sort=False):
            nearest = part.iloc[(part["fraction"] - PRUNED).abs().argmin()]
            rows[name][f"top1_without_{nearest['fraction']:.0%}_{basis}"] = nearest["top1_agreement"]
        for row in study.steering_error.query("text == 'fitted' and group == 'all'").to_dict("records"):
            kind = "" if row["weights"] in ("", "least_norm") else f"_{row['weights']}"
            rows[name][f"steering_{row['shift']}{kind}"] = row["error"]
    numbers = numbers_of(rows)
    figures = {"fit": _fit(studies)}
    for basis, having in shared(studies, lambda study: _ranked(study)["basis"].unique()):
        figures[f"pruning_{basis}"] = _pruning(having, basis)
    title = "Adjusted R² of −log α on the output embeddings"
    return Sides(DEFINITIONS, numbers, figures, extremes(title, numbers["adj_r2"], "{:.3f}"))


def _ranked(study: EncodingStudy) -> pd.DataFrame:
    return study.pruning.query("order == 'spearman'")


def _fit(studies: Mapping[str, EncodingStudy]) -> Figure:
    """Adjusted R² of −log α on the output embeddings, and that of α shuffled."""
    out = figure("Token probability from the output embedding", "adjusted R² of −log α", "")
    chance = {"name": "α shuffled", "color": GREY, "symbol": "circle-open"}
    for number, (name, style) in enumerate(run_styles(list(studies)).items()):
        r2 = studies[name].regression.set_index("target")["adj_r2"].round(4)
        for target, look, size, in_legend in (("-log alpha", style, 12, False), ("shuffled", chance, 10, not number)):
            point = pd.Series(style["name"], [r2[target]])
            options: dict[str, Any] = {"hover": "%{x:.3f}<extra></extra>", "mode": "markers", "showlegend": in_legend}
            add_series(out, point, look, size=size, **options)
    return out.update_yaxes(autorange="reversed", type="category")


def _pruning(studies: Mapping[str, EncodingStudy], basis: str) -> Figure:
    """Top-1 agreement against the fraction of dimensions removed, least tied to probability first."""
    subtitle = f"{BASIS_WORD[basis]}, by |spearman|"
    out = figure(plots.REMOVING[basis], "fraction removed", "top-1 agreement", subtitle=subtitle)
    lines = {}
    for name, study in studies.items():
        curve = only(_ranked(study), "basis", basis).set_index("fraction")["top1_agreement"]
        lines[name] = curve.sort_index()
    draw_runs(out, lines, list(studies))
    return out.update_xaxes(tickformat=".0%").update_yaxes(rangemode="tozero")
