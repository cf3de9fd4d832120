"""Figures of question 1, generation: what a model writes with b_LN or E[h] scaled (Kobayashi et al. 2023, table 2)."""

from typing import Literal, get_args

import pandas as pd

from interp.analyses.generation import GenerationStudy
from interp.analyses.generation.tables import HUMAN
from interp.figures.draw import add_series
from interp.figures.figure import Figure
from interp.figures.style import BIAS_NAME, INK, PAPER, THIN, decoder_styles, figure

__all__ = ["TextMeasure", "generation_tradeoff", "is_known", "text_measure"]

TextMeasure = Literal["diversity", "mauve", "frequent_share", "repetition"]
"""What `text_measure` draws."""
_TITLE = {
    "diversity": ("Diversity of the text", "diversity D = ¼ Σ distinct-n", "± one standard error over texts"),
    "mauve": ("MAUVE against human text", "MAUVE", "± SD over seeds of the clustering; squares: highest"),
    "frequent_share": (
        "Frequent tokens in the text",
        "share of all tokens",
        "the types that make up half of the corpus",
    ),
    "repetition": ("Repetition within a text", "share of repeated 4-grams", ""),
}
_COLUMNS = {"diversity": ("diversity", "diversity_se"), "mauve": ("mauve_mean", "mauve_sd")}
_HUMAN = {"color": INK, "width": 1.5, "dash": "longdashdot"}


def text_measure(sweep: GenerationStudy, measure: TextMeasure = "diversity") -> Figure:
    """A measure of the texts against λ, one line per decoder, with that of the human texts if there is one.

    Raises ValueError for an unknown measure, or one that was not part of the run.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> text, short = ["w0 w1 w2 w3 w4 w5"] * 20, {"n": 3, "prompt_tokens": 2, "new_tokens": 4}
        >>> decoders = ["greedy", "sample"]
        >>> found = interp.generation.study(toy_decoder(), text, decoders=decoders, **short, progress=False)
        >>> [trace.name for trace in text_measure(found, "diversity").data]
        ['greedy', 'sampling', 'human']
    """
    if measure not in _TITLE:
        raise ValueError(f"unknown measure {measure!r}; expected one of {', '.join(get_args(TextMeasure))}")
    if not is_known(sweep, measure):
        raise ValueError(f"{measure} was not part of this run")
    column, error = _COLUMNS.get(measure, (measure, None))
    human, written = _split(sweep)
    title, y, subtitle = _TITLE[measure]
    out = figure(title, f"scale λ of {BIAS_NAME[sweep.scaled]}", y, subtitle=subtitle)
    _draw(out, written, "scale", column, error)
    if measure == "mauve":
        _mark_highest(out, sweep.highest)
    for value in human[column].dropna():
        level = pd.Series(value, [written["scale"].min(), written["scale"].max()])
        add_series(out, level, dict(_HUMAN, name="human"), hover="human: %{y:.4g}<extra></extra>")
    return out


def is_known(sweep: GenerationStudy, measure: TextMeasure) -> bool:
    """Whether a measure of texts was part of a run."""
    column, _ = _COLUMNS.get(measure, (measure, None))
    return bool(_split(sweep)[1][column].notna().any())


def generation_tradeoff(sweep: GenerationStudy) -> Figure:
    """Diversity of the texts against the perplexity of the same model on human text, along λ, one line per decoder.

    Examples:
        >>> import interp
        >>> from interp.testing import toy_decoder
        >>> text, short = ["w0 w1 w2 w3 w4 w5"] * 20, {"n": 3, "prompt_tokens": 2, "new_tokens": 4}
        >>> decoders = ["greedy", "sample"]
        >>> found = interp.generation.study(toy_decoder(), text, decoders=decoders, **short, progress=False)
        >>> [trace.name for trace in generation_tradeoff(found).data]
        ['greedy', 'sampling']
    """
    human, written = _split(sweep)
    axes = "perplexity on human text", "diversity D = ¼ Σ distinct-n"
    subtitle = "one point for each λ; dotted: the λ named below; horizontal line: human text"
    out = figure("Diversity against perplexity along λ", *axes, subtitle=subtitle)
    _draw(out, written, "perplexity", "diversity", "diversity_se")
    for scale, x in _named_scales(written).items():
        out.add_vline(x=x, line=dict(THIN, dash="dot"))
        out.add_annotation(x=x, y=0.02, text=f"λ = {scale:g}", showarrow=False, bgcolor=PAPER)
    for value in human["diversity"].dropna():
        out.add_hline(y=value, line=_HUMAN)
    return out.update_yaxes(range=[0, 1])  # the range of D


def _split(sweep: GenerationStudy) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The row of the human texts, if there is one, and the rows of the decoders."""
    is_human = sweep.metrics["decoder"] == HUMAN
    return sweep.metrics[is_human], sweep.metrics[~is_human]


def _draw(out: Figure, written: pd.DataFrame, x: str, y: str, error: str | None) -> None:
    """A line for each decoder, with its points in the order of λ."""
    hover = "λ = %{customdata[0]:g}<br>%{y:.4g}<br>perplexity %{customdata[1]:.2f}"
    for decoder, style in decoder_styles(list(written["decoder"].unique())).items():
        part = written[written["decoder"] == decoder].sort_values("scale").set_index(x, drop=False)
        bars = None if error is None else {"array": part[error], "thickness": 1, "width": 3}
        details = part[["scale", "perplexity"]]
        add_series(out, part[y], style, hover=hover, size=8, customdata=details, error_y=bars, showlegend=True)


def _mark_highest(out: Figure, highest: pd.DataFrame) -> None:
    """A square at the λ of the highest MAUVE of each decoder, with the interval of λ in its hover text."""
    for decoder, style in decoder_styles(list(highest["decoder"])).items():
        best = highest[highest["decoder"] == decoder].set_index("scale")
        mark = {"name": f"{style['name']}, highest", "color": style["color"], "symbol": "square-open"}
        hover = "highest at λ = %{x:g} [%{customdata[0]:g}, %{customdata[1]:g}]"
        ends = best[["scale_low", "scale_high"]]
        add_series(out, best["mauve_mean"], mark, hover=hover, size=14, mode="markers", customdata=ends,
                   showlegend=False)  # fmt: skip


def _named_scales(written: pd.DataFrame) -> dict[float, float]:
    """The perplexity at the largest and the smallest λ, and at the middle one if it is far enough from both."""
    curve = written.drop_duplicates("scale").set_index("scale")["perplexity"].dropna().sort_index()
    if curve.empty:
        return {}
    low, high = curve.index[0], curve.index[-1]
    middle = curve.index[len(curve) // 2]
    distance = 0.12 * (curve.max() - curve.min())
    named = [low, high]
    if min(abs(curve[middle] - curve[low]), abs(curve[middle] - curve[high])) > distance:
        named.append(middle)
    return {float(scale): float(curve[scale]) for scale in named}
