"""What the decomposition of a model's attention scores costs, from its config alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from interp.models.shapes import Cost, shape

__all__ = ["cost", "dry_run"]


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """The cost of `interp.attention.study` with these options."""
    return cost(name, n_classes=len(options.get("key_classes") or ()), layers=options.get("layers"))


def cost(name: str, *, n_classes: int | None = None, layers: Sequence[int] | None = None, sequence: int = 128) -> Cost:
    """The cost of `ScoreContributions` and `DimensionProfile` for a hub name or a directory with a config.json.

    Memory of the sums in bytes, floating-point operations per token, and the rows of the table `scores`.

    Causal models: `2 n_heads d_head d_model` operations for each token and layer for the means, and as many for each
    class but one to centre them. Encoders sum over a sequence first: that for each class, twice, once for each
    `sequence` of tokens.

    Raises as `interp.models.shapes.shape`.
    """
    size = shape(name)
    classes = n_classes or (4 if size.encoder else 3)
    heads, d_model = size.n_heads, size.d_model
    n_layers = size.n_layers if layers is None else len(layers)
    product = 2.0 * heads * size.d_head * d_model
    once = classes * product / sequence if size.encoder else product
    centred = once if size.encoder else (classes - 1) * product
    rows = n_layers * heads * classes
    sums, profiles = 8 * rows * (2 * d_model + size.d_head + 1), 8 * 5 * (2 * size.n_layers + 1) * classes * d_model
    means, centring = n_layers * once, n_layers * centred
    numbers = {
        "n_layers": n_layers, "n_heads": heads, "d_model": d_model, "n_classes": classes, "contribution_bytes": sums,
        "profile_bytes": profiles, "forward": size.forward, "contributions": means, "centred": centring,
        "rows": rows * d_model,
    }  # fmt: skip
    lines = [
        f"{n_layers} layers, {heads} heads, d_model {d_model}, {classes} classes",
        f"sums of contributions: {sums / 2**20:,.0f} MiB",
        f"sums of the dimension profiles: {profiles / 2**20:,.0f} MiB",
        f"blocks of the forward pass: {size.forward / 1e9:,.3f} GFLOP per token",
        f"mean contributions: {means / 1e9:,.3f} GFLOP per token",
        f"key-centred contributions: {centring / 1e9:,.3f} GFLOP per token",
        f"together {(means + centring) / size.forward:.1%} of the forward pass",
        f"table scores: {rows * d_model:,} rows",
    ]
    return Cost(numbers, lines)
