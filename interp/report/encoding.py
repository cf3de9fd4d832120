"""What the page says of `interp encoding`."""

import numpy as np
import pandas as pd

from interp import plots
from interp.encoding import EncodingStudy
from interp.report.section import Section


def encoding_section(study: EncodingStudy) -> Section:
    """What the page says of `interp encoding`; every number comes from the result."""
    figures = [plots.probability_fit(study), plots.dimension_slopes(study)]
    figures += [plots.pruning(study, basis) for basis in study.pruning["basis"].unique()]
    figures += [plots.steering(study), plots.direction_cosines(study)]
    tables = {"−log α on the output embeddings": study.regression, "How much text the fit needs": study.few_shot}
    tables["Dimensions removed before top-1 agreement falls"] = removable(study.pruning)
    tables["Steering: median |log(got/asked)|"] = steering_error(study.steering)
    if not study.neurons.empty:
        figures.append(plots.neurons(study))
        strongest = study.neurons.sort_values("delta_entropy", key=abs, ascending=False).head(10)
        tables["Neurons of the largest effect on entropy"] = strongest
    if not study.dynamics.empty:
        figures.append(plots.dynamics(study))
    return Section(
        title="Token probability in output embeddings",
        finding=_finding(study),
        definition=(
            "α_w is the mean output probability of token w, E_w its output embedding: −log α_w ≈ A·E_w + B by least "
            "squares over the vocabulary. Dimensions are removed from the input of the unembedding. Steering "
            "multiplies α by a ratio through the token's logit. Source: Cho et al., COLING 2025."
        ),
        figures=figures,
        tables=tables,
        provenance=study.provenance,
    )


def removable(pruning: pd.DataFrame) -> pd.DataFrame:
    """The largest fraction up to which top-1 agreement stays at 99 % and at 95 %, by basis and order."""
    rows = []
    for (basis, order), part in pruning.groupby(["basis", "order"], sort=False):
        part = part.sort_values("fraction")
        kept = {}
        for level in (0.99, 0.95):
            holds = np.cumprod(part["top1_agreement"].to_numpy() >= level).astype(bool)
            kept[f"{level:.0%}"] = float(part["fraction"][holds].max())
        rows.append({"basis": basis, "order": order} | kept)
    return pd.DataFrame(rows)


def steering_error(steering: pd.DataFrame) -> pd.DataFrame:
    """Median |log(got/asked)| for ratios from 1/5 to 5, by text, mode and group of tokens."""
    near = steering[steering["asked"].between(0.2 - 1e-9, 5 + 1e-9)]
    error = near.assign(error=np.abs(np.log(near["got"] / near["asked"])))
    median = error.groupby(["text", "mode", "group"], sort=False)["error"].median().unstack()
    return median.assign(all=error.groupby(["text", "mode"], sort=False)["error"].median()).reset_index()


def _finding(study: EncodingStudy) -> str:
    fitted = study.regression.set_index("target")["adj_r2"]
    kept = removable(study.pruning).set_index(["basis", "order"])["95%"].to_dict()
    missed = steering_error(study.steering)
    error = missed[missed["text"] == "fitted"].set_index("mode")["all"] if "text" in missed else pd.Series(dtype=float)
    sentences = [
        f"−log α is linear in the output embeddings with adjusted R² {fitted['-log alpha']:.3f} "
        f"({fitted['shuffled']:.3f} with α shuffled)."
    ]
    if ("axis", "spearman") in kept:
        sentences.append(
            f"{kept['axis', 'spearman']:.0%} of the dimensions can go, least tied to probability first, before 5 % of "
            "the likeliest tokens change"
            + (f" ({kept['axis', 'random']:.0%} at random)." if ("axis", "random") in kept else ".")
        )
    parts = [f"{mode} {value:.3f}" for mode, value in error.items()]
    if parts:
        sentences.append(f"Steering by ratios from 1/5 to 5 misses by a median |log(got/asked)| of {', '.join(parts)}.")
    return " ".join(sentences)
