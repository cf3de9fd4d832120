"""The cost of comparing predictions with word frequency, from a model's config alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from interp.analyses.frequency.options import DRAWS, FrequencyOptions
from interp.instruments.controls import MOST_NUMBERS
from interp.instruments.costs import head_input, predictions
from interp.models.shapes import shape_with
from interp.passes.budget import Cost
from interp.passes.groups import MOST
from interp.support.choices import listed

__all__ = ["dry_run"]

_COPIES = 6  # copies of the sums without each group
_TABLES = 5  # copies of the distributions, in float64


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `interp.frequency.bias_effect` with these options: one pass, whose sums take `8 (2 n + 1)
    d_vocab` bytes for each of 20 groups of texts. The n variants are each bias or direction at each scale, one or two
    logit adjustments, and the unedited model. A pass before that finds directions (E[h] by default, without b_LN).

    Raises the errors of `interp.models.shapes.shape`.

    Examples:
        >>> dry_run("tiny-gpt2", None, {"scales": [0, 1]}).numbers["variants"]
        4
    """
    own_names = ("biases", "scales", "directions")
    size = shape_with(name, options)
    chosen = FrequencyOptions(**{key: options[key] for key in own_names if key in options})
    biases: tuple[str, ...] = size.biases if chosen.biases is None else tuple(listed(chosen.biases))
    without = () if chosen.biases or "ln" in biases else ("mean",)  # b_LN
    directions = without if chosen.directions is None else tuple(listed(chosen.directions))
    biases += directions
    if size.why_no_head or not biases:
        reason = size.why_no_head or "this model's prediction head has no bias to scale"
        return Cost(lines=[f"word frequency: {reason}"])
    scales = listed(chosen.scales)
    n = len(biases) * len(scales) + 1 + ("ln" in biases) + (1 not in scales)
    numbers = {"variants": n}
    repeated = (len(biases) - 1) * (1 in scales)  # the unedited model is summed once
    read = predictions(size, n - repeated, grouped=True)
    draws = 8 * min(MOST_NUMBERS, DRAWS * size.d_vocab)
    leaving_out = _COPIES * 8 * MOST * size.d_vocab
    results = _TABLES * 8 * n * size.d_vocab
    lines = [f"word frequency: {n} variants of the prediction head, {MOST} groups of texts"]
    before = [head_input(size, directions)] if directions else []
    passes = [*before, replace(read, step=len(before))]
    between = sum(reading.sums for reading in passes) + leaving_out + draws
    return Cost(passes=tuple(passes), between=between, results=results, numbers=numbers, lines=lines)
