"""The cost of comparing predictions with word frequency, from a model's config alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from interp.analyses.frequency.options import FrequencyOptions
from interp.corpora.batching import MASK_RATE
from interp.corpora.sources import roughly_tokens
from interp.instruments.costs import predictions
from interp.models.shapes import Shape, shape_with
from interp.passes.budget import Cost, Pass
from interp.passes.groups import MOST
from interp.support.choices import listed

__all__ = ["dry_run"]

_COPIES = 6  # copies of the sums without each group
_OF_PARTS = 2_000  # positions; see interp.frequency.outliers
_TABLES = 5  # copies of the distributions, in float64


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """The cost of `interp.frequency.bias_effect` with these options: one pass, whose sums take `8 (2 n + 1) d_vocab`
    bytes for each of 20 groups of texts. The n variants are each bias or direction at each scale, one or two logit
    adjustments, and the unedited model. A pass before that finds directions (E[h] by default, without b_LN) and outlier
    dimensions of the head's input.

    Random controls are variants too, but without groups: `2 controls` for b_LN and each direction, at two scales. Each
    takes `8 · 5 d_vocab` bytes for its shift, the exponential of that, sums, what a batch adds to the sums, and what is
    being added. A hundredth of the dimensions are assumed to be outliers.

    Raises the errors of `interp.models.shapes.shape`.

    Examples:
        >>> dry_run("tiny-gpt2", None, {"scales": [0, 1]}).numbers["variants"]
        4
    """
    own = ("biases", "scales", "directions", "controls", "bands", "outliers")
    size, asked = shape_with(name, options), FrequencyOptions(**{key: options[key] for key in own if key in options})
    biases: tuple[str, ...] = size.biases if asked.biases is None else tuple(listed(asked.biases))
    without = () if asked.biases or "ln" in biases else ("mean",)  # b_LN
    directions = without if asked.directions is None else tuple(listed(asked.directions))
    biases += directions
    if size.why_no_head or not biases:
        why = size.why_no_head or "this model's prediction head has no bias to scale"
        return Cost(lines=[f"word frequency: {why}"])
    scales = listed(asked.scales)
    n = len(biases) * len(scales) + 1 + ("ln" in biases) + (1 not in scales)
    numbers = {"variants": n}
    repeated = (len(biases) - 1) * (1 in scales)  # the unedited model is summed once
    read = predictions(size, n - repeated, grouped=True)
    leaving_out = _COPIES * 8 * MOST * size.d_vocab
    results = _TABLES * 8 * n * size.d_vocab
    lines = [f"word frequency: {n} variants of the prediction head, {MOST} groups of texts"]
    before = _before(size, directions, outliers=asked.outliers)
    passes = [*before, replace(read, step=len(before))]
    n_scales = min(2, len(set(scales) - {1}))
    n_controls = 2 * asked.controls * n_scales * sum(bias in ("ln", "mean", "slope") for bias in biases)
    if n_controls:
        passes.append(_controls(size, n_controls, passes[-1].step))
        lines.append(f"random directions: {n_controls} more variants")
    if asked.outliers:
        passes.append(_parts(size, asked, data, options, passes[-1].step))
    numbers["controls"] = n_controls
    between = sum(one.sums for one in passes) + leaving_out
    return Cost(passes=tuple(passes), between=between, results=results, numbers=numbers, lines=lines)


def _before(size: Shape, directions: Sequence[str], *, outliers: bool) -> list[Pass]:
    """The pass that finds directions and outlier dimensions of the head's input."""
    if "slope" in directions:
        first = predictions(size, 1, "head input")
        return [replace(first, sums=first.sums + 8 * 3 * size.d_model)]
    if not directions and not outliers:
        return []
    masked: dict[str, Any] = {"text": "masked text", "share": MASK_RATE} if size.encoder else {}
    sums = 8 * ((size.d_model + 1) * ("mean" in directions) + (2 * size.d_model + 1) * outliers)
    return [Pass(what="head input", sums=sums, head=True, **masked)]


def _controls(size: Shape, n: int, step: int) -> Pass:
    found = predictions(size, n, "random directions", step=step)
    kept, added = 8 * n * size.d_vocab, 2 * 8 * n * size.d_vocab
    return replace(found, sums=kept, copies=3 * kept, per_batch=added)


def _parts(size: Shape, asked: FrequencyOptions, data: Any, options: Mapping[str, Any], step: int) -> Pass:
    """The pass with predictions from parts of the head's input alone, and without them, at some positions."""
    tokens = roughly_tokens(data, limit=options.get("limit"), column=options.get("column"))
    mask = MASK_RATE if size.encoder else 1.0
    share = 0.0 if tokens is None else min(mask, _OF_PARTS / tokens)
    parts, dims = 1 + asked.controls, 1 + size.d_model // 100
    n = 1 + 2 * parts
    found = predictions(size, n, "outlier dimensions", text="some of the text", step=step, share=share)
    sums = 8 * size.d_vocab * (2 * MOST * 3 + 3 * n)
    copies = 4 * parts * dims * size.d_vocab
    return replace(found, sums=sums, copies=copies, flops=share * n * (2.0 * dims + 6.0) * size.d_vocab)
