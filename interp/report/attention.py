"""What the page says of `interp attention`."""

import pandas as pd

from interp import plots
from interp.outliers import AttentionStudy
from interp.plots.style import CLASS_NAME
from interp.report.section import Section

TITLE = "Attention by residual dimension"
DEFINITIONS = {
    "Source": "Maruta and Matsuzaki, on BERT-base-uncased; attention by class as in Clark et al. 2019.",
    "C_j": "[(x_m W_Q + b_Q) W_Kᵀ]_j x_nj: what dimension j of the key contributes to the score of a query at "
    "m and a key at n (the paper's equation 6, read with b_Q W_Kᵀ x).",
    "Gap": "C_j of a class of keys less that of the other keys; n_dims_90 dimensions make 90 % of it.",
    "Outlier dimension": "Its mean over tokens is over k SD from the mean over the state's dimensions; k is "
    "in the provenance.",
    "Removed": "The dimension is set to its mean (or zero) in the input of one layer's keys only, against "
    "random dimensions and others of matched magnitude.",
    "L3H5": "Head 5 of blocks.3, both counted from 0 as in TransformerLens; the paper counts layers from 1 and "
    "calls that layer 4. Axes say “layer ℓ (blocks.ℓ−1)”. State 0 is the embeddings, state ℓ follows layer ℓ.",
}


def attention_section(study: AttentionStudy) -> Section:
    """What the page says of `interp attention`; every number comes from the result."""
    special = [name for name in study.attention["key_class"].unique() if name != "other"]
    figures = {"dimension_means": plots.dimension_means(study), "attention": plots.attention_by_layer(study)}
    if not study.outliers.empty:
        figures["outlier_values"] = plots.outlier_values(study)
    if not study.gaps.empty:
        strongest = study.gaps.sort_values("gap", key=abs).iloc[-1]
        layer = int(strongest["layer"])
        figures["contributions"] = plots.contributions(study, layer, str(strongest["key_class"]))
        figures["contribution_table"] = plots.contribution_table(study, layer, int(strongest["dim"]))
    for number, name in enumerate(special):
        if name in set(study.ablation["key_class"]):
            figures[f"ablation_{number}"] = plots.ablation(study, name)
    summary, shown = _summary(study)
    by_layer = study.attention.groupby(["layer", "key_class"], sort=False)[["sum", "mean", "norm_weighted", "uniform"]]
    tables = {"Attention by layer and class, mean over heads": by_layer.mean().reset_index()}
    tables["Outlier dimensions"] = study.outliers
    tables["What sets a class apart, mean over heads"] = _gap_summary(study)
    tables["Change of attention with a key dimension removed"] = _ablation_summary(study)
    return Section(
        title=TITLE,
        question="attention",
        summary=summary,
        main="attention" if shown is None or shown not in special else f"ablation_{special.index(shown)}",
        finding=_finding(study),
        definitions=DEFINITIONS,
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


def _summary(study: AttentionStudy) -> tuple[str, str | None]:
    """The largest fall of attention to a class with an outlier dimension removed, and that class."""
    table = study.ablation.assign(change=study.ablation["attention_after"] - study.ablation["attention_before"])
    table = table[table["key_class"] != "other"]
    removed = table[(table["set"] == "outlier") & (table["change"] < 0)]
    if removed.empty:
        return _outliers(study), None
    row = removed.sort_values("change").iloc[0]
    same = (table["layer"] == row["layer"]) & (table["key_class"] == row["key_class"])
    control = table.loc[same & table["set"].isin(["random", "matched"]), "change"].min()
    return (
        f"Of the outlier dimensions, {row['dim']} lowers attention to {_name(row['key_class'])} most when removed from "
        f"the keys of layer {row['layer'] + 1} (blocks.{row['layer']}): from {row['attention_before']:.4f} to "
        f"{row['attention_after']:.4f} (the strongest control: to {row['attention_before'] + min(0.0, control):.4f})."
    ), str(row["key_class"])


def _name(key_class: str) -> str:
    return CLASS_NAME.get(key_class, key_class)


def _outliers(study: AttentionStudy) -> str:
    if study.outliers.empty:
        return "No dimension of the residual stream is an outlier."
    first = study.outliers[study.outliers["rank"] == 1]
    n_dims = study.outliers["dim"].nunique()
    return (
        f"{n_dims} outlier dimension{'s' if n_dims > 1 else ''}; dimension {first['dim'].iloc[0]} is one in "
        f"{len(first)} of {study.dims['state'].nunique()} hidden states."
    )


def _finding(study: AttentionStudy) -> str:
    sentences = [_outliers(study)]
    table = _ablation_summary(study)
    for kind, what in (("driver", "the dimension of the largest gap"), ("outlier", "an outlier dimension")):
        part = table[table["set"] == kind]
        if part.empty:
            continue
        row = part.sort_values("largest_fall").iloc[0]
        same = table[(table["layer"] == row["layer"]) & (table["key_class"] == row["key_class"])]
        control = same.loc[same["set"].isin(["random", "matched"]), "largest_fall"].min()
        sentences.append(
            f"Removing {what} from the keys lowers attention to {_name(row['key_class'])} most in layer "
            f"{row['layer'] + 1} (blocks.{row['layer']}): from {row['attention_before']:.4f} by "
            f"{max(0.0, -row['largest_fall']):.4f}; "
            f"the strongest of the controls lowers it by {max(0.0, -control):.4f}."
        )
    return " ".join(sentences)
