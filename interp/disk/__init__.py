"""What interp writes: whole files or none, and only in place of its own."""

__all__ = []
