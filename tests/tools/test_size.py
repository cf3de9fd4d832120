"""Sizes of made-up code."""

import ast

import size

TEXT = '''"""A module."""

import interp.analyses.encoding.fit  # of another question
from interp.analyses import attention, encoding
from interp.analyses.probing import states

__all__ = ["f"]
__all__ += ["LIMIT", "g"]

LIMIT = 3
"""How many."""


def f(x):
    """What it does,

    in lines.
    """
    # a comment
    return (
        x
    )
'''


def test_sizes_of_a_module():
    tree = ast.parse(TEXT)
    assert size.statements(tree) == 8
    assert size.code_lines(TEXT, tree) == 10
    assert size.listed([tree]) == 3
    assert size.between_questions({size.ANALYSES / "attention/keys.py": tree}) == 3
    assert size.between_questions({size.PACKAGE / "passes/execution.py": tree}) == 0


def test_own_options_are_those_that_no_other_class_has():
    assert size.options("frequency") == 4
