"""What the decomposition of a model's attention scores costs, from its config alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from interp.models.shapes import shape

__all__ = ["Cost", "cost", "dry_run"]


@dataclass(frozen=True)
class Cost:
    """Memory of the sums in bytes, floating-point operations per token, and rows of the table `scores`.

    `forward` is `Shape.forward`: the blocks' matrix products.
    """

    n_layers: int
    n_heads: int
    d_model: int
    n_classes: int
    contribution_bytes: int
    profile_bytes: int
    forward: float
    contributions: float
    centred: float
    rows: int

    @property
    def ratio(self) -> float:
        """What mean and key-centred contributions add to the forward pass."""
        return (self.contributions + self.centred) / self.forward

    @property
    def numbers(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def lines(self) -> list[str]:
        """What `--dry-run` prints."""
        return [
            f"{self.n_layers} layers, {self.n_heads} heads, d_model {self.d_model}, {self.n_classes} classes",
            f"sums of contributions: {self.contribution_bytes / 2**20:,.0f} MiB",
            f"sums of the dimension profiles: {self.profile_bytes / 2**20:,.0f} MiB",
            f"blocks of the forward pass: {self.forward / 1e9:,.3f} GFLOP a token",
            f"mean contributions: {self.contributions / 1e9:,.3f} GFLOP a token",
            f"key-centred contributions: {self.centred / 1e9:,.3f} GFLOP a token",
            f"together {self.ratio:.1%} of the forward pass",
            f"table scores: {self.rows:,} rows",
        ]


def dry_run(name: str, data: Any, options: Mapping[str, Any]) -> Cost:
    """The cost of `interp.attention.study` with these options."""
    return cost(name, n_classes=len(options.get("key_classes") or ()), layers=options.get("layers"))


def cost(name: str, *, n_classes: int | None = None, layers: Sequence[int] | None = None, sequence: int = 128) -> Cost:
    """The cost of `ScoreContributions` and `DimensionProfile` for a hub name or a directory with a config.json.

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
    operations = size.forward, n_layers * once, n_layers * centred
    return Cost(n_layers, heads, d_model, classes, sums, profiles, *operations, rows * d_model)
