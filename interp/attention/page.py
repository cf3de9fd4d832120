"""What the page says of `interp attention`."""

import math
from dataclasses import dataclass

from interp.attention import AttentionStudy, figures as plots
from interp.figures.section import Section
from interp.figures.style import CLASS_NAME
from interp.figures.words import count

_FROM = {
    "outlier": "Of the outlier dimensions tried",
    "driver": "Of the other dimensions tried (each has the largest gap of some class)",
}
_LEAST = 1e-4  # a change of attention that is printed

DEFINITIONS = {
    "Source": "Maruta and Matsuzaki, on BERT-base-uncased; attention by class as in Clark et al. 2019.",
    "C_j": "[(x_m W_Q + b_Q) W_Kᵀ]_j x_nj: what dimension j of the key contributes to the score of a query at "
    "m and a key at n (the paper's equation 6, read with b_Q W_Kᵀ x).",
    "Gap": "C_j of a class of keys less that of the other keys; n_dims_90 dimensions make 90 % of it.",
    "Outlier dimension": "Its mean over tokens is over k SD from the mean over the state's dimensions; k is "
    "in the provenance.",
    "Removed": "The dimension is set to its mean (or zero) in the input of one layer's keys only, against "
    "random dimensions and others of matched magnitude.",
    "L3H5": "Head 5 of block 3. Layers are TransformerLens' blocks, counted from 0 as heads are; the paper counts "
    "layers from 1 and calls that layer 4. State 0 is the embeddings, state L + 1 what leaves block L.",
}


def section(study: AttentionStudy) -> Section:
    """What the page says of `interp attention`; every number comes from the result."""
    special = [name for name in study.attention["key_class"].unique() if name != "other"]
    figures = {"dimension_means": plots.dimension_means(study), "attention": plots.attention_by_layer(study)}
    if not study.outliers.empty:
        figures["outlier_values"] = plots.outlier_values(study)
    known = study.gaps[study.gaps["gap"].abs() > 0]
    if not known.empty:
        strongest = known.sort_values("gap", key=abs).iloc[-1]
        layer = int(strongest["layer"])
        figures["contributions"] = plots.contributions(study, layer, str(strongest["key_class"]))
        figures["contribution_table"] = plots.contribution_table(study, layer, int(strongest["dim"]))
    for number, name in enumerate(special):
        if name in set(study.ablation["key_class"]):
            figures[f"ablation_{number}"] = plots.ablation(study, name)
    summary, shown = _summary(study)
    tables = {"Attention by layer and class, mean over heads": study.by_layer}
    tables["Outlier dimensions"] = study.outliers
    tables["What sets a class apart, mean over heads"] = study.largest_gaps
    tables["Change of attention with a key dimension removed"] = study.ablated
    return Section(
        summary=summary,
        main="attention" if shown is None or shown not in special else f"ablation_{special.index(shown)}",
        finding=_finding(study),
        definitions=DEFINITIONS,
        figures=figures,
        tables=tables,
        provenance=study.provenance,
    )


@dataclass(frozen=True)
class _Fall:
    """The largest change of attention to a class, in one layer, with a dimension of some set removed.

    `control` is the lowest attention with one of the layer's controls removed, NaN without controls.
    """

    dim: int
    layer: int
    key_class: str
    before: float
    after: float
    control: float

    @property
    def printed(self) -> bool:
        return self.before - self.after >= _LEAST

    def __str__(self) -> str:
        where = f"from the keys of block {self.layer}"
        text = f"{_name(self.key_class)} most when removed {where}: from {self.before:.4f} to {self.after:.4f}"
        if self.before - self.control >= _LEAST:
            return f"{text} (the strongest control: to {self.control:.4f})"
        return text if math.isnan(self.control) else f"{text} (no control lowers it by {_LEAST:.4f} or more)"


def _fall(study: AttentionStudy, kind: str) -> _Fall | None:
    """None where the study has removed no dimension of that set."""
    table = study.ablation[study.ablation["key_class"] != "other"]
    change = table["attention_after"] - table["attention_before"]
    removed = table.assign(change=change.astype(float))[table["set"] == kind].dropna(subset="change")
    if removed.empty:
        return None
    row = removed.sort_values("change").iloc[0]
    same = table[(table["layer"] == row["layer"]) & (table["key_class"] == row["key_class"])]
    return _Fall(
        dim=int(row["dim"]),
        layer=int(row["layer"]),
        key_class=str(row["key_class"]),
        before=float(row["attention_before"]),
        after=float(row["attention_after"]),
        control=float(same.loc[same["set"].isin(["random", "matched"]), "attention_after"].min()),
    )


def _summary(study: AttentionStudy) -> tuple[str, str | None]:
    """What removing an outlier dimension does at most, and to which class."""
    fall = _fall(study, "outlier")
    if fall is None or not fall.printed:
        return _outliers(study), None
    return f"{_FROM['outlier']}, {fall.dim} lowers attention to {fall}.", fall.key_class


def _name(key_class: str) -> str:
    return CLASS_NAME.get(key_class, key_class)


def _outliers(study: AttentionStudy) -> str:
    if study.outliers.empty:
        return "No dimension of the residual stream is an outlier."
    first = study.outliers[study.outliers["rank"] == 1]
    n_dims = study.outliers["dim"].nunique()
    return (
        f"{count(n_dims, 'outlier dimension')}; dimension {first['dim'].iloc[0]} is one in "
        f"{len(first)} of {count(study.dims['state'].nunique(), 'hidden state')}."
    )


def _finding(study: AttentionStudy) -> str:
    sentences = [_outliers(study)]
    for kind, of in _FROM.items():
        fall = _fall(study, kind)
        if fall is not None and fall.printed:
            sentences.append(f"{of}, {fall.dim} lowers attention to {fall}.")
        elif fall is not None:
            sentences.append(f"{of}, none lowers attention to a class by {_LEAST:.4f} or more.")
    return " ".join(sentences)
