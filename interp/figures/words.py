"""Numbers as sentences say them."""

__all__ = ["change", "count"]


def change(before: float, after: float, form: str) -> str:
    """`goes from … to …`, or `stays at …` where both print the same."""
    first, last = form.format(before), form.format(after)
    return f"stays at {first}" if first == last else f"goes from {first} to {last}"


def count(number: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
