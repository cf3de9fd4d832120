"""What a message must name, so that tests leave its sentences free."""

import re


def naming(*values: object) -> str:
    """A regular expression, for `match=` of `pytest.raises`, of messages that name all these values, in any order.

    A value is the name of an argument, table, file or model, a setting, a number, a token or a command to run. It is
    matched whole: 1 is not in "10", "0.1" or "-1", and "text" is not in "texts".
    """
    return "(?s:^" + "".join(f"(?=.*{_whole(str(value))})" for value in values) + ")"


def _whole(value: str) -> str:
    pattern = re.escape(value)
    if re.match(r"\d", value):
        pattern = r"(?<![\w-])(?<!\d[.,])" + pattern
    elif re.match(r"\w", value):
        pattern = r"(?<!\w)" + pattern
    if re.search(r"\d$", value):
        pattern += r"(?!\w|[.,]\d)"
    elif re.search(r"\w$", value):
        pattern += r"(?!\w)"
    return pattern
