"""A run of interp 0.2, whose sinks are tables of the attention, is read; and what a report runs."""

import json

import pandas as pd
import pytest
import torch

import interp
from interp import attention, corpora, sinks
from interp.analyses.registry import analyses, saved_names
from interp.analyses.report import report
from interp.pages import write_page
from interp.testing import toy_decoder

IDS = torch.randint(7, 67, (40, 24), generator=torch.Generator().manual_seed(0))
OPTIONS = {"key_classes": {"some": [7, 8]}, "progress": False}
BEFORE = {
    "sinks": "heads",
    "sink_rates": "rates",
    "sink_summary": "measures",
    "sink_dims": "dims",
    "writers": "writers",
}


@pytest.fixture(scope="module")
def studies():
    model = toy_decoder()
    counts = corpora.count_unigrams(model, ["w1 w2 w3"] * 30)
    found = attention.study(model, IDS, unigram=counts, ablation=False, **OPTIONS)
    return found, sinks.study(model, IDS, epsilon=0.2, **OPTIONS)


@pytest.fixture(params=[True, False], ids=["with sinks", "without"])
def run(request, studies, tmp_path):
    """The directory of a run as interp 0.2 saved it, and whether sinks were asked for."""
    found, of_sinks = studies
    folder = found.save(tmp_path)
    for before, now in BEFORE.items():
        table = of_sinks.tables[now] if request.param else of_sinks.tables[now].iloc[:0]
        table = table.replace("direction_ratio", "direction_share") if now == "measures" else table
        table.to_parquet(folder / f"{before}.parquet", index=False)
    described = json.loads((folder / "result.json").read_text())
    described["tables"] += [*BEFORE]
    described["provenance"] |= {"epsilon": 0.2, "sinks": request.param}
    (folder / "result.json").write_text(json.dumps(described))
    return tmp_path, request.param


def test_attention_is_read_without_them(run, studies):
    directory, _ = run
    for found in (interp.load_result(directory), attention.AttentionStudy.load(directory)):
        assert set(found.tables) == set(studies[0].tables)
        pd.testing.assert_frame_equal(found.attention, studies[0].attention)


def test_sinks_are_read_from_them_if_they_were_asked_for(run, studies):
    directory, asked = run
    assert saved_names(directory) == ["attention", "sinks"][: 1 + asked]
    if not asked:
        with pytest.raises(FileNotFoundError, match="sinks"):
            interp.load_result(directory, "sinks")
        return
    found = interp.load_result(directory, "sinks")
    assert isinstance(found, sinks.SinkStudy)
    for name in set(BEFORE.values()):
        pd.testing.assert_frame_equal(found.tables[name], studies[1].tables[name])
    assert found.draws.empty
    assert found.findings[0].verdict == "cannot tell"
    assert any("earlier version" in caveat for caveat in found.caveats)
    assert found.save(directory / "again").name == "sinks"
    pd.testing.assert_frame_equal(interp.load_result(directory / "again").heads, found.heads)


def test_a_page_of_such_a_run(run):
    directory, asked = run
    for _ in range(2):
        page = write_page(directory).read_text(encoding="utf-8")
        assert ("Attention sinks" in page) == asked


def test_its_own_folder_counts_first(run, studies):
    directory, _ = run
    studies[1].save(directory)
    assert len(interp.load_result(directory, "sinks").draws) == 39


def test_sinks_are_asked_for_with_more():
    one = analyses()["sinks"]
    assert one.only_more
    assert one.group == "attention"
    assert not one.is_reported(more=False, settings=None)
    assert one.is_reported(more=True, settings=None)
    assert one.is_reported(more=False, settings={"sinks": {"epsilon": 0.2}})
    assert [name for name, one in analyses().items() if one.only_more] == ["controls", "sinks", "directions", "units"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_report_with_rows_that_are_too_short_leaves_them_out(monkeypatch):
    model = toy_decoder(n_positions=64, n_layer=1)
    good, bad = [f"w{i} w1 w2" for i in range(10)], [f"w{i} w2 w1" for i in range(10)]
    asked = {"pairs": pd.DataFrame({"sentence_good": good, "sentence_bad": bad}), "progress": False}
    asked["settings"] = {"probing": {"methods": ["dense"], "controls": ["none"]}, "sinks": {"epsilon": 0.2}}
    for only in ("frequency", "generation", "encoding"):
        asked["settings"][only] = {}
    found = report(model, ["w0 w1 w2 w3"] * 40, layout="texts", context=12, **asked)
    assert "sinks" not in found
    assert "24 tokens" in found["frequency"].left_out["sinks"]
