"""Shared parts of all figures: style, drawing, views, and the section of a page."""

__all__ = []
