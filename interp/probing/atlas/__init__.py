"""Which units of a model tell the sentences of minimal pairs apart, and whether tasks share them: an atlas of residual
dimensions, MLP neurons and outputs of heads, from sums of one pass."""

__all__: list[str] = []
