"""What the page says of `interp encoding`."""

import numpy as np
import pandas as pd

from interp import plots
from interp.encoding import EncodingStudy
from interp.report.section import Section

TITLE = "Token probability in output embeddings"
DEFINITIONS = {
    "Source": "Cho et al., “Understanding Token Probability Encoding in Output Embeddings”, COLING 2025 (arXiv "
    "2406.01468); neurons: Stolfo et al. 2024.",
    "α, A, B": "α_w is the mean output probability of token w, E_w its output embedding; −log α_w ≈ A·E_w + B "
    "by least squares over the vocabulary.",
    "Adjusted R²": "1 − (1 − R²)(n − 1)/(n − d − 1), n types and d dimensions.",
    "Removed dimensions": "Set to zero in the input of the unembedding; KL(full‖pruned) is the mean over "
    "positions, top-1 agreement the share of positions whose likeliest token stays. The paper removes 30 %.",
    "Steering": "Multiplies α by a ratio r through the token's logit: by −log(r) h·u with A·u = 1 (regression, "
    "the paper's), by log r (constant), or by the shift that solves for r (exact).",
    "ΔH": "Change of the entropy of predictions when a neuron of the last MLP is set to its mean; w̃ = (w_out − "
    "mean) ⊙ γ.",
}


def encoding_section(study: EncodingStudy) -> Section:
    """What the page says of `interp encoding`; every number comes from the result."""
    figures = {"fit": plots.probability_fit(study), "dimensions": plots.dimension_slopes(study)}
    figures |= {f"pruning_{basis}": plots.pruning(study, basis) for basis in study.pruning["basis"].unique()}
    figures |= {"steering": plots.steering(study), "directions": plots.direction_cosines(study)}
    tables = {"−log α on the output embeddings": study.regression, "How much text the fit needs": study.few_shot}
    tables["Dimensions removed before top-1 agreement falls"] = removable(study.pruning)
    tables["Steering: median |log(got/asked)|"] = steering_error(study.steering)
    if not study.neurons.empty:
        figures["neurons"] = plots.neurons(study)
        strongest = study.neurons.sort_values("delta_entropy", key=abs, ascending=False).head(10)
        tables["Neurons of the largest effect on entropy"] = strongest
    if not study.dynamics.empty:
        figures["dynamics"] = plots.dynamics(study)
    return Section(
        title=TITLE,
        question="encoding",
        summary=_sentences(study)[0],
        main="fit",
        finding=" ".join(_sentences(study)),
        definitions=DEFINITIONS,
        figures=figures,
        tables=tables,
        provenance=study.provenance,
    )


def removable(pruning: pd.DataFrame) -> pd.DataFrame:
    """The largest of the fractions up to which top-1 agreement stays at 99 % and at 95 %, by basis and order, or 0."""
    rows = []
    for (basis, order), part in pruning.groupby(["basis", "order"], sort=False):
        kept = {f"{level:.0%}": _around(part, level)[0] for level in (0.99, 0.95)}
        rows.append({"basis": basis, "order": order} | kept)
    return pd.DataFrame(rows)


def _around(curve: pd.DataFrame, level: float) -> tuple[float, float]:
    """The fractions removed just before top-1 agreement first falls below a level and just after; NaN for never."""
    curve = curve.sort_values("fraction")
    below = curve["top1_agreement"].to_numpy() < level
    first = int(below.argmax()) if below.any() else len(below)
    fractions = curve["fraction"].tolist()
    return max(fractions[:first], default=0.0), fractions[first] if below.any() else np.nan


def steering_error(steering: pd.DataFrame) -> pd.DataFrame:
    """Median |log(got/asked)| for ratios from 1/5 to 5, by text, mode and group of tokens."""
    near = steering[steering["asked"].between(0.2 - 1e-9, 5 + 1e-9)]
    error = near.assign(error=np.abs(np.log(near["got"] / near["asked"])))
    median = error.groupby(["text", "mode", "group"], sort=False)["error"].median().unstack()
    return median.assign(all=error.groupby(["text", "mode"], sort=False)["error"].median()).reset_index()


def _sentences(study: EncodingStudy) -> list[str]:
    fitted = study.regression.set_index("target")["adj_r2"]
    untrained = study.dynamics.loc[study.dynamics["step"] == 0, "adj_r2"].dropna()
    before = f", {untrained.iloc[0]:.3f} before training" if len(untrained) else ""
    missed = steering_error(study.steering)
    error = missed[missed["text"] == "fitted"].set_index("mode")["all"] if "text" in missed else pd.Series(dtype=float)
    sentences = [
        f"A linear fit of −log α on the output embeddings has adjusted R² {fitted['-log alpha']:.3f} "
        f"({fitted['shuffled']:.3f} with α shuffled{before})."
    ]
    axes = study.pruning[study.pruning["basis"] == "axis"]
    curves = {order: axes[axes["order"] == order] for order in ("spearman", "random")}
    if not curves["spearman"].empty:
        at_random = "" if curves["random"].empty else f"; in random order it {_fall(curves['random'])}"
        sentences.append(
            f"Top-1 agreement {_fall(curves['spearman'])} of the dimensions removed, least tied to probability first"
            f"{at_random}."
        )
    parts = [f"{mode} {value:.3f}" for mode, value in error.items()]
    if parts:
        sentences.append(f"Steering by ratios from 1/5 to 5 misses by a median |log(got/asked)| of {', '.join(parts)}.")
    return sentences


def _fall(curve: pd.DataFrame) -> str:
    """Where top-1 agreement falls below 95 %."""
    before, after = _around(curve, 0.95)
    if np.isnan(after):
        return f"stays at 95 % or more up to {100 * before:.3g} %"
    return f"falls below 95 % between {100 * before:.3g} % and {100 * after:.3g} %"
