"""An atlas of units (residual dimensions, MLP neurons and outputs of heads): which of them distinguish the sentences of
minimal pairs, and which of them tasks share, from sums of one pass."""

__all__: list[str] = []
