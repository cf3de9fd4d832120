"""A run directory → one self-contained HTML page."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from interp import plots
from interp.frequency import BiasEffect
from interp.observers import replacing

_TEMPLATE = Path(__file__).parent / "plots" / "page.html"


@dataclass(frozen=True, eq=False)
class Section:
    """A part of a page: a heading, the finding in one sentence, figures, tables, and where it comes from."""

    title: str
    finding: str
    definition: str
    figures: list[go.Figure]
    tables: dict[str, pd.DataFrame]
    provenance: dict[str, Any]


def frequency_section(effect: BiasEffect) -> Section:
    """What the page says of `interp frequency`; every number comes from the result."""
    biases = list(effect.kl["bias"].unique())
    constant = [bias for bias in biases if bias != "fc"]
    figures = [plots.bias_curve(effect, biases[0]), plots.kl_by_scale(effect)]
    figures += [plots.projection(effect, bias) for bias in constant]
    figures += [plots.bias_curve(effect, bias) for bias in biases[1:]]
    tables = {"KL, perplexity by bias and scale": effect.kl, "Projection on word frequency": effect.projection}
    tables["Logit adjustment, for comparison"] = effect.adjustment
    return Section(
        title="Word frequency in the prediction head",
        finding=_frequency_finding(effect),
        definition=(
            "u is the unigram distribution, q the mean over positions of the predicted distribution. "
            "KL(u‖q) = Σ u log(u/q) in nats, over types with u > 0. λ multiplies the bias. "
            "Source: Kobayashi et al., Findings of ACL 2023."
        ),
        figures=figures,
        tables=tables,
        provenance=effect.provenance,
    )


def _frequency_finding(effect: BiasEffect) -> str:
    sentences = []
    for bias, part in effect.kl.groupby("bias", sort=False):
        by_scale = part.set_index("scale")
        if not {0.0, 1.0}.issubset(by_scale.index):
            continue
        kl, ppl = by_scale["kl_unigram_model"], by_scale["perplexity"]
        sentences.append(
            f"Without {_plain(str(bias))}, KL(u‖q) goes from {kl[1.0]:.3f} to {kl[0.0]:.3f} nats and perplexity "
            f"from {ppl[1.0]:.1f} to {ppl[0.0]:.1f}."
        )
    for row in effect.projection.itertuples():
        what = "b_LN W_U" if row.bias == "ln" else _plain(str(row.bias))
        sentences.append(f"Spearman correlation of {what} with log u: {row.spearman:.2f}.")
    return " ".join(sentences)


def _plain(bias: str) -> str:
    return {"ln": "b_LN", "fc": "b_FC", "last": "b_last"}[bias]


def write_page(directory: str | os.PathLike[str], sections: dict[str, list[Section]] | None = None) -> Path:
    """Write `directory/index.html` from the results in it, or in its subdirectories.

    The page opens from disk without a network: plotly is inside, once.

    Args:
        sections: by heading (a model's name); read from the results in the directory if not given.

    Raises FileNotFoundError where there is no result.
    """
    root = Path(directory)
    sections = sections or _sections(root)
    if not sections:
        raise FileNotFoundError(f"{root} holds no result to write a page of")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    page = template.render(
        title=" · ".join(sections),
        groups=sections,
        plotlyjs=get_plotlyjs(),
        figure_json=_figure_json,
        cell=_cell,
    )
    target = root / "index.html"
    with replacing(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target


def _sections(root: Path) -> dict[str, list[Section]]:
    found: dict[str, list[Section]] = {}
    for path in sorted([*root.glob("frequency/result.json"), *root.glob("*/frequency/result.json")]):
        effect = BiasEffect.load(path.parent.parent)
        heading = f"{Path(effect.provenance['model']).name} on {effect.provenance['corpus']}"
        found.setdefault(heading, []).append(frequency_section(effect))
    return found


def _figure_json(figure: go.Figure) -> str:
    """A figure as JSON that is safe inside a script element."""
    text = figure.to_json()
    for character, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(character, code)
    return text


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        number = float(value)
        return "–" if np.isnan(number) else f"{number:.4g}" if abs(number) < 1000 else f"{number:,.0f}"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
