"""The cost of studying a model's attention sinks, from its config alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from interp.analyses.sinks.shuffled import DRAWS
from interp.instruments.costs import massive_sums, profile_sums, score_pass, sink_sums
from interp.models.shapes import Shape, shape_with
from interp.passes.budget import Cost
from interp.passes.groups import MOST
from interp.support.choices import listed

__all__ = ["dry_run"]

_DENSE_ROW = 7 * 8  # bytes of scores and gaps per layer, head, class and dimension; see interp.results.dense


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """Estimate the cost of `interp.sinks.study` with these options: one pass, in which attention is computed again from
    queries and keys (`2 T n_heads d_head` operations per token and layer, half of that in causal models). The
    operations of the shuffled rows, of which there are at most 64, are not counted."""
    size = shape_with(name, options)
    classes = options.get("key_classes")
    n_classes = 4 if not classes else len(classes) + ("other" not in classes)
    layers = options.get("layers")
    n_layers = size.n_layers if layers is None else len(listed(layers))
    scored = score_pass(size, n_layers, n_classes)
    sums = sink_sums(size, n_layers, n_classes) + massive_sums(size)
    sums += profile_sums(size, size.n_layers + 1, n_classes)
    # queries, keys, their directions and reverse cumulative sums in float32; what enters a block and is added to it
    per_token = scored.per_token + 4.0 * (4 * size.d_model + 8 * size.n_heads * size.d_head)
    results = 0
    if not size.encoder:
        sums += _of_writers(size)
    if size.linear_scores:
        sums += n_layers * (DRAWS * size.n_heads + 1)
        results = _DENSE_ROW * n_layers * size.n_heads * n_classes * size.d_model
    else:
        per_token += 12.0 * size.n_heads * size.row(options.get("context"))
    of_scores = (scored.sums, scored.flops) if size.linear_scores else (0, 0)
    flops = of_scores[1] + size.attention(size.row(options.get("context"))) / 2
    read = replace(scored, what="sinks", sums=8 * sums + of_scores[0], flops=flops, per_token=per_token)
    numbers = {"n_layers": n_layers, "n_heads": size.n_heads, "n_classes": n_classes, "sink_bytes": read.sums}
    lines = [f"sinks: {n_layers} layers", f"sums of sinks, profiles and contributions: {read.sums / 2**20:,.0f} MiB"]
    return Cost(passes=(read,), results=results, numbers=numbers, lines=lines)


def _of_writers(size: Shape) -> int:
    """The number of sums that a `MassiveWriters` keeps."""
    return MOST * (1 + 2 * size.d_model * (3 + 2 * size.n_layers)) + 2 * size.d_model + 2
