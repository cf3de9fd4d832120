"""A local page on which one model is explored: panels, what they need of a text, the page and its server."""

__all__: list[str] = []
