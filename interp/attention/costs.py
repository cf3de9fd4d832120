"""What the decomposition of a model's attention scores costs, from its config alone."""

from dataclasses import dataclass

from interp.models.shapes import shape


@dataclass(frozen=True)
class Cost:
    """Memory of the sums in bytes, floating-point operations a token, and rows of the table `scores`.

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


def cost(name: str, *, n_classes: int | None = None, sequence: int = 128) -> Cost:
    """The cost of `ScoreContributions` and `DimensionProfile` for a hub name or a directory with a config.json.

    Causal models: `2 n_heads d_head d_model` operations a token and layer for the means, and as many for each class
    but one to centre them. Encoders sum over a sequence first: that for each class, twice, once a `sequence` of tokens.

    Raises as `interp.models.shapes.shape`.
    """
    size = shape(name)
    classes = n_classes or (4 if size.encoder else 3)
    layers, heads, d_model = size.n_layers, size.n_heads, size.d_model
    product = 2.0 * heads * size.d_head * d_model
    once = classes * product / sequence if size.encoder else product
    return Cost(
        n_layers=layers,
        n_heads=heads,
        d_model=d_model,
        n_classes=classes,
        contribution_bytes=8 * layers * heads * classes * (2 * d_model + size.d_head + 1),
        profile_bytes=8 * 5 * (2 * layers + 1) * classes * d_model,
        forward=size.forward,
        contributions=layers * once,
        centred=layers * (once if size.encoder else (classes - 1) * product),
        rows=layers * heads * classes * d_model,
    )
