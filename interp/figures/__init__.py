"""What all figures share: style, views, and the section of a page."""
