"""Style of made-up code."""

import style

TEXT = '''
def short(one):
    return one


def joined(rows, known):
    """The one that was found.

    Of more than three lines only because of this.
    """
    return {**rows, "known": known}


def longer(rows, one):
    total, found = 0, list(rows)
    low, high = min(rows), max(rows)
    first, second = rows[0], rows[1]
    first, second = second, first
    for these in found:
        total += these
    names = {row: total for row in rows} | {"one": one}
    names |= {"low": low}
    flags = total | high
    return names
'''


def test_what_is_counted():
    counts = style.style(TEXT)
    assert counts.functions == 3
    assert counts.lines_of_functions == 2 + 2 + 11  # without the docstring
    assert counts.bound == 16
    assert counts.vague == 3  # one, found and these of the longest function
    assert counts.comprehensions == 1
    assert counts.unions == 3
    assert counts.assignments == 2  # 0 with list(), and min() with max(); two items, or two names, are related


def test_counts_of_files_are_added():
    counts = style.style(TEXT)
    both = counts + style.style("x = 1\n")
    assert both.statements == counts.statements + 1
    assert both.code == counts.code + 1
    assert both.vague == counts.vague
