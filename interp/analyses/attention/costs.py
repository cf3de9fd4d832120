"""The cost of decomposing a model's attention scores, from its config alone."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from interp.analyses.attention.options import OUTLIERS
from interp.instruments.costs import massive_sums, profile_sums, score_flops, score_pass
from interp.models.shapes import Shape, shape, shape_with
from interp.passes.budget import Cost, Pass
from interp.passes.contexts import KEPT
from interp.passes.groups import MOST
from interp.results.verdicts import FEWEST_CONTROLS
from interp.support.choices import Several, listed

__all__ = ["cost", "dry_run"]
__dir__ = __all__.copy

_RANDOM = 5  # dimensions that are removed from a layer beside outliers
_TOGETHER = 64  # outlier dimensions that are removed together, as is assumed
_DENSE_ROWS = 5_000_000  # with more rows, scores are saved as arrays; see interp.results.dense
_TABLE_ROW = 160  # bytes per row of a table of scores or gaps while it is being saved


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `interp.attention.study` with these options: `cost`, attention that is computed again from
    queries and keys (`2 T n_heads d_head` operations per token and layer, half of that in causal models), and a second
    pass unless `ablation` is off. That pass is estimated for the most dimensions that may be removed one by one. It
    also has the sums of the draws of their controls, which read only a part of a long text, for up to 64 outliers
    together. Where scores cannot be decomposed, patterns are read, nothing is scored, and the second pass runs each row
    again for each dimension."""
    size = shape_with(name, options)
    key_classes = options.get("key_classes")
    n_classes = None if not key_classes else len(key_classes) + ("other" not in key_classes)
    by_head = options.get("weights") == "attention"
    base = cost(size, n_classes=n_classes, layers=options.get("layers"), by_head=by_head)
    context = size.row(options.get("context"))
    scores_again = size.attention(context) / 2
    read, *scored = base.passes
    if options.get("average") == "sentence":  # the class of all keys needs its own sums
        growth = 1 + 1 / base.numbers["n_classes"]
        scored = [
            replace(reading, sums=math.ceil(reading.sums * growth), flops=reading.flops * growth) for reading in scored
        ]
    if not size.linear_scores:
        read = replace(read, per_token=read.per_token + 12.0 * size.n_heads * context)
    text = "text" if options.get("sample") is None else "a sample of the text"
    passes = [replace(read, flops=read.flops + scores_again), *(replace(reading, text=text) for reading in scored)]
    if options.get("ablation", True):
        classes, n_layers = base.numbers["n_classes"], base.numbers["n_layers"]
        removed = OUTLIERS["keys"] + _RANDOM + classes - 1 if size.linear_scores else OUTLIERS["residual"] + _RANDOM
        variants = 1 + min(removed, size.d_model)
        sums = 8 * ((n_layers * variants * (size.n_heads + MOST) + 1) * classes + MOST + 1)
        memory: dict[str, Any] = {"per_token": read.per_token, "per_batch": read.per_batch}
        operations = 2 * scores_again if size.linear_scores else size.forward + size.attention(context)
        if size.linear_scores:
            memory["per_batch"] += 4 * removed * size.n_key_value_heads * size.d_head * context
            sums += _draws(n_layers, classes)
            memory["per_batch"] += 4 * FEWEST_CONTROLS * _TOGETHER * (size.d_model + size.n_heads * size.d_head)
        passes.append(Pass(what="ablation", step=1, sums=sums, flops=variants * operations, **memory))
    return replace(base, passes=tuple(passes))


def cost(
    model: str | Shape,
    *,
    n_classes: int | None = None,
    layers: Several[int] | None = None,
    sequence: int = 128,
    by_head: bool = False,
) -> Cost:
    """Estimate the cost of the first pass of `interp.attention.study` for a hub name, a directory with a config.json,
    or a shape.

    Memory of the sums in bytes, floating-point operations per token, and the rows of the table `scores`, unless scores
    cannot be decomposed.

    See `interp.instruments.costs.score_pass` for the means of scores.

    Raises the errors of `interp.models.shapes.shape`.
    """
    size = shape(model) if isinstance(model, str) else model
    classes = n_classes or 4
    heads, d_model = size.n_heads, size.d_model
    n_layers = size.n_layers if layers is None else len(listed(layers))
    scored = score_pass(size, n_layers, classes, sequence=sequence, by_head=by_head)
    rows, massive = n_layers * heads * classes, 8 * massive_sums(size)
    profiles = massive + 8 * sum(profile_sums(size, n, classes) for n in (size.n_layers, size.n_layers + 1))
    by_class = (n_layers * (heads * (MOST + 1) + 2) + 1) * classes + MOST + 1
    largest_tokens = 2 * KEPT * (size.n_layers + 1) * d_model
    profile_sums_bytes = 8 * (by_class + 16 * size.n_layers * d_model + largest_tokens)
    means, centring = score_flops(size, n_layers, classes, sequence=sequence)
    numbers = {
        "n_layers": n_layers, "n_heads": heads, "d_model": d_model, "n_classes": classes, "profile_bytes": profiles,
        "forward": size.forward,
    }  # fmt: skip
    numbers_of_scores = {
        "contribution_bytes": scored.sums, "contributions": means, "centred": centring,
        "rows": (rows + n_layers * heads) * d_model,
    }  # fmt: skip
    lines = [
        f"attention: {n_layers} layers, {classes} classes of keys",
        f"sums of the dimension profiles, massive activations included: {profiles / 2**20:,.0f} MiB",
    ]
    of_scores = [
        f"sums of contributions: {scored.sums / 2**20:,.0f} MiB",
        f"mean contributions: {means / 1e9:,.3f} GFLOP per token",
        f"key-centred contributions: {centring / 1e9:,.3f} GFLOP per token",
        f"together {(means + centring) / size.forward:.1%} of the blocks of the forward pass",
        f"table scores: {(rows + n_layers * heads) * d_model:,} rows",
    ]
    read = replace(scored, what="attention", sums=profiles + profile_sums_bytes, flops=0)
    if not size.linear_scores:
        return Cost(passes=(read,), numbers=numbers, lines=lines)
    results = _results(rows * d_model)
    return Cost(passes=(read, scored), results=results, numbers=numbers | numbers_of_scores, lines=lines + of_scores)


def _draws(n_layers: int, n_classes: int) -> int:
    """Bytes of the sums of the draws; see `interp.attention.frames.FrameDraws`."""
    sets = OUTLIERS["keys"] + 1  # one by one, and all together
    variants = MOST * (1 + sets) + 2 * FEWEST_CONTROLS * (sets + 1)
    return 8 * ((n_layers * variants + 1) * n_classes + 2 * MOST + 1)


def _results(rows: int) -> int:
    """Bytes of scores and gaps, which have three and four columns, and of the tables they are saved as. Scores also
    have the class `all`, and gaps do not have `other`, so both have equally many classes."""
    arrays = 7 * (8 if rows <= _DENSE_ROWS else 4)
    return rows * (arrays + (_TABLE_ROW if rows <= _DENSE_ROWS else arrays))
