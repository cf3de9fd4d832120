"""What all figures share: style, what they are drawn with, views, and the section of a page."""

__all__ = []
