"""Runs of `interp probing --atlas`, as interp 0.2 saved them, hold units; and what a report runs."""

import json

import pandas as pd
import pytest

import interp
from interp import units
from interp.analyses.registry import analyses, saved_names
from interp.testing import toy_decoder

ENDS = [f"w{i} w{j}" for i in range(5, 11) for j in range(11, 17)]
PAIRS = {"sentence_good": [f"w1 {end}" for end in ENDS], "sentence_bad": [f"w2 {end}" for end in ENDS]}


@pytest.fixture(scope="module")
def study() -> units.UnitStudy:
    table = pd.DataFrame(PAIRS | {"UID": ["a", "c"] * 18})
    return units.study(toy_decoder(), table, control_pairs={}, progress=False)


@pytest.fixture(params=[True, False], ids=["with units", "without"])
def run(request, study, tmp_path):
    """The directory of a run as interp 0.2 saved it, and whether units were asked for."""
    folder = tmp_path / "probing"
    folder.mkdir()
    of_welch = study.consistency.assign(score="welch", overlap=-1.0)
    before = dict(
        study.tables,
        consistency=pd.concat([study.consistency.assign(score="paired"), of_welch]),
        units=study.units.assign(welch_t=0.0),
    )
    for name, table in before.items():
        rows = table if request.param else table.iloc[:0]
        rows.to_parquet(folder / f"{name}.parquet", index=False)
    study.tasks.assign(bag_of_words=0.5, model_accuracy=0.5).to_parquet(folder / "tasks.parquet", index=False)
    described = {"analysis": "probing", "tables": [*before], "provenance": study.provenance | {"state": 1}}
    (folder / "result.json").write_text(json.dumps(described))
    return tmp_path, request.param


def test_units_are_read_from_it_if_they_were_asked_for(run, study):
    directory, has_units = run
    assert saved_names(directory) == ["probing", "units"][: 1 + has_units]
    if not has_units:
        with pytest.raises(FileNotFoundError, match="units"):
            interp.load_result(directory, "units")
        return
    found = interp.load_result(directory, "units")
    assert isinstance(found, units.UnitStudy)
    for name, expected in study.tables.items():
        pd.testing.assert_frame_equal(found.tables[name], expected)
    assert [*map(repr, found.findings)] == [*map(repr, study.findings)]
    assert any("earlier version" in caveat for caveat in found.caveats)
    found.save(directory)
    assert interp.load_result(directory, "units").caveats == found.caveats


def test_units_are_asked_for_with_more():
    analysis = analyses()["units"]
    assert analysis.group == "probing"
    assert not analysis.is_reported(more=False, settings=None)
    assert analysis.is_reported(more=True, settings=None)
