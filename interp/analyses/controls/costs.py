"""The cost of comparing directions with random ones, from a model's config alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from interp.analyses.controls.draws import KINDS
from interp.analyses.controls.options import ControlOptions
from interp.corpora.batching import MASK_RATE
from interp.corpora.sources import roughly_tokens
from interp.instruments.costs import head_input, predictions
from interp.models.shapes import Shape, shape_with
from interp.passes.budget import Cost, Pass
from interp.passes.groups import MOST
from interp.support.choices import listed

__all__ = ["dry_run"]

_COPIES = 6  # copies of the sums without each group
_OF_PARTS = 2_000  # positions; see interp.analyses.controls.outliers


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `interp.controls.study` with these options: a pass that finds directions and outlier
    dimensions, and one for all edits. b_LN and the directions at each scale take the sums of
    `interp.frequency.bias_effect`.

    Random directions are edits too, but without groups: `draws` of each of four kinds for b_LN and each direction, at
    each scale. Each takes `8 · 5 d_vocab` bytes for its shift, the exponential of that, sums, what a batch adds to the
    sums, and what is being added. A hundredth of the dimensions are assumed to be outliers.

    Raises the errors of `interp.models.shapes.shape`.

    Examples:
        >>> dry_run("tiny-gpt2", None, {}).numbers["controls"]  # b_LN, E[h] and −A
        468
    """
    own_names = ("directions", "scales", "draws", "bands")
    size = shape_with(name, options)
    chosen = ControlOptions(**{key: options[key] for key in own_names if key in options})
    directions = listed(chosen.directions)
    n_vectors = len(directions) + ("ln" in size.biases)
    if size.why_no_head or not n_vectors:
        reason = size.why_no_head or "this model's prediction head has no b_LN, and no direction is asked for"
        return Cost(lines=[f"random directions: {reason}"])
    n = n_vectors * len(listed(chosen.scales))
    n_controls = len(KINDS) * chosen.draws * n
    first = head_input(size, directions)
    read = predictions(size, n + 1, "random directions", grouped=True, step=1)
    drawn = predictions(size, n_controls, "random directions", step=1)
    sums = 8 * n_controls * size.d_vocab
    passes = (
        replace(first, sums=first.sums + 8 * (2 * size.d_model + 1)),  # and outlier dimensions
        replace(read, sums=read.sums + 8 * MOST * 4 * (n + 1) * chosen.bands * 10),
        replace(drawn, sums=sums, copies=3 * sums, per_batch=2 * sums),
        _parts(size, chosen.draws, data, options),
    )
    numbers = {"variants": n + 1, "controls": n_controls}
    lines = [f"random directions: {n} edits of the prediction head, {n_controls} random ones"]
    between = sum(reading.sums for reading in passes) + _COPIES * 8 * MOST * size.d_vocab
    return Cost(passes=passes, between=between, numbers=numbers, lines=lines)


def _parts(size: Shape, draws: int, data: Any, options: Mapping[str, Any]) -> Pass:
    """The pass with predictions from parts of the head's input alone, and without them, at some positions."""
    tokens = roughly_tokens(data, limit=options.get("limit"), column=options.get("column"))
    mask = MASK_RATE if size.encoder else 1.0
    share = 0.0 if tokens is None else min(mask, _OF_PARTS / tokens)
    parts, dims = 1 + draws, 1 + size.d_model // 100
    n = 1 + 2 * parts
    read = predictions(size, n, "outlier dimensions", text="some of the text", step=1, share=share)
    sums = 8 * size.d_vocab * (2 * MOST * 3 + 3 * n)
    copies = 4 * parts * dims * size.d_vocab
    return replace(read, sums=sums, copies=copies, flops=share * n * (2.0 * dims + 6.0) * size.d_vocab)
