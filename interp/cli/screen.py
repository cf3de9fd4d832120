"""What a command prints: in any encoding, and on a terminal without control characters.

Names, tokens and texts of a run may hold what a terminal obeys: escape sequences that set its title or write over other
lines, and marks that turn the direction of the text around. All output of commands goes through `echo`.
"""

import sys

__all__ = ["any_encoding", "echo", "on_terminal", "visible"]

_SYMBOLS = {code: chr(0x2400 + code) for code in range(0x20)}
_SYMBOLS[0x7F] = "␡"
_SYMBOLS.update({code: f"<{code:02X}>" for code in range(0x80, 0xA0)})
for _code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)):
    _SYMBOLS[_code] = f"<U+{_code:04X}>"
_IN_LINES = _SYMBOLS.copy()
del _IN_LINES[ord("\n")], _IN_LINES[ord("\t")]


def visible(text: str, *, lines: bool = False) -> str:
    """A text in which symbols stand for control characters and for marks that turn the direction of text around.

    Args:
        lines: keep line breaks and tabs.

    Examples:
        >>> visible("\\x1b]0;title\\x07\\u202etxt.exe"), visible("two\\nlines", lines=True)
        ('␛]0;title␇<U+202E>txt.exe', 'two\\nlines')
    """
    return text.translate(_IN_LINES if lines else _SYMBOLS)


def echo(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Print a text on stdout or stderr: as it is, or on a terminal `visible`. Does nothing if the stream is closed."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None:
        print(visible(text, lines=True) if stream.isatty() else text, end=end, file=stream, flush=True)


def on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def any_encoding() -> None:
    """Let stdout and stderr write what their encoding lacks as escapes (`\\u2016`), as JSON and Python do."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
