"""What the page says of `interp attention`."""

import pandas as pd

from interp import plots
from interp.outliers import AttentionStudy
from interp.plots.style import class_styles
from interp.report.section import Section


def attention_section(study: AttentionStudy) -> Section:
    """What the page says of `interp attention`; every number comes from the result."""
    special = [name for name in study.attention["key_class"].unique() if name != "other"]
    figures = [plots.dimension_means(study), plots.attention_by_layer(study)]
    if not study.outliers.empty:
        figures.append(plots.outlier_values(study))
    if not study.gaps.empty:
        strongest = study.gaps.sort_values("gap", key=abs).iloc[-1]
        layer = int(strongest["layer"])
        figures.append(plots.contributions(study, layer, str(strongest["key_class"])))
        figures.append(plots.contribution_table(study, layer, int(strongest["dim"])))
    if not study.ablation.empty:
        figures += [plots.ablation(study, name) for name in special if name in set(study.ablation["key_class"])]
    by_layer = study.attention.groupby(["layer", "key_class"], sort=False)[["sum", "mean", "norm_weighted", "uniform"]]
    tables = {"Attention by layer and class, mean over heads": by_layer.mean().reset_index()}
    tables["Outlier dimensions"] = study.outliers
    tables["What sets a class apart, mean over heads"] = _gap_summary(study)
    tables["Change of attention with a key dimension removed"] = _ablation_summary(study)
    return Section(
        title="Attention by residual dimension",
        finding=_finding(study),
        definition=(
            "C_j = [(x_m W_Q + b_Q) W_Kᵀ]_j x_nj is what dimension j of the key contributes to the score of a query at "
            "m and a key at n. An outlier dimension has a mean further than "
            f"{study.provenance['k']:g} SD from the mean over dimensions. Source: Maruta and Matsuzaki."
        ),
        figures=figures,
        tables=tables,
        provenance=study.provenance,
    )


def _gap_summary(study: AttentionStudy) -> pd.DataFrame:
    """For each layer and class the dimension of the largest mean |gap| share, and how many make 90 %."""
    means = study.gaps.groupby(["layer", "key_class", "dim"], sort=False)[["abs_share", "n_dims_90_abs"]].mean()
    table = means.reset_index()
    if table.empty:
        return table
    return table.loc[table.groupby(["layer", "key_class"], sort=False)["abs_share"].idxmax()].reset_index(drop=True)


def _ablation_summary(study: AttentionStudy) -> pd.DataFrame:
    table = study.ablation.assign(change=study.ablation["attention_after"] - study.ablation["attention_before"])
    table = table[table["key_class"] != "other"]
    groups = table.groupby(["layer", "key_class", "set"], sort=False)
    return groups.agg(
        attention_before=("attention_before", "first"),
        mean_change=("change", "mean"),
        largest_fall=("change", "min"),
        largest_rise=("change", "max"),
    ).reset_index()


def _finding(study: AttentionStudy) -> str:
    sentences = []
    if study.outliers.empty:
        sentences.append("No dimension of the residual stream is an outlier.")
    else:
        first = study.outliers[study.outliers["rank"] == 1]
        n_states = study.dims["state"].nunique()
        n_dims = study.outliers["dim"].nunique()
        sentences.append(
            f"{n_dims} outlier dimension{'s' if n_dims > 1 else ''}; dimension {first['dim'].iloc[0]} is one in "
            f"{len(first)} of {n_states} hidden states."
        )
    names = class_styles(study.provenance["key_classes"])
    table = _ablation_summary(study)
    for kind, what in (("driver", "the dimension of the largest gap"), ("outlier", "an outlier dimension")):
        part = table[table["set"] == kind]
        if part.empty:
            continue
        row = part.sort_values("largest_fall").iloc[0]
        same = table[(table["layer"] == row["layer"]) & (table["key_class"] == row["key_class"])]
        control = same.loc[same["set"].isin(["random", "matched"]), "largest_fall"].min()
        sentences.append(
            f"Removing {what} from the keys lowers attention to {names[row['key_class']]['name']} most in layer "
            f"{row['layer'] + 1} (blocks.{row['layer']}): from {row['attention_before']:.4f} by "
            f"{max(0.0, -row['largest_fall']):.4f}; "
            f"the strongest of the controls lowers it by {max(0.0, -control):.4f}."
        )
    return " ".join(sentences)
