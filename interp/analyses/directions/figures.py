"""The figure of directions: their cosines."""

from itertools import pairwise

import numpy as np
import pandas as pd

from interp.analyses.directions import DirectionStudy
from interp.analyses.directions.findings import LEVEL
from interp.figures.draw import add_grid
from interp.figures.figure import Figure
from interp.figures.style import DIRECTION_NAME, INK, THIN, figure, plain
from interp.support.words import printed

__all__ = ["direction_cosines"]


def direction_cosines(study: DirectionStudy) -> Figure:
    """Plot the cosines of the directions of word frequency, of output embeddings and of attention. Those that random
    rotations do not reach (adjusted p < .05) are bold, and those that are so by construction are in italics.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> model, text = toy_decoder(), ["w0 w1 w2 w3 w4 w5"] * 20
        >>> study = interp.directions.study(model, text, progress=False)
        >>> list(direction_cosines(study).data[0].x)[:4]
        ['b<sub>LN</sub>', 'E[h]', '−A', 'PC1']
    """
    table = study.cosines
    kinds = {table["name_a"].iloc[0]: table["of_a"].iloc[0]}
    kinds.update(zip(table["name_b"], table["of_b"], strict=True))
    names = list(kinds)
    forms = np.where(table["p_adjusted"] < LEVEL, "<b>{}</b>", np.where(table["by_construction"], "<i>{}</i>", "{}"))
    texts = [form.format(printed(cosine, "{:+z.2f}")) for form, cosine in zip(forms, table["cosine"], strict=True)]
    chance = f"cosine; 95 % of random ones are below {table['null_95'].iloc[0]:.2f}"
    subtitle = f"{chance}; bold: beyond chance (p adjusted < .05); italics: by construction"
    out = figure("Cosines of directions", "", "", subtitle=subtitle)
    labels = [DIRECTION_NAME.get(name, plain(name)) for name in names]
    grid = _square(table, "cosine", names).astype(float).set_axis(labels).set_axis(labels, axis=1)
    marks = _square(table.assign(text=texts), "text", names).fillna("").to_numpy()
    add_grid(out, grid, "%{y}, %{x}: %{z:.3f}", reach=1.0, text=marks, texttemplate="%{text}", textfont_size=11)
    ends = [0]
    for place, (name, following) in enumerate(pairwise(names), 1):
        if kinds[name] != kinds[following]:
            ends.append(place)
    ends.append(len(names))
    border = dict(THIN, color=INK)
    for start, end in pairwise(ends):
        if start:
            out.add_hline(y=start - 0.5, line=border).add_vline(x=start - 0.5, line=border)
        above = {"x": (start + end - 1) / 2, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
        out.add_annotation(above, text=kinds[names[start]])
    out.update_xaxes(tickangle=-45, showgrid=False).update_yaxes(showgrid=False)
    return out.update_layout(height=140 + 30 * len(names), margin_t=104, meta={"least_width": 190 + 42 * len(names)})


def _square(table: pd.DataFrame, column: str, names: list[str]) -> pd.DataFrame:
    """A column of pairs as a symmetric matrix, missing on the diagonal."""
    half = table.pivot(index="name_a", columns="name_b", values=column).reindex(index=names, columns=names)
    return half.where(half.notna(), half.T)
