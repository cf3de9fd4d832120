"""`naming`: it finds each value in any sentence, and no value in a longer one."""

import re

import pytest
from naming import naming


@pytest.mark.parametrize(
    "message",
    [
        "limit must be at least 1, found 0",
        "found 0 for limit: give 1 or more",
        "The smallest value of `limit` is 1.\nIt is 0",
    ],
)
def test_values_are_found_in_any_order(message):
    assert re.search(naming("limit", 1, 0), message)
    assert not re.search(naming("limit", 1, 2), message)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1, "found 10"),
        (1, "found 0.1"),
        (1, "found 1.5"),
        (1, "found 1,000"),
        (1, "found -1"),
        (1, "found w1"),
        ("text", "found texts"),
        ("n", "found n_ctx"),
        ("a.txt", "found a_txt"),
        ("hook_q", "found hook_q_input"),
    ],
)
def test_a_value_is_not_found_in_a_longer_or_another_one(value, message):
    assert not re.search(naming(value), message)


@pytest.mark.parametrize("value", [1, 0.5, -2, "b_LN", "[UNK]", "a b", "runs/a.txt", "pip install 'interp[ja]'", "λ"])
def test_a_value_is_found_in_quotes_and_before_a_full_stop(value):
    for message in (f"'{value}'", f"({value})", f"found {value}.", f"{value}, not x", f"x={value}"):
        assert re.search(naming(value), message), message
