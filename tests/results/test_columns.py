"""Tables as they are printed."""

import numpy as np
import pandas as pd
import pytest

from interp.results.columns import COMMON, Column, column, displayed


def cells(values, name="js"):
    return displayed(pd.DataFrame({name: values}))[0].cells


@pytest.mark.parametrize(
    ("values", "printed"),
    [
        ([0.0167, 0.0047, -5.551e-18], ["0.0167", "0.0047", "0.0000"]),
        ([-1e-9, 0.5], ["0.0", "0.5"]),
        ([0.0, 0.5, 1.0], ["0.0", "0.5", "1.0"]),
        ([12.25, 15.5], ["12.2", "15.5"]),
        ([2e-8, 3e-3], ["2.00e−08", "3.00e−03"]),
        ([0.0, 2e-8, 3e-3], ["0", "2.00e−08", "3.00e−03"]),
        ([0.08, 0.05, 0.03, 0.01, 6e-5], ["0.0800", "0.0500", "0.0300", "0.0100", "0.0001"]),
        ([1_000.0, np.nan], ["1,000", "–"]),
        ([1, 20_000], ["1", "20,000"]),
        ([-3, 0.5], ["−3.0", "0.5"]),
        ([0.0, 0.0], ["0", "0"]),
        ([np.inf, 2.5], ["inf", "2.5"]),
    ],
)
def test_a_column_has_one_number_of_decimals(values, printed):
    assert cells(values) == printed


def test_words_lists_and_what_is_missing():
    assert cells(["a", None, [1, 2], {"b": "ü"}, True]) == ["a", "–", "[1, 2]", '{"b": "ü"}', "yes"]
    assert cells([np.array([1, 2])]) == ["[1, 2]"]
    assert displayed(pd.DataFrame({"x": [True, False]}))[0].cells == ["yes", "no"]
    known = {"x": Column("x", "", {"l0": "sparse"})}
    assert displayed(pd.DataFrame({"x": ["l0", "l1"]}), known)[0].cells == ["sparse", "l1"]


def test_intervals_stand_beside_their_value():
    table = pd.DataFrame({
        "kl_corrected": [0.101, 0.25], "kl_low": [0.09, np.nan], "kl_high": [0.12, np.nan], "scale": [0.0, 1.0],
        "low": [-1.0, 0.5], "high": [1.0, 1.5],
    })  # fmt: skip
    kl, scale = displayed(table)
    assert kl.cells == ["0.101 [0.090, 0.120]", "0.250"]
    assert kl.values == [0.101, 0.25]
    assert scale.cells == ["0.0 [−1.0, 1.0]", "1.0 [0.5, 1.5]"]


def test_an_interval_belongs_to_the_column_of_its_name():
    table = pd.DataFrame({"gap": [0.5], "n_dims": [25.5], "gap_low": [0.25], "gap_high": [0.75]})
    assert [one.cells for one in displayed(table)] == [["0.50 [0.25, 0.75]"], ["25.5"]]


def test_what_is_known_by_its_own_name_is_no_end_of_an_interval():
    table = pd.DataFrame({"bin": [0, 1], "edge_low": [0.1, 0.2], "edge_high": [0.2, 0.3]})
    known = COMMON | {"edge_low": Column("from"), "edge_high": Column("to")}
    assert [one.heading.label for one in displayed(table, known)] == ["bin", "from", "to"]
    assert [one.name for one in displayed(table)] == ["bin"]


def test_empty_columns_are_left_out():
    table = pd.DataFrame({"task": ["a"], "k": [np.nan], "k_low": [np.nan], "k_high": [np.nan]})
    assert [one.name for one in displayed(table)] == ["task"]


def test_headings():
    assert column("perplexity_high", COMMON) == Column("perplexity, high", "Upper end of the 95 % interval.")
    assert column("is_new", COMMON) == Column("is new")
