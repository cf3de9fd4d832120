"""Attention sinks and massive activations: where they are, and what makes them."""

__all__: list[str] = []
