"""Missing values of every kind, in every table of a default report, and intervals that contain their values."""

import dataclasses
import math
from itertools import chain

import numpy as np
import pandas as pd
import pytest
from toys import with_tables

from interp.analyses.registry import load
from interp.figures.section import Section
from interp.pages.overview import Entry
from interp.pages.page import _as_html
from interp.results.columns import _with_ends, displayed
from interp.results.exports import written_as

KINDS = {"NA": pd.NA, "None": None, "NaN": math.nan, "NaT": pd.NaT}
RESULTS = [("tiny-bert", name) for name in ("frequency", "attention", "encoding", "probing")]
DECODERS = [("tiny-gpt2", name) for name in ("frequency", "generation", "attention", "encoding", "probing")]
RESULTS += DECODERS


def as_html(part: Section, analysis: str) -> str:
    return _as_html(Entry("a", "label", "model", load(analysis), part)).body


def measured(table: pd.DataFrame) -> list[str]:
    """The columns of a table that hold numbers that were measured. The others say what a row is about."""
    return [
        name for name in table if table[name].dtype.kind == "f" and name not in ("scale", "l0_strength", "fraction")
    ]


@pytest.mark.quick("-NA")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("model", "analysis"), RESULTS)
def test_every_figure_and_table_is_drawn_without_its_numbers(model, analysis, kind, reported):
    """All measured numbers of a result are missing, then half of them; they may also be of type object."""
    result, rng = reported[model][analysis], np.random.default_rng(0)
    for share in (1.0, 0.5):
        emptied = {
            name: table.assign(
                **{
                    column: table[column].astype(object).mask(rng.random(len(table)) < share, KINDS[kind])
                    for column in measured(table)
                }
            )
            for name, table in result.tables.items()
        }
        part = with_tables(result, **emptied).section
        assert part.is_drawn
        assert len(as_html(part, analysis)) > 1_000


@pytest.mark.slow
@pytest.mark.parametrize(("model", "analysis"), DECODERS)  # an encoder's tables have no other columns
def test_every_column_may_be_missing_alone(model, analysis, reported):
    """Figures and sentences that read one of the numbers do without it, in all tables that have it."""
    result = reported[model][analysis]
    columns = {name: measured(table) for name, table in result.tables.items()}
    for column in sorted(set(chain.from_iterable(columns.values()))):
        tables = {name: result.tables[name].assign(**{column: pd.NA}) for name in columns if column in columns[name]}
        assert with_tables(result, **tables).section.is_drawn, column


@pytest.mark.quick("-NA")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("model", "analysis"), RESULTS)
def test_every_cell_of_a_table_may_be_missing(model, analysis, kind, reported):
    """As a table of the page, and as files of all kinds: each column whole, and one cell of every column."""
    result = reported[model][analysis]
    part = result.section
    for heading, table in part.tables.items():
        for rows in (slice(None), slice(0, 1)):
            empty = table.head(30).astype(object).copy()
            empty.iloc[rows] = np.full(empty.iloc[rows].shape, KINDS[kind], dtype=object)
            shown = displayed(empty, part.columns)
            assert rows != slice(None) or not shown, heading
            for form in ("csv", "json"):
                written_as(empty, form)
            written_as(empty, "latex", headings=part.columns)
            as_html(dataclasses.replace(part, tables={heading: empty}, contexts={}, views={}), analysis)


@pytest.mark.parametrize(("model", "analysis"), RESULTS)
def test_no_value_lies_outside_its_interval(model, analysis, reported):
    result, found = reported[model][analysis], 0
    dense = {name: one.table for name, one in result.dense.items() if not one.is_large}
    for name, table in (result.tables | dense).items():
        for column, ends in _with_ends([*map(str, table)], result.headings).items():
            if ends is None or table.empty:
                continue
            value, low, high = (pd.to_numeric(table[one]).to_numpy(float, na_value=math.nan) for one in (column, *ends))
            known = ~np.isnan(low) & ~np.isnan(high)
            assert (~np.isnan(value[known])).all(), (name, column)
            slack = 1e-9 * np.maximum(1, np.abs(value[known]))
            assert (low[known] <= value[known] + slack).all(), (name, column)
            assert (value[known] <= high[known] + slack).all(), (name, column)
            found += known.sum()
    assert found or "none" in result.provenance["intervals"], "a text that is too short for intervals"
    for finding in result.findings:
        if not math.isnan(finding.low):
            assert finding.low <= finding.value <= finding.high, finding.question
