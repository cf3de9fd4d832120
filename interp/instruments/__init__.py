"""What several questions measure with: observers, divergences, regressions, decoding. They know no question."""

__all__ = []
