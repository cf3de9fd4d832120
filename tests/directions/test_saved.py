"""Runs of earlier versions, whose directions are tables of the encoding, are read; and what a report runs."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import interp
from interp import directions, encoding
from interp.analyses.registry import analyses, saved_names
from interp.pages import write_page
from interp.testing import toy_decoder

IDS = torch.randint(7, 67, (40, 24), generator=torch.Generator().manual_seed(0))
SMALL = {"orders": ["random"], "bases": ["axis"], "shifts": ["constant"], "ratios": [2.0]}
BEFORE = {"directions": "cosines", "subspaces": "overlaps", "rotations": "rotations"}


@pytest.fixture(scope="module")
def studies():
    model = toy_decoder()
    options = {"unigram": np.arange(1, 68), "progress": False}
    return encoding.study(model, IDS, **SMALL, **options), directions.study(model, IDS, **options)


@pytest.fixture(params=["0.2", "0.2 without", "0.3", "0.3 without"])
def run(request, studies, tmp_path):
    """The directory of a run as an earlier version saved it, with or without an atlas, and which version that was."""
    of_encoding, compared = studies
    version, _, without = request.param.partition(" ")
    folder = of_encoding.save(tmp_path)
    tables = {name: compared.tables[now].iloc[: 0 if without else None] for name, now in BEFORE.items()}
    if version == "0.2":
        del tables["rotations"]
        tables["atlas"], tables["directions"] = tables["directions"], pd.DataFrame({"direction": ["b_LN"]})
    elif without:
        tables["directions"] = compared.cosines
    for name, table in tables.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)
    described = json.loads((folder / "result.json").read_text())
    described["tables"] += [*tables]
    record = compared.provenance
    atlas = {name: record[name] for name in ("dims", "neurons", "heads")}
    described["provenance"]["atlas"] = atlas | {"absent": {"sink keys": "no head has one"}}
    (folder / "result.json").write_text(json.dumps(described))
    return tmp_path, version, not without


def test_encoding_is_read_without_them(run, studies):
    found = interp.load_result(run[0], "encoding")
    assert set(found.tables) == set(studies[0].tables)
    pd.testing.assert_frame_equal(found.regression, studies[0].regression)


def test_directions_are_read_from_them_if_they_were_asked_for(run, studies):
    directory, version, asked = run
    assert saved_names(directory) == ["encoding", "directions"][: 1 + asked]
    if not asked:
        with pytest.raises(FileNotFoundError, match="directions"):
            interp.load_result(directory, "directions")
        return
    found = interp.load_result(directory, "directions")
    pd.testing.assert_frame_equal(found.cosines, studies[1].cosines)
    pd.testing.assert_frame_equal(found.overlaps, studies[1].overlaps)
    assert found.rotations.empty == (version == "0.2")
    verdicts = [finding.verdict for finding in found.findings]
    assert verdicts == (["cannot tell"] * 2 if version == "0.2" else [one.verdict for one in studies[1].findings])
    assert any("earlier version" in caveat for caveat in found.caveats)
    assert found.section.notes == ("Not among the directions: sink keys (no head has one).",)
    pd.testing.assert_frame_equal(interp.load_result(found.save(directory / "again")).cosines, found.cosines)


def test_a_page_of_such_a_run(run):
    directory, _, asked = run
    assert ("Cosines of directions" in write_page(directory).read_text(encoding="utf-8")) == asked


def test_directions_are_asked_for_with_more():
    analysis = analyses()["directions"]
    assert analysis.only_more
    assert analysis.group == "encoding"
    assert analysis.is_reported(more=True, settings=None)
    assert not analysis.is_reported(more=False, settings=None)
